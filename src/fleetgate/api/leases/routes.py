"""The routes of leases for Litestar and the OpenAPI document; the work is done in api/leases/operations.py."""

from __future__ import annotations

from functools import partial
from typing import Any

from litestar import Request, Response, post
from litestar.openapi.datastructures import ResponseSpec

from fleetgate.api.bodies import (
    AcquireBody,
    DeferredAnswer,
    LeaseAnswer,
    ReleaseAnswer,
    ReleaseBody,
    RenewAnswer,
    StopAnswer,
)
from fleetgate.api.http.client import client_of, on_disconnect
from fleetgate.api.leases import operations
from fleetgate.api.service import Service


@post(
    "/v1/leases",
    summary="Acquire a slot: at once, or after waiting in the queue (long poll)",
    responses={
        200: ResponseSpec(DeferredAnswer, description="Refused at once", generate_examples=False),
        202: ResponseSpec(DeferredAnswer, description="In the queue: ask again with `id`", generate_examples=False),
    },
)
async def acquire(service: Service, request: Request[Any, Any, Any], data: AcquireBody) -> Response[LeaseAnswer]:
    receive: Any = request.receive
    client = request.scope.get("client")
    address = str(client[0]) if client else ""
    status, shape = await operations.ask(service, data, address, partial(on_disconnect, receive))
    answer: Any = Response(shape, status_code=status)
    return answer  # type: ignore[no-any-return]


@post("/v1/leases/{ident:str}/renew", summary="Renew a lease: its client is still alive", status_code=200)
async def renew(service: Service, ident: str) -> RenewAnswer:
    return await operations.renew(service, ident)


@post("/v1/leases/{ident:str}/release", summary="Release a lease, or take it back by force", status_code=200)
async def release(
    service: Service, request: Request[Any, Any, Any], ident: str, data: ReleaseBody | None = None
) -> ReleaseAnswer:
    return await operations.release(service, ident, data or ReleaseBody(), client_of(request))


@post(
    "/v1/leases/{ident:str}/stop",
    summary="Stop the agent or job of a lease: TERM, and KILL 10 s later",
    status_code=202,
)
async def stop(service: Service, request: Request[Any, Any, Any], ident: str) -> StopAnswer:
    return await operations.stop(service, ident, client_of(request))
