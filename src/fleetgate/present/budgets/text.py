"""Amounts and periods of rates and budgets as text, exact: `$16.00 of $20.00 today (80 %)`."""

from __future__ import annotations

from fleetgate.config.units import format_dollars
from fleetgate.core import events as ev
from fleetgate.core.entities import BudgetRule

_WORDS = {"calls": "calls", "input": "input tokens", "output": "output tokens", "tokens": "tokens"}
_PERIODS = {"day": "today", "week": "this week", "month": "this month"}
_EMPTY = {
    "hold": "new requests wait",
    "stop": "new requests wait and running agents are stopped",
    "fallback": "requests use their next model",
    "warn": "nothing is held back",
}


def exact_amount(unit: str, amount: int) -> str:
    """`$20.00`, or `400,000`; exact."""
    return format_dollars(amount) if unit == "usd" else f"{amount:,}"


def amount_with_unit(unit: str, amount: int) -> str:
    """`$20.00`, `400,000 input tokens`."""
    return format_dollars(amount) if unit == "usd" else f"{amount:,} {_WORDS.get(unit, unit)}"


def rule_text(rule: BudgetRule) -> str:
    """`$20.00 per day`, `2,000,000 tokens per 1m (burst 500,000)`, with what differs from the defaults."""
    text = f"{amount_with_unit(rule.unit, rule.amount)} per {rule.per}"
    options = [f"burst {exact_amount(rule.unit, rule.burst)}"] if rule.burst else []
    options += [f"when empty: {rule.when_empty}"] if rule.when_empty != "hold" else []
    options += [f"estimate: {rule.estimate}"] if rule.estimate != "expected" else []
    return f"{text} ({', '.join(options)})" if options else text


def split_name(name: str) -> tuple[str, str, str]:
    """The instance, unit and period of a budget's name: `project:web usd/day`."""
    instance, _, rest = name.rpartition(" ")
    unit, _, per = rest.partition("/")
    return instance, unit, per


def reached_text(event: ev.BudgetReached, resets: str) -> str:
    """`project:web has used $16.00 of $20.00 today (80 %), resets at 00:00`. `resets` is when, in words."""
    instance, unit, per = split_name(event.budget)
    used, amount = exact_amount(unit, event.used), amount_with_unit(unit, event.amount)
    when = _PERIODS.get(per, f"in {per}")
    text = f"{instance} has used {used} of {amount} {when} ({event.percent} %), resets {resets}"
    return f"{text}; {_EMPTY.get(event.when_empty, event.when_empty)}" if event.percent >= 100 else text
