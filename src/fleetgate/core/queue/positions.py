"""Positions of waiting tickets, and estimates of when they start (rule A5). Reads only.

A position is n of m for a pool: of the m tickets that would enter the pool that blocks a ticket if that pool had room,
n - 1 would do so first. Tickets that are also blocked by something that does not block this one do not count. A
position can rise. Tickets that wait for the end of a backoff have a position among those that wait for the same model.
An estimate is given only where holds were observed: pause left + position x (mean hold + cooldown) / limit, spread as a
range. Unassigned jobs are included, at the places that they keep.

The queue is listed by expected start and walked from its front, so a page costs what comes before its end, not what is
behind it. Everything that depends on pools and caps is copied at the beginning, so that a walk may go on in another
thread while the state changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heapreplace, merge
from itertools import islice
from typing import NamedTuple

from msgspec import Struct

from fleetgate.core.budgets.budget import Budget
from fleetgate.core.entities import Reason, Spec, Ticket
from fleetgate.core.plans.window import PlanWindow
from fleetgate.core.pools.effective_caps import UNLIMITED
from fleetgate.core.pools.pool import Pool
from fleetgate.core.pools.resource import Resource
from fleetgate.core.queue.queue import Queue
from fleetgate.core.queue.waiting_jobs import Entry
from fleetgate.core.state.state import DEFAULT_HOLD_MS, State
from fleetgate.core.ticket_states import UNASSIGNED
from fleetgate.core.views.wait_reasons import of_job_aside, reason_for, reason_of_job

_ENDLESS_MS = 10**11  # a pause until a person ends it
_PASSED_OVER = Reason(
    "passed_over", "a slot was offered and not taken; it keeps its place until its process is heard of"
)


class TicketView(Struct):
    ticket: Ticket
    position: int
    reason: Reason
    estimate_ms: tuple[int, int] | None
    of: int = 0  # how many have a position there; 0: it has none
    pool: str = ""  # what the position is for: a pool, or a model that is backed off
    accounts: tuple[str, ...] = ()  # of a set that it may use


class Row(NamedTuple):
    """The tickets that would enter a pool if only the pools `blocks` had room; both are keys of pools.

    Where tickets wait for the end of a backoff instead, `pool` is a space and the model.
    """

    pool: str
    blocks: frozenset[str]


class Placed(NamedTuple):
    """A ticket where it is listed: by when it is expected to start, then by position and age."""

    starts_ms: int
    position: int
    order: int
    arrival: int
    ticket: Ticket


class QueueView:
    """The queue at one moment; with `near`, only what matters for the position of requests like that."""

    def __init__(self, state: State, now: int, near: Spec | None = None) -> None:
        self._now = now
        self._sets = state.accounts
        aside = _aside(state, now)
        queues = dict(state.active_queues)
        queues |= {spec: state.queue(spec) for spec in state.waiting_jobs.kinds(now)}
        if near is not None and near in queues:
            row = row_of(state, near, now)
            queues = {spec: queue for spec, queue in queues.items() if _may_be_in(row, queue)}
        self._queues: dict[Spec, _QueueCopy] = {}
        for spec, queue in queues.items():
            number = _jobs_of(queue, aside)
            self._queues[spec] = _QueueCopy(
                state, queue, now, number, state.waiting_jobs.entries(spec) if number else []
            )
        self._rows = {part.row: part for part in self._queues.values()}  # one of those that have it
        self._sizes: dict[Row, int] = {}
        ordered = sorted((each for some in aside.values() for each in some), key=_age)
        first = len(state.tickets) - len(ordered) + 1  # behind all the others
        self._away = {ticket.id: (first + n, ticket) for n, ticket in enumerate(ordered)}

    def page(self, offset: int = 0, limit: int | None = None) -> list[TicketView]:
        """A page of tickets, by expected start."""
        end = None if limit is None else offset + limit
        return [self._view(each.ticket, each.position) for each in islice(self._placed(), offset, end)]

    def walk(self, wanted: Callable[[Ticket], bool]) -> Iterator[TicketView]:
        """The wanted tickets, in the same order."""
        return (self._view(each.ticket, each.position) for each in self._placed() if wanted(each.ticket))

    def places(self, row: Row) -> dict[str, TicketView]:
        """The tickets that have their position in a row, by id."""
        found = self._of_row(row) if row in self._rows else ()
        return {each.ticket.id: self._view(each.ticket, each.position) for each in found}

    def size_of(self, row: Row) -> int:
        """How many are in a row, including tickets that have their position elsewhere."""
        if row not in self._sizes:
            self._sizes[row] = sum(part.size for part in self._queues.values() if part.is_in(row))
        return self._sizes[row]

    def _placed(self) -> Iterator[Placed]:
        away = [
            Placed(_starts_aside_ms(ticket, self._now), position, ticket.order, ticket.arrival, ticket)
            for position, ticket in self._away.values()
        ]
        return merge(*(self._of_row(row) for row in self._rows), sorted(away))

    def view(self, ticket: Ticket) -> TicketView:
        """One ticket of the queue."""
        if ticket.id in self._away:
            return self._view(ticket, self._away[ticket.id][0])
        served = self._served(self._queues[ticket.spec].row)
        return self._view(ticket, next(place for place, each in enumerate(served, 1) if each is ticket))

    def _view(self, ticket: Ticket, position: int) -> TicketView:
        sets, spec = self._sets, ticket.spec
        accounts = tuple(sets.accounts_for(spec.models, spec.accounts)) if sets.rules else ()
        if not _takes_part(ticket, self._now):
            reason = of_job_aside(ticket) if ticket.job else _PASSED_OVER
            return TicketView(ticket, position, reason, None, accounts=accounts)
        part = self._queues[spec]
        reason = part.of_jobs if ticket.away else part.reason
        known = None if ticket.away and reason.code == "no_worker" else estimate(part.pace, position)
        return TicketView(ticket, position, reason, known, max(self.size_of(part.row), position), part.name, accounts)

    def _of_row(self, row: Row) -> Iterator[Placed]:
        """The tickets that have their position in a row; others are in it too, with a position elsewhere."""
        wait_ms, each_ms, limit = self._rows[row].start
        for place, ticket in enumerate(self._served(row), 1):
            if self._queues[ticket.spec].row == row:
                yield Placed(wait_ms + place * each_ms // limit, place, ticket.order, ticket.arrival, ticket)

    def _served(self, row: Row) -> Iterator[Ticket]:
        """All tickets in a row, as its pool would serve them: fair between projects, by age within."""
        projects: dict[str, list[_QueueCopy]] = {}
        for part in self._queues.values():
            if part.is_in(row):
                projects.setdefault(part.project, []).append(part)
        starts, new = self._rows[row].shares
        heads: list[tuple[int, int, int, str, Ticket]] = []
        walks = {project: merge(*(part.tickets() for part in parts), key=_age) for project, parts in projects.items()}
        served = {project: starts.get(project, new) for project in projects}

        def head(project: str, ticket: Ticket) -> tuple[int, int, int, str, Ticket]:
            return (-1 if ticket.order < 0 else served[project], ticket.order, ticket.arrival, project, ticket)

        for project, walk in walks.items():
            heads += [head(project, ticket) for ticket in islice(walk, 1)]
        heapify(heads)
        while heads:
            _, _, _, project, ticket = heads[0]
            yield ticket
            served[project] += self._queues[ticket.spec].hold_ms
            after = next(walks[project], None)
            if after is None:
                heappop(heads)
            else:
                heapreplace(heads, head(project, after))


def row_of(state: State, spec: Spec, now: int) -> Row:
    """The row in which such requests have their position."""
    return _QueueCopy(state, state.queue(spec), now, 0, []).row


class _QueueCopy:
    """A copy of what matters of one queue, with the number of its unassigned jobs."""

    def __init__(self, state: State, queue: Queue, now: int, number: int, jobs: list[Entry]) -> None:
        plan = closed_plan(queue, now)
        held_by: list[Resource] = [*blocking(queue, now)] if plan is None else [plan]
        budget = None if held_by else short_budget(queue, now)
        if budget is not None:
            held_by.append(budget)
        at = held_by[0] if held_by else next(iter(queue.pools), None)
        self.project = queue.project
        self.pools = frozenset(pool.key for pool in _needed(queue))
        self.blocks = frozenset(pool.key for pool in held_by)
        self.size = queue.waiting + number
        self.reason = reason_for(state, queue, now)
        # The reason of its unassigned jobs.
        self.of_jobs = reason_of_job(state, queue, now) if number else self.reason
        weight = state.rules.weights.get(queue.project, 1)
        self.hold_ms = state.expected_hold_ms(queue.spec) * queue.spec.slots // weight
        self.pace = None if self.reason.code == "usage_gate" else pace_of(at, now)  # the provider decides that
        if self.pace is not None and queue.has_sets and not queue.spec.home:
            self.pace = _shared_pace(self.pace, queue)
        if budget is not None:
            wait_ms, each_ms = budget.start_of(queue.first(), now)
            self.pace = Pace(max(wait_ms - each_ms, 0), each_ms, each_ms, 1)
        elif plan is not None:
            self.pace = Pace(plan.opens_at(queue.spec.work_class, now) - now, 0, 0, 1)
        if at is not None and at.key in self.pools:
            self.name = at.id
            self.row = Row(at.key, self.blocks)
            self.shares = ({project: share.start for project, share in at.shares.projects.items()}, at.shares.virtual)
            self.start = _start_of(at, now) if isinstance(at, Pool) else (self.pace or Pace(0, 0, 0, 1)).start
        else:
            self.name = _model_of(queue)
            self.row = Row(f" {self.name}", frozenset())
            self.shares = ({}, 0)
            until = self.reason.until
            self.start = (0 if self.reason.code != "backoff" else _ENDLESS_MS if until is None else until - now, 0, 1)
            self.hold_ms = 0  # the oldest is first, whatever its project
        self._queue = queue
        self._entries = queue.entries()
        self._shelf, self._jobs = state.waiting_jobs, jobs

    def is_in(self, row: Row) -> bool:
        """Whether its tickets are in a row, wherever they have their position."""
        return self.row == row or (row.pool in self.pools and self.blocks <= row.blocks)

    def tickets(self) -> Iterator[Ticket]:
        """The oldest first."""
        asking = self._queue.in_order(self._entries)
        return (
            merge(asking, self._shelf.in_order(self._queue.spec, list(self._jobs)), key=_age) if self._jobs else asking
        )


def _model_of(queue: Queue) -> str:
    """What tickets wait for that wait for no pool."""
    return queue.preferred.model


def _may_be_in(row: Row, queue: Queue) -> bool:
    """Whether the tickets of a queue may be in a row."""
    return row.pool == f" {_model_of(queue)}" or any(each.key == row.pool for each in _needed(queue))


def _needed(queue: Queue) -> list[Resource]:
    """What the tickets of a queue may have to wait for."""
    return [*queue.pools, *queue.budgets, *queue.preferred.plans]


def _start_of(pool: Pool, now: int) -> tuple[int, int, int]:
    """When the first of a pool's row is expected to start, then the interval and how many start in it: in ms."""
    wait_ms = min(max(pool.paused_until - now, 0), _ENDLESS_MS)
    hold_ms = pool.hold_times.mean_ms if pool.hold_times.count else DEFAULT_HOLD_MS
    return wait_ms, hold_ms + pool.cooldown_ms, pool.limit


def _starts_aside_ms(ticket: Ticket, now: int) -> int:
    """When a ticket that has no position is expected to start."""
    return ticket.not_before - now if ticket.not_before > now and not ticket.held else 2 * _ENDLESS_MS


def _takes_part(ticket: Ticket, now: int) -> bool:
    """Whether a ticket has a position: it asks, or would if a worker had a free hand."""
    return not ticket.away or (ticket.state == UNASSIGNED and ticket.not_before <= now)


def _age(ticket: Ticket) -> tuple[int, int]:
    return ticket.order, ticket.arrival


def blocking(queue: Queue, now: int) -> list[Pool]:
    """The pools that keep this queue from its preferred candidate, the narrowest first."""
    slots = queue.spec.slots
    return [pool for pool, own in queue.preferred.needs if pool.blocks(slots, own, queue, now)]


def closed_plan(queue: Queue, now: int) -> PlanWindow | None:
    """The plan window that holds the head of this queue back."""
    head = queue.head()
    return queue.preferred.closed_plan(queue.spec.work_class, now, "" if head is None else head.run)


def short_budget(queue: Queue, now: int) -> Budget | None:
    """The first budget that has too little left for the head of this queue."""
    head = queue.head()
    budgets = queue.preferred.budgets if head is not None else ()
    return next((each for each in budgets if head is not None and each.opens_at(head, queue, now) > now), None)


def tickets_waiting(state: State, now: int) -> dict[str, int]:
    """How many tickets may enter each pool and budget, by key, unassigned jobs included."""
    aside = _aside(state, now)
    counts = [(queue, queue.waiting) for queue in state.active_queues.values()]
    counts += [(queue, _jobs_of(queue, aside)) for queue in map(state.queue, state.waiting_jobs.kinds(now))]
    found: dict[str, int] = {}
    for queue, count in counts:
        for resource in [*queue.pools, *queue.budgets]:
            found[resource.key] = found.get(resource.key, 0) + count
    return found


def waiting_at(state: State, pool: Pool, blocks: frozenset[str], now: int) -> int:
    """How many tickets would enter a pool if only `blocks` had room."""
    return sum(
        queue.waiting
        for queue in state.active_queues.values()
        if pool in queue.pools
        and closed_plan(queue, now) is None
        and all(each.key in blocks for each in blocking(queue, now))
    )


def jobs_at(state: State, pool: Pool, blocks: frozenset[str], now: int) -> int:
    """How many unassigned jobs would enter a pool if only `blocks` had room."""
    aside = _aside(state, now)
    queues = [state.queue(spec) for spec in state.waiting_jobs.kinds(now)]
    return sum(
        _jobs_of(queue, aside)
        for queue in queues
        if pool in queue.pools
        and closed_plan(queue, now) is None
        and all(each.key in blocks for each in blocking(queue, now))
    )


def _aside(state: State, now: int) -> dict[Spec, list[Ticket]]:
    """The tickets that have no position now, by what they need."""
    found: dict[Spec, list[Ticket]] = {}
    for ident in state.ticket_index.aside:
        ticket = state.tickets[ident]
        if not _takes_part(ticket, now):
            found.setdefault(ticket.spec, []).append(ticket)
    return found


def _jobs_of(queue: Queue, aside: dict[Spec, list[Ticket]]) -> int:
    """How many jobs of a kind wait for a worker."""
    return len(queue.members) - queue.waiting - len(aside.get(queue.spec, ()))


class Pace(NamedTuple):
    """How quickly a pool's slots become free, by what was observed."""

    paused_ms: int
    low_ms: int
    high_ms: int
    limit: int

    @property
    def start(self) -> tuple[int, int, int]:
        """When the first is expected to start, then the interval and how many start in it: in ms."""
        return self.paused_ms, self.low_ms, self.limit


def pace_of(pool: Resource | None, now: int) -> Pace | None:
    if not isinstance(pool, Pool) or not pool.hold_times.count or pool.limit >= UNLIMITED:
        return None
    paused_ms = max(pool.paused_until - now, 0)
    if paused_ms > _ENDLESS_MS:
        return None
    low_ms = max(pool.hold_times.mean_ms - pool.hold_times.deviation_ms, 0) + pool.cooldown_ms
    return Pace(
        paused_ms, low_ms, pool.hold_times.mean_ms + pool.hold_times.deviation_ms + pool.cooldown_ms, pool.limit
    )


def _shared_pace(pace: Pace, queue: Queue) -> Pace:
    """The pace of requests that may use several accounts: as quick as all of them together, or as slow as one."""
    limits = [each.needs[0][0].limit for each in queue.usable if each.needs and each.needs[0][0].limit < UNLIMITED]
    low_ms = pace.low_ms * pace.limit // max(sum(limits), pace.limit)
    return Pace(pace.paused_ms, low_ms, pace.high_ms, pace.limit)


def estimate(pace: Pace | None, position: int) -> tuple[int, int] | None:
    """When a ticket at this position may start, at the earliest and at the latest."""
    if pace is None:
        return None
    low_ms, high_ms = (position * each // pace.limit for each in (pace.low_ms, pace.high_ms))
    return pace.paused_ms + low_ms, pace.paused_ms + high_ms
