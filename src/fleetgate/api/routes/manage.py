"""Routes that change something (SPEC H2). What is meant is looked up first; what cannot be meant changes nothing."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, delete, post, put
from litestar.params import Parameter, QueryParameter

from fleetgate.api.bodies import (
    BackoffBody,
    BumpAnswer,
    BumpBody,
    CancelAnswer,
    CancelBody,
    CapAnswer,
    CapBody,
    CapRemovedAnswer,
    CapResetAnswer,
    ClearedAnswer,
    CooldownAnswer,
    CooldownBody,
    DrainBody,
    ImportAnswer,
    ImportBody,
    ImportedCap,
    Kind,
    PauseAnswer,
    PauseBody,
    PausedPool,
    PreviousCap,
    ReportBody,
    RestoreBody,
    ResumeAnswer,
    ResumedPool,
    SelectAnswer,
    SelectBody,
    SelectorBody,
    TargetBody,
)
from fleetgate.api.errors import conflict
from fleetgate.api.routes.read import Selector, candidates, cooldown_of, lacking, selected, some_candidates
from fleetgate.api.service import Service
from fleetgate.config.environment import Environment
from fleetgate.config.errors import BadValue
from fleetgate.config.import_caps import parse_caps
from fleetgate.config.value_types import read_cap_name
from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Rule, Ticket
from fleetgate.core.errors import BadRequest, NotFound
from fleetgate.core.model_names import canonical, parse_selector, shown
from fleetgate.core.pools.backoff import CAUSES, parse_key
from fleetgate.core.pools.effective_caps import COOLDOWN_MS, Cap
from fleetgate.core.state.state import State
from fleetgate.core.views.pool_and_lease_views import pool_views, ticket_view
from fleetgate.gate.liveness.host_observer import observe_memory
from fleetgate.present import cap_listing
from fleetgate.present.json.state import BackoffShape, backoff_json
from fleetgate.present.log_time import LogTimes
from fleetgate.present.model_choice import first_usable
from fleetgate.present.name_lookup import (
    DrainShape,
    check_host,
    check_provider,
    check_selector,
    drained,
    entered,
    find_id,
    kind_for,
    pool_target,
    succeeded,
    whose,
)
from fleetgate.present.rate_limit_report import ReportShape, acted_on, of_lease, of_target, report_json
from fleetgate.present.text import some

_UNDERSTOOD = {"rate_limit": "rate_limited", "auth_error": "auth", "provider_error": "server_error"}
_OF_THE_ACCOUNT = ("auth", "quota")


def client_of(request: Request[Any, Any, Any]) -> str:
    """Who did it, for the history."""
    client = request.scope.get("client")
    return f"HTTP client {client[0]}" if client else "HTTP client"


async def _change(service: Service, *commands: cmd.Command, durable: bool = True) -> list[ev.Event]:
    return succeeded(await service.gate.decide(*commands, durable=durable))


# The line.


@delete("/v1/tickets/{ident:str}", summary="Take a ticket out of the queue", status_code=200)
async def cancel_one(service: Service, request: Request[Any, Any, Any], ident: str) -> CancelAnswer:
    return await _cancel(service, [ident], client_of(request))


@post("/v1/tickets/cancel", summary="Take tickets out of the queue, all or none", status_code=200)
async def cancel(service: Service, request: Request[Any, Any, Any], data: CancelBody) -> CancelAnswer:
    return await _cancel(service, data.ids, client_of(request))


async def _cancel(service: Service, idents: list[str], by: str) -> CancelAnswer:
    state, _ = await service.look()
    tickets = list(dict.fromkeys(_ticket(state, ident).id for ident in idents))
    decided = await service.gate.decide(*(cmd.Cancel(ident, by) for ident in tickets))
    done = [ident for ident, each in zip(tickets, decided, strict=True) if each.error is None]
    if not done:
        succeeded(decided)  # it entered or left since we looked: say so
    return CancelAnswer(done)


def _ticket(state: State, given: str) -> Ticket:
    ident = find_id(state, given)
    lease = state.leases.get(ident)
    if lease is None:
        return state.tickets[ident]
    if not lease.claimed:
        return lease.ticket
    raise conflict(
        f"{ident} is not in the queue, it holds a slot: {whose(lease)}; release it with force to take it back"
    )


@post("/v1/tickets/{ident:str}/bump", summary="Move a ticket to the front, or give it a priority", status_code=200)
async def bump(service: Service, ident: str, data: BumpBody | None = None) -> BumpAnswer:
    state, _ = await service.look()
    found = find_id(state, ident)
    if found in state.leases:
        raise conflict(f"{found} is not in the queue: it has a slot already, {whose(state.leases[found])}")
    priority = data.priority if data is not None else None
    level = state.tickets[found].priority if priority is None else priority
    await _change(service, cmd.Bump(found, priority), durable=False)
    state, moments = await service.look()
    view = ticket_view(state, found, moments.now)
    if view is None:
        return BumpAnswer(found, None, level, True)
    return BumpAnswer(found, view.position, level, False, view.of or None, view.pool or None)


# Caps.


@put("/v1/caps", summary="Set a cap and its options")
async def set_cap(service: Service, data: CapBody) -> CapAnswer:
    state, _ = await service.look()
    check_selector(data.selector, state, service.gate.settings)
    rule = Rule(
        kind=kind_for(state, data.selector, data.kind),
        selector=data.selector,
        cap=None if data.cap == "auto" else data.cap,
        auto=data.cap == "auto",
        cooldown_ms=data.cooldown_ms,
        on_429=data.on_429,
        explore=data.explore,
        max_hold_ms=data.max_hold_ms,
        usage_gate=data.usage_gate,
        name=None if data.name is None else _name(data.name),
    )
    if rule.auto and (rule.selector, rule.kind) != ("host", "agents"):
        raise BadRequest("cap auto: only the agents of a host follow free memory; valid is a whole number from 1")
    if rule.on_429 is not None and parse_selector(rule.selector).scope != "model":
        raise BadRequest(f"on_429: a rate limit never acts on {rule.selector}; valid for providers and models")
    return await _set(service, state, rule)


def _name(text: str) -> str:
    try:
        return read_cap_name(text)
    except BadValue as error:
        raise BadRequest(f"name: {error}") from error


async def _set(service: Service, state: State, rule: Rule) -> CapAnswer:
    key = (rule.kind, rule.selector)
    was = _was(state.rules.caps.get(key))
    commands: list[cmd.Command] = [cmd.SetRule(rule)]
    if rule.auto:
        commands.append(observe_memory(service.gate.settings, state, service.gate.host))
    events = await _change(service, *commands)
    state, _ = await service.look()
    line = next(each for each in cap_listing.lines(state, Environment()) if (each.kind, each.selector) == key)
    return CapAnswer(**line.as_json(), entered=entered(events), was=was)  # type: ignore[arg-type]


def _was(cap: Cap | None) -> PreviousCap | None:
    return PreviousCap(cap.cap, cap.auto, cap.source) if cap is not None and cap.capped else None


@delete("/v1/caps", summary="Remove a cap: unlimited, whatever the file says", status_code=200)
async def remove_cap(service: Service, selector: Selector, kind: Kind | None = None) -> CapRemovedAnswer:
    selector = canonical(selector)
    state, _ = await service.look()
    found = kind_for(state, selector, kind)
    before = state.rules.caps.get((found, selector))
    if before is None or not (before.capped or before.unlimited):
        raise NotFound(cap_listing.no_cap(state, found, selector))
    was = _was(before)
    events = [] if before.unlimited else await _change(service, cmd.RemoveCap(found, selector))
    return CapRemovedAnswer(selector, found, None, entered(events), was)


@post("/v1/caps/reset", summary="Forget what was set at run time: back to the file", status_code=200)
async def reset_cap(service: Service, data: SelectorBody) -> CapResetAnswer:
    state, _ = await service.look()
    kind = data.kind or cap_listing.kind_set(state, data.selector) or kind_for(state, data.selector)
    if (kind, data.selector) not in state.rules.runtime:
        known = sorted(f"{each} ({of})" for of, each in state.rules.runtime)
        listed = f"set are: {some(known)}" if known else "nothing is"
        raise NotFound(f"nothing was set at run time for {shown(data.selector)} ({kind}); {listed}")
    was = _was(state.rules.caps.get((kind, data.selector)))
    events = await _change(service, cmd.ResetCap(kind, data.selector))
    state, _ = await service.look()
    cap = state.rules.caps.get((kind, data.selector))
    if cap is None or not cap.capped:
        return CapResetAnswer(data.selector, kind, None, False, None, entered(events), was)
    return CapResetAnswer(data.selector, kind, cap.cap, cap.auto, cap.source, entered(events), was)


@post("/v1/caps/import", summary="Set the caps of a dispatch-model-caps.conf, all or none", status_code=200)
async def import_caps(service: Service, data: ImportBody) -> ImportAnswer:
    found = parse_caps(data.text, "text")
    rules = [cmd.SetRule(Rule("agents", selector, cap=cap)) for selector, cap in found]
    events = await _change(service, *rules) if rules else []
    return ImportAnswer([ImportedCap(selector, "agents", cap) for selector, cap in found], entered(events))


@put("/v1/cooldown", summary="Set how long a released slot stays taken")
async def set_cooldown(service: Service, data: CooldownBody) -> CooldownAnswer:
    state, _ = await service.look()
    check_selector(data.selector, state, service.gate.settings)
    kind = kind_for(state, data.selector, data.kind)
    cap = state.rules.caps.get((kind, data.selector))
    was_ms = COOLDOWN_MS[kind] if cap is None else cap.cooldown_ms
    await _change(service, cmd.SetRule(Rule(kind, data.selector, cooldown_ms=data.cooldown_ms)))
    state, _ = await service.look()
    return cooldown_of(state, data.selector, kind, was_ms)


# Pools.


@post("/v1/pause", summary="Let nobody new into a pool", status_code=200)
async def pause(service: Service, data: PauseBody) -> PauseAnswer:
    state, _ = await service.look()
    kind = kind_for(state, data.target, data.kind)
    name = pool_target(state, kind, data.target, service.gate.host)
    for_ms = None if data.for_s is None else max(int(data.for_s * 1000), 1)
    events = await _change(service, cmd.Pause(kind, name, for_ms))
    moments = LogTimes(service.gate)
    return PauseAnswer(
        [
            PausedPool(event.pool, event.kind, True, moments.utc(event.until))
            for event in events
            if isinstance(event, ev.Paused)
        ]
    )


@post("/v1/resume", summary="End a pause", status_code=200)
async def resume(service: Service, data: TargetBody) -> ResumeAnswer:
    state, _ = await service.look()
    kind = kind_for(state, data.target, data.kind)
    name = pool_target(state, kind, data.target, service.gate.host)
    events = await _change(service, cmd.Resume(kind, name))
    pools = [ResumedPool(event.pool, event.kind) for event in events if isinstance(event, ev.Resumed)]
    return ResumeAnswer(pools, entered(events))


@post("/v1/drain", summary="Let nobody new start on a host; or again, with `end`", status_code=200)
async def drain(service: Service, request: Request[Any, Any, Any], data: DrainBody | None = None) -> DrainShape:
    data = data or DrainBody()
    name = check_host(service.gate.host if data.host is None else data.host)
    events = await _change(service, cmd.Drain(name, client_of(request), data.end))
    state, _ = await service.look()
    return drained(state, name, events)


@post("/v1/restore", summary="Undo an automatic reduction: the limit is the cap again", status_code=200)
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
    return await _set(service, state, rule)


@post("/v1/report", summary="A rate limit was seen", status_code=200)
async def report(service: Service, data: ReportBody) -> ReportShape:
    if (data.target is None) == (data.lease is None):
        raise BadRequest("say where: one of target (a pool or a model) and lease")
    state, _ = await service.look()
    if data.lease is not None:
        command = of_lease(state, data.lease, None, data.kind)
    else:
        command = of_target(state, data.target or "", data.kind, service.gate.host)
    command.retry_after_ms = None if data.retry_after_s is None else int(data.retry_after_s * 1000)
    events = await _change(service, command, durable=False)
    state, moments = await service.look()
    pool, backoff = acted_on(state, command)
    return report_json(pool, backoff, events, moments)


# Backoffs and choosing.


@put("/v1/backoffs", summary="Do not use a model or account for a while")
async def set_backoff(service: Service, data: BackoffBody) -> BackoffShape:
    meant = _UNDERSTOOD.get(data.reason, data.reason)
    if meant not in CAUSES:
        raise BadRequest(f"reason {shown(data.reason)}: valid are {', '.join(CAUSES)}")
    name, scope = parse_key(data.key)
    state, _ = await service.look()
    check_provider(data.key, state, service.gate.settings)
    if meant in _OF_THE_ACCOUNT and scope != "account":
        name = name.partition("/")[0]
    for_ms = None if data.for_s is None else max(int(data.for_s * 1000), 1)
    refused = service.gate.credentials.used_for(f"{name}/any").digest if meant == "auth" else ""
    events = await _change(service, cmd.BackOff(name, meant, for_ms, refused))
    (made,) = [event for event in events if isinstance(event, ev.BackedOff)]
    state, moments = await service.look()
    if made.key not in state.backoffs:
        raise conflict(f"the backoff of {made.key} was ended by somebody else in the same moment")
    return backoff_json(state.backoffs[made.key], moments)


@delete("/v1/backoffs", summary="Use a model or account again", status_code=200)
async def clear_backoffs(
    service: Service,
    key: Annotated[str | None, Parameter(min_length=1, max_length=300)] = None,
    everything: Annotated[bool, QueryParameter(name="all", description="clear all of them")] = False,
) -> ClearedAnswer:
    if (key is None) != everything:
        raise BadRequest("say which: key, or all=true")
    state, _ = await service.look()
    names = sorted(state.backoffs) if key is None else [parse_key(key)[0]]
    events = await _change(service, *(cmd.EndBackoff(name) for name in names)) if names else []
    return ClearedAnswer(names, entered(events))


@post("/v1/select", summary="The model to use now; with `rotate`, the least recently chosen", status_code=200)
async def select(service: Service, data: SelectBody) -> SelectAnswer:
    models = some_candidates(candidates(service, data.models))
    state, moments = await service.look()
    missing = lacking(service, models)
    there = tuple(model for model in models if model not in missing)
    if data.rotate is None:
        return selected(state, models, first_usable(state, there, moments.now), missing, moments)
    events = await _change(service, cmd.Select(there, data.rotate), durable=False) if there else []
    chosen = next((event.model for event in events if isinstance(event, ev.Chosen)), None)
    state, moments = await service.look()
    return selected(state, models, chosen, missing, moments)


ROUTES = [
    cancel_one,
    cancel,
    bump,
    set_cap,
    remove_cap,
    reset_cap,
    import_caps,
    set_cooldown,
    pause,
    resume,
    drain,
    restore,
    report,
    set_backoff,
    clear_backoffs,
    select,
]
