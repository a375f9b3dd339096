"""The choice of an account: which of a set a request enters with (rules Z2 to Z5).

Theory of operation
===================

A request that names no account has a candidate for each account of the set. Those to `use` come before those that are
`then` used, and among equals the one with the most left comes first. The first one that has room is taken. So it is the
same step as for any request with several candidates, only the order is worked out each time.

*Home.* A request of a conversation belongs to a queue of its own, with the account that the conversation used last as
its home. It waits for its home alone, for at most `patience`; when that is over, or when it is known that the home
stays closed for longer, it may use the others as well. So conversations that wait for a full account are not in the way
of those that use another one.

*Home among the last.* A conversation that was spilled to an account of `then` returns when one of the others has room
at the moment it asks. It does not wait for them, or it would push out conversations that are at home there.

*Ramp.* A conversation that moves also has to wait for the ramp of the account that it moves to.
"""

from __future__ import annotations

from fleetgate.core.budgets.budget import Budget
from fleetgate.core.entities import Ticket
from fleetgate.core.plans.window import PlanWindow
from fleetgate.core.pools.pool import Pool
from fleetgate.core.pools.resource import Resource
from fleetgate.core.queue.obstacles import Obstacle, obstacle_of
from fleetgate.core.queue.queue import Candidate, Queue
from fleetgate.core.state.state import State

Rank = tuple[int, bool, int, int]  # group, whether it is of `then`, what is used of it, how many conversations it has


class AccountChoice:
    """Chooses the accounts of one state's requests."""

    def __init__(self, state: State) -> None:
        self._state = state

    def choose(
        self, queue: Queue, tried: tuple[Candidate, ...], newcomer: Ticket | None, now: int
    ) -> tuple[Candidate | None, list[Obstacle]]:
        """The candidate that the head of a queue, or a newcomer, enters with; else None and what it waits for."""
        obstacles: list[Obstacle] = []
        home = queue.home
        if home is not None:
            found = self._at_home(home, queue, tried, newcomer, now, obstacles)
            obstacle = obstacles[0] if obstacles else None
            if found is not None or self.waits_for_home(home, queue, newcomer, obstacle, now):
                return found, obstacles
        elif tried:
            best = first_of(tried, now)  # nearly always, the account with the most left has room
            if self._obstacle(best, queue, newcomer, now) is None:
                return best, obstacles
        for candidate in in_order(tried, now):
            if candidate is home:
                continue
            obstacle = self._obstacle(candidate, queue, newcomer, now)
            if obstacle is None:
                return candidate, obstacles
            obstacles.append(obstacle)
        return None, obstacles

    def _at_home(
        self,
        home: Candidate,
        queue: Queue,
        tried: tuple[Candidate, ...],
        newcomer: Ticket | None,
        now: int,
        obstacles: list[Obstacle],
    ) -> Candidate | None:
        """The home of a conversation, if it has room; instead of one of `then`, an account that comes before it."""
        if newcomer is not None and _is_spill(home):
            for candidate in in_order(tried, now):
                if _is_use_of(home, candidate) and self._obstacle(candidate, queue, newcomer, now) is None:
                    return candidate
        if home not in tried:
            return None
        obstacle = obstacle_of(home, queue, newcomer, now)
        if obstacle is None:
            return home
        obstacles.append(obstacle)
        return None

    def _obstacle(self, candidate: Candidate, queue: Queue, newcomer: Ticket | None, now: int) -> Obstacle | None:
        """What keeps a request from an account; the ramp is the last thing."""
        obstacle = obstacle_of(candidate, queue, newcomer, now)
        member = candidate.member
        if obstacle is None and queue.spec.home and member is not None and member.ramp.opens_at(now) > now:
            return member.ramp, 0, candidate
        return obstacle

    def waits_for_home(
        self, home: Candidate, queue: Queue, newcomer: Ticket | None, obstacle: Obstacle | None, now: int
    ) -> bool:
        """Whether a request waits on for its home, which has this obstacle; None: it is not to be tried at all."""
        ticket = queue.first() if newcomer is None else newcomer
        leaves_at = queue.leaves_home_at(ticket)
        if now >= leaves_at:
            return False
        if obstacle is None:
            return max((backoff.probe_at for backoff in self._state.backoffs_on(home)), default=now) <= leaves_at
        resource = obstacle[0]
        if isinstance(resource, Budget):  # a request that arrives does not wait for a spent one
            return newcomer is None or resource.opens_at(ticket, queue, now) <= leaves_at
        if isinstance(resource, PlanWindow):
            return resource.opens_at(queue.spec.work_class, now) <= leaves_at
        assert isinstance(resource, Pool), resource
        return resource.paused_until <= leaves_at

    def stays_parked(self, pool: Resource, queue: Queue, now: int) -> bool:
        """Whether a queue whose head has just entered would be parked as it is, if this pool has no more room."""
        home, obstacles = queue.home, queue.obstacles
        if home is None:
            if queue.spec.home or len(obstacles) != len(queue.usable):
                return False
        elif now >= queue.leaves_home_at(queue.first()) or len(obstacles) != 1:
            return False
        return all(candidate.needs[0][0] is pool for resource, _, candidate in obstacles if resource is pool)


def first_of(tried: tuple[Candidate, ...], now: int) -> Candidate:
    """The first of them in the order in which they are used. The same as `in_order`, for a part of the cost."""
    best, best_left, best_crowd = tried[0], -1, -1
    for candidate in tried:
        member = candidate.member
        if member is None or not member.by_left:
            return min(tried, key=lambda each: _rank(each, now))
        if candidate.group != best.group or member.spill != _is_spill(best):
            if _rank(candidate, now) < _rank(best, now):
                best, best_left, best_crowd = candidate, member.left(now), -1
            continue
        left = member.left(now)
        if left > best_left:
            best, best_left, best_crowd = candidate, left, -1
        elif left == best_left and best_crowd and member.homes.numbers:
            rival = best.member
            best_crowd = best_crowd if best_crowd >= 0 else rival.crowd() if rival is not None else 0
            crowd = member.crowd()
            if crowd < best_crowd:
                best, best_crowd = candidate, crowd
    return best


def in_order(tried: tuple[Candidate, ...], now: int) -> list[Candidate]:
    """The candidates in the order in which they are used."""
    return sorted(tried, key=lambda each: _rank(each, now))


def _rank(candidate: Candidate, now: int) -> Rank:
    """Where a candidate comes among the others: the first has the least."""
    member = candidate.member
    if member is None:
        return candidate.group, False, 0, 0
    if not member.by_left:
        return candidate.group, member.spill, 0, 0
    return candidate.group, member.spill, -member.left(now), member.crowd()


def _is_use_of(home: Candidate, candidate: Candidate) -> bool:
    """Whether a candidate is an account to use before this one, of `then`."""
    return candidate.group == home.group and not _is_spill(candidate)


def _is_spill(candidate: Candidate) -> bool:
    return candidate.member is not None and candidate.member.spill
