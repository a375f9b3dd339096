"""What docs/rules.md says must be true of a gate, worked out by brute force from its events alone.

Simple on purpose, and independent of core/: names are matched by regular expressions, slots are counted by looking at
every lease, the line is the list of tickets. Each event is checked when it is taken in; `check` looks at the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from fleetgate.core import events as ev
from fleetgate.core.entities import Rule, Spec, Ticket
from tests.property.learning import Learned

CLAIM_MS = 10_000
KEEP_MS = 300_000
BUILT_IN = {("agents", "host"): 3, ("agents", "*/claude-opus-*"): 4}
COOLDOWN_MS = {"agents": 0, "requests": 350}
MAX_HOLD_MS = {"agents": 0, "requests": 1_800_000}
FAMILIES = ("opus", "sonnet", "haiku")


class Said(NamedTuple):
    """What the strongest source says of one selector."""

    cap: int | None
    auto: bool
    source: str

    @property
    def capped(self) -> bool:
        return self.cap is not None or self.auto


class Held(NamedTuple):
    ticket: Ticket
    model: str
    granted_at: int
    claimed: bool
    child: str
    ends_at: int


@dataclass
class Backed:
    """A backoff: until when, from when on a probe is let through, and the probe whose verdict is waited for."""

    until: int
    probe_from: int
    by_probe_alone: bool
    of_calls: bool = False  # refused calls made it: calls try it out, and it is forgotten a minute after its time
    probing: str = ""

    @property
    def ends_at(self) -> int:
        return self.until + 60_000 if self.of_calls else self.until


class Limit(NamedTuple):
    """A pool that a request needs: the selector that it follows from, and its limit (None: it is only counted)."""

    selector: str
    limit: int | None


def glob(pattern: str, text: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None


OWN = ("host", "project", "key")


def model_parts(text: str) -> tuple[str, str, str]:
    found = re.fullmatch(r"([^/@]+)(?:@([^/@]+))?/(.+)", text)
    assert found is not None, text
    return found[1], found[2] or "default", found[3]


def selector_parts(text: str) -> tuple[str, str, str]:
    """Provider, account and name; empty where the selector says nothing."""
    found = re.fullmatch(r"([^/@]+)(?:@([^/@]+))?(?:/(.+))?", text)
    assert found is not None, text
    return found[1], found[2] or "", found[3] or ""


def scope_of(selector: str) -> str:
    scope = selector.partition(":")[0]
    return scope if scope in OWN else "model"


def default_cooldown_ms(kind: str, selectors: list[str]) -> int:
    """E1: what is counted by us alone is free at once."""
    return 0 if scope_of(selectors[0]) == "key" else COOLDOWN_MS[kind]


def names_one(selector: str) -> bool:
    """Whether a selector names its account or key, and is not for each of them."""
    return bool(selector_parts(selector)[1]) if scope_of(selector) == "model" else ":" in selector


def applies(selector: str, spec: Spec, model: str) -> bool:
    """N2, R8: whether a request (with this candidate) is one of those that the selector is about."""
    if selector == "host":
        return spec.host != "" and not spec.supervisor
    if selector == "project":
        return True
    if scope_of(selector) == "key":  # E1: without a key, no key's cap is about it
        return spec.access_key != "" and selector in ("key", f"key:{spec.access_key}")
    if not model:
        return False
    patterns, parts = selector_parts(selector), model_parts(model)
    return all(not pattern or glob(pattern, part) for pattern, part in zip(patterns, parts, strict=True))


def pool_of(selector: str, spec: Spec, model: str) -> str:
    """N3: the name of the one pool of the selector that the request needs."""
    if scope_of(selector) in OWN:
        scope = scope_of(selector)
        instance = {"host": spec.host, "project": spec.project, "key": spec.access_key}[scope]
        return f"{scope}:{instance}"
    provider, account, name = selector_parts(selector)
    own_provider, own_account, _ = model_parts(model)
    if account:
        return selector if account != "default" or "*" in provider else selector.replace("@default", "")
    of_account = own_provider if own_account == "default" else f"{own_provider}@{own_account}"
    if "*" in provider:
        return f"{selector}:{of_account}"
    return of_account + (f"/{name}" if name else "")


def family_of(selector: str) -> str:
    name = selector_parts(selector)[2]
    return next((family for family in FAMILIES if "claude" in name and family in name), "none")


class Book:
    """Tickets, leases and rules by the model's own count."""

    def __init__(self, universe: Iterable[tuple[Spec, str]]) -> None:
        self.universe = list(universe)  # requests that between them know every pool
        self.now = 0
        self.tickets: dict[str, Ticket] = {}
        self.leases: dict[str, Held] = {}
        self.ended: dict[str, str] = {}
        self.file: dict[tuple[str, str], Rule] = {}
        self.runtime: dict[tuple[str, str], Rule] = {}
        self.seen: set[tuple[str, str]] = set()
        self.seniority_ms: int | None = None
        self.paused: dict[tuple[str, str], int] = {}
        self.reduced: dict[tuple[str, str], int] = {}
        self.cooling: dict[tuple[str, str], list[tuple[int, int]]] = {}
        self.foreign: dict[str, tuple[tuple[str, int], ...]] = {}
        self.auto_caps: dict[str, int] = {}
        self.backoffs: dict[str, Backed] = {}
        self.asking: dict[tuple[str, str], tuple[str, int]] = {}  # by pool: who asks the provider, since when
        self.room: dict[tuple[str, str], int] = {}  # by pool: what the answer that just came allows
        self.learned: dict[tuple[str, str], Learned] = {}
        self.reserved: dict[str, tuple[str, ...]] = {}  # as the engine has it: what is withheld on purpose

    # Rules.

    def selectors(self, kind: str) -> list[str]:
        keys = {*self.file, *self.runtime, *self.seen, *BUILT_IN}
        return sorted(selector for of_kind, selector in keys if of_kind == kind)

    def said(self, kind: str, selector: str) -> Said | None:
        """C2: run time over file over built-in; None: nothing, or no cap at all by `cap rm`."""
        for source, rules in (("run time", self.runtime), ("file", self.file)):
            rule = rules.get((kind, selector))
            if rule is not None and rule.unlimited:
                return Said(None, False, source)
            if rule is not None and (rule.cap is not None or rule.auto):
                return Said(None if rule.auto else rule.cap, rule.auto, source)
        built_in = BUILT_IN.get((kind, selector))
        return None if built_in is None else Said(built_in, False, "built-in")

    def option(self, kind: str, selectors: list[str], name: str, default: int) -> int:
        for selector in selectors:
            for rules in (self.runtime, self.file):
                rule = rules.get((kind, selector))
                if rule is not None and getattr(rule, name) is not None:
                    return int(getattr(rule, name))
        return default

    def learns(self, spec: Spec, model: str, pool: str) -> bool:
        """P4: whether the limit of a pool is learned; what an environment says is no limit of the pool."""
        rules = [*self.runtime.values(), *self.file.values()]
        if all(rule.on_429 != "adapt" for rule in rules):
            return False
        group = self.groups(replace(spec, caps=()), model).get(pool, [])
        by = [
            rules[spec.kind, selector].on_429
            for selector in group
            for rules in (self.runtime, self.file)
            if (spec.kind, selector) in rules
        ]
        caps = [(selector, of.cap) for selector in group if (of := self.said(spec.kind, selector)) is not None]
        if next((each for each in by if each is not None), "") != "adapt" or not caps:
            return False
        return caps[0][1] is not None and scope_of(caps[0][0]) == "model"

    def groups(self, spec: Spec, model: str) -> dict[str, list[str]]:
        """By pool, the selectors that make it for a request; those that name an account or a key first."""
        own = [selector for selector, _ in spec.caps]
        matching = {text for text in [*self.selectors(spec.kind), *own] if applies(text, spec, model)}
        groups: dict[str, list[str]] = {}
        for selector in sorted(matching, key=lambda text: (scope_of(text) == "model", not names_one(text))):
            groups.setdefault(pool_of(selector, spec, model), []).append(selector)
        return groups

    def limits(self, spec: Spec, model: str) -> dict[str, Limit]:
        """C2, C4, N3: every pool that a request needs, with its limit for this request."""
        own, families = dict(spec.caps), dict(spec.family_caps)
        groups = self.groups(spec, model)
        matching = [selector for group in groups.values() for selector in group]
        said = {selector: self.said(spec.kind, selector) for selector in matching}
        configured = {scope_of(text) for text, of in said.items() if of is not None and of.source != "built-in"}
        environment = {scope_of(text) for text in matching if text in own}
        found = {}
        for pool, group in groups.items():
            reduced = 1 << 60 if self.learns(spec, model, pool) else self.reduced.get((spec.kind, pool), 1 << 60)
            limit = self._limit(group, said, own, families, configured, environment, reduced, spec.host)
            if limit is None and any((spec.kind, selector) in self.seen for selector in group):
                limit = Limit(group[0], None)
            if limit is not None:
                found[pool] = limit
        return found

    def _limit(
        self,
        group: list[str],
        said: dict[str, Said | None],
        own: dict[str, int],
        families: dict[str, int],
        configured: set[str],
        environment: set[str],
        reduced: int,
        host: str,
    ) -> Limit | None:
        for selector in group:
            of = said[selector]
            if selector in own:
                return Limit(selector, min(own[selector], reduced))
            if of is None or (of.source == "built-in" and scope_of(selector) in configured):
                continue
            if not of.capped:
                return None  # removed
            if family_of(selector) in families:
                return Limit(selector, min(families[family_of(selector)], reduced))
            if of.source == "built-in" and scope_of(selector) in environment:
                return Limit(selector, None)
            cap = of.cap if of.cap is not None else self.auto_caps.get(host, 1)
            return Limit(selector, min(cap, reduced))
        return None

    # Counting.

    def taken(self, kind: str, pool: str, selector: str) -> int:
        """Slots that cannot be granted in a pool: of leases that the selector is about, cooling, of foreign agents."""
        slots = sum(held.ticket.spec.slots for held in self.leases.values() if self._counts(selector, pool, held, kind))
        slots += sum(slots for until, slots in self.cooling.get((kind, pool), []) if until > self.now)
        if kind == "agents" and scope_of(selector) not in ("project", "key"):
            for host, seen in self.foreign.items():
                for model, number in seen:
                    if pool in self.limits(Spec(models=(model,) if model else (), host=host), model):
                        slots += number
        return slots

    def _counts(self, selector: str, pool: str, held: Held, kind: str) -> bool:
        spec = held.ticket.spec
        if spec.kind != kind or not applies(selector, spec, held.model):
            return False
        if pool_of(selector, spec, held.model) != pool:
            return False
        said = self.said(kind, selector)
        only_built_in = said is not None and said.source == "built-in" and (kind, selector) not in self.seen
        return not only_built_in or pool in self.limits(spec, held.model)

    def holding(self, model: str) -> list[str]:
        """The keys that hold a model back."""
        if not model:
            return []
        provider, account, name = model_parts(model)
        whose = provider if account == "default" else f"{provider}@{account}"
        keys = []
        for key in self.backoffs:
            of, slash, pattern = key.partition("/")
            if of == whose and (not slash or glob(pattern, name)):
                keys.append(key)
        return sorted(keys)

    def free(self, spec: Spec) -> list[str]:
        """The candidates that are not backed off and that this request would use."""
        models = [model for model in self.all_candidates(spec) if not self.holding(model)]
        return models if spec.any_candidate else models[:1]

    def all_candidates(self, spec: Spec) -> list[str]:
        return [str_of(model) for model in spec.models] or [""]

    def _may_probe(self, model: str) -> bool:
        """B2: after six hours, or when the time of a quota is over, one ticket while the others wait."""
        held = [self.backoffs[key] for key in self.holding(model)]
        return bool(held) and all(not backoff.probing and self.now >= backoff.probe_from for backoff in held)

    def blocked(
        self,
        spec: Spec,
        model: str,
        ident: str = "",
        *,
        reservations: bool = True,
        gate: bool = True,
        perhaps: bool = False,
    ) -> str:
        """Why a request cannot enter with this candidate now; "" if it can, as far as is known without having learned.

        `perhaps`: also why it perhaps cannot.
        """
        for pool, (selector, limit) in self.limits(spec, model).items():
            learned = self.learned.get((spec.kind, pool))
            if perhaps and self.learns(spec, model, pool):
                return f"{pool} learns its limit"
            if perhaps and learned is not None and learned.may_cool(self.now):
                return f"{pool} has learned how long a slot cools down"
            if self.paused.get((spec.kind, pool), 0) > self.now:
                return f"{pool} is paused"
            if limit is None:
                continue
            taken = self.taken(spec.kind, pool, selector)
            if taken + spec.slots > limit:
                return f"{pool} is full: {taken} of {limit}"
            if reservations and self._withheld(spec, pool, taken, ident):
                return f"{pool} is kept for another"
        for pool in self.limits(spec, model):
            if gate and not self.learns(spec, model, pool) and self._awaits_answer(spec, model, pool, ident, perhaps):
                return f"{pool} waits for its provider's answer"
        return ""

    def gated(self, kind: str, spec: Spec, model: str, pool: str) -> bool:
        """G1, G3: whether those in the queue for a pool wait for what its provider says: a process there can ask it."""
        if not any(rule.usage_gate for rule in [*self.file.values(), *self.runtime.values()]):
            return False
        group = self.groups(replace(spec, caps=(), kind=kind), model).get(pool, [])
        decisive = [of for selector in group if (of := self.said(kind, selector)) is not None]
        if not group or not self.option(kind, group, "usage_gate", 0) or not decisive or not decisive[0].capped:
            return False
        provider, account, _ = model_parts(model)
        whose = provider if account == "default" else f"{provider}@{account}"
        return any(
            whose in ticket.asks and not ticket.away and pool in self.limits(ticket.spec, candidate)
            for ticket in self.tickets.values()
            for candidate in self.free(ticket.spec)
            if ticket.spec.kind == kind
        )

    def _awaits_answer(self, spec: Spec, model: str, pool: str, ident: str, perhaps: bool) -> bool:
        if not model or self.room.get((spec.kind, pool), 0) >= spec.slots:
            return False
        if not self.gated(spec.kind, spec, model, pool):
            return False
        return ident in self.tickets or self._holds_someone(spec.kind, pool, perhaps)

    def _holds_someone(self, kind: str, pool: str, perhaps: bool) -> bool:
        """G5: whether a waiting request has everything but the answer, or perhaps has."""
        return any(
            not ticket.away
            and ticket.spec.kind == kind
            and pool in self.limits(ticket.spec, candidate)
            and not self.blocked(ticket.spec, candidate, ticket.id, gate=False, perhaps=not perhaps)
            for ticket in self.tickets.values()
            for candidate in self.candidates(ticket.spec)
        )

    def _withheld(self, spec: Spec, pool: str, taken: int, ident: str) -> bool:
        for other, keys in self.reserved.items():
            theirs = self.tickets[other].spec
            if other == ident or theirs == spec or f"{spec.kind} {pool}" not in keys:
                continue
            limit = self.limits(theirs, theirs.models[0] if theirs.models else "")[pool].limit
            if limit is not None and taken + spec.slots + theirs.slots > limit:
                return True
        return False

    def candidates(self, spec: Spec) -> list[str]:
        """With which a request may enter: those that may be tried out, then those that it would use."""
        return [*(model for model in self.all_candidates(spec) if self._may_probe(model)), *self.in_use(spec)]

    def in_use(self, spec: Spec) -> list[str]:
        """Those that are not backed off; behind a first that is paused the next ones too, up to one that is not."""
        free = self.free(replace(spec, any_candidate=True))
        if spec.any_candidate:
            return free
        paused = [any(self.paused.get((spec.kind, pool), 0) > self.now for pool in self.limits(spec, m)) for m in free]
        return free[: paused.index(False) + 1] if False in paused else free

    # Taking in what happened.

    def take(self, event: ev.Event, now: int) -> None:
        assert now >= self.now
        self.now = now
        if not isinstance(event, ev.Granted | ev.Reserved | ev.UsageAnswered | ev.Held):
            self.room.clear()  # an answer is used at once or not at all
        handler = getattr(self, f"_{type(event).__name__.lower()}", None)
        if handler is not None:
            handler(event)
        for ident, ticket in self.tickets.items():  # A8: while all candidates are backed off, its time does not run
            stalled = not self.free(ticket.spec)
            if stalled and not ticket.stalled_at:
                self.tickets[ident] = replace(ticket, stalled_at=now)
            elif ticket.stalled_at and not stalled:
                later = ticket.expires_at + now - ticket.stalled_at
                self.tickets[ident] = replace(ticket, stalled_at=0, expires_at=later)

    def _queued(self, event: ev.Queued) -> None:
        ticket = event.ticket
        self._new(ticket)
        assert ticket.away == ticket.job, "J2: a job asks for nothing until a worker offers"
        self.tickets[ticket.id] = ticket
        assert ticket.stalled_at == (0 if self.free(ticket.spec) else self.now)

    def _new(self, ticket: Ticket) -> None:
        assert ticket.id not in self.tickets
        assert ticket.id not in self.leases
        since = ticket.since
        if self.seniority_ms is not None:
            since = max(since, ticket.queued_at - self.seniority_ms)
        assert ticket.order == max(since - 12_000 * ticket.priority, 0), "A4: the key of the queue"
        assert ticket.queued_at == self.now
        assert ticket.renew_by == (self.now + self._kept_ms(ticket) if ticket.renew_ms else 0), "H2: the long clock"
        others = [*self.tickets.values(), *(held.ticket for held in self.leases.values())]
        assert all(other.arrival < ticket.arrival for other in others), "arrivals tell who came first"
        assert not ticket.key or all(other.key != ticket.key for other in others), "A10: one at a time for each key"

    def _kept_ms(self, ticket: Ticket) -> int:
        """H2: how long a client's place or lease outlives the last that was heard of it."""
        return max(KEEP_MS, 3 * ticket.renew_ms)

    def _renewed(self, event: ev.Renewed) -> None:
        held = self.leases.get(event.id)
        ticket = held.ticket if held is not None else self.tickets[event.id]
        assert ticket.renew_ms, "only clients renew"
        assert event.until == self.now + self._kept_ms(ticket)
        speaks = (event.holder or ticket.holder, event.wake if event.holder else ticket.wake)
        early = 2 * (ticket.renew_by - self.now) >= self._kept_ms(ticket)
        assert not early or speaks != (ticket.holder, ticket.wake), "H2: written down for nothing"
        ticket = replace(ticket, renew_by=event.until, holder=speaks[0], wake=speaks[1])
        if held is not None:
            self.leases[event.id] = held._replace(ticket=ticket)
        else:
            self.tickets[event.id] = ticket

    def _granted(self, event: ev.Granted) -> None:
        ticket = event.ticket
        if ticket is None:
            ticket = self.tickets[event.id]
            assert not ticket.away, "a ticket that is passed over asks for nothing"
        else:
            self._new(ticket)
            assert event.claimed
        spec = ticket.spec
        cause = self.blocked(spec, event.model, ticket.id)
        assert not cause, f"A1: {ticket.id} was admitted with {event.model}: {cause}"
        for earlier in self.candidates(spec):
            if earlier == event.model:
                break
            assert self.blocked(spec, earlier, ticket.id, perhaps=True), f"B5: {earlier} was preferred and free"
        else:
            raise AssertionError(f"{event.model} is not a candidate of {ticket.id}")
        agent = ticket.spec.kind == "agents"
        tried = [key for key in self.holding(event.model) if not (agent and self.backoffs[key].of_calls)]
        assert list(event.probes) == tried, "B2: who enters in spite of a backoff tries it out"
        for key in event.probes:
            self.backoffs[key].probing = event.id
        self._check_order(ticket, event.model)
        if event.ticket is None:
            for pool in self.limits(spec, event.model):  # G2: one for each answer
                if self.room.get((spec.kind, pool), 1 << 60) < 1 << 60:
                    self.room[spec.kind, pool] = 0
        self._learn_of(event.id, spec, event.model)
        holds = [self._max_hold(spec, event.model, pool) for pool in self.limits(spec, event.model)]
        longest = min((hold for hold in holds if hold), default=0)
        assert event.ends_at == (self.now + longest if longest else 0), "L5: the longest hold"
        self.tickets.pop(event.id, None)
        self.reserved.pop(event.id, None)
        self.ended.pop(event.id, None)
        self.leases[event.id] = Held(ticket, event.model, self.now, event.claimed, "", event.ends_at)

    def _learn_of(self, ident: str, spec: Spec, model: str) -> None:
        for pool, (selector, limit) in self.limits(spec, model).items():
            if self.learns(spec, model, pool):
                learned = self.learned.setdefault((spec.kind, pool), Learned())
                group = self.groups(replace(spec, caps=()), model)[pool]
                if limit is None or self.option(spec.kind, group, "usage_gate", 0):
                    learned.proven = 1 << 60  # held back by nothing, or let in by the provider's count
                learned.sent(ident, self.taken(spec.kind, pool, selector), spec.slots, self.now)

    def _accepted(self, event: ev.Accepted) -> None:
        self.learned[event.kind, event.pool].accepted(event.id)

    def _refused(self, event: ev.Refused) -> None:
        assert 1 <= event.limit <= event.cap, "P4: within floor and ceiling"
        learned = self.learned.setdefault((event.kind, event.pool), Learned())
        learned.refused(event.id, event.why, {*self.leases, event.id})

    def _max_hold(self, spec: Spec, model: str, pool: str) -> int:
        return self.option(spec.kind, self.groups(spec, model)[pool], "max_hold_ms", MAX_HOLD_MS[spec.kind])

    def _check_order(self, entered: Ticket, model: str) -> None:
        """A4: nobody of the same project who was ahead, asks, and needs a pool that this one takes could have
        entered.
        """
        pools = set(self.limits(entered.spec, model))
        for other in self.tickets.values():
            same_line = other.spec.project == entered.spec.project and other.spec.kind == entered.spec.kind
            ahead = (other.order, other.arrival) < (entered.order, entered.arrival)
            if not (same_line and ahead) or other.away or other.id == entered.id:
                continue
            for candidate in self.candidates(other.spec):
                if pools & set(self.limits(other.spec, candidate)):
                    perhaps = other.spec != entered.spec  # who needs the same would have entered
                    cause = self.blocked(other.spec, candidate, other.id, perhaps=perhaps)
                    assert cause, f"A4: {entered.id} entered before {other.id}"

    def _claimed(self, event: ev.Claimed) -> None:
        held = self.leases[event.id]
        self.leases[event.id] = held._replace(claimed=True, child=event.child or held.child)

    def _returned(self, event: ev.Returned) -> None:
        held = self.leases.pop(event.id)
        job = held.ticket.job
        assert not held.claimed or (job and not held.child), "J2: what runs is not handed back"
        self.tickets[event.id] = self._nobodys(held.ticket) if job else replace(held.ticket, away=True)
        self._probe_over(event.id)

    def _nobodys(self, ticket: Ticket) -> Ticket:
        spec = replace(ticket.spec, host="") if ticket.any_host else ticket.spec
        return replace(ticket, away=True, spec=spec, holder="", wake="", asks=())

    def _offered(self, event: ev.Offered) -> None:
        ticket = self.tickets[event.id]
        assert ticket.job
        assert ticket.away
        assert not ticket.held, "J5: what is held is not offered for"
        assert ticket.not_before <= self.now, "J3: not before its pause is over"
        assert ticket.spec.host in ("", event.host)
        spec = replace(ticket.spec, host=event.host)
        self.tickets[event.id] = replace(ticket, away=False, spec=spec, holder=event.holder, asks=event.asks)

    def _withdrawn(self, event: ev.Withdrawn) -> None:
        ticket = self.tickets[event.id]
        assert ticket.job
        assert not ticket.away
        self.reserved.pop(event.id, None)
        self.tickets[event.id] = self._nobodys(ticket)

    def _held(self, event: ev.Held) -> None:
        ticket = self.tickets[event.id]
        assert ticket.confirm
        assert not ticket.away
        free = [model for model in self.candidates(ticket.spec) if not self.blocked(ticket.spec, model, ticket.id)]
        assert free, "J5: held before its turn"
        self.reserved.pop(event.id, None)
        self.tickets[event.id] = replace(self._nobodys(ticket), held=True)

    def _approved(self, event: ev.Approved) -> None:
        ticket = self.tickets[event.id]
        assert ticket.confirm
        self.tickets[event.id] = replace(ticket, confirm=False, held=False)

    def _asked(self, event: ev.Asked) -> None:
        assert self.tickets[event.id].away
        assert not self.tickets[event.id].job, "J2: a job has no holder that could speak"
        self.tickets[event.id] = replace(self.tickets[event.id], away=False)

    def _released(self, event: ev.Released) -> None:
        self._end(event.id, "released", event.held_ms, event.outcome)

    def _reclaimed(self, event: ev.Reclaimed) -> None:
        if event.cause == "overstayed":
            held = self.leases[event.id]
            assert held.ends_at, "L5: nothing limits its hold"
            assert held.ends_at <= self.now
            assert not held.child, "L5: a child is ended by its runner first"
        ticket = self.leases[event.id].ticket
        if event.cause == "unrenewed":
            assert ticket.renew_ms, "H2: nobody has to renew it"
            assert ticket.renew_by <= self.now, "H2: its client had time left"
        if event.cause == "lost":
            assert not ticket.renew_ms, "H2: a client does not live with the process that speaks for it"
        self._end(event.id, event.cause, event.held_ms)

    def _end(self, ident: str, how: str, held_ms: int, outcome: str = "") -> None:
        self._probe_over(ident)
        held = self.leases.pop(ident)
        assert held_ms == self.now - held.granted_at
        self.ended[ident] = how
        spec = held.ticket.spec
        for pool in self.limits(spec, held.model):  # K1: by the cooldown in force now
            group = self.groups(spec, held.model)[pool]
            if self.learns(spec, held.model, pool):
                learned = self.learned.setdefault((spec.kind, pool), Learned())
                learned.ended(ident, spec.slots, outcome == "ok", self.now)
                continue
            cooldown = self.option(spec.kind, group, "cooldown_ms", default_cooldown_ms(spec.kind, group))
            if cooldown:
                self.cooling.setdefault((spec.kind, pool), []).append((self.now + cooldown, spec.slots))

    def _cancelled(self, event: ev.Cancelled) -> None:
        self._leave(event.id, "cancelled")

    def _dropped(self, event: ev.Dropped) -> None:
        ticket = self.tickets[event.id]
        if event.why == "unrenewed":
            assert ticket.renew_ms, "H2: nobody has to renew it"
            assert ticket.renew_by <= self.now, "H2: its client had time left"
        else:
            assert not ticket.renew_ms, "H2: its client may come back through another process"
        self._leave(event.id, "dropped")

    def _expired(self, event: ev.Expired) -> None:
        assert self.tickets[event.id].expires_at <= self.now, "A8: expired too early"
        assert not self.tickets[event.id].stalled_at, "A8: its time does not run"
        self._leave(event.id, "expired")

    def _probe_over(self, ident: str) -> None:
        for backoff in self.backoffs.values():
            if backoff.probing == ident:
                backoff.probing = ""

    def _usageasked(self, event: ev.UsageAsked) -> None:
        key = (event.kind, event.pool)
        if key in self.asking:
            assert self.now >= self.asking[key][1] + 6_000, "G3: two questions at once"
        self.asking[key] = (event.by, self.now)

    def _usageanswered(self, event: ev.UsageAnswered) -> None:
        key = (event.kind, event.pool)
        asked = self.asking.pop(key, None)
        if event.error == "withdrawn":
            assert asked is not None
        elif event.count is None:
            self.room[key] = 1 << 60
        else:
            assert asked is not None
            self.room[key] = event.limit - event.count

    def _backedoff(self, event: ev.BackedOff) -> None:
        old = self.backoffs.get(event.key)
        assert event.until > self.now
        if old is not None and not event.manual:
            assert event.until >= old.until, "B2: what is observed never shortens a backoff"
        by_probe_alone = event.reason == "quota" and not event.manual
        probe_from = event.until if by_probe_alone else min(event.since + 6 * 3_600_000, event.until)
        self.backoffs[event.key] = Backed(event.until, probe_from, by_probe_alone, event.times > 0)

    def _backoffended(self, event: ev.BackoffEnded) -> None:
        backoff = self.backoffs.pop(event.key)
        if event.why == "time":
            assert self.now >= backoff.ends_at
            assert not backoff.by_probe_alone
        if event.why == "probe":
            assert backoff.probing

    def _leave(self, ident: str, how: str) -> None:
        del self.tickets[ident]
        self.reserved.pop(ident, None)
        self.ended[ident] = how

    def _bumped(self, event: ev.Bumped) -> None:
        ticket = self.tickets[event.id]
        if event.order < 0:
            assert all(event.order < other.order for other in self.tickets.values()), "A9: to the front"
        self.reserved.pop(event.id, None)
        self.tickets[event.id] = replace(ticket, order=event.order, priority=event.priority)

    def _reserved(self, event: ev.Reserved) -> None:
        ticket = self.tickets[event.id]
        assert not ticket.away
        spec = ticket.spec
        cause = self.blocked(spec, self.candidates(spec)[0], ticket.id, perhaps=True)
        assert cause, "a reservation for one who could enter"
        self.reserved[event.id] = event.pools
        if not event.pools:
            del self.reserved[event.id]

    # Rules and observations.

    def _ruleset(self, event: ev.RuleSet) -> None:
        rule = event.rule
        forgiven = self._governed(rule.kind, rule.selector) if event.cap_set else set()
        before = self._governors()
        self.runtime[rule.kind, rule.selector] = rule
        self._forget(before, forgiven)

    def _capremoved(self, event: ev.CapRemoved) -> None:
        forgiven = self._governed(event.kind, event.selector)
        before = self._governors()
        old = self.runtime.get((event.kind, event.selector), Rule(event.kind, event.selector))
        self.runtime[event.kind, event.selector] = replace(old, cap=None, auto=False, unlimited=True)
        for key in forgiven:
            self.paused.pop(key, None)
        self._forget(before, forgiven)

    def _capreset(self, event: ev.CapReset) -> None:
        forgiven = self._governed(event.kind, event.selector)
        before = self._governors()
        del self.runtime[event.kind, event.selector]
        self._forget(before, forgiven)

    def _selectorseen(self, event: ev.SelectorSeen) -> None:
        before = self._governors()
        self.seen.add((event.kind, event.selector))
        self._forget(before, set())

    def _fileloaded(self, event: ev.FileLoaded) -> None:
        before = self._governors()
        self.file = {(rule.kind, rule.selector): rule for rule in event.rules}
        self.seniority_ms = event.seniority_ms
        self._forget(before, set())

    def _governors(self) -> dict[tuple[str, str], tuple[str, int | None, bool]]:
        """For every pool there can be: the selector that caps it, and how."""
        found: dict[tuple[str, str], tuple[str, int | None, bool]] = {}
        for spec, model in self.universe:
            for pool, group in self.groups(spec, model).items():
                said = [(selector, of) for selector in group if (of := self.said(spec.kind, selector)) is not None]
                if said and said[0][1].capped:
                    found[spec.kind, pool] = (said[0][0], said[0][1].cap, said[0][1].auto)
                elif any((spec.kind, selector) in self.seen for selector in group):
                    found[spec.kind, pool] = ("", None, False)
        return found

    def _governed(self, kind: str, selector: str) -> set[tuple[str, str]]:
        return {key for key, by in self._governors().items() if key[0] == kind and by[0] == selector}

    def _forget(
        self, before: dict[tuple[str, str], tuple[str, int | None, bool]], forgiven: set[tuple[str, str]]
    ) -> None:
        """P3, A12: a cap that a person changed is no longer reduced; a pool without a cap is not paused either."""
        after = self._governors()
        for learned in self.learned.values():
            learned.rules_changed(set(self.leases))
        for key in [key for key in self.reduced if key in forgiven or before.get(key) != after.get(key)]:
            del self.reduced[key]
        for key in [key for key in self.paused if not after.get(key, ("",))[0]]:
            del self.paused[key]
        for key in [key for key in self.cooling if key not in after]:
            del self.cooling[key]
        for key in [key for key in self.asking if key not in after]:
            del self.asking[key]

    def _observed(self, event: ev.Observed) -> None:
        self.foreign[event.host] = event.foreign
        if event.auto_cap is not None:
            assert event.auto_cap >= 1
            self.auto_caps[event.host] = event.auto_cap

    def _paused(self, event: ev.Paused) -> None:
        key = (event.kind, event.pool)
        if event.cause == "rate_limited":
            assert event.until >= self.paused.get(key, 0), "P1: a report never shortens a pause"
            assert not event.pool.startswith(("host:", "project:", "key:")), "P1: never host, project or key"
        self.paused[key] = event.until

    def _resumed(self, event: ev.Resumed) -> None:
        del self.paused[event.kind, event.pool]

    def _reduced(self, event: ev.Reduced) -> None:
        key = (event.kind, event.pool)
        assert event.limit >= 1, "P3: never below one"
        assert event.limit == min(self.reduced.get(key, event.cap), event.cap) - 1, "P3: by one"
        self.reduced[key] = event.limit

    # What must be true between steps.

    def check(self, now: int) -> None:
        self.now = now
        self.room.clear()
        for ident, ticket in self.tickets.items():
            assert ticket.expires_at > now or ticket.stalled_at, f"A8: {ident} has expired"
            if not ticket.away:
                for candidate in self.candidates(ticket.spec):
                    cause = self.blocked(ticket.spec, candidate, ident, perhaps=True)
                    assert cause, f"{ident} waits and nothing keeps it from {candidate or 'entering'}"
        for ticket in [*self.tickets.values(), *(held.ticket for held in self.leases.values())]:
            assert not ticket.renew_ms or ticket.renew_by > now, f"H2: {ticket.id} was not renewed"
        for key, backoff in self.backoffs.items():
            assert backoff.ends_at > now or backoff.by_probe_alone, f"B2: {key} is over"
        for ident, held in self.leases.items():
            assert held.claimed or held.granted_at + CLAIM_MS > now, f"{ident} was not claimed in time"
            overstays = held.ends_at and held.ends_at <= now and not held.child
            assert not overstays, f"L5: {ident} overstays"


def str_of(model: str) -> str:
    """A model's name as it is written in answers: the default account is left out."""
    provider, account, name = model_parts(model)
    return f"{provider}/{name}" if account == "default" else model
