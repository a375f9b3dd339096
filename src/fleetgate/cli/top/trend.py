"""The last ten minutes as sparklines: how many ran, how many waited, how many rate limits there were.

What was before this process looked is read from the log; from then on the state is looked at.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fleetgate.core import events as ev

BUCKET_MS = 5_000
BUCKETS = 120
MOST_EVENTS = 5_000  # of the past that are read at the start

_LEVELS = "▁▂▃▄▅▆▇█"  # the lowest is none


class TrendLine(NamedTuple):
    """One sparkline: its values, the oldest first."""

    title: str
    values: list[int]
    now: int


class Trend:
    """Buckets of five seconds."""

    def __init__(self) -> None:
        self._running: dict[int, list[int]] = {}  # bucket -> [the most in it, the last]
        self._waiting: dict[int, list[int]] = {}
        self._limited: dict[int, int] = {}
        self._same: tuple[int, int, int] = (0, 0, 0)  # a time, and the releases, pauses and backoffs of that time

    def begin(self, past: Iterable[tuple[int, int, ev.Event]], now: int, running: int, waiting: int) -> None:
        """Take in the past, `(seq, at, event)`, that led to so many running and waiting now."""
        recent = [(at, event) for _, at, event in past if at > now - BUCKET_MS * BUCKETS]
        steps = [_step(event) for _, event in recent]
        level = [running - sum(step[0] for step in steps), waiting - sum(step[1] for step in steps)]
        for (at, event), step in zip(recent, steps, strict=True):
            level = [level[0] + step[0], level[1] + step[1]]
            self.sample(at, max(level[0], 0), max(level[1], 0))
            self.take(at, event)
        self.sample(now, running, waiting)

    def sample(self, now: int, running: int, waiting: int) -> None:
        """So many run and wait now."""
        bucket = now // BUCKET_MS
        _put(self._running, bucket, running)
        _put(self._waiting, bucket, waiting)

    def take(self, at: int, event: ev.Event) -> None:
        """Count an event if it is a rate limit. A release and its consequences count once."""
        released = isinstance(event, ev.Released) and event.outcome == "rate_limited"
        led_to = (isinstance(event, ev.Paused) and event.cause == "rate_limited") or (
            isinstance(event, ev.BackedOff) and event.reason == "rate_limited" and not event.manual
        )
        if not released and not led_to:
            return
        before = self._same if self._same[0] == at else (at, 0, 0)
        self._same = (at, before[1] + released, before[2] + led_to)
        bucket = at // BUCKET_MS
        self._limited[bucket] = self._limited.get(bucket, 0) + max(self._same[1:]) - max(before[1:])
        _forget(self._limited, bucket)

    def lines(self, now: int, length: int) -> list[TrendLine]:
        """What to draw, in so many columns."""
        last = now // BUCKET_MS
        wanted = range(last - min(length, BUCKETS) + 1, last + 1)
        running, waiting = _filled(self._running, wanted), _filled(self._waiting, wanted)
        limited = [self._limited.get(bucket, 0) for bucket in wanted]
        current = [_last(self._running), _last(self._waiting), sum(limited)]
        titles = ("in flight", "waiting", "429s")
        return [TrendLine(*each) for each in zip(titles, (running, waiting, limited), current, strict=True)]


def spark(values: list[int]) -> str:
    """One character for each value; the highest is the highest of them."""
    most = max([*values, 1])
    top = len(_LEVELS) - 1
    return "".join(_LEVELS[-(-value * top // most)] for value in values)


def _step(event: ev.Event) -> tuple[int, int]:
    """What an event adds to those that run, and to those that wait."""
    if isinstance(event, ev.Queued):
        return 0, 1
    if isinstance(event, ev.Granted):
        return 1, 0 if event.ticket is not None else -1
    if isinstance(event, ev.Returned):
        return -1, 1
    if isinstance(event, ev.Released | ev.Reclaimed):
        return -1, 0
    if isinstance(event, ev.Cancelled | ev.Expired | ev.Dropped):
        return 0, -1
    return 0, 0


def _put(buckets: dict[int, list[int]], bucket: int, value: int) -> None:
    if bucket not in buckets:
        buckets[bucket] = [_last(buckets), 0]
    most, _ = buckets[bucket]
    buckets[bucket] = [max(most, value), value]
    _forget(buckets, bucket)


def _forget(buckets: dict[int, list[int]] | dict[int, int], newest: int) -> None:
    """Remove buckets that are too old to be shown."""
    while len(buckets) > BUCKETS or next(iter(buckets)) < newest - BUCKETS:
        del buckets[next(iter(buckets))]


def _last(buckets: dict[int, list[int]]) -> int:
    return next(reversed(buckets.values()))[1] if buckets else 0


def _filled(buckets: dict[int, list[int]], wanted: range) -> list[int]:
    """The maximum of each bucket; a bucket without samples keeps the last value."""
    level = 0
    for bucket, (_, last) in buckets.items():
        if bucket < wanted.start:
            level = last
    values = []
    for bucket in wanted:
        most, level = buckets.get(bucket, (level, level))
        values.append(most)
    return values
