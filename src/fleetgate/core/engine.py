"""The decision. `handle(command, now)` turns a command into events and makes them part of the state.

The rules that every path keeps:

- A request enters when every pool of a candidate has room, in one step, all or none (SPEC A2).
- After each command the line is *settled*: nobody who could enter now is left standing. So a newcomer who finds
  room takes it from nobody, and one who would have to wait behind an equal does (SPEC A4).
- A command that cannot be raises before anything is changed. A refusal is an event with its reason.
- Time is an argument. What time alone brings about is done by `Tick`, which precedes every batch of commands.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop
from typing import Any

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.deadlines import (
    ACCEPT,
    CLAIM,
    EXPIRY,
    HOLD,
    OPENING,
    POOL,
    PROBE,
    RENEWAL,
    USAGE,
    VERDICT,
    Deadlines,
)
from fleetgate.core.entities import Spec, Ticket
from fleetgate.core.errors import InternalError
from fleetgate.core.handlers.acquire import AcquireHandler
from fleetgate.core.handlers.backoffs import BackoffHandler
from fleetgate.core.handlers.caps import CapHandler
from fleetgate.core.handlers.jobs import JobHandler
from fleetgate.core.handlers.leases import LeaseHandler
from fleetgate.core.handlers.rate_limits import RateLimitHandler
from fleetgate.core.handlers.usage_answers import UsageAnswerHandler
from fleetgate.core.pools.pool import Pool
from fleetgate.core.queue.queue import Queue
from fleetgate.core.state.state import State

_FIRST = (cmd.Tick, cmd.Recover)  # what may find a line that is not settled: the latter, lest Tick lets somebody in


class Engine:
    """One gate's decisions. Grants to tickets of whoever decides, process `me` at `address`, are claimed at once."""

    def __init__(self, state: State | None = None, me: str = "", address: str = "") -> None:
        self.state = state or State()
        self.me = me
        self.timers = Deadlines(self.state)
        self._entering = AcquireHandler(self.state, self.timers, self._emit, me, address)
        self._line = self._entering.line
        self._gating = UsageAnswerHandler(self.state, self.timers, self._line, self._emit)
        self._backing_off = BackoffHandler(self.state, self._emit)
        self._throttling = RateLimitHandler(self.state, self._emit, self._backing_off)
        self.wants_word = self._throttling.wants_word  # asked with every call: is it worth telling that it was taken?
        self._holding = LeaseHandler(self.state, self._emit, self._throttling, self._backing_off, self._gating)
        self._out: list[ev.Event] = []
        self._now = 0
        self._followed_to = 0  # another process has done what was due by then
        self._handlers = self._of_commands()
        # What an event does to the state, and to the timers.
        self._effects = {kind: (apply, self.timers.arming.get(kind)) for kind, apply in self.state.applying.items()}

    def woken_at(self, address: str) -> None:
        """Where whoever decides is woken; a process knows once it has opened its mailbox."""
        self._entering.address = address

    def _of_commands(self) -> dict[type, Callable[[Any, int], None]]:
        """Who sees to which command."""
        holding, backing_off = self._holding, self._backing_off
        offering, ruling = JobHandler(self.state, self._emit), CapHandler(self.state, self._emit)
        return {
            cmd.Acquire: self._entering.acquire,
            cmd.Offer: offering.offer,
            cmd.Withdraw: offering.withdraw,
            cmd.Approve: offering.approve,
            cmd.EndJob: offering.end,
            cmd.Ask: holding.ask,
            cmd.Claim: holding.claim,
            cmd.Adopt: self._entering.adopt,
            cmd.Recover: ruling.recover,
            cmd.Drain: ruling.drain,
            cmd.Renew: holding.renew,
            cmd.Release: holding.release,
            cmd.Reclaim: holding.reclaim,
            cmd.Cancel: holding.cancel,
            cmd.Bump: holding.bump,
            cmd.Lost: holding.lost,
            cmd.Observe: ruling.observe,
            cmd.SetRule: ruling.set_rule,
            cmd.RemoveCap: ruling.remove_cap,
            cmd.ResetCap: ruling.reset_cap,
            cmd.LoadFile: ruling.load_file,
            cmd.Pause: ruling.pause,
            cmd.Resume: ruling.resume,
            cmd.UseUp: self._throttling.use_up,
            cmd.Report: self._throttling.report,
            cmd.Active: self._throttling.active,
            cmd.AskUsage: self._gating.ask,
            cmd.AnswerUsage: self._gating.answer,
            cmd.BackOff: backing_off.set,
            cmd.EndBackoff: backing_off.end,
            cmd.Credential: backing_off.credential,
            cmd.Select: backing_off.select,
            cmd.Bypass: self._bypass,
            cmd.Tick: self._tick,
        }

    def __repr__(self) -> str:
        return f"<Engine {self.state!r}, next deadline {self.next_deadline()}>"

    def handle(self, command: cmd.Command, now: int) -> list[ev.Event]:
        """Decide. Raises a FleetgateError, having changed nothing, when the command cannot be."""
        state = self.state
        if now < state.at:
            raise InternalError(f"time went backwards: {now} after {state.at}")
        if (state.fresh or state.dirty) and type(command) not in _FIRST:
            raise InternalError("the line is not settled: Tick comes before other commands")
        out = self._out = []
        self._now = now
        self._handlers[type(command)](command, now)
        if state.fresh or state.dirty:
            self._line.settle(now)
        return out

    def replay(self, events: list[ev.Event], at: int) -> None:
        """Take in what another process decided."""
        self._now = self._followed_to = at
        self._out = []
        for event in events:
            self._emit(event)

    def next_deadline(self) -> int | None:
        """When `Tick` next has something to do. Exact after `handle`; None: nothing is due, ever."""
        timer = self.timers.first()
        return timer[0] if timer is not None else None

    def first_to_act(self) -> Ticket | None:
        """The ticket whose holder should see to the next deadline."""
        return self.timers.first_to_act()

    # What can be asked. Changes nothing that is logged.

    def fits(self, spec: Spec, now: int) -> bool:
        """Whether such a request is known to enter now."""
        return self._entering.fits(spec, now)

    def needs_a_person(self, queue: Queue, now: int) -> bool:
        """Whether waiting is no use: a login or a bill must be seen to for every candidate (SPEC R3)."""
        return self._entering.needs_a_person(queue, now)

    def questions(self, now: int) -> list[Pool]:
        """The pools whose provider should be asked now."""
        return self._gating.questions(now)

    def askers(self, now: int) -> list[Ticket]:
        """The tickets whose processes should ask them."""
        return self._gating.askers(now)

    # Making events happen.

    def _emit(self, event: ev.Event) -> None:
        """Make an event of ours part of the state, and set the timers that follow from it."""
        state, now = self.state, self._now
        state.seq += 1
        state.at = now
        apply, arm = self._effects[type(event)]
        apply(event, now)
        if arm is not None:
            arm(event, now)
        if state.gates:
            self.timers.watch_gates(now)
        self._out.append(event)

    def _bypass(self, command: cmd.Bypass, now: int) -> None:
        self._emit(ev.Bypassed(command.holder, command.models, command.command))

    # Time.

    def _tick(self, command: cmd.Tick, now: int) -> None:
        """Do what is due. Each firing is an ordinary event, in the order of the deadlines."""
        state, timers = self.state, self.timers
        if state.backoffs:
            self._backing_off.ended_by_time(now)  # before anybody is let in to try whether they are over
        heap = timers.heap
        while heap and heap[0][0] <= now:
            timer = heap[0]
            at, what, name = timer
            if what == POOL:
                heappop(heap)
                pool = state.pools.get(name)
                if pool is not None and pool.timer_at == at:
                    pool.timer_at = 0
                    state.touch(pool)
            elif timers.due(now) != timer:
                continue  # it meant nothing any more
            elif state.fresh or state.dirty:
                self._line.settle(now)  # what freed up is lent before anything is taken away
            else:
                timers.pop()
                self._fire(at, what, name, now)

    def _fire(self, at: int, what: int, name: str, now: int) -> None:
        state = self.state
        if what == USAGE:
            self._gating.due(state.pools[name], now)
        elif what == PROBE:
            state.probe_due(name)
        elif what == VERDICT:
            self._backing_off.probe_succeeded(name)
        elif what == ACCEPT:
            pool = state.pools[name]
            assert pool.adapt is not None
            self._throttling.level_accepted(pool, pool.adapt.belief.unproven)
        elif what == OPENING:
            state.look_at_all()
        elif what == EXPIRY:
            ticket = state.tickets[name]
            after_ms = now - ticket.queued_at
            self._emit(ev.Expired(name, after_ms, ticket.holder, ticket.wake, ticket.command, ticket.job))
        elif what == CLAIM:
            self._emit(ev.Returned(name))
        elif what == HOLD:
            self._holding.take(state.leases[name], "overstayed", now)
        elif what == RENEWAL:
            lease = state.leases.get(name)
            if lease is not None:
                self._holding.take(lease, "unrenewed", now)
            else:
                self._emit(ev.Dropped(name, "unrenewed"))
        else:
            queue = self.timers.turn_of(name)
            if at > self._followed_to:
                self._line.consider_reserving(queue.first(), now)
            else:
                state.look_at(queue)
