"""Grants: a request that may enter becomes a lease, or a job that waits for approval."""

from __future__ import annotations

from collections.abc import Callable

from fleetgate.core import events as ev
from fleetgate.core.accounts.switch_reasons import reason_of_switch
from fleetgate.core.entities import Ticket
from fleetgate.core.events import Granted
from fleetgate.core.pools.effective_caps import UNLIMITED
from fleetgate.core.queue.queue import Candidate
from fleetgate.core.state.state import DEFAULT_HOLD_MS, State


class Grants:
    """The grants of one state. Those to tickets of process `me` at `address`, which decides, are claimed at once."""

    def __init__(self, state: State, record: Callable[[ev.Event], None], me: str, address: str) -> None:
        self._state = state
        self._record = record
        self._me = me
        self.address = address

    def grant(self, ticket: Ticket, candidate: Candidate, now: int, *, from_queue: bool = True) -> None:
        """Grant slots of every pool of a candidate: they have room. A job that must be approved is held instead."""
        state = self._state
        if from_queue and ticket.confirm:
            self._record(ev.Held(ticket.id, ticket.command))
            return
        claimed = not from_queue or (ticket.holder == self._me and ticket.wake == self.address)
        if from_queue and candidate.gates:
            for pool in candidate.gates:
                if pool.usage_gate.room < UNLIMITED:
                    pool.usage_gate.room = 0  # one ticket for each answer
        ends_at = now + candidate.max_hold_ms if candidate.max_hold_ms else 0
        probes = self._probes(ticket, candidate) if state.backoffs else ()
        self._record(
            Granted(
                ticket.id,
                candidate.model,
                state.holds.get(candidate.hold_key, DEFAULT_HOLD_MS),
                claimed,
                None if from_queue else ticket,
                ends_at,
                now - ticket.queued_at,
                probes,
                "",  # adopted
                "" if candidate.member is None else reason_of_switch(state, ticket, candidate, now),
            )
        )

    def _probes(self, ticket: Ticket, candidate: Candidate) -> tuple[str, ...]:
        """The backoffs that a grant tries out.

        A backoff of refused calls is tried out by calls only: an agent makes many.
        """
        held = self._state.backoffs_on(candidate)
        agent = ticket.spec.kind == "agents"
        return tuple(sorted([backoff.key for backoff in held if not (agent and backoff.times)]))
