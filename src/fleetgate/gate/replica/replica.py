"""A decision is one transaction (DESIGN.md, "One ordered log").

Read the events not yet seen; take the write lock; read the last few; check that the log is still the one this
process knows; take one `now`; run the commands; append their events; commit; only then tell anybody. Synchronous:
`fleetgate run` calls it directly, services wrap it (gate/library/gate.py).

A commit that failed told nobody anything: the engine is dropped and loaded anew.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from time import monotonic
from typing import NamedTuple

import msgspec

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.engine import Engine
from fleetgate.core.errors import FleetgateError, InternalError
from fleetgate.core.state.snapshot_format import FORMAT, Snapshot
from fleetgate.core.state.state import State
from fleetgate.gate.liveness.host_beats import still_lost
from fleetgate.gate.replica.lost_log_recovery import Recovery
from fleetgate.gate.wakeup.other_hosts import Wake, elsewhere, written
from fleetgate.log.protocol import (
    KEEP_BYTES,
    START,
    Commit,
    Log,
    LogReplaced,
    SideWrite,
    Stored,
    StoreError,
    TransactionLost,
    shared,
)

TOLD = "told"  # beside the log: what waiters look up in their backstop poll, one row a ticket
JOB_ENDS = (
    "job_ends"  # beside the log: jobs whose ticket or lease ended by somebody else's hand, until jobs/ sees to it
)
KEEP_MS = 30 * 86_400_000
SOON_MS = 2_000  # the head of the queue is told of a deadline so near; of others it learns by its poll
_STALE_S = 0.05  # a replica not fed for so long catches up before it takes the lock
_FAR_STALE_S = 2.0  # the same where that is a round trip, and the lock brings a short tail along anyhow
_SNAPSHOT_EVERY = 2_000  # events, or half of what there is to write down, whichever is more
_UPKEEP_S = 0.1  # for upkeep that others may wait for
_TRIES = 5  # a log that is another one each time that it is read is not waited for any longer

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Snapshot).decode


class Decided(NamedTuple):
    """What became of one command: its events, or the caller's mistake."""

    events: list[ev.Event]
    error: FleetgateError | None = None


# What is written beside the log with a decision; or how to tell that from what the commands came to, under the lock.
# What the latter raises undoes the whole transaction.
Side = Sequence[SideWrite] | Callable[[list[Decided]], Sequence[SideWrite]]


class Replica:
    """An engine that follows a log and decides on it. Not for several threads at once."""

    def __init__(self, log: Log, me: str, send: Callable[[Wake], None] | None = None) -> None:
        self.log = log
        self.shared = shared(log)
        self.me = me
        self.address = ""  # where this decider is woken; tickets with another address are somebody else's
        self.position = START
        self.due: int | None = None  # as the last commit has it
        self.reloads = 0
        self.made: list[ev.Event] = []  # by the last decision
        self.seen: list[ev.Event] = []  # taken in from others, for an owner that `listens`, which clears it
        self.listens = False
        self.recovery = Recovery(log)
        self.hands_over = False  # decisions are for a thread: `try_decide` never tries
        self._send = send
        self._engine: Engine | None = None
        self._fed_at = 0.0
        self._since_snapshot = 0

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            self._load()
        assert self._engine is not None
        return self._engine

    @property
    def loaded(self) -> Engine | None:
        """The engine, if the last decision went well: asking for it never fails."""
        return self._engine

    @property
    def is_loaded(self) -> bool:
        """Whether the state can be looked at without the store."""
        return self._engine is not None

    @property
    def state(self) -> State:
        return self.engine.state

    def catch_up(self) -> State:
        """Take in what others committed. Without the lock."""
        engine = self.engine
        try:
            self._follow(engine)
        except LogReplaced:
            self._replaced()
            engine = self.engine
        return engine.state

    def _replaced(self) -> None:
        """It is another log than the one we knew: load it anew, and keep in mind who held what."""
        if self._engine is not None:
            self.recovery.log_replaced(self._engine.state)
        self._engine = None

    def decide(self, commands: Sequence[cmd.Command], *, durable: bool = False, side: Side = ()) -> list[Decided]:
        """Run commands in one transaction, waiting for the lock. `side` is written with it, whatever they come to."""
        stale_s = _FAR_STALE_S if self.shared is not None else _STALE_S
        if self._engine is None or monotonic() - self._fed_at > stale_s:
            self.catch_up()
        self.log.lock()
        if self.shared is not None and self.shared.is_behind:
            self.log.unlock()  # others need not wait while we read
            self.catch_up()
            self.log.lock()
        return self._locked(commands, durable, side)

    def try_decide(self, commands: Sequence[cmd.Command], *, durable: bool = False) -> list[Decided] | None:
        """The same if nobody has the lock, else None at once."""
        if self.hands_over or not self.log.try_lock():
            return None
        return self._locked(commands, durable)

    def _locked(self, commands: Sequence[cmd.Command], durable: bool, side: Side = ()) -> list[Decided]:
        try:
            for left in reversed(range(_TRIES)):
                try:
                    decided, wakes = self._transact(commands, durable, side)
                    break
                except TransactionLost:  # nothing happened, and the log is the one that we know: once more
                    if not left:
                        raise
                except LogReplaced:  # another log than the one we knew: nothing happened
                    continue
            else:
                raise _restless()
        finally:
            self.log.unlock()
        self._wake(wakes)
        return decided

    def _wake(self, wakes: list[Wake]) -> None:
        """Those who are here, by a datagram."""
        while wakes and self._send is not None:
            self._send(wakes.pop(0))

    def _with_commit(self, wakes: list[Wake]) -> list[Wake]:
        """Those who are on other machines are told through the log, with the next commit; the others are left.

        They, too, are woken while it is on its way, if the log can: until it is made they wait for its lock.
        """
        if not wakes or self.shared is None:
            return wakes
        far = elsewhere(wakes)
        near = [wake for wake in wakes if wake not in far]
        self.shared.notify_with_commit(written(far) if far else "", lambda: self._wake(near))
        return near

    def _transact(self, commands: Sequence[cmd.Command], durable: bool, side: Side) -> tuple[list[Decided], list[Wake]]:
        engine = self.engine
        engine.woken_at(self.address)
        log = self.log
        self.made = []
        log.begin(durable=durable)
        try:
            try:
                self._follow(engine)
            except LogReplaced:
                log.rollback()
                self._replaced()
                raise
            now = max(log.now(), engine.state.at)
            events = self.recovery.first(engine, now) + engine.handle(cmd.Tick(), now)
            events += self.recovery.claims(engine, now)
            decided = []
            for command in commands:
                seq = engine.state.seq
                if type(command) is cmd.Lost and command.silent:
                    command = still_lost(log, command)
                try:
                    out = engine.handle(command, now)
                except InternalError:
                    raise
                except FleetgateError as error:
                    if engine.state.seq != seq:
                        raise InternalError(f"a command was refused after it had changed something: {error}") from error
                    decided.append(Decided([], error))
                else:
                    events = events + out if events else out
                    decided.append(Decided(out))
            due = engine.next_deadline()
            writes = side(decided) if callable(side) else side
            if not events and due == self.due and not writes:
                self.recovery.done()
                log.rollback()
                return decided, []
            soon = due is not None and due != self.due and due - now < SOON_MS
            wakes = self._with_commit(self._wakes(engine, events, soon, now))
            self.position = log.append(self.position, now, events, due, [*self._told(events), *writes])
            self.made = events
        except BaseException:
            self._engine = None  # what it decided is in no log
            log.rollback()
            raise
        self.recovery.done()
        self.due = due
        self._since_snapshot += len(events)
        return decided, wakes

    def _follow(self, engine: Engine) -> None:
        """Feed the engine everything behind our position; LogReplaced when the log does not know it."""
        while True:
            commits = self.log.read(self.position)
            if commits:
                self._feed(engine, commits)
            if len(commits) < 10_000:
                break
        self._fed_at = monotonic()

    def _feed(self, engine: Engine, commits: list[Commit]) -> None:
        try:
            for commit in commits:
                engine.replay(commit.events, commit.at)
                if self.listens:
                    self.seen.extend(commit.events)
                self._since_snapshot += len(commit.events)
            self.position = commits[-1].position
            self.due = commits[-1].due
        except BaseException:
            self._engine = None  # interrupted half-way: it would take in the first half twice
            raise

    def _load(self) -> None:
        """Start from the newest snapshot, or from the beginning; anew when others prune in the meantime."""
        self.reloads += 1
        for _ in range(_TRIES):
            try:
                self._engine = self._loaded()
                self.recovery.loaded()
                return
            except LogReplaced:
                continue
        raise _restless()

    def _loaded(self) -> Engine:
        self.seen.clear()
        stored = self.log.snapshot()
        state = State()
        self.position, self.due, self._since_snapshot = START, None, 0
        collecting = gc.isenabled()
        gc.disable()  # a hundred thousand tickets are not garbage
        try:
            if stored is not None:
                state = State.restore(_read_snapshot(stored.data))
                self.position = stored.position
                head = self.log.head()
                self.due = head.due if head is not None else None
            engine = Engine(state, self.me)
            self._follow(engine)
        finally:
            if collecting:
                gc.enable()
        return engine

    # After the commit.

    def _told(self, events: list[ev.Event]) -> list[SideWrite]:
        """Rows for those who wait elsewhere."""
        side = []
        for event in events:
            kind = type(event)
            if kind is ev.Granted:
                if not event.claimed:  # type: ignore[union-attr]
                    side.append(SideWrite(TOLD, event.id, b"granted"))  # type: ignore[union-attr]
            elif kind is ev.Claimed or kind is ev.Returned:
                side.append(SideWrite(TOLD, event.id, None))  # type: ignore[union-attr]
            elif getattr(event, "job", False):
                if kind is not ev.Released:
                    side.append(SideWrite(JOB_ENDS, event.id, _encode(event)))  # type: ignore[union-attr]
            elif kind is ev.Reclaimed:
                if event.cause == "lost":  # type: ignore[union-attr]
                    side.append(SideWrite(TOLD, event.id, b"lost"))  # type: ignore[union-attr]
            elif kind is ev.Expired:
                side.append(SideWrite(TOLD, event.id, b"expired"))  # type: ignore[union-attr]
            elif kind is ev.Cancelled and event.wake != self.address:  # type: ignore[union-attr]
                side.append(SideWrite(TOLD, event.id, b"cancelled"))  # type: ignore[union-attr]
        return side

    def _wakes(self, engine: Engine, events: list[ev.Event], due_soon: bool, now: int) -> list[Wake]:
        if self._send is None:
            return []
        wakes = []
        for event in events:
            if isinstance(event, ev.Granted) and not event.claimed:
                ticket = engine.state.leases[event.id].ticket if event.id in engine.state.leases else None
                if ticket is not None and ticket.wake:
                    wakes.append(Wake(ticket.wake, b"granted", ticket.holder))
            elif isinstance(event, ev.Cancelled | ev.Expired) and event.wake and event.wake != self.address:
                wakes.append(Wake(event.wake, b"left", event.holder))
        if due_soon:
            first = engine.first_to_act()
            if first is not None and first.wake and first.wake != self.address:
                wakes.append(Wake(first.wake, b"due", first.holder))
        for asker in engine.askers(now) if engine.state.gates else ():
            if asker.wake and asker.wake != self.address:
                wakes.append(Wake(asker.wake, b"ask", asker.holder))
        return wakes

    def announce_due(self) -> None:
        """A deadline that was far when it was set may be near by now: tell whoever is to act on it."""
        if self._send is None or self.due is None or self.due - self.log.now() >= SOON_MS:
            return
        first = self.engine.first_to_act()
        if first is not None and first.wake and first.wake != self.address:
            due = Wake(first.wake, b"due", first.holder)
            if self.shared is not None and elsewhere([due]):
                self.shared.notify(written([due]))
            else:
                self._wake([due])

    # Upkeep, outside the lock and off the decision path.

    def maintain(self, keep_ms: int = KEEP_MS, most_bytes: int = KEEP_BYTES) -> bool:
        """Write a snapshot when enough has happened (whether it has), checkpoint and prune."""
        due = self.due_snapshot()
        if due is not None:
            self.log.save_snapshot(due.data, due.position)
        tend(self.log, keep_ms, most_bytes, _UPKEEP_S)
        return due is not None

    def due_snapshot(self) -> Stored | None:
        """The state as it is to be written down, when enough has happened; if that fails, when as much has again."""
        state = self.state
        size = len(state.tickets) + len(state.leases)
        if self._since_snapshot <= max(_SNAPSHOT_EVERY, size // 2):
            return None
        due = Stored(_encode(state.export()), self.position)
        self._sweep_told(state)
        self._since_snapshot = 0
        return due

    def _sweep_told(self, state: State) -> None:
        """Rows of waiters that never came to read them."""
        stale = [key for key, _ in self.log.side_items(TOLD) if key not in state.leases and key not in state.tickets]
        if stale:
            self.forget_told(stale)

    def forget_told(self, idents: Sequence[str]) -> None:
        """Delete rows that were read, or that nobody will read: of what is neither in the queue nor lent."""

        def gone(state: State) -> list[SideWrite]:  # as it is now: rows may be newer than what the caller looked at
            left = [ident for ident in idents if ident not in state.leases and ident not in state.tickets]
            return [SideWrite(TOLD, ident, None) for ident in left]

        self._write_beside(gone)

    def side_value(self, table: str, key: str) -> bytes | None:
        """A value beside the log."""
        return self.log.side_value(table, key)

    def set_side_value_once(self, table: str, key: str, value: bytes) -> bytes:
        """A value beside the log that is written once: what is there by now, or else this."""

        def first(_: State) -> list[SideWrite]:
            return [SideWrite(table, key, value)] if self.log.side_value(table, key) is None else []

        self._write_beside(first)
        return self.log.side_value(table, key) or b""

    def _write_beside(self, choose: Callable[[State], list[SideWrite]]) -> None:
        """A commit of nothing but rows beside the log."""
        self.log.lock()
        try:
            self.log.begin()
            try:
                self._follow(self.engine)
                state = self.engine.state
                side = choose(state)
                now = max(self.log.now(), state.at)
                self.position = self.log.append(self.position, now, [], self.due, side)
            except LogReplaced:
                self._replaced()  # and with the log, its rows
            except BaseException:
                self.log.rollback()
                raise
        finally:
            self.log.unlock()


def tend(log: Log, keep_ms: int, most_bytes: int, for_s: float) -> None:
    """Upkeep of a log, in short steps, for a while if there is so much to do."""
    until = monotonic() + for_s
    while log.maintain(keep_ms, most_bytes) and monotonic() < until:
        continue


def _restless() -> StoreError:
    return StoreError("the store was replaced by another each time that it was read: is a backup being restored?")


def _read_snapshot(data: bytes) -> Snapshot:
    try:
        snapshot = _decode(data)
    except msgspec.MsgspecError as error:
        raise StoreError(f"the newest snapshot cannot be read ({error}): run `fleetgate doctor`") from error
    if snapshot.format > FORMAT:
        raise StoreError("the store was written by a newer Fleetgate: upgrade this one")
    return snapshot
