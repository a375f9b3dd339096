"""`fleetgate bump`: move a ticket in the queue (rule A9)."""

from __future__ import annotations

import click

from fleetgate.cli.click_helpers import json_option, opened_gate, show_result
from fleetgate.cli.completion_values import complete_ticket
from fleetgate.core import commands as cmd
from fleetgate.core.errors import BadRequest
from fleetgate.core.model_names import shown
from fleetgate.core.queue.order import MAX_PRIORITY
from fleetgate.core.views.pool_and_lease_views import ticket_view
from fleetgate.present.name_lookup import find_id, whose
from fleetgate.present.text import place


@click.command(short_help="Move a ticket to the front of the queue.")
@click.argument("ident", metavar="ID", shell_complete=complete_ticket)
@click.option("--priority", metavar="N", help="Set this priority instead, -100 to 100; each point counts as 12s.")
@json_option
def command(ident: str, priority: str | None, as_json: bool) -> None:
    """Move a ticket to the front of the queue, or give it another priority.

    The first four characters of an ID are enough; `fleetgate queue` lists them. The ticket gets the next free slot;
    running agents keep theirs.

    \b
    fleetgate bump 7kq2m9x4ab
    fleetgate bump 7kq --priority 10

    Exit codes: 0; 64 when the ID is not in the queue.
    """
    number = None if priority is None else _priority(priority)
    gate = opened_gate(configured=False)
    state = gate.read()
    found = find_id(state, ident)
    lease = state.leases.get(found)
    if lease is not None:
        raise BadRequest(f"{found} is not waiting: it already has a slot, {whose(lease)}")
    ticket = state.tickets[found]
    gate.one(cmd.Bump(found, number))
    view = ticket_view(gate.state, found, gate.now())
    position, of, pool = (None, None, None) if view is None else (view.position, view.of or None, view.pool or None)
    level = ticket.priority if number is None else number
    said = {"id": found, "position": position, "priority": level, "entered": view is None, "of": of, "pool": pool}
    where = "started" if view is None else f"is now at position {place(view.position, view.of, view.pool)}"
    show_result(as_json, said, f"{found} {where}: {whose(ticket)}")


def _priority(text: str) -> int:
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not (digits.isascii() and digits.isdigit() and len(digits) < 6) or int(digits) > MAX_PRIORITY:
        raise BadRequest(f"--priority {shown(text)}: valid is a whole number from -{MAX_PRIORITY} to {MAX_PRIORITY}")
    return int(text)
