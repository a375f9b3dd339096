"""Events about jobs: a job's ticket is unassigned until a worker offers to run it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from fleetgate.core import events as ev
from fleetgate.core.entities import Ticket

if TYPE_CHECKING:
    from fleetgate.core.state.state import State


class JobEvents:
    """Applies them to one state."""

    def __init__(self, state: State) -> None:
        self._state = state

    def offered(self, event: ev.Offered, at: int) -> None:
        state = self._state
        old = state.tickets[event.id]
        spec = replace(old.spec, host=event.host)
        new = replace(old, away=False, spec=spec, holder=event.holder, wake=event.wake, asks=event.asks)
        state.drop_keys(old)  # a session belongs to one host
        state.take_keys(new)
        state.put(new)
        state.join_queue(new)

    def withdrawn(self, event: ev.Withdrawn, at: int) -> None:
        self._unassign(self._state.tickets[event.id], at)

    def held(self, event: ev.Held, at: int) -> None:
        self._unassign(self._state.tickets[event.id], at, held=True)

    def _unassign(self, old: Ticket, at: int, *, held: bool = False) -> None:
        new = replace(self.without_worker(old), held=held)
        self._state.put(new)
        self._state.leave_queue(old)
        self._state.waiting_jobs.put(new, at)

    def without_worker(self, old: Ticket) -> Ticket:
        """A job's ticket without the worker that offered to run it."""
        spec = replace(old.spec, host="") if old.any_host else old.spec
        new = replace(old, away=True, spec=spec, holder="", wake="", asks=())
        self._state.drop_keys(old)
        self._state.take_keys(new)
        return new

    def approved(self, event: ev.Approved, at: int) -> None:
        ticket = replace(self._state.tickets[event.id], confirm=False, held=False)
        self._state.put(ticket)
        if ticket.away:
            self._state.waiting_jobs.put(ticket, at)
