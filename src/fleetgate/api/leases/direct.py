"""The handler of the lease routes, which are called thousands of times a second: it answers on the connection itself,
with the same functions as the routes that document them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from http import HTTPStatus

import msgspec

from fleetgate.api.bodies import AcquireBody, ReleaseBody
from fleetgate.api.errors import complain, refusal
from fleetgate.api.leases import operations
from fleetgate.api.router.arguments import unreadable
from fleetgate.api.security.caller import Caller
from fleetgate.api.security.request_guard import SECURE_HEADERS
from fleetgate.api.service import Service
from fleetgate.core.access.keys import AGENT
from fleetgate.front.request import ClientLeft, ClientRequest, header_lines

_acquire = msgspec.json.Decoder(AcquireBody).decode
_release = msgspec.json.Decoder(ReleaseBody).decode
_encode = msgspec.json.Encoder().encode
_find = re.compile("/v1/leases(?:/([A-Za-z0-9_-]{1,64})/(release|renew))?").fullmatch
_HEADERS = header_lines([(b"content-type", b"application/json"), *SECURE_HEADERS])


class DirectLeases:
    """`keep` gets the task of each request."""

    def __init__(self, service: Service, keep: Callable[[asyncio.Task[None]], None]) -> None:
        self._service = service
        self._keep = keep

    def take(self, request: ClientRequest, path: str, caller: Caller) -> bool:
        """Handle a request if it is one for a lease; returns whether it is. The guard has let it pass."""
        found = _find(path)
        if found is None or request.method != "POST":
            return False
        caller.must_be(AGENT)
        answer = self._answer(request, caller, found[1] or "", found[2] or "")
        self._keep(asyncio.get_running_loop().create_task(answer))
        return True

    async def _answer(self, request: ClientRequest, caller: Caller, ident: str, verb: str) -> None:
        extra = b""
        try:
            status, shape = await self._work(request, caller, ident, verb)
        except ClientLeft:
            return
        except asyncio.CancelledError:  # the service ends, and has waited long enough
            request.abort()
            raise
        except Exception as error:
            status, shape, headers = refusal(unreadable(error) if isinstance(error, msgspec.MsgspecError) else error)
            extra = header_lines([(name.encode(), value.encode()) for name, value in headers.items()])
            if status == HTTPStatus.INTERNAL_SERVER_ERROR:
                complain(f"POST /v1/leases {ident} {verb}", error)
        if not request.gone:
            request.respond_with(status, _HEADERS + extra, _encode(shape))

    async def _work(self, request: ClientRequest, caller: Caller, ident: str, verb: str) -> tuple[int, object]:
        """What a request asks for is done: the answer. Raises what is wrong with it."""
        body = request.take_body() if request.body_complete else await request.read_whole_body()
        address = str(request.client[0]) if request.client else ""
        if not verb:
            return await operations.ask(self._service, _acquire(body), caller, address, request.watch_client)
        if verb == "release":
            said = _release(body) if body else ReleaseBody()
            return 200, await operations.release(self._service, ident, said, caller, caller.author)
        return 200, await operations.renew(self._service, ident, caller)
