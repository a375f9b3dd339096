"""What keeps a request from one candidate: the first pool, plan window, usage gate or budget that is closed for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fleetgate.core.entities import Ticket
    from fleetgate.core.pools.pool import Pool
    from fleetgate.core.pools.resource import Resource
    from fleetgate.core.queue.queue import Candidate, Queue

# What keeps a head from one candidate, the head's own limit there (0: none), and the candidate.
Obstacle = tuple["Resource", int, "Candidate"]
NO_OBSTACLES: list[Obstacle] = []  # never changed


def obstacle_of(
    candidate: Candidate, queue: Queue, newcomer: Ticket | None, now: int, open_pool: Pool | None = None
) -> Obstacle | None:
    """What keeps the head of a queue, or a newcomer, from a candidate. `open_pool` is known to have room for it."""
    if candidate.plans:
        ticket = queue.first() if newcomer is None else newcomer
        plan = candidate.closed_plan(queue.spec.work_class, now, ticket.run)
        if plan is not None:  # first of all: no slot is kept for a request that may not use it
            return plan, 0, candidate
    slots = queue.slots
    for pool, own_limit in candidate.needs:
        if pool is not open_pool and pool.opens_at(slots, own_limit, queue, now) > now:
            return pool, own_limit, candidate
    if candidate.gates:
        for pool, own_limit in candidate.needs:
            if pool.awaits_answer(slots, queue, now):
                return pool, own_limit, candidate
    if candidate.budgets:
        ticket = queue.first() if newcomer is None else newcomer
        for budget in candidate.budgets:
            if budget.opens_at(ticket, queue, now) > now:
                return budget, 0, candidate
    return None
