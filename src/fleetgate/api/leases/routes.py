"""The routes of leases. Requests are answered by api/leases/direct.py, except those with a slash at the end of their
path; api/leases/operations.py does the work.
"""

from __future__ import annotations

from typing import Any

from fleetgate.api.bodies import (
    AcquireBody,
    DeferredAnswer,
    LeaseAnswer,
    ReleaseAnswer,
    ReleaseBody,
    RenewAnswer,
    StopAnswer,
)
from fleetgate.api.leases import operations
from fleetgate.api.router.route import ApiRequest, ApiResponse, DocumentedAnswer, post
from fleetgate.api.security.caller import Caller
from fleetgate.api.service import Service
from fleetgate.core.access.keys import AGENT
from fleetgate.front.asgi import request_of


@post(
    "/v1/leases",
    summary="Acquire a slot: at once, or after waiting in the queue (long poll)",
    role=AGENT,
    answers={
        200: DocumentedAnswer(DeferredAnswer, "Refused at once"),
        202: DocumentedAnswer(DeferredAnswer, "In the queue: ask again with `id`"),
    },
)
async def acquire(service: Service, caller: Caller, request: ApiRequest, data: AcquireBody) -> ApiResponse[LeaseAnswer]:
    client = request.scope.get("client")
    address = str(client[0]) if client else ""
    status, shape = await operations.ask(service, data, caller, address, request_of(request.scope).watch_client)
    answer: Any = ApiResponse(shape, status=status)
    return answer  # type: ignore[no-any-return]


@post("/v1/leases/{ident}/renew", summary="Renew a lease: its client is still alive", status=200, role=AGENT)
async def renew(service: Service, caller: Caller, ident: str) -> RenewAnswer:
    return await operations.renew(service, ident, caller)


@post("/v1/leases/{ident}/release", summary="Release a lease, or take it back by force", status=200, role=AGENT)
async def release(
    service: Service, caller: Caller, request: ApiRequest, ident: str, data: ReleaseBody | None = None
) -> ReleaseAnswer:
    return await operations.release(service, ident, data or ReleaseBody(), caller, request.caller.author)


@post(
    "/v1/leases/{ident}/stop",
    summary="Stop the agent or job of a lease: TERM, and KILL 10 s later",
    status=202,
    role=AGENT,
)
async def stop(service: Service, caller: Caller, request: ApiRequest, ident: str) -> StopAnswer:
    return await operations.stop(service, ident, caller, request.caller.author)
