"""A reading of a plan window: what a response, an agent or its status line says about it (rule W1)."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

FULL: Final = 10_000  # a window that is used up, in hundredths of a percent
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
LONGEST_MS: Final = 400 * DAY_MS
_SHORTEST_MS: Final = 60_000
_NAME_CHARS: Final = 20


class PlanReading(Struct, frozen=True, omit_defaults=True, gc=False):
    """One window of a plan, as it was seen."""

    window: str  # its length and, where it counts only some models, their family: 5h, 7d, 7d_opus
    used: int  # in hundredths of a percent
    resets_in_ms: int  # from the moment at which it was seen; 0: not said
    length_ms: int
    family: str = ""  # the models that it counts, as a glob; "": all of the account
    age_ms: int = 0  # how long ago it was seen
    is_floor: bool = False  # how old it is is not known: the window is used at least that much


def is_valid(reading: PlanReading) -> bool:
    """Whether this can be a window: what others say is not trusted."""
    name = reading.window
    return (
        0 < len(name) <= _NAME_CHARS
        and name.isascii()
        and name.replace("_", "").isalnum()
        and 0 <= reading.used <= 100 * FULL
        and _SHORTEST_MS <= reading.length_ms <= LONGEST_MS
        and 0 <= reading.resets_in_ms <= reading.length_ms + DAY_MS
        and 0 <= reading.age_ms <= LONGEST_MS
        and len(reading.family) <= 100
    )
