"""A handler that runs an ASGI 3 application: each request in a task of its own.

`front/lifespan.py` tells the application when the server starts and stops. Web sockets are not offered: a request for
one is an HTTP request like any other, as HTTP allows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any
from urllib.parse import unquote_to_bytes

from fleetgate.front.request import ClientLeft, ClientRequest

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

VERSIONS = {"version": "3.0", "spec_version": "2.3"}
_EXTENSION = "fleetgate.request"
_FAILED = b'{"error":"something went wrong inside Fleetgate; the service\'s own output says what","reason":"internal"}'


def request_of(scope: Mapping[str, Any]) -> ClientRequest:
    """The server's own view of a request, for an application that knows which server it runs on."""
    request = scope["extensions"][_EXTENSION]
    assert isinstance(request, ClientRequest)
    return request


class AsgiHandler:
    """Calls an application.

    `keep` gets the task of each request, `complain` gets what the application raised, and `headers` are added to
    every response.
    """

    def __init__(
        self,
        app: App,
        keep: Callable[[asyncio.Task[None]], None],
        complain: Callable[[str, Exception], None],
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        self._app = app
        self._keep = keep
        self._complain = complain
        self._headers = headers

    def __call__(self, request: ClientRequest, state: Mapping[str, Any] | None = None) -> None:
        """Handle a request; `state` is what the application finds in `scope["state"]`."""
        self._keep(asyncio.get_running_loop().create_task(self._run(request, state or {})))

    async def _run(self, request: ClientRequest, state: Mapping[str, Any]) -> None:
        exchange = AsgiExchange(request, self._headers)
        try:
            await self._app(scope_of(request, state), exchange.receive, exchange.send)
        except asyncio.CancelledError:
            request.abort()
            raise
        except Exception as error:
            if not request.gone:
                self._complain(f"{request.method} {request.path.decode('latin-1')}", error)
            if not request.response_begun and not request.gone:
                request.respond(500, [(b"content-type", b"application/json"), *self._headers], _FAILED)
        if not request.responded and not request.gone:
            request.abort()  # the client must not take a part for the whole


def scope_of(request: ClientRequest, state: Mapping[str, Any]) -> Scope:
    """The connection scope of a request."""
    path = unquote_to_bytes(request.path) if b"%" in request.path else request.path
    return {
        "type": "http",
        "asgi": VERSIONS,
        "http_version": request.http_version,
        "method": request.method,
        "scheme": request.scheme,
        "path": path.decode("utf-8", "replace"),
        "raw_path": request.path,
        "query_string": request.query,
        "root_path": "",
        "headers": request.headers,
        "client": request.client,
        "server": request.server,
        "state": dict(state),
        "extensions": {_EXTENSION: request},
    }


class AsgiExchange:
    """`receive` and `send` of one request."""

    def __init__(self, request: ClientRequest, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        self.request = request
        self._headers = headers
        self._body_given = False

    async def receive(self) -> Message:
        request = self.request
        if not self._body_given and not request.responded:
            try:
                body, more = await request.read_body()
            except ClientLeft:
                return {"type": "http.disconnect"}
            self._body_given = not more
            return {"type": "http.request", "body": body, "more_body": more}
        await request.wait_until_gone()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        request, kind = self.request, message["type"]
        if request.gone:
            return
        if kind == "http.response.start":
            pairs = [(bytes(name).lower(), bytes(value)) for name, value in message.get("headers", ())]
            request.begin(message["status"], [*pairs, *self._headers])
        elif kind != "http.response.body":
            raise RuntimeError(f"an HTTP response has no message {kind!r}")
        elif not request.response_begun or request.responded:
            raise RuntimeError("http.response.body comes after http.response.start, and before the end")
        elif message.get("more_body"):
            request.write(bytes(message.get("body", b"")))
            if request.paused:
                await request.drain()
        else:
            request.end(bytes(message.get("body", b"")))
