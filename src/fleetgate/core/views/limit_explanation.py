"""Explanation of a pool's limit: what was learned about the provider and why, as data and sentences. Reads only.

What is learned comes from `read_belief` (core/views/limit_belief.py) and from nowhere else.
"""

from __future__ import annotations

from msgspec import Struct, field

from fleetgate.core.pools.effective_caps import UNLIMITED
from fleetgate.core.pools.pool import Pool
from fleetgate.core.views.limit_belief import LimitBelief, read_belief

MINUTE_MS = 60_000


class Explanation(Struct):
    """Times are log times; what is not known is None."""

    pool: str
    kind: str
    on_429: str
    cap: int | None
    limit: int | None
    in_flight: int
    cooling: int
    proven: int | None = None
    proven_at: int | None = None
    refused_level: int | None = None
    refused_at: int | None = None
    believed_low: int | None = None  # the provider's limit is believed to be between these two
    believed_high: int | None = None  # None: no refusal says so
    last_refusal_at: int | None = None
    last_refusal_why: str | None = None
    lag_ms: int | None = None
    lag_source: str | None = None  # assumed, learned, set
    next_probe_at: int | None = None
    next_level: int | None = None  # what it tries
    trying: str | None = None
    refusals: str | None = None  # what a refused call costs: cheap, normal, expensive
    sentences: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)  # what would change the limit


def explain(pool: Pool, now: int) -> Explanation:
    """What is believed about this pool now."""
    pool.occupied(now)
    said = Explanation(
        pool=pool.id,
        kind=pool.kind,
        on_429=pool.cap.on_429,
        cap=pool.configured_cap,
        limit=None if pool.limit >= UNLIMITED else pool.limit,
        in_flight=pool.used,
        cooling=pool.cooldown.slots,
    )
    adaptive = pool.limiter.adaptive
    if adaptive is None:
        said.sentences, said.changes = [_not_learned(pool)], _changes_by_hand(pool)
    else:
        _learned(said, read_belief(adaptive, pool.used, now), now)
        said.refusals = adaptive.refusals
        if adaptive.refusals in _PRICES:
            said.sentences.append(_PRICES[adaptive.refusals])
        if pool.gated:
            count = "unknown" if pool.usage_gate.count is None else str(pool.usage_gate.count)
            said.sentences.append(f"Waiting calls start by the provider's own count, not by ours; it is {count} now.")
    if now < pool.paused_until:
        why = " after a rate limit" if pool.pause_cause == "rate_limited" else " by a person"
        said.sentences.insert(0, f"It is paused{why}: nothing new starts.")
    return said


# A limit that is not learned.


def _not_learned(pool: Pool) -> str:
    if pool.cap.selector.scope != "model":
        return f"The limit is {pool.limit}, our own cap: no provider imposes it, so rate limits never change it."
    what = {
        "step": "each rate limit lowers it by one, until a person sets the cap again",
        "pause": "a rate limit pauses the pool and leaves the limit",
        "fixed": "a rate limit changes nothing",
    }[pool.cap.on_429]
    limit = "there is no limit" if pool.limit >= UNLIMITED else f"the limit is {pool.limit}"
    return f"Nothing is learned here (on_429 = {pool.cap.on_429}): {limit}; {what}."


def _changes_by_hand(pool: Pool) -> list[str]:
    found = ["Another cap: `fleetgate cap set`."]
    if pool.cap.selector.scope == "model" and pool.cap.on_429 == "step":
        found.insert(0, "One less: each rate limit. It never rises again until a person sets the cap.")
    return found


# A limit that is learned.

_PRICES = {
    "cheap": "Refusals are set to be cheap, so a higher limit is tried more often than usual.",
    "expensive": "Refusals are set to be expensive, so a higher limit is tried less often than usual.",
}


def _learned(said: Explanation, belief: LimitBelief, now: int) -> None:
    said.proven, said.proven_at = belief.proven, belief.proven_at
    said.refused_level, said.refused_at = belief.refused, belief.refused_at
    said.believed_low, said.believed_high = belief.low, belief.high
    said.last_refusal_at, said.last_refusal_why = belief.last_at, belief.last_why
    said.lag_ms, said.lag_source = belief.lag_ms, belief.lag_source
    said.trying = belief.trying
    said.next_probe_at = belief.next_try_at
    said.next_level = None if belief.next_try_at is None else belief.limit + 1
    said.sentences = [
        _of_limit(belief),
        _of_proof(belief),
        refusal_sentence(belief, now),
        _of_lag(belief),
        _of_probe(belief, now),
    ]
    said.changes = _changes(belief)


def _of_limit(belief: LimitBelief) -> str:
    if belief.limit == belief.cap:
        return f"The limit is {belief.limit}, the cap: there is no sign that the provider allows less."
    if belief.limit > belief.cap:
        why = "`explore` is on and the provider accepted them"
        return f"The limit is {belief.limit}, above the cap of {belief.cap}: {why}."
    return f"The limit is {belief.limit}, below the cap of {belief.cap}, after rate limits. It recovers automatically."


def _of_proof(belief: LimitBelief) -> str:
    proven = f"{belief.proven} at once are proven." if belief.proven else "Nothing is proven yet."
    if belief.trying is not None:
        how = "the answer begins, or after 2 s without a refusal"
        return f"{proven} {belief.trying} is trying {belief.trying_level}: it counts as accepted when {how}."
    if belief.proven >= belief.limit:
        return f"{proven} That is the whole limit: calls within it start at once."
    return f"{proven} Above that, up to {belief.limit}, one call at a time tries one more."


def refusal_sentence(belief: LimitBelief, now: int) -> str:
    if belief.last_why is None or belief.last_at is None:
        return "The provider has refused nothing since the cap was set."
    meaning = {
        "exact": f"{belief.last_level} were one more than it allows",
        "drop": f"{belief.last_level} at once had worked before, so its limit has fallen",
        "probe": f"{belief.last_level}, one above the limit, are still too many",
        "lag": "it still counted calls that were over, so slots now cool down longer",
        "neighbour": "others on the account had taken the slot, so the limit stays",
        "alone": "nothing else was in flight, so it was not about how many at once",
        "again": f"{belief.last_level} were one too many again, near the limit that was found before",
    }.get(belief.last_why, f"{belief.last_level} at once were too many")
    return f"The last refusal, {span(now - belief.last_at)} ago, was taken to mean: {meaning}."


def _of_lag(belief: LimitBelief) -> str:
    seconds = f"{belief.lag_ms / 1000:g} s"
    if belief.lag_source == "set":
        return f"A released slot cools down for {seconds}, as configured."
    if belief.lag_source == "learned":
        return f"The provider counts a finished call for up to {seconds}, as far as we have learned."
    return f"A finished call is taken to count for {seconds}, until a refusal teaches more."


def _of_probe(belief: LimitBelief, now: int) -> str:
    if belief.next_try_at is None:
        return "There is nothing to probe for: the limit is as high as the cap lets it be."
    if belief.probing:
        return f"A probe of {belief.limit + 1} is under way."
    later = belief.next_try_at > now
    when = f"in {span(belief.next_try_at - now)}" if later else "as soon as a call waits at a quiet moment"
    return f"The next probe, one call at {belief.limit + 1}, is tried {when}."


def _changes(belief: LimitBelief) -> list[str]:
    """What would move the limit, upwards first."""
    up = (
        "Up: only a higher cap (`fleetgate cap set`), or `explore`."
        if belief.next_try_at is None
        else f"Up: a call with {belief.limit + 1} in flight is accepted."
    )
    most = belief.proven or belief.limit
    found = [up, f"Down: the provider refuses a call with {most} or fewer in flight."]
    if belief.limit < belief.cap:
        found.append(f"Back to {belief.cap}: a person sets the cap again, which forgets the refusals.")
    return found


def span(span_ms: int) -> str:
    """A length of time in words, rounded down."""
    if span_ms < 2 * MINUTE_MS:
        return f"{max(span_ms, 0) // 1000} s"
    if span_ms < 120 * MINUTE_MS:
        return f"{span_ms // MINUTE_MS} min"
    return f"{span_ms // (60 * MINUTE_MS)} h"
