"""The gate through the node of this host: no store, no replica and no asyncio in a waiting process.

If the node is gone, or speaks another version, the process uses the store directly (SQLite) or starts another node
(PostgreSQL). Unanswered questions are asked again: the log knows every request and lease by its ID, and does nothing
twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from msgspec.structs import replace

from fleetgate.core import commands as cmd
from fleetgate.core.entities import Lease, Reason
from fleetgate.core.errors import FleetgateError
from fleetgate.gate.node import discovery, protocol
from fleetgate.gate.node.client import ANSWER_S, NodeGone, NodeLink, NodeSilent
from fleetgate.gate.providers.usage_questions import UsageQuestions, Wanted
from fleetgate.gate.slots.base_gate import BaseSlotGate
from fleetgate.gate.slots.base_waiter import BaseWaiter
from fleetgate.gate.slots.slot_gate import (
    UNUSED,
    Left,
    QueuedTicket,
    SlotGate,
    StopRequest,
    TicketWait,
    load_file,
    with_own_host_cap,
)
from fleetgate.log.clock import boot_ms
from fleetgate.log.host_beats import BEAT_S
from fleetgate.log.protocol import StoreError, StoreMoved

if TYPE_CHECKING:
    from fleetgate.config.file import Loaded
    from fleetgate.core.queue.positions import TicketView
    from fleetgate.gate.replica.replica import Decided
    from fleetgate.log.protocol import SideWrite

P = ParamSpec("P")
T = TypeVar("T")

FAR_ANSWER_S = 15.0  # for an answer, since the node itself may have to wait for a server
LEAVE_S = 1.0
LOOK_S = 5.0  # the fallback of a waiting process: a grant comes as a datagram
SLOWEST_LOOK_S = 30.0
_HEAR_S = 0.5  # nothing is passed on meanwhile
_TRIES = 3
_TICK_S = min(3.0, BEAT_S)
_SLOW_LOOK_S = 30.0


def _or_store(method: Callable[Concatenate[NodeGate, P], T]) -> Callable[Concatenate[NodeGate, P], T]:
    """Ask the node; once the node is gone, use the gate that has the store open."""
    name = method.__name__.removeprefix("_")

    def call(gate: NodeGate, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if gate.direct is None:
            try:
                return method(gate, *args, **kwargs)
            except NodeGone as gone:
                gate.go_direct(gone)
        done: T = getattr(gate.direct, name)(*args, **kwargs)
        return done

    return call


class NodeGate(BaseSlotGate):
    """A SlotGate through a node. `open_direct` opens the store; `start`, if given, starts a node before that."""

    def __init__(
        self,
        path: str,
        loaded: Loaded | None,
        folder: str,
        *,
        open_direct: Callable[[], SlotGate],
        start: Callable[[], None] | None,
        tell: Callable[[str], None],
        filed: bool,
    ) -> None:
        self.direct: SlotGate | None = None  # once this process no longer uses the node
        self._address = ""
        super().__init__(loaded, folder)
        self._filed = filed  # the caps of the config file go into the gate
        self._link = NodeLink(path)
        self._open_direct = open_direct
        self._start = start
        self._tell = tell
        self._offset_ms: int | None = None  # from the boot clock to the log's
        self._known: dict[str, Lease | None] = {}
        self._next_tick = 0.0
        self._next_stop_look = 0.0
        self._heard_at, self._hear_at = monotonic(), 0.0
        self._sent: set[tuple[str, str, str]] = set()  # credentials that the node has by now

    def __repr__(self) -> str:
        return f"<NodeGate through {self._link.path}>" if self.direct is None else f"<NodeGate, now {self.direct!r}>"

    # What the process is.

    @property
    def address(self) -> str:
        return self._address

    @address.setter
    def address(self, address: str) -> None:
        self._address = address
        if self.direct is not None:
            self.direct.address = address

    @property
    def restarts(self) -> bool:
        """Whether a node that is gone is started again."""
        return self._start is not None

    def now(self) -> int:
        if self.direct is not None:
            return self.direct.now()
        if self._offset_ms is None:
            self._ask(protocol.About())
        return boot_ms() + (self._offset_ms or 0)

    def wall_offset_ms(self) -> int:
        return time_ns() // 1_000_000 - self.now()

    def lock_owner(self) -> int | None:
        return None if self.direct is None else self.direct.lock_owner()

    # Asking the node.

    def _ask(self, call: protocol.Call, within_s: float | None = None) -> protocol.Answer:
        """The node's answer, from a new node if necessary. NodeGone: use the store directly."""
        if within_s is None:
            within_s = FAR_ANSWER_S if self.restarts else ANSWER_S
        for _ in range(_TRIES):
            try:
                answer = self._link.ask(call, within_s)
                break
            except NodeSilent:
                raise
            except NodeGone as gone:
                why = str(gone)
                if self._start is None or not self._restarted():
                    raise
        else:
            raise NodeGone(why)
        if answer.now:
            self._offset_ms = answer.now - boot_ms()
        if answer.wrong is not None:
            raise protocol.raised(answer.wrong)
        return answer

    def _restarted(self) -> bool:
        """Whether a node answers again, started by this process if necessary."""
        assert self._start is not None
        path = self._link.path
        if not discovery.is_held(path):
            self._start()
        sock = discovery.await_node(path)
        if sock is None:
            return False
        sock.close()
        return True

    def go_direct(self, why: NodeGone) -> SlotGate:
        """Stop using the node, for good: use the store directly from now on."""
        if self.direct is None:
            self._link.close()
            if "another release" in str(why):
                self._tell(str(why))
            self.direct = self._open_direct()
            self.direct.address = self._address
            self.direct.lock_wait = self.lock_wait
        return self.direct

    def rest(self) -> None:
        """Close the connection for a while: thousands of processes may wait, and need none for it."""
        self._link.close()

    # Deciding.

    @_or_store
    def decide(
        self, commands: Sequence[cmd.Command], *, durable: bool = False, side: Sequence[SideWrite] = ()
    ) -> list[Decided]:
        from fleetgate.gate.replica.replica import Decided
        from fleetgate.log.event_codec import decode

        answer = self._ask(protocol.Decide(list(commands), durable, list(side)))
        if answer.lease is not None:
            self._known[answer.lease.id] = answer.lease
        return [
            Decided(decode(0, bytes(each.events)), None if each.wrong is None else protocol.raised(each.wrong))
            for each in answer.outcomes
        ]

    def try_decide(self, commands: Sequence[cmd.Command]) -> bool:
        if self.direct is None:
            try:
                return not self._ask(protocol.Decide(list(commands), wait=False), LEAVE_S).busy
            except NodeGone:
                return False  # a store is not opened at this point
        return self.direct.try_decide(commands)

    def decide_soon(self, commands: Sequence[cmd.Command]) -> bool:
        if self.direct is None:
            return self.try_decide(commands)
        return self.direct.decide_soon(commands)

    @_or_store
    def acquire(self, command: cmd.Acquire) -> Lease | Reason | None:
        loaded = self.loaded
        if not self._filed:
            command = replace(command, spec=with_own_host_cap(command.spec, loaded))
        call = protocol.Enter(command, told=False)
        if loaded is not None and self._filed:
            call.file_digest, call.file_modified = loaded.digest, loaded.mtime_ms
        if loaded is not None and not self._filed:
            call.rules, call.budgets = list(loaded.settings.rules), list(loaded.settings.budgets)
        answer = self._ask(call)
        self.unapplied = answer.unapplied or self.unapplied
        if answer.wants_file or answer.accounts:
            first: list[cmd.LoadFile | cmd.Credential] = []
            if answer.wants_file and loaded is not None:
                first.append(load_file(loaded))
            first += self.credentials.held_for(answer.accounts)
            answer = self._ask(protocol.Enter(command, first, told=True))
        if answer.lease is not None:
            self._known[command.id] = answer.lease
        return answer.lease if answer.reason is None else answer.reason

    def look(self, ident: str, *, granted: bool = False) -> protocol.Answer:
        """Look up a request; a grant is claimed. Sends the node credentials that it asks for."""
        answer = self._ask(protocol.Look(ident, granted))
        if answer.accounts:
            news = [each for each in self.credentials.held_for(answer.accounts) if _mark(each) not in self._sent]
            self._sent.update(map(_mark, news))
            if news:
                self._ask(protocol.Decide([*news]))
        if answer.lease is not None:
            self._known[ident] = answer.lease
        return answer

    def waiter(self, ticket: QueuedTicket) -> TicketWait:
        return NodeWaiter(self, ticket) if self.direct is None else self.direct.waiter(ticket)

    @_or_store
    def leave(self, ident: str, outcome: str = "ok") -> None:
        """Leave the queue, or release the lease, of an ID. It does not wait long: the rest ends with this process."""
        lease = self._ask(protocol.About(lease=ident), LEAVE_S).lease
        held = lease is not None and lease.claimed
        end: cmd.Command = cmd.Release(ident, outcome, usage=UNUSED) if held else cmd.Cancel(ident)
        patience_s = ANSWER_S if lease is not None and lease.lives_with != self.me else LEAVE_S
        self._ask(protocol.Decide([end]), patience_s)

    # Looking.

    def lease(self, ident: str) -> Lease | None:
        return self._known.get(ident) if self.direct is None else self.direct.lease(ident)

    @_or_store
    def view(self, ident: str) -> TicketView | None:
        return self.look(ident).view

    @_or_store
    def is_hopeless(self, view: TicketView) -> bool:
        return self.look(view.ticket.id).hopeless

    @_or_store
    def backed_off_until(self, model: str) -> int:
        return self._ask(protocol.About(model=model)).until

    @_or_store
    def has_other_candidate(self, lease: Lease) -> bool:
        return self._ask(protocol.About(lease=lease.id)).other

    def is_probe(self, ident: str) -> bool:
        """False if that is unknown: the agent is already running, and continues."""
        try:
            return self._is_probe(ident)
        except FleetgateError:
            return False

    @_or_store
    def _is_probe(self, ident: str) -> bool:
        return self._ask(protocol.About(lease=ident)).probe

    @_or_store
    def has_open_calls(self, ident: str) -> bool:
        return self._ask(protocol.About(lease=ident)).has_calls

    @_or_store
    def side_value(self, table: str, key: str) -> bytes | None:
        return self._ask(protocol.Side(table, key)).value

    def set_side_value_once(self, table: str, key: str, value: bytes) -> bytes:
        """A value beside the log that is written once: the existing one, or this."""
        try:
            return self._ask(protocol.Side(table, key, value)).value or b"" if self.direct is None else b""
        except NodeGone as gone:
            raise StoreError(str(gone)) from gone

    def questions(self) -> list[Wanted]:
        """The pools whose provider should be asked now: kind, name and account."""
        return self._ask(protocol.About(questions=True)).questions

    # While an agent runs.

    def tick(self, lease: Lease) -> None:
        """Check that the node is alive; if not, start another or use the store. The node does everything else."""
        self._link.close()
        try:
            if self.direct is not None:
                self.direct.tick(lease)
            elif monotonic() > self._next_tick:
                self._next_tick = monotonic() + _TICK_S
                if not discovery.is_held(self._link.path):
                    self._without_node(lease)
        except StoreMoved:
            raise
        except (FleetgateError, OSError):
            return  # the next time

    def stop_request(self, lease: Lease, *, told: bool = False) -> StopRequest | None:
        """By what the node knows. It is asked often only where one of the lease's budgets stops agents."""
        if self.direct is not None:
            return self.direct.stop_request(lease, told=told)
        if monotonic() < self._next_stop_look and not told:
            return None
        self._next_stop_look = monotonic() + _SLOW_LOOK_S
        try:
            answer = self._link.ask(protocol.About(lease=lease.id), _HEAR_S)
        except NodeGone:
            self._next_stop_look = monotonic() + _TICK_S  # soon again: there may be something to see
            return None
        self._link.close()
        if answer.has_stops:
            self._next_stop_look = monotonic() + _TICK_S
        if answer.stop_by or answer.stopping:
            return StopRequest(answer.stop_by, "" if answer.stop_by else answer.stopping)
        return None

    def silent_ms(self) -> int:
        """What the node says; without an answer, what follows from its last one."""
        if self.direct is not None:
            return self.direct.silent_ms()
        if not self.restarts:
            return 0
        if monotonic() >= self._hear_at:
            self._hear_at = monotonic() + BEAT_S / 4
            try:
                self._heard_at = monotonic() - self._link.ask(protocol.About(beat=True), _HEAR_S).silent_ms / 1000
            except NodeGone:
                pass
            self._link.close()
        return int((monotonic() - self._heard_at) * 1000)

    def _without_node(self, lease: Lease) -> None:
        if self._start is not None:
            self._start()
        else:
            self.go_direct(NodeGone("it has ended")).tick(lease)

    def maintain(self) -> None:
        self._link.close()
        if self.direct is not None:
            self.direct.maintain()

    def close(self) -> None:
        self._link.close()
        if self.direct is not None:
            self.direct.close()


class NodeWaiter(BaseWaiter):
    """One ticket of this process, in the queue of the node. It keeps no connection while it waits."""

    def __init__(self, gate: NodeGate, ticket: QueuedTicket) -> None:
        super().__init__(ticket)
        self._gate = gate
        self._questions = UsageQuestions(gate, gate.usage, gate.questions)

    def wait(self, until: float | None, wakeup_fd: int, stopped: Callable[[], bool]) -> Lease | Left | None:
        """The same; with the store itself once the node is no longer used."""
        gate = self._gate
        ended = super().wait(until, wakeup_fd, lambda: stopped() or gate.direct is not None)
        if ended is None and gate.direct is not None:
            return gate.direct.waiter(self._ticket).wait(until, wakeup_fd, stopped)
        return ended

    def _do_without(self, gone: NodeGone) -> None:
        """Use the store; or, if each waiting process would need a connection for that, try to reach a node again."""
        if self._gate.restarts:
            self._on_trouble(str(gone))
            return
        try:
            self._gate.go_direct(gone)
        except StoreMoved:
            raise
        except StoreError as error:
            self._on_trouble(str(error))

    def _sleep(self, until: float | None, wakeup_fd: int) -> None:
        if self._gate.direct is None:
            self._gate.rest()
            super()._sleep(until, wakeup_fd)

    def _step(self) -> Lease | Left | None:
        try:
            return self._look()
        except NodeGone as gone:
            self._do_without(gone)
            return None

    def _look(self) -> Lease | Left | None:
        messages = self._mailbox.drain() if self._mailbox is not None else []
        if not messages and monotonic() < self._next_look:
            return None
        self._next_look = monotonic() + LOOK_S  # also when it fails
        self._questions.ask_if_due()
        answer = self._gate.look(self._id, granted=b"granted" in messages)
        if answer.lease is not None:
            return answer.lease
        if answer.view is None:
            return Left(answer.left or "lost")
        self._on_view(answer.view)
        pace_s = float(answer.view.position) if self._mailbox is not None else 1.0
        self._next_look = monotonic() + min(max(LOOK_S if self._mailbox is not None else 1.0, pace_s), SLOWEST_LOOK_S)
        return None


def _mark(credential: cmd.Credential) -> tuple[str, str, str]:
    return credential.account, credential.digest, credential.identity
