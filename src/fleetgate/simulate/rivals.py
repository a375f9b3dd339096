"""Limits as other programs set them, to compare with: each moves the cap after a call that ended or was refused.

These are approximations, not checked against the sources of those programs. They see what they would see: how long a
call took, how many were in flight, and refusals.

- `aimd`: one more after as many calls as the limit; half after a refusal.
- `inspect` (Inspect AI): starts at 20, doubles until the first refusal, then 5 % more after a round without one, if
  80 % was used; a cut is to 80 %, at most every 15 s.
- `data-designer` (NVIDIA Data Designer): one more after 25 calls, up to a tenth above the level that was refused last;
  three quarters after a refusal, and a pause of 2 s.
- `vegas` (Netflix): the queue at the provider is estimated from the shortest time that a call took.
- `gradient` (Netflix): the limit follows the long mean of call times over the last one; half after a refusal.
"""

from __future__ import annotations

from math import log10, sqrt
from typing import Final

from fleetgate.core.errors import NotFound


class Rival:
    """A limit that starts at 20 and stays between 1 and the cap."""

    start: float = 20

    def __init__(self, cap: int) -> None:
        self.most = float(cap)
        self.level = min(self.start, self.most)
        self.cut_at = 0

    @property
    def cap(self) -> int:
        return max(int(self.level), 1)

    def move(self, level: float) -> None:
        self.level = min(max(level, 1.0), self.most)

    def is_new(self, sent_at: int, now: int) -> bool:
        """Whether a refusal is not about a call that was sent before the last cut."""
        if sent_at < self.cut_at:
            return False
        self.cut_at = now
        return True

    def accepted(self, took_ms: int, in_flight: int) -> None:
        raise NotImplementedError

    def refused(self, sent_at: int, now: int) -> None:
        raise NotImplementedError


class Aimd(Rival):
    start = float("inf")

    def accepted(self, took_ms: int, in_flight: int) -> None:
        self.move(self.level + 1 / self.level)

    def refused(self, sent_at: int, now: int) -> None:
        if self.is_new(sent_at, now):
            self.move(self.level / 2)


class Inspect(Rival):
    def __init__(self, cap: int) -> None:
        super().__init__(cap)
        self.slow_start = True
        self.clean = self.busiest = 0

    def accepted(self, took_ms: int, in_flight: int) -> None:
        self.clean += 1
        self.busiest = max(self.busiest, in_flight)
        if self.clean < self.cap:
            return
        if self.busiest >= 0.8 * self.cap:
            self.move(self.level * 2 if self.slow_start else max(self.level * 1.05, self.level + 1))
        self.clean = self.busiest = 0

    def refused(self, sent_at: int, now: int) -> None:
        self.slow_start = False
        self.clean = 0
        if not self.cut_at or now >= self.cut_at + 15_000:
            self.cut_at = now
            self.move(self.level * 0.8)


class DataDesigner(Rival):
    start = float("inf")

    def __init__(self, cap: int) -> None:
        super().__init__(cap)
        self.ceiling = self.most
        self.clean = 0

    def accepted(self, took_ms: int, in_flight: int) -> None:
        self.clean += 1
        if self.clean >= 25:
            self.clean = 0
            self.move(min(self.level + 1, max(self.ceiling * 1.1, self.ceiling + 1)))

    def refused(self, sent_at: int, now: int) -> None:
        self.clean = 0
        if self.is_new(sent_at, now):
            self.ceiling = self.level
            self.move(self.level * 0.75)


class Vegas(Rival):
    def __init__(self, cap: int) -> None:
        super().__init__(cap)
        self.shortest_ms = 0

    def accepted(self, took_ms: int, in_flight: int) -> None:
        if not self.shortest_ms or took_ms < self.shortest_ms:
            self.shortest_ms = max(took_ms, 1)
            return
        if in_flight * 2 < self.level:
            return
        queue = self.level * (1 - self.shortest_ms / took_ms)
        step = max(log10(self.level), 1)
        if queue <= step:
            self.move(self.level + 6 * step)
        elif queue < 3 * step:
            self.move(self.level + step)
        elif queue > 6 * step:
            self.move(self.level - step)

    def refused(self, sent_at: int, now: int) -> None:
        self.move(self.level - max(log10(self.level), 1))


class Gradient(Rival):
    def __init__(self, cap: int) -> None:
        super().__init__(cap)
        self.long_ms = 0.0

    def accepted(self, took_ms: int, in_flight: int) -> None:
        took = max(took_ms, 1)
        self.long_ms += (took - self.long_ms) / 600 if self.long_ms else took
        if in_flight * 2 < self.level:
            return
        gradient = max(0.5, min(1.0, 1.5 * self.long_ms / took))
        self.move(0.8 * self.level + 0.2 * (self.level * gradient + sqrt(self.level)))

    def refused(self, sent_at: int, now: int) -> None:
        if self.is_new(sent_at, now):
            self.move(self.level / 2)


RIVALS: Final[dict[str, type[Rival]]] = {
    "aimd": Aimd,
    "inspect": Inspect,
    "data-designer": DataDesigner,
    "vegas": Vegas,
    "gradient": Gradient,
}


def rival(name: str, cap: int) -> Rival | None:
    """The one that moves the cap; None where nothing does."""
    if not name:
        return None
    if name not in RIVALS:
        raise NotFound(f"no rival {name!r}: there are {', '.join(RIVALS)}")
    return RIVALS[name](cap)
