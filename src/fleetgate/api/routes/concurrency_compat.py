"""`/concurrency/…`, for clients that already speak it: byte for byte in its errors (rule H1). About requests pools."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from fleetgate.api.router.route import ApiRequest, ApiResponse, DocumentedAnswer, delete, get, put
from fleetgate.api.service import Service
from fleetgate.core import commands as cmd
from fleetgate.core.entities import Rule
from fleetgate.core.errors import FleetgateError
from fleetgate.core.model_names import canonical, parse_selector
from fleetgate.core.state.state import State
from fleetgate.core.views.pool_and_lease_views import PoolView, pool_views
from fleetgate.log.protocol import StoreError

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


_DOWN = {503: DocumentedAnswer(CompatProblem, DOWN)}
_NOT_THERE = {404: DocumentedAnswer(CompatProblem, UNKNOWN), **_DOWN}
_BAD = {
    400: DocumentedAnswer(CompatProblem, "The body is not what it must be"),
    **_NOT_THERE,
}


def _takes(name: str, least: int) -> dict[str, Any]:
    """The schema of a body that is read by hand."""
    return {"type": "object", "properties": {name: {"type": "integer", "minimum": least}}, "required": [name]}


class CompatRefused(FleetgateError):
    """A refusal of these routes, with its status: its sentence is the whole answer."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def _selector(path: str) -> str:
    """The selector of an id in a path; what cannot be one is a provider that is not there."""
    ident = path.removeprefix("/")
    try:
        selector = parse_selector(ident)
    except FleetgateError:
        raise CompatRefused(404, UNKNOWN) from None
    if selector.scope != "model":
        raise CompatRefused(404, UNKNOWN)
    return canonical(ident).replace("@default", "", 1)


@get("/concurrency/status", summary="Every limit, and how full it is", answers=_DOWN)
async def status(service: Service) -> ProvidersAnswer:
    state, moments = await service.look()
    views = [
        view
        for view in pool_views(state, moments.now, service.gate.host)
        if view.kind == KIND and not view.host and parse_selector(view.selector).scope == "model"
    ]
    return ProvidersAnswer([_provider(view, moments.offset_ms) for view in views])


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


@get("/concurrency/limits", summary="Every limit", answers=_DOWN)
async def limits(service: Service) -> LimitsAnswer:
    state, _ = await service.look()
    found = [
        LimitShape(text, _in_force(state, text, cap.cap))
        for (kind, text), cap in sorted(state.rules.caps.items())
        if kind == KIND and cap.cap is not None and cap.selector.scope == "model"
    ]
    return LimitsAnswer(found)


def _in_force(state: State, selector: str, cap: int) -> int:
    """The limit that `status` shows, which rate limits may have lowered; of a cap with several pools, the cap."""
    pool = state.named(KIND, selector)
    return cap if pool is None or not pool.cap.capped else pool.limit


@get("/concurrency/limits/{ident:path}", summary="One limit", answers=_NOT_THERE)
async def limit(service: Service, ident: str) -> LimitShape:
    state, _ = await service.look()
    selector = _selector(ident)
    cap = state.rules.caps.get((KIND, selector))
    if cap is None or cap.cap is None:
        raise CompatRefused(404, UNKNOWN)
    return LimitShape(ident.removeprefix("/"), _in_force(state, selector, cap.cap))


@put(
    "/concurrency/limits/{ident:path}",
    summary="Set a limit",
    body_schema=_takes("limit", 1),
    answers=_BAD,
)
async def set_limit(service: Service, request: ApiRequest, ident: str) -> LimitShape:
    number = await _whole(request, "limit", 1, 1_000_000, BAD_LIMIT)
    selector = _selector(ident)
    rule = Rule(KIND, selector, cap=number, on_429="step", usage_gate=await _usage_gate(service, selector))
    await service.change(cmd.SetRule(rule))
    return LimitShape(ident.removeprefix("/"), number)


async def _usage_gate(service: Service, selector: str) -> bool | None:
    """True where the provider can be asked for its own count, unless the file says no; None leaves it as it is."""
    state, _ = await service.look()
    in_file = state.rules.file.get((KIND, selector))
    said = in_file is not None and in_file.usage_gate is not None
    can_ask = service.gate.core.usage.can_ask(selector.partition("/")[0])
    return True if can_ask and not said else None


@delete(
    "/concurrency/limits/{ident:path}",
    summary="Remove a limit",
    status=200,
    answers=_NOT_THERE,
)
async def remove_limit(service: Service, ident: str) -> OkAnswer:
    """Harmless when there is none."""
    state, _ = await service.look()
    selector = _selector(ident)
    cap = state.rules.caps.get((KIND, selector))
    if cap is not None and cap.capped:
        await service.change(cmd.RemoveCap(KIND, selector))
    return OkAnswer(True, ident.removeprefix("/"))


@get("/concurrency/cooldown/{ident:path}", summary="One cooldown", answers=_NOT_THERE)
async def cooldown(service: Service, ident: str) -> CooldownShape:
    state, _ = await service.look()
    key = (KIND, _selector(ident))
    cap = state.rules.caps.get(key)
    if cap is None or not (cap.capped or key in state.rules.runtime):
        raise CompatRefused(404, UNKNOWN)
    return CooldownShape(ident.removeprefix("/"), cap.cooldown_ms)


@put(
    "/concurrency/cooldown/{ident:path}",
    summary="Set a cooldown",
    body_schema=_takes("cooldownMs", 0),
    answers=_BAD,
)
async def set_cooldown(service: Service, request: ApiRequest, ident: str) -> CooldownShape:
    number = await _whole(request, "cooldownMs", 0, 86_400_000, BAD_COOLDOWN)
    await service.change(cmd.SetRule(Rule(KIND, _selector(ident), cooldown_ms=number)))
    return CooldownShape(ident.removeprefix("/"), number)


async def _whole(request: ApiRequest, name: str, least: int, most: int, otherwise: str) -> int:
    """A whole number in a body; `true` is not one, 4.0 is as in the clients' language."""
    try:
        document: object = msgspec.json.decode(await request.body())
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise CompatRefused(400, BAD_JSON) from None
    value = document.get(name) if isinstance(document, dict) else None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise CompatRefused(400, otherwise)
    return value


def on_error(error: Exception) -> ApiResponse[CompatProblem]:
    """These routes' own errors."""
    if isinstance(error, StoreError):
        error = CompatRefused(503, DOWN)
    if not isinstance(error, CompatRefused):
        raise error
    return ApiResponse(CompatProblem(str(error)), status=error.status, media_type="application/json")
