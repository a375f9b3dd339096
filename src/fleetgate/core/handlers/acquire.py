"""Asking for slots: a request becomes a lease at once, a ticket in the queue, or an answer why not.

A request that can never be raises before anything is changed. One that finds room and nobody ahead enters; whoever
comes to the head of the queue later enters through the same door (core/queue/admission.py calls it).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.deadlines import Deadlines, keep_ms
from fleetgate.core.entities import Spec, Ticket
from fleetgate.core.errors import BadRequest
from fleetgate.core.events import Granted, Queued
from fleetgate.core.handlers.cap_validation import check_cap
from fleetgate.core.model_names import KINDS, parse_model, parse_selector, shown
from fleetgate.core.pools.backoff import NEEDS_A_PERSON
from fleetgate.core.pools.effective_caps import UNLIMITED
from fleetgate.core.queue.admission import Admission
from fleetgate.core.queue.order import MAX_PRIORITY, order_key
from fleetgate.core.queue.queue import Candidate, Queue
from fleetgate.core.state.state import DEFAULT_HOLD_MS, State
from fleetgate.core.views.wait_reasons import reason_for, reason_of_job, taken

EXPIRES_MS: Final = 24 * 3_600_000
MOST_RENEW_MS: Final = 86_400_000


class AcquireHandler:
    """The door of one state. `emit` makes an event happen; grants to process `me` at `address` are claimed at once."""

    def __init__(
        self,
        state: State,
        timers: Deadlines,
        emit: Callable[[ev.Event], None],
        me: str,
        address: str,
    ) -> None:
        self._state = state
        self._emit = emit
        self._me = me
        self.address = address
        self.line = Admission(state, timers, self._grant, emit)

    def acquire(self, command: cmd.Acquire, now: int) -> None:
        state = self._state
        if command.id in state.leases or command.id in state.tickets:
            return  # the same command once more: its fate is known
        spec = command.spec
        queue = self._valid_queue(command, now)
        if command.key or command.session:
            has_one = taken(state, command.key, command.session, spec.host)
            if has_one is not None:
                self._emit(ev.Deferred(command.id, spec, command.holder, has_one, command.command))
                return
        if command.job and command.wait:
            ticket = self._ticket(command, queue, now)
            self._emit(Queued(ticket, reason_of_job(state, queue, now, ticket)))
            return
        if not queue.waiting:
            candidate = self.line.choose(queue, now)
            if candidate is not None:
                self._grant(self._ticket(command, queue, now), candidate, now, from_line=False)
                return
        reason = reason_for(state, queue, now)
        if not command.wait or (not queue.usable and self.needs_a_person(queue, now)):
            self._emit(ev.Deferred(command.id, spec, command.holder, reason, command.command))
            return
        self._emit(Queued(self._ticket(command, queue, now), reason))

    def adopt(self, command: cmd.Adopt, now: int) -> None:
        """Count a process that runs already. Nobody asks whether there is room: it is there."""
        state, ident = self._state, command.ticket.id
        lease = state.leases.get(ident)
        if lease is None:
            self._take_in(command, now)
        elif lease.ticket.job and lease.ticket.holder != command.ticket.holder:
            raise BadRequest(f"{shown(ident)} is run by another worker by now")
        if command.child and state.leases[ident].child != command.child:
            self._emit(ev.Claimed(ident, command.child))

    def _take_in(self, command: cmd.Adopt, now: int) -> None:
        state, old = self._state, command.ticket
        standing = state.tickets.get(old.id)
        if standing is not None and standing.job != old.job:
            raise BadRequest(f"{shown(old.id)} is {'a' if standing.job else 'no'} job")
        spec = old.spec if standing is None else standing.spec
        if old.job:
            spec = replace(spec, host=old.spec.host)  # where it runs, also if it might have elsewhere
        asked = cmd.Acquire(
            old.id,
            spec,
            old.holder,
            wait=False,
            priority=max(min(old.priority, MAX_PRIORITY), -MAX_PRIORITY),
            renew_ms=old.renew_ms,
            job=old.job,
            any_host=old.any_host,
        )
        queue = self._valid_queue(asked, now)
        candidate = queue.by_model.get(command.model)
        if candidate is None:
            raise BadRequest(f"model {shown(command.model)}: valid are {', '.join(queue.by_model) or 'none'}")
        if standing is not None:
            self._bring_forward(standing, old)
        at = min(old.queued_at, now)
        ticket = replace(
            self._ticket(asked, queue, now),
            since=min(old.since, now),
            order=order_key(min(old.since, now), asked.priority, at, state.seniority_ms),
            queued_at=at,
            wake=old.wake,
            command=old.command,
            key=old.key,
            role=old.role,
            session=old.session,
            bound=old.bound,
            client=old.client,
        )
        if old.job:
            ticket = replace(ticket, expires_at=old.expires_at)
        most = candidate.max_hold_ms
        self._emit(
            Granted(
                id=old.id,
                model=command.model,
                charge_ms=state.expected_hold_ms(spec),
                ticket=ticket if standing is None else None,
                ends_at=max(now + most - max(command.held_ms, 0), now + 1) if most else 0,
                adopted=command.why,
            )
        )

    def _bring_forward(self, standing: Ticket, old: Ticket) -> None:
        """A ticket that waits in the queue for one who runs already asks, in its name."""
        if not standing.job:
            if standing.away:
                self._emit(ev.Asked(standing.id))
            return
        if not standing.away:
            self._emit(ev.Withdrawn(standing.id))  # somebody else would have run it
        if standing.confirm:
            self._emit(ev.Approved(standing.id))
        self._emit(ev.Offered(standing.id, old.holder, old.spec.host, old.wake, old.asks))

    def fits(self, spec: Spec, now: int) -> bool:
        """Whether such a request is known to enter now."""
        if not all(self._state.rules.counts(spec.kind, text) for text, _ in spec.caps):
            return False  # nobody has counted who is there
        queue = self._state.queue(spec)
        return not queue.waiting and self.line.choose(queue, now) is not None

    def needs_a_person(self, queue: Queue, now: int) -> bool:
        """Whether waiting is no use: a login or a bill must be seen to for every candidate (SPEC R3)."""
        if self._state.tried(queue, now):
            return False
        held = [self._state.holding(candidate) for candidate in queue.candidates]
        return all(any(backoff.reason in NEEDS_A_PERSON for backoff in backoffs) for backoffs in held)

    def _valid_queue(self, command: cmd.Acquire, now: int) -> Queue:
        """The queue for this request; raises when it can never be. Selectors that its environment caps are counted."""
        if command.priority and not -MAX_PRIORITY <= command.priority <= MAX_PRIORITY:
            raise BadRequest(f"priority {command.priority}: valid is -{MAX_PRIORITY} to {MAX_PRIORITY}")
        if command.expires_ms < 0:
            raise BadRequest(f"expires after {command.expires_ms} ms: valid is 1 or more, or 0 for the default of 24 h")
        if command.renew_ms and not 0 < command.renew_ms <= MOST_RENEW_MS:
            raise BadRequest(f"renewed every {command.renew_ms} ms: valid is 1 to {MOST_RENEW_MS}, or 0 for never")
        state, spec = self._state, command.spec
        queue = state.queues.get(spec)
        if queue is None or not queue.valid:
            self._check_spec(spec)
            for text, _ in spec.caps:
                if not state.rules.counts(spec.kind, text):
                    self._emit(ev.SelectorSeen(spec.kind, text))
            if state.fresh or state.dirty:
                self.line.settle(now)
            queue = state.queue(spec)
            queue.valid = True
        return queue

    def _ticket(self, command: cmd.Acquire, queue: Queue, now: int) -> Ticket:
        state = self._state
        since = now if command.since is None or command.since > now else command.since
        renew_by = now + keep_ms(command.renew_ms) if command.renew_ms else 0
        return Ticket(  # all by their places: one that is named costs twenty times as much
            command.id,
            command.spec,
            command.holder,
            order_key(since, command.priority, now, state.seniority_ms),
            state.arrivals + 1,
            since,
            now,  # queued_at
            now + (command.expires_ms or EXPIRES_MS),
            command.priority,
            command.wake,
            command.command,
            command.key,
            command.role,
            command.session,
            command.job and command.wait,  # away
            0 if queue.usable else now,  # stalled_at
            command.bound,
            command.client,
            command.renew_ms,
            renew_by,
            command.asks,
            command.job,
            command.any_host,
            command.confirm,
            False,  # held
            command.not_before,
        )

    def _check_spec(self, spec: Spec) -> None:
        """Raise when such a request can never be."""
        if spec.kind not in KINDS:
            raise BadRequest(f"kind {shown(spec.kind)}: valid are {' and '.join(KINDS)}")
        if not 1 <= spec.slots <= 10_000:
            raise BadRequest(f"{spec.slots} slots: valid is 1 to 10000")
        for text in spec.models:
            parse_model(text)
        for text, cap in spec.caps:
            parse_selector(text)
            check_cap(cap, text)
        for family, cap in spec.family_caps:
            check_cap(cap, family)
        self._check_possible(spec)

    def _check_possible(self, spec: Spec) -> None:
        """Raise when no candidate could be admitted even by empty pools."""
        too_small: tuple[str, int] | None = None
        for text in spec.models or ("",):
            needs = self._state.rules.needs(spec, parse_model(text) if text else None)
            too_small = next(((need.pool, need.most) for need in needs if spec.slots > need.most), None)
            if too_small is None:
                return
        assert too_small is not None
        pool, most = too_small
        raise BadRequest(f"needs {spec.slots} slots of {pool}, whose cap is {most}: ask for fewer or raise the cap")

    def _grant(self, ticket: Ticket, candidate: Candidate, now: int, *, from_line: bool = True) -> None:
        state = self._state
        if from_line and ticket.confirm:
            self._emit(ev.Held(ticket.id, ticket.command))
            return
        claimed = not from_line or (ticket.holder == self._me and ticket.wake == self.address)
        if from_line and candidate.gates:
            for pool in candidate.gates:
                if pool.upstream.room < UNLIMITED:
                    pool.upstream.room = 0  # one ticket for each answer
        ends_at = now + candidate.max_hold_ms if candidate.max_hold_ms else 0
        probes = self._probes(ticket, candidate) if state.backoffs else ()
        self._emit(
            Granted(
                ticket.id,
                candidate.model,
                state.holds.get(candidate.hold_key, DEFAULT_HOLD_MS),
                claimed,
                None if from_line else ticket,
                ends_at,
                now - ticket.queued_at,
                probes,
            )
        )

    def _probes(self, ticket: Ticket, candidate: Candidate) -> tuple[str, ...]:
        """The backoffs that a grant tries out. Those of refused calls are tried out by calls: an agent makes many."""
        held = self._state.holding(candidate)
        agent = ticket.spec.kind == "agents"
        return tuple(sorted([backoff.key for backoff in held if not (agent and backoff.times)]))
