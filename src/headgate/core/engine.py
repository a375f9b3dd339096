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
from typing import Any

from msgspec.structs import replace

from headgate.core import blame
from headgate.core import commands as cmd
from headgate.core import events as ev
from headgate.core.backoffs import CAUSES, MOST_MS, NEEDS_A_PERSON, concerns, default_ms, ended_by, parse_key
from headgate.core.checks import check_cap, check_rule
from headgate.core.errors import BadRequest, InternalError, NotFound
from headgate.core.line import Candidate, Queue
from headgate.core.names import KINDS, Model, account_of, parse_model, parse_selector, shown
from headgate.core.order import MAX_PRIORITY, order_key
from headgate.core.pools import Pool
from headgate.core.reasons import reason_for, taken
from headgate.core.records import Lease, Rule, Spec, Ticket
from headgate.core.rules import UNLIMITED
from headgate.core.settling import FOREVER, Settling
from headgate.core.state import State
from headgate.core.timers import (
    ACCEPT,
    CLAIM,
    EXPIRY,
    HOLD,
    POOL,
    PROBE,
    RENEWAL,
    USAGE,
    VERDICT,
    Timers,
    keep_ms,
    renewal_counts,
)
from headgate.core.usage import WITHDRAWN

EXPIRES_MS = 24 * 3_600_000
MOST_RENEW_MS = 86_400_000


class Engine:
    """One gate's decisions. Grants to tickets of whoever decides, process `me` at `address`, are claimed at once."""

    def __init__(self, state: State | None = None, me: str = "", address: str = "") -> None:
        self.state = state or State()
        self.me = me
        self.address = address
        self._timers = Timers(self.state)
        self._line = Settling(self.state, self._timers, self._grant_head, self._emit)
        self._out: list[ev.Event] = []
        self._now = 0
        self._followed_to = 0  # another process has done what was due by then
        self._handlers: dict[type, Callable[[Any, int], None]] = {
            cmd.Acquire: self._acquire,
            cmd.Ask: self._ask,
            cmd.Claim: self._claim,
            cmd.Renew: self._renew,
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
            cmd.AskUsage: self._ask_usage,
            cmd.AnswerUsage: self._answer_usage,
            cmd.BackOff: self._back_off,
            cmd.EndBackoff: self._end_backoff,
            cmd.Active: self._active,
            cmd.Credential: self._credential,
            cmd.Select: self._select,
            cmd.Bypass: self._bypass,
            cmd.Tick: self._tick,
        }

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
            self._line.settle(now)
        return out

    def replay(self, events: list[ev.Event], at: int) -> None:
        """Take in what another process decided."""
        self._now = self._followed_to = at
        for event in events:
            self._take_in(event)

    def next_deadline(self) -> int | None:
        """When `Tick` next has something to do. Exact after `handle`; None: nothing is due, ever."""
        timer = self._timers.first()
        return timer[0] if timer is not None else None

    def first_to_act(self) -> Ticket | None:
        """The ticket whose holder should see to the next deadline."""
        return self._timers.first_to_act()

    def fits(self, spec: Spec, now: int) -> bool:
        """Whether such a request is known to enter now. Changes nothing that is logged."""
        if not all(self.state.rules.counts(spec.kind, text) for text, _ in spec.caps):
            return False  # nobody has counted who is there
        queue = self.state.queue(spec)
        return not queue.waiting and self._line.choose(queue, now) is not None

    def _emit(self, event: ev.Event) -> None:
        self._take_in(event)
        self._out.append(event)

    def _take_in(self, event: ev.Event) -> None:
        """Make an event part of the state, whoever decided it, and set the timers that follow from it."""
        self.state.apply(event, self._now)
        self._timers.follow(event, self._now)

    # Asking for seats.

    def _acquire(self, command: cmd.Acquire, now: int) -> None:
        state = self.state
        if command.id in state.leases or command.id in state.tickets:
            return  # the same command once more: its fate is known
        spec = command.spec
        queue = self._valid_queue(command, now)
        has_one = taken(state, command.key, command.session, spec.host)
        if has_one is not None:
            self._emit(ev.Deferred(command.id, spec, command.holder, has_one, command.command))
            return
        if not queue.waiting:
            candidate = self._line.choose(queue, now)
            if candidate is not None:
                self._grant(self._ticket(command, queue, now), candidate, now, from_line=False)
                return
        reason = reason_for(state, queue, now)
        if not command.wait or self.needs_a_person(queue, now):
            self._emit(ev.Deferred(command.id, spec, command.holder, reason, command.command))
            return
        self._emit(ev.Queued(self._ticket(command, queue, now), reason))

    def _valid_queue(self, command: cmd.Acquire, now: int) -> Queue:
        """The queue for this request; raises when it can never be. Selectors that its environment caps are counted."""
        if not -MAX_PRIORITY <= command.priority <= MAX_PRIORITY:
            raise BadRequest(f"priority {command.priority}: valid is -{MAX_PRIORITY} to {MAX_PRIORITY}")
        if command.expires_ms < 0:
            raise BadRequest(f"expires after {command.expires_ms} ms: valid is 1 or more, or 0 for the default of 24 h")
        if not 0 <= command.renew_ms <= MOST_RENEW_MS:
            raise BadRequest(f"renewed every {command.renew_ms} ms: valid is 1 to {MOST_RENEW_MS}, or 0 for never")
        state, spec = self.state, command.spec
        queue = state.queues.get(spec)
        if queue is None or not queue.valid:
            self._check_spec(spec)
            for text, _ in spec.caps:
                if not state.rules.counts(spec.kind, text):
                    self._emit(ev.SelectorSeen(spec.kind, text))
            if state.fresh:
                self._line.settle(now)
            queue = state.queue(spec)
            queue.valid = True
        return queue

    def _ticket(self, command: cmd.Acquire, queue: Queue, now: int) -> Ticket:
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
            client=command.client,
            renew_ms=command.renew_ms,
            renew_by=now + keep_ms(command.renew_ms) if command.renew_ms else 0,
            asks=command.asks,
            stalled_at=0 if queue.usable else now,
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
            check_cap(cap, text)
        for family, cap in spec.family_caps:
            check_cap(cap, family)
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

    def _grant_head(self, ticket: Ticket, candidate: Candidate, now: int) -> None:
        self._grant(ticket, candidate, now, from_line=True)

    def _grant(self, ticket: Ticket, candidate: Candidate, now: int, *, from_line: bool) -> None:
        claimed = not from_line or (ticket.holder == self.me and ticket.wake == self.address)
        held_back = self.state.holding(candidate) if self.state.backoffs else ()
        if from_line:
            for pool in candidate.gates:
                if pool.upstream.room < UNLIMITED:
                    pool.upstream.room = 0  # one ticket for each answer
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
                probes=tuple(sorted(backoff.key for backoff in held_back)) if held_back else (),
            )
        )

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

    def _renew(self, command: cmd.Renew, now: int) -> None:
        """A client was heard of. Written down when half of its time is over, or another process speaks for it now."""
        lease = self.state.leases.get(command.id)
        ticket = lease.ticket if lease is not None else self.state.tickets.get(command.id)
        if ticket is None:
            raise NotFound(f"no lease or ticket {shown(command.id)}: it was taken back, released or never granted")
        if not ticket.renew_ms:
            raise BadRequest(f"{command.id} lives as long as its process: there is nothing to renew")
        other = bool(command.holder) and (command.holder, command.wake) != (ticket.holder, ticket.wake)
        if other or renewal_counts(ticket, now):
            holder, wake = (command.holder, command.wake) if other else ("", "")
            self._emit(ev.Renewed(command.id, now + keep_ms(ticket.renew_ms), holder, wake))

    def _release(self, command: cmd.Release, now: int) -> None:
        lease = self.state.leases.get(command.id)
        if lease is None:
            return
        ticket = lease.ticket
        held = self.state.held[command.id]
        if command.outcome == "ok":
            if self.state.backoffs:
                self._probe_succeeded(command.id)
        elif ticket.spec.kind == "requests" and (pool := blame.narrowest(held, command.id)) is not None:
            if command.outcome == "rate_limited":
                self._rate_limited(pool, lease, command.retry_after_ms, now)
        elif command.outcome in CAUSES and held.name is not None:
            self._observed_failure(command, held.name, now)
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
        if command.cause not in ("forced", "unrenewed"):
            raise BadRequest(f"cause {shown(command.cause)}: valid are forced and unrenewed")
        self._take(lease, command.cause, now, command.by)

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
            if ticket.renew_ms:
                continue  # its client may still be there, and come back through another process
            if ticket.holder in gone or (ticket.bound and ticket.bound in gone):
                self._emit(ev.Dropped(ident))
        for lease in list(self.state.leases.values()):
            nobody_claims = not lease.claimed and not lease.ticket.renew_ms and lease.ticket.holder in gone
            if nobody_claims or lease.lives_with in gone:
                self._take(lease, "lost", now)
        for pool in self.state.gates:
            if pool.upstream.asked_by in gone:
                self._answered(pool, None, WITHDRAWN, now)

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
        check_rule(rule)
        old = self.state.rules.runtime.get((rule.kind, rule.selector), Rule(rule.kind, rule.selector))
        fields = {name: getattr(rule, name) for name in rule.__struct_fields__}
        said = {name: value for name, value in fields.items() if value is not None}
        del said["auto"], said["unlimited"]  # these go with the cap
        cap_set = rule.cap is not None or rule.auto
        if cap_set:
            said |= {"cap": rule.cap, "auto": rule.auto, "unlimited": False}
        self._emit(ev.RuleSet(replace(old, **said), cap_set))

    def _remove_cap(self, command: cmd.RemoveCap, now: int) -> None:
        check_rule(Rule(command.kind, command.selector))
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
            check_rule(rule)
        self._emit(ev.FileLoaded(command.path, command.digest, command.modified, command.rules, command.seniority_ms))

    def _pause(self, command: cmd.Pause, now: int) -> None:
        if command.for_ms is not None and command.for_ms < 1:
            raise BadRequest(f"a pause of {command.for_ms} ms: valid is 1 or more (to end one: `headgate resume`)")
        until = FOREVER if command.for_ms is None else min(now + command.for_ms, FOREVER)
        for pool in self._pools_named(command.kind, command.pool):
            if not command.observed:
                self._emit(ev.Paused(pool.kind, pool.id, until))
            elif until > pool.paused_until:
                self._emit(ev.Paused(pool.kind, pool.id, until, "rate_limited"))

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
        lease = self.state.leases.get(command.id)
        if command.id and lease is None:
            raise NotFound(f"no lease {shown(command.id)}: see `headgate ps`")
        blamed = blame.meant(self.state, command, lease)
        if isinstance(blamed, Pool):
            self._rate_limited(blamed, lease, command.retry_after_ms, now)
        elif blamed is not None:  # nothing caps it, so no pool can be paused (SPEC B1)
            seen = cmd.Release(command.id, "rate_limited", command.retry_after_ms, evidence="reported")
            self._observed_failure(seen, blamed, now)

    def _rate_limited(self, pool: Pool, lease: Lease | None, retry_after_ms: int | None, now: int) -> None:
        """SPEC P1-P3: pause, never shorter than before; a new incident lowers the limit once."""
        if pool.cap.on_429 == "fixed":
            return
        ident = "" if lease is None else lease.id
        incident = lease is None or lease.granted_seq > pool.incident_seq
        verdict = pool.policy.verdict(ident, pool.limit, now)
        if pool.adapt is not None:
            incident = verdict.why != "fit"
        wait_ms = verdict.wait_ms if retry_after_ms is None else max(retry_after_ms, 0)
        until = max(pool.paused_until, min(now + wait_ms, FOREVER))
        if incident or until > pool.paused_until:
            self._emit(ev.Paused(pool.kind, pool.id, until, "rate_limited", incident))
        cap = pool.auto_cap if pool.cap.cap is None else pool.cap.cap
        if pool.adapt is not None:
            self._emit(ev.Refused(pool.kind, pool.id, ident, verdict.why, verdict.level, verdict.limit, cap))
        elif incident and verdict.limit < pool.limit:
            self._emit(ev.Reduced(pool.kind, pool.id, verdict.limit, cap))

    def wants_word(self, ident: str) -> bool:
        """Whether it is worth telling that the provider took this lease's call (`Active`)."""
        if any(backoff.probing == ident for backoff in self.state.backoffs.values()):
            return True
        held = self.state.held.get(ident)
        needs = held.needs if held is not None else ()
        return any(pool.adapt is not None and pool.adapt.belief.unproven == ident for pool, _ in needs)

    def _level_accepted(self, pool: Pool, ident: str) -> None:
        assert pool.adapt is not None
        self._emit(ev.Accepted(ident, pool.kind, pool.id, pool.adapt.belief.calls[ident].level))

    # The usage gate.

    def questions(self, now: int) -> list[Pool]:
        """The pools whose provider should be asked now."""
        return [pool for pool in self.state.gates if pool.gated and pool.upstream.wants(now)]

    def askers(self, now: int) -> list[Ticket]:
        """The tickets whose processes should ask them."""
        return [ticket for pool in self.questions(now) if (ticket := self._timers.who_can_ask(pool)) is not None]

    def _ask_usage(self, command: cmd.AskUsage, now: int) -> None:
        if any((pool.kind, pool.id) == (command.kind, command.pool) for pool in self.questions(now)):
            self._emit(ev.UsageAsked(command.kind, command.pool, command.by))

    def _answer_usage(self, command: cmd.AnswerUsage, now: int) -> None:
        if command.count is not None and command.count < 0:
            raise BadRequest(f"{command.count} in flight at the provider: valid is 0 or more")
        for pool in self.state.gates:
            if (pool.kind, pool.id, pool.upstream.asked_by) == (command.kind, command.pool, command.by):
                self._answered(pool, command.count, command.error, now)

    def _answered(self, pool: Pool, count: int | None, error: str, now: int) -> None:
        """SPEC G1, G2, G4: below the limit, one who waits enters; unknown, those for whom there are seats."""
        self._emit(ev.UsageAnswered(pool.kind, pool.id, pool.limit, count, error))
        if error == WITHDRAWN:
            return
        pool.upstream.room = UNLIMITED if count is None else max(pool.most_now(now) - count, 0)
        self.state.touch(pool)
        self._line.settle(now)
        pool.upstream.room = 0

    # Backoffs.

    def needs_a_person(self, queue: Queue, now: int) -> bool:
        """Whether waiting is no use: a login or a bill must be seen to for every candidate (SPEC R3)."""
        if self.state.tried(queue, now):
            return False
        held = [self.state.holding(candidate) for candidate in queue.candidates]
        return all(any(backoff.reason in NEEDS_A_PERSON for backoff in backoffs) for backoffs in held)

    def _observed_failure(self, command: cmd.Release, model: Model, now: int) -> None:
        """SPEC B1, B2: back off what the outcome is about; what is observed extends a backoff and never shortens it."""
        reason = command.outcome
        scope = "account" if reason in ("auth", "quota", "usage_window") else "model"
        if reason == "usage_window":  # its message names what is used up
            scope = command.scope or scope
        account = account_of(model)
        key = {"account": account, "family": f"{account}/{command.family}"}.get(scope, str(model))
        wait_ms = default_ms(reason) if command.retry_after_ms is None else command.retry_after_ms
        until = now + min(max(wait_ms, 1), MOST_MS)
        old = self.state.backoffs.get(key)
        since = now
        if old is not None:
            failed_probe = bool(command.id) and old.probing == command.id
            if old.until >= until and not failed_probe:
                return
            until = max(old.until, until)
            since = now if failed_probe else old.since
        self._emit(
            ev.BackedOff(
                key,
                scope,
                reason,
                since,
                until,
                command.evidence,
                command.credential,
                id=command.id,
                identity=command.identity,
            )
        )

    def _back_off(self, command: cmd.BackOff, now: int) -> None:
        key, scope = parse_key(command.key)
        if command.reason not in CAUSES:
            raise BadRequest(f"reason {shown(command.reason)}: valid are {', '.join(CAUSES)}")
        for_ms = default_ms(command.reason) if command.for_ms is None else command.for_ms
        if not 1 <= for_ms <= MOST_MS:
            raise BadRequest(f"a backoff of {for_ms} ms: valid is 1 ms to 35 days")
        refused = command.credential if command.reason == "auth" else ""
        self._emit(ev.BackedOff(key, scope, command.reason, now, now + for_ms, "set by hand", refused, manual=True))

    def _end_backoff(self, command: cmd.EndBackoff, now: int) -> None:
        key, _ = parse_key(command.key)
        if key not in self.state.backoffs:
            known = ", ".join(sorted(self.state.backoffs)) or "none"
            raise NotFound(f"{key} is not backed off; backed off: {known}")
        self._emit(ev.BackoffEnded(key, "cleared"))

    def _active(self, command: cmd.Active, now: int) -> None:
        self._probe_succeeded(command.id)
        held = self.state.held.get(command.id)
        for pool, _ in held.needs if held is not None else ():
            if pool.adapt is not None and pool.adapt.belief.unproven == command.id:
                self._level_accepted(pool, command.id)

    def _probe_succeeded(self, ident: str) -> None:
        for key in [backoff.key for backoff in self.state.backoffs.values() if backoff.probing == ident]:
            self._emit(ev.BackoffEnded(key, "probe"))

    def _credential(self, command: cmd.Credential, now: int) -> None:
        account, scope = parse_key(command.account)
        if scope != "account":
            raise BadRequest(f"{shown(command.account)} is not an account: valid is provider or provider@account")
        for backoff in [each for each in self.state.backoffs.values() if each.key.partition("/")[0] == account]:
            why = ended_by(backoff, command.digest, command.identity)
            if why:
                self._emit(ev.BackoffEnded(backoff.key, why))

    def _select(self, command: cmd.Select, now: int) -> None:
        models = [parse_model(text) for text in command.models]
        held = self.state.backoffs.values()
        free = [str(model) for model in models if not any(concerns(backoff.key, model) for backoff in held)]
        if free:
            last = self.state.chosen.get(command.role, {})
            self._emit(ev.Chosen(command.role, min(free, key=lambda model: last.get(model, 0))))

    def _bypass(self, command: cmd.Bypass, now: int) -> None:
        self._emit(ev.Bypassed(command.holder, command.models, command.command))

    # Time.

    def _tick(self, command: cmd.Tick, now: int) -> None:
        """Do what is due. Each firing is an ordinary event, in the order of the deadlines."""
        over = [each.key for each in self.state.backoffs.values() if each.until <= now and not each.must_probe]
        for key in over:  # before anybody is let in to try whether they are
            self._emit(ev.BackoffEnded(key, "time"))
        while (timer := self._timers.first()) is not None and timer[0] <= now:
            if timer[1] != POOL and (self.state.fresh or self.state.dirty):
                self._line.settle(now)  # what freed up is lent before anything is taken away
                continue
            self._timers.pop()
            self._fire(*timer, now)

    def _fire(self, at: int, what: int, name: str, now: int) -> None:
        state = self.state
        if what == POOL:
            pool = state.pools[name]
            pool.timer_at = 0
            state.touch(pool)
        elif what == USAGE:
            pool = state.pools[name]
            if now >= pool.upstream.lapses_at():
                self._answered(pool, None, _unanswered(pool), now)
            else:
                self._timers.watch_usage(pool, now)
        elif what == PROBE:
            state.probe_due(name)
        elif what == VERDICT:
            self._probe_succeeded(name)
        elif what == ACCEPT:
            pool = state.pools[name]
            assert pool.adapt is not None
            self._level_accepted(pool, pool.adapt.belief.unproven)
        elif what == EXPIRY:
            ticket = state.tickets[name]
            self._emit(ev.Expired(name, now - ticket.queued_at, ticket.holder, ticket.wake, ticket.command))
        elif what == CLAIM:
            self._emit(ev.Returned(name))
        elif what == HOLD:
            self._take(state.leases[name], "overstayed", now)
        elif what == RENEWAL:
            lease = state.leases.get(name)
            if lease is not None:
                self._take(lease, "unrenewed", now)
            else:
                self._emit(ev.Dropped(name, "unrenewed"))
        elif at > self._followed_to:
            self._line.consider_reserving(state.tickets[name], now)
        else:
            state.look_at(state.queue(state.tickets[name].spec))


def _unanswered(pool: Pool) -> str:
    return "no answer within 6 s" if pool.upstream.asked_by else "nobody asked within 6 s"
