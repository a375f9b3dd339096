"""Tokens and money as people read them: `41k`, `3.2M`, `$0.31`."""

from __future__ import annotations

from fleetgate.present.usage.report import UsageTotal

_UNITS = ((10**9, "G"), (10**6, "M"), (10**3, "k"))


def number_text(number: int) -> str:
    """`950`, `3.2k`, `41k`, `3.2M`: two digits at least, and never rounded to the next unit's thousand."""
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


def cost_text(usage: UsageTotal) -> str:
    """`$0.31`; `≥ $0.31` if only a part of the cost is known, `?` if none is. Estimated parts are marked with `~`."""
    mark = "~" if usage.estimated else ""
    if usage.cost is None:
        return "$0" if usage.cost_complete else "?"
    text = f"{mark}{dollars_text(usage.cost)}"
    return text if usage.cost_complete else f"≥ {text}"
