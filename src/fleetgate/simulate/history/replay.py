"""A replay: the engine decides again about a trace, with other caps or policies."""

from __future__ import annotations

from collections import Counter
from heapq import heappop, heappush
from statistics import median
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.engine import Engine
from fleetgate.core.entities import Rule
from fleetgate.core.errors import FleetgateError
from fleetgate.core.state.state import State
from fleetgate.simulate.history.figures import Measure
from fleetgate.simulate.history.log_reader import ME
from fleetgate.simulate.history.trace import LeaseTrace, Trace, TraceStep, granted, over

_LAST: Final = 1 << 60  # the sequence number of what the log does not have
_USUAL_MS: Final = 60_000  # of a lease, if none is known


class CapChange(Struct, frozen=True):
    """What is set for a selector during the whole replay, whatever was set then. None: as it was."""

    kind: str
    selector: str
    cap: int | None = None
    on_429: str | None = None
    refusals: str | None = None

    def applied_to(self, rule: Rule | None) -> Rule:
        rule = rule or Rule(self.kind, self.selector)
        if self.cap is not None:
            rule = replace(rule, cap=self.cap, auto=False, unlimited=False)
        if self.refusals is not None:
            rule = replace(rule, refusals=self.refusals)
        return rule if self.on_429 is None else replace(rule, on_429=self.on_429)


class Replay:
    """One replay of a trace."""

    def __init__(self, trace: Trace, changes: list[CapChange]) -> None:
        self.trace = trace
        self.changes = {(change.kind, change.selector): change for change in changes}
        self.engine = Engine(State.restore(trace.state), me=ME)
        self.measure = Measure(self.engine.state, trace.start)
        self.now = trace.start
        self.guessed = 0  # leases whose length is not known
        self.spared: Counter[str] = Counter()  # by pool: calls that were refused then, and are not here
        self._heap: list[tuple[int, int, int, TraceStep]] = []
        self._pushed = 0
        self._granted: Counter[str] = Counter()
        self._over: Counter[str] = Counter()
        self._arrivals = {step.command.id: step.at for step in trace.steps if isinstance(step.command, cmd.Acquire)}
        self._usual = _usual_holds(trace)

    def run(self) -> Measure:
        """To the end of the trace."""
        trace, engine = self.trace, self.engine
        self._do(cmd.Tick())
        for change in self.changes.values():
            rule = change.applied_to(engine.state.rules.runtime.get((change.kind, change.selector)))
            self._apply(ev.RuleSet(rule, cap_set=change.cap is not None))
        for lease in list(engine.state.leases.values()):
            self._hold(lease.id, lease.granted_at)
        for step in trace.steps:
            self._push(step.at, step)
        while True:
            at = self._heap[0][0] if self._heap else trace.end
            due = engine.next_deadline()
            if due is not None and due <= min(at, trace.end):
                self.now = max(due, self.now)
                self._do(cmd.Tick())
            elif self._heap and at <= trace.end:
                self.now = max(at, self.now)
                self._take(heappop(self._heap)[3])
            else:
                return self.measure

    def _push(self, at: int, step: TraceStep) -> None:
        self._pushed += 1
        heappush(self._heap, (at, step.seq, self._pushed, step))

    # Steps.

    def _take(self, step: TraceStep) -> None:
        command = step.command
        if step.event is not None:
            self._do(cmd.Tick())
            self._apply(step.event)
        elif isinstance(command, cmd.Acquire):
            self._arrive(command)
        elif isinstance(command, cmd.Cancel):
            if command.id in self.engine.state.tickets:
                self._do(cmd.Tick(), command)
        elif isinstance(command, cmd.Offer) and command.id not in self.engine.state.tickets:
            later = self._arrivals.get(command.id, 0)
            if later > self.now:
                self._push(later, replace(step, seq=_LAST))
        elif isinstance(command, cmd.AnswerUsage):
            self._answer(command)
        elif command is not None:
            self._do(cmd.Tick(), command)

    def _arrive(self, command: cmd.Acquire) -> None:
        self._do(cmd.Tick(), replace(command, since=self.now + (command.since or 0)))
        leave = self.trace.leaves.get(command.id)
        if leave is not None:
            self._push(self.now + leave.waited_ms, TraceStep(0, leave.seq, leave.command))

    def _answer(self, command: cmd.AnswerUsage) -> None:
        pool = self.engine.state.named(command.kind, command.pool)
        if pool is None or not pool.usage_gate.asked_by:
            return
        count = command.count if command.count is None else max(command.count, 0) + pool.used
        self._do(cmd.Tick(), replace(command, by=pool.usage_gate.asked_by, count=count))

    # The engine.

    def _do(self, *commands: cmd.Command) -> None:
        for command in commands:
            try:
                events = self.engine.handle(command, self.now)
            except FleetgateError:  # here things are not as they were then
                continue
            self._see(events)

    def _apply(self, event: ev.Event) -> None:
        """An event that comes from outside."""
        changed = self._changed(event)
        state = self.engine.state
        if isinstance(changed, ev.Renewed):
            ticket = state.tickets.get(changed.id) or getattr(state.leases.get(changed.id), "ticket", None)
            if ticket is None or not ticket.renew_ms:
                return
        if isinstance(changed, ev.Paused | ev.Resumed) and state.named(changed.kind, changed.pool) is None:
            return
        self.engine.replay([changed], self.now)
        self._see([changed])
        self._do(cmd.Tick())

    def _changed(self, event: ev.Event) -> ev.Event:
        """The event with what is set for this replay."""
        if isinstance(event, ev.RuleSet):
            change = self.changes.get((event.rule.kind, event.rule.selector))
            return event if change is None else replace(event, rule=change.applied_to(event.rule))
        if isinstance(event, ev.CapRemoved | ev.CapReset):
            change = self.changes.get((event.kind, event.selector))
            return event if change is None else ev.RuleSet(change.applied_to(None))
        return event

    def _see(self, events: list[ev.Event]) -> None:
        for event in events:
            self.measure.see(event, self.now)
            if isinstance(event, ev.Granted):
                if not event.claimed:
                    self._do(cmd.Claim(event.id))
                self._hold(event.id, self.now)
                self._followed(granted(event.id))
            elif isinstance(event, ev.Released | ev.Reclaimed | ev.Cancelled | ev.Expired | ev.Dropped):
                self._over[event.id] += 1
                self._followed(over(event.id, self._over[event.id]))

    def _followed(self, key: str) -> None:
        for step in self.trace.followers.get(key, ()):
            self._push(self.now + step.at, step)

    # Leases.

    def _hold(self, ident: str, since: int) -> None:
        """Plan how the lease goes on that was just granted."""
        holds = self.trace.holds.get(ident, [])
        times = self._granted[ident]
        self._granted[ident] += 1
        if times >= len(holds):
            self._guess(ident, since)
            return
        hold = holds[times]
        if hold.held_ms is not None and hold.end is not None:
            end = hold.end
            if self._is_spared(ident, hold):
                self.spared.update(hold.levels.keys())
                end = cmd.Release(ident, "local_error")  # it says nothing about the limit; its next try is in the log
            self._push(max(since + hold.held_ms, self.now), TraceStep(0, hold.seq, end))
        for news in hold.news:
            if since + news.at >= self.now:
                self._push(since + news.at, news)

    def _is_spared(self, ident: str, hold: LeaseTrace) -> bool:
        """Whether the provider refused the call then, with more in use in each of its pools than there are here."""
        if not isinstance(hold.end, cmd.Release) or hold.end.outcome != "rate_limited" or not hold.levels:
            return False
        here = self.measure.began_with(ident)
        return all(here.get(pool, level) < level for pool, level in hold.levels.items())

    def _guess(self, ident: str, since: int) -> None:
        """It never started then, so its length is not known: it lasts as long as others like it."""
        self.guessed += 1
        lease = self.engine.state.leases[ident]
        kind = lease.ticket.spec.kind
        usual = self._usual.get((kind, lease.model)) or self._usual.get((kind, "")) or _USUAL_MS
        self._push(since + usual, TraceStep(0, _LAST, cmd.Release(ident)))


def _usual_holds(trace: Trace) -> dict[tuple[str, str], int]:
    """The median length of leases by kind and model, and by kind alone."""
    lengths: dict[tuple[str, str], list[int]] = {}
    for hold in (hold for holds in trace.holds.values() for hold in holds):
        ended_well = isinstance(hold.end, cmd.Release) and hold.end.outcome == "ok"
        if ended_well and hold.held_ms is not None:
            for key in {(hold.kind, hold.model), (hold.kind, "")}:
                lengths.setdefault(key, []).append(hold.held_ms)
    return {key: int(median(found)) for key, found in lengths.items()}
