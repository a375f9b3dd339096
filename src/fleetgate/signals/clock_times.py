"""Times on a clock or a calendar, as people write them ("4:20pm (Asia/Tbilisi)"), in epoch milliseconds.

The rules: a time of day that has passed means tomorrow; a date without a year means the year nearest to now; a time
that a clock skips or shows twice (DST) means the later of its two readings, since a call that comes too early is
refused again. For an unknown zone the local one is used; so it is on a machine without time-zone data (minimal
containers: `pip install tzdata`).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")

# `Apr 23 at 4pm (America/Recife)`, `Apr 28th, 2026 10:03 PM`, `2026-05-01 at 00:00 UTC`, `Thu 9am`, `4:20pm`.
MOMENT = (
    rf"(?:(?:(?P<month>{'|'.join(_MONTHS)})[a-z]{{0,6}}\.?\s+(?P<day>[0-9]{{1,2}})(?:st|nd|rd|th)?(?:,?\s+(?P<year>20[0-9]{{2}}))?"
    r"|(?P<iso>20[0-9]{2}-[0-9]{2}-[0-9]{2})"
    rf"|(?P<weekday>{'|'.join(_DAYS)})[a-z]{{0,6}}|(?P<tomorrow>tomorrow)|today)\b"
    r"(?:,?\s+|\s*,\s*)?(?:at\s+)?)?"
    r"(?:(?P<hour>[0-9]{1,2})(?::(?P<minute>[0-9]{2}))?(?::(?P<second>[0-9]{2}))?(?![0-9:])(?:\s*(?P<half>[ap])\.?m\b)?)?"
    r"\.?(?:\s*\(\s*(?P<zone>[a-z][a-z0-9_+/:-]{0,40})\s*\)|\s+(?P<utc>utc|gmt)\b)?"
)
_OFFSET = re.compile(r"(?:UTC|GMT)([+-])([0-9]{1,2})(?::?([0-9]{2}))?", re.IGNORECASE)


def moment_ms(found: re.Match[str], now_wall_ms: int, tz: tzinfo | None) -> int | None:
    """Epoch ms of a match of MOMENT; None when it names no time (`resets 3`), or none that exists (`13pm`)."""
    part = found.groupdict()
    clock = _clock(part)
    if clock is None:
        return None
    zone = zone_named(part["zone"] or part["utc"], UTC if part["iso"] else tz)
    try:
        now = datetime.fromtimestamp(now_wall_ms / 1000, zone)
        if part["month"]:
            return _on_a_date(part, clock, now, now_wall_ms)
        if part["iso"]:
            return _later_ms(datetime.fromisoformat(part["iso"]), clock, zone)
        return _on_a_day(part, clock, now, now_wall_ms)
    except (ValueError, OverflowError, OSError):  # no such day, or beyond what calendars hold
        return None


def next_midnight_ms(zone_name: str, hours: int, now_wall_ms: int) -> int | None:
    """The next midnight of a zone; `hours` east of UTC where there is no time-zone data."""
    zone = zone_named(zone_name, timezone(timedelta(hours=hours)))
    try:
        return _later_ms(datetime.fromtimestamp(now_wall_ms / 1000, zone) + timedelta(days=1), (0, 0, 0), zone)
    except (ValueError, OverflowError, OSError):
        return None


def zone_named(name: str | None, otherwise: tzinfo | None) -> tzinfo | None:
    """The zone of that name; where it is not known, `otherwise` (None is the local zone)."""
    if not name:
        return otherwise
    if name.upper() in ("UTC", "GMT", "Z"):
        return UTC
    if offset := _OFFSET.fullmatch(name):
        sign, hours, minutes = offset.groups()
        east = timedelta(hours=int(hours), minutes=int(minutes or 0))
        return timezone(-east if sign == "-" else east) if east < timedelta(hours=24) else otherwise
    try:
        from zoneinfo import ZoneInfo

        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, ImportError):
        return otherwise


def _clock(part: dict[str, str | None]) -> tuple[int, int, int] | None:
    """Hour, minute, second. A bare hour is only a time with am or pm, a missing one only midnight with a date."""
    if part["hour"] is None:
        return (0, 0, 0) if part["month"] or part["iso"] else None
    hour, minute, second = int(part["hour"]), int(part["minute"] or 0), int(part["second"] or 0)
    if half := part["half"]:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if half in "pP" else 0)
    elif part["minute"] is None:
        return None
    return (hour, minute, second) if hour < 24 and minute < 60 and second < 60 else None


def _on_a_day(part: dict[str, str | None], clock: tuple[int, int, int], now: datetime, now_wall_ms: int) -> int:
    """Today, unless another day is named or the time has passed. A minute that is not over is waited out."""
    weekday = part["weekday"]
    days = (_DAYS.index(weekday.lower()) - now.weekday()) % 7 if weekday else 1 if part["tomorrow"] else 0
    at = _later_ms(now + timedelta(days=days), clock, now.tzinfo)
    if at >= now_wall_ms:
        return at
    if at + 60_000 > now_wall_ms:
        return at + 60_000
    return _later_ms(now + timedelta(days=7 if weekday else 1), clock, now.tzinfo)


def _on_a_date(part: dict[str, str | None], clock: tuple[int, int, int], now: datetime, now_wall_ms: int) -> int | None:
    month, day = _MONTHS.index((part["month"] or "").lower()[:3]) + 1, int(part["day"] or 0)
    years = (int(part["year"]),) if part["year"] else (now.year - 1, now.year, now.year + 1)
    times = []
    for year in years:
        try:
            times.append(_later_ms(datetime(year, month, day, tzinfo=UTC), clock, now.tzinfo))
        except ValueError:  # 29 February
            continue
    return min(times, key=lambda at: abs(at - now_wall_ms), default=None)


def _later_ms(day: datetime, clock: tuple[int, int, int], zone: tzinfo | None) -> int:
    """That time of that day in the zone (None: the local one). In a gap fold 0 reads later, in a fold fold 1 does."""
    hour, minute, second = clock
    shown = day.replace(hour=hour, minute=minute, second=second, microsecond=0, tzinfo=zone)
    return max(round(shown.replace(fold=fold).timestamp() * 1000) for fold in (0, 1))
