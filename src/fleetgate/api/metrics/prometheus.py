"""The metrics of the service, for Prometheus (rule H4). docs/metrics.md describes each; a test checks that.

Counters and histograms count what is committed to the log, by any process, since this service started. Gauges are read
when Prometheus asks for them.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter as Tally

from fleetgate.api.metrics.exposition import (
    Count,
    CounterFamily,
    Distribution,
    HistogramFamily,
    gauge_lines,
    process_lines,
)
from fleetgate.api.metrics.usage_counters import KeyCounters, UsageCounters
from fleetgate.core import events as ev
from fleetgate.core.entities import Lease
from fleetgate.core.limits import LOWERING
from fleetgate.core.plans.reading import FULL
from fleetgate.core.state.state import State
from fleetgate.core.views.budget_views import BudgetView, budget_views
from fleetgate.core.views.plan_views import PlanView, plan_views
from fleetgate.core.views.pool_and_lease_views import PoolView, lasting_pool_views
from fleetgate.gate.serving.service_gate import ServiceGate

CONTENT_TYPE = "text/plain; version=0.0.4"
LAG_EVERY_S = 1.0
MOST_BUDGETS = 500  # each project may have its own
BUDGET_GAUGES = ("fleetgate_budget_used", "fleetgate_budget_reserved", "fleetgate_budget_amount")
PLAN_GAUGES = ("fleetgate_plan_used_ratio", "fleetgate_plan_reset_seconds", "fleetgate_plan_dry_seconds")
BUCKETS = {
    "fleetgate_wait_seconds": (0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0),
    "fleetgate_hold_seconds": (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0),
    "fleetgate_log_batch_size": (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0),
    "fleetgate_event_loop_lag_seconds": (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0),
}
LABELS = {
    "fleetgate_grants_total": ("kind",),
    "fleetgate_releases_total": ("kind", "outcome"),
    "fleetgate_deferrals_total": ("reason",),
    "fleetgate_queued_total": ("reason",),
    "fleetgate_left_total": ("how",),
    "fleetgate_rate_limits_total": ("pool", "kind"),
    "fleetgate_reductions_total": ("pool", "kind"),
    "fleetgate_reclaims_total": ("cause",),
    "fleetgate_wait_seconds": ("kind",),
    "fleetgate_hold_seconds": ("kind",),
    "fleetgate_usage_calls_total": ("project", "model", "source"),
    "fleetgate_usage_tokens_total": ("project", "model", "type"),
    "fleetgate_usage_cost_dollars_total": ("project", "model"),
    "fleetgate_key_calls_total": ("key",),
    "fleetgate_key_tokens_total": ("key",),
    "fleetgate_key_cost_dollars_total": ("key",),
}

# Name -> type and help.
METRICS: dict[str, tuple[str, str]] = {
    "fleetgate_in_flight": ("gauge", "Slots in use, by pool."),
    "fleetgate_cooling": ("gauge", "Slots that were released and cool down, by pool."),
    "fleetgate_foreign": ("gauge", "Slots taken by agents that were started outside Fleetgate, by pool."),
    "fleetgate_limit": ("gauge", "The limit in force now, by pool."),
    "fleetgate_cap": ("gauge", "The configured cap, by pool."),
    "fleetgate_queued": ("gauge", "Tickets waiting for a slot of the pool."),
    "fleetgate_paused": ("gauge", "1 while the pool is paused."),
    "fleetgate_leases": ("gauge", "Leases in all."),
    "fleetgate_tickets": ("gauge", "Tickets in the queue in all."),
    "fleetgate_backoffs": ("gauge", "Backoffs in force, by reason."),
    "fleetgate_grants_total": ("counter", "Slots granted, by kind."),
    "fleetgate_releases_total": ("counter", "Leases that ended, by kind and outcome."),
    "fleetgate_deferrals_total": ("counter", "Requests refused at once, by reason."),
    "fleetgate_queued_total": ("counter", "Requests that took a place in the queue, by reason."),
    "fleetgate_left_total": ("counter", "Tickets that left the queue without a slot, by how."),
    "fleetgate_rate_limits_total": ("counter", "Incidents of rate limiting (429), by pool."),
    "fleetgate_reductions_total": ("counter", "Limits lowered after a rate limit, by pool."),
    "fleetgate_reclaims_total": ("counter", "Leases taken back, by cause."),
    "fleetgate_wait_seconds": ("histogram", "How long requests waited in the queue before they got a slot, by kind."),
    "fleetgate_hold_seconds": ("histogram", "How long slots were held, by kind."),
    "fleetgate_usage_calls_total": ("counter", "Model calls, by project, model and source of their numbers."),
    "fleetgate_usage_tokens_total": ("counter", "Tokens, by project, model and type."),
    "fleetgate_usage_cost_dollars_total": ("counter", "Cost in dollars, as far as it is known, by project and model."),
    "fleetgate_key_calls_total": ("counter", "Model calls, by access key."),
    "fleetgate_key_tokens_total": ("counter", "Tokens of all types, by access key."),
    "fleetgate_key_cost_dollars_total": ("counter", "Cost in dollars, as far as it is known, by access key."),
    "fleetgate_budget_used": ("gauge", "What is used of a rate or budget, in its unit (usd: dollars)."),
    "fleetgate_budget_reserved": ("gauge", "What is reserved for running calls and agents, in the unit of the budget."),
    "fleetgate_budget_amount": ("gauge", "What a rate or budget allows per period, in its unit."),
    "fleetgate_plan_used_ratio": ("gauge", "How much of a plan window is used: 1 is all."),
    "fleetgate_plan_reset_seconds": ("gauge", "How long until a plan window is empty again."),
    "fleetgate_plan_dry_seconds": (
        "gauge",
        "How long a plan window lasts at this pace, if not to its reset.",
    ),
    "fleetgate_log_commits_total": ("counter", "Transactions of this service with commands in them."),
    "fleetgate_log_batch_size": ("histogram", "Commands that shared one transaction of this service."),
    "fleetgate_log_seq": ("gauge", "The sequence number of the log's last event."),
    "fleetgate_event_loop_lag_seconds": ("histogram", "How late the service's event loop was, measured every second."),
    "fleetgate_streams": ("gauge", "Event streams that are open."),
    "fleetgate_waiting_requests": ("gauge", "Long polls that wait."),
    "fleetgate_info": ("gauge", "1, with the version."),
}


class Counters:
    """All metrics of one service."""

    def __init__(self, gate: ServiceGate) -> None:
        self._gate = gate
        self._kinds: dict[str, str] = {}  # by ticket: the event of its grant does not name the kind
        self._counters: dict[str, CounterFamily] = {}
        self._histograms: dict[str, HistogramFamily] = {}
        self._labelled: dict[tuple[str, ...], Count] = {}  # by name and labels: found before
        self._by_kind: dict[tuple[str, str], Distribution] = {}
        for name, (kind, text) in METRICS.items():
            labels = LABELS.get(name, ())
            if kind == "counter":
                self._counters[name] = CounterFamily(name, text, labels)
            elif kind == "histogram":
                self._histograms[name] = HistogramFamily(name, text, BUCKETS[name], labels)
        self._usage = UsageCounters(
            self._counters["fleetgate_usage_calls_total"],
            self._counters["fleetgate_usage_tokens_total"],
            self._counters["fleetgate_usage_cost_dollars_total"],
            self._lease,
            KeyCounters(
                self._counters["fleetgate_key_calls_total"],
                self._counters["fleetgate_key_tokens_total"],
                self._counters["fleetgate_key_cost_dollars_total"],
            ),
        )
        self._batches = self._histograms["fleetgate_log_batch_size"].labels()
        self._commits = self._counters["fleetgate_log_commits_total"].labels()
        self._lags = self._histograms["fleetgate_event_loop_lag_seconds"].labels()

    def _lease(self, ident: str) -> Lease | None:
        engine = self._gate.core.replica.loaded
        return None if engine is None else engine.state.leases.get(ident)

    def complain(self, text: str) -> None:
        """Write a message for the operator."""
        sys.stderr.write(f"fleetgate: {text}\n")
        sys.stderr.flush()

    def batch(self, commands: int) -> None:
        self._batches.observe(commands)
        self._commits.inc()

    async def watch_lag(self) -> None:
        """Sleep, and measure by how much too long it was."""
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(LAG_EVERY_S)
            self._lags.observe(max(loop.time() - before - LAG_EVERY_S, 0.0))

    def hear(self, event: ev.Event) -> None:
        if isinstance(event, ev.Granted):
            kind = event.ticket.spec.kind if event.ticket is not None else self._kinds.get(event.id, "agents")
            self._count("fleetgate_grants_total", kind)
            self._observe("fleetgate_wait_seconds", kind, event.waited_ms / 1000)
        elif isinstance(event, ev.Released):
            self._kinds.pop(event.id, None)
            self._usage.ended(event)
            self._count("fleetgate_releases_total", event.kind, event.outcome)
            self._observe("fleetgate_hold_seconds", event.kind, event.held_ms / 1000)
        elif isinstance(event, ev.Settled):
            self._usage.settled(event)
        elif isinstance(event, ev.Queued):
            self._kinds[event.ticket.id] = event.ticket.spec.kind
            self._count("fleetgate_queued_total", event.reason.code)
        elif isinstance(event, ev.Deferred):
            self._count("fleetgate_deferrals_total", event.reason.code)
        elif isinstance(event, ev.Reclaimed):
            self._kinds.pop(event.id, None)
            self._usage.ended(event)
            self._count("fleetgate_reclaims_total", event.cause)
            self._observe("fleetgate_hold_seconds", event.kind, event.held_ms / 1000)
        elif isinstance(event, ev.Cancelled | ev.Expired | ev.Dropped):
            self._kinds.pop(event.id, None)
            self._count("fleetgate_left_total", str(event.__struct_config__.tag))
        elif isinstance(event, ev.Paused):
            if event.incident:
                self._count("fleetgate_rate_limits_total", event.pool, event.kind)
        elif isinstance(event, ev.Reduced) or (isinstance(event, ev.Refused) and event.why in LOWERING):
            self._count("fleetgate_reductions_total", event.pool, event.kind)

    def _count(self, *name_and_labels: str) -> None:
        counter = self._labelled.get(name_and_labels)
        if counter is None:
            name, *labels = name_and_labels
            counter = self._labelled[name_and_labels] = self._counters[name].labels(*labels)
        counter.inc()

    def _observe(self, name: str, kind: str, seconds: float) -> None:
        histogram = self._by_kind.get((name, kind))
        if histogram is None:
            histogram = self._by_kind[name, kind] = self._histograms[name].labels(kind)
        histogram.observe(seconds)

    def text(self, state: State, *, streams: int, waiting: int, version: str) -> str:
        """All metrics in Prometheus' text format."""
        pools = lasting_pool_views(state, self._gate.now(), self._gate.host)
        reasons = Tally(backoff.reason for backoff in state.backoffs.values())
        single = {
            "fleetgate_leases": len(state.leases),
            "fleetgate_tickets": len(state.tickets),
            "fleetgate_streams": streams,
            "fleetgate_waiting_requests": waiting,
            "fleetgate_log_seq": state.seq,
        }
        samples: dict[str, list[tuple[tuple[str, ...], float]]] = {
            "fleetgate_backoffs": [((reason,), number) for reason, number in sorted(reasons.items())],
            "fleetgate_info": [((version,), 1)],
            **{name: [((), number)] for name, number in single.items()},
        }
        for view in pools:
            for name, value in _of_pool(view).items():
                if value is not None:
                    samples.setdefault(name, []).append(((view.pool, view.kind), value))
        for budget in budget_views(state, self._gate.now())[:MOST_BUDGETS]:
            for name, amount in _of_budget(budget).items():
                samples.setdefault(name, []).append(((budget.name, budget.unit), amount))
        for plan in plan_views(state, self._gate.now()):
            for name, part in _of_plan(plan, self._gate.now()).items():
                samples.setdefault(name, []).append(((plan.account, plan.window), part))
        names = {
            "fleetgate_backoffs": ("reason",),
            "fleetgate_info": ("version",),
            **dict.fromkeys(single, ()),
            **dict.fromkeys(BUDGET_GAUGES, ("budget", "unit")),
            **dict.fromkeys(PLAN_GAUGES, ("account", "window")),
        }
        lines = [*process_lines()]
        for name, values in samples.items():
            lines += gauge_lines(name, METRICS[name][1], names.get(name, ("pool", "kind")), values)
        for counter in self._counters.values():
            lines += counter.lines()
        for histogram in self._histograms.values():
            lines += histogram.lines()
        return "".join(lines)


def _of_plan(view: PlanView, now: int) -> dict[str, float]:
    moments = (view.resets_at, view.dry_at)
    left = [None if at is None else max(at - now, 0) / 1000 for at in moments]
    values = zip(PLAN_GAUGES, (view.used / FULL, *left), strict=True)
    return {name: value for name, value in values if value is not None}


def _of_budget(view: BudgetView) -> dict[str, float]:
    parts = 1_000_000 if view.unit == "usd" else 1
    return dict(zip(BUDGET_GAUGES, (view.used / parts, view.reserved / parts, view.amount / parts), strict=True))


def _of_pool(view: PoolView) -> dict[str, int | None]:
    return {
        "fleetgate_in_flight": view.in_flight,
        "fleetgate_cooling": view.cooling,
        "fleetgate_foreign": view.foreign,
        "fleetgate_limit": view.limit,
        "fleetgate_cap": view.cap,
        "fleetgate_queued": view.queued,
        "fleetgate_paused": int(view.paused_until is not None),
    }
