"""Limits as other programs set them, to compare with: each moves the cap after a call that ended or was refused.

Each follows the rules and default numbers of its program, read in its source in 2026-11. It sees what it would see
there: how long a call took, how many were in flight when it was sent, and refusals. Where a default would only harm it
here, the difference is named.

- `aimd`: the textbook's. One more after as many calls as the limit; half after a refusal.
- `inspect` (Inspect AI, `util/_concurrency.py`): starts at 20 and doubles after each round without a refusal; after the
  first refusal it adds 5 % instead, rounded up to a multiple of 5 (from 10 on). A round is as many calls as the limit,
  at least 4, and counts only if 80 % of the limit was used. A cut is to 80 %, rounded down to a multiple of 5. For 15 s
  (or Retry-After, if longer) after a cut it neither cuts again nor counts calls. A call that was sent again counts for
  nothing. Its least limit is 10; here it is 1, or a limit below 10 would be refused all the time.
- `data-designer` (NVIDIA Data Designer, `models/request_admission/controller.py`): starts at the cap; one more after 25
  calls in a row; three quarters, rounded down, after a refusal, unless the call was sent before the last cut; a pause
  of 2 s, or Retry-After, during which no call counts.
- `vegas` (Netflix, `VegasLimit`): estimates the queue at the provider from the shortest time that a call took, which it
  forgets now and then. A refusal is a sample like any other, with the time that it took.
- `gradient` (Netflix, `Gradient2Limit`): the limit follows the long mean of call times over the last one. It takes no
  notice of refusals, except that they are short. Its limits are 20 to 200; here they are 1 to the cap.

A refused call waits as client libraries do, and is sent again; only `data-designer` pauses the others with it.

Netflix's two are made for servers that queue: there, more calls at once make each slower. A provider that refuses
instead tells them nothing by its times.
"""

from __future__ import annotations

from math import ceil, log10
from random import Random
from typing import Final

from msgspec import Struct

from fleetgate.core.errors import NotFound


class CallSample(Struct):
    """A call that ended, or was refused. Times are log times."""

    sent_at: int
    now: int
    in_flight: int  # when it was sent, itself included
    again: bool = False  # an earlier try of it was refused
    hint_ms: int | None = None  # Retry-After

    @property
    def took_ms(self) -> int:
        return max(self.now - self.sent_at, 1)


class Rival:
    """A limit that starts at 20 and stays between 1 and the cap."""

    start: float = 20

    def __init__(self, cap: int) -> None:
        self.most = float(cap)
        self.level = min(self.start, self.most)

    @property
    def cap(self) -> int:
        return max(int(self.level), 1)

    def move(self, level: float) -> None:
        self.level = min(max(level, 1.0), self.most)

    def sent(self, now: int, in_flight: int) -> None:
        """A call was sent: now so many are in flight."""

    def accepted(self, call: CallSample) -> None:
        raise NotImplementedError

    def refused(self, call: CallSample) -> None:
        raise NotImplementedError


class Aimd(Rival):
    start = float("inf")

    def __init__(self, cap: int) -> None:
        super().__init__(cap)
        self.cut_at = 0

    def accepted(self, call: CallSample) -> None:
        self.move(self.level + 1 / self.level)

    def refused(self, call: CallSample) -> None:
        if call.sent_at >= self.cut_at:
            self.cut_at = call.now
            self.move(self.level / 2)


class Inspect(Rival):
    def __init__(self, cap: int) -> None:
        super().__init__(cap)
        self.slow_start = True
        self.clean = self.busiest = self.rests_until = 0

    def sent(self, now: int, in_flight: int) -> None:
        if now >= self.rests_until:
            self.busiest = max(self.busiest, in_flight)

    def accepted(self, call: CallSample) -> None:
        if call.again or call.now < self.rests_until:
            return
        self.clean += 1
        if self.clean < max(self.cap, 4):
            return
        busy = self.busiest >= 0.8 * self.cap
        self.clean = self.busiest = 0
        if busy and self.slow_start:
            self.move(self.level * 2)
        elif busy:
            self.move(_up_to_five(self.cap + max(round(self.cap * 0.05), 1)))

    def refused(self, call: CallSample) -> None:
        self.slow_start = False
        self.clean = self.busiest = 0
        hint_ms = call.hint_ms or 0
        if call.now < self.rests_until:
            self.rests_until = max(self.rests_until, call.now + hint_ms)
            return
        self.rests_until = call.now + max(15_000, hint_ms)
        level = int(self.level * 0.8)
        self.move(level if level < 10 else level // 5 * 5)


def _up_to_five(level: int) -> int:
    """From 10 on, the next multiple of 5."""
    return level if level < 10 else -(-level // 5) * 5


class DataDesigner(Rival):
    start = float("inf")

    def __init__(self, cap: int) -> None:
        super().__init__(cap)
        self.clean = self.cut_at = self.rests_until = 0

    def accepted(self, call: CallSample) -> None:
        if call.now < self.rests_until:
            return
        self.clean += 1
        if self.clean >= 25:
            self.clean = 0
            self.move(self.level + 1)

    def refused(self, call: CallSample) -> None:
        self.clean = 0
        self.rests_until = call.now + (call.hint_ms or 2_000)
        if call.sent_at >= self.cut_at:
            self.cut_at = call.now
            self.move(int(self.level * 0.75))


class Vegas(Rival):
    def __init__(self, cap: int) -> None:
        super().__init__(cap)
        self.shortest_ms = self.samples = 0
        self._random = Random(0)
        self.forgets_after = self._random.uniform(15, 30)  # times the limit: so many samples

    def accepted(self, call: CallSample) -> None:
        if self._is_shortest(call.took_ms) or call.in_flight * 2 < self.level:
            return
        queue = ceil(self.level * (1 - self.shortest_ms / call.took_ms))
        step = _digits(self.level)
        if queue <= step:
            self.move(self.level + 6 * step)
        elif queue < 3 * step:
            self.move(self.level + step)
        elif queue > 6 * step:
            self.move(self.level - step)

    def refused(self, call: CallSample) -> None:
        if not self._is_shortest(call.took_ms):
            self.move(self.level - _digits(self.level))

    def _is_shortest(self, took_ms: int) -> bool:
        """Whether this time is the shortest from now on, because it is, or because the old one is forgotten."""
        self.samples += 1
        if self.samples >= self.forgets_after * self.level:
            self.samples, self.forgets_after = 0, self._random.uniform(15, 30)
        elif self.shortest_ms and took_ms >= self.shortest_ms:
            return False
        self.shortest_ms = took_ms
        return True


def _digits(level: float) -> int:
    return max(int(log10(level)), 1)


class Gradient(Rival):
    def __init__(self, cap: int) -> None:
        super().__init__(cap)
        self.long_ms = 0.0
        self.samples = 0

    def accepted(self, call: CallSample) -> None:
        took = call.took_ms
        self.samples += 1
        self.long_ms += (took - self.long_ms) * (1 / self.samples if self.samples <= 10 else 2 / 601)
        long_ms = self.long_ms
        if long_ms > 2 * took:
            self.long_ms *= 0.95
        if call.in_flight * 2 < self.level:
            return
        gradient = max(0.5, min(1.0, 1.5 * long_ms / took))
        self.move(0.8 * self.level + 0.2 * (self.level * gradient + 4))

    refused = accepted


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
