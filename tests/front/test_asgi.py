"""The ASGI adapter: what an application may rely on."""

from __future__ import annotations

import asyncio
from typing import Any

from fleetgate.front.asgi import AsgiHandler
from tests.front.fronted import fronted, until

GET = b"GET /a%20b?c=d HTTP/1.1\r\nHost: x\r\n\r\n"


class Complaints(list[str]):
    def add(self, where: str, error: Exception) -> None:
        self.append(f"{where}: {error}")


def adapted(app: Any, complaints: Complaints | None = None) -> Any:
    tasks: set[asyncio.Task[None]] = set()

    def keep(task: asyncio.Task[None]) -> None:
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    return fronted(AsgiHandler(app, keep, (complaints if complaints is not None else Complaints()).add))


async def test_the_scope_has_what_was_sent():
    scopes: list[Any] = []

    async def app(scope, receive, send):
        scopes.append(scope)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async with adapted(app) as (_, connect):
        client = await connect()
        client.send(GET)
        assert (await client.head()).startswith(b"HTTP/1.1 204 No Content\r\n")
    (scope,) = scopes
    assert scope["path"] == "/a b"
    assert scope["raw_path"] == b"/a%20b"
    assert scope["query_string"] == b"c=d"
    assert scope["headers"] == [(b"host", b"x")]
    assert scope["client"][0] == scope["server"][0] == "127.0.0.1"
    assert (scope["type"], scope["method"], scope["scheme"], scope["http_version"]) == ("http", "GET", "http", "1.1")


async def test_a_body_comes_in_messages_and_a_response_in_chunks():
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"X-Name", b"v")]})
        more = True
        while more:
            message = await receive()
            assert message["type"] == "http.request"
            more = message["more_body"]
            await send({"type": "http.response.body", "body": message["body"].upper(), "more_body": more})
        assert (await receive())["type"] == "http.disconnect"

    async with adapted(app) as (_, connect):
        client = await connect()
        client.send(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 6\r\n\r\nabc")
        assert b"x-name: v\r\n" in await client.head()
        assert await client.read(8) == b"3\r\nABC\r\n"
        client.send(b"def")
        assert await client.read(13) == b"3\r\nDEF\r\n0\r\n\r\n"


async def test_an_application_that_fails_before_its_response_gives_500_and_the_connection_stays():
    async def app(scope, receive, send):
        raise RuntimeError("secret detail")

    complaints = Complaints()
    async with adapted(app, complaints) as (_, connect):
        client = await connect()
        for _ in range(2):
            client.send(GET)
            status, body = await client.response()
            assert status == 500
            assert b"secret" not in body
    assert complaints == ["GET /a%20b: secret detail"] * 2


async def test_an_application_that_fails_in_its_response_cuts_the_connection():
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"10")]})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise RuntimeError("later")

    async with adapted(app) as (_, connect):
        client = await connect()
        client.send(GET)
        await client.head()
        try:
            assert await client.rest() == b"half"
        except ConnectionResetError:
            pass


async def test_an_application_that_forgets_to_end_its_response_cuts_the_connection():
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})

    async with adapted(app) as (_, connect):
        client = await connect()
        client.send(GET)
        await client.head()
        try:
            assert not (await client.rest()).endswith(b"0\r\n\r\n")
        except ConnectionResetError:
            pass


async def test_an_application_is_told_that_its_client_left():
    told: list[str] = []

    async def app(scope, receive, send):
        told.append((await receive())["type"])
        told.append((await receive())["type"])

    async with adapted(app) as (_, connect):
        client = await connect()
        client.send(GET)
        await until(lambda: told == ["http.request"])
        client.abort()
        await until(lambda: told == ["http.request", "http.disconnect"])


async def test_a_slow_reader_makes_the_application_wait():
    sent: list[int] = []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number in range(400):
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            sent.append(number)
        await send({"type": "http.response.body"})

    async with adapted(app) as (_, connect):
        client = await connect()
        client.send(GET + b"")
        await client.head()
        await asyncio.sleep(0.05)  # in which it could send too much
        assert len(sent) < 300
        size = 0
        while size < 400 * 65536:
            size += len(await client.reader.read(1 << 20))
        await until(lambda: len(sent) == 400)


async def test_stopping_lets_a_request_end_and_closes_idle_connections():
    go = asyncio.Event()

    async def app(scope, receive, send):
        await go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    async with adapted(app) as (server, connect):
        idle, busy = await connect(), await connect()
        busy.send(GET)
        await until(lambda: any(not link.idle for link in server._links))
        stopped = asyncio.ensure_future(server.stop(30))
        assert await idle.rest() == b""
        go.set()
        said = await busy.rest()
        assert b"connection: close" in said
        assert said.endswith(b"4\r\ndone\r\n0\r\n\r\n")
        await stopped
