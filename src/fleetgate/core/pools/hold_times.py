"""Hold times: how long the leases of a pool last, as a running mean and mean deviation."""

from __future__ import annotations


class HoldTimes:
    """The hold times of one pool. The first eight leases count in full, later ones an eighth each."""

    __slots__ = ("count", "deviation_ms", "mean_ms")

    def __init__(self) -> None:
        self.count = 0
        self.mean_ms = 0
        self.deviation_ms = 0

    def observe(self, held_ms: int) -> None:
        weight = self.count = self.count + 1
        if weight > 8:
            weight = 8
        error = held_ms - self.mean_ms
        self.mean_ms += error // weight
        self.deviation_ms += (abs(error) - self.deviation_ms) // weight
