"""Events about reservations: the pools whose next slots are kept for a ticket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetgate.core import events as ev
from fleetgate.core.entities import Ticket
from fleetgate.core.pools.pool import Reservation

if TYPE_CHECKING:
    from fleetgate.core.state.state import State


class ReservationEvents:
    """Applies them to one state."""

    def __init__(self, state: State) -> None:
        self._state = state

    def reserved(self, event: ev.Reserved, at: int) -> None:
        self.reserve(self._state.tickets[event.id], event.pools)

    def reserve(self, ticket: Ticket, keys: tuple[str, ...]) -> None:
        self.end(ticket.id)
        queue = self._state.queue(ticket.spec)
        needs = [(pool, own_limit) for pool, own_limit in queue.preferred.needs if pool.key in keys]
        for pool, own_limit in needs:
            pool.reservation = Reservation(queue, own_limit)
        if needs:
            self._state.reserved[ticket.id] = tuple(pool.key for pool, _ in needs)

    def end(self, ident: str) -> None:
        """Keep nothing for this ticket any longer."""
        for key in self._state.reserved.pop(ident, ()):
            state = self._state
            pool = state.pools[key]
            pool.reservation = None
            state.recheck_pool(pool)
            for other in state.reserved:  # of these slots, some may be kept for it next
                state.recheck_queue(state.queue(state.tickets[other].spec))

    def review(self, at: int) -> None:
        """End reservations that are of no use: a pool that the ticket needs is paused or has become too small."""
        state = self._state
        for ident in list(state.reserved):
            if not state.queue(state.tickets[ident].spec).can_keep(at):
                self.end(ident)
