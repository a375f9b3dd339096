"""The routes that change pools: pause, resume, drain a host, restore a lowered limit, report a rate limit."""

from __future__ import annotations

from fleetgate.api.bodies import (
    CapAnswer,
    DrainBody,
    PauseAnswer,
    PauseBody,
    PausedPool,
    ReportBody,
    RestoreBody,
    ResumeAnswer,
    ResumedPool,
    TargetBody,
)
from fleetgate.api.errors import conflict
from fleetgate.api.router.route import ApiRequest, post
from fleetgate.api.routes.caps import set_rule
from fleetgate.api.routes.read import scope_of
from fleetgate.api.security.caller import Caller
from fleetgate.api.service import Service
from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.access.keys import AGENT
from fleetgate.core.entities import Rule
from fleetgate.core.errors import BadRequest, NotFound
from fleetgate.core.model_names import shown
from fleetgate.core.views.pool_and_lease_views import pool_views
from fleetgate.present.log_time import LogTimes
from fleetgate.present.name_lookup import DrainShape, check_host, drained, entered, kind_for, pool_target
from fleetgate.present.rate_limit_report import ReportShape, acted_on, of_lease, of_target, report_json
from fleetgate.present.text import some


@post("/v1/pause", summary="Stop admitting agents to a pool", status=200)
async def pause(service: Service, data: PauseBody) -> PauseAnswer:
    state, _ = await service.look()
    kind = kind_for(state, data.target, data.kind)
    name = pool_target(state, kind, data.target, service.gate.host)
    for_ms = None if data.for_s is None else max(int(data.for_s * 1000), 1)
    events = await service.change(cmd.Pause(kind, name, for_ms))
    moments = LogTimes(service.gate)
    return PauseAnswer(
        [
            PausedPool(event.pool, event.kind, True, moments.utc(event.until))
            for event in events
            if isinstance(event, ev.Paused)
        ]
    )


@post("/v1/resume", summary="End a pause", status=200)
async def resume(service: Service, data: TargetBody) -> ResumeAnswer:
    state, _ = await service.look()
    kind = kind_for(state, data.target, data.kind)
    name = pool_target(state, kind, data.target, service.gate.host)
    events = await service.change(cmd.Resume(kind, name))
    pools = [ResumedPool(event.pool, event.kind) for event in events if isinstance(event, ev.Resumed)]
    return ResumeAnswer(pools, entered(events))


@post("/v1/drain", summary="Stop starting agents on a host; with `end`, start them again", status=200)
async def drain(service: Service, request: ApiRequest, data: DrainBody | None = None) -> DrainShape:
    data = data or DrainBody()
    name = check_host(service.gate.host if data.host is None else data.host)
    events = await service.change(cmd.Drain(name, request.caller.author, data.end))
    state, _ = await service.look()
    return drained(state, name, events)


@post("/v1/restore", summary="Undo an automatic reduction: the limit is the cap again", status=200)
async def restore(service: Service, data: RestoreBody) -> CapAnswer:
    state, moments = await service.look()
    views = pool_views(state, moments.now, service.gate.host)
    found = [view for view in views if view.pool == data.pool and data.kind in (None, view.kind)]
    if not found:
        raise NotFound(f"no capped pool {shown(data.pool)}; there are: {some([view.pool for view in views]) or 'none'}")
    reduced = [view for view in found if view.auto_reduced]
    if not reduced:
        raise conflict(f"the limit of {data.pool} was not lowered: there is nothing to restore")
    view = reduced[0]
    cap = state.rules.caps[view.kind, view.selector]
    rule = Rule(view.kind, view.selector, cap=None if cap.auto else view.auto_reduced_from, auto=cap.auto)
    return await set_rule(service, state, rule)


@post("/v1/report", summary="Report a rate limit", status=200, role=AGENT)
async def report(service: Service, caller: Caller, data: ReportBody) -> ReportShape:
    if (data.target is None) == (data.lease is None):
        raise BadRequest("give one of target (a pool or a model) and lease")
    state, _ = await service.look()
    if data.lease is not None:
        caller.must_own(state, data.lease)
        command = of_lease(state, data.lease, None, data.kind)
    else:
        if caller.project:
            scope_of(service, caller, state, LogTimes(service.gate)).must_use(data.target or "", data.kind)
        command = of_target(state, data.target or "", data.kind, service.gate.host)
    command.retry_after_ms = None if data.retry_after_s is None else int(data.retry_after_s * 1000)
    events = await service.change(command, durable=False)
    state, moments = await service.look()
    pool, backoff = acted_on(state, command)
    return report_json(pool, backoff, events, moments)
