"""A rate: an amount that refills continuously, up to a burst.

The level is kept in parts of a unit: one unit is `per_ms` parts, so `amount` units per `per_ms` are `amount` parts per
millisecond. Every number is whole, nothing is rounded, and the time at which an amount fits is exact.

The level may become negative: a request that is larger than the whole bucket runs alone once the bucket is full, and a
call may use more than was reserved for it. Later requests wait until the debt is paid.
"""

from __future__ import annotations

from fleetgate.core.limits.adaptive_tuning import NEVER


class Rate:
    """A bucket of `burst` units that refills by `amount` units per `per_ms` milliseconds. It starts full."""

    __slots__ = ("_at", "_level", "amount", "burst", "per_ms")

    def __init__(self, amount: int, per_ms: int, burst: int, at: int) -> None:
        self.amount = amount
        self.per_ms = per_ms
        self.burst = burst
        self._level = burst * per_ms
        self._at = at

    def free(self, now: int) -> int:
        """The whole units that are free now; negative while a debt is paid."""
        return self._level_at(now) // self.per_ms

    def fits_at(self, wanted: int, now: int) -> int:
        """When this much fits, if nothing else is taken before. More than the burst fits when the bucket is full."""
        missing = min(wanted, self.burst) * self.per_ms - self._level_at(now)
        if missing <= 0:
            return now
        if not self.amount:
            return NEVER
        return now + -(-missing // self.amount)

    def take(self, amount: int, now: int) -> None:
        """Count an amount, whether it fits or not. A negative amount is given back; the bucket never overflows."""
        level = self._level_at(now) - amount * self.per_ms
        self._level = min(level, self.burst * self.per_ms)
        self._at = max(now, self._at)

    def set_free(self, units: int, now: int, age_ms: int = 0) -> None:
        """What was free `age_ms` ago, as the provider says; it has refilled since."""
        self._level = min(units * self.per_ms + age_ms * self.amount, self.burst * self.per_ms)
        self._at = max(now, self._at)

    def change(self, amount: int, per_ms: int, burst: int, now: int) -> None:
        """Other numbers from now on. What was taken and has not been refilled yet stays taken."""
        taken = self.burst * self.per_ms - self._level_at(now)
        units = -(-taken // self.per_ms)
        self.amount, self.per_ms, self.burst = amount, per_ms, burst
        self._level = (burst - units) * per_ms
        self._at = max(now, self._at)

    def export(self, now: int) -> tuple[int, int]:
        """The level in parts, and the time that it is of."""
        return self._level_at(now), max(now, self._at)

    def restore(self, level: int, at: int) -> None:
        self._level, self._at = level, at

    def _level_at(self, now: int) -> int:
        if now <= self._at:
            return self._level
        return min(self._level + (now - self._at) * self.amount, self.burst * self.per_ms)
