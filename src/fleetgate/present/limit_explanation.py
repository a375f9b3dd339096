"""What Fleetgate has learned about a provider's limit, for the command line and the HTTP API."""

from __future__ import annotations

from msgspec import Struct

from fleetgate.core.errors import NotFound
from fleetgate.core.state.state import State
from fleetgate.core.views.limit_explanation import explain
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
    last_refusal_at: Time | None
    last_refusal_why: str | None
    lag_ms: int | None
    lag_source: str | None
    next_probe_at: Time | None
    trying: str | None
    sentences: list[str]


def explained(state: State, pool: str, kind: str | None, host: str, moments: LogTimes) -> ExplanationShape:
    """Of the pool that is meant. NotFound."""
    found = kind_for(state, pool, kind)
    named = state.named(found, pool_target(state, found, pool, host))
    if named is None:
        pools = [known.id for known in state.pools.values() if known.kind == found and known.cap.capped]
        raise NotFound(f"{pool} is not one pool of kind {found}: there are {', '.join(sorted(pools)) or 'none'}")
    said = explain(named, moments.now)
    told = {name: getattr(said, name) for name in said.__struct_fields__}
    for name in ("proven_at", "last_refusal_at", "next_probe_at"):
        told[name] = moments.utc(told[name])
    return ExplanationShape(**told)
