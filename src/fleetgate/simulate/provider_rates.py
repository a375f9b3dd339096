"""The rates of a provider: requests and tokens per minute, counted as providers count them.

The rule: a call is accepted only if all its rates have room for it. Its output is reserved from `max_tokens` when it
starts and corrected when it ends. A call that is refused takes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from fleetgate.core.usage import Usage
from fleetgate.simulate.token_bucket import TokenBucket


class ProviderRate(Struct, frozen=True, forbid_unknown_fields=True):
    """`amount` of a unit (calls, input, output or tokens) in `per_s` seconds. Input does not count reads of a cache."""

    unit: str
    amount: int
    per_s: float = 60
    burst: int = 0  # what a full bucket holds; 0: the amount
    start: int | None = None  # what the bucket holds at the first call; None: it is full
    rounding: int = 1  # headers round what remains to this; Anthropic rounds tokens to 1000


class RateState(Struct, frozen=True):
    """One rate at one moment, as headers report it."""

    rate: ProviderRate
    free: int
    full_ms: int  # until the bucket is full again

    @property
    def remaining(self) -> int:
        step = self.rate.rounding
        return max((self.free + step // 2) // step * step, 0)


class Shortage(Struct, frozen=True):
    """Why a call is refused: the rate that has no room, and when it has."""

    rate: ProviderRate
    free: int
    requested: int
    wait_ms: int


class RateBuckets:
    """The rates of one key and model."""

    def __init__(self, rates: Iterable[ProviderRate], now: int) -> None:
        self.buckets = {
            rate: TokenBucket(rate.amount, round(rate.per_s * 1000), rate.burst, rate.start, now) for rate in rates
        }

    def shortage(self, wanted: Usage, now: int) -> Shortage | None:
        """The rate that makes this call wait longest; None: all have room. Changes nothing."""
        waits = [(bucket.wait_ms(wanted.amount(rate.unit), now), rate) for rate, bucket in self.buckets.items()]
        wait_ms, rate = max(waits, key=lambda wait: wait[0], default=(0, None))
        if rate is None or wait_ms == 0:
            return None
        return Shortage(rate, self.buckets[rate].free(now), wanted.amount(rate.unit), wait_ms)

    def take(self, wanted: Usage, now: int) -> None:
        for rate, bucket in self.buckets.items():
            bucket.take(wanted.amount(rate.unit), now)

    def settle(self, reserved: Usage, used: Usage, now: int) -> None:
        """Replace what was reserved by what was used."""
        for rate, bucket in self.buckets.items():
            bucket.take(used.amount(rate.unit) - reserved.amount(rate.unit), now)

    def states(self, now: int) -> list[RateState]:
        return [RateState(rate, bucket.free(now), bucket.full_ms(now)) for rate, bucket in self.buckets.items()]
