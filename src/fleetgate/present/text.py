"""Durations, numbers, money and lists as text."""

from __future__ import annotations

from fleetgate.core.usage import ESTIMATE, Usage

_MOST_NAMED = 8
_UNITS = ((10**9, "G"), (10**6, "M"), (10**3, "k"))


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


def author(by: str) -> str:
    """The user and host of a change's author, without the process: `root@vm`."""
    return by.partition(" pid ")[0]


def count(number: int, one: str, many: str = "") -> str:
    """`1 slot`, `2 slots`."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def number_text(number: int) -> str:
    """`950`, `3.2k`, `41k`, `3.2M`: two digits at least, and never rounded up."""
    for size, unit in _UNITS:
        if number >= size:
            tenths = number * 10 // size
            return f"{tenths // 10}.{tenths % 10}{unit}" if tenths < 100 and tenths % 10 else f"{tenths // 10}{unit}"
    return str(number)


def dollars_text(millionths: int) -> str:
    """`$0`, `$0.0042`, `$0.31`, `$41.20`, `$12,345`: less than a cent to two digits."""
    if not millionths:
        return "$0"
    if millionths < 9_950:
        digits = min(8 - len(str(millionths)), 6)
        return f"${millionths / 1_000_000:.{digits}f}"
    cents = (millionths + 5_000) // 10_000
    return f"${cents // 100}.{cents % 100:02}" if cents < 100_000 else f"${(cents + 50) // 100:,}"


def spent_text(usage: Usage) -> str:
    """`41k in, 3.2k out, $0.31`; what is only estimated has a `~` before it. A cost that is not known is left out."""
    mark = "~" if usage.source == ESTIMATE else ""
    given = usage.input + usage.cache_read + usage.cache_write
    parts = [f"{mark}{number_text(given)} in", f"{mark}{number_text(usage.output)} out"]
    if usage.cost is not None:
        parts.append(f"{mark}{dollars_text(usage.cost)}")
    return ", ".join(parts)


def spent_cells(usage: Usage | None) -> list[str]:
    """Tokens and cost for a table; "" where they are not known."""
    if usage is None:
        return ["", ""]
    mark = "~" if usage.source == ESTIMATE else ""
    return [f"{mark}{number_text(usage.tokens)}", "" if usage.cost is None else f"{mark}{dollars_text(usage.cost)}"]


def amount_text(unit: str, amount: int) -> str:
    """An amount of a unit that budgets count: `$0.31`, `41k output tokens`, `3 calls`."""
    if unit == "usd":
        return f"-{dollars_text(-amount)}" if amount < 0 else dollars_text(amount)
    text = f"-{number_text(-amount)}" if amount < 0 else number_text(amount)
    return f"{text} {unit if unit in ('calls', 'tokens') else f'{unit} tokens'}"


def place(position: int, of: int, pool: str) -> str:
    """`2 of 5 for host:vm`: where in the queue."""
    if not of:
        return str(position)
    return f"{position} of {of} for {pool}" if pool else f"{position} of {of}"


def some(names: list[str]) -> str:
    """A list for a sentence, cut when it is long."""
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
