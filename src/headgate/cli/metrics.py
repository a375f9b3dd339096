"""`headgate metrics`: finished runs summed up by model, from the history alone (SPEC O7)."""

from __future__ import annotations

from collections import Counter
from math import ceil

import click
from msgspec import Struct, field

from headgate.cli.drawing import Cell, Column, Screen, span
from headgate.cli.listing import Json, Moments, note, opened, say_json
from headgate.core import events as ev
from headgate.core.errors import BadRequest
from headgate.core.names import shown
from headgate.log.protocol import Log

_MOST_HOURS = 10 * 366 * 24
_COLUMNS = (
    Column("MODEL", least=14, name=True),
    Column("KIND"),
    Column("RUNS", right=True),
    Column("OK", right=True),
    Column("FAILED", least=6),
    Column("DEFERRED", right=True, spare=True),
    Column("TAKEN BACK", right=True, spare=True),
    Column("429", right=True),
    Column("WAIT P50", right=True),
    Column("P95", right=True),
    Column("HOLD P50", right=True),
    Column("P95", right=True),
)


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
        elif isinstance(event, ev.Reduced) or (isinstance(event, ev.Refused) and event.why in ("drop", "exact")):
            self.reductions[event.kind, event.pool] += 1
        elif isinstance(event, ev.Expired | ev.Cancelled | ev.Dropped | ev.Bypassed):
            self.left[str(event.__struct_config__.tag)] += 1

    def _of(self, model: str, kind: str) -> Sum:
        return self.models.setdefault((model, kind), Sum(model, kind))


@click.command(short_help="Finished runs summed up by model.")
@click.option("--hours", metavar="N", default="24", show_default=True, help="How far back to look.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(hours: str, as_json: bool) -> int:
    """Sum up the last hours by model: runs, how they ended, refusals, rate limits, waiting and holding times.

    P50 and P95: half of the runs, and 95 of 100, waited (held their seats) no longer than that.

    \b
    headgate metrics --hours 168
    headgate metrics --json | jq '.models[] | {model, runs, wait_p95_s}'
    """
    back_ms = _hours_ms(hours)
    with opened(configured=False) as gate:
        last = gate.replica.catch_up().seq
        moments = Moments(gate)
        since = moments.now - back_ms
        kept = next(iter(gate.log.history()), None)
        if kept is not None and kept[0] > 1 and kept[1] > since:
            since = kept[1]
            note(f"history goes back to {moments.local(since)} only")
        sums = Sums()
        for _, _, event in gate.log.history(_seq_before(gate.log, since, last)):
            sums.add(event)
    rows = [sums.models[key] for key in sorted(sums.models)]
    if as_json:
        say_json(_json(float(hours), since, rows, sums, moments))
    else:
        _draw(hours, rows, sums)
    return 0


def _hours_ms(text: str) -> int:
    try:
        hours = float(text)
    except ValueError:
        hours = 0.0
    if not 0 < hours <= _MOST_HOURS or not text.isascii():
        raise BadRequest(f"--hours {shown(text)}: valid is a number of hours above 0, up to {_MOST_HOURS}")
    return int(hours * 3_600_000)


def _seq_before(log: Log, since: int, last: int) -> int:
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


def _json(hours: float, since: int, rows: list[Sum], sums: Sums, moments: Moments) -> Json:
    return {
        "hours": hours,
        "since": moments.utc(since),
        "models": [_row_json(row) for row in rows],
        "pools": [
            {"pool": pool, "kind": kind, "rate_limits": number, "reductions": sums.reductions[kind, pool]}
            for (kind, pool), number in sorted(sums.incidents.items())
        ],
        **sums.left,
    }


def _row_json(row: Sum) -> Json:
    return {
        "model": row.model or None,
        "kind": row.kind,
        "runs": row.outcomes.total(),
        "ok": row.outcomes["ok"],
        "failed": row.failed,
        "deferrals": row.deferrals,
        "reclaims": dict(row.reclaims),
        "rate_limits": row.outcomes["rate_limited"],
        "wait_p50_s": _seconds(percentile(row.waited_ms, 50)),
        "wait_p95_s": _seconds(percentile(row.waited_ms, 95)),
        "hold_p50_s": _seconds(percentile(row.held_ms, 50)),
        "hold_p95_s": _seconds(percentile(row.held_ms, 95)),
    }


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def _draw(hours: str, rows: list[Sum], sums: Sums) -> None:
    screen = Screen()
    if not rows and not sums.incidents:
        screen.line(f"nothing ended in the last {hours}h (what runs now: headgate ps)")
    if rows:
        screen.line(Cell(f"the last {hours}h", "bold"))
        screen.line()
        screen.table(_COLUMNS, [_row(row) for row in rows])
    if sums.incidents:
        screen.line()
    for (kind, pool), number in sorted(sums.incidents.items()):
        lowered = sums.reductions[kind, pool]
        then = f", auto-reduced {_times(lowered)}" if lowered else ""
        screen.line(f"{pool} ({kind}): rate-limited {_times(number)}{then}")
    left = [f"{number} {name}" for name, number in sums.left.items() if number]
    if left:
        screen.line()
        screen.line(f"besides: {', '.join(left)}")
    screen.show()


def _row(row: Sum) -> list[str | Cell]:
    failed = ", ".join(f"{number} {outcome}" for outcome, number in row.failed.items())
    limited = row.outcomes["rate_limited"]
    times = [percentile(values, percent) for values in (row.waited_ms, row.held_ms) for percent in (50, 95)]
    return [
        Cell(row.model or "-", "bold"),
        row.kind,
        str(row.outcomes.total()),
        str(row.outcomes["ok"]),
        Cell(failed or "-", "red" if failed else "dim"),
        str(row.deferrals or "-"),
        str(row.reclaims.total() or "-"),
        Cell(str(limited or "-"), "red" if limited else ""),
        *("-" if ms is None else _short(ms) for ms in times),
    ]


def _short(ms: int) -> str:
    return f"{ms}ms" if 0 < ms < 1000 else f"{ms / 1000:.1f}s" if 0 < ms < 10_000 else span(ms)


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
