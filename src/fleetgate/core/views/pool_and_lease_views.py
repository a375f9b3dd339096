"""Views of pools, leases, tickets and capacity, for people and programs. Reads only; times are log times."""

from __future__ import annotations

from msgspec import Struct

from fleetgate.core.accounts.choice import in_order
from fleetgate.core.entities import INTERACTIVE, Lease, Reason, Spec
from fleetgate.core.pools.effective_caps import UNLIMITED
from fleetgate.core.pools.pool import Pool
from fleetgate.core.queue.positions import QueueView, estimate, jobs_at, pace_of, tickets_waiting, waiting_at
from fleetgate.core.queue.positions import TicketView as TicketView
from fleetgate.core.queue.queue import Candidate, Queue
from fleetgate.core.state.state import State
from fleetgate.core.views.plan_views import dry_window
from fleetgate.core.views.wait_reasons import limit_of, reason_for

YELLOW_WAIT_MS = 60_000  # rule A11


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
    kept: int  # slots for interactive work
    lendable: bool  # others may use them while no interactive request waits
    upstream: UpstreamView | None = None

    @property
    def restore(self) -> str | None:
        """The command that undoes an automatic reduction."""
        if not self.auto_reduced:
            return None
        return f"fleetgate cap set '{self.selector}' {self.auto_reduced_from} --kind {self.kind}"

    @property
    def notice(self) -> str | None:
        """What a person should know about this pool (rule P3)."""
        if not self.auto_reduced:
            return None
        text = f"auto-reduced to {self.limit} after a rate limit (cap {self.auto_reduced_from})"
        if self.on_429 == "adapt":
            return f"{text}: it recovers automatically (`fleetgate explain {self.pool}`)"
        return f"{text}: restore with `{self.restore}`"


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
    model: str = ""  # the candidate that it would use


def pool_views(state: State, now: int, host: str = "") -> list[PoolView]:
    """Every capped pool; caps of `host` and of default accounts before any traffic, and sessions only while full."""
    _make_listed(state, host)
    waiting = tickets_waiting(state, now)
    views = [_pool_view(pool, waiting.get(pool.key, 0), now) for pool in state.pools.values() if _listed(pool)]
    return sorted(views, key=lambda view: (view.kind, view.pool))


def lasting_pool_views(state: State, now: int, host: str = "") -> list[PoolView]:
    """The pools that are worth a series of their own: those of sessions come and go."""
    return [view for view in pool_views(state, now, host) if view.selector != "session"]


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
    if pool.is_of_session:  # there may be hundreds: only those matter that are at their limit
        return pool.used >= pool.limit or pool.shares.is_awaited or bool(pool.paused_until)
    shadowed = pool.cap.source == "built-in" and pool.cap.selector.scope == "model" and not pool.used
    return not shadowed or bool(pool.paused_until) or pool.shares.is_awaited


def _pool_view(pool: Pool, queued: int, now: int) -> PoolView:
    pool.occupied(now)
    cap = pool.configured_cap
    return PoolView(
        pool=pool.id,
        kind=pool.kind,
        selector=pool.cap.selector.text,
        account=pool.account,
        host=pool.host,
        cap=cap,
        limit=None if pool.limit >= UNLIMITED else pool.limit,
        in_flight=pool.used,
        cooling=pool.cooldown.slots,
        foreign=pool.foreign,
        queued=queued,
        paused_until=pool.paused_until if pool.paused_until > now else None,
        pause_cause=pool.pause_cause if pool.paused_until > now else "",
        cooldown_ms=pool.cooldown_ms,
        on_429=pool.cap.on_429,
        auto=pool.cap.auto,
        auto_reduced=pool.limiter.is_reduced,
        auto_reduced_from=cap if pool.limiter.is_reduced else None,
        source=pool.cap.source,
        name=pool.cap.name,
        reserved=pool.reservation is not None,
        kept=pool.cap.held_back(pool.limit),
        lendable=pool.cap.lendable,
        upstream=_upstream_view(pool) if pool.cap.usage_gate else None,
    )


def _upstream_view(pool: Pool) -> UpstreamView:
    upstream = pool.usage_gate
    return UpstreamView(upstream.count, upstream.answered_at or None, upstream.error, upstream.asked_by)


def lease_views(state: State, now: int) -> list[LeaseView]:
    """Every lease, the oldest first."""
    leases = sorted(state.leases.values(), key=lambda lease: lease.granted_seq)
    return [
        LeaseView(lease, [pool.id for pool, _ in state.lease_candidates[lease.id].needs], now - lease.granted_at)
        for lease in leases
    ]


def ticket_views(state: State, now: int) -> list[TicketView]:
    """The whole queue, by position."""
    return QueueView(state, now).page()


def ticket_view(state: State, ident: str, now: int) -> TicketView | None:
    """One ticket's place; None when it is not in the queue."""
    ticket = state.tickets.get(ident)
    return None if ticket is None else QueueView(state, now, ticket.spec).view(ticket)


def capacity(state: State, spec: Spec, now: int) -> Capacity:
    """What a request made now would meet, by the candidate that it would take (rule A11)."""
    queue = state.queue(spec)
    tried = state.candidates_to_try(queue, now)
    if not tried:  # every candidate is backed off, or the host is drained
        return _closed(state, queue, now)
    if queue.has_sets:
        tried = tuple(sorted(in_order(tried, now), key=lambda each: _how_shut(each, queue, now)))
    candidate = next((each for each in tried if not each.is_paused(now)), tried[0])
    needs = candidate.needs
    if candidate.closed_plan(spec.work_class, now) is not None:
        return _closed(state, queue, now)
    free, ample = _free(candidate, now)
    alike = [candidate]
    if queue.has_sets:  # what is free in all accounts that have room
        alike = [each for each in tried if each.group == candidate.group]
        rooms = [_free(each, now)[0] for each in alike if each.closed_plan(spec.work_class, now) is None]
        free = None if None in rooms else sum(room for room in rooms if room is not None)
        ample = ample or (free is not None and free >= 2)
    held_by = [pool for pool, own in needs if pool.blocks(spec.slots, own, queue, now)]
    # Only tickets count that would enter first, not those that something else holds back (rule A3).
    shut = [need for each in alike for need in each.needs] if held_by else []
    blocks = frozenset(pool.key for pool, own in shut if pool.blocks(spec.slots, own, queue, now))
    queued = max((waiting_at(state, pool, blocks, now) for pool, _ in needs), default=0)
    jobs = max((jobs_at(state, pool, blocks, now) for pool, _ in needs), default=0)
    wait: tuple[int, int] | None = (0, 0)
    if held_by or queued:
        wait = estimate(pace_of(held_by[0] if held_by else needs[0][0], now), queued + 1)
    reason = None
    if held_by or queued:
        reason = reason_for(state, queue, now)
    elif jobs:
        reason = Reason(
            "behind",
            "1 job waits for a worker" if jobs == 1 else f"{jobs} jobs wait for a worker",
            model=candidate.model,
        )
    dry = None if spec.work_class == INTERACTIVE else dry_window(state, candidate.name, now)
    if dry is not None:
        return Capacity("red", free, queued + jobs, wait, dry, candidate.model)
    if not queued and not jobs and ample:
        level = "green"
    elif free == 1 or (wait is not None and wait[1] <= YELLOW_WAIT_MS):
        level = "yellow"
    else:
        level = "red"
    return Capacity(level, free, queued + jobs, wait, reason, candidate.model)


def _free(candidate: Candidate, now: int) -> tuple[int | None, bool]:
    """How many slots are free, None without a cap; and whether that is ample: two or more, or an idle cap of one."""
    free: int | None = None
    ample = True
    for pool, own in candidate.needs:
        limit = limit_of(pool, own)
        if limit is None:
            continue
        room = 0 if now < pool.paused_until else max(limit - pool.occupied(now), 0)
        free = room if free is None else min(free, room)
        ample = ample and (room >= 2 or (room == 1 and limit == 1))
    return free, ample


def _how_shut(candidate: Candidate, queue: Queue, now: int) -> int:
    """0: an account of a set admits at once. 1: it has room, not yet for this. 2: it is full, or its plan is closed."""
    if candidate.closed_plan(queue.spec.work_class, now) is not None:
        return 2
    if not any(pool.blocks(queue.slots, own, queue, now) for pool, own in candidate.needs):
        return 0
    return 2 if _free(candidate, now)[0] == 0 else 1


def _closed(state: State, queue: Queue, now: int) -> Capacity:
    """No request like this is admitted: for how long, and why."""
    reason = reason_for(state, queue, now)
    wait = None if reason.until is None else (reason.until - now, reason.until - now)
    level = "yellow" if wait is not None and wait[1] <= YELLOW_WAIT_MS else "red"
    return Capacity(level, 0, queue.waiting, wait, reason)
