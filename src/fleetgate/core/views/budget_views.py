"""Views of rates and budgets, for people and programs. Reads only; times are log times."""

from __future__ import annotations

from msgspec import Struct

from fleetgate.core.budgets.budget import Budget
from fleetgate.core.budgets.rules import PROVIDER
from fleetgate.core.model_names import parse_model, parse_selector
from fleetgate.core.queue.positions import tickets_waiting
from fleetgate.core.state.state import State


class BudgetView(Struct):
    """One rate or budget as it is now. Amounts of usd are millionths of a dollar."""

    name: str
    selector: str
    unit: str
    per: str
    per_ms: int  # 0 for day, week and month
    rate: bool  # it refills continuously
    amount: int  # per period, with what was added
    added: int  # what a person added to a window, for now; the rule has the rest
    burst: int  # the most that a rate can save up; 0 for windows
    used: int
    reserved: int
    free: int  # negative: overdrawn
    resets_at: int | None  # of a window that is open
    when_empty: str
    estimate: str
    source: str  # file, run time or provider
    provider_amount: int | None  # of a rate: what the provider itself allows in this period, if it says so
    waiting: int  # requests that need it and wait, for this or for something else


def budget_views(state: State, now: int) -> list[BudgetView]:
    """Every budget; also those that name their one instance and of which nothing was used yet."""
    for rule, _ in state.budget_rules.rules():
        selector = parse_selector(rule.selector)
        own = selector.scope in ("project", "key")
        is_one = selector.names_one if own else "*" not in selector.provider
        need = state.budget_rules.find(f"{rule.selector} {rule.unit}/{rule.per}") if is_one else None
        if need is not None:
            state.budget(need)
    waiting = tickets_waiting(state, now)
    return [_view(state, budget, waiting.get(key, 0), now) for key, budget in sorted(state.budgets.items())]


def _view(state: State, budget: Budget, waiting: int, now: int) -> BudgetView:
    rule, rate, window = budget.rule, budget.rate, budget.window
    amount = rule.amount if window is None else window.amount_at(now)
    return BudgetView(
        name=budget.id,
        selector=rule.selector,
        unit=rule.unit,
        per=rule.per,
        per_ms=rule.per_ms,
        rate=rate is not None,
        amount=amount,
        added=amount - rule.amount,
        burst=0 if rate is None else rate.burst,
        used=budget.used(now),
        reserved=budget.reserved(now),
        free=budget.free(now),
        resets_at=budget.ends_at if now < budget.ends_at else None,
        when_empty=rule.when_empty,
        estimate=rule.estimate,
        source=budget.source,
        provider_amount=None if rate is None else _provider_amount(state, budget),
        waiting=waiting,
    )


def _provider_amount(state: State, budget: Budget) -> int | None:
    """What providers allow of this unit in the period of a rate: of several models, the smallest."""
    rule = budget.rule
    if budget.source == PROVIDER:
        return rule.amount
    selector = parse_selector(rule.selector)
    found = [
        rates[rule.unit].amount * rule.per_ms // rates[rule.unit].per_ms
        for model, rates in state.budget_rules.provider.items()
        if rule.unit in rates and selector.matches(parse_model(model))
    ]
    return min(found, default=None)


def budgets_stopping(state: State, ident: str, now: int) -> str:
    """The name of a used-up budget that has running agents stopped, and concerns this lease (rule V7); "": none."""
    candidate = state.lease_candidates.get(ident)
    for budget in candidate.budgets if candidate is not None else ():
        if budget.rule.when_empty == "stop" and budget.percent_reached(now) >= 100:
            return budget.id
    return ""
