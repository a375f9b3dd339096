"""Export of a state as a snapshot, and its restoration (core/state/snapshot_format.py has the format)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import astuple, replace

from fleetgate.core.budgets.budget import Budget, Portion
from fleetgate.core.budgets.rules import rule_key
from fleetgate.core.limits import AdaptiveLimit
from fleetgate.core.limits.adaptive_state import Belief, Call
from fleetgate.core.plans.window import PlanWindow
from fleetgate.core.pools.fair_share import FairShare
from fleetgate.core.pools.pool import Pool
from fleetgate.core.pools.usage_gate import UsageGate
from fleetgate.core.state.snapshot_format import (
    FORMAT,
    BeliefRecord,
    BudgetRecord,
    CallRecord,
    PlanRecord,
    PoolRecord,
    ShareRecord,
    Snapshot,
    UpstreamRecord,
)

if TYPE_CHECKING:
    from fleetgate.core.state.state import State

_NOTHING_LEARNED = BeliefRecord(lag_ms=Belief().lag_ms)


def export_state(state: State, now: int) -> Snapshot:
    """What of a state cannot be derived, as of `now`."""
    return Snapshot(
        seq=state.seq,
        at=state.at,
        format=FORMAT,
        file_path=state.file_path,
        file_digest=state.file_digest,
        file_modified=state.file_modified,
        seniority_ms=state.seniority_ms,
        file_rules=[rule for _, rule in sorted(state.rules.file.items())],
        runtime_rules=[rule for _, rule in sorted(state.rules.runtime.items())],
        seen=sorted(state.rules.seen),
        tickets=sorted(state.tickets.values(), key=lambda ticket: (ticket.order, ticket.arrival)),
        leases=sorted(map(replace, state.leases.values()), key=lambda lease: lease.granted_seq),
        pools=[record for _, pool in sorted(state.pools.items()) if (record := _record(pool, now)) is not None],
        arrivals=state.arrivals,
        front=state.front,
        holds=dict(sorted(state.holds.items())),
        foreign=dict(sorted(state.foreign.items())),
        auto_caps=dict(sorted(state.auto_caps.items())),
        reserved=dict(sorted(state.reserved.items())),
        backoffs=[replace(backoff) for _, backoff in sorted(state.backoffs.items())],
        chosen={role: dict(sorted(models.items())) for role, models in sorted(state.chosen.items())},
        draining=dict(sorted(state.draining.items())),
        recovers_until=state.recovers_until,
        recovers_since=state.recovers_since,
        file_budgets=[rule for _, rule in sorted(state.budget_rules.file.items())],
        runtime_budgets=[(*key, state.budget_rules.runtime[key]) for key in sorted(state.budget_rules.runtime)],
        provider_rates={model: dict(rates) for model, rates in sorted(state.budget_rules.provider.items())},
        zone=state.zone,
        budgets=_budget_records(state, now),
        token_ratios=dict(state.estimates.ratios),
        call_outputs={key: list(outputs) for key, outputs in state.estimates.outputs.items()},
        run_usages={key: list(runs) for key, runs in state.estimates.runs.items()},
        usage_hour=state.usage.hour,
        usage_rows=state.usage.rows(),
        preempt_after_ms=state.preempt_after_ms,
        weights=dict(sorted(state.rules.weights.items())),
        access_keys=[key for _, key in sorted(state.access_keys.items())],
        file_plans=[rule for _, rule in sorted(state.plans.rules.file.items())],
        plan_windows=[_plan_record(window) for _, window in sorted(state.plans.windows.items())],
        account_sets=[rule for _, rule in sorted(state.accounts.rules.items())],
        homes=state.accounts.homes.export(),
        ramps=state.accounts.export_ramps(now),
    )


def restore_state(state: State, snapshot: Snapshot) -> None:
    """Make a new state the one that export_state this snapshot."""
    state.seq, state.at = snapshot.seq, snapshot.at
    state.file_path, state.file_digest = snapshot.file_path, snapshot.file_digest
    state.file_modified, state.seniority_ms = snapshot.file_modified, snapshot.seniority_ms
    state.rules.file = {(rule.kind, rule.selector): rule for rule in snapshot.file_rules}
    state.rules.runtime = {(rule.kind, rule.selector): rule for rule in snapshot.runtime_rules}
    state.rules.seen = dict.fromkeys(snapshot.seen)
    state.rules.weights.update(snapshot.weights)
    state.rules.merge()
    state.tickets.update((ticket.id, ticket) for ticket in snapshot.tickets)
    state.leases.update((lease.id, replace(lease)) for lease in snapshot.leases)
    for ticket in [*snapshot.tickets, *(lease.ticket for lease in snapshot.leases)]:
        state.take_keys(ticket)
    state.arrivals, state.front = snapshot.arrivals, snapshot.front
    state.holds, state.foreign = dict(snapshot.holds), dict(snapshot.foreign)
    state.auto_caps = dict(snapshot.auto_caps)
    state.backoffs = {backoff.key: replace(backoff) for backoff in snapshot.backoffs}
    state.chosen = {role: dict(models) for role, models in snapshot.chosen.items()}
    state.recovers_until, state.recovers_since = snapshot.recovers_until, snapshot.recovers_since
    state.draining = dict(snapshot.draining)
    _restore_budgets(state, snapshot)
    _restore_plans(state, snapshot)
    state.access_keys = {key.name: key for key in snapshot.access_keys}
    state.accounts.restore(snapshot.account_sets, snapshot.homes, snapshot.ramps)
    for record in snapshot.pools:
        _restore_pool(state, record)
    state.cap_events.attach()
    for record in snapshot.pools:
        _restore_usage(state, record)
    for ident, keys in snapshot.reserved.items():
        state.reservations.reserve(state.tickets[ident], keys)


def _restore_pool(state: State, record: PoolRecord) -> None:
    pool = state.named(record.kind, record.pool)
    if pool is None:
        return  # no cap makes it any more
    pool.cooldown.restore(record.cooling)
    pool.paused_until, pool.pause_cause = record.paused_until, record.pause_cause
    pool.incident_seq, pool.limiter.reduced = record.incident_seq, record.reduced
    _restore_shares(pool.shares, record.virtual, record.shares)
    pool.shares.tokens, pool.shares.token_ms = record.tokens, record.token_ms
    pool.shares.tokens_at = record.tokens_at
    times = pool.hold_times
    times.count, times.mean_ms, times.deviation_ms = record.holds, record.hold_mean_ms, record.hold_dev_ms
    if pool.limiter.adaptive is not None and record.adapt is not None:
        pool.limiter.adaptive = AdaptiveLimit(_believed(record.adapt))
        pool.refresh()


def _restore_budgets(state: State, snapshot: Snapshot) -> None:
    rules, estimates = state.budget_rules, state.estimates
    rules.file = {rule_key(rule): rule for rule in snapshot.file_budgets}
    rules.runtime = {(selector, unit, per): rule for selector, unit, per, rule in snapshot.runtime_budgets}
    rules.provider = {model: dict(rates) for model, rates in snapshot.provider_rates.items()}
    rules.merge()
    state.zone = snapshot.zone
    estimates.ratios = dict(snapshot.token_ratios)
    estimates.outputs = {key: list(outputs) for key, outputs in snapshot.call_outputs.items()}
    estimates.runs = {key: list(runs) for key, runs in snapshot.run_usages.items()}
    state.usage.restore(snapshot.usage_hour, snapshot.usage_rows)
    for record in snapshot.budgets:
        budget = state.budget_events.named(record.budget)
        if budget.rate is not None:
            budget.rate.restore(record.level, record.level_at)
        else:
            assert budget.window is not None
            budget.window.used, budget.window.ends_at = record.used, record.ends_at
            budget.window.extras = list(record.extras)
        budget.reached = record.reached
        budget.recount(
            {ident: Portion(*held[:3], -held[3], -held[4]) for ident, held in record.held.items()}, snapshot.at
        )
        _restore_shares(budget.shares, record.virtual, record.shares)


def _restore_plans(state: State, snapshot: Snapshot) -> None:
    state.preempt_after_ms = snapshot.preempt_after_ms
    state.plans.rules.file = {rule.account: rule for rule in snapshot.file_plans}
    for record in snapshot.plan_windows:
        window = state.plans.add(record.account, record.window, record.family)
        window.used_then, window.resets_at, window.length_ms = record.used, record.resets_at, record.length_ms
        window.seen_at, window.pace_opens_at, window.warned = record.seen_at, record.pace_opens_at, record.warned
        window.samples = list(record.samples)
        window.burn.restore(record.burn)


def _plan_record(window: PlanWindow) -> PlanRecord:
    return PlanRecord(
        window.account,
        window.window,
        window.used_then,
        window.resets_at,
        window.length_ms,
        window.seen_at,
        window.family,
        window.pace_opens_at,
        window.warned,
        list(window.samples),
        window.burn.export(),
    )


def _budget_records(state: State, now: int) -> list[BudgetRecord]:
    records = [_budget_record(budget, now) for _, budget in sorted(state.budgets.items())]
    return [record for record in records if record is not None]


def _budget_record(budget: Budget, now: int) -> BudgetRecord | None:
    """What of a budget cannot be derived; None when that is nothing."""
    record = BudgetRecord(budget.id)
    for ident, held in sorted(budget.held.items()):
        record.held[ident] = (
            held.amount,
            held.window,
            held.drawn,
            budget.taken - held.taken,
            budget.returned - held.returned,
        )
    record.virtual, record.shares = budget.shares.virtual, _share_records(budget.shares)
    if budget.rate is not None:
        record.level, record.level_at = budget.rate.export(now)
        is_full = budget.rate.free(now) >= budget.rate.burst
    else:
        window = budget.window
        assert window is not None
        if now < window.ends_at:
            record.used, record.ends_at, record.reached = window.used, window.ends_at, budget.reached
        record.extras = [extra for extra in window.extras if now < extra[0]]
        is_full = not record.used and not record.extras
    has_more = record.held or record.shares or record.virtual or record.ends_at
    return None if is_full and not has_more else record


def _restore_usage(state: State, record: PoolRecord) -> None:
    pool = state.named(record.kind, record.pool)
    if pool is not None and record.upstream is not None:
        for name in record.upstream.__struct_fields__:
            setattr(pool.usage_gate, name, getattr(record.upstream, name))


def _record(pool: Pool, now: int) -> PoolRecord | None:
    """What of a pool cannot be derived; None when that is nothing."""
    pool.occupied(now)
    paused = pool.paused_until > now
    if pool.is_of_session:  # how it was shared and how long its calls took is of no use to the next one
        return PoolRecord(pool.kind, pool.id, paused_until=pool.paused_until) if paused else None
    record = PoolRecord(
        kind=pool.kind,
        pool=pool.id,
        cooling=sorted(pool.cooldown.heap),
        paused_until=pool.paused_until if paused else 0,
        pause_cause=pool.pause_cause if paused else "",
        incident_seq=pool.incident_seq,
        reduced=pool.limiter.reduced,
        virtual=pool.shares.virtual,
        shares=_share_records(pool.shares),
        holds=pool.hold_times.count,
        hold_mean_ms=pool.hold_times.mean_ms,
        hold_dev_ms=pool.hold_times.deviation_ms,
        upstream=_usage_record(pool.usage_gate),
        tokens=pool.shares.tokens,
        token_ms=pool.shares.token_ms,
        tokens_at=pool.shares.tokens_at,
        adapt=belief_record(pool.limiter.adaptive.belief) if pool.limiter.adaptive is not None else None,
    )
    return None if record == PoolRecord(pool.kind, pool.id) else record


def _share_records(shares: FairShare) -> dict[str, ShareRecord]:
    return {
        project: ShareRecord(share.start, share.debit, share.latest, share.latest_at)
        if share.waiting
        else ShareRecord(share.start, share.debit, 0, 0)
        for project, share in sorted(shares.projects.items())
        if share.waiting or share.debit or share.start > shares.virtual
    }


def _restore_shares(shares: FairShare, virtual: int, records: dict[str, ShareRecord]) -> None:
    shares.virtual = virtual
    for project, record in records.items():
        own = shares.of(project)
        own.start, own.debit = record.start, record.debit
        own.latest, own.latest_at = record.latest, record.latest_at


def _usage_record(gate: UsageGate) -> UpstreamRecord | None:
    record = UpstreamRecord(**{name: getattr(gate, name) for name in UpstreamRecord.__struct_fields__})
    return None if record == UpstreamRecord() else record


def belief_record(belief: Belief) -> BeliefRecord | None:
    record = BeliefRecord(**{name: getattr(belief, name) for name in BeliefRecord.__struct_fields__})
    record.freed, record.rejected = list(belief.freed), list(belief.rejected)
    record.calls = {
        ident: CallRecord(*[getattr(call, name) for name in CallRecord.__struct_fields__])
        for ident, call in belief.calls.items()
    }
    return None if record == _NOTHING_LEARNED else record


def _believed(record: BeliefRecord) -> Belief:
    belief = Belief()
    for name in BeliefRecord.__struct_fields__:
        setattr(belief, name, getattr(record, name))
    belief.freed, belief.rejected = list(record.freed), list(record.rejected)
    belief.calls = {ident: Call(*astuple(call)) for ident, call in record.calls.items()}
    return belief
