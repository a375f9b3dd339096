"""`/concurrency/…`, for clients that already speak it: byte for byte in its errors (rule H1). About requests pools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from litestar import Request, Response, delete, get, put
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import OpenAPIMediaType, OpenAPIType, Operation, RequestBody, Schema
from msgspec import UNSET, Struct, UnsetType

from fleetgate.api.service import Service
from fleetgate.core import commands as cmd
from fleetgate.core.entities import Rule
from fleetgate.core.errors import FleetgateError
from fleetgate.core.model_names import canonical, parse_selector
from fleetgate.core.pools.effective_caps import Cap
from fleetgate.core.state.state import State
from fleetgate.core.views.pool_and_lease_views import PoolView, pool_views
from fleetgate.log.protocol import StoreError
from fleetgate.present.name_lookup import succeeded

KIND = "requests"
BAD_JSON = "Invalid JSON body"
BAD_LIMIT = "Body must be { limit: <positive integer> }"
BAD_COOLDOWN = "Body must be { cooldownMs: <non-negative integer> }"
UNKNOWN = "No concurrency configuration for this provider"
DOWN = "Concurrency service not available"


class CompatProblem(Struct):
    error: str


class ProviderShape(Struct, rename="camel", omit_defaults=True):
    provider_id: str
    limit: int | None
    in_flight: int
    queued: int
    paused: bool
    cooldown_ms: int
    auto_reduced: bool
    paused_until: int | UnsetType = UNSET
    auto_reduced_from: int | UnsetType = UNSET
    notice: str | UnsetType = UNSET


class ProvidersAnswer(Struct):
    providers: list[ProviderShape]


class LimitShape(Struct, rename="camel"):
    provider_id: str
    limit: int


class LimitsAnswer(Struct):
    limits: list[LimitShape]


class CooldownShape(Struct, rename="camel"):
    provider_id: str
    cooldown_ms: int


class OkAnswer(Struct, rename="camel"):
    ok: bool
    provider_id: str


Answer = Response[Any]
_DOWN = {503: ResponseSpec(CompatProblem, description=DOWN, generate_examples=False)}
_NOT_THERE = {404: ResponseSpec(CompatProblem, description=UNKNOWN, generate_examples=False), **_DOWN}
_BAD = {
    400: ResponseSpec(CompatProblem, description="The body is not what it must be", generate_examples=False),
    **_NOT_THERE,
}


def _takes(name: str, least: int) -> type[Operation]:
    """An operation whose body is read by hand, documented."""
    number = Schema(type=OpenAPIType.INTEGER, minimum=least)
    schema = Schema(type=OpenAPIType.OBJECT, properties={name: number}, required=[name])

    @dataclass
    class Takes(Operation):
        def __post_init__(self) -> None:
            self.request_body = RequestBody({"application/json": OpenAPIMediaType(schema=schema)}, required=True)

    return Takes


def said(shape: type, description: str = "Done") -> dict[int, ResponseSpec]:
    return {200: ResponseSpec(shape, description=description, generate_examples=False)}


def problem(status: int, sentence: str) -> Answer:
    return Response(CompatProblem(sentence), status_code=status, media_type="application/json")


def answer(shape: Struct) -> Answer:
    return Response(shape, media_type="application/json")


class NotThere(FleetgateError):
    """No such provider: mapped to the 404 of these routes."""


async def _state(service: Service) -> State:
    state, _ = await service.look()
    return state


def _capped(state: State, ident: str) -> Cap:
    cap = _known(state, ident)
    if cap is None or cap.cap is None:
        raise NotThere(UNKNOWN)
    return cap


def _known(state: State, ident: str) -> Cap | None:
    return state.rules.caps.get((KIND, _selector(ident)))


def _selector(ident: str) -> str:
    """The selector of an id; what cannot be one is a provider that is not there."""
    try:
        selector = parse_selector(ident)
    except FleetgateError:
        raise NotThere(UNKNOWN) from None
    if selector.scope != "model":
        raise NotThere(UNKNOWN)
    return canonical(ident).replace("@default", "", 1)


@get("/concurrency/status", summary="Every limit, and how full it is", responses={**said(ProvidersAnswer), **_DOWN})
async def status(service: Service) -> Answer:
    state, moments = await service.look()
    views = [
        view
        for view in pool_views(state, moments.now, service.gate.host)
        if view.kind == KIND and not view.host and parse_selector(view.selector).scope == "model"
    ]
    return answer(ProvidersAnswer([_provider(view, moments.offset_ms) for view in views]))


def _provider(view: PoolView, offset_ms: int) -> ProviderShape:
    shape = ProviderShape(
        provider_id=view.pool,
        limit=view.limit,
        in_flight=view.in_flight + view.cooling,
        queued=view.queued,
        paused=view.paused_until is not None,
        cooldown_ms=view.cooldown_ms,
        auto_reduced=view.auto_reduced,
    )
    if view.paused_until is not None:
        shape.paused_until = view.paused_until + offset_ms
    if view.auto_reduced_from is not None:
        shape.auto_reduced_from = view.auto_reduced_from
    if view.notice is not None:
        shape.notice = view.notice
    return shape


@get("/concurrency/limits", summary="Every limit", responses={**said(LimitsAnswer), **_DOWN})
async def limits(service: Service) -> Answer:
    state = await _state(service)
    caps = sorted(state.rules.caps.items())
    found = [
        LimitShape(text, _in_force(state, text, cap.cap))
        for (kind, text), cap in caps
        if kind == KIND and cap.cap is not None and cap.selector.scope == "model"
    ]
    return answer(LimitsAnswer(found))


def _in_force(state: State, selector: str, cap: int) -> int:
    """The limit that `status` shows, which rate limits may have lowered; of a cap with several pools, the cap."""
    pool = state.named(KIND, selector)
    return cap if pool is None or not pool.cap.capped else pool.limit


@get("/concurrency/limits/{ident:path}", summary="One limit", responses={**said(LimitShape), **_NOT_THERE})
async def limit(service: Service, ident: str) -> Answer:
    ident = ident.removeprefix("/")
    state = await _state(service)
    cap = _capped(state, ident)
    assert cap.cap is not None
    return answer(LimitShape(ident, _in_force(state, _selector(ident), cap.cap)))


@put(
    "/concurrency/limits/{ident:path}",
    summary="Set a limit",
    operation_class=_takes("limit", 1),
    responses={**said(LimitShape), **_BAD},
)
async def set_limit(service: Service, request: Request[Any, Any, Any], ident: str) -> Answer:
    ident = ident.removeprefix("/")
    number = _whole(await _document(request), "limit", 1)
    if number is None:
        return problem(400, BAD_LIMIT)
    selector = _selector(ident)
    rule = Rule(KIND, selector, cap=number, on_429="step", usage_gate=await _usage_gate(service, selector))
    succeeded(await service.gate.decide(cmd.SetRule(rule), durable=True))
    return answer(LimitShape(ident, number))


async def _usage_gate(service: Service, selector: str) -> bool | None:
    """True where the provider can be asked for its own count, unless the file says no; None leaves it as it is."""
    state = await _state(service)
    in_file = state.rules.file.get((KIND, selector))
    said = in_file is not None and in_file.usage_gate is not None
    can_ask = service.gate.can_ask((f"{selector.partition('/')[0]}/any",))
    return True if can_ask and not said else None


@delete(
    "/concurrency/limits/{ident:path}",
    summary="Remove a limit",
    status_code=200,
    responses={**said(OkAnswer), **_NOT_THERE},
)
async def remove_limit(service: Service, ident: str) -> Answer:
    """Harmless when there is none."""
    ident = ident.removeprefix("/")
    cap = _known(await _state(service), ident)
    if cap is not None and cap.capped:
        succeeded(await service.gate.decide(cmd.RemoveCap(KIND, _selector(ident)), durable=True))
    return answer(OkAnswer(True, ident))


@get("/concurrency/cooldown/{ident:path}", summary="One cooldown", responses={**said(CooldownShape), **_NOT_THERE})
async def cooldown(service: Service, ident: str) -> Answer:
    ident = ident.removeprefix("/")
    state = await _state(service)
    cap = _known(state, ident)
    if cap is None or not (cap.capped or (KIND, _selector(ident)) in state.rules.runtime):
        return problem(404, UNKNOWN)
    return answer(CooldownShape(ident, cap.cooldown_ms))


@put(
    "/concurrency/cooldown/{ident:path}",
    summary="Set a cooldown",
    operation_class=_takes("cooldownMs", 0),
    responses={**said(CooldownShape), **_BAD},
)
async def set_cooldown(service: Service, request: Request[Any, Any, Any], ident: str) -> Answer:
    ident = ident.removeprefix("/")
    number = _whole(await _document(request), "cooldownMs", 0)
    if number is None or number > 86_400_000:
        return problem(400, BAD_COOLDOWN)
    rule = Rule(KIND, _selector(ident), cooldown_ms=number)
    succeeded(await service.gate.decide(cmd.SetRule(rule), durable=True))
    return answer(CooldownShape(ident, number))


class BadJson(FleetgateError):
    """The body is not JSON."""


async def _document(request: Request[Any, Any, Any]) -> object:
    try:
        return msgspec.json.decode(await request.body())
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise BadJson(BAD_JSON) from None


def _whole(document: object, name: str, least: int) -> int | None:
    """A whole number in a body; `true` is not one, 4.0 is as in the clients' language."""
    value = document.get(name) if isinstance(document, dict) else None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 1_000_000_000:
        return None
    return value if name != "limit" or value <= 1_000_000 else None


def on_error(error: Exception) -> Answer:
    """These routes' own errors."""
    if isinstance(error, NotThere):
        return problem(404, UNKNOWN)
    if isinstance(error, BadJson):
        return problem(400, BAD_JSON)
    if isinstance(error, StoreError):
        return problem(503, DOWN)
    raise error


ROUTES = [status, limits, limit, set_limit, remove_limit, cooldown, set_cooldown]
