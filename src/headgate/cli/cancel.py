"""`headgate cancel`: take tickets out of the line (SPEC A9)."""

from __future__ import annotations

import click

from headgate.cli import exits
from headgate.cli.listing import note, say_json
from headgate.cli.targets import entered_text, json_option, opened_gate, tell, whoami
from headgate.core import commands as cmd
from headgate.core.errors import BadRequest
from headgate.core.records import Ticket
from headgate.core.state import State
from headgate.present.targets import find_id, whose


@click.command(short_help="Take tickets out of the line.")
@click.argument("idents", metavar="ID…", nargs=-1, required=True)
@json_option
def command(idents: tuple[str, ...], as_json: bool) -> int:
    """Take tickets out of the line. Whoever waits with them is told, and exits 75.

    The beginning of an id is enough; `headgate queue` lists them. If one of several is not in line, none is cancelled.

    \b
    headgate cancel 7kq2m9x4ab
    headgate cancel 7kq b3d

    Exit: 0; 64 when an id is not in line.
    """
    gate = opened_gate(configured=False)
    state = gate.read()
    tickets = {ticket.id: ticket for ticket in (_ticket(state, ident) for ident in idents)}
    by = whoami(gate.host)
    decided = gate.decide([cmd.Cancel(ident, by) for ident in tickets])
    cancelled, code = [], exits.OK
    for ticket, each in zip(tickets.values(), decided, strict=True):
        if each.error is not None:  # it entered, or left, since we looked
            note(str(each.error))
            code = exits.exit_code(each.error)
            continue
        cancelled.append(ticket.id)
        if not as_json:
            tell(f"cancelled {ticket.id}: {whose(ticket)} left the line{entered_text(each.events)}")
    if as_json:
        say_json({"cancelled": cancelled})
    return code


def _ticket(state: State, prefix: str) -> Ticket:
    ident = find_id(state, prefix)
    lease = state.leases.get(ident)
    if lease is None:
        return state.tickets[ident]
    if not lease.claimed:
        return lease.ticket  # a seat was offered and nobody has taken it yet
    raise BadRequest(
        f"{ident} is not in line, it holds a seat: {whose(lease)}; `headgate release {ident} --force` takes it back"
    )
