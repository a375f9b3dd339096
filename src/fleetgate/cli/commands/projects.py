"""`fleetgate projects`: what each project has at the gate, and its fair share."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from fleetgate.cli.click_helpers import json_option
from fleetgate.cli.output.table import Column, show_table
from fleetgate.cli.read_only_gate import current, opened, say_json
from fleetgate.present.json.projects import ProjectShape, list_projects, share_text
from fleetgate.present.log_time import LogTimes
from fleetgate.present.text import span

_COLUMNS = (
    Column("PROJECT", least=12, name=True),
    Column("RUNNING", right=True),
    Column("SLOTS", right=True),
    Column("WAITING", right=True),
    Column("LONGEST WAIT", right=True),
    Column("WEIGHT", right=True),
    Column("SHARE", right=True),
    Column("OF", least=8),
)


@click.command(short_help="What each project has at the gate, and its fair share.")
@json_option
def command(as_json: bool) -> None:
    """List the projects that have something at the gate: running, waiting, weight and fair share.

    SHARE is the part of the slots in use that the project has, and its fair share by weight, in the pool where it is
    the furthest below that. A project that shares no pool with another has none.

    \b
    fleetgate projects
    fleetgate projects --json | jq '.projects[].shares'
    """
    with opened() as gate:
        shapes = list_projects(current(gate), LogTimes(gate))
    if as_json:
        say_json({"projects": shapes})
        return
    now = datetime.now(UTC)
    show_table(_COLUMNS, [_row(shape, now) for shape in shapes], "no project has anything at the gate")


def _row(shape: ProjectShape, now: datetime) -> list[str]:
    waited = now - datetime.fromisoformat(shape.oldest) if shape.oldest else None
    return [
        shape.project,
        str(shape.running),
        str(shape.slots),
        str(shape.waiting),
        span(max(int(waited.total_seconds() * 1000), 0)) if waited is not None else "-",
        str(shape.weight),
        share_text(shape.shares) or "-",
        shape.shares[0].pool if shape.shares else "-",
    ]
