"""What a rate limit acts on: a capped pool of the provider, or a model that nothing caps (SPEC P1, B1).

Never `host` or `project`: a provider knows nothing of those.
"""

from __future__ import annotations

from headgate.core.commands import Report
from headgate.core.errors import BadRequest, NotFound
from headgate.core.line import Candidate
from headgate.core.names import KINDS, Model, parse_model, shown
from headgate.core.pools import Pool
from headgate.core.records import Lease, Spec
from headgate.core.state import State


def narrowest(candidate: Candidate) -> Pool | None:
    """The narrowest capped provider pool that a candidate needs."""
    return next((pool for pool, _ in candidate.needs if _can_be_blamed(pool)), None)


def meant(state: State, report: Report, lease: Lease | None) -> Pool | Model | None:
    """What a report is about; None for a lease that names no model. `lease` is the one that it names, if any."""
    return _by_name(state, report.kind, report.target) if lease is None else _by_lease(state, lease, report.target)


def _by_name(state: State, kind: str, target: str) -> Pool | Model:
    """What a script means: a pool by its name, the narrowest of the model it names, or a model without any."""
    pool = state.named(kind, target)
    if pool is not None and _can_be_blamed(pool):
        return pool
    if kind in KINDS and "/" in target and "*" not in target:
        model = parse_model(target)
        return narrowest(state.queue(Spec(models=(str(model),), kind=kind)).candidates[0]) or model
    raise NotFound(
        f"no capped provider pool of kind {kind} is meant by {shown(target)}: name a model, or set a cap with "
        "`headgate cap set`"
    )


def _by_lease(state: State, lease: Lease, target: str) -> Pool | Model | None:
    """What the holder of a lease means: one of its pools by name, else the narrowest, else its model."""
    held = state.held[lease.id]
    pools = {pool.id: pool for pool, _ in held.needs if _can_be_blamed(pool)}
    if target in pools:
        return pools[target]
    if target not in ("", lease.model):
        acts = f"its pools are {', '.join(pools)}" if pools else f"only its model {lease.model} can be named"
        raise BadRequest(f"the lease {lease.id} takes no seat of {shown(target)}: {acts}")
    return narrowest(held) or held.name


def _can_be_blamed(pool: Pool) -> bool:
    return pool.cap.capped and pool.cap.selector.scope == "model"
