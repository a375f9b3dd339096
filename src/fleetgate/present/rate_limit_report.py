"""Reports of rate limits by scripts: their subject, and their result (rules P1 to P3)."""

from __future__ import annotations

from msgspec import Struct

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Spec
from fleetgate.core.errors import BadRequest, FleetgateError
from fleetgate.core.model_names import Model, parse_model
from fleetgate.core.pools import blame
from fleetgate.core.pools.backoff import Backoff
from fleetgate.core.pools.pool import Pool
from fleetgate.core.state.state import State
from fleetgate.present.json.state import BackoffShape, Time, backoff_json
from fleetgate.present.log_time import LogTimes
from fleetgate.present.name_lookup import find_id, kind_for, pool_target
from fleetgate.present.text import some


class ReportShape(Struct):
    """The pool that a report acted on, or the backoff of a model that nothing caps. `incident`: it was a new one."""

    pool: str | None
    kind: str | None
    paused_until: Time | None
    limit: int | None
    cap: int | None
    incident: bool
    backoff: BackoffShape | None


def of_lease(state: State, lease: str, target: str | None, kind: str | None) -> cmd.Report:
    ident = find_id(state, lease)
    held = state.leases.get(ident)
    if held is None:
        raise BadRequest(f"{ident} is still in the queue: nothing of it can have been refused")
    if kind is not None and kind != held.ticket.spec.kind:
        raise BadRequest(f"--kind {kind}: the lease {ident} is of kind {held.ticket.spec.kind}")
    return cmd.Report(id=ident, target=(target or "").replace("@default", "", 1))


def of_target(state: State, target: str, kind: str | None, host: str) -> cmd.Report:
    found = kind or _kind_of(state, target) or kind_for(state, target)
    if target.partition(":")[0] in ("host", "project", "key", "session"):
        raise BadRequest(f"a rate limit never acts on {target}: valid is a provider's pool or a model")
    if "*" not in target and _model(target) is not None:
        return cmd.Report(kind=found, target=target)
    name = pool_target(state, found, target, host)
    if state.named(found, name) is None:
        pools = [pool.id for pool in state.pools.values() if pool.kind == found and pool.cap.selector.text == name]
        raise BadRequest(f"{target} has a pool for each account, and a report is about one: {some(sorted(pools))}")
    return cmd.Report(kind=found, target=name)


def _kind_of(state: State, target: str) -> str | None:
    """The kind of the cap that is meant; with both, it was a model call that was refused."""
    for kind in ("requests", "agents"):
        need = state.rules.find(kind, target)
        if (need is not None and need.cap.capped) or _on_model(state, kind, target):
            return kind
    return None


def _on_model(state: State, kind: str, target: str) -> bool:
    """Whether `target` is a model that some cap of this kind is on."""
    model = _model(target)
    if model is None:
        return False
    needs = state.rules.needs(Spec(models=(str(model),), kind=kind), model)
    return any(need.cap.capped and need.cap.selector.scope == "model" for need in needs)


def _model(target: str) -> Model | None:
    try:
        return parse_model(target)
    except FleetgateError:
        return None


def acted_on(state: State, report: cmd.Report) -> tuple[Pool | None, Backoff | None]:
    """What a report was about: a pool, or a model that nothing caps."""
    blamed = blame.meant(state, report, state.leases.get(report.id))
    if isinstance(blamed, Pool):
        return blamed, None
    return None, state.backoffs.get(str(blamed))


def report_json(pool: Pool | None, backoff: Backoff | None, events: list[ev.Event], moments: LogTimes) -> ReportShape:
    if pool is None:
        told = None if backoff is None else backoff_json(backoff, moments)
        return ReportShape(None, None, None, None, None, False, told)
    return ReportShape(
        pool=pool.id,
        kind=pool.kind,
        paused_until=moments.utc(pool.paused_until) if pool.paused_until > moments.now else None,
        limit=pool.limit,
        cap=pool.configured_cap,
        incident=is_new(events),
        backoff=None,
    )


def is_new(events: list[ev.Event]) -> bool:
    return any(isinstance(event, ev.Paused) and event.incident for event in events)
