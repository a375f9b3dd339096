"""Who stands where in line (SPEC A5). Reads only.

A position is 1 + how many would enter first if the line moved now: those ahead in the pool that blocks a ticket,
unless something else that does not block this ticket holds them back. It can rise. An estimate is given only where
holds were observed: pause left + position x (mean hold + cooldown) / limit, spread as a range. Jobs that no worker has
offered to run yet are among them, at the places that they keep.

The line is walked from its front: a part of it costs what is before its end, not what stands behind. What pools and
rules have a say in is noted down at the beginning, so that a walk may go on in another thread while the state changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heapreplace, merge
from itertools import islice
from typing import NamedTuple

from msgspec import Struct

from headgate.core.line import Queue
from headgate.core.pools import Pool
from headgate.core.reasons import of_job_aside, reason_for, reason_of_job
from headgate.core.records import Reason, Ticket
from headgate.core.rules import UNLIMITED
from headgate.core.shelf import Entry
from headgate.core.state import State

_ENDLESS_MS = 10**11  # a pause until somebody resumes
_PASSED_OVER = Reason("passed_over", "a seat was offered and not taken; it keeps its place until its process speaks")


class TicketView(Struct):
    ticket: Ticket
    position: int
    reason: Reason
    estimate_ms: tuple[int, int] | None


class Row(NamedTuple):
    """Those who would enter a pool if only `blocks` gave way; all of these are keys of pools."""

    pool: str
    blocks: frozenset[str]


class Placed(NamedTuple):
    """A ticket where it is listed: by position, then by age."""

    position: int
    order: int
    arrival: int
    ticket: Ticket


class Line:
    """The line as it is at one moment."""

    def __init__(self, state: State, now: int) -> None:
        self._size = len(state.tickets)
        self._now = now
        jobs = state.shelf.kinds(now)
        queues = dict(state.standing)
        queues |= {spec: state.queue(spec) for spec in jobs}
        self._stands = {spec: _Stand(state, queue, now, jobs.get(spec, [])) for spec, queue in queues.items()}
        aside = [state.tickets[ident] for ident in state.roster.aside]
        self._away = [ticket for ticket in aside if not _takes_part(ticket, now)]
        self._shares = {stand.row: stand.shares for stand in self._stands.values() if stand.row is not None}

    def page(self, offset: int = 0, limit: int | None = None) -> list[TicketView]:
        """So many, by position."""
        end = None if limit is None else offset + limit
        return [self._view(each.ticket, each.position) for each in islice(self._placed(), offset, end)]

    def walk(self, wanted: Callable[[Ticket], bool]) -> Iterator[TicketView]:
        """Those that are wanted, by position."""
        return (self._view(each.ticket, each.position) for each in self._placed() if wanted(each.ticket))

    def _placed(self) -> Iterator[Placed]:
        streams = [self._of_row(row) for row in self._shares]
        streams += [_all_first(stand) for stand in self._stands.values() if stand.row is None]
        away = sorted(Placed(self._size, ticket.order, ticket.arrival, ticket) for ticket in self._away)
        return merge(*streams, away)

    def view(self, ticket: Ticket) -> TicketView:
        """One ticket of the line."""
        if not _takes_part(ticket, self._now):
            return self._view(ticket, self._size)
        stand = self._stands[ticket.spec]
        row = stand.row
        if row is None:
            return self._view(ticket, next(each.position for each in _all_first(stand) if each.ticket is ticket))
        return self._view(ticket, next(place for place, each in enumerate(self._served(row), 1) if each is ticket))

    def _view(self, ticket: Ticket, position: int) -> TicketView:
        if not _takes_part(ticket, self._now):
            return TicketView(ticket, position, of_job_aside(ticket) if ticket.job else _PASSED_OVER, None)
        stand = self._stands[ticket.spec]
        if ticket.away and stand.of_jobs.code == "no_worker":
            return TicketView(ticket, position, stand.of_jobs, None)
        if ticket.away:
            return TicketView(ticket, position, stand.of_jobs, estimate(stand.pace, position))
        return TicketView(ticket, position, stand.reason, estimate(stand.pace, position))

    def _of_row(self, row: Row) -> Iterator[Placed]:
        """Those who have their position in a row; others stand in it too, and have theirs elsewhere."""
        for place, ticket in enumerate(self._served(row), 1):
            if self._stands[ticket.spec].row == row:
                yield Placed(place, ticket.order, ticket.arrival, ticket)

    def _served(self, row: Row) -> Iterator[Ticket]:
        """All who stand in a row, as its pool would serve them: fair between flows, by age within."""
        flows: dict[str, list[_Stand]] = {}
        for stand in self._stands.values():
            if row.pool in stand.pools and stand.blocks <= row.blocks:
                flows.setdefault(stand.flow, []).append(stand)
        starts, new = self._shares[row]
        heads: list[tuple[int, int, int, str, Ticket]] = []
        walks = {flow: merge(*(stand.tickets() for stand in stands), key=_age) for flow, stands in flows.items()}
        served = {flow: starts.get(flow, new) for flow in flows}

        def head(flow: str, ticket: Ticket) -> tuple[int, int, int, str, Ticket]:
            return (-1 if ticket.order < 0 else served[flow], ticket.order, ticket.arrival, flow, ticket)

        for flow, walk in walks.items():
            heads += [head(flow, ticket) for ticket in islice(walk, 1)]
        heapify(heads)
        while heads:
            _, _, _, flow, ticket = heads[0]
            yield ticket
            served[flow] += self._stands[ticket.spec].hold_ms
            after = next(walks[flow], None)
            if after is None:
                heappop(heads)
            else:
                heapreplace(heads, head(flow, after))


class _Stand:
    """One queue, as it is noted down."""

    def __init__(self, state: State, queue: Queue, now: int, jobs: list[Entry]) -> None:
        held_by = blocking(queue, now)
        at = held_by[0] if held_by else next(iter(queue.pools), None)
        self.flow = queue.flow
        self.pools = frozenset(pool.key for pool in queue.pools)
        self.blocks = frozenset(pool.key for pool in held_by)
        self.reason = reason_for(state, queue, now)
        # Of those that no worker offers to run.
        self.of_jobs = reason_of_job(state, queue, now) if jobs else self.reason
        self.hold_ms = state.expected_hold_ms(queue.spec) * queue.spec.seats
        self.pace = None if self.reason.code == "usage_gate" else pace_of(at, now)  # that is not up to us
        self.row: Row | None = None  # all of them are first
        self.shares: tuple[dict[str, int], int] = ({}, 0)
        if at is not None and at.key in self.pools:
            self.row = Row(at.key, self.blocks)
            self.shares = ({flow: share.start for flow, share in at.shares.items()}, at.virtual)
        self._queue = queue
        self._entries = queue.entries()
        self._shelf, self._jobs = state.shelf, jobs

    def tickets(self) -> Iterator[Ticket]:
        """The oldest first."""
        asking = self._queue.in_order(self._entries)
        return (
            merge(asking, self._shelf.in_order(self._queue.spec, list(self._jobs)), key=_age) if self._jobs else asking
        )


def _takes_part(ticket: Ticket, now: int) -> bool:
    """Whether a ticket has a position: it asks, or would if a worker had a hand for it."""
    return not ticket.away or (ticket.job and not ticket.held and ticket.not_before <= now)


def _all_first(stand: _Stand) -> Iterator[Placed]:
    """Those who wait for no pool. All are first, but jobs, which wait for a worker one after the other."""
    for place, ticket in enumerate(stand.tickets(), 1):
        yield Placed(place if ticket.away else 1, ticket.order, ticket.arrival, ticket)


def _age(ticket: Ticket) -> tuple[int, int]:
    return ticket.order, ticket.arrival


def blocking(queue: Queue, now: int) -> list[Pool]:
    """The pools that hold this queue back, by its preferred candidate; the narrowest first."""
    seats = queue.spec.seats
    return [pool for pool, own in queue.preferred.needs if pool.blocks(seats, own, queue, now)]


def standing_at(state: State, pool: Pool, blocks: frozenset[str], now: int) -> int:
    """How many would enter a pool if only `blocks` gave way."""
    return sum(
        queue.waiting
        for queue in state.standing.values()
        if pool in queue.pools and all(each.key in blocks for each in blocking(queue, now))
    )


def jobs_at(state: State, pool: Pool, blocks: frozenset[str], now: int) -> int:
    """How many jobs that no worker offers to run would enter a pool if only `blocks` gave way."""
    found = 0
    for spec, entries in state.shelf.kinds(now).items():
        queue = state.queue(spec)
        if pool in queue.pools and all(each.key in blocks for each in blocking(queue, now)):
            found += sum(1 for _ in state.shelf.in_order(spec, entries))
    return found


class Pace(NamedTuple):
    """How quickly a pool's seats come free, by what was observed."""

    paused_ms: int
    low_ms: int
    high_ms: int
    limit: int


def pace_of(pool: Pool | None, now: int) -> Pace | None:
    if pool is None or not pool.holds or pool.limit >= UNLIMITED:
        return None
    paused_ms = max(pool.paused_until - now, 0)
    if paused_ms > _ENDLESS_MS:
        return None
    low_ms = max(pool.hold_mean_ms - pool.hold_dev_ms, 0) + pool.cooldown_ms
    return Pace(paused_ms, low_ms, pool.hold_mean_ms + pool.hold_dev_ms + pool.cooldown_ms, pool.limit)


def estimate(pace: Pace | None, position: int) -> tuple[int, int] | None:
    """When whoever has this position may start, at the earliest and at the latest."""
    if pace is None:
        return None
    low_ms, high_ms = (position * each // pace.limit for each in (pace.low_ms, pace.high_ms))
    return pace.paused_ms + low_ms, pace.paused_ms + high_ms
