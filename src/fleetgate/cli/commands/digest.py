"""`fleetgate digest`: what happened since yesterday, on one screen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, tzinfo
from typing import TypeVar

import click

from fleetgate.cli.commands.usage import configured_zone
from fleetgate.cli.output.table import Cell, Column, Screen
from fleetgate.cli.read_only_gate import note, opened, say_json
from fleetgate.present.digest import ChangeShape, Digest, DigestLimitShape, DigestShape, FailureShape
from fleetgate.present.log_time import LogTimes
from fleetgate.present.run_statistics import seq_before
from fleetgate.present.text import count, number_text, span
from fleetgate.present.usage.period import parse_period
from fleetgate.present.usage.query import UsageQuery, current_usage
from fleetgate.present.usage.report import UsageTable, UsageTotal, cost_text
from fleetgate.present.wall_time import parse_moment_ms

_MOST_FAILURES = 6
_MOST_LINES = 5
_MODELS = 3
_FAILURE_COLUMNS = (
    Column("WHEN"),
    Column("ID"),
    Column("WHAT", least=12, long=True),
    Column("MODEL", least=12, name=True, spare=True),
    Column("WHY", least=16, long=True),
)

T = TypeVar("T")


@click.command(short_help="What happened since yesterday, on one screen.")
@click.option(
    "--since",
    metavar="TIME",
    default="yesterday",
    show_default=True,
    help="Since when: 10m, 12h, 7d, today, yesterday, 2026-01-31.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with every failure, limit and change.")
def command(since: str, as_json: bool) -> None:
    """Show what happened: runs and jobs, failures, limits, cost, and changes of settings.

    \b
    fleetgate digest
    fleetgate digest --since 7d
    fleetgate digest --json | jq '.failures[] | {name, text}'
    """
    with opened(configured=False) as gate:
        state = gate.replica.catch_up()
        moments = LogTimes(gate)
        zone = configured_zone()
        began = parse_moment_ms(since, "--since", moments.now + moments.offset_ms, zone) - moments.offset_ms
        kept = next(iter(gate.log.history()), None)
        complete = kept is None or kept[0] <= 1 or kept[1] <= began
        digest = Digest(moments)
        for seq, at, event in gate.log.history(seq_before(gate.log, began, state.seq)):
            digest.add(seq, at, event)
        period = parse_period(since, "", moments, zone, ("--since", ""))
        used = UsageQuery(("model",), period).answer(gate.log, current_usage(state))
        running, waiting = len(state.leases), len(state.tickets)
    if as_json:
        say_json(_shape(digest, used, began, moments, complete, running, waiting))
        return
    if not complete and kept is not None:
        note(f"the history begins at {moments.local(kept[1])}")
    screen = Screen()
    when = datetime.fromtimestamp((began + moments.offset_ms) / 1000, zone).strftime("%Y-%m-%d %H:%M")
    screen.line(Cell(f"since {when} ({span(moments.now - began)})", "bold"))
    _draw_runs(screen, digest, running, waiting)
    _draw_usage(screen, used)
    _draw_failures(screen, digest.failures, zone)
    _draw_list(
        screen, "limits", digest.limits, _limit_text, "fleetgate history --type paused,reduced,refused,backed_off"
    )
    _draw_list(
        screen, "changes", digest.changes[::-1], lambda change: _change_text(change, zone), "fleetgate digest --json"
    )
    screen.show()


def _shape(
    digest: Digest, used: UsageTable, began: int, moments: LogTimes, complete: bool, running: int, waiting: int
) -> DigestShape:
    return DigestShape(
        since=moments.utc(began),
        until=moments.utc(moments.now),
        complete=complete,
        running=running,
        waiting=waiting,
        runs=digest.runs(),
        jobs=dict(digest.jobs),
        calls=digest.calls,
        failures=digest.failures,
        limits=digest.limits,
        usage=used.shape(),
        changes=digest.changes,
    )


def _draw_runs(screen: Screen, digest: Digest, running: int, waiting: int) -> None:
    runs = digest.runs()
    parts = [f"{runs.ok} ok"] if runs.ok else []
    parts += [f"{number} {outcome}" for outcome, number in runs.failed.items()]
    parts += [f"{number} stopped by {by}" for by, number in runs.stopped.items()]
    parts += [f"{number} {_LOST.get(cause, cause)}" for cause, number in runs.lost.items()]
    text = f"{count(runs.ended, 'run')}{': ' if parts else ''}{', '.join(parts)}"
    screen.prose(text if runs.ended else "no runs ended", " " * 12, _label("runs"))
    if digest.jobs:
        screen.prose(", ".join(f"{number} {state}" for state, number in digest.jobs.items()), " " * 12, _label("jobs"))
    if (runs.wait_p95_s or 0) >= 1:
        waits = f"half waited at most {_seconds(runs.wait_p50_s)}, 95 of 100 at most {_seconds(runs.wait_p95_s)}"
        screen.prose(f"{waits}{f'; {runs.refused} refused' if runs.refused else ''}", " " * 12, _label("waiting"))
    screen.prose(f"{running} running, {waiting} waiting", " " * 12, _label("now"))


_LOST = {"lost": "whose process was gone", "forced": "freed by force", "overstayed": "that stayed too long"}


def _seconds(value: float | None) -> str:
    return span(int((value or 0) * 1000))


def _draw_usage(screen: Screen, used: UsageTable) -> None:
    total = used.total
    if not total.calls and not total.tokens:
        return
    models = [f"{labels[0] or 'no model'} {cost_text(usage)}" for labels, usage in used.rows()[:_MODELS]]
    more = f", {len(used.rows()) - _MODELS} more" if len(used.rows()) > _MODELS else ""
    screen.prose(f"{_amounts(total)} ({', '.join(models)}{more})", " " * 12, _label("used"))


def _amounts(total: UsageTotal) -> str:
    return f"{cost_text(total)}, {number_text(total.tokens)} tokens in {count(total.calls, 'call')}"


def _draw_failures(screen: Screen, failures: list[FailureShape], zone: tzinfo | None) -> None:
    if not failures:
        return
    screen.line()
    screen.line(Cell(f"failures {len(failures)}", "bold"))
    rows: list[list[str | Cell]] = [
        [
            _clock(each.at, zone),
            each.id,
            ": ".join(part for part in (each.name, each.command) if part) or "-",
            each.model or ("job" if each.job else "-"),
            Cell(each.text, "red"),
        ]
        for each in failures[-_MOST_FAILURES:][::-1]
    ]
    screen.table(_FAILURE_COLUMNS, rows)
    if len(failures) > _MOST_FAILURES:
        screen.line(f"and {len(failures) - _MOST_FAILURES} earlier: fleetgate digest --json")


def _draw_list(screen: Screen, name: str, found: Sequence[T], text: Callable[[T], str], more: str) -> None:
    if not found:
        return
    screen.line()
    screen.line(Cell(f"{name} {len(found)}", "bold"))
    for each in found[:_MOST_LINES]:
        screen.prose(text(each), "  ")
    if len(found) > _MOST_LINES:
        screen.line(f"and {len(found) - _MOST_LINES} more: {more}")


def _limit_text(limit: DigestLimitShape) -> str:
    times = "once" if limit.times == 1 else f"{limit.times} times"
    if limit.kind == "budget":
        return f"budget {limit.what} was used to {limit.percent}%"
    if limit.kind == "backoff":
        return f"{limit.what} was backed off {times} ({limit.reason})"
    reduced = f", its limit lowered {limit.reductions} times" if limit.reductions > 1 else ""
    reduced = ", its limit lowered once" if limit.reductions == 1 else reduced
    return (
        f"{limit.what} was rate-limited {times}{reduced}" if limit.times else f"{limit.what}{reduced.removeprefix(',')}"
    )


def _change_text(change: ChangeShape, zone: tzinfo | None) -> str:
    return f"{_clock(change.at, zone)}  {change.text}"


def _clock(at: str | None, zone: tzinfo | None) -> str:
    moment = datetime.fromisoformat(at or "1970-01-01T00:00:00Z").astimezone(zone)
    return moment.strftime("%m-%d %H:%M")


def _label(name: str) -> list[Cell]:
    return [Cell(f"{name:<12}", "dim")]
