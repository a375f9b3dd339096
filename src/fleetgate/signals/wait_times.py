"""Waits in headers and in words (rule S3): every way in which a provider or an agent says "not before then".

Each function gives a wait in milliseconds from now, or None when the text names none, and none of them raises, whatever
the text. A moment that has just passed is a wait of 0. One that passed long ago says nothing about the future, and a
wait of more than 35 days is nonsense: None. Clocks and calendars in words are in `clock_times`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo

from fleetgate.signals.clock_times import MOMENT, moment_ms

MAX_WAIT_MS = 35 * 86_400_000
_LATE_MS = 5 * 60_000  # our clocks and theirs differ, and messages take their time
_TEXT_CHARS = 65_536

_UNITS_MS = {"ms": 1, "mil": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_UNIT = r"(?:milliseconds?|ms|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d|weeks?|w)(?![a-z])"
_PART = rf"[0-9]{{1,12}}(?:\.[0-9]{{1,12}})?\s*{_UNIT}"
_DURATION = rf"{_PART}(?:(?:\s*,\s*(?:and\s+)?|\s+and\s+|\s*){_PART}){{0,5}}"

_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{0,12})?|\.[0-9]{1,12}")
_RFC3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?\s?(?:Z|[+-][0-9]{2}:?[0-9]{2})?"
)
_HTTP_DATE = re.compile(
    r"(?:[a-z]{3,9},?\s+)?(?:([0-9]{1,2})[\s-]([a-z]{3})[\s-]([0-9]{4}|[0-9]{2})\s+([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\s+(?:GMT|UTC|Z|[+-]0000))?"
    r"|([a-z]{3})\s+([0-9]{1,2})\s+([0-9]{2}:[0-9]{2}:[0-9]{2})\s+([0-9]{4}))",
    re.IGNORECASE,
)
_MONTHS = "janfebmaraprmayjunjulaugsepoctnovdec"

# --- one value -------------------------------------------------------------------------------------------------


def bounded(wait_ms: int) -> int | None:
    """The wait, unless it is negative or nonsense."""
    return wait_ms if 0 <= wait_ms <= MAX_WAIT_MS else None


def wait_until(at_ms: int, now_wall_ms: int) -> int | None:
    """From now to a moment in epoch ms; 0 for one that has just passed, None for one long ago or far off."""
    wait_ms = at_ms - now_wall_ms
    return 0 if -_LATE_MS <= wait_ms < 0 else bounded(wait_ms)


def wait_from_seconds(text: str, unit_ms: int = 1000) -> int | None:
    """`30`, `1.5`: a number of seconds (or of another unit), rounded up to a millisecond."""
    text = text.strip()
    return bounded(_times(text, unit_ms)) if _NUMBER.fullmatch(text) else None


def wait_from_duration(text: str) -> int | None:
    """`12ms`, `1s`, `6m0s`, `1h2m`, `45.837906927s`, `2 days 3 hours`."""
    text = text.strip()
    if not re.fullmatch(_DURATION, text, re.IGNORECASE):
        return None
    total = 0
    for number, unit in re.findall(r"([0-9.]+)\s*([a-z]+)", text, re.IGNORECASE):
        name = unit.lower()
        total += _times(number, _UNITS_MS[name if name == "ms" else "mil" if name.startswith("mil") else name[0]])
    return bounded(total)


def wait_from_epoch(value: str | float, now_wall_ms: int) -> int | None:
    """Until an epoch time, in seconds or milliseconds by its size."""
    text = str(value).strip()
    if not _NUMBER.fullmatch(text):
        return None
    number = _times(text, 1)
    if 10**9 <= number < 10**11:
        return wait_until(_times(text, 1000), now_wall_ms)
    return wait_until(number, now_wall_ms) if 10**12 <= number < 10**14 else None


def wait_from_rfc3339(text: str, now_wall_ms: int) -> int | None:
    """Until `2026-01-31T12:00:00Z`; without an offset it is UTC."""
    text = text.strip().upper()
    if not _RFC3339.fullmatch(text):
        return None
    try:
        moment = datetime.fromisoformat(text.replace(" Z", "Z"))
        return wait_until(_stamp_ms(moment if moment.tzinfo else moment.replace(tzinfo=UTC)), now_wall_ms)
    except (ValueError, OverflowError):
        return None


def wait_from_http_date(text: str, now_wall_ms: int) -> int | None:
    """Until `Wed, 21 Oct 2026 07:28:00 GMT`, or one of the two older shapes of RFC 9110."""
    found = _HTTP_DATE.fullmatch(text.strip())
    if not found:
        return None
    day, month, year, clock = found.group(1, 2, 3, 4) if found[1] else found.group(6, 5, 8, 7)
    index = _MONTHS.find(month.lower())
    years = int(year) if len(year) == 4 else 2000 + int(year)
    hour, minute, second = (int(part) for part in clock.split(":"))
    try:
        moment = datetime(years, index // 3 + 1, int(day), hour, minute, second, tzinfo=UTC)
        return wait_until(_stamp_ms(moment), now_wall_ms) if index >= 0 and index % 3 == 0 else None
    except (ValueError, OverflowError):
        return None


def wait_from_reset(text: str, now_wall_ms: int) -> int | None:
    """A reset header in any of its shapes: a duration, an RFC 3339 or HTTP date, an epoch, a number of seconds."""
    if _NUMBER.fullmatch(text.strip()):
        return wait_from_epoch(text, now_wall_ms) if _times(text.strip(), 1) >= 10**9 else wait_from_seconds(text)
    for wait_ms in (
        wait_from_duration(text),
        wait_from_rfc3339(text, now_wall_ms),
        wait_from_http_date(text, now_wall_ms),
    ):
        if wait_ms is not None:
            return wait_ms
    return None


def _times(number: str, unit_ms: int) -> int:
    """Exact: 0.1 s is 100 ms and nothing else; a part of a millisecond counts as one."""
    whole, _dot, decimals = number.partition(".")
    finer = int("1" + "0" * len(decimals))
    return int(whole or 0) * unit_ms - (-int(decimals or 0) * unit_ms // finer)


def _stamp_ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


# --- a sentence ------------------------------------------------------------------------------------------------

_NAMES_A_MOMENT = (
    r"\b(?:resets?|resetting|try\s+again|retry|available|regain\s+access|renews?|refreshes|until)\b"
    r"(?:\s+again)?[\s:]{1,4}(?:(?:at|on|by|after)\s+)?"
)


def find_wait(text: str, now_wall_ms: int, tz: tzinfo | None = None) -> int | None:
    """The wait that a message names; `tz` is the zone of a time without one (None: the local zone).

    A moment goes before a duration: "resets 4:20pm" is the provider's, "Retrying in 1 seconds" only the agent's. Of
    several of one sort, the last that can be read counts.
    """
    text = text[:_TEXT_CHARS]
    for pattern, read in _SENTENCES:
        wait_ms = None
        for found in re.finditer(pattern, text, re.IGNORECASE):
            read_ms = read(found, now_wall_ms, tz)
            wait_ms = wait_ms if read_ms is None else read_ms
        if wait_ms is not None:
            return wait_ms
    return None


def _at_a_stamp(found: re.Match[str], now_wall_ms: int, _tz: tzinfo | None) -> int | None:
    return wait_from_reset(found[1], now_wall_ms)


def _at_a_moment(found: re.Match[str], now_wall_ms: int, tz: tzinfo | None) -> int | None:
    at_ms = moment_ms(found, now_wall_ms, tz)
    return None if at_ms is None else wait_until(at_ms, now_wall_ms)


def _in_a_field(found: re.Match[str], now_wall_ms: int, _tz: tzinfo | None) -> int | None:
    if found[1].lower().endswith("ms"):
        return wait_from_seconds(found[2], unit_ms=1)
    return wait_from_reset(found[2], now_wall_ms)


def _in_a_while(found: re.Match[str], _now_wall_ms: int, _tz: tzinfo | None) -> int | None:
    return wait_from_duration(found[1])


# In the order in which they are believed. As text: they are compiled when the first message is read, not on import.
_SENTENCES: tuple[tuple[str, Callable[[re.Match[str], int, tzinfo | None], int | None]], ...] = (
    (r"\|\s*([0-9]{10}(?:[0-9]{3})?)\b", _at_a_stamp),
    (rf"{_NAMES_A_MOMENT}({_RFC3339.pattern}|[0-9]{{10}}(?:[0-9]{{3}})?\b)", _at_a_stamp),
    (_NAMES_A_MOMENT + MOMENT, _at_a_moment),
    # `"retryDelay": "45s"`, `retry-after: 30`, `"resets_at":1762952400`; also with its quotes escaped.
    (
        (
            r"\b(retry[-_]?after[-_]?ms|retry[-_]?after(?:[-_]?s(?:ec(?:ond)?s?)?)?|retry_?delay|resets?_?in_?seconds"
            r"|resets?_?at)[\"'\\]{0,4}\s{0,3}[:=]\s{0,3}[\"'\\]{0,4}([0-9][^\s\"'\\,;}\])]{0,40})"
        ),
        _in_a_field,
    ),
    (
        (
            r"\b(?:again|retry(?:ing)?|resets?|wait(?:ing)?|available)\b(?:[^.\n|]{0,40}?\b(?:in|after|for)\s+|\s+)"
            rf"(?:about\s+|approximately\s+|around\s+|~\s*)?({_DURATION})"
        ),
        _in_a_while,
    ),
)
