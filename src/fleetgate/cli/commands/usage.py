"""`fleetgate usage`: tokens and cost of a period, by project, model and more."""

from __future__ import annotations

import csv
import io
from datetime import tzinfo
from importlib.util import find_spec

import click
import msgspec

from fleetgate.cli.open_gate import load_config
from fleetgate.cli.output.table import Cell, Column, Screen, say
from fleetgate.cli.read_only_gate import note, opened, say_json
from fleetgate.config.errors import ConfigError
from fleetgate.config.install_hint import install_command
from fleetgate.core.errors import BadRequest
from fleetgate.present.log_time import LogTimes
from fleetgate.present.text import count, number_text, printable
from fleetgate.present.usage.period import zone_of
from fleetgate.present.usage.query import UsageQuery, current_usage, parse_query
from fleetgate.present.usage.report import (
    DEFAULT_BY,
    DEFAULT_SINCE,
    DIMENSIONS,
    UsageAmounts,
    UsageTable,
    UsageTotal,
    cost_text,
)

_AMOUNTS = (
    Column("CALLS", right=True),
    Column("IN", right=True),
    Column("CACHED", right=True),
    Column("OUT", right=True),
    Column("COST", right=True),
)


@click.command(short_help="Show tokens and cost by project, model and more.")
@click.option("--by", metavar="NAME,…", default=DEFAULT_BY, show_default=True, help=f"Any of {', '.join(DIMENSIONS)}.")
@click.option(
    "--since",
    metavar="TIME",
    default=DEFAULT_SINCE,
    show_default=True,
    help="An age (7d, 12h), a date (2026-01-31), today or yesterday.",
)
@click.option("--until", metavar="TIME", default="", help="The end; default: now.")
@click.option("--project", metavar="NAME", default="", help="Only this project.")
@click.option("--model", metavar="SELECTOR", default="", help="Only these models: anthropic, anthropic/claude-opus-*.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values, with all digits.")
def command(by: str, since: str, until: str, project: str, model: str, as_json: bool, as_csv: bool) -> None:
    """Show what calls and runs used: tokens and cost.

    IN is input that was not read from a cache, CACHED input that was. A cost of "?" is not known; one with "≥" is
    known only in part; "~" marks sums with estimates. Usage is summed by the hour: periods begin and end with one.

    \b
    fleetgate usage --by day --since 30d
    fleetgate usage --by run --since today --project web
    fleetgate usage --by project,model --since 2026-01-01 --until 2026-02-01 --csv
    """
    if as_json and as_csv:
        raise BadRequest("--json and --csv: choose one")
    with opened(configured=False) as gate:
        counted = current_usage(gate.replica.catch_up())
        query = parse_query(
            by, since, until, LogTimes(gate), zone=configured_zone(), project=project, model=model, option="--"
        )
        report = query.answer(gate.log, counted)
    if report.period.low > query.period.low:
        note(f"runs are known since {report.period.start(report.period.low)}: the history begins there")
    if as_json:
        say_json(report.shape())
    elif as_csv:
        say(_csv(report))
    else:
        _draw(report, query)


def configured_zone() -> tzinfo | None:
    """The configured time zone. With an invalid config file usage can be read, too."""
    try:
        loaded = load_config()
    except ConfigError as error:
        note(f"days and hours are those of this machine's time zone, as the config file is not valid: {error}")
        return None
    return None if loaded is None else zone_of(loaded.settings)


def _csv(report: UsageTable) -> str:
    amounts = UsageAmounts.__struct_fields__
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((*report.by, *amounts))
    for line in msgspec.to_builtins(report.shape().rows):
        writer.writerow([_csv_value(line[name]) for name in (*report.by, *amounts)])
    return text.getvalue()


def _csv_value(value: object) -> object:
    """A name that could move the cursor is made harmless."""
    return str(value).lower() if isinstance(value, bool) else printable(value) if isinstance(value, str) else value


def _draw(report: UsageTable, query: UsageQuery) -> None:
    screen = Screen()
    rows = report.rows()
    period = report.period
    if not rows:
        for line in _nothing(query):
            screen.line(line)
        screen.show()
        return
    columns = [*(Column(name.upper(), least=10, name=True) for name in report.by), *_AMOUNTS]
    lines = [[*(Cell(label or "-") for label in labels), *_cells(usage)] for labels, usage in rows]
    total = report.total
    blank = [""] * (len(report.by) - 1)
    screen.line(Cell(f"{_short(period.start(period.low))} to {_short(period.end())}", "bold"))
    screen.line()
    screen.table(columns, [*lines, [Cell("total", "bold"), *blank, *_cells(total)]])
    marks = _marks(total)
    if marks:
        screen.line()
    for mark in marks:
        screen.prose(mark)
    screen.show()


def _short(moment: str) -> str:
    return moment[:16].replace("T", " ")


def _cells(usage: UsageTotal) -> list[str | Cell]:
    mark = "~" if usage.estimated else ""
    numbers = (usage.calls, usage.input + usage.cache_write, usage.cache_read, usage.output)
    return [*(f"{mark}{number_text(number)}" if number else "-" for number in numbers), cost_text(usage)]


def _marks(total: UsageTotal) -> list[str]:
    """What the marks in the table mean, where there are any."""
    marks = []
    if not total.cost_complete:
        marks.append(_no_price())
    if total.estimated:
        what = (
            f"{count(total.estimated_calls, 'call')} ended unseen"
            if total.estimated_calls
            else "some runs ended unseen"
        )
        marks.append(f"~ includes estimates: {what}, so what was reserved counts")
    if total.partial_calls:
        marks.append(f"{count(total.partial_calls, 'response')} broke off, and counted as far as they came")
    return marks


def _no_price() -> str:
    """What to do about a cost that is not known."""
    text = "some models have no price: set it in [prices] of the config"
    if find_spec("genai_prices") is None:
        text += f", or install the published prices: `{install_command('prices')}`"
    return text


def _nothing(query: UsageQuery) -> list[str]:
    period = query.period
    only = [f"{name} {value}" for name, value in (("project", query.project), ("model", query.model)) if value]
    where = f" for {' and '.join(only)}" if only else ""
    return [
        f"nothing was counted{where} from {_short(period.start(period.low))} to {_short(period.end())}",
        "to count some: start agents with `fleetgate run`, or send calls through the proxy (`fleetgate env claude`)",
        "for an earlier period: fleetgate usage --since 30d",
    ]
