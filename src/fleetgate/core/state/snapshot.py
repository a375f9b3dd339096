"""Export of a state as a snapshot, and its restoration (core/state/snapshot_format.py has the format)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import astuple, replace

from fleetgate.core.limits import AdaptiveLimit
from fleetgate.core.limits.adaptive_state import Belief, Call
from fleetgate.core.pools.pool import Pool
from fleetgate.core.pools.usage_gate import UsageGate
from fleetgate.core.state.snapshot_format import (
    FORMAT,
    BeliefRecord,
    CallRecord,
    PoolRecord,
    ShareRecord,
    Snapshot,
    UpstreamRecord,
)

if TYPE_CHECKING:
    from fleetgate.core.state.state import State


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
    )


def restore_state(state: State, snapshot: Snapshot) -> None:
    """Make a new state the one that export_state this snapshot."""
    state.seq, state.at = snapshot.seq, snapshot.at
    state.file_path, state.file_digest = snapshot.file_path, snapshot.file_digest
    state.file_modified, state.seniority_ms = snapshot.file_modified, snapshot.seniority_ms
    state.rules.file = {(rule.kind, rule.selector): rule for rule in snapshot.file_rules}
    state.rules.runtime = {(rule.kind, rule.selector): rule for rule in snapshot.runtime_rules}
    state.rules.seen = dict.fromkeys(snapshot.seen)
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
    for record in snapshot.pools:
        _restore_pool(state, record)
    state.cap_events.attach()
    for record in snapshot.pools:
        _restore_usage(state, record)
    for ident, keys in snapshot.reserved.items():
        state.reserve(state.tickets[ident], keys)


def _restore_pool(state: State, record: PoolRecord) -> None:
    pool = state.named(record.kind, record.pool)
    if pool is None:
        return  # no cap makes it any more
    pool.cooldown.restore(record.cooling)
    pool.paused_until, pool.pause_cause = record.paused_until, record.pause_cause
    pool.incident_seq, pool.limiter.reduced, pool.shares.virtual = record.incident_seq, record.reduced, record.virtual
    for project, share in record.shares.items():
        own = pool.shares.of(project)
        own.start, own.debit = share.start, share.debit
        own.latest, own.latest_at = share.latest, share.latest_at
    times = pool.hold_times
    times.count, times.mean_ms, times.deviation_ms = record.holds, record.hold_mean_ms, record.hold_dev_ms
    if pool.limiter.adaptive is not None and record.adapt is not None:
        pool.limiter.adaptive = AdaptiveLimit(_believed(record.adapt))
        pool.refresh()


def _restore_usage(state: State, record: PoolRecord) -> None:
    pool = state.named(record.kind, record.pool)
    if pool is not None and record.upstream is not None:
        for name in record.upstream.__struct_fields__:
            setattr(pool.usage_gate, name, getattr(record.upstream, name))


def _record(pool: Pool, now: int) -> PoolRecord | None:
    """What of a pool cannot be derived; None when that is nothing."""
    pool.occupied(now)
    paused = pool.paused_until > now
    shares = {
        project: ShareRecord(share.start, share.debit, share.latest, share.latest_at)
        if share.waiting
        else ShareRecord(share.start, share.debit, 0, 0)
        for project, share in sorted(pool.shares.projects.items())
        if share.waiting or share.debit or share.start > pool.shares.virtual
    }
    record = PoolRecord(
        kind=pool.kind,
        pool=pool.id,
        cooling=sorted(pool.cooldown.heap),
        paused_until=pool.paused_until if paused else 0,
        pause_cause=pool.pause_cause if paused else "",
        incident_seq=pool.incident_seq,
        reduced=pool.limiter.reduced,
        virtual=pool.shares.virtual,
        shares=shares,
        holds=pool.hold_times.count,
        hold_mean_ms=pool.hold_times.mean_ms,
        hold_dev_ms=pool.hold_times.deviation_ms,
        upstream=_usage_record(pool.usage_gate),
        adapt=belief_record(pool.limiter.adaptive.belief) if pool.limiter.adaptive is not None else None,
    )
    return None if record == PoolRecord(pool.kind, pool.id) else record


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
    return None if record == BeliefRecord() else record


def _believed(record: BeliefRecord) -> Belief:
    belief = Belief()
    for name in BeliefRecord.__struct_fields__:
        setattr(belief, name, getattr(record, name))
    belief.freed, belief.rejected = list(record.freed), list(record.rejected)
    belief.calls = {ident: Call(*astuple(call)) for ident, call in record.calls.items()}
    return belief
