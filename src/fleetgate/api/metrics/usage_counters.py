"""Counters of usage, for Prometheus (rule U4): calls, tokens and known cost, by project and model, and by access key.

Like all counters of the service they begin at zero when it starts, which Prometheus expects. Names of projects come
from clients, so the number of combinations is limited: those beyond it are counted together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from fleetgate.api.metrics.exposition import Count, CounterFamily
from fleetgate.core import events as ev
from fleetgate.core.entities import Lease
from fleetgate.core.usage import Usage

MOST_COMBINATIONS = 500  # of project and model
MOST_KEYS = 500
OTHER = "(other)"
TYPES = ("input", "cache_read", "cache_write", "output")  # of tokens


class _Counted(NamedTuple):
    """The counters of one project and model."""

    input: Count
    cache_read: Count
    cache_write: Count
    output: Count
    dollars: Count


class KeyCounters:
    """Counts what was used with access keys; keys beyond the first ones are counted together."""

    def __init__(self, calls: CounterFamily, tokens: CounterFamily, dollars: CounterFamily) -> None:
        self._calls, self._tokens, self._dollars = calls, tokens, dollars
        self._known: set[str] = set()

    def count(self, key: str, usage: Usage) -> None:
        if not key:
            return
        if key not in self._known and len(self._known) >= MOST_KEYS:
            key = OTHER
        self._known.add(key)
        self._calls.labels(key).inc(usage.calls)
        self._tokens.labels(key).inc(usage.tokens)
        self._dollars.labels(key).inc((usage.cost or 0) / 1_000_000)


class UsageCounters:
    """Counts what events say was used. `lease_of` finds a lease that has not ended."""

    def __init__(
        self,
        calls: CounterFamily,
        tokens: CounterFamily,
        dollars: CounterFamily,
        lease_of: Callable[[str], Lease | None],
        keys: KeyCounters,
    ) -> None:
        self._calls, self._tokens, self._dollars = calls, tokens, dollars
        self._lease_of = lease_of
        self._keys = keys
        self._known: dict[tuple[str, str], _Counted] = {}
        self._settled: dict[str, list[Usage]] = {}  # by lease that has ended, until the event that names its project

    def ended(self, event: ev.Released | ev.Reclaimed) -> None:
        """A lease ended: what it used beyond what was settled before."""
        for usage in self._settled.pop(event.id, ()):
            self._count(event.project, event.model, event.access_key, usage)
        if event.usage is not None:
            self._count(event.project, event.model, event.access_key, event.usage)

    def settled(self, event: ev.Settled) -> None:
        lease = self._lease_of(event.id)
        if lease is None:
            self._settled.setdefault(event.id, []).append(event.usage)
        else:
            spec = lease.ticket.spec
            self._count(spec.project, lease.model, spec.access_key, event.usage)

    def _count(self, project: str, model: str, access_key: str, usage: Usage) -> None:
        if not (usage.calls or usage.tokens or usage.cost):
            return  # it was refused
        self._keys.count(access_key, usage)
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
