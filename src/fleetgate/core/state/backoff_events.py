"""Events about backoffs: which candidates are tried, and for which tickets time stands still."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from fleetgate.core import events as ev
from fleetgate.core.entities import Ticket
from fleetgate.core.pools.backoff import Backoff, concerns
from fleetgate.core.queue.queue import Candidate, Queue

if TYPE_CHECKING:
    from fleetgate.core.state.state import State


class BackoffEvents:
    """Applies them to one state."""

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
        self._choose_again(event.key, at)

    def ended(self, event: ev.BackoffEnded, at: int) -> None:
        del self._state.backoffs[event.key]
        self._choose_again(event.key, at)

    def _choose_again(self, key: str, at: int) -> None:
        """Tickets may use other candidates than before; while there is none, their time stands still."""
        state = self._state
        state.resumed_tickets = []
        concerned = self._concerned(key)
        stalled = [not queue.usable for queue in concerned]
        state.cap_events.choose_again(concerned)
        for queue, was_stalled in zip(concerned, stalled, strict=True):
            if queue.waiting:
                state.recheck_queue(queue)
            if was_stalled != (not queue.usable):
                self.time(queue, at)
        state.reservations.review(at)

    def time(self, queue: Queue, at: int) -> None:
        """The tickets of a queue can be admitted again, or no longer: their time runs on, or stands still."""
        state = self._state
        for ident in queue.members:
            ticket = state.tickets[ident] = self.timed(state.tickets[ident], at)
            if not ticket.stalled_at:
                state.resumed_tickets.append(ticket)

    def _concerned(self, key: str) -> list[Queue]:
        """The queues with a candidate that a backoff of this key holds back."""
        found = self._state.by_account.get(key.partition("/")[0], {}).values()
        return [queue for queue in found if any(_is_held(key, each) for each in queue.candidates)]

    def timed(self, ticket: Ticket, at: int) -> Ticket:
        """While every candidate is backed off, a ticket's time stands still (rule A8)."""
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
                self.recheck_queues(backoff.key)

    def recheck_queues(self, key: str) -> None:
        for queue in self._concerned(key):
            if queue.waiting:
                self._state.recheck_queue(queue)

    def chosen(self, event: ev.Chosen, at: int) -> None:
        self._state.chosen.setdefault(event.role, {})[event.model] = self._state.seq


def _is_held(key: str, candidate: Candidate) -> bool:
    return candidate.name is not None and concerns(key, candidate.name)
