"""The period of a usage report, and its hours and days in a time zone.

Usage is summed by the hour of the log's clock, which are hours of UTC. A period has whole hours: it begins with the
hour that its first moment is in, and ends before the hour that its last moment is in. Hours of UTC and days of a zone
like India's do not begin together: an hour counts for the day in which it ends.
"""

from __future__ import annotations

from datetime import datetime, tzinfo
from functools import lru_cache
from typing import NamedTuple

from fleetgate.config.settings import Settings
from fleetgate.core.budgets.usage_sums import HOUR_MS
from fleetgate.core.errors import BadRequest
from fleetgate.core.model_names import shown
from fleetgate.present.log_time import LogTimes
from fleetgate.present.wall_time import parse_moment_ms, utc

_SHIFT_MS = 900_000  # offsets of time zones are multiples of it: a clock that drifted is not off by so much
_MOST_HOURS = 10**6  # since 1970: until the year 2084


class UsagePeriod(NamedTuple):
    """The hours of a report: from `low` to before `high`. `shift_ms`: from hours of the log to wall time."""

    low: int
    high: int
    shift_ms: int
    now_ms: int  # wall time
    zone: tzinfo | None = None  # None: that of this machine

    def starting_at(self, hour: int) -> UsagePeriod:
        """The part of it from an hour on: its last hour at least."""
        return self._replace(low=min(hour, self.high - 1))

    @property
    def since(self) -> str:
        return utc(self._wall_ms(self.low)) or ""

    @property
    def until(self) -> str:
        """The end, or now where that is earlier."""
        return utc(min(self._wall_ms(self.high), self.now_ms)) or ""

    def day(self, hour: int) -> str:
        """The date in the zone when an hour ends: `2026-01-31`."""
        return _local(self._wall_ms(hour + 1) - 1000, self.zone).date().isoformat()

    def start(self, hour: int) -> str:
        """When an hour begins, with the offset of the zone, as it differs where clocks go back an hour."""
        return _local(self._wall_ms(hour), self.zone).isoformat()

    def end(self) -> str:
        """The end, or now where that is earlier, as `start` writes it."""
        return _local(min(self._wall_ms(self.high), self.now_ms) // 1000 * 1000, self.zone).isoformat()

    def _wall_ms(self, hour: int) -> int:
        return hour * HOUR_MS + self.shift_ms


def zone_of(settings: Settings) -> tzinfo | None:
    """The configured time zone; None: that of this machine."""
    if not settings.time_zone:
        return None
    from zoneinfo import ZoneInfo

    return ZoneInfo(settings.time_zone)


@lru_cache(1024)
def _local(wall_ms: int, zone: tzinfo | None) -> datetime:
    return datetime.fromtimestamp(wall_ms / 1000, zone) if zone else datetime.fromtimestamp(wall_ms / 1000).astimezone()


def parse_period(
    since: str, until: str, moments: LogTimes, zone: tzinfo | None = None, names: tuple[str, str] = ("since", "until")
) -> UsagePeriod:
    """The period between two moments as people write them; without `until`, up to now.

    `names`: what the two are called where they come from, for errors.
    """
    shift_ms = round(moments.offset_ms / _SHIFT_MS) * _SHIFT_MS
    now_ms = moments.now + moments.offset_ms
    current = (now_ms - shift_ms) // HOUR_MS
    low = max((parse_moment_ms(since, names[0], now_ms, zone) - shift_ms) // HOUR_MS, 0)
    high = current + 1
    if until:
        high = min((parse_moment_ms(until, names[1], now_ms, zone) - shift_ms) // HOUR_MS, _MOST_HOURS)
        if high <= low:
            raise BadRequest(
                f"{names[1]} {shown(until)} must be at least an hour after {names[0]} {shown(since)}: usage is summed "
                "by the hour"
            )
    elif low > current:
        raise BadRequest(f"{names[0]} {shown(since)} is in the future: valid is a time before now, such as 7d")
    return UsagePeriod(low, high, shift_ms, now_ms, zone)
