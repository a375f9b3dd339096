"""Runway: how fast a plan window is used, and whether it lasts until its reset (rule W3)."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from fleetgate.core.plans.reading import FULL, HOUR_MS
from fleetgate.core.plans.window import PlanWindow

SAFE, TIGHT, DRY = "safe", "tight", "dry"
_TIGHT: Final = 9_000  # what may be used at the reset, by the burn of the last hour, before it is tight
_SHORTEST_MS: Final = 300_000  # over less time, a burn says nothing


class Runway(Struct, frozen=True):
    """What comes of a window if it is used as in the last hour."""

    level: str  # safe, tight, or dry: it runs out before its reset
    burn: int | None  # hundredths of a percent in an hour; None: not known yet
    dry_at: int | None  # log time; None: not before the reset, or not known


def runway(window: PlanWindow, now: int) -> Runway:
    """The runway of a window."""
    used = window.used(now)
    if now < window.resets_at and used >= FULL:
        return Runway(DRY, None, now)
    burn = burn_of(window, now)
    if burn is None:
        return Runway(TIGHT if used >= _TIGHT else SAFE, None, None)
    left_ms = window.resets_at - now
    at_reset = used + burn * left_ms // HOUR_MS
    if at_reset >= FULL and burn:
        return Runway(DRY, burn, now + (FULL - used) * HOUR_MS // burn)
    return Runway(TIGHT if at_reset >= _TIGHT else SAFE, burn, None)


def burn_of(window: PlanWindow, now: int) -> int | None:
    """How much of a window was used in the last hour; of one that was seen just now, the mean since its beginning."""
    if now >= window.resets_at or not window.samples:
        return None
    hour_ago = now - HOUR_MS
    since, before = window.samples[0]
    if since <= hour_ago:
        since, before = hour_ago, [used for at, used in window.samples if at <= hour_ago][-1]
    elif window.starts_at >= hour_ago or now - since < _SHORTEST_MS:
        since, before = window.starts_at, 0
    if now - since < _SHORTEST_MS:
        return None
    return max(window.used_then - before, 0) * HOUR_MS // (now - since)
