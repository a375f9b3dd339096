"""Budgets and prices as people write them, as the engine and the price list take them (rules V1, U3).

The file, `fleetgate budget set` and the HTTP API make budgets by the same function, so the same things are valid.
"""

from __future__ import annotations

from typing import Any

from fleetgate.config.errors import BadValue, Path, Problems
from fleetgate.config.units import DURATION_HELP, format_duration, found, parse_count, parse_dollars, parse_duration_ms
from fleetgate.core.budgets.calendar import UNITS as PERIODS
from fleetgate.core.entities import BudgetRule
from fleetgate.core.model_names import parse_selector
from fleetgate.core.prices import ConfiguredPrice, Price
from fleetgate.core.usage import UNITS

LONGEST_RATE_MS = 3_600_000
_SHORTEST_MS, _LONGEST_MS = 1000, 366 * 86_400_000
_MEANT = {"second": "1s", "minute": "1m", "hour": "1h", "daily": "day", "weekly": "week", "monthly": "month"}
_MEANT |= {period + "s": period for period in PERIODS}
_PERIOD_HELP = 'valid is "day", "week", "month", or a duration of 1s to 366d, like "1m" or "5h"'


def make_budget(
    selector: str,
    unit: str,
    amount: object,
    per: object,
    *,
    burst: object = None,
    when_empty: str = "hold",
    estimate: str = "expected",
) -> BudgetRule:
    """One budget, from values that were read from text or TOML; BadValue names the option that is wrong."""
    try:
        name, per_ms = read_period(per)
    except BadValue as error:
        raise BadValue(f"per: {error}") from None
    number = read_amount(unit, amount, unit)
    is_rate = 0 < per_ms <= LONGEST_RATE_MS
    if burst is not None and not is_rate:
        raise BadValue(f"burst is only for rates, whose period is at most 1h; this one is per {name}")
    if when_empty == "stop" and is_rate:
        raise BadValue(
            f'when_empty = "stop" is only for periods longer than 1h: a rate of 1h or less is refilled all the time, '
            f'and this one is per {name}; valid here are "hold", "fallback" and "warn"'
        )
    saved = 0 if burst is None else read_amount(unit, burst, "burst")
    return BudgetRule(selector, unit, number, name, per_ms, saved, when_empty, estimate)


def read_amount(unit: str, value: object, what: str = "") -> int:
    """An amount of a unit, from 1; of usd in millionths of a dollar."""
    prefix = f"{what}: " if what else ""
    try:
        number = parse_dollars(value) if unit == "usd" else parse_count(value)
    except BadValue as error:
        raise BadValue(f"{prefix}{error}") from None
    if number < 1:
        raise BadValue(f"{prefix}found {found(value)}; valid is more than 0 (to admit nothing: `fleetgate pause`)")
    return number


def read_period(value: object) -> tuple[str, int]:
    """The name of a period and its length; 0 for day, week and month, which are of the calendar."""
    if isinstance(value, str):
        word = value.strip().lower().removeprefix("per ")
        if word in PERIODS:
            return word, 0
        if meant := _MEANT.get(word) or _MEANT.get(word.removesuffix("s")):
            raise BadValue(f'found {found(value)}; did you mean "{meant}"?')
    try:
        length_ms = parse_duration_ms(value)
    except BadValue:
        raise BadValue(f"found {found(value)}; {_PERIOD_HELP} ({DURATION_HELP})") from None
    if not _SHORTEST_MS <= length_ms <= _LONGEST_MS:
        raise BadValue(f"found {found(value)}; {_PERIOD_HELP}")
    return format_duration(length_ms).replace(" ", ""), length_ms


def budgets_of(said: dict[str, list[tuple[Path, dict[str, Any]]]], problems: Problems) -> tuple[BudgetRule, ...]:
    """The budgets of a file, by selector. The options of each were read already, all but burst."""
    rules: dict[tuple[str, str, str], BudgetRule] = {}
    wrong = {path for path, _ in problems}
    for selector, tables in said.items():
        for path, options in tables:
            units = [unit for unit in UNITS if unit in options]
            if any((*path, unit) in wrong for unit in UNITS):
                continue
            if len(units) != 1:
                listed = " and ".join(units) or "none"
                problems.append((path, f"found {listed}; valid is exactly one of {', '.join(UNITS)} in each table"))
            if len(units) != 1 or "per" not in options:  # a wrong period was reported already
                continue
            named = {name: options[name] for name in ("burst", "when_empty", "estimate") if name in options}
            try:
                rule = make_budget(selector, units[0], options[units[0]], options["per"], **named)
            except BadValue as error:
                problems.append((path, str(error)))
                continue
            key = (selector, rule.unit, rule.per)
            if key in rules:
                problems.append((path, f"{rule.unit} per {rule.per} is set twice for {selector}; use one of the two"))
            rules[key] = rule
    return tuple(rules.values())


def prices_of(said: dict[str, dict[str, int]]) -> tuple[ConfiguredPrice, ...]:
    """The prices of a file, the narrowest selector first. A cache costs as much as input unless the file says more."""
    found = []
    for name, price in said.items():
        if "input" in price and "output" in price:  # what is missing was reported already
            read, write = price.get("cache_read", price["input"]), price.get("cache_write", price["input"])
            found.append(ConfiguredPrice(parse_selector(name), Price(price["input"], read, write, price["output"])))
    return tuple(sorted(found, key=lambda each: each.selector.narrowness))
