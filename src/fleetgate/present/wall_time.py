"""Wall time, read and written: RFC 3339 in UTC."""

from __future__ import annotations

from functools import lru_cache
from time import gmtime, localtime, strftime, time
from typing import TYPE_CHECKING

from fleetgate.config.units import parse_duration_ms
from fleetgate.core.errors import BadRequest
from fleetgate.core.model_names import shown

if TYPE_CHECKING:
    from datetime import tzinfo

_DAYS = {"today": 0, "yesterday": 1}
_FAR_MS = 10**14  # beyond the year 5000: a pause without an end
_LEAST_EPOCH_MS = 10**11  # a smaller number is of seconds: until the year 5138
_VALID_SINCE = "valid is RFC 3339 (2026-01-31T12:00:00Z), epoch seconds, epoch milliseconds, or an age like 10m"


@lru_cache(1024)  # what is decided together has the same times
def utc(wall_ms: int) -> str | None:
    """RFC 3339 with milliseconds, in UTC; None for a time without end."""
    if wall_ms > _FAR_MS:
        return None
    return f"{_second(wall_ms // 1000)}.{wall_ms % 1000:03}Z"


@lru_cache(1024)
def _second(wall_s: int) -> str:
    t = gmtime(wall_s)
    return f"{t.tm_year:04}-{t.tm_mon:02}-{t.tm_mday:02}T{t.tm_hour:02}:{t.tm_min:02}:{t.tm_sec:02}"


def local_and_utc(wall_ms: int) -> str:
    """`2026-01-31 13:00 CET (2026-01-31 12:00 UTC)`, to the nearest minute."""
    minute_s = (wall_ms + 30_000) // 60_000 * 60
    here, there = (strftime("%Y-%m-%d %H:%M %Z", moment) for moment in (localtime(minute_s), gmtime(minute_s)))
    there = there.replace("GMT", "UTC")
    return here if here == there else f"{here} ({there})"


def parse_since_ms(text: str, what: str = "--since", zone: tzinfo | None = None) -> int:
    """Wall time in ms: ISO 8601, epoch seconds, epoch milliseconds (from 10^11 on), or an age such as `10m`.

    A date without a zone is of `zone`; None: the local one.
    """
    try:
        number = float(text)
    except ValueError:
        return _age_or_date(text, what, zone)
    if not 0 < number < _FAR_MS:
        raise BadRequest(f"{what} {shown(text)}: not a time; {_VALID_SINCE}")
    return round(number if number >= _LEAST_EPOCH_MS else number * 1000)


def parse_moment_ms(text: str, what: str, now_ms: int, zone: tzinfo | None = None) -> int:
    """Wall time in ms: as `parse_since_ms` reads it, or `today` and `yesterday`, which begin at midnight."""
    days = _DAYS.get(text.strip().lower())
    if days is None:
        try:
            return parse_since_ms(text, what, zone)
        except BadRequest as error:
            raise BadRequest(f"{error}; or a date (2026-01-31), today or yesterday") from None
    from datetime import datetime, timedelta

    day = datetime.fromtimestamp(now_ms / 1000, zone).date() - timedelta(days)
    return int(datetime(day.year, day.month, day.day, tzinfo=zone).timestamp() * 1000)


def _age_or_date(text: str, what: str, zone: tzinfo | None) -> int:
    try:
        return int(time() * 1000) - parse_duration_ms(text)
    except ValueError:
        pass
    from datetime import datetime

    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None and zone is not None:
            moment = moment.replace(tzinfo=zone)
        return round(moment.timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise BadRequest(f"{what} {shown(text)}: {_VALID_SINCE}") from None


def parse_until_ms(text: str, what: str = "--until") -> int:
    """Wall time in ms of a moment to come: `18:00` (the next one), a duration such as `2h`, or ISO 8601."""
    from datetime import datetime, timedelta

    now = datetime.now().astimezone()
    try:
        return round(now.timestamp() * 1000) + parse_duration_ms(text)
    except ValueError:
        pass
    try:
        if len(text) == 5 and text[2] == ":":
            clock = datetime.strptime(text, "%H:%M").time()  # noqa: DTZ007 - only the time of the day is used
            moment = datetime.combine(now.date(), clock).astimezone()
            if moment <= now:
                moment = datetime.combine(now.date() + timedelta(days=1), clock).astimezone()
        else:
            moment = datetime.fromisoformat(text).astimezone()
        return round(moment.timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        valid = "valid is a time such as 18:00, a duration such as 2h, or a date and time such as 2026-12-24T18:00"
        raise BadRequest(f"{what} {shown(text)}: {valid}") from None
