"""Explanation of a pool's limit: what was learned about the provider and why, as data and sentences. Reads only."""

from __future__ import annotations

from msgspec import Struct, field

from fleetgate.core.limits import AdaptiveLimit
from fleetgate.core.limits.adaptive_tuning import GRACE_MS, MOST_LAG_MS
from fleetgate.core.pools.effective_caps import UNLIMITED
from fleetgate.core.pools.pool import Pool

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
    last_refusal_at: int | None = None
    last_refusal_why: str | None = None
    lag_ms: int | None = None
    lag_source: str | None = None  # assumed, learned, set
    next_probe_at: int | None = None
    trying: str | None = None
    sentences: list[str] = field(default_factory=list)


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
    if pool.limiter.adaptive is None:
        said.sentences = [_not_learned(pool)]
    else:
        _learned(said, pool.limiter.adaptive, pool, now)
    if now < pool.paused_until:
        why = " after a rate limit" if pool.pause_cause == "rate_limited" else " by a person"
        said.sentences.insert(0, f"It is paused{why}: nothing new starts.")
    return said


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


def _learned(said: Explanation, adapt: AdaptiveLimit, pool: Pool, now: int) -> None:
    belief = adapt.belief
    proven = adapt.proven(pool.used, now)
    said.proven, said.proven_at = proven, belief.proven_at or None
    said.refused_level = belief.failed or None
    said.last_refusal_at, said.last_refusal_why = belief.last_at or None, belief.last_why or None
    said.lag_ms = adapt.lag_ms
    said.lag_source = "set" if adapt.fixed_lag_ms is not None else "learned" if adapt.lag_is_learned else "assumed"
    said.trying = belief.unproven or None
    said.next_probe_at = (belief.next_probe or now) if adapt.limit < adapt.ceiling else None
    said.sentences = [
        _of_limit(adapt),
        _of_proof(adapt, proven),
        _of_refusal(adapt, now),
        _of_lag(adapt),
        _of_probe(adapt, said.next_probe_at, now),
    ]
    if pool.gated:
        count = "unknown" if pool.usage_gate.count is None else str(pool.usage_gate.count)
        said.sentences.append(f"Waiting calls start by the provider's own count, not by ours; it is {count} now.")


def _of_limit(adapt: AdaptiveLimit) -> str:
    if adapt.limit == adapt.cap:
        return f"The limit is {adapt.limit}, the cap: there is no sign that the provider allows less."
    if adapt.limit > adapt.cap:
        return (
            f"The limit is {adapt.limit}, above the cap of {adapt.cap}: `explore` is on and the provider accepted them."
        )
    return f"The limit is {adapt.limit}, below the cap of {adapt.cap}, after rate limits. It recovers automatically."


def _of_proof(adapt: AdaptiveLimit, proven: int) -> str:
    belief = adapt.belief
    if belief.unproven:
        level = belief.calls[belief.unproven].level
        how = f"the answer begins, or after {GRACE_MS // 1000} s without a refusal"
        return f"{_proven(proven)} {belief.unproven} is trying {level}: it counts as accepted when {how}."
    if proven >= adapt.limit:
        return f"{_proven(proven)} That is the whole limit: calls within it start at once."
    return f"{_proven(proven)} Above that, up to {adapt.limit}, one call at a time tries one more."


def _proven(proven: int) -> str:
    return f"{proven} at once are proven." if proven else "Nothing is proven yet."


def _of_refusal(adapt: AdaptiveLimit, now: int) -> str:
    belief = adapt.belief
    if not belief.last_why:
        return "The provider has refused nothing since the cap was set."
    meaning = {
        "exact": f"{belief.last_level} were one more than it allows",
        "drop": f"{belief.last_level} at once had worked before, so its limit has fallen",
        "probe": f"{belief.last_level}, one above the limit, are still too many",
        "lag": "it still counted calls that were over, so slots now cool down longer",
        "neighbour": "others on the account had taken the slot, so the limit stays",
        "alone": "nothing else was in flight, so it was not about how many at once",
    }[belief.last_why]
    return f"The last refusal, {_ago(now - belief.last_at)} ago, was taken to mean: {meaning}."


def _of_lag(adapt: AdaptiveLimit) -> str:
    seconds = f"{adapt.lag_ms / 1000:g} s"
    if adapt.fixed_lag_ms is not None:
        return f"A released slot cools down for {seconds}, as configured."
    if adapt.lag_is_learned:
        return f"The provider counts a finished call for up to {seconds}, as far as we have learned."
    most = f"{MOST_LAG_MS // 1000} s"
    return f"A finished call is taken to count for {seconds}, until a refusal teaches more (at most {most})."


def _of_probe(adapt: AdaptiveLimit, probe_at: int | None, now: int) -> str:
    if probe_at is None:
        return "There is nothing to probe for: the limit is as high as the cap lets it be."
    if adapt.belief.probing:
        return f"A probe of {adapt.limit + 1} is under way."
    when = f"in {_ago(probe_at - now)}" if probe_at > now else "as soon as a call waits at a quiet moment"
    return f"The next probe, one call at {adapt.limit + 1}, is tried {when}."


def _ago(span_ms: int) -> str:
    if span_ms < 2 * MINUTE_MS:
        return f"{max(span_ms, 0) // 1000} s"
    if span_ms < 120 * MINUTE_MS:
        return f"{span_ms // MINUTE_MS} min"
    return f"{span_ms // (60 * MINUTE_MS)} h"
