"""Reports of usage in an agent's own records, and their sum (rule U2).

A report either adds (a call, a step, a message), or it is a running total of a session. An agent may write the same
report several times: those with the same id count once, with the highest numbers. What was written before a run began
is passed over: it only says where a running total stood.

What an agent writes is not trusted: numbers that cannot be counts are ignored, and memory stays bounded.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from fleetgate.core.usage import RECORD, Usage

_MOST_COUNT = 1 << 40  # tokens: a number above this is not a count
_MOST_SUM = 1 << 50
_MOST_DOLLARS = 1e9
_MOST_MODELS = 32
_MOST_IDS = 50_000
_NAME_CHARS = 128


class ModelUsage(NamedTuple):
    """What one model used. `model` is as the agent calls it; "" is the one in use, or not known."""

    model: str
    usage: Usage


class RecordedUsage(Struct, frozen=True):
    """One report."""

    parts: tuple[ModelUsage, ...] = ()
    id: str = ""
    is_total: bool = False  # all that the session has used so far
    model: str = ""  # the model in use from here on
    at_ms: int | None = None  # wall time; None: as the record before it
    limits: dict[str, Any] | None = None  # of a plan, as Codex writes them


class RecordSum:
    """The sum of the reports of one run."""

    def __init__(self) -> None:
        self._sums: dict[str, Usage] = {}
        self._open: dict[str, tuple[ModelUsage, ...]] = {}  # by id, which may come again
        self._before: dict[str, None] = {}  # the ids of reports from before the run
        self._stood: dict[str, Usage] = {}  # the running total, before the run
        self._model = ""
        self._found = False
        self.limits: RecordedUsage | None = None  # the last report with limits of a plan

    def pass_over(self, report: RecordedUsage) -> None:
        """Take a report from before the run."""
        self._model = report.model or self._model
        if report.is_total:
            self._stood = dict(self._named(report.parts))
        elif report.id and len(self._before) < _MOST_IDS:
            self._before[report.id] = None

    def add(self, report: RecordedUsage) -> None:
        """Take a report of the run."""
        if report.limits is not None:
            self.limits = report
        self._model = report.model or self._model
        if report.is_total:
            self._replace(report.parts)
        elif report.parts and report.id not in self._before:
            parts = tuple(self._named(report.parts))
            if report.id:
                self._keep(report.id, parts)
            else:
                self._count(parts)
        self._found = self._found or report.is_total or bool(report.parts)

    def by_model(self) -> list[ModelUsage] | None:
        """What each model used; None where no report came."""
        if not self._found:
            return None
        for parts in self._open.values():
            self._count(parts)
        self._open.clear()
        return [ModelUsage(model, replace(usage, source=RECORD)) for model, usage in self._sums.items()]

    def _named(self, parts: tuple[ModelUsage, ...]) -> list[ModelUsage]:
        return [ModelUsage(model[:_NAME_CHARS] or self._model, usage) for model, usage in parts]

    def _keep(self, ident: str, parts: tuple[ModelUsage, ...]) -> None:
        before = self._open.pop(ident, None)
        self._open[ident] = parts if before is None else _highest(before, parts)
        if len(self._open) > _MOST_IDS:
            self._count(self._open.pop(next(iter(self._open))))

    def _count(self, parts: tuple[ModelUsage, ...]) -> None:
        for model, usage in parts:
            known = model if model in self._sums or len(self._sums) < _MOST_MODELS else ""
            before = self._sums.get(known)
            self._sums[known] = usage if before is None else _bounded(before.plus(usage))

    def _replace(self, parts: tuple[ModelUsage, ...]) -> None:
        """A running total has all that was added before it, except how many calls that were."""
        for kept in self._open.values():
            self._count(kept)
        calls = sum(usage.calls for usage in self._sums.values())
        self._open.clear()
        self._sums.clear()
        self._count(tuple(ModelUsage(m, _less(usage, self._stood.get(m))) for m, usage in self._named(parts)))
        first = next(iter(self._sums), None)
        if first is not None and not any(usage.calls for usage in self._sums.values()):
            self._sums[first] = replace(self._sums[first], calls=calls)


def usage_of(
    input_tokens: Any = 0,
    cache_read: Any = 0,
    cache_write: Any = 0,
    output: Any = 0,
    *,
    calls: Any = 1,
    dollars: Any = None,
) -> Usage:
    """Usage from numbers of an agent. A cost of nothing for some tokens is one that the agent does not know."""
    given, read, written, made = count(input_tokens), count(cache_read), count(cache_write), count(output)
    cost = None
    if isinstance(dollars, int | float) and not isinstance(dollars, bool) and 0 <= dollars < _MOST_DOLLARS:
        cost = round(dollars * 1_000_000)
    known = cost if cost or not given + read + written + made else None
    return Usage(count(calls), given, read, written, made, known, RECORD)


def count(value: Any) -> int:
    """A count of tokens or calls; 0 for what is none."""
    return value if type(value) is int and 0 <= value <= _MOST_COUNT else 0


def field(value: Any, *names: str) -> Any:
    """A field inside of others; None where there is none."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def total_of(parts: list[ModelUsage]) -> Usage:
    """All models together."""
    total = Usage(source=RECORD)
    for _, usage in parts:
        total = _bounded(total.plus(usage))
    return total


def _less(usage: Usage, before: Usage | None) -> Usage:
    if before is None:
        return usage
    cost = None if usage.cost is None else max(usage.cost - (before.cost or 0), 0)
    return Usage(
        usage.calls,
        max(usage.input - before.input, 0),
        max(usage.cache_read - before.cache_read, 0),
        max(usage.cache_write - before.cache_write, 0),
        max(usage.output - before.output, 0),
        cost,
        RECORD,
    )


def _highest(one: tuple[ModelUsage, ...], other: tuple[ModelUsage, ...]) -> tuple[ModelUsage, ...]:
    before = dict(one)
    return tuple(ModelUsage(model, _most(usage, before.get(model, usage))) for model, usage in other)


def _most(one: Usage, other: Usage) -> Usage:
    known = [usage.cost for usage in (one, other) if usage.cost is not None]
    return Usage(
        max(one.calls, other.calls),
        max(one.input, other.input),
        max(one.cache_read, other.cache_read),
        max(one.cache_write, other.cache_write),
        max(one.output, other.output),
        max(known, default=None),
        RECORD,
    )


def _bounded(usage: Usage) -> Usage:
    return Usage(
        min(usage.calls, _MOST_SUM),
        min(usage.input, _MOST_SUM),
        min(usage.cache_read, _MOST_SUM),
        min(usage.cache_write, _MOST_SUM),
        min(usage.output, _MOST_SUM),
        None if usage.cost is None else min(usage.cost, _MOST_SUM),
        RECORD,
    )
