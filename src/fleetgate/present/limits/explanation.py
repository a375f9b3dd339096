"""What Fleetgate has learned about a provider's limit, for the command line and the HTTP API."""

from __future__ import annotations

from msgspec import Struct

from fleetgate.core.errors import NotFound
from fleetgate.core.state.state import State
from fleetgate.core.views.limit_explanation import Explanation, explain, span
from fleetgate.present.json.state import Time
from fleetgate.present.log_time import LogTimes
from fleetgate.present.name_lookup import kind_for, pool_target


class ExplanationShape(Struct):
    """What is not known is null; a limit that is not learned has its first fields and its sentences only."""

    pool: str
    kind: str
    on_429: str
    cap: int | None
    limit: int | None
    in_flight: int
    cooling: int
    proven: int | None
    proven_at: Time | None
    refused_level: int | None
    refused_at: Time | None
    believed_low: int | None
    believed_high: int | None
    last_refusal_at: Time | None
    last_refusal_why: str | None
    lag_ms: int | None
    lag_source: str | None
    next_probe_at: Time | None
    next_level: int | None
    trying: str | None
    refusals: str | None
    sentences: list[str]
    changes: list[str]


def explanation_of(state: State, pool: str, kind: str | None, host: str, now: int) -> Explanation:
    """Of the pool that is meant. NotFound."""
    found = kind_for(state, pool, kind)
    named = state.named(found, pool_target(state, found, pool, host))
    if named is None:
        pools = [known.id for known in state.pools.values() if known.kind == found and known.cap.capped]
        raise NotFound(f"{pool} is not one pool of kind {found}: there are {', '.join(sorted(pools)) or 'none'}")
    return explain(named, now)


def explanation_shape(said: Explanation, moments: LogTimes) -> ExplanationShape:
    """For programs."""
    told = {name: getattr(said, name) for name in said.__struct_fields__}
    for name in ("proven_at", "refused_at", "last_refusal_at", "next_probe_at"):
        told[name] = moments.utc(told[name])
    return ExplanationShape(**told)


def summary(said: Explanation, moments: LogTimes) -> str | None:
    """The belief in one sentence, in local time; None where nothing is learned."""
    if said.proven is None or said.limit is None:
        return None
    now = moments.now
    parts = [f"Believes {said.limit} of {said.cap}"]
    seen = []
    if said.proven and said.proven_at is not None:
        seen.append(f"{said.proven} accepted {span(now - said.proven_at)} ago")
    if said.refused_level is not None:
        when = "" if said.refused_at is None else f" {span(now - said.refused_at)} ago"
        seen.append(f"{said.refused_level} refused{when}")
    parts.append(", ".join(seen) or "nothing accepted or refused yet")
    if said.next_probe_at is not None:
        later = said.next_probe_at > now
        when = f"{moments.clock(said.next_probe_at)} if a call is waiting then" if later else "when a call is waiting"
        parts.append(f"tries {said.next_level} {when}")
    return "; ".join(parts) + "."
