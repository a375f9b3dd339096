"""Where days, weeks and months begin in a time zone. Weeks begin on Monday.

A zone is given as its transitions: from which moment which offset to UTC holds. So nothing here reads a file or a
clock, and every process that replays a log computes the same boundaries.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from msgspec import Struct

DAY_MS: Final = 86_400_000
UNITS: Final = ("day", "week", "month")
_EPOCH_WEEKDAY: Final = 3  # the first of January 1970 was a Thursday; Monday is 0


class Zone(Struct, frozen=True):
    """The offsets to UTC of a zone in ms, and from when each holds; the first holds before that, too."""

    moments: tuple[int, ...] = (0,)
    offsets: tuple[int, ...] = (0,)


UTC: Final = Zone()


def next_boundary(unit: str, now: int, zone: Zone) -> int:
    """When the day, week or month that `now` is in ends: when clocks in the zone first show its end, or skip it."""
    number = max(bisect_right(zone.moments, now) - 1, 0)
    local = _next_day(unit, (now + zone.offsets[number]) // DAY_MS) * DAY_MS
    boundary = local - zone.offsets[number]
    for moment, offset in zip(zone.moments[number + 1 :], zone.offsets[number + 1 :], strict=True):
        if boundary < moment:
            break
        boundary = max(local - offset, moment)  # the clocks were changed before they showed it
    return boundary


def _next_day(unit: str, day: int) -> int:
    """The number of the first day of the next unit; day 0 is the first of January 1970."""
    if unit == "day":
        return day + 1
    if unit == "week":
        return day + 7 - (day + _EPOCH_WEEKDAY) % 7
    year, month = _month_of(day)
    return _day_of(year + month // 12, month % 12 + 1)


def _month_of(day: int) -> tuple[int, int]:
    """The year and the month (1 to 12) of a day, by the Gregorian calendar.

    Years are counted from March here, so that the leap day is the last day of a year; 400 years have 146,097 days.
    """
    era, rest = divmod(day + 719_468, 146_097)
    year = (rest - rest // 1_460 + rest // 36_524 - rest // 146_096) // 365
    day_of_year = rest - (365 * year + year // 4 - year // 100)
    month = (5 * day_of_year + 2) // 153
    return era * 400 + year + (month >= 10), month + 3 if month < 10 else month - 9


def _day_of(year: int, month: int) -> int:
    """The number of the first day of a month."""
    year -= month <= 2
    era, of_era = divmod(year, 400)
    day_of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + day_of_year - 719_468
