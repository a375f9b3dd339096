"""A window budget: an amount per day, week or month, or per duration from the first use.

A window opens with the first use after the last one ended, and ends at a fixed moment; until then what was taken stays
taken. An amount that is given back belongs to the window in which it was taken: once that is over, it is gone.
"""

from __future__ import annotations

from fleetgate.core.budgets.calendar import Zone, next_boundary


class Window:
    """`amount` units per window. `unit` is day, week or month; with "" a window lasts `per_ms` from its first use."""

    __slots__ = ("amount", "ends_at", "extras", "per_ms", "unit", "used", "zone")

    def __init__(self, amount: int, unit: str, per_ms: int, zone: Zone) -> None:
        self.amount = amount
        self.unit = unit
        self.per_ms = per_ms
        self.zone = zone
        self.used = 0
        self.ends_at = 0  # of the last window that was opened
        self.extras: list[tuple[int, int]] = []  # what a person added: until when, and how much

    def amount_at(self, now: int) -> int:
        """How much there is in all, with what was added."""
        return self.amount + sum(extra for until, extra in self.extras if now < until)

    def free(self, now: int) -> int:
        """What is free now; negative where more was used than there was."""
        return self.amount_at(now) - (self.used if now < self.ends_at else 0)

    def fits_at(self, wanted: int, now: int) -> int:
        """When this much fits, if nothing else is taken before. More than the whole amount fits in an unused window."""
        free = self.free(now)
        return now if wanted <= free or free >= self.amount_at(now) else self.ends_at

    def take(self, amount: int, now: int) -> int:
        """Count an amount, whether it fits or not, and return the end of its window, which `give_back` needs."""
        if now >= self.ends_at:
            self.used = 0
            self.ends_at = next_boundary(self.unit, now, self.zone) if self.unit else now + self.per_ms
        self.used += amount
        return self.ends_at

    def give_back(self, amount: int, window: int) -> None:
        """Return a part of what was taken, or take more with a negative amount, in the window that ends then."""
        if window == self.ends_at:
            self.used = max(self.used - amount, 0)

    def add(self, amount: int, until: int, now: int) -> None:
        """There is more until then."""
        self.extras = [extra for extra in self.extras if now < extra[0]] + [(until, amount)]
