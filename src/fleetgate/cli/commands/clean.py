"""`fleetgate clean`: deletes finished jobs, their output, and the kept output of runs."""

from __future__ import annotations

from time import time_ns

import click

from fleetgate.cli.click_helpers import json_option, opened_gate, read_duration_ms, show_result
from fleetgate.jobs import actions
from fleetgate.present.text import count


@click.command(short_help="Delete finished jobs, and output of jobs and runs.")
@click.option("--older", metavar="DURATION", help="Only jobs that finished longer ago (default: `jobs.keep`, 7d).")
@click.option("--all", "everything", is_flag=True, help="All finished jobs.")
@json_option
def command(older: str | None, everything: bool, as_json: bool) -> None:
    """Delete finished jobs, their output, and the output of finished runs that `run --log` kept.

    Workers, and runs with --log, do so automatically after `jobs.keep`.

    \b
    fleetgate clean
    fleetgate clean --older 1d
    fleetgate clean --all
    """
    gate = opened_gate()
    older_ms = read_duration_ms("--older", older, zero=True)
    keep_ms = 0 if everything else gate.settings.jobs.keep_ms if older_ms is None else older_ms
    before_ms = time_ns() // 1_000_000 - keep_ms + (1 if everything else 0)
    gone, runs = actions.clean(gate, before_ms), actions.clean_runs(gate, before_ms)
    output = f", and the output of {count(len(runs), 'run')}" if runs else ""
    show_result(as_json, {"forgotten": gone, "runs": runs}, f"deleted {count(len(gone), 'job')}{output}")
