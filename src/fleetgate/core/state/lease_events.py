"""Events about leases: what a grant, its end and its return change in pools, budgets and the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from fleetgate.core import events as ev
from fleetgate.core.entities import Lease, Ticket
from fleetgate.core.events import Released
from fleetgate.core.usage import ESTIMATE

if TYPE_CHECKING:
    from fleetgate.core.queue.queue import Candidate
    from fleetgate.core.state.state import State


class LeaseEvents:
    """Applies them to one state."""

    def __init__(self, state: State) -> None:
        self._state = state

    def granted(self, event: ev.Granted, at: int) -> None:
        state = self._state
        ident, model, charge_ms = event.id, event.model, event.charge_ms
        new = event.ticket
        ticket = state.pop_ticket(ident) if new is None else new
        queue = state.queue(ticket.spec)
        candidate = queue.by_model.get(model) or state.candidate_of_lease(ticket.spec, model)
        state.lease_candidates[ident] = candidate
        state.leases[ident] = Lease(
            ticket, model, at, state.seq, event.claimed, "", charge_ms, event.ends_at, event.waited_ms
        )
        for pool, _ in candidate.needs:
            pool.grant_slots(ident, queue.slots, queue.project, charge_ms, ticket.order, at)
        if candidate.budgets:
            state.budget_events.reserve(ticket, candidate, at)
        if candidate.member is not None:
            self._use_home(ticket, candidate, at)
        if new is None:
            state.leave_queue(ticket, queue)
        else:
            state.take_keys(new)
            state.arrivals = max(state.arrivals, new.arrival)
        for key in event.probes:
            state.backoffs[key].probing = ident

    def _use_home(self, ticket: Ticket, candidate: Candidate, at: int) -> None:
        """The conversation of a request uses this account from now on (rule Z3)."""
        member = candidate.member
        assert member is not None
        if ticket.spec.home and ticket.spec.home != member.account:
            member.ramp.move(at)
        if ticket.conversation and member.sticky:
            member.homes.use(ticket.conversation, member.account, at)

    def claimed(self, event: ev.Claimed, at: int) -> None:
        state = self._state
        lease = state.leases[event.id]
        lease.claimed = True
        if event.child:
            lease.child = event.child

    def preempted(self, event: ev.Preempted, at: int) -> None:
        self._state.leases[event.id].gives_way_to = event.ticket

    def stop_requested(self, event: ev.StopRequested, at: int) -> None:
        self._state.leases[event.id].stop_by = event.by

    def renewed(self, event: ev.Renewed, at: int) -> None:
        state = self._state
        lease = state.leases.get(event.id)
        old = lease.ticket if lease is not None else state.tickets[event.id]
        new = replace(old, renew_by=event.until, holder=event.holder or old.holder, wake=event.wake or old.wake)
        if lease is not None:
            lease.ticket = new
        else:
            state.put(new)

    def returned(self, event: ev.Returned, at: int) -> None:
        state = self._state
        lease = state.leases.pop(event.id)
        candidate = state.lease_candidates.pop(event.id)
        spec = lease.ticket.spec
        state.backoff_events.probe_over(event.id)
        ticket = state.job_events.without_worker(lease.ticket) if lease.ticket.job else replace(lease.ticket, away=True)
        ticket = state.backoff_events.timed(ticket, at)
        state.put(ticket)
        if ticket.job:
            state.waiting_jobs.put(ticket, at)
        for pool, _ in candidate.needs:
            pool.undo_grant(event.id, spec.slots, spec.project, lease.charge_ms, at)
            pool.usage_gate.freed(at, 0)
            state.recheck_pool(pool)
        state.budget_events.give_back(lease.ticket, candidate, at)

    def lease_ended(self, event: ev.Released | ev.Reclaimed, at: int) -> None:
        state = self._state
        ident, held_ms = event.id, event.held_ms
        lease = state.leases.pop(ident)
        ticket = lease.ticket
        spec = ticket.spec
        if ticket.key or ticket.session:
            state.drop_keys(ticket)
        if state.backoffs:
            state.backoff_events.probe_over(ident)
        slots, project = spec.slots, spec.project
        usage, tokens = event.usage, 0
        if usage is not None and spec.kind == "requests" and usage.source != ESTIMATE:
            tokens = usage.tokens + usage.output  # output counts double (rule W6)
        outcome = event.outcome if type(event) is Released else "reclaimed"
        candidate = state.lease_candidates.pop(ident)
        for pool, _ in candidate.needs:
            pool.release_slots(ident, slots, project, lease.charge_ms, held_ms, outcome, at, tokens)
            if (pool.parking.lots or pool.reservation is not None) and not pool.stays_full(at):
                state.recheck_pool(pool)
        if candidate.budgets or event.usage is not None or event.total is not None:
            state.budget_events.lease_ended(lease, candidate, event.usage, event.total, at)
        holds, key = state.holds, candidate.hold_key
        known = holds.get(key)
        holds[key] = held_ms if known is None else known + (held_ms - known) // 8
