"""Durations, numbers and lists as text."""

from __future__ import annotations

_MOST_NAMED = 8


def printable(text: str) -> str:
    """A text from somewhere as one line that cannot move the cursor: what does not print is a blank."""
    return text if text.isprintable() else "".join(char if char.isprintable() else " " for char in text)


def printable_lines(text: str) -> str:
    """The same for a text of several lines, which stay lines."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


def printable_json(text: str) -> str:
    """JSON that cannot move a cursor or turn text around: what does not print is escaped, so it stays the same data."""
    return text if text.isprintable() else "".join(char if char.isprintable() else _escape(char) for char in text)


def _escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def span(ms: int) -> str:
    """A duration as people say it: `28s`, `3m`, `2h 5m`, `4d 3h`."""
    seconds = max(ms, 0) // 1000
    if seconds < 60:
        return f"{seconds}s"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86_400
    if minutes < 60:
        return f"{minutes}m"
    if hours < 24:
        return f"{hours}h {minutes % 60}m" if minutes % 60 else f"{hours}h"
    return f"{days}d {hours % 24}h" if hours % 24 else f"{days}d"


def spans(low_ms: int, high_ms: int) -> str:
    """A range of durations: `2m`, `40s–3m`."""
    low, high = span(low_ms), span(high_ms)
    return low if low == high else f"{low}–{high}"


def count(number: int, one: str, many: str = "") -> str:
    """`1 slot`, `2 slots`."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def place(position: int, of: int, pool: str) -> str:
    """`2 of 5 for host:vm`: where in the queue."""
    if not of:
        return str(position)
    return f"{position} of {of} for {pool}" if pool else f"{position} of {of}"


def some(names: list[str]) -> str:
    """A list for a sentence, cut when it is long."""
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
