"""Which pool a rate limit is about: a capped pool of the provider, or a model that nothing caps (rules P1, B1).

Never `host` or `project`: a provider does not know those.
"""

from __future__ import annotations

from fleetgate.core.commands import Report
from fleetgate.core.entities import Lease, Spec
from fleetgate.core.errors import BadRequest, NotFound
from fleetgate.core.model_names import KINDS, Model, glob, parse_model, shown
from fleetgate.core.pools.pool import Pool
from fleetgate.core.queue.queue import Candidate
from fleetgate.core.state.state import State


def narrowest(candidate: Candidate, ident: str = "") -> Pool | None:
    """The only provider pool that a lease brought above its proven level, else the narrowest that it needs."""
    pools = [pool for pool, _ in candidate.needs if _can_be_blamed(pool)]
    above = [pool for pool in pools if _is_tried(pool, ident)]
    return above[0] if len(above) == 1 else next(iter(pools), None)


def blamed(state: State, candidate: Candidate, ident: str, now: int) -> Pool | None:
    """Which pool a refusal is about: `narrowest`, or the account's when another of its models is refused too."""
    first = narrowest(candidate, ident)
    if first is None or not first.cap.selector.name or _is_tried(first, ident):
        return first
    mine = [pool for pool, _ in candidate.needs if _can_be_blamed(pool)]
    account = next((pool for pool in mine if not pool.cap.selector.name), None)
    refused = any(
        (pool.kind, pool.account) == (first.kind, first.account) and pool not in mine and _is_refused(pool, now)
        for pool in state.pools.values()
    )
    return account if account is not None and refused else first


def named(candidate: Candidate, scope: str, family: str) -> Pool | None:
    """The narrowest pool that has no other models than those which the provider says are limited."""
    for pool, _ in candidate.needs:
        if _can_be_blamed(pool) and _is_within(pool.cap.selector.name, candidate, scope, family):
            return pool
    return None


def meant(state: State, report: Report, lease: Lease | None, now: int | None = None) -> Pool | Model | None:
    """What a report is about; None for a lease that names no model. `lease` is the one that it names, if any."""
    if lease is None:
        return _by_name(state, report.kind, report.target)
    return _by_lease(state, lease, report.target, state.at if now is None else now)


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
        "`fleetgate cap set`"
    )


def _by_lease(state: State, lease: Lease, target: str, now: int) -> Pool | Model | None:
    """What the holder of a lease means: one of its pools by name, else the narrowest, else its model."""
    held = state.lease_candidates[lease.id]
    pools = {pool.id: pool for pool, _ in held.needs if _can_be_blamed(pool)}
    if target in pools:
        return pools[target]
    if target not in ("", lease.model):
        acts = f"its pools are {', '.join(pools)}" if pools else f"only its model {lease.model} can be named"
        raise BadRequest(f"the lease {lease.id} takes no slot of {shown(target)}: {acts}")
    return blamed(state, held, lease.id, now) or held.name


def _is_within(name: str, candidate: Candidate, scope: str, family: str) -> bool:
    """Whether a selector's models, by its pattern of names, are all meant."""
    if scope == "account":
        return name in ("", "*")
    if scope == "family":
        return glob(family, name)
    return candidate.name is not None and name == candidate.name.name


def _is_tried(pool: Pool, ident: str) -> bool:
    """Whether this lease tries a level of the pool that is not proven."""
    return bool(ident) and pool.limiter.adaptive is not None and pool.limiter.adaptive.belief.unproven == ident


def _is_refused(pool: Pool, now: int) -> bool:
    return _can_be_blamed(pool) and pool.pause_cause == "rate_limited" and now < pool.paused_until


def _can_be_blamed(pool: Pool) -> bool:
    return pool.cap.capped and pool.cap.selector.scope == "model"
