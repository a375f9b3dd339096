"""The routes that are called thousands of times a second, answered before Litestar by the same functions.

Only what is plainly one of them is answered here: a JSON body of moderate size. Everything else goes the usual way.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import partial

import msgspec

from headgate.api import leases
from headgate.api.bodies import AskBody, ReleaseBody
from headgate.api.errors import Refused
from headgate.api.guard import App, Receive, Scope, Send, refuse
from headgate.api.service import Service
from headgate.core.errors import HeadgateError
from headgate.gate.clients import Stop, Watch

_ask = msgspec.json.Decoder(AskBody).decode
_release = msgspec.json.Decoder(ReleaseBody).decode
_encode = msgspec.json.Encoder().encode
_PREFIX = "/v1/leases/"


class Quick:
    """Wraps the other routes."""

    def __init__(self, app: App, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if scope["method"] != "POST" or not path.startswith("/v1/leases"):
            await self._app(scope, receive, send)
            return
        if path == "/v1/leases":
            answer = self._ask
        elif path.startswith(_PREFIX) and path.endswith("/release"):
            answer = self._release
        elif path.startswith(_PREFIX) and path.endswith("/renew"):
            answer = self._renew
        else:
            await self._app(scope, receive, send)
            return
        try:
            status, shape = await answer(scope, receive, await _body(receive))
        except (HeadgateError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            await refuse(as_refusal(error), send)
            return
        body = _encode(shape)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _ask(self, scope: Scope, receive: Receive, body: bytes) -> tuple[int, object]:
        return await leases.ask(self._service, _ask(body), address_of(scope), hung_up(receive))

    async def _release(self, scope: Scope, receive: Receive, body: bytes) -> tuple[int, object]:
        ident = scope["path"][len(_PREFIX) : -len("/release")]
        said = _release(body) if body else ReleaseBody()
        return 200, await leases.release(self._service, ident, said, f"HTTP client {address_of(scope)}")

    async def _renew(self, scope: Scope, receive: Receive, body: bytes) -> tuple[int, object]:
        return 200, await leases.renew(self._service, scope["path"][len(_PREFIX) : -len("/renew")])


def as_refusal(error: Exception) -> Exception:
    """A body that cannot be read, as these routes say it."""
    if isinstance(error, msgspec.ValidationError):
        text, _, where = str(error).partition(" - at `$")
        field = where.rstrip("`").lstrip(".")
        unknown = re.search("unknown field `([^`]*)`", text)
        named = unknown[1] if unknown else field
        return Refused(400, "bad_request", f"{field or 'the body'}: {text[:1].lower()}{text[1:]}", field=named)
    if isinstance(error, msgspec.MsgspecError):
        return Refused(400, "bad_json", f"the body is not JSON: {error}")
    return error


async def _body(receive: Receive) -> bytes:
    message = await receive()
    body: bytes = message.get("body", b"")
    while message.get("more_body"):
        message = await receive()
        body += message.get("body", b"")
    return body


def address_of(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


def hung_up(receive: Receive) -> Watch:
    """Tells when the client's connection ends; to be used after the body was read."""
    cycle = getattr(receive, "__self__", None)  # uvicorn's own view of the request
    leavers = getattr(getattr(cycle, "transport", None), "leavers", None)
    if cycle is None or leavers is None:
        return partial(_listen, receive)

    def watch(tell: Callable[[], None]) -> Stop:
        if cycle.disconnected:
            tell()
        leavers[tell] = tell
        return partial(leavers.pop, tell, None)

    return watch


def _listen(receive: Receive, tell: Callable[[], None]) -> Stop:
    """By a task that waits for it: where the connection itself does not tell."""

    async def wait() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        tell()

    return asyncio.ensure_future(wait()).cancel
