"""A handler that runs an ASGI 3 application: each request in a task of its own.

`lifespan` and `websocket` are not offered: the service starts and stops its parts itself, and has no web sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import unquote

from fleetgate.front.request import ClientLeft, ClientRequest

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_VERSIONS = {"version": "3.0", "spec_version": "2.3"}
_FAILED = b'{"error":"the service made a mistake: its log has the details","reason":"internal"}'


class AsgiHandler:
    """Calls an application. `keep` gets the task of each request; `complain` gets what an application raised."""

    def __init__(
        self,
        app: App,
        keep: Callable[[asyncio.Task[None]], None],
        complain: Callable[[str, Exception], None],
    ) -> None:
        self._app = app
        self._keep = keep
        self._complain = complain

    def __call__(self, request: ClientRequest) -> None:
        self._keep(asyncio.get_running_loop().create_task(self._run(request)))

    async def _run(self, request: ClientRequest) -> None:
        exchange = AsgiExchange(request)
        try:
            await self._app(scope_of(request), exchange.receive, exchange.send)
        except asyncio.CancelledError:
            request.abort()
            raise
        except Exception as error:
            if not request.gone:
                self._complain(f"{request.method} {request.path.decode('latin-1')}", error)
            if not request.response_begun and not request.gone:
                request.respond(500, [(b"content-type", b"application/json")], _FAILED)
        if not request.responded and not request.gone:
            request.abort()  # the client must not take a part for the whole


def scope_of(request: ClientRequest) -> Scope:
    """The connection scope of a request."""
    return {
        "type": "http",
        "asgi": _VERSIONS,
        "http_version": request.http_version,
        "method": request.method,
        "scheme": request.scheme,
        "path": unquote(request.path.decode("latin-1"), errors="replace"),
        "raw_path": request.path,
        "query_string": request.query,
        "root_path": "",
        "headers": request.headers,
        "client": request.client,
        "server": request.server,
        "fleetgate.peer": request.peer,
    }


class AsgiExchange:
    """`receive` and `send` of one request."""

    def __init__(self, request: ClientRequest) -> None:
        self.request = request
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
            pairs = ((bytes(name).lower(), bytes(value)) for name, value in message.get("headers", ()))
            request.begin(message["status"], pairs)
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
