"""Prices of models, and what usage costs by them (rule U3)."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from fleetgate.core.model_names import Model, Selector
from fleetgate.core.usage import Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

PER_DOLLAR: Final = 10**6  # units of a cost
PER_TOKEN: Final = 10**12  # units of a price: a dollar for a million tokens is 10^6 of them


class Price(Struct, frozen=True, array_like=True, gc=False):
    """What one token costs, in millionths of a millionth of a dollar (10^-12)."""

    input: int
    cache_read: int
    cache_write: int
    output: int

    def cost(self, usage: Usage) -> int:
        """What this usage costs, in millionths of a dollar, rounded up."""
        total = (
            usage.input * self.input
            + usage.cache_read * self.cache_read
            + usage.cache_write * self.cache_write
            + usage.output * self.output
        )
        return -(-total * PER_DOLLAR // PER_TOKEN)


class ConfiguredPrice(Struct, frozen=True):
    """A price of the config file, for the models of a selector."""

    selector: Selector
    price: Price


def configured_price(model: Model, configured: Iterable[ConfiguredPrice]) -> Price | None:
    """The first of these prices that is for this model."""
    for each in configured:
        if each.selector.matches(model):
            return each.price
    return None
