"""Events about usage, rates and budgets: what was reserved, what was used, and which budgets there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetgate.core import events as ev
from fleetgate.core.budgets.amounts import amount_of
from fleetgate.core.budgets.budget import Budget
from fleetgate.core.budgets.rules import PROVIDER, budget_name, rule_key
from fleetgate.core.entities import BudgetRule, Lease, Ticket
from fleetgate.core.queue.queue import Candidate
from fleetgate.core.usage import ESTIMATE, RESPONSE, Reading, Usage

if TYPE_CHECKING:
    from fleetgate.core.state.state import State


class BudgetEvents:
    """Applies them to one state."""

    def __init__(self, state: State) -> None:
        self._state = state

    # Leases.

    def reserve(self, ticket: Ticket, candidate: Candidate, at: int) -> None:
        """A request entered: its budgets have that much less."""
        for budget in candidate.budgets:
            budget.reserve(ticket, ticket.spec.project, at)
            if ticket.spec.kind == "agents":
                self._recheck_calls(budget, ticket.id)
            self._changed(budget, at)

    def give_back(self, ticket: Ticket, candidate: Candidate, at: int) -> None:
        """A grant was never used."""
        for budget in candidate.budgets:
            self._settle(budget, ticket, 0, at)
            self._changed(budget, at)

    def lease_ended(
        self, lease: Lease, candidate: Candidate, usage: Usage | None, total: Usage | None, at: int
    ) -> None:
        """A lease is over and used this much beside what was settled before; None: not known, or nothing."""
        ticket = lease.ticket
        unknown = usage.source == ESTIMATE if usage is not None else lease.spent is None
        for budget in candidate.budgets:
            if unknown:
                budget.keep(ticket.id, at)
            else:
                amount = 0 if usage is None else amount_of(usage, budget.rule.unit)
                self._settle(budget, ticket, amount, at)
            self._changed(budget, at)
        if usage is not None and (usage.calls or usage.tokens or usage.cost):
            self._count(lease, usage, at)
        self._learn(lease, usage, total)

    def _settle(self, budget: Budget, ticket: Ticket, amount: int, at: int) -> None:
        """A lease is over. What a call did not use returns to its run, and may cover another call of that run."""
        budget.settle(ticket, ticket.spec.project, amount, at)
        if ticket.run:
            self._recheck_calls(budget, ticket.run)

    def _recheck_calls(self, budget: Budget, run: str) -> None:
        """A run holds more of a budget: it may cover calls of that run that wait."""
        if budget.window is not None and budget.is_awaited:
            for queue in self._state.active_queues.values():
                if queue.spec.of_run == run and budget in queue.parked_budgets:
                    self._state.recheck_queue(queue)

    def _count(self, lease: Lease, usage: Usage, at: int) -> None:
        """Add to the sums of the hour, and to what the run has spent that a call belongs to."""
        state, ticket = self._state, lease.ticket
        spec = ticket.spec
        run = state.leases.get(ticket.run) if ticket.run else None
        host = spec.host if run is None else run.ticket.spec.host
        state.usage.add(spec.project, lease.model, host, spec.access_key, spec.kind, usage, at)
        if run is not None:
            run.spent = usage if run.spent is None else run.spent.plus(usage)

    def _learn(self, lease: Lease, usage: Usage | None, total: Usage | None) -> None:
        ticket = lease.ticket
        project, estimates = ticket.spec.project, self._state.estimates
        if ticket.spec.kind == "requests":
            if usage is not None and usage.source == RESPONSE and usage.calls == 1 and ticket.body_bytes:
                estimates.learn_call(lease.model, project, ticket.body_bytes, usage)
        else:
            known = total or usage
            if known is not None and known.source != ESTIMATE:
                estimates.learn_run(lease.model, project, known)

    def settled(self, event: ev.Settled, at: int) -> None:
        lease = self._state.leases[event.id]
        usage = event.usage
        lease.spent = usage if lease.spent is None else lease.spent.plus(usage)
        for budget in self._state.lease_candidates[event.id].budgets:
            budget.spend(event.id, amount_of(usage, budget.rule.unit), at)
            self._changed(budget, at)
        self._count(lease, usage, at)

    def hour_closed(self, event: ev.HourClosed, at: int) -> None:
        self._state.usage.clear()

    # Which budgets there are.

    def budget_set(self, event: ev.BudgetSet, at: int) -> None:
        self._state.budget_rules.runtime[rule_key(event.rule)] = event.rule
        self.rules_changed(at)

    def removed(self, event: ev.BudgetRemoved, at: int) -> None:
        self._state.budget_rules.runtime[event.selector, event.unit, event.per] = None
        self.rules_changed(at)

    def unset(self, event: ev.BudgetUnset, at: int) -> None:
        self._state.budget_rules.runtime.pop((event.selector, event.unit, event.per), None)
        self.rules_changed(at)

    def rules_changed(self, at: int) -> None:
        """Work out again which budgets there are, and which of them each request needs."""
        state = self._state
        rules = state.budget_rules
        rules.merge()
        for key, budget in list(state.budgets.items()):
            need = rules.find(budget.id)
            if need is None:
                del state.budgets[key]
            else:
                budget.configure(need.rule, need.source, state.zone, at)
        state.cap_events.rebuild()

    def reset(self, event: ev.BudgetReset, at: int) -> None:
        budget = self.named(event.budget)
        budget.reset(at)
        self._changed(budget, at)

    def added(self, event: ev.BudgetAdded, at: int) -> None:
        budget = self.named(event.budget)
        if budget.rate is not None:
            budget.rate.take(-event.amount, at)
        else:
            assert budget.window is not None
            budget.window.add(event.amount, event.until, at)
            budget.reached = 0
        self._changed(budget, at)

    def reached(self, event: ev.BudgetReached, at: int) -> None:
        self.named(event.budget).reached = event.percent

    def named(self, name: str) -> Budget:
        """The budget of this name, whether something of it was used or not."""
        need = self._state.budget_rules.find(name)
        assert need is not None, f"no budget {name}"
        return self._state.budget(need)

    def rates_observed(self, event: ev.RatesObserved, at: int) -> None:
        """A provider's rates: new ones are added to what the model's requests need."""
        state = self._state
        known = state.budget_rules.provider.setdefault(event.model, {})
        added = False
        for reading in event.readings:
            rule = provider_rule(event.model, reading, known.get(reading.unit))
            added = added or reading.unit not in known
            known[reading.unit] = rule
        if added:
            self.rules_changed(at)
        for reading in event.readings:
            budget = self.named(budget_name(event.model, known[reading.unit]))
            assert budget.rate is not None
            budget.configure(known[reading.unit], PROVIDER, state.zone, at)
            budget.rate.set_free(reading.remaining, at, reading.age_ms)
            self._changed(budget, at)

    def _changed(self, budget: Budget, at: int) -> None:
        """More or less is left: parked queues are looked at, and the engine checks what was reached."""
        state = self._state
        if budget.window is not None:
            state.touched_budgets[budget.key] = budget
            if budget.rule.when_empty == "fallback" and budget.is_spent(at):
                for queue in state.active_queues.values():  # another candidate may be used meanwhile
                    if queue.has_fallback and budget in queue.budgets:
                        state.recheck_queue(queue)
        if budget.is_awaited:
            state.changed_pools[budget.key] = budget


def provider_rule(model: str, reading: Reading, known: BudgetRule | None) -> BudgetRule:
    """The rate that a reading stands for. Without a period, it follows from how long the bucket takes to refill."""
    per_ms = reading.per_ms or _period(reading) or (known.per_ms if known is not None else 0) or MINUTE_MS
    if known is not None and not reading.per_ms and known.per_ms < 2 * per_ms < 4 * known.per_ms:
        per_ms = known.per_ms  # the time until a reset is rounded: it says nothing new
    expected = reading.expected or (known is not None and known.estimate == "expected")
    return BudgetRule(model, reading.unit, reading.limit, PROVIDER, per_ms, estimate="expected" if expected else "max")


MINUTE_MS = 60_000
_PERIODS_MS = (1_000, MINUTE_MS, 3_600_000, 86_400_000)


def _period(reading: Reading) -> int:
    """The period of a limit, from the time in which the missing part is refilled; 0: not known."""
    missing = reading.limit - reading.remaining
    if reading.reset_ms <= 0 or missing * 10 < reading.limit:
        return 0
    period = reading.reset_ms * reading.limit // missing
    return next((usual for usual in _PERIODS_MS if usual < 2 * period < 4 * usual), period)
