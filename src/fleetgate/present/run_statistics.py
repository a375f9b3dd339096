"""Statistics of finished runs by model, from the history alone (rule O7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from math import ceil

from msgspec import Struct, field

from fleetgate.core import events as ev
from fleetgate.core.limits import LOWERING
from fleetgate.log.protocol import Log
from fleetgate.present.json.state import Time
from fleetgate.present.log_time import LogTimes

HistoryRow = tuple[int, int, ev.Event]  # sequence number, log time, event


class ModelSumShape(Struct):
    """What became of one model's requests of one kind; the times are percentiles."""

    model: str | None
    kind: str
    runs: int
    ok: int
    failed: dict[str, int]
    deferrals: int
    reclaims: dict[str, int]
    rate_limits: int
    wait_p50_s: float | None
    wait_p95_s: float | None
    hold_p50_s: float | None
    hold_p95_s: float | None


class PoolSumShape(Struct):
    pool: str
    kind: str
    rate_limits: int
    reductions: int


class SumsShape(Struct):
    """`fleetgate metrics --json`."""

    hours: float
    since: Time | None
    models: list[ModelSumShape]
    pools: list[PoolSumShape]
    expired: int
    cancelled: int
    dropped: int
    bypassed: int


class Sum(Struct):
    """What became of one model's requests of one kind."""

    model: str
    kind: str
    outcomes: Counter[str] = field(default_factory=Counter)
    deferrals: int = 0
    reclaims: Counter[str] = field(default_factory=Counter)
    waited_ms: list[int] = field(default_factory=list)
    held_ms: list[int] = field(default_factory=list)

    @property
    def failed(self) -> dict[str, int]:
        """How often by outcome, the most frequent first."""
        return {outcome: number for outcome, number in self.outcomes.most_common() if outcome != "ok"}


class Sums:
    """All that is counted of a stretch of history."""

    def __init__(self) -> None:
        self.models: dict[tuple[str, str], Sum] = {}
        self.incidents: Counter[tuple[str, str]] = Counter()  # rate limits by (kind, pool)
        self.reductions: Counter[tuple[str, str]] = Counter()
        self.left = Counter({"expired": 0, "cancelled": 0, "dropped": 0, "bypassed": 0})

    def add(self, event: ev.Event) -> None:
        if isinstance(event, ev.Released):
            row = self._of(event.model, event.kind)
            row.outcomes[event.outcome] += 1
            row.waited_ms.append(event.waited_ms)
            row.held_ms.append(event.held_ms)
        elif isinstance(event, ev.Reclaimed):
            self._of(event.model, event.kind).reclaims[event.cause] += 1
        elif isinstance(event, ev.Deferred):
            model = event.reason.model or next(iter(event.spec.models), "")
            self._of(model, event.spec.kind).deferrals += 1
        elif isinstance(event, ev.Paused):
            if event.incident:
                self.incidents[event.kind, event.pool] += 1
        elif isinstance(event, ev.Reduced) or (isinstance(event, ev.Refused) and event.why in LOWERING):
            self.reductions[event.kind, event.pool] += 1
        elif isinstance(event, ev.Expired | ev.Cancelled | ev.Dropped | ev.Bypassed):
            self.left[str(event.__struct_config__.tag)] += 1

    def _of(self, model: str, kind: str) -> Sum:
        return self.models.setdefault((model, kind), Sum(model, kind))


def sum_up(
    log: Log, since: int, last: int, read: Callable[[Iterator[HistoryRow]], Iterable[HistoryRow]] = iter
) -> tuple[Sums, int]:
    """The sums of the history since then, and since when it is kept at all. `read` is how it is gone through."""
    kept = next(iter(log.history()), None)
    if kept is not None and kept[0] > 1 and kept[1] > since:
        since = kept[1]
    sums = Sums()
    for _, _, event in read(log.history(seq_before(log, since, last))):
        sums.add(event)
    return sums, since


def seq_before(log: Log, since: int, last: int) -> int:
    """The sequence number after which events are no older than `since`: times never decrease along the log."""
    low, high = 0, last
    while low < high:
        middle = (low + high) // 2
        told = next(iter(log.history(middle)), None)
        if told is None or told[1] >= since:
            high = middle
        else:
            low = max(middle + 1, told[0])
    return low


def percentile(values: list[int], percent: int) -> int | None:
    """The smallest value that so many percent do not exceed; None of nothing."""
    if not values:
        return None
    return sorted(values)[ceil(len(values) * percent / 100) - 1]


def sums_json(hours: float, since: int, sums: Sums, moments: LogTimes) -> SumsShape:
    return SumsShape(
        hours=hours,
        since=moments.utc(since),
        models=[_row_json(sums.models[key]) for key in sorted(sums.models)],
        pools=[
            PoolSumShape(pool, kind, number, sums.reductions[kind, pool])
            for (kind, pool), number in sorted(sums.incidents.items())
        ],
        **sums.left,
    )


def _row_json(row: Sum) -> ModelSumShape:
    return ModelSumShape(
        model=row.model or None,
        kind=row.kind,
        runs=row.outcomes.total(),
        ok=row.outcomes["ok"],
        failed=row.failed,
        deferrals=row.deferrals,
        reclaims=dict(row.reclaims),
        rate_limits=row.outcomes["rate_limited"],
        wait_p50_s=_seconds(percentile(row.waited_ms, 50)),
        wait_p95_s=_seconds(percentile(row.waited_ms, 95)),
        hold_p50_s=_seconds(percentile(row.held_ms, 50)),
        hold_p95_s=_seconds(percentile(row.held_ms, 95)),
    )


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000
