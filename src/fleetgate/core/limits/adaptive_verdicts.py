"""Verdicts of the adaptive limit: what it means that the provider refused a call.

| verdict | the refused call | the limit |
| --- | --- | --- |
| `probe` | tried a level above the limit | stays |
| `alone` | was the only one in flight, so the refusal was not about how many | stays |
| `lag` | came just after a release that the provider may still have counted | stays; released slots cool down longer |
| `again` | had a level near the limit that was found last: that limit, met again | below it, by a margin that grows |
| `exact` | tried an unproven level while lower ones are proven | just below that level |
| `drop` | had a level that was proven: the provider's limit has fallen | three quarters of that level |
| `fit` | belongs to an incident that was already judged | at most what that incident left possible |

Judging changes nothing. The verdict becomes an event, and `AdaptiveLimit.refused` learns from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetgate.core.limits.adaptive_lag import begins_search, may_be_lag
from fleetgate.core.limits.adaptive_state import Call
from fleetgate.core.limits.adaptive_tuning import (
    ALONE_WAIT_MS,
    BLAME_MS,
    DROP,
    FLOOR,
    MARGIN,
    MOST_ALONE_WAIT_MS,
    MOST_LAG_MS,
    MOST_WAIT_MS,
    NEAR,
    REORDER_MS,
    TOGETHER_MS,
    WAIT_MS,
)
from fleetgate.core.limits.policy import Verdict

if TYPE_CHECKING:
    from fleetgate.core.limits.adaptive import AdaptiveLimit
    from fleetgate.core.limits.adaptive_state import Belief


def verdict_on(policy: AdaptiveLimit, ident: str, now: int) -> Verdict:
    """What it means that the provider refused this call."""
    belief = policy.belief
    call = belief.calls.get(ident) or Call(belief.epoch, max(len(belief.calls), 1), now, False, 0, 0)
    if call.epoch < belief.epoch or call.refused:
        return _fit(policy, call)
    # Networks reorder: if a bolder call was sent within the last second, that one is blamed.
    boldest = belief.calls.get(belief.unproven)
    if boldest is not None and boldest.at > now - BLAME_MS and boldest.level > call.level and not call.bold:
        call = boldest
    else:
        boldest = belief.calls.get(ident)
        if call.level < belief.tried == belief.proven and 0 <= belief.tried_at - call.at < REORDER_MS:
            # It arrived after the call that was sent with it and "proved" the level above: that was one too many.
            call = Call(call.epoch, belief.tried, call.at, True, call.ghosts, call.ghost_age)
    level, limit = call.level, policy.limit
    wait_ms = _wait_ms(belief, WAIT_MS, MOST_WAIT_MS)
    if boldest is not None and belief.probing and belief.calls.get(belief.unproven) is boldest:
        return Verdict("probe", level, limit, wait_ms)
    if len(belief.calls) <= 1 and not call.ghosts and level <= 1:
        return Verdict("alone", level, limit, _wait_ms(belief, ALONE_WAIT_MS, MOST_ALONE_WAIT_MS))
    explained = begins_search(policy) or (not call.bold and may_be_lag(policy, level, belief.in_a_row))
    if call.ghosts and explained:
        return Verdict("lag", level, limit, MOST_LAG_MS)  # until no finished call is counted any more
    again = belief.in_a_row == 0 and abs(level - belief.settled) * NEAR <= level
    less = max(min(limit, level - 1 - (level << belief.again + again) // MARGIN), FLOOR)
    if again:
        return Verdict("again", level, less, wait_ms)
    if call.bold and belief.proven:
        return Verdict("exact", level, less, wait_ms)
    part, whole = DROP
    return Verdict("drop", level, max(min(limit, level * part // whole), FLOOR), wait_ms)


def _fit(policy: AdaptiveLimit, call: Call) -> Verdict:
    """One more refusal of the same incident: only as many calls are possible as were accepted before this one."""
    belief, limit = policy.belief, policy.limit
    if belief.last_why in ("drop", "exact", "again") and not call.refused:
        before = sum(at <= call.at + TOGETHER_MS for at in belief.rejected)
        lag = policy.short and call.ghosts and may_be_lag(policy, call.level, belief.in_a_row - 1)
        least = belief.firm if lag else FLOOR
        limit = min(limit, max(_highest_level_with(belief, call) - 1 - before, least, FLOOR))
    return Verdict("fit", call.level, limit, 0)


def _highest_level_with(belief: Belief, call: Call) -> int:
    """The highest level of the calls that were sent together with this one."""
    together = [other.level for other in belief.calls.values() if abs(other.at - call.at) <= TOGETHER_MS]
    tried = belief.tried if abs(belief.tried_at - call.at) <= TOGETHER_MS else 0
    return max(call.level, tried, *together)


def _wait_ms(belief: Belief, first: int, most: int) -> int:
    """The pause, doubled with each incident in a row.

    The jitter comes from numbers that no two gates share and that every replica of one gate computes alike.
    """
    wait = min(first << min(belief.in_a_row, 16), most)
    mixed = (belief.epoch * 2_654_435_761 + belief.sent_at * 40_503) & 0xFFFF
    return wait // 2 + wait * mixed // 0x20000
