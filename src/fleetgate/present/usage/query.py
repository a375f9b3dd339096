"""A question about usage, and its answer from the store (rule U4). Reading takes no lock.

The state is looked at first, then the rows of the hours before its own: so no hour is missing and none counts twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import tzinfo
from typing import NamedTuple

from fleetgate.core.budgets.usage_sums import HOUR_MS
from fleetgate.core.entities import Lease
from fleetgate.core.errors import BadRequest
from fleetgate.core.model_names import parse_selector
from fleetgate.core.state.state import State
from fleetgate.core.usage import UsageRow
from fleetgate.gate.usage_history import used_by_runs
from fleetgate.gate.usage_rows import closed_rows
from fleetgate.log.protocol import Log
from fleetgate.present.log_time import LogTimes
from fleetgate.present.run_statistics import seq_before
from fleetgate.present.usage.period import UsagePeriod, parse_period
from fleetgate.present.usage.report import Part, UsageTable, parse_dimensions

Parts = Iterator[Part]


class CurrentUsage(NamedTuple):
    """What the state knows about usage: the hour that is not closed, and leases that have not ended."""

    hour: int
    rows: tuple[UsageRow, ...]
    seq: int
    leases: Mapping[str, Lease]


def current_usage(state: State) -> CurrentUsage:
    return CurrentUsage(state.usage.hour, tuple(state.usage.rows()), state.seq, dict(state.leases))


class UsageQuery(NamedTuple):
    """What is asked for: dimensions, a period, and what to leave out."""

    by: tuple[str, ...]
    period: UsagePeriod
    project: str = ""
    model: str = ""  # a selector

    def answer(self, log: Log, current: CurrentUsage, pace: Callable[[Parts], Parts] = iter) -> UsageTable:
        """The report. `pace` may slow the reading down."""
        if "run" in self.by:
            return self._of_runs(log, current, pace)
        report = UsageTable(self.by, self.period, self.project, self.model)
        low, high = self.period.low, self.period.high
        if current.rows:
            high = min(high, current.hour)
            report.add((current.hour, row, "") for row in current.rows)
        report.add(pace((hour, row, "") for hour, row in closed_rows(log, low, high)))
        return report

    def _of_runs(self, log: Log, current: CurrentUsage, pace: Callable[[Parts], Parts]) -> UsageTable:
        """From the history, as far back as that is kept."""
        period, since = self.period, self.period.low * HOUR_MS
        kept = next(iter(log.history()), None)
        if kept is not None and kept[0] > 1 and kept[1] > since:
            since = kept[1]
            period = period.starting_at(since // HOUR_MS)
        report = UsageTable(self.by, period, self.project, self.model)
        history = log.history(seq_before(log, since, current.seq))
        report.add(pace((at // HOUR_MS, row, run) for at, row, run in used_by_runs(history, current.leases)))
        return report


def parse_query(
    by: str,
    since: str,
    until: str,
    moments: LogTimes,
    *,
    zone: tzinfo | None = None,
    project: str = "",
    model: str = "",
    option: str = "",
) -> UsageQuery:
    """A question in the words of the command line or the API. `option`: what stands before the names, for errors."""
    dimensions = parse_dimensions(by, f"{option}by")
    if model and parse_selector(model).scope != "model":
        raise BadRequest(
            f"{option}model {model}: valid is a model or a selector of models, e.g. anthropic/claude-opus-*"
        )
    period = parse_period(since, until, moments, zone, (f"{option}since", f"{option}until"))
    return UsageQuery(dimensions, period, project, model)
