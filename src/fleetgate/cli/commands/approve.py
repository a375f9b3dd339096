"""`fleetgate approve`: lets a job start that was submitted with --confirm."""

from __future__ import annotations

import click

from fleetgate.cli.click_helpers import json_option, opened_gate, show_result, whoami
from fleetgate.cli.completion_values import complete_job
from fleetgate.jobs import actions, job_store


@click.command(short_help="Approve a held job.")
@click.argument("idents", metavar="ID…", nargs=-1, shell_complete=complete_job, required=True)
@json_option
def command(idents: tuple[str, ...], as_json: bool) -> None:
    """Approve jobs that were submitted with --confirm, when they are held or before.

    \b
    fleetgate jobs --state held
    fleetgate approve 7kq

    Exit codes: 0; 64 when a job needs no approval, or does not exist.
    """
    gate = opened_gate()
    found = [job_store.find_job(gate, ident) for ident in idents]
    for ident in found:
        actions.approve(gate, ident, whoami(gate.host))
    lines = [f"{ident} is approved; it starts when a worker has a slot" for ident in found]
    show_result(as_json, {"approved": found}, *lines)
