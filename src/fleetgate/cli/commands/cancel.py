"""`fleetgate cancel`: removes tickets from the queue, and stops jobs."""

from __future__ import annotations

import click

from fleetgate.cli import exit_codes
from fleetgate.cli.click_helpers import entered_text, json_option, opened_gate, tell, whoami
from fleetgate.cli.completion_values import complete_cancellable
from fleetgate.cli.read_only_gate import note, say_json
from fleetgate.core import commands as cmd
from fleetgate.core.errors import NotFound
from fleetgate.core.state.state import State
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.jobs import actions, job_store
from fleetgate.present.name_lookup import find_id, waiting_ticket, whose


@click.command(short_help="Remove tickets from the queue; stop jobs.")
@click.argument("idents", metavar="ID…", nargs=-1, shell_complete=complete_cancellable, required=True)
@json_option
def command(idents: tuple[str, ...], as_json: bool) -> int:
    """Remove tickets from the queue, and stop jobs. A waiting `fleetgate run` exits with 75.

    The first four characters of an ID are enough; `fleetgate queue` lists them. If one of several is not in the queue,
    none is cancelled.

    \b
    fleetgate cancel 7kq2m9x4ab
    fleetgate cancel 7kq b3d

    Exit codes: 0; 64 when an ID is not in the queue.
    """
    gate = opened_gate(configured=False)
    state = gate.read()
    jobs = {ident: _job(gate, state, ident) for ident in idents}
    tickets = {ticket.id: ticket for ticket in (waiting_ticket(state, ident) for ident in idents if not jobs[ident])}
    by = whoami(gate.host)
    cancelled, code = [], exit_codes.OK
    for ident in dict.fromkeys(filter(None, jobs.values())):
        result = actions.cancel(gate, ident, by)
        cancelled.append(ident)
        if not as_json:
            tell(f"job {ident} {'is being stopped' if result == 'ending' else 'was cancelled'}")
    decided = gate.decide([cmd.Cancel(ident, by) for ident in tickets]) if tickets else []
    for ticket, each in zip(tickets.values(), decided, strict=True):
        if each.error is not None:  # it started, or left the queue, in the meantime
            note(str(each.error))
            code = exit_codes.exit_code(each.error)
            continue
        cancelled.append(ticket.id)
        if not as_json:
            tell(f"cancelled {ticket.id}: {whose(ticket)} left the queue{entered_text(each.events)}")
    if as_json:
        say_json({"cancelled": cancelled})
    return code


def _job(gate: DirectGate, state: State, prefix: str) -> str:
    """The job with this id or name; "" for a ticket."""
    try:
        ident = find_id(state, prefix)
    except NotFound:
        try:
            return job_store.find_job(gate, prefix)
        except NotFound:
            return ""
    return ident if job_store.find(gate.log, ident) is not None else ""
