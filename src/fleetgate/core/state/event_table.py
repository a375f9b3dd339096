"""The table of what each kind of event changes in a state. The state itself adds the events of its queues.

This module is not compiled, unlike the state: it runs once for each state, and as C it would be 90 kB
(docs/decisions/0018).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fleetgate.core import events as ev
from fleetgate.core.state.access_key_events import AccessKeyEvents
from fleetgate.core.state.host_events import HostEvents
from fleetgate.core.state.lease_events import LeaseEvents
from fleetgate.core.state.limit_events import LimitEvents
from fleetgate.core.state.plan_events import PlanEvents

if TYPE_CHECKING:
    from fleetgate.core.state.state import State


def event_table(state: State) -> dict[type, Callable[[Any, int], None]]:
    rules, backoffs, jobs = state.cap_events, state.backoff_events, state.job_events
    budgets, reservations = state.budget_events, state.reservations
    leases, plans, keys = LeaseEvents(state), PlanEvents(state), AccessKeyEvents(state)
    pools, hosts = LimitEvents(state), HostEvents(state)
    return {
        ev.Deferred: _no_change,
        ev.Granted: leases.granted,
        ev.Claimed: leases.claimed,
        ev.Recovering: hosts.recovering,
        ev.Draining: hosts.draining,
        ev.DrainEnded: hosts.drain_ended,
        ev.Renewed: leases.renewed,
        ev.Returned: leases.returned,
        ev.Offered: jobs.offered,
        ev.Withdrawn: jobs.withdrawn,
        ev.Held: jobs.held,
        ev.Approved: jobs.approved,
        ev.JobEnded: _no_change,
        ev.Released: leases.lease_ended,
        ev.Settled: budgets.settled,
        ev.HourClosed: budgets.hour_closed,
        ev.Reclaimed: leases.lease_ended,
        ev.StopRequested: leases.stop_requested,
        ev.Preempted: leases.preempted,
        ev.Reserved: reservations.reserved,
        ev.RuleSet: rules.rule_set,
        ev.CapRemoved: rules.cap_removed,
        ev.CapReset: rules.cap_reset,
        ev.SelectorSeen: rules.selector_seen,
        ev.FileLoaded: rules.file_loaded,
        ev.BudgetSet: budgets.budget_set,
        ev.BudgetRemoved: budgets.removed,
        ev.BudgetUnset: budgets.unset,
        ev.BudgetReset: budgets.reset,
        ev.BudgetAdded: budgets.added,
        ev.BudgetReached: budgets.reached,
        ev.RatesObserved: budgets.rates_observed,
        ev.PlanObserved: plans.observed,
        ev.PlanRunway: plans.runway,
        ev.KeySet: keys.key_set,
        ev.KeyRemoved: keys.removed,
        ev.Observed: rules.observed,
        ev.Paused: pools.paused,
        ev.Resumed: pools.resumed,
        ev.Reduced: pools.reduced,
        ev.Accepted: pools.accepted,
        ev.Refused: pools.refused,
        ev.UsageAsked: pools.usage_asked,
        ev.UsageAnswered: pools.usage_answered,
        ev.BackedOff: backoffs.backed_off,
        ev.BackoffEnded: backoffs.ended,
        ev.Chosen: backoffs.chosen,
        ev.Bypassed: _no_change,
    }


def _no_change(event: Any, at: int) -> None:
    """The history has it, the state does not."""
