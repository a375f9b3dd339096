"""Everything the engine knows, and the one way to change it: `apply(event, at)`.

Applying the events of a log from its start gives the state of whoever wrote them. What is derived (queues, counts,
which queues must be looked at) is kept up to date here too, so that a replica that replays is ready to decide.

`fresh` and `dirty` are the line's to-do list: queues whose head is new, and pools in which something changed.
The engine works them off (core/engine.py); replaying only adds to them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from headgate.core import events as ev
from headgate.core.backoffs import Backoff, concerns
from headgate.core.limits import Adapt, Verdict
from headgate.core.limits.belief import Belief, copied
from headgate.core.line import Candidate, Queue
from headgate.core.names import parse_model
from headgate.core.pools import Pool
from headgate.core.records import Lease, Rule, Spec, Ticket
from headgate.core.rules import Need, Rules
from headgate.core.shelf import Shelf
from headgate.core.snapshots import FORMAT, PoolRecord, ShareRecord, Snapshot, UpstreamRecord
from headgate.core.usage import Upstream

_MAX_QUEUES = 4096  # beyond this, queues that nobody stands in are forgotten
DEFAULT_HOLD_MS = 10_000  # what a flow is charged for a seat before anything was observed


_OfPool = ev.Paused | ev.Resumed | ev.Reduced | ev.Accepted | ev.Refused | ev.UsageAsked | ev.UsageAnswered


class State:
    """Pools, tickets, leases and rules of one gate."""

    def __init__(self) -> None:
        self.seq = 0
        self.at = 0
        self.rules = Rules()
        self.file_path = ""
        self.file_digest = ""
        self.file_modified = 0
        self.seniority_ms: int | None = None
        self.tickets: dict[str, Ticket] = {}
        self.leases: dict[str, Lease] = {}
        self.held: dict[str, Candidate] = {}  # what each lease takes seats of
        self.keys: dict[str, str] = {}  # idempotency key -> id
        self.sessions: dict[tuple[str, str], str] = {}  # host and key of a session -> id (SPEC R9)
        self.pools: dict[str, Pool] = {}
        self.queues: dict[Spec, Queue] = {}
        self.arrivals = 0
        self.front = 0  # the order given to the last ticket that was moved to the front
        self.holds: dict[str, int] = {}  # expected hold of a flow, by "kind flow"
        self.foreign: dict[str, tuple[tuple[str, int], ...]] = {}  # by host
        self.foreign_seats: dict[str, int] = {}  # what they take, by pool of agents
        self.auto_caps: dict[str, int] = {}  # by host
        self.reserved: dict[str, tuple[str, ...]] = {}  # ticket -> keys of the pools kept for it
        self.backoffs: dict[str, Backoff] = {}
        self.chosen: dict[str, dict[str, int]] = {}  # by role: when each model was last chosen, as a sequence number
        self.gates: list[Pool] = []  # those whose provider is asked
        self.shelf = Shelf(self.tickets)  # jobs that wait for a worker
        self.fresh: dict[Spec, Queue] = {}
        self.dirty: dict[str, Pool] = {}
        self._apply: dict[type, Callable[[Any, int], None]] = {
            ev.Queued: self._queued,
            ev.Deferred: _nothing,
            ev.Granted: self._granted,
            ev.Claimed: self._claimed,
            ev.Renewed: self._renewed,
            ev.Returned: self._returned,
            ev.Asked: self._asked,
            ev.Offered: self._offered,
            ev.Withdrawn: self._withdrawn,
            ev.Held: self._was_held,
            ev.Approved: self._approved,
            ev.JobEnded: _nothing,
            ev.Released: self._ended,
            ev.Reclaimed: self._ended,
            ev.Cancelled: self._left,
            ev.Expired: self._left,
            ev.Dropped: self._left,
            ev.Bumped: self._bumped,
            ev.Reserved: self._reserved,
            ev.RuleSet: self._rule_set,
            ev.CapRemoved: self._cap_removed,
            ev.CapReset: self._cap_reset,
            ev.SelectorSeen: self._selector_seen,
            ev.FileLoaded: self._file_loaded,
            ev.Observed: self._observed,
            ev.Paused: self._paused,
            ev.Resumed: self._resumed,
            ev.Reduced: self._reduced,
            ev.Accepted: self._accepted,
            ev.Refused: self._refused,
            ev.UsageAsked: self._usage_asked,
            ev.UsageAnswered: self._usage_answered,
            ev.BackedOff: self._backed_off,
            ev.BackoffEnded: self._backoff_ended,
            ev.Chosen: self._chosen,
            ev.Bypassed: _nothing,
        }

    def __repr__(self) -> str:
        return f"<State at {self.seq}: {len(self.leases)} leases, {len(self.tickets)} in line, {len(self.pools)} pools>"

    def apply(self, event: ev.Event, at: int) -> None:
        """Make an event part of the state."""
        self.seq += 1
        self.at = at
        self._apply[type(event)](event, at)

    # Looking things up.

    def queue(self, spec: Spec) -> Queue:
        """The queue for requests like this. Raises BadName for a model that cannot be one."""
        queue = self.queues.get(spec)
        if queue is None:
            if len(self.queues) >= _MAX_QUEUES:
                self.queues = {key: old for key, old in self.queues.items() if old.waiting}
            candidates = self._candidates(spec)
            free = tuple(candidate for candidate in candidates if not self.holding(candidate))
            queue = self.queues[spec] = Queue(spec, candidates, free if spec.any else free[:1], self.tickets)
        return queue

    def holding(self, candidate: Candidate) -> list[Backoff]:
        """The backoffs that hold a candidate back."""
        name = candidate.name
        if name is None or not self.backoffs:
            return []
        return [backoff for backoff in self.backoffs.values() if concerns(backoff.key, name)]

    def tried(self, queue: Queue, now: int) -> tuple[Candidate, ...]:
        """The candidates that the head of a queue may enter with: those to probe with, then those in use."""
        if not self.backoffs:
            return queue.usable
        probes = [
            candidate
            for candidate in queue.candidates
            if (held := self.holding(candidate)) and all(backoff.lets_probe(now) for backoff in held)
        ]
        return (*probes, *queue.usable)

    def pool(self, need: Need) -> Pool:
        """The pool of this need, made on first use."""
        key = f"{need.cap.kind} {need.pool}"
        pool = self.pools.get(key)
        if pool is None:
            pool = self.pools[key] = Pool(need)
            self._see(pool)
            if need.cap.usage_gate:
                self.gates.append(pool)
        return pool

    def _see(self, pool: Pool) -> None:
        """What was observed of a pool's host and of foreign agents."""
        pool.auto_cap = self.auto_caps.get(pool.host, 1)
        pool.foreign = self.foreign_seats.get(pool.id, 0) if pool.kind == "agents" else 0
        pool.refresh()

    def named(self, kind: str, pool: str) -> Pool | None:
        """The pool of this name, if some cap makes one."""
        known = self.pools.get(f"{kind} {pool}")
        if known is not None:
            return known
        need = self.rules.find(kind, pool)
        return self.pool(need) if need is not None else None

    def expected_hold_ms(self, spec: Spec) -> int:
        return self.holds.get(f"{spec.kind} {spec.project}", DEFAULT_HOLD_MS)

    def _candidates(self, spec: Spec) -> tuple[Candidate, ...]:
        models = [parse_model(text) for text in spec.models]
        if not models:
            return (Candidate(None, self._needs(spec, None)),)
        return tuple(Candidate(model, self._needs(spec, model)) for model in models)

    def _needs(self, spec: Spec, model: Any) -> tuple[tuple[Pool, int], ...]:
        return tuple((self.pool(need), need.limit) for need in self.rules.needs(spec, model))

    # Tickets.

    def _queued(self, event: ev.Queued, at: int) -> None:
        ticket = event.ticket
        self.arrivals = max(self.arrivals, ticket.arrival)
        self.tickets[ticket.id] = ticket
        self._take_keys(ticket)
        if not ticket.away:
            self._stand(ticket)
        elif ticket.job:
            self.shelf.put(ticket, at)

    def _stand(self, ticket: Ticket) -> None:
        """A ticket takes its place among those that ask."""
        queue = self.queue(ticket.spec)
        for pool in queue.pools:
            pool.settled(queue.flow).waiting += 1
            if pool.account in ticket.asks:
                pool.upstream.joined(self.at)
        if queue.push(ticket):
            self.look_at(queue)

    def _step_back(self, ticket: Ticket) -> None:
        """A ticket no longer asks: it left, was granted, or is passed over. Already out of `tickets`, or away."""
        queue = self.queue(ticket.spec)
        if queue.removed(ticket):
            self.look_at(queue)
        for pool in queue.pools:
            pool.share(queue.flow).waiting -= 1
            if pool.account in ticket.asks:
                pool.upstream.left()
                if pool.cap.usage_gate and not pool.upstream.askers:
                    self.touch(pool)  # nobody can ask any more: the others go by the seats that are free
        self._unreserve(ticket.id)

    def _left(self, event: ev.Cancelled | ev.Expired | ev.Dropped, at: int) -> None:
        ticket = self.tickets.pop(event.id)
        self._forget_keys(ticket)
        if not ticket.away:
            self._step_back(ticket)

    def _bumped(self, event: ev.Bumped, at: int) -> None:
        old = self.tickets[event.id]
        self.front = min(self.front, event.order)
        new = self.tickets[event.id] = replace(old, order=event.order, priority=event.priority)
        if not old.away:
            self._step_back(old)
            self._stand(new)
        elif new.job:
            self.shelf.put(new, at)

    def _asked(self, event: ev.Asked, at: int) -> None:
        ticket = self.tickets[event.id] = replace(self.tickets[event.id], away=False)
        self._stand(ticket)

    # Jobs: nobody's until a worker offers to run them.

    def _offered(self, event: ev.Offered, at: int) -> None:
        old = self.tickets[event.id]
        spec = replace(old.spec, host=event.host)
        new = replace(old, away=False, spec=spec, holder=event.holder, wake=event.wake, asks=event.asks)
        self._forget_keys(old)  # a session's key is one host's
        self._take_keys(new)
        self.tickets[event.id] = new
        self._stand(new)

    def _withdrawn(self, event: ev.Withdrawn, at: int) -> None:
        self._lay_aside(self.tickets[event.id], at)

    def _was_held(self, event: ev.Held, at: int) -> None:
        self._lay_aside(self.tickets[event.id], at, held=True)

    def _lay_aside(self, old: Ticket, at: int, *, held: bool = False) -> None:
        self.tickets[old.id] = replace(self._nobodys(old), held=held)
        self._step_back(old)
        self.shelf.put(self.tickets[old.id], at)

    def _nobodys(self, old: Ticket) -> Ticket:
        """A job's ticket without the worker that spoke for it."""
        spec = replace(old.spec, host="") if old.any_host else old.spec
        new = replace(old, away=True, spec=spec, holder="", wake="", asks=())
        self._forget_keys(old)
        self._take_keys(new)
        return new

    def _approved(self, event: ev.Approved, at: int) -> None:
        ticket = self.tickets[event.id] = replace(self.tickets[event.id], confirm=False, held=False)
        if ticket.away:
            self.shelf.put(ticket, at)

    def _take_keys(self, ticket: Ticket) -> None:
        if ticket.key:
            self.keys[ticket.key] = ticket.id
        if ticket.session:
            self.sessions[ticket.spec.host, ticket.session] = ticket.id

    def _forget_keys(self, ticket: Ticket) -> None:
        if ticket.key and self.keys.get(ticket.key) == ticket.id:
            del self.keys[ticket.key]
        session = (ticket.spec.host, ticket.session)
        if ticket.session and self.sessions.get(session) == ticket.id:
            del self.sessions[session]

    # Leases.

    def _granted(self, event: ev.Granted, at: int) -> None:
        ticket = event.ticket
        from_line = ticket is None
        if ticket is None:
            ticket = self.tickets.pop(event.id)
        else:
            self._take_keys(ticket)
        spec = ticket.spec
        queue = self.queue(spec)
        candidate = queue.by_model[event.model]
        self.leases[event.id] = Lease(
            ticket=ticket,
            model=event.model,
            granted_at=at,
            granted_seq=self.seq,
            claimed=event.claimed,
            charge_ms=event.charge_ms,
            ends_at=event.ends_at,
            waited_ms=event.waited_ms,
        )
        self.held[event.id] = candidate
        for pool, _ in candidate.needs:
            pool.lend(event.id, spec.seats, spec.project, event.charge_ms, ticket.order, at)
        if from_line:
            self._step_back(ticket)
        else:
            self.arrivals = max(self.arrivals, ticket.arrival)
        for key in event.probes:
            self.backoffs[key].probing = event.id

    def _claimed(self, event: ev.Claimed, at: int) -> None:
        lease = self.leases[event.id]
        lease.claimed = True
        if event.child:
            lease.child = event.child

    def _renewed(self, event: ev.Renewed, at: int) -> None:
        lease = self.leases.get(event.id)
        old = lease.ticket if lease is not None else self.tickets[event.id]
        new = replace(old, renew_by=event.until, holder=event.holder or old.holder, wake=event.wake or old.wake)
        if lease is not None:
            lease.ticket = new
        else:
            self.tickets[event.id] = new

    def _returned(self, event: ev.Returned, at: int) -> None:
        lease = self.leases.pop(event.id)
        candidate = self.held.pop(event.id)
        spec = lease.ticket.spec
        self._probe_over(event.id)
        ticket = self._nobodys(lease.ticket) if lease.ticket.job else replace(lease.ticket, away=True)
        self.tickets[event.id] = ticket = self._timed(ticket, at)
        if ticket.job:
            self.shelf.put(ticket, at)
        for pool, _ in candidate.needs:
            pool.give_back(event.id, spec.seats, spec.project, -lease.charge_ms * spec.seats, at)
            pool.upstream.freed(at, 0)
            self.touch(pool)

    def _ended(self, event: ev.Released | ev.Reclaimed, at: int) -> None:
        lease = self.leases.pop(event.id)
        candidate = self.held.pop(event.id)
        ticket = lease.ticket
        spec = ticket.spec
        self._forget_keys(ticket)
        if self.backoffs:
            self._probe_over(event.id)
        seats, flow, held_ms = spec.seats, spec.project, event.held_ms
        settle_ms = (max(held_ms, 1) - lease.charge_ms) * seats
        outcome = event.outcome if isinstance(event, ev.Released) else "reclaimed"
        for pool, _ in candidate.needs:
            pool.take_back(event.id, seats, flow, settle_ms, held_ms, outcome, at)
            if pool.parked or pool.reserved_for is not None:
                self.touch(pool)
        name = f"{spec.kind} {flow}"
        known = self.holds.get(name)
        self.holds[name] = held_ms if known is None else known + (held_ms - known) // 8

    # The line's to-do list.

    def look_at(self, queue: Queue) -> None:
        queue.parking, queue.watch = 0, (0, "")  # wherever it was parked, it no longer is
        self.fresh[queue.spec] = queue

    def touch(self, pool: Pool) -> None:
        """Something changed in a pool: those who stand there are to be looked at."""
        self.dirty[pool.key] = pool
        if pool.reserved_for is not None:
            self.look_at(pool.reserved_for)

    def _reserved(self, event: ev.Reserved, at: int) -> None:
        self._reserve(self.tickets[event.id], event.pools)

    def _reserve(self, ticket: Ticket, keys: tuple[str, ...]) -> None:
        self._unreserve(ticket.id)
        queue = self.queue(ticket.spec)
        needs = [(pool, own_limit) for pool, own_limit in queue.preferred.needs if pool.key in keys]
        for pool, own_limit in needs:
            pool.reserved_for = queue
            pool.reserved_seats = ticket.spec.seats
            pool.reserved_own = own_limit
        if needs:
            self.reserved[ticket.id] = tuple(pool.key for pool, _ in needs)

    def _unreserve(self, ident: str) -> None:
        for key in self.reserved.pop(ident, ()):
            pool = self.pools[key]
            pool.reserved_for = None
            self.touch(pool)

    def _review_reservations(self, at: int) -> None:
        """Keep nothing for those who could not take it: a pool that they need is paused or has become too small."""
        for ident in list(self.reserved):
            if not self.queue(self.tickets[ident].spec).can_keep(at):
                self._unreserve(ident)

    # Rules, pauses, limits, observations.

    def _rule_set(self, event: ev.RuleSet, at: int) -> None:
        rule = event.rule
        self.rules.runtime[rule.kind, rule.selector] = rule
        if event.cap_set:
            self._forgive(rule.kind, rule.selector)
        self.rebuild()

    def _cap_removed(self, event: ev.CapRemoved, at: int) -> None:
        key = (event.kind, event.selector)
        old = self.rules.runtime.get(key)
        kept = Rule(*key) if old is None else replace(old, cap=None, auto=False)
        self.rules.runtime[key] = replace(kept, unlimited=True)
        self._forgive(*key, pause=True)
        self.rebuild()

    def _cap_reset(self, event: ev.CapReset, at: int) -> None:
        self.rules.runtime.pop((event.kind, event.selector), None)
        self._forgive(event.kind, event.selector)
        self.rebuild()

    def _selector_seen(self, event: ev.SelectorSeen, at: int) -> None:
        self.rules.seen[event.kind, event.selector] = None
        self.rebuild()

    def _file_loaded(self, event: ev.FileLoaded, at: int) -> None:
        self.file_path, self.file_digest, self.file_modified = event.path, event.digest, event.modified
        self.seniority_ms = event.seniority_ms
        self.rules.file = {(rule.kind, rule.selector): rule for rule in event.rules}
        self.rebuild()

    def _forgive(self, kind: str, selector: str, *, pause: bool = False) -> None:
        """A person set this cap: what rate limits did to its pools is over."""
        for pool in self.pools.values():
            if pool.kind == kind and pool.cap.selector.text == selector:
                pool.reduced = 0
                if pool.adapt is not None:
                    pool.adapt.forgive()
                if pause:
                    pool.paused_until = 0
                    pool.pause_cause = ""

    def _observed(self, event: ev.Observed, at: int) -> None:
        self.foreign[event.host] = event.foreign
        if not event.foreign:
            del self.foreign[event.host]
        if event.auto_cap is not None:
            self.auto_caps[event.host] = event.auto_cap
        self._count_foreign()
        for pool in self.pools.values():
            self._see(pool)
            self.touch(pool)
        self._review_reservations(at)

    def _count_foreign(self) -> None:
        """Foreign agents count in every pool they match, as if each had asked for a seat on its host."""
        self.foreign_seats = {}
        for host, seen in self.foreign.items():
            for model, number in seen:
                spec = Spec(models=(model,) if model else (), host=host)
                for need in self.rules.needs(spec, parse_model(model) if model else None):
                    if need.cap.selector.scope != "project":  # nobody knows theirs
                        self.foreign_seats[need.pool] = self.foreign_seats.get(need.pool, 0) + number

    def _paused(self, event: ev.Paused, at: int) -> None:
        pool = self._pool_of(event)
        pool.paused_until = event.until
        pool.pause_cause = event.cause
        if event.incident:
            pool.incident_seq = self.seq
        self.touch(pool)
        self._review_reservations(at)

    def _resumed(self, event: ev.Resumed, at: int) -> None:
        pool = self._pool_of(event)
        pool.paused_until = 0
        pool.pause_cause = ""
        self.touch(pool)

    def _reduced(self, event: ev.Reduced, at: int) -> None:
        pool = self._pool_of(event)
        pool.reduced = event.limit
        pool.refresh()
        self._review_reservations(at)

    # What `adapt` learns (core/limits/adapt.py).

    def _accepted(self, event: ev.Accepted, at: int) -> None:
        pool = self._pool_of(event)
        assert pool.adapt is not None, f"{pool.key} learns nothing"
        pool.adapt.accepted(event.id, at)
        pool.refresh()
        self.touch(pool)

    def _refused(self, event: ev.Refused, at: int) -> None:
        pool = self._pool_of(event)
        assert pool.adapt is not None, f"{pool.key} learns nothing"
        pool.adapt.refused(event.id, Verdict(event.why, event.level, event.limit, 0), at)
        pool.refresh()
        self.touch(pool)
        self._review_reservations(at)

    def _pool_of(self, event: _OfPool) -> Pool:
        pool = self.named(event.kind, event.pool)
        assert pool is not None, f"no cap makes the pool {event.pool}"
        return pool

    # The usage gate.

    def _usage_asked(self, event: ev.UsageAsked, at: int) -> None:
        self._pool_of(event).upstream.asked(event.by, at)

    def _usage_answered(self, event: ev.UsageAnswered, at: int) -> None:
        pool = self._pool_of(event)
        pool.upstream.answered(event.count, event.error, at)
        if pool.adapt is not None:
            pool.adapt.answered(event.count, at)
            pool.refresh()

    # Backoffs.

    def _backed_off(self, event: ev.BackedOff, at: int) -> None:
        self.backoffs[event.key] = Backoff(
            event.key,
            event.scope,
            event.reason,
            event.since,
            event.until,
            event.evidence,
            event.credential,
            event.manual,
            identity=event.identity,
        )
        self._usable_anew(at)

    def _backoff_ended(self, event: ev.BackoffEnded, at: int) -> None:
        del self.backoffs[event.key]
        self._usable_anew(at)

    def _usable_anew(self, at: int) -> None:
        """Other candidates may be used than before: the line is made anew, and who is stalled keeps its time."""
        self._line_anew()
        for ident, ticket in self.tickets.items():
            self.tickets[ident] = self._timed(ticket, at)

    def _timed(self, ticket: Ticket, at: int) -> Ticket:
        """SPEC A8: while every candidate is backed off, a ticket's time does not run."""
        stalled = not self.queue(ticket.spec).usable
        if stalled == bool(ticket.stalled_at):
            return ticket
        if stalled:
            return replace(ticket, stalled_at=at)
        return replace(ticket, stalled_at=0, expires_at=ticket.expires_at + at - ticket.stalled_at)

    def _probe_over(self, ident: str) -> None:
        for backoff in self.backoffs.values():
            if backoff.probing == ident:
                backoff.probing = ""
                self._look_at_concerned(backoff.key)

    def _look_at_concerned(self, key: str) -> None:
        for queue in self.queues.values():
            if queue.waiting and any(each.name is not None and concerns(key, each.name) for each in queue.candidates):
                self.look_at(queue)

    def probe_due(self, key: str) -> None:
        """A backoff lets a probe through from now on."""
        self._look_at_concerned(key)

    def _chosen(self, event: ev.Chosen, at: int) -> None:
        self.chosen.setdefault(event.role, {})[event.model] = self.seq

    # Making everything that is derived anew.

    def rebuild(self) -> None:
        """The rules changed: work out again which pools everyone needs. Rare, and linear in what is there."""
        self.rules.merge()
        self._line_anew()

    def _line_anew(self) -> None:
        old, self.pools, self.gates = self.pools, {}, []
        for pool in old.values():
            need = self.rules.find(pool.kind, pool.id)
            if need is not None:
                self._keep(pool, need)
        reserved, self.reserved = self.reserved, {}
        self._attach()
        for ident, keys in reserved.items():
            self._reserve(self.tickets[ident], keys)
        self._review_reservations(self.at)

    def _keep(self, pool: Pool, need: Need) -> None:
        before, pool.cap = pool.cap, need.cap
        if (before.selector, before.cap, before.auto) != (need.cap.selector, need.cap.cap, need.cap.auto):
            pool.reduced = 0  # a person changed this cap
            if pool.adapt is not None:
                pool.adapt.forgive()
        if not need.cap.capped:
            pool.reduced = pool.paused_until = 0
            pool.pause_cause = ""
        pool.used = 0
        pool.parked = {}
        pool.timer_at = pool.usage_timer_at = 0
        pool.reserved_for = None
        if need.cap.usage_gate:
            self.gates.append(pool)
            if pool.upstream.askers and not (before.usage_gate and before.capped):
                pool.upstream.begin(self.at)
        for flow in pool.shares:
            pool.settled(flow).waiting = 0
        self.pools[pool.key] = pool

    def _attach(self) -> None:
        """Count leases, tickets and foreign agents in the pools that they need by the rules in force."""
        self.queues, self.fresh, self.dirty = {}, {}, {}
        self.shelf.fill(self.at)
        self._count_foreign()
        for pool in self.pools.values():
            self._see(pool)
        live: dict[str, dict[str, int]] = {}
        for ident, lease in self.leases.items():
            spec = lease.ticket.spec
            candidate = self.held[ident] = self.queue(spec).by_model[lease.model]
            for pool, _ in candidate.needs:
                pool.used += spec.seats
                if pool.adapt is not None:
                    live.setdefault(pool.key, {})[ident] = spec.seats
        for pool in self.pools.values():
            if pool.adapt is not None:
                pool.adapt.know(live.get(pool.key, {}), self.at)
        by_spec: dict[Spec, list[Ticket]] = {}
        asking: dict[str, int] = {}
        for ticket in self.tickets.values():
            if not ticket.away:
                by_spec.setdefault(ticket.spec, []).append(ticket)
        for spec, tickets in by_spec.items():
            queue = self.queue(spec)
            queue.fill(tickets)
            for pool in queue.pools:
                pool.share(queue.flow).waiting += len(tickets)
                asking[pool.key] = asking.get(pool.key, 0) + sum(pool.account in ticket.asks for ticket in tickets)
            self.look_at(queue)
        for pool in self.pools.values():
            pool.upstream.recount(asking.get(pool.key, 0), self.at)

    # Snapshots.

    def export(self, now: int | None = None) -> Snapshot:
        """The state as data, as of `now` (default: the last event). Equal states then export equal snapshots."""
        now = self.at if now is None else now
        return Snapshot(
            seq=self.seq,
            at=self.at,
            format=FORMAT,
            file_path=self.file_path,
            file_digest=self.file_digest,
            file_modified=self.file_modified,
            seniority_ms=self.seniority_ms,
            file_rules=[rule for _, rule in sorted(self.rules.file.items())],
            runtime_rules=[rule for _, rule in sorted(self.rules.runtime.items())],
            seen=sorted(self.rules.seen),
            tickets=sorted(self.tickets.values(), key=lambda ticket: (ticket.order, ticket.arrival)),
            leases=sorted(map(replace, self.leases.values()), key=lambda lease: lease.granted_seq),
            pools=[record for _, pool in sorted(self.pools.items()) if (record := _record(pool, now)) is not None],
            arrivals=self.arrivals,
            front=self.front,
            holds=dict(sorted(self.holds.items())),
            foreign=dict(sorted(self.foreign.items())),
            auto_caps=dict(sorted(self.auto_caps.items())),
            reserved=dict(sorted(self.reserved.items())),
            backoffs=[replace(backoff) for _, backoff in sorted(self.backoffs.items())],
            chosen={role: dict(sorted(models.items())) for role, models in sorted(self.chosen.items())},
        )

    @classmethod
    def restore(cls, snapshot: Snapshot) -> State:
        """The state that exported this snapshot."""
        state = cls()
        state.seq, state.at = snapshot.seq, snapshot.at
        state.file_path, state.file_digest = snapshot.file_path, snapshot.file_digest
        state.file_modified, state.seniority_ms = snapshot.file_modified, snapshot.seniority_ms
        state.rules.file = {(rule.kind, rule.selector): rule for rule in snapshot.file_rules}
        state.rules.runtime = {(rule.kind, rule.selector): rule for rule in snapshot.runtime_rules}
        state.rules.seen = dict.fromkeys(snapshot.seen)
        state.rules.merge()
        state.tickets.update((ticket.id, ticket) for ticket in snapshot.tickets)
        state.leases.update((lease.id, replace(lease)) for lease in snapshot.leases)
        for ticket in [*snapshot.tickets, *(lease.ticket for lease in snapshot.leases)]:
            state._take_keys(ticket)
        state.arrivals, state.front = snapshot.arrivals, snapshot.front
        state.holds, state.foreign = dict(snapshot.holds), dict(snapshot.foreign)
        state.auto_caps = dict(snapshot.auto_caps)
        state.backoffs = {backoff.key: replace(backoff) for backoff in snapshot.backoffs}
        state.chosen = {role: dict(models) for role, models in snapshot.chosen.items()}
        for record in snapshot.pools:
            state._restore_pool(record)
        state._attach()
        for record in snapshot.pools:
            state._restore_upstream(record)
        for ident, keys in snapshot.reserved.items():
            state._reserve(state.tickets[ident], keys)
        return state

    def _restore_pool(self, record: PoolRecord) -> None:
        pool = self.named(record.kind, record.pool)
        if pool is None:
            return  # nothing caps it any more
        pool.cooling = list(record.cooling)  # sorted, so a heap
        pool.cooling_seats = sum(seats for _, seats in pool.cooling)
        pool.paused_until, pool.pause_cause = record.paused_until, record.pause_cause
        pool.incident_seq, pool.reduced, pool.virtual = record.incident_seq, record.reduced, record.virtual
        for flow, share in record.shares.items():
            own = pool.share(flow)
            own.start, own.debit = share.start, share.debit
            own.latest, own.latest_at = share.latest, share.latest_at
        pool.holds, pool.hold_mean_ms, pool.hold_dev_ms = record.holds, record.hold_mean_ms, record.hold_dev_ms
        if pool.adapt is not None and record.adapt is not None:
            pool.adapt = Adapt(copied(record.adapt))
            pool.refresh()

    def _restore_upstream(self, record: PoolRecord) -> None:
        pool = self.named(record.kind, record.pool)
        if pool is not None and record.upstream is not None:
            for name in record.upstream.__struct_fields__:
                setattr(pool.upstream, name, getattr(record.upstream, name))


def _record(pool: Pool, now: int) -> PoolRecord | None:
    """What of a pool cannot be derived; None when that is nothing."""
    pool.occupied(now)
    paused = pool.paused_until > now
    shares = {
        flow: ShareRecord(share.start, share.debit, share.latest, share.latest_at)
        if share.waiting
        else ShareRecord(share.start, share.debit, 0, 0)
        for flow, share in sorted(pool.shares.items())
        if share.waiting or share.debit or share.start > pool.virtual
    }
    record = PoolRecord(
        kind=pool.kind,
        pool=pool.id,
        cooling=sorted(pool.cooling),
        paused_until=pool.paused_until if paused else 0,
        pause_cause=pool.pause_cause if paused else "",
        incident_seq=pool.incident_seq,
        reduced=pool.reduced,
        virtual=pool.virtual,
        shares=shares,
        holds=pool.holds,
        hold_mean_ms=pool.hold_mean_ms,
        hold_dev_ms=pool.hold_dev_ms,
        upstream=_upstream_record(pool.upstream),
        adapt=copied(pool.adapt.belief) if pool.adapt is not None and pool.adapt.belief != Belief() else None,
    )
    return None if record == PoolRecord(pool.kind, pool.id) else record


def _upstream_record(upstream: Upstream) -> UpstreamRecord | None:
    record = UpstreamRecord(**{name: getattr(upstream, name) for name in UpstreamRecord.__struct_fields__})
    return None if record == UpstreamRecord() else record


def _nothing(event: Any, at: int) -> None:
    """An event that is only told."""
