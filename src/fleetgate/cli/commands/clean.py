"""`fleetgate clean`: deletes finished jobs and their output."""

from __future__ import annotations

from time import time_ns

import click

from fleetgate.cli.click_helpers import json_option, opened_gate, read_duration_ms, show_result
from fleetgate.jobs import actions
from fleetgate.present.text import count


@click.command(short_help="Delete finished jobs and their output.")
@click.option("--older", metavar="DURATION", help="Only jobs that finished longer ago (default: `jobs.keep`, 7d).")
@click.option("--all", "everything", is_flag=True, help="All finished jobs.")
@json_option
def command(older: str | None, everything: bool, as_json: bool) -> None:
    """Delete finished jobs and their output. Workers do so automatically after `jobs.keep`.

    \b
    fleetgate clean
    fleetgate clean --older 1d
    fleetgate clean --all
    """
    gate = opened_gate()
    older_ms = read_duration_ms("--older", older, zero=True)
    keep_ms = 0 if everything else gate.settings.jobs.keep_ms if older_ms is None else older_ms
    gone = actions.clean(gate, time_ns() // 1_000_000 - keep_ms + (1 if everything else 0))
    show_result(as_json, {"forgotten": gone}, f"deleted {count(len(gone), 'job')}")
