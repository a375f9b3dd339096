"""What a user calls a request, and its command line with the model in it."""

from __future__ import annotations

from fleetgate.core.entities import Lease, Ticket
from fleetgate.signals.agents.placeholders import filled_text


def command_of(request: Ticket | Lease) -> str:
    """The command line; `{model}` is replaced where the model is known."""
    if isinstance(request, Lease):
        return filled_text(request.ticket.command, request.model)
    models = request.spec.models
    return filled_text(request.command, models[0] if len(models) == 1 else "")


def label(request: Ticket | Lease) -> str:
    """`review: opencode run fix the tests`: the name, if it has one, and the command line."""
    ticket = request.ticket if isinstance(request, Lease) else request
    return ": ".join(part for part in (ticket.name, command_of(request)) if part)
