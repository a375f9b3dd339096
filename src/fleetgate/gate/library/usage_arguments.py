"""Usage as programs and HTTP clients report it: checked, and with a cost where the model has a price (rule U3)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from fleetgate.core.errors import BadRequest
from fleetgate.core.model_names import shown
from fleetgate.core.prices import ConfiguredPrice
from fleetgate.core.usage import RESPONSE, Usage
from fleetgate.gate.prices.lookup import price_of

UNUSED = Usage(source=RESPONSE)  # the usage of a request that was given up before it was used, or refused
REFUSED = ("rate_limited", "usage_window", "quota", "overloaded", "auth")  # outcomes of calls that used nothing
MOST = 10**15  # of each number
_NUMBERS = ("calls", "input", "cache_read", "cache_write", "output", "cost")


def checked_usage(what: str, usage: Usage) -> Usage:
    """The same, if every store can keep it and no sum can become negative; BadRequest says what is wrong."""
    if not isinstance(usage, Usage):
        raise BadRequest(f"{what} {shown(str(usage))}: valid is fleetgate.Usage(input=…, output=…)")
    for name in _NUMBERS:
        number = getattr(usage, name)
        if name == "cost" and number is None:
            continue
        if type(number) is not int or not 0 <= number <= MOST:
            unit = " (millionths of a dollar)" if name == "cost" else ""
            raise BadRequest(f"{what}.{name} {shown(str(number))}: valid is a whole number from 0 to {MOST}{unit}")
    return replace(usage, source=RESPONSE)


def of_one_call(usage: Usage) -> Usage:
    """The usage of a call or run as a whole: it counts as one, unless it says more."""
    return usage if usage.calls else replace(usage, calls=1)


async def with_cost(usage: Usage, models: Iterable[str], configured: Sequence[ConfiguredPrice]) -> Usage:
    """With what it costs, if it does not say: by the dearest of these models; without a cost if none has a price."""
    if usage.cost is not None:
        return usage
    prices = [await asyncio.to_thread(price_of, model, configured) for model in models]
    costs = [price.cost(usage) for price in prices if price is not None]
    return replace(usage, cost=max(costs)) if costs else usage
