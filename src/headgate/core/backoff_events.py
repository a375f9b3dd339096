"""What backoffs make of a state: which candidates are tried, and whose time stands still."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from headgate.core import events as ev
from headgate.core.backoffs import Backoff, concerns
from headgate.core.records import Ticket

if TYPE_CHECKING:
    from headgate.core.state import State


class BackoffEvents:
    """Applied to one state."""

    def __init__(self, state: State) -> None:
        self._state = state

    def backed_off(self, event: ev.BackedOff, at: int) -> None:
        self._state.backoffs[event.key] = Backoff(
            event.key,
            event.scope,
            event.reason,
            event.since,
            event.until,
            event.evidence,
            event.credential,
            event.manual,
            identity=event.identity,
            times=event.times,
        )
        self._usable_anew(at)

    def ended(self, event: ev.BackoffEnded, at: int) -> None:
        del self._state.backoffs[event.key]
        self._usable_anew(at)

    def _usable_anew(self, at: int) -> None:
        """Other candidates may be used than before: the line is made anew, and who is stalled keeps its time."""
        state = self._state
        state.line_anew()
        for ident, ticket in state.tickets.items():
            state.tickets[ident] = self.timed(ticket, at)

    def timed(self, ticket: Ticket, at: int) -> Ticket:
        """SPEC A8: while every candidate is backed off, a ticket's time does not run."""
        stalled = not self._state.queue(ticket.spec).usable
        if stalled == bool(ticket.stalled_at):
            return ticket
        if stalled:
            return replace(ticket, stalled_at=at)
        return replace(ticket, stalled_at=0, expires_at=ticket.expires_at + at - ticket.stalled_at)

    def probe_over(self, ident: str) -> None:
        for backoff in self._state.backoffs.values():
            if backoff.probing == ident:
                backoff.probing = ""
                self.look_at_concerned(backoff.key)

    def look_at_concerned(self, key: str) -> None:
        for queue in self._state.queues.values():
            if queue.waiting and any(each.name is not None and concerns(key, each.name) for each in queue.candidates):
                self._state.look_at(queue)

    def chosen(self, event: ev.Chosen, at: int) -> None:
        self._state.chosen.setdefault(event.role, {})[event.model] = self._state.seq
