"""Applications that were written for other ASGI servers run on the front: parts of Starlette, and lifespans."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route, WebSocketRoute

from fleetgate.front.asgi import AsgiHandler, request_of
from fleetgate.front.lifespan import Lifespan, StartFailed
from fleetgate.front.server import FrontServer
from tests.front.fronted import Client, fronted, until


class Log(list[str]):
    """What the application did."""


def application(log: Log) -> Starlette:
    async def show(request: Request) -> Response:
        form = dict(request.query_params)
        return JSONResponse({"path": request.path_params, "query": form, "method": request.method})

    async def upload(request: Request) -> Response:
        size = 0
        try:
            async for piece in request.stream():
                size += len(piece)
                if piece == b"half":
                    log.append("half")
        except ClientDisconnect:
            log.append("left")
        return PlainTextResponse(str(size))

    async def stream(request: Request) -> Response:
        async def pieces() -> AsyncIterator[bytes]:
            try:
                for number in range(int(request.path_params["number"])):
                    yield b"%d\n" % number
                    await asyncio.sleep(0)
            finally:
                log.append("stream ended")

        return StreamingResponse(pieces(), media_type="text/plain")

    async def endless(request: Request) -> Response:
        async def pieces() -> AsyncIterator[bytes]:
            try:
                while True:
                    yield b"x" * 1000
                    await asyncio.sleep(0.001)
            finally:
                log.append("endless ended")

        return StreamingResponse(pieces())

    async def later(request: Request) -> Response:
        return PlainTextResponse("now", background=BackgroundTask(log.append, "afterwards"))

    async def state(request: Request) -> Response:
        return PlainTextResponse(f"{request.state.name} {request_of(request.scope).http_version}")

    async def fail(request: Request) -> Response:
        raise RuntimeError("secret")

    async def socket(socket: Any) -> None:
        await socket.accept()

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[dict[str, str]]:
        log.append("started")
        yield {"name": "shared"}
        log.append("stopped")

    return Starlette(
        routes=[
            Route("/show/{name}", show, methods=["GET", "DELETE"]),
            Route("/upload", upload, methods=["POST"]),
            Route("/stream/{number:int}", stream),
            Route("/endless", endless),
            Route("/later", later),
            Route("/state", state),
            Route("/fail", fail),
            Route("/away", lambda _: RedirectResponse("/show/x")),
            WebSocketRoute("/socket", socket),
            Mount("/under", routes=[Route("/show/{name}", show)]),
        ],
        middleware=[Middleware(GZipMiddleware, minimum_size=500)],
        lifespan=lifespan,
    )


@asynccontextmanager
async def running(log: Log) -> AsyncIterator[tuple[FrontServer, Client]]:
    app: Any = application(log)
    lifespan = Lifespan(app)
    await lifespan.start()
    tasks: set[asyncio.Task[None]] = set()
    handler = AsgiHandler(app, tasks.add, lambda where, error: log.append(f"{where}: {error}"))
    async with fronted(lambda request: handler(request, lifespan.state)) as (server, connect):
        yield server, await connect()
        await asyncio.gather(*tasks, return_exceptions=True)
    await lifespan.stop()


def get(path: str, *headers: str, method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "host: x", *headers, "", ""]).encode()


async def chunks(client: Client) -> bytes:
    """A body in chunks."""
    parts = []
    while size := int(await client.reader.readline(), 16):
        parts.append(await client.read(size))
        await client.read(2)
    await client.read(2)
    return b"".join(parts)


async def test_routes_bodies_and_redirects() -> None:
    log = Log()
    async with running(log) as (_, client):
        client.send(get("/show/a%20b?q=1&r=%C3%A9"))
        status, body = await client.response()
        assert (status, json.loads(body)) == (
            200,
            {"path": {"name": "a b"}, "query": {"q": "1", "r": "é"}, "method": "GET"},
        )
        client.send(get("/under/show/x", method="HEAD"))
        head = await client.head()
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"content-length" in head
        client.send(get("/show/x", method="POST"))
        assert (await client.response())[0] == 405
        client.send(get("/nowhere"))
        assert (await client.response())[0] == 404
        client.send(get("/away"))
        head = await client.head()
        assert head.startswith(b"HTTP/1.1 307 ")
        assert b"location: /show/x\r\n" in head
        client.send(get("/state"))
        assert await client.response() == (200, b"shared 1.1")
        client.send(get("/later"))
        assert await client.response() == (200, b"now")
        await until(lambda: "afterwards" in log)
    assert log[0] == "started"
    assert log[-1] == "stopped"


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_large_upload_comes_in_pieces(chunked: bool) -> None:
    log = Log()
    async with running(log) as (_, client):
        body = b"y" * 300_000
        if chunked:
            client.send(get("/upload", "transfer-encoding: chunked", method="POST"))
            for at in range(0, len(body), 7_000):
                piece = body[at : at + 7_000]
                client.send(b"%x\r\n%s\r\n" % (len(piece), piece))
            client.send(b"0\r\ntrailer: ignored\r\n\r\n")
        else:
            client.send(get("/upload", f"content-length: {len(body)}", method="POST") + body)
        assert await client.response() == (200, b"300000")
        client.send(get("/upload", "content-length: 100", method="POST") + b"half")
        await until(lambda: "half" in log)
        client.abort()
        await until(lambda: "left" in log)


async def test_streams_go_out_as_they_are_made_and_end_when_the_client_leaves() -> None:
    log = Log()
    async with running(log) as (_, client):
        client.send(get("/stream/3"))
        assert b"transfer-encoding: chunked\r\n" in await client.head()
        assert await chunks(client) == b"0\n1\n2\n"
        client.send(get("/stream/400", "accept-encoding: gzip"))
        assert b"content-encoding: gzip\r\n" in await client.head()
        assert gzip.decompress(await chunks(client)) == b"".join(b"%d\n" % number for number in range(400))
        client.send(b"GET /stream/3 HTTP/1.0\r\nhost: x\r\n\r\n")
        head = await client.head()
        assert b"chunked" not in head
        assert await client.rest() == b"0\n1\n2\n"
    async with running(log) as (_, client):
        client.send(get("/endless"))
        await client.head()
        client.abort()
        await until(lambda: "endless ended" in log)


async def test_an_error_of_the_application_is_500_and_a_web_socket_is_not_found() -> None:
    log = Log()
    async with running(log) as (_, client):
        client.send(get("/fail"))
        status, body = await client.response()
        assert (status, b"secret" in body) == (500, False)
        client.send(get("/socket", "connection: upgrade", "upgrade: websocket", "sec-websocket-key: x"))
        assert (await client.response())[0] == 404
        assert await client.rest() == b"", "another protocol might follow"
    assert any("secret" in line for line in log)


async def test_a_lifespan_that_fails_is_an_error_and_none_at_all_is_not() -> None:
    async def failing(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "lifespan.startup"
        await send({"type": "lifespan.startup.failed", "message": "no database"})

    async def without(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"

    with pytest.raises(StartFailed, match="no database"):
        await Lifespan(failing).start()
    lifespan = Lifespan(without)
    await lifespan.start()
    await lifespan.stop()
