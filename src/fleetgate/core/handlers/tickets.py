"""Commands about tickets: speak again, leave the queue, move within it."""

from __future__ import annotations

from collections.abc import Callable

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.errors import BadRequest, NotFound
from fleetgate.core.model_names import shown
from fleetgate.core.queue.order import MAX_PRIORITY, order_key
from fleetgate.core.state.state import State
from fleetgate.core.ticket_states import PASSED_OVER


class TicketHandler:
    """The tickets of one state."""

    def __init__(self, state: State, record: Callable[[ev.Event], None]) -> None:
        self._state = state
        self._record = record

    def ask(self, command: cmd.Ask, now: int) -> None:
        ticket = self._state.tickets.get(command.id)
        if ticket is not None and ticket.state == PASSED_OVER:
            self._record(ev.Asked(command.id))

    def cancel(self, command: cmd.Cancel, now: int) -> None:
        lease = self._state.leases.get(command.id)
        if lease is not None and not lease.claimed:
            self._record(ev.Returned(command.id))
        ticket = self._state.tickets.get(command.id)
        if ticket is None:
            raise NotFound(f"no ticket {shown(command.id)} in the queue: see `fleetgate queue`")
        self._record(ev.Cancelled(ticket.id, command.by, ticket.holder, ticket.wake, ticket.command, ticket.job))

    def bump(self, command: cmd.Bump, now: int) -> None:
        state = self._state
        ticket = state.tickets.get(command.id)
        if ticket is None:
            raise NotFound(f"no ticket {shown(command.id)} in the queue: see `fleetgate queue`")
        if command.priority is None:
            self._record(ev.Bumped(ticket.id, min(state.front, 0) - 1, ticket.priority))
            return
        if not -MAX_PRIORITY <= command.priority <= MAX_PRIORITY:
            raise BadRequest(f"priority {command.priority}: valid is -{MAX_PRIORITY} to {MAX_PRIORITY}")
        order = order_key(ticket.since, command.priority, ticket.queued_at, state.seniority_ms)
        self._record(ev.Bumped(ticket.id, order, command.priority))
