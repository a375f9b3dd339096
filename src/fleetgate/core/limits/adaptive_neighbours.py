"""Neighbours on the account: how the adaptive limit follows the provider's own count of calls (rules G1, P4).

What others take more is not there for us. Only a count tells something in which no call is missing that was just sent,
and none is included that is over. Two of them must agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetgate.core.limits.adaptive_tuning import BINS, CLEAN, FLOOR, LAGS

if TYPE_CHECKING:
    from fleetgate.core.limits.adaptive import AdaptiveLimit


def follow_count(policy: AdaptiveLimit, count: int | None, now: int, ours: int, asked_at: int) -> None:
    """Move the limit by what others take more or less than when it was found."""
    belief = policy.belief
    policy.shift_bins(now)
    confirmed = belief.clean[belief.lag] >= CLEAN
    over = sum(belief.bins[: LAGS[belief.lag] + 2 if confirmed else BINS])
    if count is None or over or belief.sent_at > asked_at - belief.echo_ms:
        return
    others, shown = max(count - ours, 0), belief.shown
    belief.shown = others
    if others != shown or not belief.limit:
        return
    if not belief.base:
        belief.base, belief.base_others = policy.limit, others
    elif others - belief.base_others != belief.base_more:
        belief.base_more = others - belief.base_others
        _move(policy, max(min(belief.base - belief.base_more, policy.ceiling), FLOOR), now)


def _move(policy: AdaptiveLimit, limit: int, now: int) -> None:
    belief = policy.belief
    belief.limit = limit
    belief.failed = limit + 1
    belief.proven, belief.firm = min(belief.proven, limit), min(belief.firm, limit)
    belief.cuts = belief.moved_from = belief.good = 0
    belief.test = belief.blurred = False
    if belief.last_why == "drop":
        belief.last_why = "neighbour"
    policy.derive()
    policy.plan_probe(now)
