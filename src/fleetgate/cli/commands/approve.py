"""`fleetgate approve`: let a job run that was submitted with --confirm (SPEC J5)."""

from __future__ import annotations

import click

from fleetgate.cli import exit_codes
from fleetgate.cli.click_helpers import json_option, opened_gate, tell, whoami
from fleetgate.cli.completion_values import complete_job
from fleetgate.cli.read_only_gate import say_json
from fleetgate.jobs import actions, job_store


@click.command(short_help="Let a job run that is held.")
@click.argument("idents", metavar="ID…", nargs=-1, shell_complete=complete_job, required=True)
@json_option
def command(idents: tuple[str, ...], as_json: bool) -> int:
    """Let jobs run that were submitted with --confirm: those that are held, or before their turn has come.

    \b
    fleetgate jobs --state held
    fleetgate approve 7kq

    Exit: 0; 64 when a job needs no approval, or there is none.
    """
    gate = opened_gate()
    found = [job_store.find_job(gate, ident) for ident in idents]
    for ident in found:
        actions.approve(gate, ident, whoami(gate.host))
        if not as_json:
            tell(f"{ident} is approved: it runs when a worker has a slot for it")
    if as_json:
        say_json({"approved": found})
    return exit_codes.OK
