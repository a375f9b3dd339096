"""The JSON of usage (of a run, a job or an attempt; null where it is not known), and of amounts of budgets."""

from __future__ import annotations

from msgspec import Struct

from fleetgate.core.usage import Usage


class SpentShape(Struct):
    """What was used. `input` are tokens that were not read from a cache; `tokens` are all together.

    `cost_usd` is null if it is not known. `source`: response, partial, record or estimate.
    """

    calls: int
    input: int
    cache_read: int
    cache_write: int
    output: int
    tokens: int
    cost_usd: float | None
    source: str


def usage_json(usage: Usage | None) -> SpentShape | None:
    if usage is None:
        return None
    return SpentShape(
        usage.calls,
        usage.input,
        usage.cache_read,
        usage.cache_write,
        usage.output,
        usage.tokens,
        None if usage.cost is None else usage.cost / 1_000_000,
        usage.source,
    )


def unit_of(budget: str) -> str:
    """The unit that a budget counts, by its name: `project:web usd/day` counts usd."""
    return budget.rpartition(" ")[2].partition("/")[0]


def budget_amount(budget: str, amount: int) -> float:
    """An amount of a budget; of one that counts usd, in dollars."""
    return amount / 1_000_000 if unit_of(budget) == "usd" else amount
