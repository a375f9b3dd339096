"""Prices of models: those of the config file, then those that the package `genai-prices` ships (rule U3).

A model without a price has none: its tokens are counted and its cost is not known, which is not a cost of nothing.
Local models cost nothing only where the config file says so. Of a price that depends on the length of the prompt, the
one for short prompts is used; of one that depends on the date or the hour, the one in force now. The package takes half
a second to import: a service starts that in a thread (`load_in_background`).
"""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Any, Final

from msgspec import Struct

from fleetgate.core.errors import BadName
from fleetgate.core.model_names import Model, Selector, read_model
from fleetgate.core.usage import Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

PER_DOLLAR: Final = 10**6  # units of a cost
PER_TOKEN: Final = 10**12  # units of a price: a dollar for a million tokens is 10^6 of them

_KEPT_SECONDS: Final = 300.0  # a price may change with the hour
_MOST_KEPT: Final = 1000  # models; a client can name any
# The names that the package has for providers whose name is another one here (core/model_names.py).
_PACKAGE_NAMES: Final = {"bedrock": "aws", "vertex": "google", "xai": "x-ai"}


class Price(Struct, frozen=True, gc=False):
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


def price_of(model: str, configured: Sequence[ConfiguredPrice] = ()) -> Price | None:
    """The price of `provider[@account]/model`; None if it is not known.

    `configured` are those of the config file (`Settings.prices`), the narrowest selector first.
    """
    try:
        named = _read_model(model)
    except BadName:
        return None
    for each in configured:
        if each.selector.matches(named):
            return each.price
    return _published(named)


def load_in_background() -> None:
    """Import the package in a thread, so that the first call of a service does not wait for it."""
    import threading

    threading.Thread(target=_package, name="fleetgate-prices", daemon=True).start()


_read_model = lru_cache(maxsize=_MOST_KEPT)(read_model)  # a service looks up the same few, thousands of times a second

# Prices that were looked up, with the time until which they hold. None: the package has no price.
_known: dict[tuple[str, str], tuple[float, Price | None]] = {}


def _published(model: Model) -> Price | None:
    key, now = (model.provider, model.name), time.monotonic()
    found = _known.get(key)
    if found is None or found[0] <= now:
        if len(_known) >= _MOST_KEPT:
            _known.clear()
        found = _known[key] = (now + _KEPT_SECONDS, _look_up(model))
    return found[1]


def _look_up(model: Model) -> Price | None:
    from datetime import UTC, datetime

    package = _package()
    if package is None:
        return None
    wanted = _PACKAGE_NAMES.get(model.provider, model.provider)
    # The package itself would take any name that contains "openai" for OpenAI, which charges its own prices.
    provider = next((each for each in package.providers if each.id == wanted), None)
    found = provider and provider.find_model(model.name, all_providers=package.providers)
    if not found:
        return None
    prices = found.get_prices(datetime.now(UTC))
    input_price, output_price = _per_token(prices.input_mtok), _per_token(prices.output_mtok)
    if input_price is None:
        return None
    cache_read, cache_write = _per_token(prices.cache_read_mtok), _per_token(prices.cache_write_mtok)
    return Price(
        input_price,
        input_price if cache_read is None else cache_read,
        input_price if cache_write is None else cache_write,
        output_price or 0,  # embeddings have no output
    )


def _per_token(dollars: Any) -> int | None:
    """From dollars for a million tokens. The package has Decimals, some of which were floats before: 0.139999…"""
    if dollars is None:
        return None
    price: int = round(getattr(dollars, "base", dollars) * (PER_TOKEN // 10**6))
    return price


def _package() -> Any:
    """The data of `genai-prices`; None where it is not installed (the extra `prices`)."""
    try:
        from genai_prices.data_snapshot import get_snapshot
    except ImportError:
        return None
    return get_snapshot()
