"""`Replica`: an engine that follows a log, and decides on commands in transactions of that log.

One decision is one transaction: read the events not yet seen; take the write lock; read the last few; check that the
log is still the one that this process knows; take one `now`; run the commands; append their events; commit. Only then
is any process woken. All of it is synchronous: `fleetgate run` calls it directly, `GateCore` wraps it for services.

After a commit that failed no process was woken: the engine is dropped and loaded again.
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
from fleetgate.gate import usage_rows
from fleetgate.gate.liveness.host_beats import still_lost
from fleetgate.gate.replica.lost_log_recovery import Recovery
from fleetgate.gate.replica.side_rows import TICKET_NEWS, rows_for
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

KEEP_MS = 30 * 86_400_000
SOON_MS = 2_000  # a deadline this near is announced to the head of the queue; it learns of others by its poll
_STALE_S = 0.05  # a replica that has not read for this long catches up before it takes the lock
_FAR_STALE_S = 2.0  # the same on a shared log: reading is a round trip, and the lock brings a short tail along
_SNAPSHOT_EVERY = 2_000  # events, or half the number of tickets and leases, whichever is more
_UPKEEP_S = 0.1  # for upkeep that others may wait for
_TRIES = 5  # a log that was replaced this many times in a row is an error

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Snapshot).decode


class Decided(NamedTuple):
    """The result of one command: its events, or the caller's mistake."""

    events: list[ev.Event]
    error: FleetgateError | None = None


# Side rows that are written with a decision; or a function that makes them of the results, under the lock. If the
# function raises, the whole transaction is undone.
Side = Sequence[SideWrite] | Callable[[list[Decided]], Sequence[SideWrite]]


class Replica:
    """An engine that follows a log and decides on it. Not for several threads at once."""

    def __init__(self, log: Log, me: str, send: Callable[[Wake], None] | None = None) -> None:
        self.log = log
        self.shared = shared(log)
        self.me = me
        self.address = ""  # where this process is woken; tickets with another address belong to other processes
        self.position = START
        self.due: int | None = None  # as the last commit has it
        self.reloads = 0
        self.made: list[ev.Event] = []  # by the last decision
        self.seen: list[ev.Event] = []  # read from the log, where it `keeps_events`: its owner clears them
        self.keeps_events = False
        self.recovery = Recovery(log)
        self.decides_in_thread = False  # decisions are for a thread: `try_decide` never tries
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
        """The engine, if the last decision succeeded. Never raises."""
        return self._engine

    @property
    def state(self) -> State:
        return self.engine.state

    def catch_up(self) -> State:
        """Read what others committed, without the lock."""
        engine = self.engine
        try:
            self._follow(engine)
        except LogReplaced:
            self._replaced()
            engine = self.engine
        return engine.state

    def _replaced(self) -> None:
        """The log is not the one that we knew: load it again, and remember what was held."""
        if self._engine is not None:
            self.recovery.log_replaced(self._engine.state)
        self._engine = None

    def decide(self, commands: Sequence[cmd.Command], *, durable: bool = False, side: Side = ()) -> list[Decided]:
        """Run commands in one transaction, waiting for the lock. `side` is written with it."""
        stale_s = _FAR_STALE_S if self.shared is not None else _STALE_S
        if self._engine is None or monotonic() - self._fed_at > stale_s:
            self.catch_up()
        self.log.lock()
        if self.shared is not None and self.shared.is_behind:
            self.log.unlock()  # so that others need not wait while we read
            self.catch_up()
            self.log.lock()
        return self._locked(commands, durable, side)

    def try_decide(self, commands: Sequence[cmd.Command], *, durable: bool = False) -> list[Decided] | None:
        """The same if the lock is free; otherwise None, at once."""
        if self.decides_in_thread or not self.log.try_lock():
            return None
        return self._locked(commands, durable)

    def _locked(self, commands: Sequence[cmd.Command], durable: bool, side: Side = ()) -> list[Decided]:
        try:
            for left in reversed(range(_TRIES)):
                try:
                    decided, wakes = self._transact(commands, durable, side)
                    break
                except TransactionLost:  # nothing happened, and the log is the one that we know: try again
                    if not left:
                        raise
                except LogReplaced:  # another log than the one we knew: nothing happened
                    continue
            else:
                raise _keeps_changing()
        finally:
            self.log.unlock()
        self._wake(wakes)
        return decided

    def _wake(self, wakes: list[Wake]) -> None:
        """Wake processes of this host, by a datagram."""
        while wakes and self._send is not None:
            self._send(wakes.pop(0))

    def _with_commit(self, wakes: list[Wake]) -> list[Wake]:
        """Have the next commit wake processes on other hosts; those of this host are returned.

        A shared log may wake those of this host, too, while the commit is on its way.
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
            rows = rows_for(events, self.address, engine.state, now)
            self.position = log.append(self.position, now, events, due, [*rows, *writes])
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
                if self.keeps_events:
                    self.seen.extend(commit.events)
                self._since_snapshot += len(commit.events)
            self.position = commits[-1].position
            self.due = commits[-1].due
        except BaseException:
            self._engine = None  # interrupted half-way: it would apply the first half twice
            raise

    def _load(self) -> None:
        """Start from the newest snapshot, or from the beginning; again if others prune the log meanwhile."""
        self.reloads += 1
        for _ in range(_TRIES):
            try:
                self._engine = self._loaded()
                self.recovery.loaded()
                return
            except LogReplaced:
                continue
        raise _keeps_changing()

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

    def _wakes(self, engine: Engine, events: list[ev.Event], due_soon: bool, now: int) -> list[Wake]:
        if self._send is None:
            return []
        wakes = []
        for event in events:
            if type(event) is ev.Granted:
                if event.claimed:
                    continue
                ticket = engine.state.leases[event.id].ticket if event.id in engine.state.leases else None
                if ticket is not None and ticket.wake:
                    wakes.append(Wake(ticket.wake, b"granted", ticket.holder))
            elif type(event) is ev.Released:  # the most frequent one besides grants: nothing is to be done
                continue
            elif isinstance(event, ev.Cancelled | ev.Expired) and event.wake and event.wake != self.address:
                wakes.append(Wake(event.wake, b"left", event.holder))
            elif isinstance(event, ev.StopRequested):
                held = engine.state.leases.get(event.id)
                if held is not None and held.ticket.wake:
                    wakes.append(Wake(held.ticket.wake, b"stop", held.ticket.holder))
        if due_soon:
            first = engine.first_to_act()
            if first is not None and first.wake and first.wake != self.address:
                wakes.append(Wake(first.wake, b"due", first.holder))
        for asker in engine.askers(now) if engine.state.gates else ():
            if asker.wake and asker.wake != self.address:
                wakes.append(Wake(asker.wake, b"ask", asker.holder))
        return wakes

    def announce_due(self) -> None:
        """Wake the process that acts on the next deadline, if that is near by now."""
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

    def maintain(
        self, keep_ms: int = KEEP_MS, most_bytes: int = KEEP_BYTES, usage_ms: int = usage_rows.KEEP_MS
    ) -> bool:
        """Write a snapshot when enough has happened; checkpoint and prune. Whether a snapshot was written."""
        due = self.due_snapshot()
        if due is not None:
            self.log.save_snapshot(due.data, due.position)
        maintain_for(self.log, keep_ms, most_bytes, usage_ms, _UPKEEP_S)
        return due is not None

    def due_snapshot(self) -> Stored | None:
        """The state as a snapshot, when enough has happened since the last one."""
        state = self.state
        size = len(state.tickets) + len(state.leases)
        if self._since_snapshot <= max(_SNAPSHOT_EVERY, size // 2):
            return None
        due = Stored(_encode(state.export()), self.position)
        self._sweep_news(state)
        self._since_snapshot = 0
        return due

    def _sweep_news(self, state: State) -> None:
        """Delete the rows of processes that never read them."""
        stale = [
            key for key, _ in self.log.side_items(TICKET_NEWS) if key not in state.leases and key not in state.tickets
        ]
        if stale:
            self.forget_news(stale)

    def forget_news(self, idents: Sequence[str]) -> None:
        """Delete rows that were read, or that no process will read: their tickets and leases are gone."""

        def gone(
            state: State,
        ) -> list[SideWrite]:  # by the newest state: rows may be newer than the one that the caller looked at
            left = [ident for ident in idents if ident not in state.leases and ident not in state.tickets]
            return [SideWrite(TICKET_NEWS, ident, None) for ident in left]

        self._write_side_rows(gone)

    def side_value(self, table: str, key: str) -> bytes | None:
        """A value in a side table."""
        return self.log.side_value(table, key)

    def set_side_value_once(self, table: str, key: str, value: bytes) -> bytes:
        """A value in a side table that is written once: the one that is there, or else this one."""
        return self.replace_side_value(table, key, b"", value)

    def replace_side_value(self, table: str, key: str, known: bytes, value: bytes) -> bytes:
        """Write a value in a side table, if `known` or nothing is there. Returns what is there then."""

        def first(_: State) -> list[SideWrite]:
            return [SideWrite(table, key, value)] if self.log.side_value(table, key) in (None, known) else []

        self._write_side_rows(first)
        return self.log.side_value(table, key) or b""

    def _write_side_rows(self, choose: Callable[[State], list[SideWrite]]) -> None:
        """Commit side rows alone."""
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


def maintain_for(log: Log, keep_ms: int, most_bytes: int, usage_ms: int, for_s: float) -> None:
    """Upkeep of a log, in short steps, for at most `for_s`; rows of usage are kept for `usage_ms`."""
    until = monotonic() + for_s
    while log.maintain(keep_ms, most_bytes) and monotonic() < until:
        continue
    while usage_rows.forget_old_rows(log, usage_ms) and monotonic() < until:
        continue


def _keeps_changing() -> StoreError:
    return StoreError("the store was replaced each time that it was read: is a backup being restored?")


def _read_snapshot(data: bytes) -> Snapshot:
    try:
        snapshot = _decode(data)
    except msgspec.MsgspecError as error:
        raise StoreError(f"the newest snapshot cannot be read ({error}): run `fleetgate doctor`") from error
    if snapshot.format > FORMAT:
        raise StoreError("the store was written by a newer Fleetgate: upgrade this one")
    return snapshot
