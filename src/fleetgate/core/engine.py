"""The engine: `handle(command, now)` turns a command into events and makes them part of the state.

The rules that every path keeps:

- A request enters when every pool of a candidate has room, in one step, all or none (rule A2).
- After each command no ticket that could enter is left waiting (core/queue/admission.py). So a new request that finds
  room takes it from no other, and one that would have to wait behind an equal does wait (rule A4).
- An impossible command raises before anything is changed. A refusal is an event with its reason.
- Time is an argument. What time alone brings about is done by `Tick`, which precedes every batch of commands.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop
from typing import Any

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.access.authorship import CHANGES
from fleetgate.core.deadlines import (
    ACCEPT,
    CLAIM,
    EXPIRY,
    HOLD,
    MOVE,
    OPENING,
    POOL,
    PREEMPT,
    PROBE,
    RENEWAL,
    RESERVE,
    USAGE,
    VERDICT,
    Deadlines,
)
from fleetgate.core.entities import Spec, Ticket
from fleetgate.core.errors import InternalError
from fleetgate.core.handlers.acquire import AcquireHandler
from fleetgate.core.handlers.backoffs import BackoffHandler
from fleetgate.core.handlers.budgets import BudgetHandler
from fleetgate.core.handlers.leases import LeaseHandler
from fleetgate.core.handlers.plans import PlanHandler
from fleetgate.core.handlers.preemption import PreemptionHandler
from fleetgate.core.handlers.rate_limits import RateLimitHandler
from fleetgate.core.handlers.request_validation import RequestValidator
from fleetgate.core.handlers.usage_answers import UsageAnswerHandler
from fleetgate.core.pools.pool import Pool
from fleetgate.core.queue.admission import Admission
from fleetgate.core.queue.grants import Grants
from fleetgate.core.queue.queue import Queue
from fleetgate.core.queue.reservations import Reservations
from fleetgate.core.recorder import Recorder
from fleetgate.core.state.state import State
from fleetgate.core.tables.command_table import command_table
from fleetgate.core.views.wait_reasons import needs_a_person

# These may find a to-do list that is not empty: after a replay, which only adds to it. Recover is one of them because
# it comes before Tick, which would admit tickets.
_MAY_COME_FIRST = (cmd.Tick, cmd.Recover)


class Engine:
    """The decisions of one gate, made by process `me`, which is woken at `address`.

    Each part is made of those before it: the state, its deadlines, the recorder that changes both, then what decides.
    """

    def __init__(self, state: State | None = None, me: str = "", address: str = "") -> None:
        self.state = state = state or State()
        self.me = me
        self.deadlines = Deadlines(state)
        self._recorder = Recorder(state, self.deadlines)
        record = self._recorder.record
        self._grants = Grants(state, record, me, address)
        self._reservations = Reservations(state, record)
        self._admission = Admission(state, self.deadlines, self._grants, self._reservations)
        self._usage_answers = UsageAnswerHandler(state, self.deadlines, self._admission, record)
        self._backoffs = BackoffHandler(state, record)
        self._budgets = BudgetHandler(state, record)
        self._plans = PlanHandler(state, record)
        self._preemption = PreemptionHandler(state, record)
        self._rate_limits = RateLimitHandler(state, record, self._backoffs)
        self._leases = LeaseHandler(
            state, record, self._rate_limits, self._backoffs, self._usage_answers, self._budgets
        )
        self._validator = RequestValidator(state, self._admission, record)
        self._requests = AcquireHandler(state, self._admission, self._grants, self._validator, record)
        self._replayed_to = 0  # another process has done what was due by then
        self._handlers = command_table(
            state,
            record,
            self._validator,
            self._requests,
            self._leases,
            self._budgets,
            self._plans,
            self._rate_limits,
            self._usage_answers,
            self._backoffs,
        )
        self._handlers[cmd.Bypass] = self._bypass
        self._handlers[cmd.Tick] = self._tick
        self._on_deadline = self._action_of_each_deadline()

    def woken_at(self, address: str) -> None:
        """Where this process is woken; it knows once it has opened its mailbox."""
        self._grants.address = address

    def __repr__(self) -> str:
        return f"<Engine {self.state!r}, next deadline {self.next_deadline()}>"

    def handle(self, command: cmd.Command, now: int) -> list[ev.Event]:
        """Decide. Raises a FleetgateError, having changed nothing, when the command is impossible."""
        state, recorder = self.state, self._recorder
        if now < state.at:
            raise InternalError(f"time went backwards: {now} after {state.at}")
        if (state.changed_queues or state.changed_pools) and type(command) not in _MAY_COME_FIRST:
            raise InternalError("the queue was not looked at: Tick comes before other commands")
        recorder.now = now
        events: list[ev.Event] = []
        recorder.events = events
        change: Any = command
        recorder.by = change.by if type(command) in CHANGES else ""
        self._handlers[type(command)](command, now)
        if state.changed_queues or state.changed_pools:
            self._admission.admit_waiting(now)
        if state.touched_budgets:
            self._budgets.report_reached(now)
        if state.touched_plans:
            self._plans.report_runways(now)
        return events

    def replay(self, events: list[ev.Event], at: int) -> None:
        """Apply what another process decided."""
        recorder = self._recorder
        recorder.now = self._replayed_to = at
        recorder.by = ""
        recorder.events = []
        for event in events:
            recorder.record(event)

    def next_deadline(self) -> int | None:
        """When `Tick` next has something to do. Exact after `handle`; None: nothing will ever be due."""
        timer = self.deadlines.first()
        return timer[0] if timer is not None else None

    # Queries. They change nothing that is logged.

    def first_to_act(self) -> Ticket | None:
        """The ticket whose holder should act at the next deadline."""
        return self.deadlines.first_to_act()

    def fits(self, spec: Spec, now: int) -> bool:
        """Whether a request like this is certain to enter now."""
        if not all(self.state.rules.counts(spec.kind, text) for text, _ in spec.caps):
            return False  # its environment caps a selector whose slots were not counted yet
        return self._admission.fits(self.state.queue(spec), now, self._requests.typical_ticket(spec, now))

    def needs_a_person(self, queue: Queue, now: int) -> bool:
        """Whether waiting is no use, because every candidate needs a login or a payment (rule R3)."""
        return needs_a_person(self.state, queue, now)

    def questions(self, now: int) -> list[Pool]:
        """The pools whose provider should be asked now."""
        return self._usage_answers.questions(now)

    def askers(self, now: int) -> list[Ticket]:
        """The tickets whose processes should ask them."""
        return self._usage_answers.askers(now)

    def awaits_acceptance(self, ident: str) -> bool:
        """Whether the engine learns something if it hears that the provider accepted this lease's call (`Active`)."""
        return self._rate_limits.awaits_acceptance(ident)

    def _bypass(self, command: cmd.Bypass, now: int) -> None:
        self._recorder.record(ev.Bypassed(command.holder, command.models, command.command))

    # Time.

    def _tick(self, command: cmd.Tick, now: int) -> None:
        """Do what is due, in the order of the deadlines. Each effect is an ordinary event."""
        state, deadlines = self.state, self.deadlines
        if state.usage.is_over(now):
            self._recorder.record(ev.HourClosed(state.usage.hour, tuple(state.usage.rows())))
        if state.backoffs:
            self._backoffs.ended_by_time(now)  # before a ticket is admitted to find out whether they are over
        heap = deadlines.heap
        while heap and heap[0][0] <= now:
            timer = heap[0]
            at, what, name = timer
            if what == POOL:
                heappop(heap)
                self._resource_due(name, at)
            elif deadlines.due(now) != timer:
                continue  # it was obsolete
            elif state.changed_queues or state.changed_pools:
                self._admission.admit_waiting(now)  # free slots are granted before anything is taken away
            else:
                deadlines.pop()
                self._on_deadline[what](name, at, now)

    def _resource_due(self, name: str, at: int) -> None:
        """Time alone may have made room in a pool, a budget or a plan window."""
        state = self.state
        pool = state.pools.get(name)
        if pool is not None:
            if pool.parking.timer_at == at:
                pool.parking.timer_at = 0
                state.recheck_pool(pool)
            return
        other = state.resource(name)
        if other is not None and other.parking.timer_at == at:
            other.parking.timer_at = 0
            state.changed_pools[name] = other

    def _action_of_each_deadline(self) -> dict[int, Callable[[str, int, int], None]]:
        """What to do when a deadline comes. `_tick` itself handles those of pools and of backoffs."""
        return {
            USAGE: self._usage_due,
            PROBE: self._probe_due,
            VERDICT: self._verdict_due,
            ACCEPT: self._acceptance_due,
            OPENING: self._opening_due,
            RESERVE: self._review_due,
            PREEMPT: self._preemption_due,
            MOVE: self._move_due,
            CLAIM: self._claim_overdue,
            HOLD: self._hold_over,
            RENEWAL: self._renewal_overdue,
            EXPIRY: self._expiry_due,
        }

    def _usage_due(self, name: str, at: int, now: int) -> None:
        self._usage_answers.due(self.state.pools[name], now)

    def _probe_due(self, name: str, at: int, now: int) -> None:
        self.state.backoff_events.recheck_queues(name)

    def _verdict_due(self, name: str, at: int, now: int) -> None:
        self._backoffs.probe_succeeded(name)

    def _acceptance_due(self, name: str, at: int, now: int) -> None:
        self._rate_limits.accept_unproven(self.state.pools[name])

    def _opening_due(self, name: str, at: int, now: int) -> None:
        self.state.recheck_all()

    def _review_due(self, name: str, at: int, now: int) -> None:
        queue = self.deadlines.queue_to_review(name)
        if at > self._replayed_to:
            self._reservations.review(queue.first(), now)
        else:
            self.state.recheck_queue(queue)

    def _preemption_due(self, name: str, at: int, now: int) -> None:
        ticket = self.state.tickets[name]
        if at > self._replayed_to:  # else another process did
            self._preemption.review(ticket, now)
        self.deadlines.await_preemption(ticket, now)

    def _move_due(self, name: str, at: int, now: int) -> None:
        state = self.state
        state.recheck_queue(state.queue(state.tickets[name].spec))

    def _claim_overdue(self, name: str, at: int, now: int) -> None:
        self._recorder.record(ev.Returned(name))

    def _hold_over(self, name: str, at: int, now: int) -> None:
        self._leases.take_back(self.state.leases[name], "overstayed", now)

    def _renewal_overdue(self, name: str, at: int, now: int) -> None:
        lease = self.state.leases.get(name)
        if lease is not None:
            self._leases.take_back(lease, "unrenewed", now)
        else:
            self._recorder.record(ev.Dropped(name, "unrenewed"))

    def _expiry_due(self, name: str, at: int, now: int) -> None:
        ticket = self.state.tickets[name]
        waited_ms = now - ticket.queued_at
        self._recorder.record(ev.Expired(name, waited_ms, ticket.holder, ticket.wake, ticket.command, ticket.job))
