"""The state as people and programs see it: pools, line, leases, capacity. Reads only; times are log times.

A position is 1 + how many would enter first if the line moved now (SPEC A5): those ahead in the pool that blocks a
ticket, unless something else that does not block this ticket holds them back. It can rise. An estimate is given
only where holds were observed: pause left + position x (mean hold + cooldown) / limit, spread as a range.
"""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace

from msgspec import Struct

from headgate.core.line import Queue
from headgate.core.pools import Pool
from headgate.core.reasons import limit_of, reason_for, reason_of_job
from headgate.core.records import Lease, Reason, Spec, Ticket
from headgate.core.rules import UNLIMITED
from headgate.core.state import State

YELLOW_WAIT_MS = 60_000  # SPEC A11


class UpstreamView(Struct):
    """What a pool's provider itself said, for pools with a usage gate."""

    count: int | None  # in flight; None: unknown
    at: int | None  # when it answered; None: never
    error: str  # why it is unknown
    asking: str  # the process that is asking now


class PoolView(Struct):
    pool: str
    kind: str
    selector: str
    account: str
    host: str
    cap: int | None
    limit: int | None
    in_flight: int
    cooling: int
    foreign: int
    queued: int
    paused_until: int | None
    pause_cause: str
    cooldown_ms: int
    on_429: str
    auto: bool
    auto_reduced: bool
    auto_reduced_from: int | None
    source: str
    name: str
    reserved: bool
    upstream: UpstreamView | None = None

    @property
    def restore(self) -> str | None:
        """The command that undoes an automatic reduction."""
        if not self.auto_reduced:
            return None
        return f"headgate cap set '{self.selector}' {self.auto_reduced_from} --kind {self.kind}"

    @property
    def notice(self) -> str | None:
        """What a person should know about this pool (SPEC P3)."""
        if not self.auto_reduced:
            return None
        return (
            f"auto-reduced to {self.limit} after a rate limit (cap {self.auto_reduced_from}): "
            f"restore with `{self.restore}`"
        )


class TicketView(Struct):
    ticket: Ticket
    position: int
    reason: Reason
    estimate_ms: tuple[int, int] | None


class LeaseView(Struct):
    lease: Lease
    pools: list[str]
    age_ms: int


class Capacity(Struct):
    level: str
    free: int | None  # None: unlimited
    queued: int
    wait_ms: tuple[int, int] | None
    reason: Reason | None


def pool_views(state: State, now: int, host: str = "") -> list[PoolView]:
    """Every capped pool; caps of `host` and of default accounts also before any traffic."""
    _make_listed(state, host)
    views = [_pool_view(pool, now) for pool in state.pools.values() if _listed(pool)]
    return sorted(views, key=lambda view: (view.kind, view.pool))


def _make_listed(state: State, host: str) -> None:
    for cap in list(state.rules.caps.values()):
        selector = cap.selector
        if not cap.capped:
            continue
        if selector.scope == "host" and host:
            state.named(cap.kind, f"host:{host}")
        elif selector.scope == "model" and "*" not in selector.provider:
            state.named(cap.kind, selector.text.replace("@default", "", 1))


def _listed(pool: Pool) -> bool:
    if not pool.cap.capped:
        return False
    shadowed = pool.cap.source == "built-in" and pool.cap.selector.scope == "model" and not pool.used
    return not shadowed or bool(pool.paused_until) or any(share.waiting for share in pool.shares.values())


def _pool_view(pool: Pool, now: int) -> PoolView:
    pool.occupied(now)
    cap = pool.auto_cap if pool.cap.auto else pool.cap.cap
    return PoolView(
        pool=pool.id,
        kind=pool.kind,
        selector=pool.cap.selector.text,
        account=pool.account,
        host=pool.host,
        cap=cap,
        limit=None if pool.limit >= UNLIMITED else pool.limit,
        in_flight=pool.used,
        cooling=pool.cooling_seats,
        foreign=pool.foreign,
        queued=sum(share.waiting for share in pool.shares.values()),
        paused_until=pool.paused_until if pool.paused_until > now else None,
        pause_cause=pool.pause_cause if pool.paused_until > now else "",
        cooldown_ms=pool.cap.cooldown_ms,
        on_429=pool.cap.on_429,
        auto=pool.cap.auto,
        auto_reduced=bool(pool.reduced),
        auto_reduced_from=cap if pool.reduced else None,
        source=pool.cap.source,
        name=pool.cap.name,
        reserved=pool.reserved_for is not None,
        upstream=_upstream_view(pool) if pool.cap.usage_gate else None,
    )


def _upstream_view(pool: Pool) -> UpstreamView:
    upstream = pool.upstream
    return UpstreamView(upstream.count, upstream.answered_at or None, upstream.error, upstream.asked_by)


def lease_views(state: State, now: int) -> list[LeaseView]:
    """Every lease, the oldest first."""
    leases = sorted(state.leases.values(), key=lambda lease: lease.granted_seq)
    return [
        LeaseView(lease, [pool.id for pool, _ in state.held[lease.id].needs], now - lease.granted_at)
        for lease in leases
    ]


def ticket_views(state: State, now: int) -> list[TicketView]:
    """The whole line, by position."""
    views: list[TicketView] = []
    line = _Line(state, now, jobs=True)
    for spec in line.by_queue:
        views.extend(line.views(state.queue(spec)))
    for ticket in state.tickets.values():
        if ticket.away and not _takes_part(ticket, now):
            views.append(TicketView(ticket, len(state.tickets), _aside(state, ticket, now), None))
    return sorted(views, key=lambda view: (view.position, view.ticket.order, view.ticket.arrival))


def ticket_view(state: State, ident: str, now: int) -> TicketView | None:
    """One ticket's place; None when it is not in line."""
    ticket = state.tickets.get(ident)
    if ticket is None:
        return None
    if ticket.away and not _takes_part(ticket, now):
        return TicketView(ticket, len(state.tickets), _aside(state, ticket, now), None)
    views = _Line(state, now, jobs=True).views(state.queue(ticket.spec))
    return next(view for view in views if view.ticket.id == ident)


def _takes_part(ticket: Ticket, now: int) -> bool:
    """Whether a ticket has a position: it asks, or would if a worker had a hand for it."""
    return not ticket.away or (ticket.job and not ticket.held and ticket.not_before <= now)


def _aside(state: State, ticket: Ticket, now: int) -> Reason:
    if ticket.job:
        return reason_of_job(state, state.queue(ticket.spec), now, ticket)
    return Reason("passed_over", "a seat was offered and not taken; it keeps its place until its process speaks")


class _Line:
    """Positions, worked out once for each set of queues that stand at the same pool.

    With `jobs`, those that no worker has offered to run yet are among them, at the places that they keep.
    """

    def __init__(self, state: State, now: int, *, jobs: bool = False) -> None:
        self.state = state
        self.now = now
        self.by_queue: dict[Spec, list[Ticket]] = {}
        for ticket in state.tickets.values():
            if not ticket.away or (jobs and _takes_part(ticket, now)):
                self.by_queue.setdefault(ticket.spec, []).append(ticket)
        self.blocking = {spec: _blocking(state.queue(spec), now) for spec in self.by_queue}
        self.places: dict[tuple[str, frozenset[str]], dict[str, int]] = {}

    def views(self, queue: Queue) -> list[TicketView]:
        blocking = self.blocking[queue.spec]
        reason = reason_for(self.state, queue, self.now)
        at = blocking[0] if blocking else next(iter(queue.pools), None)
        own = self.by_queue[queue.spec]
        if at is not None:
            places = self.places_at(at, frozenset(pool.key for pool in blocking))
        else:  # jobs that need nothing but a worker
            in_order = sorted(own, key=lambda ticket: (ticket.order, ticket.arrival))
            places = {ticket.id: place for place, ticket in enumerate(in_order, 1)}
        of_jobs = reason_of_job(self.state, queue, self.now)
        views = []
        for ticket in own:
            position = places.get(ticket.id, 1)
            known = None if reason.code == "usage_gate" else _estimate(at, position, self.now)  # it is not up to us
            why = of_jobs if ticket.away else reason
            views.append(TicketView(ticket, position, why, None if why.code == "no_worker" else known))
        return views

    def places_at(self, at: Pool, blocking: frozenset[str]) -> dict[str, int]:
        """Positions of all who would enter `at` if only what blocks here gave way."""
        known = self.places.get((at.key, blocking))
        if known is not None:
            return known
        flows: dict[str, list[Ticket]] = {}
        for spec, tickets in self.by_queue.items():
            queue = self.state.queue(spec)
            held_back = any(pool.key not in blocking for pool in self.blocking[spec])
            if not held_back and any(pool is at for pool in queue.pools):
                flows.setdefault(queue.flow, []).extend(tickets)
        places = {ident: place for place, ident in enumerate(_fair_order(self.state, at, flows), 1)}
        self.places[at.key, blocking] = places
        return places


def _fair_order(state: State, pool: Pool, flows: dict[str, list[Ticket]]) -> list[str]:
    """Ids in the order in which a pool would serve these tickets: fair between flows, by age within."""
    order: list[str] = []
    heads: list[tuple[int, int, int, str, int]] = []
    for flow, tickets in flows.items():
        tickets.sort(key=lambda ticket: (ticket.order, ticket.arrival))
        first = tickets[0]
        start = pool.share(flow).start
        heads.append((-1 if first.order < 0 else start, first.order, first.arrival, flow, 0))
    starts = {flow: pool.share(flow).start for flow in flows}
    heapify(heads)
    while heads:
        _, _, _, flow, index = heads[0]
        tickets = flows[flow]
        ticket = tickets[index]
        order.append(ticket.id)
        starts[flow] += state.expected_hold_ms(ticket.spec) * ticket.spec.seats
        if index + 1 == len(tickets):
            heappop(heads)
        else:
            after = tickets[index + 1]
            start = -1 if after.order < 0 else starts[flow]
            heapreplace(heads, (start, after.order, after.arrival, flow, index + 1))
    return order


def _blocking(queue: Queue, now: int) -> list[Pool]:
    """The pools that hold this queue back, by its preferred candidate; the narrowest first."""
    seats = queue.spec.seats
    return [pool for pool, own in queue.preferred.needs if pool.blocks(seats, own, queue, now)]


def _estimate(pool: Pool | None, position: int, now: int) -> tuple[int, int] | None:
    if pool is None or not pool.holds or pool.limit >= UNLIMITED:
        return None
    paused = max(pool.paused_until - now, 0)
    if paused > 10**11:
        return None  # until somebody resumes it
    low = max(pool.hold_mean_ms - pool.hold_dev_ms, 0) + pool.cap.cooldown_ms
    high = pool.hold_mean_ms + pool.hold_dev_ms + pool.cap.cooldown_ms
    return (paused + position * low // pool.limit, paused + position * high // pool.limit)


def capacity(state: State, spec: Spec, now: int) -> Capacity:
    """SPEC A11: is it worth asking now?"""
    queue = state.queue(spec)
    needs = queue.preferred.needs
    free: int | None = None
    ample = True  # two or more free everywhere, or an idle cap of one
    for pool, own in needs:
        limit = limit_of(pool, own)
        if limit is None:
            continue
        room = 0 if now < pool.paused_until else max(limit - pool.occupied(now), 0)
        free = room if free is None else min(free, room)
        ample = ample and (room >= 2 or (room == 1 and limit == 1))
    blocking = _blocking(queue, now)
    # The line that counts is of those who would enter first: not of those whom something else holds back (SPEC A3).
    line, keys = _Line(state, now), frozenset(pool.key for pool in blocking)
    queued = max((len(line.places_at(pool, keys)) for pool, _ in needs), default=0)
    if free is None:
        return Capacity("green", None, 0, (0, 0), None)
    wait: tuple[int, int] | None = (
        (0, 0) if not blocking and not queued else _estimate(blocking[0] if blocking else needs[0][0], queued + 1, now)
    )
    reason = reason_for(state, queue, now) if blocking or queued else None
    if not queued and ample:
        level = "green"
    elif free == 1 or (wait is not None and wait[1] <= YELLOW_WAIT_MS):
        level = "yellow"
    else:
        level = "red"
    return Capacity(level, free, queued, wait, reason)
