"""The routes of leases for Litestar and the OpenAPI document; the work is done in api/leases.py."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, post
from litestar.openapi.datastructures import ResponseSpec

from headgate.api import leases
from headgate.api.bodies import AskBody, DeferredAnswer, LeaseAnswer, ReleaseAnswer, ReleaseBody, RenewAnswer
from headgate.api.quick import address_of, hung_up
from headgate.api.service import Service


@post(
    "/v1/leases",
    summary="Ask for a seat: at once, or waiting in line by long-poll",
    responses={
        200: ResponseSpec(DeferredAnswer, description="Refused at once", generate_examples=False),
        202: ResponseSpec(DeferredAnswer, description="In line: ask again with `id`", generate_examples=False),
    },
)
async def acquire(service: Service, request: Request[Any, Any, Any], data: AskBody) -> Response[LeaseAnswer]:
    receive: Any = request.receive
    status, shape = await leases.ask(service, data, _address(request), hung_up(receive))
    answer: Any = Response(shape, status_code=status)
    return answer  # type: ignore[no-any-return]


def _address(request: Request[Any, Any, Any]) -> str:
    scope: Any = request.scope
    return address_of(scope)


@post("/v1/leases/{ident:str}/renew", summary="The client of this lease is still there", status_code=200)
async def renew(service: Service, ident: str) -> RenewAnswer:
    return await leases.renew(service, ident)


@post("/v1/leases/{ident:str}/release", summary="Give a lease back, or take it back by force", status_code=200)
async def release(
    service: Service, request: Request[Any, Any, Any], ident: str, data: ReleaseBody | None = None
) -> ReleaseAnswer:
    by = f"HTTP client {_address(request)}"
    return await leases.release(service, ident, data or ReleaseBody(), by)


ROUTES = [acquire, renew, release]
