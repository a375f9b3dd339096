"""The routes that change caps and cooldowns.

Selector and kind are checked first; a request that is not valid changes nothing.
"""

from __future__ import annotations

from msgspec.structs import asdict

from fleetgate.api.bodies import (
    CapAnswer,
    CapBody,
    CapRemovedAnswer,
    CapResetAnswer,
    CooldownAnswer,
    CooldownBody,
    ImportAnswer,
    ImportBody,
    ImportedCap,
    Kind,
    PreviousCap,
    SelectorBody,
)
from fleetgate.api.router.route import delete, post, put
from fleetgate.api.routes.read import Selector, cooldown_of
from fleetgate.api.service import Service
from fleetgate.config.environment import Environment
from fleetgate.config.errors import BadValue
from fleetgate.config.import_caps import parse_caps
from fleetgate.config.value_types import read_cap_name
from fleetgate.core import commands as cmd
from fleetgate.core.entities import Rule
from fleetgate.core.errors import BadRequest
from fleetgate.core.model_names import canonical, parse_selector
from fleetgate.core.pools.effective_caps import Cap, default_cooldown_ms
from fleetgate.core.state.state import State
from fleetgate.gate.liveness.host_observer import observe_memory
from fleetgate.present import cap_listing
from fleetgate.present.name_lookup import check_selector, entered, kind_for


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
        lendable=data.lendable,
        refusals=data.refusals,
    )
    if data.reserve is not None:
        rule = cap_listing.with_reserve(rule, data.reserve)
    if rule.auto and (rule.selector, rule.kind) != ("host", "agents"):
        raise BadRequest("cap auto: only the agents of a host follow free memory; valid is a whole number from 1")
    if rule.on_429 is not None and parse_selector(rule.selector).scope != "model":
        raise BadRequest(f"on_429: a rate limit never acts on {rule.selector}; valid for providers and models")
    return await set_rule(service, state, rule)


def _name(text: str) -> str:
    try:
        return read_cap_name(text)
    except BadValue as error:
        raise BadRequest(f"name: {error}") from error


async def set_rule(service: Service, state: State, rule: Rule) -> CapAnswer:
    key = (rule.kind, rule.selector)
    was = _was(state.rules.caps.get(key))
    commands: list[cmd.Command] = [cmd.SetRule(rule)]
    if rule.auto:
        commands.append(observe_memory(service.gate.settings, state, service.gate.host))
    events = await service.change(*commands)
    state, _ = await service.look()
    line = next(each for each in cap_listing.lines(state, Environment()) if (each.kind, each.selector) == key)
    return CapAnswer(**asdict(line), entered=entered(events), was=was)


def _was(cap: Cap | None) -> PreviousCap | None:
    return PreviousCap(cap.cap, cap.auto, cap.source) if cap is not None and cap.capped else None


@delete("/v1/caps", summary="Remove a cap: unlimited, whatever the config file says", status=200)
async def remove_cap(service: Service, selector: Selector, kind: Kind | None = None) -> CapRemovedAnswer:
    selector = canonical(selector)
    state, _ = await service.look()
    found = kind_for(state, selector, kind)
    before = cap_listing.cap_to_remove(state, found, selector)
    was = _was(before)
    events = [] if before.unlimited else await service.change(cmd.RemoveCap(found, selector))
    return CapRemovedAnswer(selector, found, None, entered(events), was)


@post("/v1/caps/reset", summary="Reset a cap to the config file", status=200)
async def reset_cap(service: Service, data: SelectorBody) -> CapResetAnswer:
    state, _ = await service.look()
    kind = data.kind or cap_listing.kind_set(state, data.selector) or kind_for(state, data.selector)
    cap_listing.check_set(state, kind, data.selector)
    was = _was(state.rules.caps.get((kind, data.selector)))
    events = await service.change(cmd.ResetCap(kind, data.selector))
    state, _ = await service.look()
    cap = state.rules.caps.get((kind, data.selector))
    if cap is None or not cap.capped:
        return CapResetAnswer(data.selector, kind, None, False, None, entered(events), was)
    return CapResetAnswer(data.selector, kind, cap.cap, cap.auto, cap.source, entered(events), was)


@post("/v1/caps/import", summary="Set the caps of a dispatch-model-caps.conf, all or none", status=200)
async def import_caps(service: Service, data: ImportBody) -> ImportAnswer:
    found = parse_caps(data.text, "text")
    rules = [cmd.SetRule(Rule("agents", selector, cap=cap)) for selector, cap in found]
    events = await service.change(*rules) if rules else []
    return ImportAnswer([ImportedCap(selector, "agents", cap) for selector, cap in found], entered(events))


@put("/v1/cooldown", summary="Set how long a released slot stays blocked")
async def set_cooldown(service: Service, data: CooldownBody) -> CooldownAnswer:
    state, _ = await service.look()
    check_selector(data.selector, state, service.gate.settings)
    kind = kind_for(state, data.selector, data.kind)
    cap = state.rules.caps.get((kind, data.selector))
    was_ms = default_cooldown_ms(kind, parse_selector(data.selector)) if cap is None else cap.cooldown_ms
    await service.change(cmd.SetRule(Rule(kind, data.selector, cooldown_ms=data.cooldown_ms)))
    state, _ = await service.look()
    return cooldown_of(state, data.selector, kind, was_ms)
