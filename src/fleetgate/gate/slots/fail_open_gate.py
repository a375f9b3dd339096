"""A gate without a store, for `run --fail-open`: every request is granted, and counted when the store is back.

The user prefers an agent without a slot to no agent. It runs outside every cap until the store is back. Then its lease
is adopted, above the limit if necessary, and the history records that (`adopted`: failed_open).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING

from msgspec.structs import replace

from fleetgate.core import commands as cmd
from fleetgate.core.entities import Lease, Reason, Ticket
from fleetgate.core.errors import FleetgateError
from fleetgate.gate.replica.replica import Decided
from fleetgate.gate.slots.base_gate import BaseSlotGate
from fleetgate.gate.slots.slot_gate import Left, QueuedTicket, SlotGate, StopRequest, TicketWait
from fleetgate.log.clock import wall_ms
from fleetgate.log.protocol import SideWrite, StoreError

if TYPE_CHECKING:
    from fleetgate.config.file import Loaded

_FIRST_S, _SLOWEST_S = 2.0, 30.0  # between two attempts to reach the store


class FailOpenGate(BaseSlotGate):
    """Grants every request, and reports it to the real gate later. `open_gate` raises while there is none."""

    def __init__(self, loaded: Loaded | None, open_gate: Callable[[], SlotGate], tell: Callable[[str], None]) -> None:
        super().__init__(loaded, "")
        self._open_gate = open_gate
        self._tell = tell
        self._lease: Lease | None = None
        self._began = monotonic()
        self._gate: SlotGate | None = None  # once it is back and has the lease
        self._trying: Thread | None = None
        self._next_try, self._pause_s = monotonic() + _FIRST_S, _FIRST_S

    def __repr__(self) -> str:
        return f"<FailOpenGate, {'now ' + repr(self._gate) if self._gate is not None else 'without a store'}>"

    def now(self) -> int:
        return wall_ms()

    def wall_offset_ms(self) -> int:
        return 0

    # Deciding: yes.

    def acquire(self, command: cmd.Acquire) -> Lease | Reason | None:
        now = self.now()
        ticket = Ticket(
            id=command.id,
            spec=command.spec,
            holder=command.holder,
            order=now,
            arrival=0,
            since=now,
            queued_at=now,
            expires_at=now,
            priority=command.priority,
            command=command.command,
            key=command.key,
            role=command.role,
            session=command.session,
            name=command.name,
            log=command.log,
            wake=command.wake,
        )
        model = command.spec.models[0] if command.spec.models else ""
        self._lease = Lease(ticket, model, granted_at=now, granted_seq=0)
        self._began = monotonic()
        return self._lease

    def decide(
        self, commands: Sequence[cmd.Command], *, durable: bool = False, side: Sequence[SideWrite] = ()
    ) -> list[Decided]:
        for command in commands:
            if isinstance(command, cmd.Claim) and self._lease is not None and command.child:
                self._lease.child = command.child
        if self._trying is not None:
            self._trying.join(_FIRST_S)
        if self._gate is not None:
            return self._gate.decide(commands, durable=durable, side=side)
        if any(isinstance(command, cmd.Release) for command in commands):
            raise StoreError("the store is still away: this run is in no history")
        return [Decided([]) for _ in commands]

    def try_decide(self, commands: Sequence[cmd.Command]) -> bool:
        return self._gate is None or self._gate.try_decide(commands)

    def decide_soon(self, commands: Sequence[cmd.Command]) -> bool:
        return self.try_decide(commands)

    def waiter(self, ticket: QueuedTicket) -> TicketWait:
        return _NoQueue()

    def leave(self, ident: str, outcome: str = "ok") -> None:
        if self._gate is not None:
            self._gate.leave(ident, outcome)

    # Looking.

    def lease(self, ident: str) -> Lease | None:
        return self._lease

    def has_open_calls(self, ident: str) -> bool:
        return self._gate is not None and self._gate.has_open_calls(ident)

    # While the agent runs: is the store back?

    def tick(self, lease: Lease) -> None:
        if self._gate is not None:
            self._gate.tick(lease)
            return
        if self._trying is not None and self._trying.is_alive():
            return
        if monotonic() >= self._next_try:
            self._pause_s = min(self._pause_s * 1.5, _SLOWEST_S)
            self._next_try = monotonic() + self._pause_s
            self._trying = Thread(target=self._report, args=(lease,), daemon=True)
            self._trying.start()

    def stop_request(self, lease: Lease, *, told: bool = False) -> StopRequest | None:
        return None if self._gate is None else self._gate.stop_request(lease, told=told)

    def silent_ms(self) -> int:
        """0 without a store: a run that started without one is not stopped for lack of one."""
        return 0 if self._gate is None else self._gate.silent_ms()

    def _report(self, lease: Lease) -> None:
        """Report the lease, in a thread: opening an unreachable store takes long, and the agent must not wait."""
        try:
            gate = self._open_gate()
            now = gate.now()
            held_ms = int((monotonic() - self._began) * 1000)
            ticket = replace(lease.ticket, since=now - held_ms, queued_at=now - held_ms, expires_at=now)
            (decided,) = gate.decide([cmd.Adopt(ticket, lease.model, lease.child, held_ms, "failed_open")])
        except (FleetgateError, OSError):
            return
        self._gate = gate
        if decided.error is not None:
            self._tell(f"the store is back, and will not count this run: {decided.error}")
        else:
            self._tell("the store is back: this run is counted from now on")

    def maintain(self) -> None:
        if self._gate is not None:
            self._gate.maintain()

    def close(self) -> None:
        if self._gate is not None:
            self._gate.close()


class _NoQueue:
    """There is no queue without a store."""

    def wait(self, until: float | None, wakeup_fd: int, stopped: Callable[[], bool]) -> Lease | Left | None:
        return None
