"""Plan windows as providers and agents report them: response headers, Claude Code's events and status line, Codex's
counts (rule W1).

All of them name a window by its length, each in its own way: `five_hour`, `unified-5h`, 300 minutes. Here it is `5h`,
with the family behind it where it counts only some models: `7d_opus`. Numbers that cannot be such make no reading.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fleetgate.core.plans.reading import DAY_MS, FULL, HOUR_MS, PlanReading
from fleetgate.signals.wait_times import wait_from_epoch, wait_from_reset, wait_from_seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    Parts = tuple[str, int]  # the name of a window, and its length

_UNIFIED = re.compile(r"anthropic-ratelimit-unified-(?P<window>[0-9a-z_]{1,20})-utilization")
_NAME = re.compile(r"(?P<number>[0-9]{1,3})(?P<unit>[mhdw])(?P<family>_[a-z0-9]{1,12})?")
_WORDS = (("five_hour", "5h"), ("seven_day", "7d"), ("one_day", "1d"), ("thirty_day", "30d"))
_UNITS_MS = {"m": 60_000, "h": HOUR_MS, "d": DAY_MS, "w": 7 * DAY_MS}
_NUMBER = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,12})?")
_MINUTES_OFF = 2  # Codex says 299 minutes for five hours


def windows_in_headers(headers: Mapping[str, str], now_wall_ms: int, model: str) -> tuple[PlanReading, ...]:
    """The windows that a response reports. The names of `headers` are in lower case."""
    found = []
    for name, value in headers.items():
        match = _UNIFIED.fullmatch(name)
        if match and _NUMBER.fullmatch(value):
            reset = headers.get(f"anthropic-ratelimit-unified-{match['window']}-reset", "")
            found.append(_reading(match["window"], float(value), _wait(reset, now_wall_ms), model))
    for name in ("primary", "secondary"):
        percent, minutes = (headers.get(f"x-codex-{name}-{part}", "") for part in ("used-percent", "window-minutes"))
        if _NUMBER.fullmatch(percent) and _NUMBER.fullmatch(minutes):
            wait_ms = _wait(headers.get(f"x-codex-{name}-reset-at", ""), now_wall_ms)
            if wait_ms is None:
                wait_ms = wait_from_seconds(headers.get(f"x-codex-{name}-reset-after-seconds", ""))
            found.append(_reading(_of_minutes(float(minutes)), float(percent) / 100, wait_ms, model))
    return tuple(each for each in found if each is not None)


def window_in_event(info: Mapping[str, Any], now_wall_ms: int, model: str) -> PlanReading | None:
    """The window of Claude Code's `rate_limit_event`: a part that is used, or that it is used up."""
    name, used = info.get("rateLimitType"), _number(info.get("utilization"))
    if info.get("status") == "rejected" and info.get("isUsingOverage") is not True:
        used = max(used or 0.0, 1.0)
    if not isinstance(name, str) or used is None:
        return None
    return _reading(name, used, _wait(info.get("resetsAt"), now_wall_ms), model)


def windows_in_statusline(document: Any, now_wall_ms: int) -> tuple[PlanReading, ...]:
    """The windows in the JSON that Claude Code gives to a status line. How old they are is not known."""
    limits = document.get("rate_limits") if isinstance(document, dict) else None
    found = []
    for name, said in limits.items() if isinstance(limits, dict) else ():
        percent = _number(said.get("used_percentage")) if isinstance(said, dict) else None
        if isinstance(name, str) and percent is not None:
            wait_ms = _wait(said.get("resets_at"), now_wall_ms)
            found.append(_reading(name, percent / 100, wait_ms, "", is_floor=True))
    return tuple(each for each in found if each is not None)


def windows_in_token_count(limits: Any, seen_wall_ms: int, now_wall_ms: int) -> tuple[PlanReading, ...]:
    """The windows in a `token_count` of Codex, which was written at `seen_wall_ms`.

    One that was written in the future was written before the wall clock was set back, so it is not old.
    """
    found = []
    age_ms = max(now_wall_ms - seen_wall_ms, 0)
    for name in ("primary", "secondary"):
        said = limits.get(name) if isinstance(limits, dict) else None
        percent, minutes = (
            _number(said.get(part)) if isinstance(said, dict) else None for part in ("used_percent", "window_minutes")
        )
        if percent is not None and minutes is not None and isinstance(said, dict):
            wait_ms = _wait(said.get("resets_at"), now_wall_ms - age_ms)
            seconds = _number(said.get("resets_in_seconds"))
            if wait_ms is None and seconds is not None:
                wait_ms = int(seconds * 1000)
            found.append(_reading(_of_minutes(minutes), percent / 100, wait_ms, "", age_ms=age_ms))
    return tuple(each for each in found if each is not None)


def _reading(
    name: str, used: float, wait_ms: int | None, model: str, *, age_ms: int = 0, is_floor: bool = False
) -> PlanReading | None:
    """One reading. `wait_ms` until the reset: None is not known; 0 is a reset that has passed, and then it is none."""
    known = _known(name)
    if known is None or not 0 <= used <= 100 or wait_ms == 0:
        return None
    from fleetgate.signals.provider_vocabulary import family_of_window

    window, length_ms = known
    return PlanReading(
        window,
        round(used * FULL),
        wait_ms or 0,
        length_ms,
        family_of_window(name, model),
        age_ms,
        is_floor,
    )


def _known(name: str) -> Parts | None:
    """A window by the name that is used here; None for what is none, such as `overage`."""
    for word, short in _WORDS:
        if name.startswith(word):
            name = short + name[len(word) :]
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    return name, int(match["number"]) * _UNITS_MS[match["unit"]]


def _of_minutes(minutes: float) -> str:
    """The name of a window of so many minutes."""
    whole = round(minutes)
    for unit, length in (("d", 1440), ("h", 60)):
        number = round(whole / length)
        if number and abs(number * length - whole) <= _MINUTES_OFF:
            return f"{number}{unit}"
    return f"{whole}m"


def _wait(value: Any, now_wall_ms: int) -> int | None:
    """Until a moment that is given as epoch seconds, or as text; 0 for one in the past, None where none is given."""
    if isinstance(value, bool) or not isinstance(value, int | float | str) or value == "":
        return None
    found = wait_from_reset(value, now_wall_ms) if isinstance(value, str) else wait_from_epoch(value, now_wall_ms)
    return found or 0


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9 else None
