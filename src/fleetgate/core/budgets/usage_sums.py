"""The sums of what was used in the current hour, by project, model, host and more (rule U5).

They follow from the events, so each call is counted exactly once, however often processes are killed. When an hour is
over, its rows leave the state and are written beside the log (the event HourClosed).
"""

from __future__ import annotations

from typing import Final

from fleetgate.core.usage import Usage, UsageRow

HOUR_MS: Final = 3_600_000

# Project, model, host, key, kind, source, and whether the cost is known: sums of known costs stay exact that way.
Dimensions = tuple[str, str, str, str, str, str, bool]


class RunningSum:
    """The sum of some usages. It changes in place: with every call, one is added to."""

    __slots__ = ("cache_read", "cache_write", "calls", "cost", "input", "output")

    def __init__(self) -> None:
        self.calls = self.input = self.cache_read = self.cache_write = self.output = self.cost = 0

    def add(self, usage: Usage) -> None:
        self.calls += usage.calls
        self.input += usage.input
        self.cache_read += usage.cache_read
        self.cache_write += usage.cache_write
        self.output += usage.output
        cost = usage.cost
        if cost is not None:
            self.cost += cost

    def usage(self, source: str, cost_known: bool) -> Usage:
        cost = self.cost if cost_known else None
        return Usage(self.calls, self.input, self.cache_read, self.cache_write, self.output, cost, source)


class UsageSums:
    """The sums of one hour."""

    __slots__ = ("_sums", "hour")

    def __init__(self) -> None:
        self.hour = 0  # since 1970, by the clock of the log
        self._sums: dict[Dimensions, RunningSum] = {}

    def add(self, project: str, model: str, host: str, access_key: str, kind: str, usage: Usage, at: int) -> None:
        if not self._sums:
            self.hour = at // HOUR_MS
        key = (project, model, host, access_key, kind, usage.source, usage.cost is not None)
        known = self._sums.get(key)
        if known is None:
            known = self._sums[key] = RunningSum()
        known.add(usage)

    def is_over(self, now: int) -> bool:
        """Whether there is something to write down: the hour of these sums is over."""
        return bool(self._sums) and now // HOUR_MS > self.hour

    def rows(self) -> list[UsageRow]:
        """The sums as rows, in a fixed order."""
        return [
            UsageRow(key[0], key[1], key[2], key[3], key[4], self._sums[key].usage(key[5], key[6]))
            for key in sorted(self._sums)
        ]

    def clear(self) -> None:
        self._sums = {}

    def restore(self, hour: int, rows: list[UsageRow]) -> None:
        self.hour = hour
        self._sums = {}
        for row in rows:
            usage = row.usage
            key = (row.project, row.model, row.host, row.key, row.kind, usage.source, usage.cost is not None)
            known = self._sums[key] = RunningSum()
            known.add(usage)
