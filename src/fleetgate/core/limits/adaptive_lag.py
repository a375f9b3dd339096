"""How long a provider counts a call that is over: what the adaptive limit believes about the lag, and how it learns.

A released slot rests for the lag. If the lag is too long, slots stand idle; if it is too short, calls are refused.

*From above.* A lag is at most MOST_LAG_MS. Before the first refusal USUAL_LAG_MS is assumed: too short a lag costs
nothing yet, and a new pool should not wait. Where calls are short or many, the search begins at MOST_LAG_MS with the
first refusal, which cuts nothing: a lag that is too short spoils what every refusal says about the limit. Where calls
are long, or the provider tells how many calls it counts, USUAL_LAG_MS does: the rest costs little. With a cap of 1
there is no lag before a refusal shows one.

*Shorter.* When slots were granted again at the limit CLEAN times, as soon as the lag allowed and without a refusal, the
lag is shortened by a step: a quarter, but not more than frees about two slots, so that a step too far costs about two
refusals. In small pools of short calls, CLEAN_SMALL times are enough. Once a lag was refused, the search goes on
between that and the one before. It ends when it could shorten a call and its lag by less than one part in LAG_PART.

*Longer.* If a proven level is refused soon after the lag was shortened, the lag is blamed, not the limit: the lag
before is taken up again (`lag`). If that was wrong, the next refusal says so.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from fleetgate.core.limits.adaptive_tuning import (
    ANY_SLOTS,
    CLEAN,
    CLEAN_SHORTENED,
    FLOOR,
    LAG_PART,
    LARGE,
    LONG_MS,
    MOST_LAG_MS,
    USUAL_LAG_MS,
)

if TYPE_CHECKING:
    from fleetgate.core.limits.adaptive import AdaptiveLimit
    from fleetgate.core.limits.adaptive_state import Belief


def lag_of(policy: AdaptiveLimit) -> int:
    """The lag in force: what a person set, what was learned, or what is assumed."""
    belief = policy.belief
    if policy.fixed_lag_ms is not None:
        return policy.fixed_lag_ms
    if belief.lag_at:
        return belief.lag_ms
    if policy.ceiling == 1:
        return 0  # one call after another would wait each time
    if policy.gated or belief.hold_ms >= LONG_MS or not belief.last_at:
        return min(belief.lag_ms, USUAL_LAG_MS)
    return belief.lag_ms


def shorten(policy: AdaptiveLimit, now: int) -> None:
    """Slots were granted again without a refusal as soon as the lag allows: try a shorter one, if it is of use."""
    belief = policy.belief
    lag_ms, low = belief.lag_ms, belief.lag_low
    if belief.clean < CLEAN and (low or policy.limit >= LARGE or belief.hold_ms >= LONG_MS):
        return
    width = lag_ms - low
    if policy.fixed_lag_ms is not None or policy.lag_ms != lag_ms or width * LAG_PART <= belief.hold_ms + lag_ms:
        return
    two_slots_ms = belief.gap_ms // 8  # the gap is stored times 16
    step = min(width // (2 if low else 4), max(two_slots_ms, lag_ms // 16))
    belief.lag_was, belief.lag_ms, belief.lag_at, belief.clean = lag_ms, lag_ms - step, now, 0


def lengthen(belief: Belief, refused_ms: int, now: int) -> None:
    """A call was refused because the provider still counted one that had ended longer ago than the lag."""
    belief.lag_low = refused_ms
    belief.lag_ms = belief.lag_was if belief.lag_was > belief.lag_ms else MOST_LAG_MS
    belief.lag_was, belief.lag_at, belief.clean = 0, now, 0


def begins_search(policy: AdaptiveLimit) -> bool:
    """Whether a refusal is the first one, where calls are short or many: then the search for the lag begins with it."""
    belief = policy.belief
    if policy.fixed_lag_ms is not None or policy.gated or belief.lag_at or belief.last_at:
        return False
    return belief.hold_ms < LONG_MS and (policy.busy or 2 * belief.hold_ms < LONG_MS)


def may_be_lag(policy: AdaptiveLimit, level: int, before: int) -> bool:
    """Whether a refusal of this level may come from a call that was over and that the provider still counted.

    `before`: so many incidents came right before this one.
    """
    belief = policy.belief
    if policy.fixed_lag_ms is not None or policy.lag_ms >= MOST_LAG_MS:
        return False
    if level <= FLOOR:
        return True  # no limit is so low that it explains this
    enough = CLEAN_SHORTENED if belief.lag_was > belief.lag_ms else CLEAN
    return belief.clean < enough and before == 0


def ghosts_at(policy: AdaptiveLimit, now: int) -> tuple[int, int]:
    """Slots and age of the last release that no longer counts here and may still count there."""
    freed, lag_ms = policy.belief.freed, policy.lag_ms
    last = bisect_right(freed, (now - lag_ms, ANY_SLOTS)) - 1
    if last >= 0:
        at, slots = freed[last]
        age = now - at
        if age < MOST_LAG_MS or age < lag_ms + 1_000:
            return slots, age
    return 0, 0
