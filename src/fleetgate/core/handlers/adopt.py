"""Adopt: count a process that is running already, whatever the limits are.

Its lease is unknown to the log: the log lost it, the process started while there was no store, or it was wrongly
declared lost.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Ticket
from fleetgate.core.errors import BadRequest
from fleetgate.core.handlers.acquire import new_ticket
from fleetgate.core.handlers.request_validation import RequestValidator
from fleetgate.core.model_names import parse_model, shown
from fleetgate.core.queue.order import MAX_PRIORITY, order_key
from fleetgate.core.queue.queue import Candidate, Queue
from fleetgate.core.state.state import State
from fleetgate.core.ticket_states import PASSED_OVER


class AdoptHandler:
    """The adopted processes of one state."""

    def __init__(self, state: State, validator: RequestValidator, record: Callable[[ev.Event], None]) -> None:
        self._state = state
        self._validator = validator
        self._record = record

    def adopt(self, command: cmd.Adopt, now: int) -> None:
        state, ident = self._state, command.ticket.id
        lease = state.leases.get(ident)
        if lease is None:
            self._grant_regardless(command, now)
        elif lease.ticket.job and lease.ticket.holder != command.ticket.holder:
            raise BadRequest(f"{shown(ident)} is already run by another worker")
        if command.child and state.leases[ident].child != command.child:
            self._record(ev.Claimed(ident, command.child))

    def _grant_regardless(self, command: cmd.Adopt, now: int) -> None:
        """Grant slots without a look at the pools: the process is using them."""
        state, old = self._state, command.ticket
        waiting = state.tickets.get(old.id)
        if waiting is not None and waiting.job != old.job:
            raise BadRequest(f"{shown(old.id)} is {'a' if waiting.job else 'no'} job")
        spec = old.spec if waiting is None else waiting.spec
        if old.job:
            spec = replace(spec, host=old.spec.host)  # where it runs, even if it could have run elsewhere
        request = cmd.Acquire(
            old.id,
            spec,
            old.holder,
            wait=False,
            priority=max(min(old.priority, MAX_PRIORITY), -MAX_PRIORITY),
            renew_ms=old.renew_ms,
            job=old.job,
            any_host=old.any_host,
        )
        queue = self._validator.valid_queue(request, now)
        candidate = queue.by_model.get(command.model) or self._left_set(queue, command.model)
        if candidate is None:
            raise BadRequest(f"model {shown(command.model)}: valid are {', '.join(queue.by_model) or 'none'}")
        if waiting is not None:
            self._make_waiting(waiting, old)
        at = min(old.queued_at, now)
        ticket = replace(
            new_ticket(state, request, queue, now),
            since=min(old.since, now),
            order=order_key(min(old.since, now), request.priority, at, state.seniority_ms),
            queued_at=at,
            wake=old.wake,
            command=old.command,
            key=old.key,
            role=old.role,
            session=old.session,
            bound=old.bound,
            client=old.client,
            name=old.name,
            log=old.log,
        )
        if old.job:
            ticket = replace(ticket, expires_at=old.expires_at)
        most = candidate.max_hold_ms
        self._record(
            ev.Granted(
                id=old.id,
                model=command.model,
                charge_ms=state.expected_hold_ms(spec),
                ticket=ticket if waiting is None else None,
                ends_at=max(now + most - max(command.held_ms, 0), now + 1) if most else 0,
                adopted=command.why,
            )
        )

    def _left_set(self, queue: Queue, model: str) -> Candidate | None:
        """The candidate of a process that began when its account was one of the set that the request may use."""
        account, _, name = model.partition("/")
        plain = f"{account.partition('@')[0]}/{name}"
        return self._state.candidate_maker.make(queue.spec, parse_model(model)) if plain in queue.spec.models else None

    def _make_waiting(self, ticket: Ticket, old: Ticket) -> None:
        """Bring the ticket that the log still has for this process into the queue, so that it can be granted."""
        if not ticket.job:
            if ticket.state == PASSED_OVER:
                self._record(ev.Asked(ticket.id))
            return
        if not ticket.away:
            self._record(ev.Withdrawn(ticket.id))  # the offer of another worker
        if ticket.confirm:
            self._record(ev.Approved(ticket.id))
        self._record(ev.Offered(ticket.id, old.holder, old.spec.host, old.wake, old.asks))
