"""The time zone in which days, weeks and months of budgets begin, as the engine takes it: a list of transitions.

A zone that the config names is read from the time zone data of the system (or of the package `tzdata`, where it is
installed). Without a name it is the zone of this machine, as the C library knows it: from `TZ`, else /etc/localtime,
else UTC.
"""

from __future__ import annotations

import time
from functools import lru_cache

from fleetgate.config.errors import BadValue
from fleetgate.core.budgets.calendar import Zone
from fleetgate.core.model_names import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_DAY_S = 86_400
_STEP_S = 7 * _DAY_S  # no zone changes its offset twice within a week
_BEFORE_S, _AHEAD_S = 366 * _DAY_S, 10 * 366 * _DAY_S


def zone_of(name: str) -> Zone:
    """The zone with this name, or that of this machine for ""; for a year before now and ten years from now on."""
    return _zone(name, int(time.time()) // _STEP_S * _STEP_S)


@lru_cache(maxsize=4)
def _zone(name: str, now_s: int) -> Zone:
    offset_at = _named(name) if name else _local
    at, end = now_s - _BEFORE_S, now_s + _AHEAD_S
    offset = offset_at(at)
    moments, offsets = [at * 1000], [offset * 1000]
    while at < end:
        then = offset_at(at + _STEP_S)
        if then != offset:
            low, high = at, at + _STEP_S
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if offset_at(middle) == offset else (low, middle)
            moments.append(high * 1000)
            offsets.append(then * 1000)
        at, offset = at + _STEP_S, then
    return Zone(tuple(moments), tuple(offsets))


def _local(at: int) -> int:
    return time.localtime(at).tm_gmtoff


def _named(name: str) -> Callable[[int], int]:
    from datetime import datetime
    from zoneinfo import ZoneInfo

    zone = ZoneInfo(name)

    def offset_at(at: int) -> int:
        offset = datetime.fromtimestamp(at, zone).utcoffset()
        return round(offset.total_seconds()) if offset is not None else 0

    return offset_at


def check_time_zone(name: str) -> str:
    """The same name, if there is such a zone; BadValue suggests one that there is."""
    from zoneinfo import ZoneInfo, available_timezones

    try:
        ZoneInfo(name)
        return name
    except (ValueError, OSError, LookupError):  # not a name, a folder, not found
        pass
    known = available_timezones()
    if not known:
        raise BadValue(
            f"found {shown(name)}, but this machine has no time zone data: install the system's package tzdata, or "
            "`pip install tzdata` beside Fleetgate; or leave time_zone out to use the machine's own zone"
        )
    from difflib import get_close_matches

    names = {zone.rpartition("/")[2].lower(): zone for zone in sorted(known)} | {zone.lower(): zone for zone in known}
    near = get_close_matches(name.lower().replace(" ", "_"), list(names), n=1)
    meant = f"; did you mean {shown(names[near[0]])}?" if near else ""
    raise BadValue(f'found {shown(name)}{meant}; valid is the name of a time zone, for example "Europe/Berlin"')
