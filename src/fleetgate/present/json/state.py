"""The JSON of the state (rules O1 to O5). Values that do not apply are null; keys are only ever added."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

from fleetgate.core import entities
from fleetgate.core.entities import NORMAL
from fleetgate.core.model_names import account_name
from fleetgate.core.pools.backoff import Backoff
from fleetgate.core.state.state import State
from fleetgate.core.views.pool_and_lease_views import Capacity, LeaseView, PoolView, TicketView, UpstreamView
from fleetgate.gate.liveness import process_identity
from fleetgate.present.budgets.plan_windows import PlanShape
from fleetgate.present.json.usage import SpentShape, budget_amount, usage_json
from fleetgate.present.lease_owner import why_not_to_stop
from fleetgate.present.log_time import LogTimes
from fleetgate.present.request_text import command_of

Time = Annotated[str, Meta(description="RFC 3339, in UTC", extra_json_schema={"format": "date-time"})]
Range = Annotated[list[float], Meta(description="low and high, in seconds", min_length=2, max_length=2)]


class ProcessShape(Struct):
    """A process, by the number that its own host gives it."""

    host: str
    pid: int | None


class ReasonShape(Struct):
    """Why a request waits or was refused: `code` is for programs, `text` for people."""

    code: str
    text: str
    pool: str | None
    pools: list[str]
    until: Time | None
    in_flight: int | None
    limit: int | None
    model: str | None
    cause: str | None
    budget: str | None = None
    left: float | None = None  # of that budget; usd: dollars
    window: str | None = None  # the plan window that is kept for other work
    used_percent: float | None = None  # of that window
    resets_at: Time | None = None  # that window


class UpstreamShape(Struct):
    """What the provider itself said, and when."""

    in_flight: int | None
    at: Time | None
    error: str | None
    asking: ProcessShape | None


class PoolShape(Struct):
    """A pool (rule O1). A pause without an end has no `paused_until`: hence `paused`."""

    pool: str
    kind: str
    selector: str
    account: str | None
    host: str | None
    cap: int | None
    limit: int | None
    in_flight: int
    cooling: int
    foreign: int
    queued: int
    paused: bool
    paused_until: Time | None
    pause_cause: str | None
    cooldown_ms: int
    on_429: str
    auto: bool
    auto_reduced: bool
    auto_reduced_from: int | None
    notice: str | None
    upstream: UpstreamShape | None
    source: str | None
    name: str | None
    reserved: bool
    kept: int = 0  # slots kept for interactive work
    lendable: bool = False  # others may use them while no interactive request waits


class BackoffShape(Struct):
    """A backoff (rule O1)."""

    key: str
    scope: str
    reason: str
    until: Time | None
    evidence: str | None
    since: Time | None
    manual: bool
    probe_at: Time | None
    probing: str | None
    ends_with_credential: bool


class AccountSetShape(Struct):
    """Accounts of a provider that requests without an account use as one (rule Z1)."""

    provider: str
    use: list[str]
    then: list[str]
    choose: str
    sticky: str
    patience_s: float
    conversations: dict[str, int]  # by account: how many it is the home of


class StatusShape(Struct):
    """The answer of `fleetgate status --json` (rule O1)."""

    pools: list[PoolShape]
    backoffs: list[BackoffShape]
    running: int
    waiting: int
    at: Time | None
    seq: int
    draining: list[str]  # hosts on which no new agents start
    plans: list[PlanShape] = []  # the windows of subscriptions that were seen
    account_sets: list[AccountSetShape] = []  # accounts that requests use as one


class TicketShape(Struct):
    """A waiting request (rule O2)."""

    id: str
    position: int
    models: list[str]
    kind: str
    slots: int
    priority: int
    project: str
    since: Time | None
    queued_at: Time | None
    expires_at: Time | None
    reason: ReasonShape
    estimate_s: Range | None
    holder: ProcessShape | None
    command: str | None
    any: bool
    key: str | None
    role: str | None
    gone: bool | None
    client: str | None
    of: int | None  # how many have a position for `pool`
    pool: str | None  # what the position is for: a pool, or a model that is backed off
    work_class: str = field(default=NORMAL, name="class")
    name: str | None = None
    session: str | None = None  # of a call through the proxy: the session of the agent that makes it
    access_key: str | None = None  # the name of the access key that it was requested with
    home: str | None = None  # the account of a set that its conversation uses
    accounts: list[str] = field(default_factory=list)  # of a set, those that it may use


class LeaseShape(Struct):
    """A lease (rule O3). One with a `client` lives by its renewals, the others as long as `lives_with`."""

    id: str
    model: str | None
    kind: str
    slots: int
    pools: list[str]
    holder: ProcessShape | None
    child_pid: int | None
    command: str | None
    granted_at: Time | None
    age_s: float
    project: str
    claimed: bool
    lives_with: ProcessShape | None
    gone: bool | None
    ends_at: Time | None
    waited_s: float
    key: str | None
    role: str | None
    client: str | None
    renew_by: Time | None
    usage: SpentShape | None  # so far; null: nothing is known yet
    work_class: str = field(default=NORMAL, name="class")
    name: str | None = None
    session: str | None = None  # of a call through the proxy: the session of the agent that makes it
    job: bool = False  # /v1/jobs/{id} says more
    can_stop: bool = False  # POST /v1/leases/{id}/stop
    cannot_stop: str | None = None  # why not
    stop_by: str | None = None  # who requested that it is stopped
    output: str | None = None  # the path of what it prints, where that is kept
    access_key: str | None = None


class CapacityShape(Struct):
    """The free capacity (rule O4). `free` is null if there is no cap."""

    level: str
    free: int | None
    queued: int
    wait_s: Range | None
    reason: ReasonShape | None
    models: list[str]
    kind: str
    model: str | None = None  # the candidate that it would use


def pool_json(view: PoolView, moments: LogTimes) -> PoolShape:
    return PoolShape(
        pool=view.pool,
        kind=view.kind,
        selector=view.selector,
        account=view.account or None,
        host=view.host or None,
        cap=view.cap,
        limit=view.limit,
        in_flight=view.in_flight,
        cooling=view.cooling,
        foreign=view.foreign,
        queued=view.queued,
        paused=view.paused_until is not None,
        paused_until=moments.utc(view.paused_until),
        pause_cause=view.pause_cause or None,
        cooldown_ms=view.cooldown_ms,
        on_429=view.on_429,
        auto=view.auto,
        auto_reduced=view.auto_reduced,
        auto_reduced_from=view.auto_reduced_from,
        notice=view.notice,
        upstream=None if view.upstream is None else _upstream_json(view.upstream, moments),
        source=view.source or None,
        name=view.name or None,
        reserved=view.reserved,
        kept=view.kept,
        lendable=view.lendable,
    )


def _upstream_json(upstream: UpstreamView, moments: LogTimes) -> UpstreamShape:
    asking = process_json(upstream.asking) if upstream.asking else None
    return UpstreamShape(upstream.count, moments.utc(upstream.at), upstream.error or None, asking)


def backoff_json(backoff: Backoff, moments: LogTimes) -> BackoffShape:
    return BackoffShape(
        key=backoff.key,
        scope=backoff.scope,
        reason=backoff.reason,
        until=moments.utc(backoff.until),
        evidence=backoff.evidence or None,
        since=moments.utc(backoff.since),
        manual=backoff.manual,
        probe_at=moments.utc(backoff.probe_at),
        probing=backoff.probing or None,
        ends_with_credential=watches_credential(backoff),
    )


def watches_credential(backoff: Backoff) -> bool:
    """Whether it ends as soon as another credential is seen (rule B3)."""
    return backoff.reason == "auth" and bool(backoff.credential)


def ticket_json(view: TicketView, moments: LogTimes) -> TicketShape:
    ticket = view.ticket
    return TicketShape(
        id=ticket.id,
        position=view.position,
        models=list(ticket.spec.models),
        kind=ticket.spec.kind,
        slots=ticket.spec.slots,
        priority=ticket.priority,
        project=ticket.spec.project,
        since=moments.utc(ticket.since),
        queued_at=moments.utc(ticket.queued_at),
        expires_at=moments.utc(ticket.expires_at),
        reason=reason_json(view.reason, moments),
        estimate_s=seconds(view.estimate_ms),
        holder=process_json(ticket.holder),
        command=command_of(ticket) or None,
        any=ticket.spec.any_candidate,
        key=ticket.key or None,
        role=ticket.role or None,
        gone=None if ticket.renew_ms else moments.gone(ticket.holder),
        client=ticket.client or None,
        of=view.of or None,
        pool=view.pool or None,
        work_class=ticket.spec.work_class,
        name=ticket.name or None,
        session=ticket.spec.agent_session or None,
        access_key=ticket.spec.access_key or None,
        home=ticket.spec.home or None,
        accounts=list(view.accounts),
    )


def account_set_json(state: State, rule: entities.AccountSet) -> AccountSetShape:
    names = [*rule.use, *rule.then]
    numbers = state.accounts.homes.numbers
    homes = {name: numbers.get(account_name(rule.provider, name), 0) for name in names}
    return AccountSetShape(
        *(rule.provider, list(rule.use), list(rule.then), rule.choose, rule.sticky, rule.patience_ms / 1000, homes)
    )


def lease_json(view: LeaseView, moments: LogTimes) -> LeaseShape:
    lease = view.lease
    ticket = lease.ticket
    return LeaseShape(
        id=lease.id,
        model=lease.model or None,
        kind=ticket.spec.kind,
        slots=ticket.spec.slots,
        pools=view.pools,
        holder=process_json(ticket.holder),
        child_pid=process_identity.pid_of(lease.child),
        command=command_of(lease) or None,
        granted_at=moments.utc(lease.granted_at),
        age_s=view.age_ms / 1000,
        project=ticket.spec.project,
        claimed=lease.claimed,
        lives_with=process_json(lease.lives_with),
        gone=moments.gone(lease.lives_with),
        ends_at=moments.utc(lease.ends_at),
        waited_s=lease.waited_ms / 1000,
        key=ticket.key or None,
        role=ticket.role or None,
        client=ticket.client or None,
        renew_by=moments.utc(ticket.renew_by),
        usage=usage_json(lease.spent),
        work_class=ticket.spec.work_class,
        name=ticket.name or None,
        session=ticket.spec.agent_session or None,
        access_key=ticket.spec.access_key or None,
        job=ticket.job,
        can_stop=not (cannot_stop := why_not_to_stop(lease)),
        cannot_stop=cannot_stop or None,
        stop_by=lease.stop_by or None,
        output=f"/v1/jobs/{lease.id}/output" if ticket.job or ticket.log else None,
    )


def capacity_json(found: Capacity, spec: entities.Spec, moments: LogTimes) -> CapacityShape:
    return CapacityShape(
        level=found.level,
        free=found.free,
        queued=found.queued,
        wait_s=seconds(found.wait_ms),
        reason=None if found.reason is None else reason_json(found.reason, moments),
        models=list(spec.models),
        kind=spec.kind,
        model=found.model or None,
    )


def reason_json(reason: entities.Reason, moments: LogTimes) -> ReasonShape:
    return ReasonShape(
        code=reason.code,
        text=reason.text,
        pool=reason.pool or None,
        pools=reason.pools,
        until=moments.utc(reason.until),
        in_flight=reason.in_flight,
        limit=reason.limit,
        model=reason.model or None,
        cause=reason.cause or None,
        budget=reason.budget or None,
        left=None if reason.left is None else budget_amount(reason.budget, reason.left),
        window=reason.window or None,
        used_percent=None if reason.used is None else reason.used / 100,
        resets_at=moments.utc(reason.resets_at),
    )


def process_json(process: str) -> ProcessShape | None:
    if not process:
        return None
    return ProcessShape(process_identity.host_of(process), process_identity.pid_of(process))


def seconds(range_ms: tuple[int, int] | None) -> list[float] | None:
    return None if range_ms is None else [ms / 1000 for ms in range_ms]
