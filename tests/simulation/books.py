"""An accountant who has nothing but the log, and none of the engine's code: it counts slots in the plainest way.

Every event of the log is entered in order, and entering one that must not be there fails: a slot granted beyond a
limit, in a paused pool or while it still cools down (rules A1, A2, K1, P1), a model used while it is backed off and
not to be tried out (B1, B2), a request that is queued twice or lent twice, an end of something that never began.

It knows only the selectors of the simulation: `host`, `project`, `key`, a provider, and globs of models; every pool
that it is asked about must have a rule in the file, so that built-in caps never come into it.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from msgspec.structs import replace

from fleetgate.core import events as ev
from fleetgate.core.entities import Rule, Spec, Ticket
from fleetgate.core.usage import Usage

_DAY_MS = 86_400_000
_COOLDOWN_MS = {"agents": 0, "requests": 350}
Selector = tuple[str, str]  # kind and text
Pool = tuple[str, str]  # kind and name


OF_SET = ("umans@work", "umans@spare")  # what requests for umans may use, too (tests/simulation/world.py)


class Books:
    def __init__(self) -> None:
        self.tickets: dict[str, Ticket] = {}
        self.away: set[str] = set()
        self.leases: dict[str, tuple[Ticket, str]] = {}
        self.ended: set[str] = set()
        self.claimed: set[str] = set()
        self.deferred: set[str] = set()
        self.file: dict[Selector, Rule] = {}
        self.runtime: dict[Selector, Rule] = {}
        self.cooling: list[tuple[int, Pool, int]] = []
        self.reduced: dict[Pool, int] = {}
        self.paused: dict[Pool, int] = {}
        self.foreign: dict[str, tuple[tuple[str, int], ...]] = {}
        self.backoffs: dict[str, str] = {}  # key -> the lease that tries whether it is over
        self.recovers_until = 0
        self.at = 0
        self.budget = 0  # tokens of each project in a day
        self.spent: dict[tuple[str, int], int] = {}  # by project and day: what was used or is reserved
        self.holds: dict[str, tuple[str, int, int]] = {}  # by lease: project, day, and what is reserved for it
        self.settled: set[str] = set()
        self.used = Usage()  # all that counts as used

    def enter(self, event: ev.Event, at: int) -> None:
        """One event of the log, at this log time."""
        assert at >= self.at, f"time went backwards: {at} after {self.at}"
        self.at = at
        match event:
            case ev.Queued(ticket):
                self._is_new(ticket.id)
                self.tickets[ticket.id] = ticket
            case ev.Deferred(id=ident):
                self._is_new(ident)
                self.deferred.add(ident)
            case ev.Granted():
                assert at >= self.recovers_until, f"{event.id} entered while the log recovers"
                self._grant(event)
            case ev.Recovering(until):
                self.recovers_until = until
            case ev.Claimed(id=ident):
                assert ident in self.leases, f"{ident} claimed without a lease"
                self.claimed.add(ident)
            case ev.Returned(id=ident):
                assert ident not in self.claimed, f"{ident} was claimed and went back in the queue"
                self.tickets[ident] = self.leases.pop(ident)[0]
                self.away.add(ident)
                self._settle(ident, 0)
                self._stop_trying(ident)
            case ev.Asked(id=ident):
                self.away.remove(ident)
            case ev.Released(id=ident, usage=usage) | ev.Reclaimed(id=ident, usage=usage):
                self._end(ident)
                self._count(ident, usage)
            case ev.Settled(id=ident, usage=usage):
                self._spend(ident, usage)
            case ev.Cancelled(id=ident) | ev.Expired(id=ident) | ev.Dropped(id=ident):
                del self.tickets[ident]
                self.away.discard(ident)
                self.ended.add(ident)
            case ev.Bumped(id=ident):
                assert ident in self.tickets
            case _:
                self._rule(event)

    def _is_new(self, ident: str) -> None:
        known = ident in self.tickets or ident in self.leases
        assert not known, f"{ident} is there twice"

    def _grant(self, event: ev.Granted) -> None:
        if event.ticket is None:
            assert event.id not in self.away, f"{event.id} was granted while it was passed over"
            ticket = self.tickets.pop(event.id)
        else:
            self._is_new(event.id)
            ticket = event.ticket
        spec = ticket.spec
        account, _, name = event.model.partition("/")
        plain = f"{account.partition('@')[0]}/{name}" if account in OF_SET else event.model
        assert {event.model, plain} & {*(spec.models or ("",))}, f"{event.id} never asked for {event.model}"
        for kind, name, selector in self._pools(spec, event.model):
            limit = self._limit((kind, name), selector, spec)
            taken = self._taken((kind, name))
            assert taken + spec.slots <= limit, f"{event.id}: {taken} of {limit} slots of {kind} {name} were taken"
            paused = self.paused.get((kind, name), 0)
            assert paused <= self.at, f"{event.id} entered {kind} {name}, paused for another {paused - self.at} ms"
        for key, trying in self.backoffs.items():
            if _concerns(key, event.model):
                assert key in event.probes, f"{event.id} got {event.model}, and {key} is backed off"
                assert not trying, f"{event.id} tries whether {key} is over, and so does {trying}"
        self.backoffs.update(dict.fromkeys(event.probes, event.id))
        self._reserve(event, ticket)
        self.leases[event.id] = ticket, event.model
        if event.claimed:
            self.claimed.add(event.id)

    # The budget of each project: what is granted fits, and what is used counts once.

    def _reserve(self, event: ev.Granted, ticket: Ticket) -> None:
        wanted = 0 if ticket.estimate is None else ticket.estimate.tokens
        where = (ticket.spec.project, self.at // _DAY_MS)
        spent = self.spent.get(where, 0)
        alone = spent == 0
        assert alone or event.adopted or spent + max(wanted, 1) <= self.budget, (
            f"{event.id} got {wanted} tokens of {where[0]}, which has used {spent} of {self.budget}"
        )
        self.spent[where] = spent + wanted
        self.holds[event.id] = (*where, wanted)

    def _settle(self, ident: str, tokens: int) -> None:
        project, day, held = self.holds.pop(ident)
        if day == self.at // _DAY_MS:
            self.spent[project, day] += tokens - held
        else:
            today = (project, self.at // _DAY_MS)
            self.spent[today] = self.spent.get(today, 0) + tokens

    def _spend(self, ident: str, usage: Usage) -> None:
        self.settled.add(ident)
        self.used = self.used.plus(usage)
        project, day, held = self.holds[ident]
        today = (project, self.at // _DAY_MS)
        covered = min(held, usage.tokens) if day == today[1] else 0
        self.holds[ident] = (project, day, held - covered)
        self.spent[today] = self.spent.get(today, 0) + usage.tokens - covered

    def _count(self, ident: str, usage: Usage | None) -> None:
        if usage is not None:
            self.used = self.used.plus(usage)
        if usage is not None and usage.source != "estimate":
            self._settle(ident, usage.tokens)
        elif usage is None and ident in self.settled:
            self._settle(ident, 0)
        else:
            self.holds.pop(ident)  # what was reserved counts as used

    def _end(self, ident: str) -> None:
        ticket, model = self.leases.pop(ident)
        self._stop_trying(ident)
        self.claimed.discard(ident)
        self.ended.add(ident)
        for kind, name, selector in self._pools(ticket.spec, model):
            cooldown = self._said(selector, "cooldown_ms", _COOLDOWN_MS[kind])
            if cooldown:
                self.cooling.append((self.at + cooldown, (kind, name), ticket.spec.slots))

    def _stop_trying(self, ident: str) -> None:
        self.backoffs = {key: "" if trying == ident else trying for key, trying in self.backoffs.items()}

    # Which pools, and how full.

    def _pools(self, spec: Spec, model: str) -> list[tuple[str, str, Selector]]:
        """The capped pools that a request needs with this model."""
        found = []
        for kind, text in {**self.file, **self.runtime}:
            if kind == spec.kind and self._cap((kind, text)) is not None:
                name = _pool(text, spec, model)
                if name is not None:
                    found.append((kind, name, (kind, text)))
        return found

    def _said(self, selector: Selector, what: str, default: int) -> int:
        for rules in (self.runtime, self.file):
            said = getattr(rules.get(selector), what, None)
            if said is not None:
                return int(said)
        return default

    def _cap(self, selector: Selector) -> int | None:
        for rules in (self.runtime, self.file):
            rule = rules.get(selector)
            if rule is not None and (rule.unlimited or rule.cap is not None):
                return rule.cap
        return None

    def _limit(self, pool: Pool, selector: Selector, spec: Spec) -> int:
        limit = dict(spec.caps).get(selector[1]) or self._cap(selector)
        assert limit is not None
        return min(limit, self.reduced.get(pool, limit))

    def _taken(self, pool: Pool) -> int:
        lent = sum(
            ticket.spec.slots
            for ticket, model in self.leases.values()
            if any((kind, name) == pool for kind, name, _ in self._pools(ticket.spec, model))
        )
        cooling = sum(slots for until, where, slots in self.cooling if where == pool and until > self.at)
        foreign = 0
        for host, seen in self.foreign.items():
            for model, count in seen:
                spec = Spec(models=(model,), host=host, project="")
                if any((kind, name) == pool for kind, name, _ in self._pools(spec, model)):
                    foreign += count
        return lent + cooling + foreign

    # What people set, and what was seen.

    def _rule(self, event: ev.Event) -> None:
        match event:
            case ev.RuleSet(rule, cap_set):
                self.runtime[rule.kind, rule.selector] = rule
                if cap_set:
                    self._forgive((rule.kind, rule.selector))
            case ev.CapRemoved(kind, text):
                old = self.runtime.get((kind, text), Rule(kind, text))
                self.runtime[kind, text] = replace(old, cap=None, auto=False, unlimited=True)
                self._forgive((kind, text), pause=True)
            case ev.CapReset(kind, text):
                del self.runtime[kind, text]
                self._forgive((kind, text))
            case ev.FileLoaded(rules=loaded, budgets=budgets):
                self.budget = budgets[0].amount if budgets else 1 << 60
                before, self.file = self.file, {(rule.kind, rule.selector): rule for rule in loaded}
                for selector in {*before, *self.file}:
                    if getattr(before.get(selector), "cap", None) != getattr(self.file.get(selector), "cap", None):
                        self._forgive(selector)
            case ev.Observed(host, foreign):
                self.foreign[host] = foreign
            case ev.Paused(kind, pool, until):
                self.paused[kind, pool] = until
            case ev.Resumed(kind, pool):
                del self.paused[kind, pool]
            case ev.Reduced(kind, pool, limit):
                self.reduced[kind, pool] = limit
            case ev.Reserved(id=ident):
                assert ident in self.tickets
            case ev.BackedOff(key=key):
                self.backoffs[key] = ""
            case ev.BackoffEnded(key=key):
                del self.backoffs[key]
            case ev.Offered(id=ident):
                assert ident in self.tickets
            case ev.Preempted(id=ident, ticket=person):
                assert ident in self.leases
                assert person in self.tickets
            case ev.SelectorSeen() | ev.Bypassed() | ev.Chosen() | ev.HourClosed() | ev.BudgetReached():
                pass
            case ev.RatesObserved():  # they only hold requests back
                pass
            case _:
                raise AssertionError(f"unknown to the books: {event}")

    def _forgive(self, selector: Selector, *, pause: bool = False) -> None:
        """A person set a cap: reductions of its pools are over; what has no cap has no pause and cools nothing."""
        kind, text = selector
        for pools in (self.reduced, self.paused) if pause else (self.reduced,):
            for pool in [pool for pool in pools if pool[0] == kind and _made_by(text, pool[1])]:
                del pools[pool]
        if self._cap(selector) is None:
            self.cooling = [each for each in self.cooling if not (each[1][0] == kind and _made_by(text, each[1][1]))]


def _pool(selector: str, spec: Spec, model: str) -> str | None:
    """The name of the pool that a selector makes for a request; None: it does not apply to it."""
    if selector == "host":
        return f"host:{spec.host}" if spec.host and not spec.supervisor else None
    if selector == "project":
        return f"project:{spec.project}"
    if selector == "key":
        return f"key:{spec.access_key}" if spec.access_key else None
    account, _, name = model.partition("/")
    provider, _, tail = selector.partition("/")
    if account.partition("@")[0] != provider or (tail and not fnmatchcase(name, tail)):
        return None
    return account + (f"/{tail}" if tail else "")


def _concerns(key: str, model: str) -> bool:
    """Whether a backoff of this key is about this model."""
    account, slash, name = key.partition("/")
    of, _, called = model.partition("/")
    return account == of and (not slash or fnmatchcase(called, name))


def _made_by(selector: str, pool: str) -> bool:
    """Whether a pool of this name is one that the selector makes, for whichever account, host or project."""
    if selector in ("host", "project", "key"):
        return pool.startswith(f"{selector}:")
    account, _, tail = pool.partition("/")
    return selector == account.partition("@")[0] + (f"/{tail}" if tail else "")
