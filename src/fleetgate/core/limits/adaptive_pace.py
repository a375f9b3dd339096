"""When the adaptive limit probes, and how it rises: what is believed about how often the provider's limit moves.

*The price.* A probe that is refused costs what the account's owner says (`refusals`): as much as one slot for PRICE_S
seconds. A limit that has risen unnoticed costs slots until the next probe. If the limit moves once in `s` seconds and
a probe is made every `t`, both together cost least where t = sqrt(2 * price * s): a limit that moves often is probed
often, one that never moves hardly ever.

*The pace.* `s` is the time that the pool was watched, divided by the changes seen. Before anything is known, half a
change in YOUNG_S is assumed. A change is a limit that is found more than an eighth away from the one found before.

*The rise.* When a level above the limit is accepted, no one knows how far the limit has risen. It is raised by a
stride, and when the calls have come so far, by a stride twice as long, and so on, until a level is refused or the cap
is reached. So a limit that has risen tenfold is found in four strides. The climb after a drop works alike, up to just
below the level that was refused.
"""

from __future__ import annotations

from math import isqrt
from typing import TYPE_CHECKING

from fleetgate.core.limits.adaptive_levels import prove
from fleetgate.core.limits.adaptive_tuning import EXPLORE_MS, MARGIN, MOVED, PRICE_S, STRIDE, YOUNG_S

if TYPE_CHECKING:
    from fleetgate.core.limits.adaptive import AdaptiveLimit
    from fleetgate.core.limits.adaptive_state import Belief


def plan_probe(policy: AdaptiveLimit, now: int) -> None:
    """Set when a level above the limit is tried next."""
    belief = policy.belief
    watched_s = (now - (belief.began_at or now)) // 1_000 + YOUNG_S
    wait_s = isqrt(4 * PRICE_S[policy.refusals] * watched_s // (2 * belief.changes + 1))
    belief.next_probe = now + 1_000 * wait_s


def rise(policy: AdaptiveLimit, level: int, probing: bool, now: int) -> None:
    """A level at or above the limit was accepted: raise the limit by a stride, twice as long as the last one."""
    belief = policy.belief
    if probing or level >= belief.failed:
        belief.failed = 0
        belief.again = max(belief.again - 1, 0)
    belief.stride = max(1, level // STRIDE, 2 * belief.stride)
    top = belief.failed - 1 - belief.failed // MARGIN if belief.failed else policy.cap
    belief.limit = max(min(level + belief.stride, top, policy.cap), level)
    if belief.limit == level:
        belief.stride = 0
        settle(belief, level)
        plan_probe(policy, now)
        if level >= policy.cap:
            belief.next_probe = now + EXPLORE_MS
    prove(policy, level)


def settle(belief: Belief, limit: int) -> None:
    """The limit was found. If it is another one than last time, it has moved."""
    if belief.settled and abs(limit - belief.settled) * MOVED > belief.settled:
        belief.changes += 1
    belief.settled = limit
