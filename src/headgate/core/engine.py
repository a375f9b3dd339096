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
from heapq import heapify, heappop, heappush
from typing import Any

from msgspec.structs import replace

from headgate.core import commands as cmd
from headgate.core import events as ev
from headgate.core.errors import BadRequest, InternalError, NotFound
from headgate.core.limits import INCIDENT_PAUSE_MS, reduced_limit
from headgate.core.line import Candidate, Queue
from headgate.core.names import KINDS, parse_model, parse_selector, shown
from headgate.core.order import MAX_PRIORITY, order_key
from headgate.core.pools import Pool
from headgate.core.reasons import key_taken, reason_for
from headgate.core.records import Lease, Rule, Spec, Ticket
from headgate.core.rules import ON_429
from headgate.core.state import State

CLAIM_MS = 10_000  # a grant that nobody claims for so long goes back to its ticket's place
EXPIRES_MS = 24 * 3_600_000
RESERVE_AFTER_MS = 30_000  # a ticket that is overtaken in several pools for so long gets a reservation
FOREVER = 1 << 53  # a pause without an end; fits every JSON reader

# What a timer is for. At the same moment pools come first: a seat may free up for a ticket about to expire.
_POOL, _RESERVE, _CLAIM, _HOLD, _EXPIRY = range(5)


class Engine:
    """One gate's decisions. Grants to tickets of whoever decides, process `me` at `address`, are claimed at once."""

    def __init__(self, state: State | None = None, me: str = "", address: str = "") -> None:
        self.state = state or State()
        self.me = me
        self.address = address
        self._timers: list[tuple[int, int, str]] = []
        self._parkings = 0
        self._out: list[ev.Event] = []
        self._now = 0
        self._handlers: dict[type, Callable[[Any, int], None]] = {
            cmd.Acquire: self._acquire,
            cmd.Ask: self._ask,
            cmd.Claim: self._claim,
            cmd.Release: self._release,
            cmd.Reclaim: self._reclaim,
            cmd.Cancel: self._cancel,
            cmd.Bump: self._bump,
            cmd.Lost: self._lost,
            cmd.Observe: self._observe,
            cmd.SetRule: self._set_rule,
            cmd.RemoveCap: self._remove_cap,
            cmd.ResetCap: self._reset_cap,
            cmd.LoadFile: self._load_file,
            cmd.Pause: self._pause,
            cmd.Resume: self._resume,
            cmd.Report: self._report,
            cmd.Bypass: self._bypass,
            cmd.Tick: self._tick,
        }
        self._arming: dict[type, Callable[[Any], None]] = {
            ev.Queued: self._arm_queued,
            ev.Granted: self._arm_granted,
            ev.Returned: self._arm_returned,
            ev.RuleSet: self._arm_anew,
            ev.CapRemoved: self._arm_anew,
            ev.CapReset: self._arm_anew,
            ev.SelectorSeen: self._arm_anew,
            ev.FileLoaded: self._arm_anew,
        }
        self.rearm()

    def __repr__(self) -> str:
        return f"<Engine {self.state!r}, next deadline {self.next_deadline()}>"

    def handle(self, command: cmd.Command, now: int) -> list[ev.Event]:
        """Decide. Raises a HeadgateError, having changed nothing, when the command cannot be."""
        if now < self.state.at:
            raise InternalError(f"time went backwards: {now} after {self.state.at}")
        if (self.state.fresh or self.state.dirty) and type(command) is not cmd.Tick:
            raise InternalError("the line is not settled: Tick comes before other commands")
        out = self._out = []
        self._now = now
        self._handlers[type(command)](command, now)
        if self.state.fresh or self.state.dirty:
            self._settle(now)
        return out

    def replay(self, events: list[ev.Event], at: int) -> None:
        """Take in what another process decided."""
        self._now = at
        for event in events:
            self._take_in(event)

    def next_deadline(self) -> int | None:
        """When `Tick` next has something to do. Exact after `handle`; None: nothing is due, ever."""
        timers = self._timers
        while timers and not self._timer_stands(timers[0]):
            heappop(timers)
        return timers[0][0] if timers else None

    def first_to_act(self) -> Ticket | None:
        """The ticket whose holder should arm the next deadline: the head of the line at the pool that it is about."""
        self.next_deadline()
        if not self._timers:
            return None
        _, what, name = self._timers[0]
        if what == _POOL:
            return self.state.pools[name].first_parked()
        if what == _EXPIRY:
            return self.state.tickets[name]
        return next((head for queue in self.state.queues.values() if (head := queue.head()) is not None), None)

    def fits(self, spec: Spec, now: int) -> bool:
        """Whether such a request is known to enter now. Changes nothing that is logged."""
        if not all(self.state.rules.counts(spec.kind, text) for text, _ in spec.caps):
            return False  # nobody has counted who is there
        queue = self.state.queue(spec)
        return not queue.waiting and self._choose(queue, now) is not None

    def _emit(self, event: ev.Event) -> None:
        self._take_in(event)
        self._out.append(event)

    def _take_in(self, event: ev.Event) -> None:
        """Make an event part of the state, whoever decided it, and set the timers that follow from it."""
        self.state.apply(event, self._now)
        arm = self._arming.get(type(event))
        if arm is not None:
            arm(event)

    # Asking for seats.

    def _acquire(self, command: cmd.Acquire, now: int) -> None:
        state = self.state
        if command.id in state.leases or command.id in state.tickets:
            return  # the same command once more: its fate is known
        spec = command.spec
        queue = self._valid_queue(command, now)
        if command.key and command.key in state.keys:
            self._emit(ev.Deferred(command.id, spec, command.holder, key_taken(state, command.key), command.command))
            return
        if not queue.waiting:
            candidate = self._choose(queue, now)
            if candidate is not None:
                self._grant(self._ticket(command, now), candidate, now, from_line=False)
                return
        reason = reason_for(state, queue, now)
        if not command.wait:
            self._emit(ev.Deferred(command.id, spec, command.holder, reason, command.command))
            return
        self._emit(ev.Queued(self._ticket(command, now), reason))

    def _valid_queue(self, command: cmd.Acquire, now: int) -> Queue:
        """The queue for this request; raises when it can never be. Selectors that its environment caps are counted."""
        if not -MAX_PRIORITY <= command.priority <= MAX_PRIORITY:
            raise BadRequest(f"priority {command.priority}: valid is -{MAX_PRIORITY} to {MAX_PRIORITY}")
        if command.expires_ms < 0:
            raise BadRequest(f"expires after {command.expires_ms} ms: valid is 1 or more, or 0 for the default of 24 h")
        state, spec = self.state, command.spec
        queue = state.queues.get(spec)
        if queue is None or not queue.valid:
            self._check_spec(spec)
            for text, _ in spec.caps:
                if not state.rules.counts(spec.kind, text):
                    self._emit(ev.SelectorSeen(spec.kind, text))
            if state.fresh:
                self._settle(now)
            queue = state.queue(spec)
            queue.valid = True
        return queue

    def _ticket(self, command: cmd.Acquire, now: int) -> Ticket:
        since = now if command.since is None else min(command.since, now)
        return Ticket(
            id=command.id,
            spec=command.spec,
            holder=command.holder,
            order=order_key(since, command.priority, now, self.state.seniority_ms),
            arrival=self.state.arrivals + 1,
            since=since,
            queued_at=now,
            expires_at=now + (command.expires_ms or EXPIRES_MS),
            priority=command.priority,
            wake=command.wake,
            command=command.command,
            key=command.key,
            role=command.role,
            session=command.session,
            bound=command.bound,
        )

    def _check_spec(self, spec: Spec) -> None:
        """Raise when such a request can never be."""
        if spec.kind not in KINDS:
            raise BadRequest(f"kind {shown(spec.kind)}: valid are {' and '.join(KINDS)}")
        if not 1 <= spec.seats <= 10_000:
            raise BadRequest(f"{spec.seats} seats: valid is 1 to 10000")
        for text in spec.models:
            parse_model(text)
        for text, cap in spec.caps:
            parse_selector(text)
            _check_cap(cap, text)
        for family, cap in spec.family_caps:
            _check_cap(cap, family)
        self._check_possible(spec)

    def _check_possible(self, spec: Spec) -> None:
        """Raise when no candidate could be admitted even by empty pools."""
        too_small: tuple[str, int] | None = None
        for text in spec.models or ("",):
            needs = self.state.rules.needs(spec, parse_model(text) if text else None)
            too_small = next(((need.pool, need.most) for need in needs if spec.seats > need.most), None)
            if too_small is None:
                return
        assert too_small is not None
        pool, most = too_small
        raise BadRequest(f"needs {spec.seats} seats of {pool}, whose cap is {most}: ask for fewer or raise the cap")

    def _choose(self, queue: Queue, now: int) -> Candidate | None:
        """The candidate that the head of this queue can enter with now."""
        seats = queue.spec.seats
        for candidate in queue.usable:
            for pool, own_limit in candidate.needs:
                if pool.blocks(seats, own_limit, queue, now):
                    break
            else:
                return candidate
        return None

    def _grant(self, ticket: Ticket, candidate: Candidate, now: int, *, from_line: bool) -> None:
        claimed = not from_line or (ticket.holder == self.me and ticket.wake == self.address)
        ends_at = now + candidate.max_hold_ms if candidate.max_hold_ms else 0
        self._emit(
            ev.Granted(
                id=ticket.id,
                model=candidate.model,
                charge_ms=self.state.expected_hold_ms(ticket.spec),
                claimed=claimed,
                ticket=None if from_line else ticket,
                ends_at=ends_at,
                waited_ms=now - ticket.queued_at,
            )
        )

    # Settling the line.

    def _settle(self, now: int) -> None:
        """Let in everybody who can enter, in order."""
        while (queue := self._next(now)) is not None:
            head = queue.head()
            candidate = self._choose(queue, now)
            if head is None:
                raise InternalError(f"{queue} was chosen and is empty")
            if candidate is not None:  # else the seat is kept for another since
                self._grant(head, candidate, now, from_line=True)

    def _next(self, now: int) -> Queue | None:
        """The queue whose head enters next; everything that cannot enter is parked on the way."""
        state = self.state
        best: Queue | None = None
        for spec, queue in list(state.fresh.items()):
            if queue.head() is None:
                del state.fresh[spec]
            elif self._choose(queue, now) is None:
                self._park(queue, now)
                del state.fresh[spec]
            elif best is None or _before(queue, best):
                best = queue
        for key, pool in list(state.dirty.items()):
            top = self._top(pool, now)
            if top is None:
                del state.dirty[key]
                self._watch(pool, now)
            elif best is None or _before(top, best):
                best = top
        return self._oldest(best, now) if best is not None else None

    def _oldest(self, best: Queue, now: int) -> Queue:
        """The oldest of a flow whose turn it is: shares differ from pool to pool, and must not change its order."""
        flow = best.flow
        for queue in self.state.fresh.values():
            if queue.flow == flow and _before(queue, best):
                best = queue
        for pool in self.state.dirty.values():
            top = self._top(pool, now, flow)
            if top is not None and _before(top, best):
                best = top
        return best

    def _top(self, pool: Pool, now: int, flow: str | None = None) -> Queue | None:
        """The first queue (of a flow) parked here that can enter; those that something else blocks move there."""
        while (queue := pool.top(now) if flow is None else pool.top_of(flow, now)) is not None:
            if self._choose(queue, now) is not None:
                return queue
            self._park(queue, now)
        return None

    def _park(self, queue: Queue, now: int) -> None:
        """Leave a queue where it will be looked at again: for each candidate, on one pool that blocks it."""
        head = queue.head()
        if head is None:
            raise InternalError(f"{queue} was parked and is empty")
        if head.id in self.state.reserved:
            self._reserve(queue, head, now)
        self._parkings += 1
        queue.parking = self._parkings
        seats = queue.spec.seats
        for candidate in queue.usable:
            for pool, own_limit in candidate.needs:
                if pool.blocks(seats, own_limit, queue, now):
                    pool.park(queue, seats, own_limit)
                    self._watch(pool, now)
                    break
        # At multiples of its waiting time, so that all processes agree when.
        due = now + RESERVE_AFTER_MS - (now - head.queued_at) % RESERVE_AFTER_MS
        if queue.watch != (due, head.id):
            queue.watch = (due, head.id)
            heappush(self._timers, (due, _RESERVE, head.id))

    def _watch(self, pool: Pool, now: int) -> None:
        """See to it that somebody looks when time alone frees something in a pool that is waited for."""
        if not pool.has_parked:
            return
        due = pool.changes_at(now)
        if due and due < FOREVER and (pool.timer_at <= now or due < pool.timer_at):
            pool.timer_at = due
            heappush(self._timers, (due, _POOL, pool.key))

    # Keeping seats for those who are overtaken.

    def _consider_reserving(self, ticket: Ticket, now: int) -> None:
        """A head has waited for a while: if others overtake it, keep for it what frees up."""
        queue = self.state.queue(ticket.spec)
        if ticket.id in self.state.reserved or (queue.can_enter(now) and self._overtaken(queue, ticket, now)):
            self._reserve(queue, ticket, now)
        self.state.look_at(queue)

    def _overtaken(self, queue: Queue, head: Ticket, now: int) -> bool:
        """Whether others passed this ticket in every pool that blocks it, and none of its pools is kept for others."""
        passed = False
        for pool, own_limit in queue.candidates[0].needs:
            share = pool.share(queue.flow)
            if pool.reserved_for is not None:
                return False
            if pool.blocks(queue.spec.seats, own_limit, queue, now):
                passed = share.start < pool.virtual or (share.latest > head.order and share.latest_at > head.queued_at)
                if not passed:
                    return False
        return passed

    def _reserve(self, queue: Queue, head: Ticket, now: int) -> None:
        """Keep the seats of one more pool for a ticket, once those kept so far are free.

        One pool after the other, the slowest first: so a pool that stays full leaves no seat of another idle.
        """
        kept = self.state.reserved.get(head.id, ())
        blocking = [pool for pool, own in queue.candidates[0].needs if pool.blocks(queue.spec.seats, own, queue, now)]
        if not blocking or any(pool.key in kept for pool in blocking):
            return
        slowest = max(blocking, key=lambda pool: pool.hold_mean_ms // pool.limit)
        if slowest.reserved_for is None:
            self._emit(ev.Reserved(head.id, (*kept, slowest.key)))

    # What a holder says of its ticket or lease.

    def _ask(self, command: cmd.Ask, now: int) -> None:
        ticket = self.state.tickets.get(command.id)
        if ticket is not None and ticket.away:
            self._emit(ev.Asked(command.id))

    def _claim(self, command: cmd.Claim, now: int) -> None:
        lease = self.state.leases.get(command.id)
        if lease is None:
            ticket = self.state.tickets.get(command.id)
            if ticket is None:
                raise NotFound(f"no lease {command.id}: it was reclaimed or never granted")
            if ticket.away:
                self._emit(ev.Asked(command.id))
        elif not lease.claimed or (command.child and command.child != lease.child):
            self._emit(ev.Claimed(command.id, command.child))

    def _release(self, command: cmd.Release, now: int) -> None:
        lease = self.state.leases.get(command.id)
        if lease is None:
            return
        if command.outcome == "rate_limited" and lease.ticket.spec.kind == "requests":
            pool = _to_blame(self.state.held[command.id])
            if pool is not None:
                self._rate_limited(pool, lease, command.retry_after_ms, now)
        ticket = lease.ticket
        self._emit(
            ev.Released(
                id=command.id,
                outcome=command.outcome,
                model=lease.model,
                waited_ms=lease.waited_ms,
                held_ms=now - lease.granted_at,
                kind=ticket.spec.kind,
                project=ticket.spec.project,
                exit_code=command.exit_code,
                signal=command.signal,
                activity=command.activity,
                role=ticket.role,
                session=ticket.session,
                evidence=command.evidence,
            )
        )

    def _reclaim(self, command: cmd.Reclaim, now: int) -> None:
        lease = self.state.leases.get(command.id)
        if lease is None:
            raise NotFound(f"no lease {shown(command.id)}: see `headgate ps`")
        self._take(lease, "forced", now, command.by)

    def _take(self, lease: Lease, cause: str, now: int, by: str = "") -> None:
        spec = lease.ticket.spec
        held_ms = now - lease.granted_at
        self._emit(ev.Reclaimed(lease.id, cause, lease.model, held_ms, by, spec.kind, spec.project))

    def _cancel(self, command: cmd.Cancel, now: int) -> None:
        lease = self.state.leases.get(command.id)
        if lease is not None and not lease.claimed:
            self._emit(ev.Returned(command.id))
        ticket = self.state.tickets.get(command.id)
        if ticket is None:
            raise NotFound(f"no ticket {shown(command.id)} in line: see `headgate queue`")
        self._emit(ev.Cancelled(ticket.id, command.by, ticket.holder, ticket.wake, ticket.command))

    def _bump(self, command: cmd.Bump, now: int) -> None:
        state = self.state
        ticket = state.tickets.get(command.id)
        if ticket is None:
            raise NotFound(f"no ticket {shown(command.id)} in line: see `headgate queue`")
        if command.priority is None:
            self._emit(ev.Bumped(ticket.id, min(state.front, 0) - 1, ticket.priority))
            return
        if not -MAX_PRIORITY <= command.priority <= MAX_PRIORITY:
            raise BadRequest(f"priority {command.priority}: valid is -{MAX_PRIORITY} to {MAX_PRIORITY}")
        order = order_key(ticket.since, command.priority, ticket.queued_at, state.seniority_ms)
        self._emit(ev.Bumped(ticket.id, order, command.priority))

    def _lost(self, command: cmd.Lost, now: int) -> None:
        gone = set(command.processes)
        for ident, ticket in list(self.state.tickets.items()):
            if ticket.holder in gone or (ticket.bound and ticket.bound in gone):
                self._emit(ev.Dropped(ident))
        for lease in list(self.state.leases.values()):
            nobody_claims = not lease.claimed and lease.ticket.holder in gone
            if nobody_claims or lease.lives_with in gone:
                self._take(lease, "lost", now)

    # What was seen, and what people set.

    def _observe(self, command: cmd.Observe, now: int) -> None:
        state = self.state
        auto_cap = state.auto_caps.get(command.host)
        if command.room is not None:
            specs = [lease.ticket.spec for lease in state.leases.values()]
            agents = [spec for spec in specs if spec.kind == "agents" and spec.host == command.host]
            lent = sum(spec.seats for spec in agents if not spec.supervisor)
            auto_cap = max(1, min(lent + command.room, command.most))
        if command.foreign != state.foreign.get(command.host, ()) or auto_cap != state.auto_caps.get(command.host):
            for model, number in command.foreign:
                if model:
                    parse_model(model)
                if number < 1:
                    raise BadRequest(f"{number} foreign agents of {shown(model)}: valid is 1 or more")
            self._emit(ev.Observed(command.host, command.foreign, auto_cap))

    def _set_rule(self, command: cmd.SetRule, now: int) -> None:
        rule = command.rule
        _check_rule(rule)
        old = self.state.rules.runtime.get((rule.kind, rule.selector), Rule(rule.kind, rule.selector))
        fields = {name: getattr(rule, name) for name in rule.__struct_fields__}
        said = {name: value for name, value in fields.items() if value is not None and value is not False}
        cap_set = rule.cap is not None or rule.auto
        if cap_set:
            said |= {"cap": rule.cap, "auto": rule.auto, "unlimited": False}
        self._emit(ev.RuleSet(replace(old, **said), cap_set))

    def _remove_cap(self, command: cmd.RemoveCap, now: int) -> None:
        _check_rule(Rule(command.kind, command.selector))
        self._emit(ev.CapRemoved(command.kind, command.selector))

    def _reset_cap(self, command: cmd.ResetCap, now: int) -> None:
        if (command.kind, command.selector) not in self.state.rules.runtime:
            raise NotFound(f"nothing was set at run time for {command.selector} ({command.kind})")
        self._emit(ev.CapReset(command.kind, command.selector))

    def _load_file(self, command: cmd.LoadFile, now: int) -> None:
        state = self.state
        newer = command.modified > state.file_modified
        if command.digest == state.file_digest or not (newer or command.force):
            return
        for rule in command.rules:
            _check_rule(rule)
        self._emit(ev.FileLoaded(command.path, command.digest, command.modified, command.rules, command.seniority_ms))

    def _pause(self, command: cmd.Pause, now: int) -> None:
        if command.for_ms is not None and command.for_ms < 1:
            raise BadRequest(f"a pause of {command.for_ms} ms: valid is 1 or more (to end one: `headgate resume`)")
        until = FOREVER if command.for_ms is None else min(now + command.for_ms, FOREVER)
        for pool in self._pools_named(command.kind, command.pool):
            self._emit(ev.Paused(pool.kind, pool.id, until))

    def _resume(self, command: cmd.Resume, now: int) -> None:
        for pool in self._pools_named(command.kind, command.pool):
            if pool.paused_until > now:
                self._emit(ev.Resumed(pool.kind, pool.id))

    def _pools_named(self, kind: str, name: str) -> list[Pool]:
        """The pool of this name, or all pools of this selector; only capped ones can be paused."""
        pool = self.state.named(kind, name)
        found = [pool] if pool is not None else []
        if not found:
            pools = self.state.pools.values()
            found = [pool for pool in pools if pool.kind == kind and pool.cap.selector.text == name]
        found = [pool for pool in found if pool.cap.capped]
        if not found:
            known = sorted(pool.id for pool in self.state.pools.values() if pool.kind == kind and pool.cap.capped)
            listed = f"; capped are: {', '.join(known)}" if known else ""
            raise NotFound(f"no capped pool {shown(name)} of kind {kind}{listed} (set one with `headgate cap set`)")
        return found

    # Rate limits.

    def _report(self, command: cmd.Report, now: int) -> None:
        if command.id:
            lease = self.state.leases.get(command.id)
            if lease is None:
                raise NotFound(f"no lease {shown(command.id)}: see `headgate ps`")
            pool = _to_blame(self.state.held[command.id])
        else:
            lease = None
            pool = self._blamed(command.kind, command.target)
        if pool is not None:
            self._rate_limited(pool, lease, command.retry_after_ms, now)

    def _blamed(self, kind: str, target: str) -> Pool | None:
        """The pool that a script means: by its own name, or the narrowest of the model it names."""
        pool = self.state.named(kind, target)
        if pool is None and "/" in target and "*" not in target:
            candidate = self.state.queue(Spec(models=(target,), kind=kind)).candidates[0]
            pool = _to_blame(candidate)
        if pool is None or not pool.cap.capped or pool.cap.selector.scope != "model":
            raise NotFound(
                f"no capped provider pool of kind {kind} is meant by {shown(target)} (set one with `headgate cap set`)"
            )
        return pool

    def _rate_limited(self, pool: Pool, lease: Lease | None, retry_after_ms: int | None, now: int) -> None:
        """SPEC P1-P3: pause, never shorter than before; a new incident lowers the limit once."""
        incident = lease is None or lease.granted_seq > pool.incident_seq
        wait_ms = INCIDENT_PAUSE_MS if retry_after_ms is None else max(retry_after_ms, 0)
        until = max(pool.paused_until, min(now + wait_ms, FOREVER))
        if incident or until > pool.paused_until:
            self._emit(ev.Paused(pool.kind, pool.id, until, "rate_limited", incident))
        lower = reduced_limit(pool)
        if incident and lower is not None:
            cap = pool.auto_cap if pool.cap.cap is None else pool.cap.cap
            self._emit(ev.Reduced(pool.kind, pool.id, lower, cap))

    def _bypass(self, command: cmd.Bypass, now: int) -> None:
        self._emit(ev.Bypassed(command.holder, command.models, command.command))

    # Time.

    def _tick(self, command: cmd.Tick, now: int) -> None:
        """Do what is due. Each firing is an ordinary event, in the order of the deadlines."""
        state, timers = self.state, self._timers
        while timers and timers[0][0] <= now:
            timer = heappop(timers)
            if timer[1] != _POOL and (state.fresh or state.dirty):
                self._settle(now)  # what freed up is lent before anything is taken away
            if self._timer_stands(timer):
                self._fire(timer[1], timer[2], now)

    def _fire(self, what: int, name: str, now: int) -> None:
        state = self.state
        if what == _POOL:
            pool = state.pools[name]
            pool.timer_at = 0
            state.touch(pool)
        elif what == _EXPIRY:
            ticket = state.tickets[name]
            self._emit(ev.Expired(name, now - ticket.queued_at, ticket.holder, ticket.wake, ticket.command))
        elif what == _CLAIM:
            self._emit(ev.Returned(name))
        elif what == _HOLD:
            self._take(state.leases[name], "overstayed", now)
        else:
            self._consider_reserving(state.tickets[name], now)

    def _timer_stands(self, timer: tuple[int, int, str]) -> bool:
        """Whether a timer still means something; what it was set for may be long gone."""
        at, what, name = timer
        state = self.state
        if what == _POOL:
            pool = state.pools.get(name)
            return pool is not None and pool.timer_at == at
        if what in (_EXPIRY, _RESERVE):
            ticket = state.tickets.get(name)
            if ticket is None or what == _EXPIRY:
                return ticket is not None and ticket.expires_at == at
            queue = state.queue(ticket.spec)
            return queue.watch == (at, name) and queue.head() is ticket
        lease = state.leases.get(name)
        if lease is None:
            return False
        if what == _CLAIM:
            return not lease.claimed and lease.granted_at + CLAIM_MS == at
        return lease.ends_at == at and not lease.child  # a child is ended by its runner, and lost then

    def _push_hold(self, at: int, name: str) -> None:
        """Leases come and go by the million: forget the timers of those that are gone now and then."""
        timers = self._timers
        heappush(timers, (at, _HOLD, name))
        if len(timers) > 4096 and len(timers) > 4 * (len(self.state.leases) + len(self.state.tickets)):
            timers[:] = [timer for timer in timers if self._timer_stands(timer)]
            heapify(timers)

    def rearm(self) -> None:
        """Set all timers anew from the state: after a snapshot, or when pools were made anew."""
        state = self.state
        timers = [(ticket.expires_at, _EXPIRY, ticket.id) for ticket in state.tickets.values()]
        for lease in state.leases.values():
            if not lease.claimed:
                timers.append((lease.granted_at + CLAIM_MS, _CLAIM, lease.id))
            if lease.ends_at:
                timers.append((lease.ends_at, _HOLD, lease.id))
        heapify(timers)
        self._timers = timers
        for pool in state.pools.values():
            pool.timer_at = 0

    def _arm_queued(self, event: ev.Queued) -> None:
        heappush(self._timers, (event.ticket.expires_at, _EXPIRY, event.ticket.id))

    def _arm_granted(self, event: ev.Granted) -> None:
        if not event.claimed:
            heappush(self._timers, (self._now + CLAIM_MS, _CLAIM, event.id))
        if event.ends_at:
            self._push_hold(event.ends_at, event.id)

    def _arm_returned(self, event: ev.Returned) -> None:
        heappush(self._timers, (self.state.tickets[event.id].expires_at, _EXPIRY, event.id))

    def _arm_anew(self, event: ev.Event) -> None:
        self.rearm()


def _before(one: Queue, other: Queue) -> bool:
    """Which of two heads enters first: by age within a flow, by fair share in the first pool that both need."""
    a, b = one.head(), other.head()
    if a is None or b is None:
        raise InternalError("an empty queue was compared")
    by_age = (a.order, a.arrival) < (b.order, b.arrival)
    if one.flow == other.flow or a.order < 0 or b.order < 0:
        return by_age
    keys = {pool.key for pool in other.pools}
    for pool in one.pools:
        if pool.key in keys:
            return pool.rank(one) < pool.rank(other)
    return by_age


def _to_blame(candidate: Candidate) -> Pool | None:
    """The pool that a rate limit acts on: the narrowest capped provider pool, never host or project."""
    for pool, _ in candidate.needs:
        if pool.cap.capped and pool.cap.selector.scope == "model":
            return pool
    return None


def _check_cap(cap: int, of: str) -> None:
    if not 1 <= cap <= 1_000_000:
        raise BadRequest(f"cap {cap} for {of}: valid is 1 to 1000000 (to stop a pool: `headgate pause`)")


def _check_rule(rule: Rule) -> None:
    if rule.kind not in KINDS:
        raise BadRequest(f"kind {shown(rule.kind)}: valid are {' and '.join(KINDS)}")
    parse_selector(rule.selector)
    if rule.cap is not None:
        _check_cap(rule.cap, rule.selector)
    if rule.auto and rule.selector != "host":
        raise BadRequest(f"{rule.selector} = auto: only host can be automatic")
    if rule.cooldown_ms is not None and not 0 <= rule.cooldown_ms <= 86_400_000:
        raise BadRequest(f"cooldown {rule.cooldown_ms} ms: valid is 0 to 24 h")
    if rule.on_429 is not None and rule.on_429 not in ON_429.values():
        raise BadRequest(f"on_429 {shown(rule.on_429)}: valid are step and pause")
    if rule.max_hold_ms is not None and rule.max_hold_ms < 0:
        raise BadRequest(f"max_hold {rule.max_hold_ms} ms: valid is 0 (none) or more")
