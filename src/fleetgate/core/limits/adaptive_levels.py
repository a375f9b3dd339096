"""Levels of the adaptive limit: what an accepted call proves.

Below LARGE an accepted call proves its own level, and the next call tries one more: about six minutes for a limit of
400. From LARGE on, a third of what is above it counts as proven *ahead* of its trial. Those calls are sent at a pace,
before the outcome of the last one is known, and the top one proves them all. The rate grows with the square root of the
level, so that time and refusals grow alike: 400 take about a minute, and a few refusals. A refusal of one of them is a
refused try like any other (limits/adaptive_verdicts.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetgate.core.limits.adaptive_tuning import LARGE, PART

if TYPE_CHECKING:
    from fleetgate.core.limits.adaptive import AdaptiveLimit
    from fleetgate.core.limits.adaptive_state import Belief


def prove(policy: AdaptiveLimit, level: int) -> None:
    """A level works; nothing at or above a level that was refused is tried ahead."""
    belief = policy.belief
    top = max(level, belief.proven)
    if top == level and level >= LARGE:
        most = min(policy.limit, belief.failed - 1) if belief.failed else policy.limit
        top = max(min(level + (level - LARGE) // PART + 1, most), level)
    belief.proven, belief.ahead = top, top - level


def tried(belief: Belief) -> int:
    """The highest level at which a call above the proven level was sent since the last refusal; 0: none."""
    return belief.tried if belief.tried_at > belief.last_at else 0
