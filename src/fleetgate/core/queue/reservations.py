"""Reservations: slots kept free for the head of a queue that others keep overtaking (docs/decisions/0003).

A request that needs several pools, or many slots of one, may never find them all free at once while smaller requests
take each slot as it is released. Once a head has waited 30 s and others passed it in every pool that blocks it, what is
released in the slowest of these pools is kept for it; when that pool has enough, the next one, and so on. It is looked
at again every 30 s of its waiting time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fleetgate.core import events as ev
from fleetgate.core.entities import Ticket
from fleetgate.core.pools.pool import Pool
from fleetgate.core.queue.queue import Queue
from fleetgate.core.state.state import State

RESERVE_AFTER_MS: Final = 30_000  # a head that is still overtaken after this long has slots kept for it


class Reservations:
    """The reservations of one state."""

    def __init__(self, state: State, record: Callable[[ev.Event], None]) -> None:
        self._state = state
        self._record = record

    def review(self, ticket: Ticket, now: int) -> None:
        """A head has waited 30 s more: if others overtake it, keep for it what is released."""
        queue = self._state.queue(ticket.spec)
        periods = (now - ticket.queued_at) // RESERVE_AFTER_MS
        if self._state.is_closed(ticket.spec, now):
            return  # it could not use what is kept for it
        if ticket.id not in self._state.reserved:
            if queue.can_keep(now) and self._is_overtaken(queue, ticket, now):
                self.extend(queue, ticket, now)
        elif periods & (periods - 1) == 0:  # after 1, 2, 4, 8... of them
            self._keep_only_full_pools(queue, ticket, now)
        else:
            self.extend(queue, ticket, now)
        self._state.recheck_queue(queue)

    def extend(self, queue: Queue, head: Ticket, now: int) -> None:
        """Keep slots of one more pool for a ticket, the slowest first, once those kept so far are free."""
        kept = self._state.reserved.get(head.id, ())
        blocking = self._blocking(queue, now)
        if not blocking or any(pool.key in kept for pool in blocking):
            return
        slowest = max(blocking, key=lambda pool: pool.hold_times.mean_ms // pool.limit)
        if slowest.reservation is None:
            self._record(ev.Reserved(head.id, (*kept, slowest.key)))

    def end(self, head: Ticket) -> None:
        """Keep nothing for a ticket any more: it waits for something that no slot helps with."""
        self._record(ev.Reserved(head.id, ()))

    def _is_overtaken(self, queue: Queue, head: Ticket, now: int) -> bool:
        """Whether others passed this ticket in every pool that blocks it, and none of its pools is kept for others."""
        passed = False
        for pool, own_limit in queue.preferred.needs:
            share = pool.shares.of(queue.project)
            if pool.reservation is not None:
                return False
            if pool.blocks(queue.spec.slots, own_limit, queue, now):
                passed = share.start < pool.shares.virtual or (
                    share.latest > head.order and share.latest_at > head.queued_at
                )
                if not passed:
                    return False
        return passed

    def _keep_only_full_pools(self, queue: Queue, head: Ticket, now: int) -> None:
        """Release what is kept in pools that have room, and begin again with a full one.

        A pool that stays full must not leave slots of another idle. The intervals grow, so in the end one of them is
        long enough for both pools to have room.
        """
        full = {pool.key for pool in self._blocking(queue, now)}
        kept = self._state.reserved[head.id]
        if not full.issuperset(kept):
            self._record(ev.Reserved(head.id, tuple(key for key in kept if key in full)))

    def _blocking(self, queue: Queue, now: int) -> list[Pool]:
        """The pools that keep the head from its preferred candidate."""
        return [pool for pool, own in queue.preferred.needs if pool.blocks(queue.spec.slots, own, queue, now)]
