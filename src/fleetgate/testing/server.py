"""The HTTP server of the fake provider, on aiohttp.web (the `testing` extra): requests, replies, cut connections.

The rule: a handler whose client has left is cancelled at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus
from typing import Any, Self

import msgspec
from aiohttp import web

from fleetgate.testing.encodings import Encoder

MAX_HEAD_BYTES = 32 * 1024
MAX_BODY_BYTES = 32 * 1024 * 1024
BACKLOG = 1024
STOP_S = 1.0

_OWN_PHRASES = {498: "Capacity Exceeded", 529: "Overloaded"}

Fields = Iterable[tuple[str, str]]
Handler = Callable[["SeenRequest", "Reply"], Awaitable[None]]


class SeenRequest(msgspec.Struct):
    """One request, for a test to look at. Field names are in lower case; repeated fields are joined by a comma."""

    method: str
    target: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes = b""

    def json(self) -> Any:
        """The body as JSON; raises `msgspec.DecodeError`."""
        return msgspec.json.decode(self.body)


class Reply:
    """One response: either `send` it whole, or `start`, `write` and `finish` it. `drop` cuts the connection.

    `before_end` is called once, just before the last bytes leave, so that a client that has read the end finds it done.
    """

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self.response = web.StreamResponse()
        self.before_end: Callable[[], None] = _nothing
        self.encoder: Encoder | None = None

    async def send(self, status: int, body: bytes, fields: Fields = ()) -> None:
        body = self._encode_whole(body)
        self.response = web.Response(status=status, reason=_phrase(status), body=body)
        self._set_fields(fields)
        self.end()
        await self.response.prepare(self._request)
        await self.response.write_eof()

    async def start(self, status: int, fields: Fields = (), length: int | None = None) -> None:
        self.response = web.StreamResponse(status=status, reason=_phrase(status))
        self.response.content_length = length
        self._set_fields(fields)
        await self.response.prepare(self._request)

    async def write(self, data: bytes) -> None:
        if data:
            await self.response.write(data if self.encoder is None else self.encoder.add(data))

    async def finish(self, data: bytes = b"") -> None:
        """Send the last piece and the end together."""
        self.end()
        await self.response.write_eof(self._encode_whole(data))

    async def send_part(self, status: int, body: bytes, fields: Fields, part: float) -> None:
        """Announce the whole body, send this part of it (0 to 1), and cut the connection."""
        self.end()
        body = self._encode_whole(body)
        await self.start(status, fields, len(body))
        await self.response.write(body[: int(part * len(body))])
        self.drop()

    def drop(self) -> None:
        self.end()
        if self._request.transport is not None:
            self._request.transport.close()  # what was written is still sent, unlike with abort

    def end(self) -> None:
        """Call `before_end`, if it was not called yet."""
        before_end, self.before_end = self.before_end, _nothing
        before_end()

    def _encode_whole(self, body: bytes) -> bytes:
        return body if self.encoder is None else self.encoder.add(body) + self.encoder.finish()

    def _set_fields(self, fields: Fields) -> None:
        headers = self.response.headers
        headers.popall("Content-Type", None)
        if self.encoder is not None:
            headers["Content-Encoding"] = self.encoder.name
        for name, value in fields:
            # A field that a test scripted must not be able to split the response in two.
            headers.add(name, value.replace("\r", " ").replace("\n", " "))


class Server:
    """A listening socket, and a handler for each request."""

    def __init__(self, handler: Handler, host: str = "127.0.0.1", port: int = 0) -> None:
        self._handler = handler
        self._host = host
        self.port = port  # 0 until the start: any free one
        self._handling: set[asyncio.Task[Any]] = set()

    async def start(self) -> Self:
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            auto_decompress=False,
            handler_cancellation=True,
            max_line_size=MAX_HEAD_BYTES,
            max_field_size=MAX_HEAD_BYTES,
            shutdown_timeout=STOP_S,
        )
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self.port, backlog=BACKLOG).start()
        except OSError:
            await self._runner.cleanup()
            raise
        self.port = self._runner.addresses[0][1]
        return self

    async def stop(self) -> None:
        for task in self._handling:
            task.cancel()
        await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None
        self._handling.add(task)
        try:
            reply = Reply(request)
            await self._handler(await _read(request), reply)
            return reply.response
        finally:
            self._handling.discard(task)


async def _read(request: web.Request) -> SeenRequest:
    headers: dict[str, str] = {}
    for name, value in request.headers.items():
        name = name.lower()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    target = request.rel_url.raw_path_qs
    return SeenRequest(request.method, target, request.path, dict(request.query), headers, await request.read())


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return _OWN_PHRASES.get(status, "Unknown")


def _nothing() -> None: ...
