"""The history of a pool's limit: what the provider refused and accepted, from the log, for a chart.

The log is read once; after that only what is new. Of each pool the last `MOST_MARKS` are kept, of the last day.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import takewhile

from msgspec import Struct

from fleetgate.core import events as ev
from fleetgate.log.protocol import Log
from fleetgate.present.run_statistics import seq_before

DAY_MS = 86_400_000
MOST_MARKS = 2_000  # of a pool
MOST_READ = 200_000  # events, the first time

Row = tuple[int, int, ev.Event]


class LimitMark(Struct, frozen=True):
    """A level that was refused or accepted, or a limit that was lowered (`reduced`). Times are log times."""

    at: int
    what: str
    level: int
    limit: int | None = None  # since then, where the event says so
    why: str = ""


class LimitMarks:
    """The marks of all pools. Not for several threads at once."""

    def __init__(self) -> None:
        self._seq = -1  # read up to here; -1: nothing yet
        self._marks: dict[str, deque[LimitMark]] = {}

    def read(self, log: Log, last: int, now: int, resting: Callable[[Iterator[Row]], Iterator[Row]]) -> None:
        """Read what is new up to the sequence number `last`."""
        if self._seq < 0 or last < self._seq:  # the first time, or a log that was replaced
            self._marks = {}
            self._seq = max(seq_before(log, now - DAY_MS, last), last - MOST_READ)
        for seq, at, event in resting(takewhile(lambda row: row[0] <= last, log.history(self._seq))):
            self._seq = seq
            mark = _mark(event, at)
            if mark is not None:
                key = f"{event.kind} {event.pool}"  # type: ignore[union-attr]
                self._marks.setdefault(key, deque(maxlen=MOST_MARKS)).append(mark)
        self._seq = max(self._seq, last)

    def of(self, pool: str, since: int) -> list[LimitMark]:
        """Of a pool (its kind and name), the oldest first."""
        return [mark for mark in self._marks.get(pool, ()) if mark.at >= since]


def _mark(event: ev.Event, at: int) -> LimitMark | None:
    if isinstance(event, ev.Refused):
        return LimitMark(at, "refused", event.level, event.limit, event.why)
    if isinstance(event, ev.Accepted):
        return LimitMark(at, "accepted", event.level)
    if isinstance(event, ev.Reduced):
        return LimitMark(at, "reduced", event.limit + 1, event.limit)
    return None
