"""The reader of a log: makes a trace of its events, and measures what really happened.

It applies every event to a state, as each process of the gate does. From the start of the trace on it separates what
came from outside (arrivals, ends, settings, refusals) from what the engine decided (grants, pauses, limits).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from msgspec.structs import replace

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Lease, Ticket
from fleetgate.core.state.state import State
from fleetgate.simulate.history.figures import Measure
from fleetgate.simulate.history.pruned_log import known, start_of_pruned_log
from fleetgate.simulate.history.trace import LeaseTrace, Leave, Trace, TraceStep, granted, over

ME: Final = "replay"
Row = tuple[int, int, ev.Event]  # sequence number, log time, event

# Settings and observations: they come from outside and are applied as they are.
_SETTINGS: Final = (
    *(ev.RuleSet, ev.CapRemoved, ev.CapReset, ev.SelectorSeen, ev.FileLoaded, ev.Observed, ev.Resumed),
    *(ev.BudgetSet, ev.BudgetRemoved, ev.BudgetUnset, ev.BudgetReset, ev.BudgetAdded, ev.RatesObserved),
    *(ev.PlanObserved, ev.Recovering, ev.Draining, ev.DrainEnded, ev.Renewed),
)
_BY_HAND: Final = ("cleared", "credential", "account")  # why a backoff ends that time and probes do not end


class LogReader:
    """Reads rows up to `end`; the trace begins at `start`, or with the first row if that is later."""

    def __init__(self, rows: Iterable[Row], start: int, end: int, final: State) -> None:
        kept = [row for row in rows if row[1] <= end]
        self.state = State()
        late = bool(kept) and kept[0][0] > 1
        begin = kept[0][1] if kept else end
        if late:
            start = max(start, begin)
            for event in start_of_pruned_log(kept, final):
                self.state.apply(event, begin)
        before = [row for row in kept if row[1] < start]
        self._apply_all(before)
        start = min(max(start, begin), end)
        self.trace = Trace(start, end, self.state.export(start), events=len(kept) - len(before))
        self.trace.begins_late = late
        self.measure = Measure(self.state, start)
        self._progress: dict[str, tuple[str, int]] = {}  # of a run or worker: the last thing that it waited for
        self._overs: dict[str, int] = {}  # how often each request was over
        self._pause: tuple[int, int | None] = 0, None  # when a refusal last paused a pool, and the provider's hint
        self._open: dict[str, LeaseTrace] = {}
        self._granted_at: dict[str, int] = {ident: lease.granted_at for ident, lease in self.state.leases.items()}
        for lease in self.state.leases.values():
            self._began(lease, 0)
        self._read(kept[len(before) :])
        self.trace.still_running = len(self._open)

    def _apply_all(self, rows: list[Row]) -> None:
        for _, at, event in rows:
            fits = known(event, self.state)
            if fits is not None:
                self.state.apply(fits, at)

    def _read(self, rows: list[Row]) -> None:
        for place, (seq, at, event) in enumerate(rows):
            fits = known(event, self.state)
            if fits is None:
                continue
            self._note(fits, seq, at, rows, place)
            lease = self.state.leases.get(getattr(fits, "id", ""))
            ticket = self.state.tickets.get(getattr(fits, "id", ""))
            self.state.apply(fits, at)
            self.measure.see(fits, at)
            self._note_after(fits, seq, at, lease, ticket)

    # What came from outside.

    def _note(self, event: Any, seq: int, at: int, rows: list[Row], place: int) -> None:
        """Before the event is applied."""
        kind = type(event)
        trace = self.trace
        if kind in _SETTINGS:
            trace.steps.append(TraceStep(at, seq, event=event))
            if trace.begins_late and kind in (ev.RuleSet, ev.CapRemoved, ev.CapReset, ev.FileLoaded):
                trace.caps_guessed = True
        elif kind is ev.Queued:
            self._arrives(event.ticket, seq, at)
        elif kind is ev.Granted and event.ticket is not None:
            if event.adopted:
                trace.steps.append(TraceStep(at, seq, event=event))
            else:
                self._arrives(event.ticket, seq, at)
        elif kind is ev.Deferred:
            trace.refused_outright += 1
        elif kind is ev.Paused:
            self._paused(event, seq, at, rows, place)
        elif kind is ev.Refused and not self._ends_in(rows, place, event.id):
            report = cmd.Report(event.id, event.kind, "" if event.id else event.pool, self._hint(at))
            trace.steps.append(TraceStep(at, seq, report))
        elif kind is ev.BackedOff and (event.manual or not event.id):
            trace.steps.append(TraceStep(at, seq, event=event))
        elif kind is ev.BackoffEnded and event.why in _BY_HAND:
            trace.steps.append(TraceStep(at, seq, cmd.EndBackoff(event.key)))
        elif kind is ev.BackoffEnded and event.why == "probe":
            tries = self.state.backoffs[event.key].probing
            if tries in self._open and not self._ends_in(rows, place, tries):  # the provider took the call
                self._tell(tries, cmd.Active(tries), seq, at)
        elif kind is ev.UsageAsked:
            trace.steps.append(TraceStep(at, seq, cmd.AskUsage(event.kind, event.pool, event.by)))
        elif kind is ev.UsageAnswered:
            self._answered(event, seq, at)
        elif kind is ev.Bumped:
            old = self.state.tickets[event.id]
            moved = None if event.priority == old.priority else event.priority
            trace.steps.append(TraceStep(at, seq, cmd.Bump(event.id, moved)))
        elif kind is ev.Released:
            lease = self.state.leases[event.id]
            self._ends(lease, _release(event, rows, place, self._hint(at)), seq, at)
            self._pause = 0, None
        elif kind is ev.Reclaimed:
            self._ends(self.state.leases[event.id], cmd.Reclaim(event.id, event.by or ME), seq, at)

    def _note_after(self, event: Any, seq: int, at: int, lease: Lease | None, ticket: Ticket | None) -> None:
        """After the event was applied; `lease` and `ticket` are those from before."""
        kind = type(event)
        if kind is ev.Granted:
            self._granted_at[event.id] = at
            self._began(self.state.leases[event.id], seq)
            self._progress[event.id] = granted(event.id), at
        elif kind is ev.Accepted:
            if event.id in self._open:
                self._tell(event.id, cmd.Active(event.id), seq, at)
        elif kind is ev.Settled:
            self._tell(event.id, cmd.Settle(event.id, event.usage), seq, at)
        elif kind is ev.Returned:
            self.trace.unclaimed += 1
            self.trace.holds[event.id].remove(self._open.pop(event.id))
        elif kind in (ev.Released, ev.Reclaimed) and lease is not None:
            self._is_over(lease.ticket, at)
        elif kind in (ev.Cancelled, ev.Expired, ev.Dropped) and ticket is not None:
            if kind is not ev.Expired:  # the engine does that by itself
                command = cmd.Cancel(event.id, getattr(event, "by", ""))
                self.trace.leaves[event.id] = Leave(at - ticket.queued_at, seq, command)
            self._is_over(ticket, at)
        elif kind is ev.Offered:
            offer = cmd.Offer(event.id, event.holder, event.host, "", event.asks)
            self._follows(event.holder, TraceStep(at, seq, offer))
        elif kind is ev.Withdrawn and ticket is not None:
            self.trace.steps.append(TraceStep(at, seq, cmd.Withdraw(event.id, ticket.holder)))
        elif kind is ev.Approved:
            self.trace.steps.append(TraceStep(at, seq, cmd.Approve(event.id)))

    def _arrives(self, ticket: Ticket, seq: int, at: int) -> None:
        actor = ticket.run
        if ticket.job and ticket.id in self._overs:  # the job is tried again
            actor = ticket.id
        self._follows(actor, TraceStep(at, seq, acquire_of(ticket)))

    def _follows(self, actor: str, step: TraceStep) -> None:
        """A step of a run or worker comes so long after what it waited for; any other one at its own time."""
        key, at = self._progress.get(actor, ("", 0))
        if key:
            self.trace.followers.setdefault(key, []).append(replace(step, at=step.at - at))
        else:
            self.trace.steps.append(step)

    def _began(self, lease: Lease, seq: int) -> None:
        hold = self._open[lease.id] = LeaseTrace(seq, lease.model, lease.ticket.spec.kind)
        hold.levels = self.measure.began_with(lease.id)
        self.trace.holds.setdefault(lease.id, []).append(hold)

    def _tell(self, ident: str, command: cmd.Command, seq: int, at: int) -> None:
        """Something was heard of a lease that goes on."""
        self._open[ident].news.append(TraceStep(at - self._granted_at[ident], seq, command))

    def _ends(self, lease: Lease, command: cmd.Command, seq: int, at: int) -> None:
        hold = self._open.pop(lease.id)
        hold.seq = seq
        key, _ = self._progress.get(lease.id, ("", 0))
        if key and key != granted(lease.id):  # a run that made calls: it ends so long after the last of them
            self._follows(lease.id, TraceStep(at, seq, command))
            hold.end = command
        else:
            hold.held_ms, hold.end = at - self._granted_at[lease.id], command

    def _is_over(self, ticket: Ticket, at: int) -> None:
        times = self._overs[ticket.id] = self._overs.get(ticket.id, 0) + 1
        key = over(ticket.id, times)
        self._progress[ticket.id] = key, at
        if ticket.job:
            self._progress[ticket.holder] = key, at
        if ticket.run and ticket.run in self.state.leases:
            self._progress[ticket.run] = key, at

    def _paused(self, event: ev.Paused, seq: int, at: int, rows: list[Row], place: int) -> None:
        """A pause by a person or by headers comes from outside; one after a refusal is the engine's.

        The provider's hint is how long that one lasts, unless the policy itself would wait exactly as long.
        """
        cause = self._next(rows, place, (ev.Refused, ev.Released, ev.Reduced))
        pool = self.state.named(event.kind, event.pool)
        if event.cause != "rate_limited" or (cause is None and not event.incident) or pool is None:
            self.trace.steps.append(TraceStep(at, seq, event=event))
            return
        own = pool.policy.verdict(getattr(cause, "id", ""), pool.limit, at).wait_ms
        self._pause = at, None if own == event.until - at else event.until - at
        if cause is None or (isinstance(cause, ev.Reduced) and self._next(rows, place, (ev.Released,)) is None):
            self.trace.steps.append(TraceStep(at, seq, cmd.Report("", event.kind, event.pool, self._hint(at))))

    def _hint(self, at: int) -> int | None:
        """What the provider said about when to try again, with the refusal of this moment."""
        return self._pause[1] if self._pause[0] == at else None

    @staticmethod
    def _next(rows: list[Row], place: int, kinds: tuple[type, ...]) -> ev.Event | None:
        """The next event of these types at the same moment."""
        at = rows[place][1]
        for _, later, event in rows[place + 1 : place + 5]:
            if later != at:
                break
            if type(event) in kinds:
                return event
        return None

    def _ends_in(self, rows: list[Row], place: int, ident: str) -> bool:
        """Whether the refused call is released at the same moment: then its release says it all."""
        after = self._next(rows, place, (ev.Released,))
        return after is not None and getattr(after, "id", "") == ident

    def _answered(self, event: ev.UsageAnswered, seq: int, at: int) -> None:
        """The provider's count; in the replay, what others use is added to what is used there."""
        pool = self.state.named(event.kind, event.pool)
        by = "" if pool is None else pool.usage_gate.asked_by
        count = event.count
        if count is not None and pool is not None:
            count -= pool.used
        self.trace.steps.append(TraceStep(at, seq, cmd.AnswerUsage(event.kind, event.pool, by, count, event.error)))


def acquire_of(ticket: Ticket) -> cmd.Acquire:
    """The request that became this ticket, of a process that claims what it is granted.

    `since` is how much older it is than its arrival: 0, or less.
    """
    return cmd.Acquire(
        ticket.id,
        ticket.spec,
        ME,
        True,
        ticket.since - ticket.queued_at,
        ticket.priority,
        ticket.expires_at - ticket.queued_at,
        asks=ticket.asks,
        job=ticket.job,
        any_host=ticket.any_host,
        confirm=ticket.confirm,
        not_before=ticket.not_before,
        estimate=ticket.estimate,
        run=ticket.run,
    )


def _release(event: ev.Released, rows: list[Row], place: int, hint: int | None) -> cmd.Release:
    """The command behind the end of a lease. What it said about a limit is seen in the events right before it."""
    command = cmd.Release(event.id, event.outcome, hint, event.exit_code, activity=event.activity, usage=event.usage)
    if event.outcome == "ok":
        return command
    at = rows[place][1]
    for _, earlier, before in reversed(rows[max(place - 4, 0) : place]):
        if earlier != at or type(before) is ev.Released:
            break
        if type(before) is ev.BackedOff and before.id == event.id:
            command.retry_after_ms = before.until - at
            command.scope, command.named = before.scope, before.scope != "model"
            command.family = before.key.partition("/")[2] if before.scope == "family" else ""
            command.credential, command.identity = before.credential, before.identity
    return command
