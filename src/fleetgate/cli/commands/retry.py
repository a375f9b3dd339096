"""`fleetgate retry`: runs a finished job again."""

from __future__ import annotations

import click

from fleetgate.cli.click_helpers import json_option, opened_gate, show_result
from fleetgate.cli.completion_values import complete_job
from fleetgate.jobs import actions, job_store


@click.command(short_help="Run a finished job again.")
@click.argument("idents", metavar="ID…", nargs=-1, shell_complete=complete_job, required=True)
@json_option
def command(idents: tuple[str, ...], as_json: bool) -> None:
    """Queue finished jobs again, with the same ID and all their retries.

    \b
    fleetgate retry 7kq

    Exit codes: 0; 64 when a job has not finished, or does not exist.
    """
    gate = opened_gate()
    found = [job_store.find_job(gate, ident) for ident in idents]
    for ident in found:
        actions.retry(gate, ident)
    show_result(as_json, {"queued": found}, *(f"{ident} is queued again" for ident in found))
