"""Admission the line: whoever can enter does, in order; everybody else is left where the right change finds them.

After `settle` nobody who could enter is left standing (core/invariants.py checks it). A queue that cannot enter is
parked on pools that block it. A head that others keep overtaking has slots kept for it, one pool after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappush
from typing import Final

from fleetgate.core import events as ev
from fleetgate.core.deadlines import POOL, Deadlines
from fleetgate.core.entities import Ticket
from fleetgate.core.pools.pool import Pool
from fleetgate.core.queue.queue import Candidate, Queue
from fleetgate.core.state.state import State

RESERVE_AFTER_MS: Final = 30_000  # whoever is still overtaken after so long has slots kept for it
FOREVER: Final = 1 << 53  # a pause without an end; fits every JSON reader


class Admission:
    """The line of one state. `grant` lends slots to a head; `emit` makes an event happen."""

    def __init__(
        self,
        state: State,
        timers: Deadlines,
        grant: Callable[[Ticket, Candidate, int], None],
        emit: Callable[[ev.Event], None],
    ) -> None:
        self._state = state
        self._timers = timers
        self._grant = grant
        self._emit = emit
        self._parkings = 0
        self._obstacles: list[tuple[Pool, int]] = []  # that the last `choose` found: one for each candidate

    def choose(self, queue: Queue, now: int, open_pool: Pool | None = None) -> Candidate | None:
        """The candidate that the head of this queue can enter with now. `open_pool` is known to have room for it."""
        state = self._state
        slots = queue.slots
        self._obstacles = obstacles = []
        plain = not queue.others and not state.backoffs and not state.draining and now >= state.recovers_until
        for candidate in queue.usable if plain else state.tried(queue, now):
            for need in candidate.needs:
                pool, own_limit = need
                if pool is not open_pool and pool.opens_at(slots, own_limit, queue, now) > now:
                    obstacles.append(need)
                    break
            else:
                if not candidate.gates:
                    return candidate
                for need in candidate.needs:
                    if need[0].awaits_answer(slots, queue, now):
                        obstacles.append(need)
                        break
                else:
                    return candidate
        return None

    def settle(self, now: int) -> None:
        """Let in everybody who can enter, in order."""
        state = self._state
        while state.fresh or state.dirty:
            if not state.fresh and len(state.dirty) == 1:
                (pool,) = state.dirty.values()
                self._serve(pool, now)
            elif (queue := self._next(now)) is not None:
                candidate = self.choose(queue, now)
                if candidate is not None:  # else what it wanted is kept for another since
                    self._grant(queue.first(), candidate, now)

    def _serve(self, pool: Pool, now: int) -> None:
        """Something changed in one pool, and nowhere else: the first of those who stand there enters, if it can."""
        state = self._state
        queue = pool.top(now)
        if queue is not None:
            candidate = queue.sole  # then this is the pool that it needs
            if candidate is None or state.backoffs or state.draining or now < state.recovers_until:
                candidate = self.choose(queue, now, pool if len(queue.candidates) == 1 else None)
            if candidate is None:
                self._park(queue, now)
                return
            parking, timer_at = queue.parking, queue.timer_at
            self._grant(queue.first(), candidate, now)
            if len(state.fresh) != 1 or len(state.dirty) != 1 or not queue.waiting:
                return
            if (queue.sole is None or state.backoffs) and not self._is_first_obstacle(pool, queue, now):
                return
            # Whoever is next in this queue needs the same. It stays where it is parked, if nobody enters any more.
            queue.parking, queue.timer_at = parking, timer_at
            if pool.top(now) is not None:
                state.look_at(queue)
                return
            state.fresh.clear()
            self._await_turn(queue, queue.first(), now)
        del state.dirty[pool.key]
        if pool.timer_at <= now or pool.looks_at < pool.timer_at:
            self._watch(pool, pool.looks_at, now)

    def _is_first_obstacle(self, pool: Pool, queue: Queue, now: int) -> bool:
        """Whether those who wait in a queue would be parked on this pool and no other, if it has no more room."""
        if len(queue.usable) != 1 or queue.others or self._state.backoffs:
            return False
        return queue.usable[0].needs[0][0] is pool or _first_obstacle(pool, queue, now) is pool

    def _next(self, now: int) -> Queue | None:
        """The queue whose head enters next; everything that cannot enter is parked on the way."""
        state = self._state
        best: Queue | None = None
        if state.fresh:
            for spec, queue in list(state.fresh.items()):
                if queue.head() is None:
                    del state.fresh[spec]
                elif self.choose(queue, now) is None:
                    self._park(queue, now)
                    del state.fresh[spec]
                elif best is None or _before(queue, best):
                    best = queue
        for key, pool in list(state.dirty.items()):
            top = self._top(pool, now)
            if top is None:
                del state.dirty[key]
                self._watch(pool, pool.looks_at, now)
            elif best is None or _before(top, best):
                best = top
        if best is None or len(state.fresh) + len(state.dirty) == 1:
            return best  # there is nobody else whom it could have passed
        return self._oldest(best, now)

    def _oldest(self, best: Queue, now: int) -> Queue:
        """The oldest of a project whose turn it is: shares differ from pool to pool, and must not change its order."""
        project = best.project
        for queue in self._state.fresh.values():
            if queue.project == project and _before(queue, best):
                best = queue
        for pool in self._state.dirty.values():
            top = self._top(pool, now, project)
            if top is not None and _before(top, best):
                best = top
        return best

    def _top(self, pool: Pool, now: int, project: str | None = None) -> Queue | None:
        """The first queue (of a project) parked here that can enter; those that something else blocks move there."""
        while (queue := pool.top(now) if project is None else pool.top_of(project, now)) is not None:
            if self.choose(queue, now, pool if len(queue.candidates) == 1 else None) is not None:
                return queue
            self._park(queue, now)
        return None

    def _park(self, queue: Queue, now: int) -> None:
        """`choose` found nothing: leave a queue on what blocks it, for each candidate, to be looked at again."""
        state = self._state
        head = queue.first()
        obstacles = self._obstacles
        if head.id in state.reserved:
            self._reserve(queue, head, now)
        self._parkings += 1
        queue.parking, queue.timer_at = self._parkings, 0
        for pool, own in obstacles:
            pool.park(queue, own)
            if pool.key not in state.dirty:  # else it is watched when it has been looked at
                self._watch(pool, pool.changes_at(now), now)
        self._await_turn(queue, head, now)

    def _await_turn(self, queue: Queue, head: Ticket, now: int) -> None:
        """Look again whether others overtake a head; at multiples of its waiting time, so that all agree when."""
        queue.turn_at = due = now + RESERVE_AFTER_MS - (now - head.queued_at) % RESERVE_AFTER_MS
        if not now < queue.timer_at <= due:
            self._timers.await_turn(queue)

    def _watch(self, pool: Pool, due: int, now: int) -> None:
        """See to it that somebody looks when time alone frees something in a pool that is waited for."""
        if due < FOREVER and (pool.timer_at <= now or due < pool.timer_at):
            pool.timer_at = due
            heappush(self._timers.heap, (due, POOL, pool.key))

    # Keeping slots for those who are overtaken.

    def consider_reserving(self, ticket: Ticket, now: int) -> None:
        """A head has waited for a while: if others overtake it, keep for it what frees up."""
        queue = self._state.queue(ticket.spec)
        looks = (now - ticket.queued_at) // RESERVE_AFTER_MS
        if self._state.is_closed(ticket.spec, now):
            return  # what is kept for it would be of no use
        if ticket.id not in self._state.reserved:
            if queue.can_keep(now) and self._overtaken(queue, ticket, now):
                self._reserve(queue, ticket, now)
        elif looks & (looks - 1) == 0:  # after 1, 2, 4, 8... of them
            self._keep_only_what_is_full(queue, ticket, now)
        else:
            self._reserve(queue, ticket, now)
        self._state.look_at(queue)

    def _overtaken(self, queue: Queue, head: Ticket, now: int) -> bool:
        """Whether others passed this ticket in every pool that blocks it, and none of its pools is kept for others."""
        passed = False
        for pool, own_limit in queue.preferred.needs:
            share = pool.share(queue.project)
            if pool.reserved_for is not None:
                return False
            if pool.blocks(queue.spec.slots, own_limit, queue, now):
                passed = share.start < pool.virtual or (share.latest > head.order and share.latest_at > head.queued_at)
                if not passed:
                    return False
        return passed

    def _reserve(self, queue: Queue, head: Ticket, now: int) -> None:
        """Keep the slots of one more pool for a ticket, once those kept so far are free; the slowest first."""
        kept = self._state.reserved.get(head.id, ())
        blocking = self._blocking(queue, now)
        if not blocking or any(pool.key in kept for pool in blocking):
            return
        slowest = max(blocking, key=lambda pool: pool.hold_mean_ms // pool.limit)
        if slowest.reserved_for is None:
            self._emit(ev.Reserved(head.id, (*kept, slowest.key)))

    def _keep_only_what_is_full(self, queue: Queue, head: Ticket, now: int) -> None:
        """A pool that stays full must not leave slots of another idle: let those go, and begin with the full one.

        Done at growing intervals, so that in the end they are long enough to see both free.
        """
        full = {pool.key for pool in self._blocking(queue, now)}
        kept = self._state.reserved[head.id]
        if not full.issuperset(kept):
            self._emit(ev.Reserved(head.id, tuple(key for key in kept if key in full)))

    def _blocking(self, queue: Queue, now: int) -> list[Pool]:
        """The pools that keep the head from the candidate it prefers."""
        return [pool for pool, own in queue.preferred.needs if pool.blocks(queue.spec.slots, own, queue, now)]


def _first_obstacle(pool: Pool, queue: Queue, now: int) -> Pool:
    """The first pool that keeps a queue out, given that this one does."""
    needs = queue.usable[0].needs
    return next(other for other, own in needs if other is pool or other.blocks(queue.slots, own, queue, now))


def _before(one: Queue, other: Queue) -> bool:
    """Which of two heads enters first: by age within a project, by fair share in the first pool that both need."""
    a, b = one.first(), other.first()
    by_age = (a.order, a.arrival) < (b.order, b.arrival)
    if one.project == other.project or a.order < 0 or b.order < 0:
        return by_age
    keys = {pool.key for pool in other.pools}
    for pool in one.pools:
        if pool.key in keys:
            return pool.rank(one) < pool.rank(other)
    return by_age
