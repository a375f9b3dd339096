"""How fast a plan window is used while batch work is on and while it is off, and how much comes after it was switched
off: calls that were under way, and readings that were late (rule W2).

All three follow from the readings alone. They last beyond a reset: a fleet works in the next window as in this one.
"""

from __future__ import annotations

from typing import Final

_SETTLES: Final = 50  # calls under way end, and are counted, in this part of the window
_SHORTEST: Final = 200  # over less than this part of a window, a rate says nothing

# What a snapshot keeps of it, in the order of `Burn.export`.
BurnRecord = tuple[int, int, int, int, int, int, int, int]


class Burn:
    """What was learned about one window. Rates are hundredths of a percent in a whole window."""

    __slots__ = ("after", "after_now", "off_at", "off_ms", "off_then", "off_used", "on_ms", "on_used")

    def __init__(self) -> None:
        self.on_ms = self.on_used = 0
        self.off_ms = self.off_used = 0
        self.after = 0  # how much comes when batch work was switched off
        self.after_now = 0  # so far, since it was switched off last
        self.off_at = self.off_then = 0  # when that was, and how much was used

    def hear(self, used: int, more: int, since: int, until: int, *, is_on: bool, length_ms: int) -> None:
        """`used` is so much now, and `more` of it since an earlier reading. Batch work was on, or off, meanwhile."""
        took_ms, more = max(until - since, 0), max(more, 0)
        if is_on:
            self.on_ms += took_ms
            self.on_used += more
            if self.on_ms > length_ms // 4:
                self.on_ms, self.on_used = self.on_ms // 2, self.on_used // 2
        elif since - self.off_at >= length_ms // _SETTLES:
            self.off_ms += took_ms
            self.off_used += more
            if self.off_ms > length_ms:
                self.off_ms, self.off_used = self.off_ms // 2, self.off_used // 2
        else:
            others = self.off_rate(length_ms) * (until - self.off_at) // length_ms
            self.after_now = max(self.after_now, used - self.off_then - others)

    def switched_off(self, used: int, at: int) -> None:
        """Batch work is switched off."""
        self.after = (self.after_now + self.after) // 2 if self.after else self.after_now
        self.after_now, self.off_then, self.off_at = 0, used, at

    def on_rate(self, length_ms: int) -> int:
        """How much is used while batch work is on, by all; 0: not known yet."""
        return max(self.on_used * length_ms // self.on_ms, 1) if self.on_ms > length_ms // _SHORTEST else 0

    def off_rate(self, length_ms: int) -> int:
        """How much is used while it is off: by people, and outside the gate."""
        return self.off_used * length_ms // self.off_ms if self.off_ms else 0

    def export(self) -> BurnRecord:
        rates = self.on_ms, self.on_used, self.off_ms, self.off_used
        return (*rates, self.after, self.after_now, self.off_at, self.off_then)

    def restore(self, record: BurnRecord) -> None:
        self.on_ms, self.on_used, self.off_ms, self.off_used = record[:4]
        self.after, self.after_now, self.off_at, self.off_then = record[4:]
