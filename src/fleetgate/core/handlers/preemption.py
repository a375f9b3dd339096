"""Preemption: batch jobs give way to an interactive request that waits for their slots (rule W5).

The rule: only jobs give way, never plain runs, and only if that lets the request in. The event says so before anything
is stopped. From then on the job returns to the queue however its attempt ends: its worker stops it and queues it again;
if the worker dies first, the process that finds that out queues it (jobs/unattended_ends.py). What it frees is kept for
the request, so that the job itself, which keeps its age, does not take it back.
"""

from __future__ import annotations

from collections.abc import Callable

from fleetgate.core import events as ev
from fleetgate.core.entities import BATCH, Lease, Ticket
from fleetgate.core.pools.pool import Pool
from fleetgate.core.queue.queue import Queue
from fleetgate.core.state.state import State


class PreemptionHandler:
    """The preemptions of one state."""

    def __init__(self, state: State, record: Callable[[ev.Event], None]) -> None:
        self._state = state
        self._record = record

    def review(self, ticket: Ticket, now: int) -> None:
        """An interactive request has waited for long enough: let jobs give way, if that is enough to let it in."""
        queue = self._state.queue(ticket.spec)
        if queue.head() is not ticket or not queue.usable or self._state.is_closed(ticket.spec, now):
            return
        short = self._missing(queue, now)
        if not short or any(each.opens_at(ticket, queue, now) > now for each in queue.preferred.budgets):
            return  # it waits for something else, or also for something else
        jobs = self._giving_way(short)
        if jobs is None:
            return
        for lease in jobs:
            self._record(ev.Preempted(lease.id, ticket.id))
        kept = tuple(pool.key for pool, _ in queue.preferred.needs if pool.key in short)
        if self._state.reserved.get(ticket.id) != kept:
            self._record(ev.Reserved(ticket.id, kept))

    def _missing(self, queue: Queue, now: int) -> dict[str, int]:
        """How many slots each pool lacks for the head of a queue, by key; nothing if slots would not let it in."""
        short: dict[str, int] = {}
        for pool, own_limit in queue.preferred.needs:
            if not pool.blocks(queue.slots, own_limit, queue, now):
                continue
            lacks = pool.occupied(now) + queue.slots - pool.limit_for(own_limit)
            kept_for_another = pool.reservation is not None and pool.reservation.queue is not queue
            if lacks <= 0 or kept_for_another or not pool.can_keep(queue.slots, own_limit, now):
                return {}  # it waits for something else: a pause, an unproven call, another request
            short[pool.key] = lacks
        return short

    def _giving_way(self, short: dict[str, int]) -> list[Lease] | None:
        """The jobs to stop, the youngest first; those that were chosen before count. None: there are not enough."""
        leases = sorted(self._state.leases.values(), key=lambda lease: -lease.granted_seq)
        for lease in leases:
            if lease.gives_way_to:
                self._free(lease, short)
        found = []
        for lease in leases:
            wanted = any(short.get(pool.key, 0) > 0 for pool in self._pools(lease))
            if wanted and not lease.gives_way_to and lease.ticket.job and lease.ticket.spec.work_class == BATCH:
                self._free(lease, short)
                found.append(lease)
        return found if all(lacks <= 0 for lacks in short.values()) else None

    def _free(self, lease: Lease, short: dict[str, int]) -> None:
        for pool in self._pools(lease):
            if pool.key in short:
                short[pool.key] -= lease.ticket.spec.slots

    def _pools(self, lease: Lease) -> list[Pool]:
        return [pool for pool, _ in self._state.lease_candidates[lease.id].needs]
