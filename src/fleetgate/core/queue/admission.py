"""Admission: which waiting requests enter now, in order, and where the others wait for the change they need.

Theory of operation
===================

*State.* Tickets that need the same pools wait in one queue (core/queue/queue.py), and only its head can enter. A queue
is in one of two places: on the to-do list, or *parked*. The to-do list is `state.changed_queues`, queues that have a
new head or lost their place, and `state.changed_pools`, pools in which something changed. A parked queue is registered
with one full pool for each of its candidates, its *obstacles*, and is not looked at until one of those pools changes.

*Invariant.* Between two commands the to-do list is empty, and no head could enter. `check_settled`
(core/invariants.py) verifies this after every step of the property tests.

*What may happen.* A command or a deadline records events; applying them puts queues and pools on the to-do list.
`admit_waiting` then works the list off:

1. Take every queue on the list and, for each changed pool, the first queue parked there that the pool has room for.
2. Those that cannot enter are parked on what blocks them now.
3. Of the rest the first one enters: by age within a project, by fair share between projects (`_is_before`). The grant
   itself puts the queue back on the list, with its next head, and the pools that it took slots of are full or not.
4. Repeat until the list is empty.

*Why it is right.* A head that cannot enter has an obstacle for each candidate it may use. It can enter only after one
of these obstacles gave way, and whatever makes a pool give way puts that pool on the list: a release, a higher limit,
the end of a pause or of a cooldown (a deadline is set for those, `_watch`). So parking on the first obstacle of each
candidate is enough, and a decision costs what has changed, not what is waiting. Each pass of the loop grants, parks or
takes something off the list, so it ends. A slot never goes to a later ticket past an earlier one of the same project
that could use it too, because step 3 looks at all that can enter before it grants.

*Fast path.* Most of the time one release makes room in one pool, and the next head of a queue that needs only this pool
takes it. `_serve` handles the case in which nothing but one pool is on the list: it grants, and if the pool is full
again it leaves the queue parked where it was, instead of parking it again.

*Example.* Pool `x` has one slot, held by A; B and C wait for it in one queue, and D, of another project, waits for `x`
and for the full pool `y`. B's queue and D's queue are parked on `x`. A is released: `x` is on the list. The first
queue parked there is B's or D's, depending on which project has had less of `x`. Say D's: `x` has room, `y` has not,
so D's queue is parked on `y` and the next one is B's. B enters, `x` is full, and B's queue, with C at its
head, stays parked on `x`. The list is empty.

A head that others overtake again and again gets slots kept for it: core/queue/reservations.py.
"""

from __future__ import annotations

from heapq import heappush

from fleetgate.core.accounts.choice import AccountChoice
from fleetgate.core.budgets.budget import Budget
from fleetgate.core.deadlines import POOL, Deadlines
from fleetgate.core.entities import Ticket
from fleetgate.core.plans.window import PlanWindow
from fleetgate.core.pools.pool import FOREVER, Pool
from fleetgate.core.pools.resource import Resource
from fleetgate.core.queue.grants import Grants
from fleetgate.core.queue.obstacles import NO_OBSTACLES, Obstacle, obstacle_of
from fleetgate.core.queue.queue import Candidate, Queue
from fleetgate.core.queue.reservations import RESERVE_AFTER_MS, Reservations
from fleetgate.core.state.state import State


class Admission:
    """The admission of one state's waiting requests."""

    def __init__(self, state: State, deadlines: Deadlines, grants: Grants, reservations: Reservations) -> None:
        self._state = state
        self._deadlines = deadlines
        self._grants = grants
        self._reservations = reservations
        self._accounts = AccountChoice(state)
        self._parkings = 0

    def choose(
        self, queue: Queue, now: int, open_pool: Pool | None = None, newcomer: Ticket | None = None
    ) -> tuple[Candidate | None, list[Obstacle]]:
        """The candidate that the head of this queue can enter with now; else None and one obstacle for each candidate.

        `open_pool` is known to have room for it. A `newcomer` asks, and the queue has no head, or needs no budget.
        """
        state = self._state
        plain = not queue.has_fallback and not state.backoffs and not state.draining and now >= state.recovers_until
        tried = queue.usable if plain else state.candidates_to_try(queue, now)
        if queue.has_sets:
            return self._accounts.choose(queue, tried, newcomer, now)
        obstacles: list[Obstacle] = []
        for candidate in tried:
            obstacle = obstacle_of(candidate, queue, newcomer, now, open_pool)
            if obstacle is None:
                return candidate, obstacles
            obstacles.append(obstacle)
        return None, obstacles

    def fits(self, queue: Queue, now: int, newcomer: Ticket) -> bool:
        """Whether a new request like those of this queue would enter now."""
        return not queue.waiting and self.choose(queue, now, None, newcomer)[0] is not None

    def admit_waiting(self, now: int) -> None:
        """Work off the to-do list: every head that can enter does, in order."""
        state = self._state
        while state.changed_queues or state.changed_pools:
            if not state.changed_queues and len(state.changed_pools) == 1:
                (resource,) = state.changed_pools.values()
                self._serve(resource, now)
            elif (queue := self._next(now)) is not None:
                candidate, _ = self.choose(queue, now)
                if candidate is not None:  # None: a reservation that `_next` made took what this head was to have
                    self._grants.grant(queue.first(), candidate, now)

    def _serve(self, pool: Resource, now: int) -> None:
        """The fast path: one pool changed and nothing else, so the first queue parked there enters if it can."""
        state = self._state
        queue = pool.first_admissible(now)
        if queue is not None:
            # `sole` is set when this pool is all that the queue needs; then there is nothing left to check.
            candidate, obstacles = queue.sole_candidate, NO_OBSTACLES
            if candidate is None or state.backoffs or state.draining or now < state.recovers_until:
                candidate = self._reopened(pool, queue, now)
                if candidate is None:
                    candidate, obstacles = self.choose(queue, now, _open_pool(pool, queue))
            if candidate is None:
                self._park(queue, obstacles, now)
                return
            parking, timer_at = queue.parking_id, queue.timer_at
            self._grants.grant(queue.first(), candidate, now)
            if len(state.changed_queues) != 1 or len(state.changed_pools) != 1 or not queue.waiting or queue.budgets:
                return  # with budgets, the next head does not need the same
            if queue.has_plans:
                return
            if (queue.sole_candidate is None or state.backoffs) and not self._is_first_obstacle(pool, queue, now):
                return
            # The next head needs the same. If the pool has no more room, the queue stays parked as it was.
            queue.parking_id, queue.timer_at = parking, timer_at
            if pool.first_admissible(now) is not None:
                state.recheck_queue(queue)
                return
            state.changed_queues.clear()
            self._await_review(queue, queue.first(), now)
            if queue.home is not None:
                self._await_move(queue, queue.first(), now)
        del state.changed_pools[pool.key]
        if pool.parking.timer_at <= now or pool.parking.look_at < pool.parking.timer_at:
            self._watch(pool, pool.parking.look_at, now)

    def _is_first_obstacle(self, pool: Resource, queue: Queue, now: int) -> bool:
        """Whether a queue would be parked as it is, if the pool has no more room."""
        if queue.has_fallback or self._state.backoffs:
            return False
        if queue.has_sets:
            return self._accounts.stays_parked(pool, queue, now)
        alone = len(queue.usable) == 1
        return alone and (queue.usable[0].needs[0][0] is pool or _first_obstacle(pool, queue, now) is pool)

    def _reopened(self, pool: Resource, queue: Queue, now: int) -> Candidate | None:
        """The account of a set that a pool kept the head of a queue from, if it can enter with it now.

        Nothing else has changed, so the other accounts are still closed, and need not be looked at.
        """
        state = self._state
        if not queue.has_sets or queue.spec.home or queue.has_fallback or state.backoffs or state.draining:
            return None
        for resource, _, candidate in queue.obstacles:
            if resource is pool and now >= state.recovers_until and obstacle_of(candidate, queue, None, now) is None:
                return candidate
        return None

    def _next(self, now: int) -> Queue | None:
        """The queue whose head enters next; everything that cannot enter is parked on the way."""
        state = self._state
        best: Queue | None = None
        if state.changed_queues:
            for spec, queue in list(state.changed_queues.items()):
                if queue.head() is None:
                    del state.changed_queues[spec]
                    continue
                candidate, obstacles = self.choose(queue, now)
                if candidate is None:
                    self._park(queue, obstacles, now)
                    del state.changed_queues[spec]
                elif best is None or _is_before(queue, best):
                    best = queue
        for key, pool in list(state.changed_pools.items()):
            top = self._top(pool, now)
            if top is None:
                del state.changed_pools[key]
                self._watch(pool, pool.parking.look_at, now)
            elif best is None or _is_before(top, best):
                best = top
        if best is None or len(state.changed_queues) + len(state.changed_pools) == 1:
            return best  # there is no other queue that it could have passed
        return self._oldest(best, now)

    def _oldest(self, best: Queue, now: int) -> Queue:
        """The oldest head of the project whose turn it is.

        Shares differ from pool to pool; they decide between projects and must not change the order within one.
        """
        project = best.project
        for queue in self._state.changed_queues.values():
            if queue.project == project and _is_before(queue, best):
                best = queue
        for pool in self._state.changed_pools.values():
            top = self._top(pool, now, project)
            if top is not None and _is_before(top, best):
                best = top
        return best

    def _top(self, pool: Resource, now: int, project: str | None = None) -> Queue | None:
        """The first queue (of a project) parked here that can enter; a queue that another pool blocks moves there."""
        while (
            queue := pool.first_admissible(now) if project is None else pool.first_admissible_of(project, now)
        ) is not None:
            candidate, obstacles = self.choose(queue, now, _open_pool(pool, queue))
            if candidate is not None:
                return queue
            self._park(queue, obstacles, now)
        return None

    def _park(self, queue: Queue, obstacles: list[Obstacle], now: int) -> None:
        """Leave a queue that cannot enter on the obstacles that `choose` found, to be looked at when one changes."""
        state = self._state
        head = queue.first()
        is_held = all(not isinstance(each, Pool) for each, _, _ in obstacles) and bool(obstacles)
        if head.id in state.reserved:
            if is_held and any(_lasts(each) for each, _, _ in obstacles):
                self._reservations.end(head)  # what is kept for it would be idle meanwhile
            else:
                self._reservations.extend(queue, head, now)
        if queue.parked_budgets:
            state.left_budgets(queue)
        self._parkings += 1
        queue.parking_id, queue.timer_at = self._parkings, 0
        queue.obstacles, queue.full_text = obstacles if queue.has_sets else NO_OBSTACLES, ""
        for pool, own, _ in obstacles:
            pool.park(queue, own)
            if not isinstance(pool, Pool):
                queue.parked_budgets.append(pool)
            if pool.key not in state.changed_pools:  # else it is watched once it has been looked at
                self._watch(pool, pool.changes_at(now), now)
        if not is_held:  # of budgets and plan windows, no slots can be kept for it
            self._await_review(queue, head, now)
        if queue.home is not None:
            self._await_move(queue, head, now)

    def _await_review(self, queue: Queue, head: Ticket, now: int) -> None:
        """Check for overtaking at multiples of the head's waiting time: every replica then does so at the same time."""
        queue.review_at = due = now + RESERVE_AFTER_MS - (now - head.queued_at) % RESERVE_AFTER_MS
        if not now < queue.timer_at <= due:
            self._deadlines.await_review(queue)

    def _await_move(self, queue: Queue, head: Ticket, now: int) -> None:
        """Look at a head again when it has waited long enough for its home (rule Z3)."""
        leaves_at = queue.leaves_home_at(head)
        if leaves_at > now:
            self._deadlines.await_move(queue, leaves_at)

    def _watch(self, pool: Resource, due: int, now: int) -> None:
        """Set a deadline for when time alone frees something in a pool that queues are parked on."""
        if due < FOREVER and (pool.parking.timer_at <= now or due < pool.parking.timer_at):
            pool.parking.timer_at = due
            heappush(self._deadlines.heap, (due, POOL, pool.key))


def _open_pool(resource: Resource, queue: Queue) -> Pool | None:
    """A pool that has room for the head of a queue, where that need not be checked again: it has one candidate."""
    return resource if isinstance(resource, Pool) and len(queue.candidates) == 1 else None


def _lasts(resource: Resource) -> bool:
    """Whether a request may wait for this for hours: a window, of a budget or of a plan."""
    return isinstance(resource, PlanWindow) or (isinstance(resource, Budget) and resource.rate is None)


def _first_obstacle(pool: Resource, queue: Queue, now: int) -> Pool:
    """The first pool that keeps a queue out, given that this one does."""
    needs = queue.usable[0].needs
    return next(other for other, own in needs if other is pool or other.blocks(queue.slots, own, queue, now))


def _is_before(one: Queue, other: Queue) -> bool:
    """Whether one head enters before the other: by age within a project, by fair share in a pool that both need."""
    a, b = one.first(), other.first()
    by_age = (a.order, a.arrival) < (b.order, b.arrival)
    if one.project == other.project or a.order < 0 or b.order < 0:
        return by_age
    keys = {pool.key for pool in other.pools}
    for pool in one.pools:
        if pool.key in keys:
            return pool.shares.rank(one) < pool.shares.rank(other)
    return by_age
