"""Durations, sizes, counts and dollars as people write them, exact: no floating point in between, so `1.1s` is
1100 ms.

A duration or size that is not zero never becomes zero: a fraction of the unit is rounded up.
"""

from __future__ import annotations

import re

from fleetgate.config.errors import BadValue
from fleetgate.core.model_names import shown

# From the longest to the shortest: the parts of a duration must come in this order.
_DURATIONS = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_SIZES = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _SIZES |= {_letter: 1024**_power, f"{_letter}ib": 1024**_power, f"{_letter}b": 1000**_power}

_COUNTS = {"": 1, "k": 1000, "m": 10**6, "g": 10**9, "b": 10**9}

_NUMBER_AND_UNIT = r"([0-9]+)(?:\.([0-9]+))? *([a-zA-Z]*) *"

LONGEST_MS = 36_500 * 86_400_000
LARGEST_BYTES = 1024**5
LARGEST_COUNT = 10**15
MOST_DOLLARS = 10**9

DURATION_HELP = (
    'a duration is a number of seconds, or text like "350ms", "10m", "1h30m", "24h" or "2d", up to 100 years'
)
COUNT_HELP = 'a whole number from 1, or text like "400k" or "2M"'
DOLLARS_HELP = "an amount in dollars with at most 6 decimals, for example 20 or 0.05"
SIZE_HELP = (
    'a size is a number of bytes, or text like "512MiB", "6GiB" or "1.5G" (G is GiB, GB is 1000 MB), up to 1 PiB'
)


def parse_duration_ms(value: object) -> int:
    """Milliseconds of "350ms", "10m", "1h30m", "1.5s"; a bare number is seconds. BadValue says what is valid."""
    parts = _parts(value)
    if parts is None or (len(parts) > 1 and any(not unit for _, _, unit in parts)):
        raise _bad("duration", value, DURATION_HELP)
    total, last = 0, 1 << 62
    for digits, decimals, unit in parts:
        unit_ms = _DURATIONS.get(unit or "s", last)
        if unit_ms >= last:  # an unknown unit, or one that comes twice or in the wrong order
            raise _bad("duration", value, DURATION_HELP)
        total += -(-digits * unit_ms // 10**decimals)
        last = unit_ms
    if total > LONGEST_MS:
        raise _bad("duration", value, DURATION_HELP)
    return total


def format_duration(ms: int, parts: int = 4) -> str:
    """For people: "1h 30m", "350ms", "1.5s". Exact, unless `parts` asks for the largest few units only."""
    if ms < 1000:
        return f"{ms}ms" if ms else "0s"
    words = []
    for unit in ("d", "h", "m"):
        count, ms = divmod(ms, _DURATIONS[unit])
        if count:
            words.append(f"{count}{unit}")
    if ms:
        fraction = f"{ms % 1000:03d}".rstrip("0") if parts >= 4 or not words else ""
        words.append(f"{ms // 1000}.{fraction}s" if fraction else f"{ms // 1000}s")
    return " ".join(words[:parts])


def parse_size(value: object) -> int:
    """Bytes of "6GiB", "512MiB", "1.5G"; a bare number is bytes. BadValue says what is valid."""
    parts = _parts(value)
    factor = _SIZES.get(parts[0][2].lower()) if parts is not None and len(parts) == 1 else None
    if parts is None or factor is None:
        raise _bad("size", value, SIZE_HELP)
    digits, decimals, _ = parts[0]
    total: int = -(-digits * factor // 10**decimals)
    if total > LARGEST_BYTES:
        raise _bad("size", value, SIZE_HELP)
    return total


def format_size(size: int) -> str:
    """For people: "6GiB", "1.5GiB", "700B"."""
    for letter, power in (("T", 4), ("G", 3), ("M", 2), ("K", 1)):
        if size >= 1024**power:
            tenths = (size * 10 + 1024**power // 2) // 1024**power
            return f"{tenths // 10}{letter}iB" if tenths % 10 == 0 else f"{tenths / 10:.1f}{letter}iB"
    return f"{size}B"


def parse_count(value: object) -> int:
    """A whole number from 1: 400_000, "400k", "2M". BadValue says what is valid."""
    if isinstance(value, str):
        value = value.replace("_", "")
    parts = _parts(value)
    factor = _COUNTS.get(parts[0][2].lower()) if parts is not None and len(parts) == 1 else None
    if parts is None or factor is None:
        raise _bad("number", value, f"valid is {COUNT_HELP}")
    digits, decimals, _ = parts[0]
    scale: int = 10**decimals
    count, rest = divmod(digits * factor, scale)
    if rest or not 1 <= count <= LARGEST_COUNT:
        raise _bad("number", value, f"valid is {COUNT_HELP}")
    return count


def parse_dollars(value: object) -> int:
    """Millionths of a dollar, from 0: 20, 0.05, "$1.50". BadValue says what is valid."""
    if isinstance(value, float):
        value = repr(value)  # the shortest text that is this number, as it was most likely written
        if "e-" in value:
            from decimal import Decimal

            value = f"{Decimal(value):f}"
    if isinstance(value, str):
        value = value.replace("_", "").removeprefix("$")
    parts = _parts(value)
    if parts is None or len(parts) != 1 or parts[0][2] or parts[0][1] > 6:
        raise _bad("sum of money", value, f"valid is {DOLLARS_HELP}")
    digits, decimals, _ = parts[0]
    millionths: int = digits * 10 ** (6 - decimals)
    if millionths > MOST_DOLLARS * 10**6:
        raise _bad("sum of money", value, f"valid is at most {MOST_DOLLARS} dollars")
    return millionths


def format_dollars(millionths: int) -> str:
    """For people: "$20.00", "$0.31", "$0.0042". Exact: cents, or as many decimals as it takes."""
    sign, whole, rest = "-" if millionths < 0 else "", abs(millionths) // 10**6, abs(millionths) % 10**6
    decimals = f"{rest:06d}".rstrip("0").ljust(2, "0")
    return f"{sign}${whole:,}.{decimals}"


def found(value: object) -> str:
    """A value of a TOML document as a message shows it: short, and never the inside of a table."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, int):
        return str(value) if abs(value) < 10**20 else "a huge number"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, (dict, list, tuple)):
        return "a table" if isinstance(value, dict) else "an array"
    return "a date or time"


def _parts(value: object) -> list[tuple[int, int, str]] | None:
    """The numbers and units of a value, each number as its digits and how many of them are decimals."""
    if isinstance(value, float) and 0 <= value <= 1e18:
        value = f"{value:.9f}".rstrip("0").rstrip(".")
    elif isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 10**18:
        value = str(value)
    if not isinstance(value, str) or len(value) > 60:
        return None
    parts, text, at = [], value.strip(" "), 0
    while at < len(text):
        part = re.compile(_NUMBER_AND_UNIT).match(text, at)
        if part is None:
            return None
        whole, decimals, unit = part.groups("")
        parts.append((int(whole + decimals), len(decimals), unit))
        at = part.end()
    return parts or None


def _bad(what: str, value: object, help_text: str) -> BadValue:
    return BadValue(f"not a {what}: {found(value)}; {help_text}")
