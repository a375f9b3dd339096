"""Commands of workers about jobs (rules J2, J5), and the end of a job.

A job's ticket is unassigned until a worker offers to run it. The offer brings the holder and the host, and from then on
it is a ticket like any other. When the offer is withdrawn, or the worker dies before the job has run, the ticket is
unassigned again, at its old place. Two workers may offer at once: the later offer changes nothing, and its worker sees
that in the state.
"""

from __future__ import annotations

from collections.abc import Callable

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Ticket
from fleetgate.core.errors import BadRequest, NotFound
from fleetgate.core.model_names import shown
from fleetgate.core.state.state import State
from fleetgate.core.ticket_states import UNASSIGNED

FINAL = ("succeeded", "failed", "cancelled", "expired", "lost")


class JobHandler:
    """The jobs of one state."""

    def __init__(self, state: State, record: Callable[[ev.Event], None]) -> None:
        self._state = state
        self._record = record

    def offer(self, command: cmd.Offer, now: int) -> None:
        ticket = self._job(command.id)
        if ticket.spec.host and ticket.spec.host != command.host:
            raise BadRequest(f"{ticket.id} runs on {ticket.spec.host} only, not on {command.host}")
        live = self._state.sessions.get((command.host, ticket.session), ticket.id)
        if ticket.state == UNASSIGNED and now >= ticket.not_before and live == ticket.id:
            self._record(ev.Offered(ticket.id, command.holder, command.host, command.wake, command.asks))

    def withdraw(self, command: cmd.Withdraw, now: int) -> None:
        """Harmless if the job is no longer this worker's; a running job is not touched."""
        ticket = self._state.tickets.get(command.id)
        lease = self._state.leases.get(command.id)
        if ticket is not None and ticket.job and not ticket.away and ticket.holder == command.holder:
            self._record(ev.Withdrawn(ticket.id))
        elif lease is not None and lease.ticket.job and lease.ticket.holder == command.holder and not lease.child:
            self._record(ev.Returned(lease.id))

    def approve(self, command: cmd.Approve, now: int) -> None:
        ticket = self._job(command.id)
        if not ticket.confirm:
            raise BadRequest(f"{ticket.id} needs no approval")
        self._record(ev.Approved(ticket.id, command.by))

    def end(self, command: cmd.EndJob, now: int) -> None:
        if command.state not in FINAL:
            raise BadRequest(f"state {shown(command.state)}: valid are {', '.join(FINAL)}")
        self._record(
            ev.JobEnded(
                command.id, command.state, command.attempts, command.why, command.name, exit_code=command.exit_code
            )
        )

    def _job(self, ident: str) -> Ticket:
        ticket = self._state.tickets.get(ident)
        if ticket is None or not ticket.job:
            raise NotFound(f"no job {shown(ident)} waits: see `fleetgate jobs`")
        return ticket
