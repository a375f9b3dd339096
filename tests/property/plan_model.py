"""What docs/rules.md says of classes (rules W1, W2, W4, W5), worked out from the events alone, on top of model.py.

A window is a few lines of arithmetic with fractions. What is learned of a fleet (its speed, what people use, what comes
after batch work was switched off) is an input here: the `Burn` of the engine, fed with what the model itself says
happened. Budgets are those of budget_model.py.
"""

from __future__ import annotations

from fractions import Fraction
from math import floor

from fleetgate.core import events as ev
from fleetgate.core.entities import PlanRule, Rule, Spec, Ticket
from fleetgate.core.plans.burn import Burn
from fleetgate.core.plans.reading import FULL
from fleetgate.core.state.state import State
from tests.property.budget_model import Account, Model
from tests.property.model import Book, Limit, glob, model_parts

RESTS_MS = 300_000  # resets that differ by less are the same


class WindowModel:
    """One window by its readings. Parts are of the whole window: 1 is all of it."""

    def __init__(self, rule: PlanRule, family: str) -> None:
        self.rule, self.family = rule, family
        self.used, self.resets_at, self.length_ms, self.seen_at = 0, 0, 1, 0
        self.batch_at = 0  # from when on batch work is on
        self.burn = Burn()

    def seen(self, event: ev.PlanObserved, now: int) -> None:
        """W1: the newest reading. W2: it decides until the next one when batch work is on."""
        near_ms = max(RESTS_MS, event.length_ms // 20)
        same = now < self.resets_at and abs(event.resets_at - self.resets_at) <= near_ms
        was_on = self.batch_at <= now
        before, since = (self.used, self.seen_at) if same else (0, event.resets_at - event.length_ms)
        if was_on:
            since = max(since, self.batch_at)
        if self.seen_at:
            more = event.used - before
            self.burn.hear(event.used, more, since, event.seen_at, is_on=was_on, length_ms=event.length_ms)
        self.used, self.resets_at, self.length_ms = event.used, event.resets_at, event.length_ms
        self.seen_at = event.seen_at
        self.batch_at = self._batch_at(now, is_on=same and was_on)
        if was_on and self.batch_at > now:
            self.burn.switched_off(event.used, event.seen_at)

    @property
    def band_ms(self) -> int:
        return min(self.rule.band_ms, self.length_ms * 3 // 10)

    @property
    def drain_ms(self) -> int:
        return min(self.rule.drain_ms, self.length_ms // 10)

    @property
    def last_part(self) -> int:
        return min(200, self.rule.reserve)

    def _batch_at(self, now: int, *, is_on: bool) -> int:
        """Batch work that was switched off stays off for 4 % of the window, or for half of the time that remained."""
        opens_at = self._batch_by_usage_at(now, is_on=is_on)
        if is_on and not opens_at:
            return 0
        since = now if is_on else self.burn.off_at
        remained = max(self.resets_at - since, 0)
        rests_until = since + floor(min(Fraction(4 * self.length_ms, 100), Fraction(remained, 2)))
        return max(opens_at, rests_until) if rests_until > now else opens_at

    def _batch_by_usage_at(self, now: int, *, is_on: bool) -> int:
        length_ms, starts_at = self.length_ms, self.resets_at - self.length_ms
        left = FULL - self.used - self.burn.after
        left_ms = max(self.resets_at - now, 0)
        if left <= self.last_part:
            return self.resets_at
        people = 3 * self.burn.off_rate(length_ms)  # in a whole window
        kept = max(self.rule.reserve, people) if self.rule.reserve else 1
        if left <= Fraction(kept * left_ms, length_ms):  # people need it
            return self.resets_at - floor(Fraction(left * length_ms, 4 * kept)) if left > 300 else self.resets_at
        rate = self.burn.on_rate(length_ms)
        needs_ms = floor(Fraction(11 * left * length_ms, 10 * rate)) + length_ms // 50 if rate else self.drain_ms
        caught_up = Fraction(FULL - left, FULL) >= Fraction(now - starts_at, length_ms)
        if is_on and (not caught_up or left_ms <= Fraction(3 * needs_ms, 2)):
            return 0
        behind_at = starts_at + floor(Fraction(self.used * length_ms, FULL)) + self.band_ms + 1
        lasts_at = self.resets_at - needs_ms
        opens_at = lasts_at if behind_at > lasts_at - self.band_ms // 2 else behind_at
        return opens_at if opens_at > now else 0

    def opens_at(self, work_class: str, now: int, *, in_run: bool = False) -> int:
        """W2: from when on work of a class may start; 0: now. `in_run`: a call of work that is running."""
        if work_class == "interactive":
            return 0
        is_paced = work_class == "batch" and self.rule.pace
        if now >= self.resets_at:
            waits = not in_run and is_paced and self.burn.on_rate(self.length_ms) > FULL
            opens_at = self.resets_at + self.band_ms if waits else 0
        elif self.used >= FULL - self.last_part:
            opens_at = self.resets_at
        elif in_run:
            opens_at = 0
        elif is_paced:
            opens_at = self.batch_at
        elif self.used < FULL - self.rule.reserve:
            opens_at = 0
        else:
            drains_at = self.resets_at - self.drain_ms
            opens_at = min(drains_at, self.batch_at) if self.rule.pace else drains_at
        return opens_at if opens_at > now else 0


class ClassBook(Book):
    """Tickets, leases, rules, plan windows and budgets by the model's own count."""

    def __init__(self, universe: list[tuple[Spec, str]], plan: PlanRule, after_ms: int) -> None:
        super().__init__(universe)
        self.plan, self.after_ms = plan, after_ms
        self.windows: dict[str, WindowModel] = {}
        self._known_limits: dict[tuple[Spec, str], dict[str, Limit]] = {}
        self.budgets = Model()
        self.gives_way: dict[str, str] = {}  # jobs that run and are to return to the queue, and for whom
        self.gave_way: list[str] = []
        self.waited_for: set[str] = set()  # requests for which jobs were told to give way in this step

    def read(self, event: ev.Event, now: int, state: State) -> None:
        if isinstance(event, ev.FileLoaded | ev.SelectorSeen | ev.Reduced):
            self._known_limits.clear()
        self.take(event, now)
        self.budgets.read(event, now, state)

    # Plan windows.

    def closed(self, spec: Spec, model: str, run: str) -> str:
        """W2: the window that holds a request back; "" for none."""
        if not model or model_parts(model)[0] != self.plan.account:
            return ""
        for name, window in self.windows.items():
            concerns = not window.family or glob(window.family, model_parts(model)[2])
            if concerns and window.opens_at(spec.work_class, self.now, in_run=bool(run)):
                return name
        return ""

    def _planobserved(self, event: ev.PlanObserved) -> None:
        if event.account == self.plan.account:
            if event.window not in self.windows:
                self.windows[event.window] = WindowModel(self.plan, event.family)
            self.windows[event.window].seen(event, self.now)
        for ident in list(self.reserved):
            ticket = self.tickets[ident]
            if all(self.closed(ticket.spec, model, ticket.run) for model in self.all_candidates(ticket.spec)):
                del self.reserved[ident]  # no slots are kept for a request that a window holds back

    # Slots that are kept for people.

    def limits(self, spec: Spec, model: str) -> dict[str, Limit]:
        found = self._known_limits.get((spec, model))
        if found is None:
            found = self._known_limits[spec, model] = super().limits(spec, model)
        if spec.work_class == "interactive":
            return found
        return {pool: self._less(spec, model, pool, *limit) for pool, limit in found.items()}

    def _less(self, spec: Spec, model: str, pool: str, selector: str, limit: int | None) -> Limit:
        """W5: without what is kept for people, unless it is lent."""
        rule = self._rule(spec.kind, selector)
        if limit is None or rule is None or not (rule.reserve or rule.reserve_share):
            return Limit(selector, limit)
        kept = rule.reserve or -(-limit * (rule.reserve_share or 0) // 10_000)
        if rule.lendable and not self._people_wait(spec.kind, pool):
            return Limit(selector, limit)
        return Limit(selector, max(limit - kept, 1))

    def _rule(self, kind: str, selector: str) -> Rule | None:
        return self.file.get((kind, selector))

    def _people_wait(self, kind: str, pool: str) -> bool:
        """Whether an interactive request waits that could use a slot of the pool: its model is not backed off."""
        return any(
            ticket.spec.work_class == "interactive"
            and not ticket.away
            and ticket.spec.kind == kind
            and any(pool in self.limits(ticket.spec, model) for model in self.free(ticket.spec))
            for ticket in self.tickets.values()
        )

    # Whether a request may enter.

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
        ticket = self.tickets.get(ident) or self.newcomer
        if window := self.closed(spec, model, ticket.run if ticket is not None else ""):
            return f"the window {window} holds it back"
        cause = super().blocked(spec, model, ident, reservations=reservations, gate=gate, perhaps=perhaps)
        if cause or ticket is None:
            return cause
        for name, account in self._budgets_of(spec, model):
            if not account.fits(ticket, self.now):
                return f"the budget {name} has too little left"
            if perhaps and account.rate and self._waits_for(name, ident):
                return f"the budget {name} may be another's first"
            if perhaps and not account.rate and self._is_behind(name, account, ticket):
                return f"the budget {name} is another's of the project first"
        return ""

    newcomer: Ticket | None = None

    def _granted(self, event: ev.Granted) -> None:
        self.newcomer = event.ticket
        super()._granted(event)
        self.newcomer = None

    def _budgets_of(self, spec: Spec, model: str) -> list[tuple[str, Account]]:
        return [
            (name, account)
            for name, account in self.budgets.accounts.items()
            if account.rule.selector in (f"project:{spec.project}", model.partition("/")[0])
            and (not account.rate or spec.kind == "requests")  # V1: rates count model calls
        ]

    def _is_behind(self, name: str, account: Account, ticket: Ticket) -> bool:
        """V4: whether an older request of the project waits for a budget; a call that its run covers takes nothing."""
        covered = account.covered(ticket.run, self.now)
        if covered and covered >= account.wanted(ticket):
            return False
        return any(
            other.spec.project == ticket.spec.project
            and not other.away
            and (other.order, other.arrival) < (ticket.order, ticket.arrival)
            and any(name in dict(self._budgets_of(other.spec, model)) for model in self.all_candidates(other.spec))
            and not account.fits(other, self.now)
            for other in self.tickets.values()
        )

    def _waits_for(self, name: str, ident: str) -> bool:
        return any(
            name in dict(self._budgets_of(other.spec, model))
            for other in self.tickets.values()
            if other.id != ident and not other.away
            for model in self.all_candidates(other.spec)
        )

    def _backedoff(self, event: ev.BackedOff) -> None:
        super()._backedoff(event)
        for ident in list(self.reserved):
            if not self.free(self.tickets[ident].spec):
                del self.reserved[ident]  # no slots are kept for a request whose models are backed off

    # Preemption.

    def _preempted(self, event: ev.Preempted) -> None:
        lease, ticket = self.leases[event.id], self.tickets[event.ticket]
        assert self.after_ms, "W5: off unless the config turns it on"
        assert lease.ticket.job, "W5: plain runs never give way"
        assert lease.ticket.spec.work_class == "batch"
        assert ticket.spec.work_class == "interactive"
        assert not ticket.away
        assert self.now - ticket.queued_at >= self.after_ms, "W5: after a while"
        assert event.id not in self.gives_way, "W5: once"
        (model,) = self.all_candidates(ticket.spec)
        assert not self.closed(ticket.spec, model, ticket.run)
        fits = all(account.fits(ticket, self.now) for _, account in self._budgets_of(ticket.spec, model))
        assert fits, "W5: only if that lets the request in"
        self.gives_way[event.id] = event.ticket
        self.waited_for.add(event.ticket)

    def check_enough_gives_way(self) -> None:
        """W5: when all jobs that were told have given way, the request has its slots, which are kept for it."""
        for ident in self.waited_for & self.tickets.keys():
            assert ident in self.reserved, f"W5: what jobs free is kept for {ident}"
            spec = self.tickets[ident].spec
            (model,) = self.all_candidates(spec)
            for pool, (selector, limit) in self.limits(spec, model).items():
                told = [self.leases[job] for job in self.gives_way]
                freed = sum(job.ticket.spec.slots for job in told if pool in self.limits(job.ticket.spec, job.model))
                enough = limit is None or self.taken(spec.kind, pool, selector) - freed + spec.slots <= limit
                assert enough, f"W5: {ident} has too few slots of {pool} if {list(self.gives_way)} give way"
        self.waited_for.clear()

    def _end(self, ident: str, how: str, held_ms: int, outcome: str = "") -> None:
        super()._end(ident, how, held_ms, outcome)
        if self.gives_way.pop(ident, ""):
            self.gave_way.append(ident)

    def _reserved(self, event: ev.Reserved) -> None:
        ticket = self.tickets[event.id]
        if event.pools:
            used = {model: self.closed(ticket.spec, model, ticket.run) for model in self.all_candidates(ticket.spec)}
            assert not all(used.values()), "W2: no slots are kept for a request that a window holds back"
        super()._reserved(event)
