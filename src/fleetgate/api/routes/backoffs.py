"""The routes that set and clear backoffs, and the route that chooses a model."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from fleetgate.api.bodies import BackoffBody, ClearedAnswer, SelectAnswer, SelectBody
from fleetgate.api.errors import conflict
from fleetgate.api.router.route import Parameter, delete, post, put
from fleetgate.api.routes.read import candidates, lacking, selected, some_candidates
from fleetgate.api.security.caller import ANYONE, Caller
from fleetgate.api.service import Service
from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.access.keys import AGENT
from fleetgate.core.errors import BadRequest
from fleetgate.core.pools.backoff import parse_key
from fleetgate.present.json.state import BackoffShape, backoff_json
from fleetgate.present.model_choice import first_usable
from fleetgate.present.name_lookup import check_provider, entered, read_backoff


@put("/v1/backoffs", summary="Do not use a model or account for a while")
async def set_backoff(service: Service, data: BackoffBody) -> BackoffShape:
    name, meant = read_backoff(data.key, data.reason)
    state, _ = await service.look()
    check_provider(data.key, state, service.gate.settings)
    for_ms = None if data.for_s is None else max(int(data.for_s * 1000), 1)
    refused = service.gate.credentials.used_for(f"{name}/any").digest if meant == "auth" else ""
    events = await service.change(cmd.BackOff(name, meant, for_ms, refused))
    (made,) = [event for event in events if isinstance(event, ev.BackedOff)]
    state, moments = await service.look()
    if made.key not in state.backoffs:
        raise conflict(f"the backoff of {made.key} was ended by another process at the same moment")
    return backoff_json(state.backoffs[made.key], moments)


@delete("/v1/backoffs", summary="Use a model or account again", status=200)
async def clear_backoffs(
    service: Service,
    key: Annotated[str, Meta(min_length=1, max_length=300)] | None = None,
    everything: Annotated[bool, Parameter("all"), Meta(description="clear all of them")] = False,
) -> ClearedAnswer:
    if (key is None) != everything:
        raise BadRequest("say which: key, or all=true")
    state, _ = await service.look()
    names = sorted(state.backoffs) if key is None else [parse_key(key)[0]]
    events = await service.change(*(cmd.EndBackoff(name) for name in names)) if names else []
    return ClearedAnswer(names, entered(events))


@post("/v1/select", summary="The model to use now; with `rotate`, the least recently chosen", status=200, role=ANYONE)
async def select(service: Service, caller: Caller, data: SelectBody) -> SelectAnswer:
    if data.rotate is not None:
        caller.must_be(AGENT)  # it is counted as chosen
    state, moments = await service.look()
    models = state.accounts.expand(some_candidates(candidates(service, data.models)))
    missing = lacking(service, models)
    there = tuple(model for model in models if model not in missing)
    if data.rotate is None:
        return selected(state, models, first_usable(state, there, moments.now), missing, moments)
    events = await service.change(cmd.Select(there, data.rotate), durable=False) if there else []
    chosen = next((event.model for event in events if isinstance(event, ev.Chosen)), None)
    state, moments = await service.look()
    return selected(state, models, chosen, missing, moments)
