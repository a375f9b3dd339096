"""A token bucket: an amount that refills continuously up to a burst, in exact integers.

The rule: at every moment `free + used + lost = start + refilled`, where `lost` is the refill for which a full bucket
had no room. What is free may be negative: a call may use more than was reserved for it.
"""

from __future__ import annotations


class TokenBucket:
    """`amount` per `per_ms`, of which at most `burst` is kept. Asked in the order of time."""

    def __init__(self, amount: int, per_ms: int, burst: int = 0, start: int | None = None, now: int = 0) -> None:
        self.amount = amount
        self.per_ms = per_ms
        self.burst = burst or amount
        # One unit is `per_ms` parts, so a millisecond refills `amount` parts: no fraction is ever rounded away.
        self._size = self.burst * per_ms
        self._parts = self._size if start is None else start * per_ms
        self._lost_parts = 0
        self._begun_with = self._parts
        self._begun_at = self._at = now

    def free(self, now: int) -> int:
        self._refill(now)
        return self._parts // self.per_ms

    def lost(self, now: int) -> int:
        """The refill that was lost, since the bucket was full."""
        self._refill(now)
        return self._lost_parts // self.per_ms

    def used_part(self, now: int) -> float:
        """The part of all that was there so far that was taken (0 to 1)."""
        self._refill(now)
        there = self._begun_with + (now - self._begun_at) * self.amount
        return (there - self._lost_parts - self._parts) / there if there else 0.0

    def take(self, amount: int, now: int) -> None:
        """Take so much, whether it is there or not. A negative amount is given back."""
        self._refill(now)
        self._parts -= amount * self.per_ms
        self._spill()

    def wait_ms(self, amount: int, now: int) -> int:
        """How long until so much is free. More than the burst fits when the bucket is full."""
        self._refill(now)
        missing = min(amount * self.per_ms, self._size) - self._parts
        return max(-(-missing // self.amount), 0)

    def full_ms(self, now: int) -> int:
        """How long until it is full, if nothing more is taken."""
        return self.wait_ms(self.burst, now)

    def _refill(self, now: int) -> None:
        if now > self._at:
            self._parts += (now - self._at) * self.amount
            self._at = now
            self._spill()

    def _spill(self) -> None:
        if self._parts > self._size:
            self._lost_parts += self._parts - self._size
            self._parts = self._size
