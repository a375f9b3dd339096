"""Waits in headers and in words (SPEC S3): every way in which a provider or an agent says "not before then".

Each function gives a wait in milliseconds from now, or None when the text names none, and none of them raises, whatever
the text. A moment that has just passed is a wait of 0. One that passed long ago says nothing about the future, and a
wait of more than 35 days is nonsense: None. Clocks and calendars in words are in `moments`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, tzinfo

from headgate.signals.moments import MOMENT, moment_ms

MAX_WAIT_MS = 35 * 86_400_000
_LATE_MS = 5 * 60_000  # our clocks and theirs differ, and messages take their time
_TEXT_CHARS = 65_536

_UNITS_MS = {"ms": 1, "mil": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_UNIT = r"(?:milliseconds?|ms|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d|weeks?|w)(?![a-z])"
_PART = rf"[0-9]{{1,12}}(?:\.[0-9]{{1,12}})?\s*{_UNIT}"
_DURATION = rf"{_PART}(?:(?:\s*,\s*(?:and\s+)?|\s+and\s+|\s*){_PART}){{0,5}}"

_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{0,12})?|\.[0-9]{1,12}")
_WHOLE_DURATION = re.compile(_DURATION, re.IGNORECASE)
_DURATION_PART = re.compile(r"([0-9.]+)\s*([a-z]+)", re.IGNORECASE)
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
    if not _WHOLE_DURATION.fullmatch(text):
        return None
    total = 0
    for number, unit in _DURATION_PART.findall(text):
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

_ABOUT = r"(?:about\s+|approximately\s+|around\s+|~\s*)?"
_EPOCH_AFTER_BAR = re.compile(r"\|\s*([0-9]{10}(?:[0-9]{3})?)\b")
_NAMES_A_MOMENT = (
    r"\b(?:resets?|resetting|try\s+again|retry|available|regain\s+access|renews?|refreshes|until)\b"
    r"(?:\s+again)?[\s:]{1,4}(?:(?:at|on|by|after)\s+)?"
)
_AT_A_STAMP = re.compile(rf"{_NAMES_A_MOMENT}({_RFC3339.pattern}|[0-9]{{10}}(?:[0-9]{{3}})?\b)", re.IGNORECASE)
_AT_A_MOMENT = re.compile(_NAMES_A_MOMENT + MOMENT, re.IGNORECASE)
_IN_A_WHILE = re.compile(
    r"\b(?:again|retry(?:ing)?|resets?|wait(?:ing)?|available)\b"
    rf"(?:[^.\n|]{{0,40}}?\b(?:in|after|for)\s+|\s+){_ABOUT}({_DURATION})",
    re.IGNORECASE,
)
# `"retryDelay": "45s"`, `retry-after: 30`, `"resets_at":1762952400`; also with its quotes escaped by JSON around it.
_FIELD = re.compile(
    r"\b(retry[-_]?after[-_]?ms|retry[-_]?after(?:[-_]?s(?:ec(?:ond)?s?)?)?|retry_?delay|resets?_?in_?seconds|resets?_?at)"
    r"[\"'\\]{0,4}\s{0,3}[:=]\s{0,3}[\"'\\]{0,4}([0-9][^\s\"'\\,;}\])]{0,40})",
    re.IGNORECASE,
)


def find_wait(text: str, now_wall_ms: int, tz: tzinfo | None = None) -> int | None:
    """The wait that a message names; `tz` is the zone of a time without one (None: the local zone).

    A moment goes before a duration: "resets 4:20pm" is the provider's, "Retrying in 1 seconds" only the agent's. Of
    several of one sort, the last that can be read counts.
    """
    text = text[:_TEXT_CHARS]
    for finder in (_after_a_bar, _at_a_stamp, _at_a_moment, _in_a_field, _in_a_while):
        wait_ms = finder(text, now_wall_ms, tz)
        if wait_ms is not None:
            return wait_ms
    return None


def _after_a_bar(text: str, now_wall_ms: int, _tz: tzinfo | None) -> int | None:
    return _last(wait_from_epoch(found[1], now_wall_ms) for found in _EPOCH_AFTER_BAR.finditer(text))


def _at_a_stamp(text: str, now_wall_ms: int, _tz: tzinfo | None) -> int | None:
    return _last(wait_from_reset(found[1], now_wall_ms) for found in _AT_A_STAMP.finditer(text))


def _at_a_moment(text: str, now_wall_ms: int, tz: tzinfo | None) -> int | None:
    moments = (moment_ms(found, now_wall_ms, tz) for found in _AT_A_MOMENT.finditer(text))
    return _last(None if at is None else wait_until(at, now_wall_ms) for at in moments)


def _in_a_field(text: str, now_wall_ms: int, _tz: tzinfo | None) -> int | None:
    return _last(_field_wait(found[1].lower(), found[2], now_wall_ms) for found in _FIELD.finditer(text))


def _in_a_while(text: str, _now_wall_ms: int, _tz: tzinfo | None) -> int | None:
    return _last(wait_from_duration(found[1]) for found in _IN_A_WHILE.finditer(text))


def _field_wait(name: str, value: str, now_wall_ms: int) -> int | None:
    if name.endswith("ms"):
        return wait_from_seconds(value, unit_ms=1)
    return wait_from_reset(value, now_wall_ms)


def _last(waits: Iterable[int | None]) -> int | None:
    found = None
    for wait_ms in waits:
        found = found if wait_ms is None else wait_ms
    return found
