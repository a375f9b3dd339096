"""A new ticket is made by position, which is fast: every field must be where the struct has it."""

from __future__ import annotations

from fleetgate.core import commands as cmd
from fleetgate.core.entities import Spec
from fleetgate.core.handlers.acquire import new_ticket
from fleetgate.core.state.state import State

T0 = 1_800_000_000_000


def test_every_field_of_a_new_ticket_is_what_its_request_said():
    spec = Spec(("umans/coder",), host="h1", project="web")
    command = cmd.Acquire(
        "r1", spec, "holder", since=T0 - 7, priority=3, expires_ms=50, wake="wake", command="command", key="key",
        role="role", session="session", bound="bound", client="client", renew_ms=900, asks=("umans",), job=True,
        any_host=True, confirm=True, not_before=T0 + 5,
    )  # fmt: skip
    state = State()
    ticket = new_ticket(state, command, state.queue(spec), T0)
    for name in ("id", "spec", "holder", "since", "priority", "wake", "command", "key", "role", "session", "bound",
                 "client", "renew_ms", "asks", "job", "any_host", "confirm", "not_before"):  # fmt: skip
        assert getattr(ticket, name) == getattr(command, name), name
    assert (ticket.queued_at, ticket.expires_at, ticket.arrival) == (T0, T0 + 50, 1)
    assert (ticket.away, ticket.stalled_at, ticket.held) == (True, 0, False)
    assert ticket.renew_by > T0
    assert ticket.order != ticket.arrival
