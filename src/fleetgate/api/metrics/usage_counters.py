"""Counters of usage, for Prometheus (rule U4): calls, tokens and known cost, by project and model.

Like all counters of the service they begin at zero when it starts, which Prometheus expects. Names of projects come
from clients, so the number of combinations is limited: those beyond it are counted together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from prometheus_client import Counter

from fleetgate.core import events as ev
from fleetgate.core.entities import Lease
from fleetgate.core.usage import Usage

MOST_COMBINATIONS = 500  # of project and model
OTHER = "(other)"
TYPES = ("input", "cache_read", "cache_write", "output")  # of tokens


class _Counted(NamedTuple):
    """The counters of one project and model."""

    input: Counter
    cache_read: Counter
    cache_write: Counter
    output: Counter
    dollars: Counter


class UsageCounters:
    """Counts what events say was used. `lease_of` finds a lease that has not ended."""

    def __init__(
        self, calls: Counter, tokens: Counter, dollars: Counter, lease_of: Callable[[str], Lease | None]
    ) -> None:
        self._calls, self._tokens, self._dollars = calls, tokens, dollars
        self._lease_of = lease_of
        self._known: dict[tuple[str, str], _Counted] = {}
        self._settled: dict[str, list[Usage]] = {}  # by lease that has ended, until the event that names its project

    def ended(self, event: ev.Released | ev.Reclaimed) -> None:
        """A lease ended: what it used beyond what was settled before."""
        for usage in self._settled.pop(event.id, ()):
            self._count(event.project, event.model, usage)
        if event.usage is not None:
            self._count(event.project, event.model, event.usage)

    def settled(self, event: ev.Settled) -> None:
        lease = self._lease_of(event.id)
        if lease is None:
            self._settled.setdefault(event.id, []).append(event.usage)
        else:
            self._count(lease.ticket.spec.project, lease.model, event.usage)

    def _count(self, project: str, model: str, usage: Usage) -> None:
        if not (usage.calls or usage.tokens or usage.cost):
            return  # it was refused
        pair = (project, model)
        if pair not in self._known and len(self._known) >= MOST_COMBINATIONS:
            pair = (OTHER, OTHER)
        counted = self._known.get(pair)
        if counted is None:
            counted = self._known[pair] = self._counters(*pair)
        self._calls.labels(*pair, usage.source).inc(usage.calls)
        counted.input.inc(usage.input)
        counted.cache_read.inc(usage.cache_read)
        counted.cache_write.inc(usage.cache_write)
        counted.output.inc(usage.output)
        counted.dollars.inc((usage.cost or 0) / 1_000_000)

    def _counters(self, project: str, model: str) -> _Counted:
        tokens = [self._tokens.labels(project, model, name) for name in TYPES]
        return _Counted(*tokens, *[self._dollars.labels(project, model)])
