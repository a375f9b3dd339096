"""The keys of a budget in `[budgets]` and of a price in `[prices]`."""

from __future__ import annotations

from typing import Any

from fleetgate.config import value_types as v
from fleetgate.config.budget_rules import read_amount, read_period
from fleetgate.config.errors import BadValue
from fleetgate.config.schema.shapes import Key, OneOrMore, Scalar, Table
from fleetgate.config.units import parse_dollars
from fleetgate.core.entities import BudgetRule
from fleetgate.core.model_names import parse_selector, shown

_LONGEST_PROJECT = 100
_SELECTORS = (
    "a budget is for host, project, project:NAME, key, key:NAME, provider or provider/model, the last two with "
    "@account and * globs"
)


def read_budget_selector(text: str) -> str:
    """The selector of a budget: that of a cap."""
    if text in BUDGET_OPTIONS:
        raise BadValue(f"{shown(text)} is an option of a budget, not a selector: write SELECTOR = {{ {text} = … }}")
    if text == "session":
        raise BadValue(f"session has no budget, only a cap on its calls in flight; {_SELECTORS}")
    word, colon, name = text.partition(":")
    if colon and "/" not in word:
        if word == "key":
            return v.read_selector(text)
        if word != "project":
            hint = f": did you mean {word}?" if word == "host" else ""
            raise BadValue(f"not a selector: {shown(text)}{hint or ';'} {_SELECTORS}")
        if not 0 < len(name) <= _LONGEST_PROJECT or not name.isprintable() or name != name.strip():
            raise BadValue(f"{shown(text)}: a project's name has 1 to {_LONGEST_PROJECT} printable characters")
        return text
    return v.read_selector(text)


def read_price_selector(text: str) -> str:
    """The selector of a price: a provider or a model."""
    if text in _PRICE_OPTIONS:
        raise BadValue(f"{shown(text)} is an option of a price, not a selector: write SELECTOR = {{ {text} = … }}")
    selector = v.read_selector(text)
    if parse_selector(selector).scope != "model":
        raise BadValue(f'{shown(text)}: prices are for a provider or a model, for example "anthropic/claude-opus-*"')
    return selector


def _amount(unit: str, what: str, doc: str, example: str) -> Key:
    """The key of a unit. The value stays as it is written: `make_budget` reads it with the other options."""

    def read(value: object) -> object:
        read_amount(unit, value)
        return value

    return Key(unit, Scalar(what, read), doc, example)


def _read_burst(value: object) -> Any:
    """What it may be depends on the unit."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise BadValue("valid is an amount in the unit of the rate")
    return value


def _read_per(value: object) -> object:
    read_period(value)
    return value


def _price(name: str, doc: str, example: str, default: str = "") -> Key:
    return Key(name, Scalar("dollars per million tokens", parse_dollars), doc, example, default, required=not default)


_BUDGET = Table(
    "a rate or budget",
    (
        _amount("calls", "whole number from 1", "How many model calls (of agents: how many runs) per period.", "50"),
        _amount(
            "input",
            "whole number from 1",
            "How many input tokens per period, without those that are read from a cache.",
            "400_000",
        ),
        _amount("output", "whole number from 1", "How many output tokens per period.", "80_000"),
        _amount("tokens", "whole number from 1", "How many tokens of all kinds per period.", '"2M"'),
        _amount("usd", "dollars", "How many dollars per period, exact to the millionth.", "20"),
        Key(
            "per",
            Scalar('"day", "week", "month" or a duration', _read_per),
            "The period. Up to `1h` it is a rate, which refills all the time. `day`, `week` and `month` begin at "
            "midnight in `time_zone`, weeks on Monday. A longer duration, such as `5h`, begins with the first use.",
            '"day"',
            required=True,
        ),
        Key(
            "burst",
            Scalar("as the unit", _read_burst),
            "Of a rate: the most that it can save up for a burst.",
            "500_000",
            "what it allows in one period",
        ),
        Key(
            "when_empty",
            Scalar('"hold", "stop", "fallback" or "warn"', v.read_when_empty),
            'What happens when it is used up. `"hold"`: new requests wait, running ones continue. `"stop"`: running '
            'agents are stopped too, and jobs return to the queue. `"fallback"`: the next candidate is used, or the '
            'model that `[fallback]` names. `"warn"`: nothing is held back; there are only events.',
            '"stop"',
            f'`"{BudgetRule("", "", 0, "").when_empty}"`',
            tried=("on_empty", "action"),
        ),
        Key(
            "estimate",
            Scalar('"expected" or "max"', v.read_estimate),
            'What a call reserves before it starts. `"expected"`: what calls of its model and project usually need. '
            '`"max"`: the most that it can need, so that the budget is never exceeded.',
            '"max"',
            f'`"{BudgetRule("", "", 0, "").estimate}"`',
        ),
    ),
)
BUDGETS = OneOrMore("table, or an array of tables", _BUDGET)
BUDGET_OPTIONS = frozenset(key.name for key in _BUDGET.keys)

PRICE = Table(
    "the price of models",
    (
        _price("input", "For input tokens.", "15.0"),
        _price("output", "For output tokens.", "75.0"),
        _price("cache_read", "For input tokens that are read from a cache.", "1.5", "that of `input`"),
        _price("cache_write", "For input tokens that are written to a cache.", "18.75", "that of `input`"),
    ),
)
_PRICE_OPTIONS = frozenset(key.name for key in PRICE.keys)
