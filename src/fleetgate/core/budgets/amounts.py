"""What a budget of a unit counts of a usage, and whether the numbers of a usage can be amounts.

These run several times with every decision, so they are compiled; the methods of Usage call them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fleetgate.core.usage import Usage

MOST: Final = 10**15  # a larger number is not an amount


def amount_of(usage: Usage, unit: str) -> int:
    """What a budget of this unit counts. Tokens that were read from a cache do not count as input."""
    if unit == "calls":
        return usage.calls
    if unit == "input":
        return usage.input + usage.cache_write
    if unit == "output":
        return usage.output
    if unit == "tokens":
        return usage.input + usage.cache_read + usage.cache_write + usage.output
    cost = usage.cost
    return 0 if cost is None else cost


def can_be(usage: Usage) -> bool:
    """Whether all numbers can be amounts."""
    cost = usage.cost
    return (
        0 <= usage.calls <= MOST
        and 0 <= usage.input <= MOST
        and 0 <= usage.cache_read <= MOST
        and 0 <= usage.cache_write <= MOST
        and 0 <= usage.output <= MOST
        and (cost is None or 0 <= cost <= MOST)
    )
