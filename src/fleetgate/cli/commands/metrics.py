"""`fleetgate metrics`: a summary of finished runs by model, from the history alone."""

from __future__ import annotations

import click

from fleetgate.cli.output.table import Cell, Column, Screen
from fleetgate.cli.read_only_gate import note, opened, say_json
from fleetgate.core.errors import BadRequest
from fleetgate.core.model_names import shown
from fleetgate.present.log_time import LogTimes
from fleetgate.present.run_statistics import Sum, Sums, percentile, sum_up, sums_json
from fleetgate.present.text import span

_MOST_HOURS = 10 * 366 * 24
_COLUMNS = (
    Column("MODEL", least=14, name=True),
    Column("KIND"),
    Column("RUNS", right=True),
    Column("OK", right=True),
    Column("FAILED", least=6),
    Column("DEFERRED", right=True, spare=True),
    Column("RECLAIMED", right=True, spare=True),
    Column("429", right=True),
    Column("WAIT P50", right=True),
    Column("P95", right=True),
    Column("HOLD P50", right=True),
    Column("P95", right=True),
)


@click.command(short_help="Summarize finished runs by model.")
@click.option("--hours", metavar="N", default="24", show_default=True, help="Number of hours to include.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(hours: str, as_json: bool) -> None:
    """Summarize the last hours by model: runs, results, refusals, rate limits, waiting and running times.

    P50 and P95: half of the runs, and 95 of 100, waited (held their slots) no longer than that.

    \b
    fleetgate metrics --hours 168
    fleetgate metrics --json | jq '.models[] | {model, runs, wait_p95_s}'
    """
    back_ms = _hours_ms(hours)
    with opened(configured=False) as gate:
        last = gate.replica.catch_up().seq
        moments = LogTimes(gate)
        sums, since = sum_up(gate.log, moments.now - back_ms, last)
        if since > moments.now - back_ms:
            note(f"the history begins at {moments.local(since)}")
    rows = [sums.models[key] for key in sorted(sums.models)]
    if as_json:
        say_json(sums_json(float(hours), since, sums, moments))
    else:
        _draw(hours, rows, sums)


def _hours_ms(text: str) -> int:
    try:
        hours = float(text)
    except ValueError:
        hours = 0.0
    if not 0 < hours <= _MOST_HOURS or not text.isascii():
        raise BadRequest(f"--hours {shown(text)}: valid is a number of hours above 0, up to {_MOST_HOURS}")
    return int(hours * 3_600_000)


def _draw(hours: str, rows: list[Sum], sums: Sums) -> None:
    screen = Screen()
    if not rows and not sums.incidents:
        screen.line(f"nothing finished in the last {hours}h (running now: fleetgate ps)")
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
        screen.line(f"also: {', '.join(left)}")
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
