"""Numbers for operators, in Prometheus' text format (rule H4). docs/metrics.md describes each; a test fails else.

Counters and histograms count what is committed to the log, by whichever process, since this service started. Gauges are
read when they are asked for.
"""

from __future__ import annotations

import asyncio
import sys
from bisect import bisect_left
from collections import Counter

from fleetgate.core import events as ev
from fleetgate.core.state.state import State
from fleetgate.core.views.pool_and_lease_views import PoolView, pool_views
from fleetgate.gate.serving.service_gate import ServiceGate

CONTENT_TYPE = "text/plain; version=0.0.4"
LAG_EVERY_S = 1.0
WAIT_BUCKETS = (0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)
HOLD_BUCKETS = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)
BATCH_BUCKETS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
LAG_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)

Labels = tuple[tuple[str, str], ...]

# Name -> type and help; in the order in which they are told.
METRICS: dict[str, tuple[str, str]] = {
    "fleetgate_in_flight": ("gauge", "Slots lent, by pool."),
    "fleetgate_cooling": ("gauge", "Slots that were released and cool down, by pool."),
    "fleetgate_foreign": ("gauge", "Slots taken by agents that were started outside Fleetgate, by pool."),
    "fleetgate_limit": ("gauge", "The most slots in force now, by pool."),
    "fleetgate_cap": ("gauge", "The configured most slots, by pool."),
    "fleetgate_queued": ("gauge", "Tickets that need a slot of the pool and wait."),
    "fleetgate_paused": ("gauge", "1 while nobody new enters the pool."),
    "fleetgate_leases": ("gauge", "Leases in all."),
    "fleetgate_tickets": ("gauge", "Tickets in the queue in all."),
    "fleetgate_backoffs": ("gauge", "Backoffs in force, by reason."),
    "fleetgate_grants_total": ("counter", "Slots that were lent, by kind."),
    "fleetgate_releases_total": ("counter", "Leases that ended, by kind and outcome."),
    "fleetgate_deferrals_total": ("counter", "Requests that were told no, by reason."),
    "fleetgate_queued_total": ("counter", "Requests that took a place in the queue, by reason."),
    "fleetgate_left_total": ("counter", "Tickets that left the queue without a slot, by how."),
    "fleetgate_rate_limits_total": ("counter", "Incidents of rate limiting (429), by pool."),
    "fleetgate_reductions_total": ("counter", "Limits lowered after a rate limit, by pool."),
    "fleetgate_reclaims_total": ("counter", "Leases taken back, by cause."),
    "fleetgate_wait_seconds": ("histogram", "How long requests waited in the queue before they got a slot, by kind."),
    "fleetgate_hold_seconds": ("histogram", "How long slots were held, by kind."),
    "fleetgate_log_commits_total": ("counter", "Transactions of this service with commands in them."),
    "fleetgate_log_batch_size": ("histogram", "Commands that shared one transaction of this service."),
    "fleetgate_log_seq": ("counter", "The sequence number of the log's last event."),
    "fleetgate_event_loop_lag_seconds": ("histogram", "How late the service's event loop was, measured every second."),
    "fleetgate_streams": ("gauge", "Event streams that are open."),
    "fleetgate_waiting_requests": ("gauge", "Long polls that wait."),
    "fleetgate_info": ("gauge", "1, with the version."),
}


class Histogram:
    """Counts of values by upper bound."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self, name: str, labels: Labels) -> list[str]:
        told, below = [], 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            below += count
            edge = "+Inf" if bound == float("inf") else f"{bound:g}"
            told.append(line(f"{name}_bucket", (*labels, ("le", edge)), below))
        return [*told, line(f"{name}_sum", labels, round(self.sum, 6)), line(f"{name}_count", labels, below)]


class Counters:
    """All that is counted."""

    def __init__(self, gate: ServiceGate) -> None:
        self._gate = gate
        self._totals: dict[str, Counter[Labels]] = {
            name: Counter() for name, (kind, _) in METRICS.items() if kind == "counter"
        }
        self._waits: dict[str, Histogram] = {}
        self._holds: dict[str, Histogram] = {}
        self._kinds: dict[str, str] = {}  # of what waited in the queue: its grant does not name it
        self._batches = Histogram(BATCH_BUCKETS)
        self._lags = Histogram(LAG_BUCKETS)

    def complain(self, text: str) -> None:
        """Something that a person should see."""
        sys.stderr.write(f"fleetgate: {text}\n")
        sys.stderr.flush()

    def batch(self, commands: int) -> None:
        self._batches.add(commands)

    async def watch_lag(self) -> None:
        """Sleep, and see by how much too long it was."""
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(LAG_EVERY_S)
            self._lags.add(max(loop.time() - before - LAG_EVERY_S, 0.0))

    def hear(self, event: ev.Event) -> None:
        if isinstance(event, ev.Granted):
            kind = event.ticket.spec.kind if event.ticket is not None else self._kinds.get(event.id, "agents")
            self._count("fleetgate_grants_total", ("kind", kind))
            self._of(self._waits, kind, WAIT_BUCKETS).add(event.waited_ms / 1000)
        elif isinstance(event, ev.Released):
            self._kinds.pop(event.id, None)
            self._count("fleetgate_releases_total", ("kind", event.kind), ("outcome", event.outcome))
            self._of(self._holds, event.kind, HOLD_BUCKETS).add(event.held_ms / 1000)
        elif isinstance(event, ev.Queued):
            self._kinds[event.ticket.id] = event.ticket.spec.kind
            self._count("fleetgate_queued_total", ("reason", event.reason.code))
        elif isinstance(event, ev.Deferred):
            self._count("fleetgate_deferrals_total", ("reason", event.reason.code))
        elif isinstance(event, ev.Reclaimed):
            self._kinds.pop(event.id, None)
            self._count("fleetgate_reclaims_total", ("cause", event.cause))
            self._of(self._holds, event.kind, HOLD_BUCKETS).add(event.held_ms / 1000)
        elif isinstance(event, ev.Cancelled | ev.Expired | ev.Dropped):
            self._kinds.pop(event.id, None)
            self._count("fleetgate_left_total", ("how", str(event.__struct_config__.tag)))
        elif isinstance(event, ev.Paused):
            if event.incident:
                self._count("fleetgate_rate_limits_total", ("pool", event.pool), ("kind", event.kind))
        elif isinstance(event, ev.Reduced) or (isinstance(event, ev.Refused) and event.why in ("drop", "exact")):
            self._count("fleetgate_reductions_total", ("pool", event.pool), ("kind", event.kind))

    def _count(self, name: str, *labels: tuple[str, str]) -> None:
        self._totals[name][labels] += 1

    @staticmethod
    def _of(histograms: dict[str, Histogram], kind: str, bounds: tuple[float, ...]) -> Histogram:
        found = histograms.get(kind)
        if found is None:
            found = histograms[kind] = Histogram(bounds)
        return found

    def text(self, state: State, *, streams: int, waiting: int, version: str) -> str:
        """Everything, as Prometheus reads it."""
        told = {name: [f"# HELP {name} {text}", f"# TYPE {name} {kind}"] for name, (kind, text) in METRICS.items()}
        for view in pool_views(state, self._gate.now(), self._gate.host):
            for name, value in _of_pool(view).items():
                if value is not None:
                    told[name].append(line(name, (("pool", view.pool), ("kind", view.kind)), value))
        reasons = Counter(backoff.reason for backoff in state.backoffs.values())
        told["fleetgate_backoffs"] += [
            line("fleetgate_backoffs", (("reason", reason),), number) for reason, number in sorted(reasons.items())
        ]
        single = {
            "fleetgate_leases": len(state.leases),
            "fleetgate_tickets": len(state.tickets),
            "fleetgate_streams": streams,
            "fleetgate_waiting_requests": waiting,
            "fleetgate_log_seq": state.seq,
            "fleetgate_log_commits_total": sum(self._batches.counts),
        }
        for name, number in single.items():
            told[name].append(line(name, (), number))
        told["fleetgate_info"].append(line("fleetgate_info", (("version", version),), 1))
        for name, totals in self._totals.items():
            told[name] += [line(name, labels, number) for labels, number in sorted(totals.items())]
        for name, histograms in (("fleetgate_wait_seconds", self._waits), ("fleetgate_hold_seconds", self._holds)):
            for kind, histogram in sorted(histograms.items()):
                told[name] += histogram.lines(name, (("kind", kind),))
        told["fleetgate_log_batch_size"] += self._batches.lines("fleetgate_log_batch_size", ())
        told["fleetgate_event_loop_lag_seconds"] += self._lags.lines("fleetgate_event_loop_lag_seconds", ())
        return "\n".join(each for lines in told.values() for each in lines) + "\n"


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


def line(name: str, labels: Labels, value: float) -> str:
    """One sample."""
    inner = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
    return f"{name}{{{inner}}} {value}" if inner else f"{name} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
