"""Rates and budgets as JSON, and their names as people give them (rule V7). Amounts of usd are dollars."""

from __future__ import annotations

from msgspec import Struct

from fleetgate.config.budget_rules import make_budget
from fleetgate.config.errors import BadValue
from fleetgate.config.schema.budget_keys import read_budget_selector
from fleetgate.config.value_types import read_estimate, read_when_empty
from fleetgate.core.entities import BudgetRule
from fleetgate.core.errors import BadRequest, NotFound
from fleetgate.core.model_names import canonical, shown
from fleetgate.core.state.state import State
from fleetgate.core.usage import UNITS
from fleetgate.core.views.budget_views import BudgetView, budget_views
from fleetgate.present.budgets.text import split_name
from fleetgate.present.json.state import Time
from fleetgate.present.log_time import LogTimes
from fleetgate.present.text import some


class BudgetShape(Struct):
    """A rate or budget (rule V7). Amounts are in its unit; `free` is negative if it is overdrawn."""

    name: str
    selector: str
    unit: str
    per: str
    per_s: float | None  # null for day, week and month
    rate: bool  # it refills continuously
    amount: float  # base + added
    base: float  # what the rule allows per period
    added: float  # what `budget add` gave it, until it resets or for a while
    burst: float | None  # of a rate: the most that it can save up
    used: float
    reserved: float
    free: float
    resets_at: Time | None  # of a window that is open
    when_empty: str
    estimate: str
    source: str  # file, run time or provider
    provider_amount: float | None  # of a rate: what the provider itself allows in this period
    waiting: int


class BudgetsShape(Struct):
    """The answer of `fleetgate budget ls --json`."""

    budgets: list[BudgetShape]


def budget_json(view: BudgetView, moments: LogTimes) -> BudgetShape:
    unit = view.unit
    return BudgetShape(
        name=view.name,
        selector=view.selector,
        unit=unit,
        per=view.per,
        per_s=view.per_ms / 1000 if view.per_ms else None,
        rate=view.rate,
        amount=_number(unit, view.amount),
        base=_number(unit, view.amount - view.added),
        added=_number(unit, view.added),
        burst=_number(unit, view.burst) if view.rate else None,
        used=_number(unit, view.used),
        reserved=_number(unit, view.reserved),
        free=_number(unit, view.free),
        resets_at=moments.utc(view.resets_at),
        when_empty=view.when_empty,
        estimate=view.estimate,
        source=view.source,
        provider_amount=None if view.provider_amount is None else _number(unit, view.provider_amount),
        waiting=view.waiting,
    )


class BudgetUnsetShape(Struct):
    """What applies after `budget unset`: `source` is "file", or null where the file has no such budget."""

    selector: str
    unit: str
    per: str
    amount: float | None
    source: str | None
    entered: int


def unset_json(state: State, key: tuple[str, str, str], entered: int) -> BudgetUnsetShape:
    rule = state.budget_rules.file.get(key)
    amount = None if rule is None else _number(rule.unit, rule.amount)
    return BudgetUnsetShape(*key, amount, None if rule is None else "file", entered)


def _number(unit: str, amount: int) -> float:
    return amount / 10**6 if unit == "usd" else amount


def budgets_json(state: State, moments: LogTimes) -> BudgetsShape:
    return BudgetsShape([budget_json(view, moments) for view in budget_views(state, moments.now)])


# What people and programs say.


def read_budget(
    selector: str,
    unit: str,
    amount: object,
    per: object,
    *,
    burst: object = None,
    when_empty: str | None = None,
    estimate: str | None = None,
) -> BudgetRule:
    """A budget from the command line or from HTTP; BadRequest says what is wrong."""
    if unit not in UNITS:
        from difflib import get_close_matches

        meant = _UNITS.get(unit.lower()) or next(iter(get_close_matches(unit.lower(), UNITS, n=1)), "")
        hint = f"; did you mean {meant}?" if meant else ""
        raise BadRequest(f"unit {shown(unit)}: valid are {', '.join(UNITS)}{hint}")
    try:
        return make_budget(
            read_budget_selector(canonical(selector)),
            unit,
            amount,
            per,
            burst=burst,
            when_empty=read_when_empty(when_empty or "hold"),
            estimate=read_estimate(estimate or "expected"),
        )
    except BadValue as error:
        raise BadRequest(str(error)) from error


_UNITS = {
    "$": "usd",
    "dollars": "usd",
    "dollar": "usd",
    "cost": "usd",
    "money": "usd",
    "requests": "calls",
    "runs": "calls",
}


def find_budget(state: State, given: str, now: int) -> BudgetView:
    """The one budget of this name, or of this instance if that has only one; NotFound or BadRequest names others."""
    views = budget_views(state, now)
    name = canonical(given.strip())
    found = [view for view in views if view.name == name] or [view for view in views if _is_meant(view, name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise BadRequest(f"{shown(given)} has several budgets; name one: {some([shown(view.name) for view in found])}")
    need = state.budget_rules.find(name)
    if need is not None:  # of an instance that has used nothing yet
        state.budget(need)
        return next(view for view in budget_views(state, now) if view.name == name)
    raise NotFound(_no_budget([view.name for view in views], given))


def _is_meant(view: BudgetView, name: str) -> bool:
    instance, unit, per = split_name(view.name)
    bare = instance.removeprefix("project:").removeprefix("key:")
    return name in (instance, bare, f"{instance} {unit}", f"{instance} {per}", f"{instance} {unit} per {per}")


def _no_budget(names: list[str], given: str) -> str:
    from difflib import get_close_matches

    if not names:
        return f"no budget {shown(given)}: there are none (set one with `fleetgate budget set`)"
    near = get_close_matches(given, names, n=1)
    meant = f"; did you mean {shown(near[0])}?" if near else f"; budgets: {some([shown(name) for name in names])}"
    return f"no budget {shown(given)}{meant}"


def find_runtime_rule(state: State, given: str, now: int) -> tuple[str, str, str]:
    """Selector, unit and period of what was set at run time, even of a budget that was removed."""
    name = canonical(given.strip())
    keys = list(state.budget_rules.runtime)
    found = [key for key in keys if name in ("{} {}/{}".format(*key), key[0])]
    if len(found) == 1:
        return found[0]
    if len(found) > 1:
        names = some([shown("{} {}/{}".format(*key)) for key in found])
        raise BadRequest(f"{shown(given)} has several budgets that were set at run time; name one: {names}")
    rule = find_rule(state, given, now)
    return rule.selector, rule.unit, rule.per


def find_rule(state: State, given: str, now: int) -> BudgetRule:
    """The rule that a person means by the name of a budget, or by selector, unit and period."""
    name = canonical(given.strip())
    for rule, _ in state.budget_rules.rules():
        if name == f"{rule.selector} {rule.unit}/{rule.per}":
            return rule
    selectors = [rule for rule, _ in state.budget_rules.rules() if rule.selector == name]
    if len(selectors) == 1:
        return selectors[0]
    view = find_budget(state, given, now)
    for rule, _ in state.budget_rules.rules():
        if (rule.selector, rule.unit, rule.per) == (view.selector, view.unit, view.per):
            return rule
    raise BadRequest(
        f"{view.name} is a rate that the provider reports, and cannot be removed here; "
        'to ignore what a provider reports, set rates = "ignore" in its table of the config file'
    )
