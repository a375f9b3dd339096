"""Verdicts of the adaptive limit: what it means that the provider refused a call.

| verdict | the refused call | the limit |
| --- | --- | --- |
| `probe` | tried a level above the limit | stays |
| `alone` | was the only one in flight, so the refusal was not about how many | stays |
| `exact` | tried a level that had not been reached before | one below that level |
| `lag` | had a level that was accepted before, but a longer lag explains both | as that lag explains it |
| `drop` | had a level that was accepted before, whatever the lag: the limit has fallen | a part of that level |
| `fit` | belongs to an incident that was already judged | at most what that incident left possible |

Judging changes nothing. The verdict becomes an event, and `AdaptiveLimit.refused` learns from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetgate.core.limits.adaptive_tuning import (
    CLEAN,
    FIRST_LAG,
    FLOOR,
    LAGS,
    LEAST_SIZE,
    MOST_ALONE_WAIT_MS,
    MOST_ECHO_MS,
    MOST_WAIT_MS,
    NEVER,
    TOGETHER_MS,
    WAIT_MS,
)
from fleetgate.core.limits.policy import Verdict

if TYPE_CHECKING:
    from fleetgate.core.limits.adaptive import AdaptiveLimit
    from fleetgate.core.limits.adaptive_state import Belief


def verdict_on(policy: AdaptiveLimit, ident: str, sent_at: int, live: int) -> Verdict:
    """What it means that the provider refused the call that was sent then."""
    belief = policy.belief
    limit = policy.limit
    wait_ms = _wait_ms(belief, MOST_WAIT_MS)
    if belief.last_at and sent_at <= belief.last_at:
        return _fit(policy, sent_at)
    levels = levels_at(policy, sent_at, live)
    level = levels[belief.lag + 2]
    if is_bold(belief, ident, sent_at):
        tried = [each[belief.lag + 2] for each in belief.recent if each[1] and each[0] <= sent_at + TOGETHER_MS]
        level = max([level, *tried])
        if belief.probing and level > limit:
            return Verdict("probe", level, limit, wait_ms)
        if not belief.test and level > 1:
            return Verdict("exact", level, max(min(limit, level - 1), FLOOR), wait_ms)
    if live <= 1 and levels[-1] <= 1:
        return Verdict("alone", level, limit, _wait_ms(belief, MOST_ALONE_WAIT_MS))
    blurred = is_blurred(policy, level)
    if not belief.cuts and not blurred and explaining_lag(policy, levels):
        return Verdict("lag", level, limit, wait_ms)
    size = (LEAST_SIZE if blurred else belief.size) << min(belief.cuts, 6)
    left = level * 1000 // (1000 + size)
    if blurred and not belief.cuts:
        left = max(left, belief.firm)
    return Verdict("drop", level, max(min(limit, left, level - 1), FLOOR), wait_ms)


def is_blurred(policy: AdaptiveLimit, level: int) -> bool:
    """Whether a level was refused that was never accepted with as many calls really in flight.

    Then the limit is a little lower than was thought, and nothing has moved.
    """
    belief = policy.belief
    return belief.blurred if belief.cuts else level > belief.firm > 0


def is_bold(belief: Belief, ident: str, sent_at: int) -> bool:
    """Whether the refusal is about a level that had not been reached before: of this call, or of one sent with it."""
    if ident == belief.unproven and ident:
        return True
    recent = belief.recent
    if recent and sent_at < recent[0][0] - TOGETHER_MS:  # too long ago to be remembered
        return any(levels[1] for levels in recent)
    return any(levels[1] and -TOGETHER_MS <= sent_at - levels[0] <= TOGETHER_MS for levels in recent)


def levels_at(policy: AdaptiveLimit, sent_at: int, live: int) -> list[int]:
    """What is remembered of the call that was sent then; if it is not remembered, of the nearest."""
    best: list[int] | None = None
    for levels in policy.belief.recent:
        if best is None or abs(levels[0] - sent_at) <= abs(best[0] - sent_at):
            best = levels
    if best is None or abs(best[0] - sent_at) > MOST_ECHO_MS:
        return [sent_at, 0] + [max(live, 1)] * len(LAGS)
    return best


def explaining_lag(policy: AdaptiveLimit, levels: list[int]) -> int:
    """The lag that explains why a level was refused that was accepted before; 0: none.

    With it, more calls are counted than were ever accepted at the same time; and not many calls were accepted for which
    the same was true.
    """
    belief = policy.belief
    if policy.fixed_lag_ms is not None:
        return 0
    for lag in range(belief.lag + 1, len(LAGS)):
        if levels[lag + 2] > max(belief.firm, levels[belief.lag + 2]) and belief.clean[lag] < CLEAN:
            return lag
    return 0


def lag_costs(policy: AdaptiveLimit) -> bool:
    """Whether released slots spend more than a tenth of their time in cooling down, with a lag that was lengthened."""
    belief = policy.belief
    if belief.lag <= FIRST_LAG or policy.fixed_lag_ms is not None:
        return False
    return policy.lag_ms * 10 > belief.release_ms * policy.limit > 0


def _fit(policy: AdaptiveLimit, sent_at: int) -> Verdict:
    """One more refusal of the same incident: only as many calls are possible as were accepted before this one."""
    belief, limit = policy.belief, policy.limit
    level = levels_at(policy, sent_at, NEVER)[belief.lag + 2]
    if level < NEVER and belief.last_why == "exact":
        limit = min(limit, max(level - 1 - belief.rejected_calls, FLOOR))
    return Verdict("fit", min(level, MOST_FIT), limit, 0)


MOST_FIT = 1_000_000


def _wait_ms(belief: Belief, most: int) -> int:
    """The pause, doubled with each incident in a row.

    The jitter comes from numbers that no two gates share and that every replica of one gate computes alike.
    """
    wait = min(WAIT_MS << min(belief.in_a_row, 16), most)
    mixed = (belief.incident * 2_654_435_761 + belief.sent_at * 40_503) & 0xFFFF
    return wait // 2 + wait * mixed // 0x20000
