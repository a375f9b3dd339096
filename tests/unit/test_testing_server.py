"""The fake provider's HTTP server: a client that left is noticed, and neither a script nor a bug breaks it."""

from __future__ import annotations

import asyncio

import pytest

from fleetgate.testing.server import MAX_BODY_BYTES, MAX_HEAD_BYTES, Reply, SeenRequest, Server

GET = b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n"


async def exchange(server: Server, wire: bytes) -> bytes:
    """Send these bytes and the end of the client's side; return what comes back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(wire)
    answer = await reader.read()
    writer.close()
    return answer


async def keep(seen: list[SeenRequest], request: SeenRequest, reply: Reply) -> None:
    seen.append(request)
    await reply.send(200, b"fine")


def served(wire: bytes) -> tuple[list[SeenRequest], bytes]:
    async def scenario() -> bytes:
        server = await Server(lambda request, reply: keep(seen, request, reply)).start()
        try:
            return await exchange(server, wire)
        finally:
            await server.stop()

    seen: list[SeenRequest] = []
    return seen, asyncio.run(scenario())


def test_a_request_is_kept_as_it_was_sent_with_the_one_that_follows():
    head = b"POST /a%20b?c=1&d=%2F HTTP/1.1\r\nHost: x\r\nA: 1\r\na: 2\r\nContent-Encoding: gzip\r\n"
    head += b"Transfer-Encoding: chunked\r\n\r\n"
    chunks = b"3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n"
    (first, second), answer = served(head + chunks + b"GET / HTTP/1.0\r\n\r\n")
    assert (first.method, first.path, first.target) == ("POST", "/a b", "/a%20b?c=1&d=%2F")
    assert (first.query, first.headers["a"], first.body) == ({"c": "1", "d": "/"}, "1, 2", b"abc0123456789")
    assert (second.path, second.body) == ("/", b"")
    assert answer.count(b"HTTP/1.1 200 OK") + answer.count(b"HTTP/1.0 200 OK") == 2


@pytest.mark.parametrize(
    ("wire", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"400"),
        (b"GET /" + b"a" * MAX_HEAD_BYTES + b" HTTP/1.1\r\n\r\n", b"400"),
        (
            b"POST / HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1),
            b"413",
        ),
    ],
)
def test_what_is_not_a_request_is_refused(wire: bytes, status: bytes):
    seen, answer = served(wire + b"x" * (MAX_BODY_BYTES + 1 if status == b"413" else 0))
    assert seen == []
    assert answer.split(b" ", 2)[1] == status


def test_a_scripted_field_cannot_break_a_response_in_two():
    async def handler(request: SeenRequest, reply: Reply) -> None:
        await reply.send(529, b"", [("X", "a\r\n\r\nHTTP/1.1 200 OK")])

    async def scenario() -> bytes:
        server = await Server(handler).start()
        try:
            return await exchange(server, b"GET / HTTP/1.0\r\n\r\n")
        finally:
            await server.stop()

    answer = asyncio.run(scenario())
    assert answer.split(b"\r\n")[0].endswith(b" 529 Overloaded")
    assert answer.count(b"\r\n\r\n") == 1


def test_a_handler_is_cancelled_as_soon_as_its_client_has_left():
    async def scenario() -> None:
        began, cancelled = asyncio.Event(), asyncio.Event()

        async def handler(request: SeenRequest, reply: Reply) -> None:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        server = await Server(handler).start()
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(GET % b"/")
        await began.wait()
        writer.close()
        await writer.wait_closed()
        async with asyncio.timeout(60):
            await cancelled.wait()
        await server.stop()

    asyncio.run(scenario())


def test_a_failing_handler_is_a_500_and_the_server_goes_on(caplog: pytest.LogCaptureFixture):
    async def handler(request: SeenRequest, reply: Reply) -> None:
        if request.path == "/bad":
            raise RuntimeError("a bug")
        await reply.send(200, b"fine")

    async def scenario() -> bytes:
        server = await Server(handler).start()
        try:
            return await exchange(server, GET % b"/bad") + await exchange(server, b"GET / HTTP/1.0\r\n\r\n")
        finally:
            await server.stop()

    answer = asyncio.run(scenario())
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert answer.endswith(b"fine")
    assert "RuntimeError: a bug" in caplog.text


def test_stopping_the_server_ends_connections_that_wait():
    async def scenario() -> None:
        began = asyncio.Event()

        async def handler(request: SeenRequest, reply: Reply) -> None:
            began.set()
            await asyncio.Event().wait()

        server = await Server(handler).start()
        idle = await asyncio.open_connection("127.0.0.1", server.port)
        busy = await asyncio.open_connection("127.0.0.1", server.port)
        busy[1].write(GET % b"/")
        await began.wait()
        await server.stop()
        for reader, writer in (idle, busy):
            try:
                assert await reader.read() == b""
            except ConnectionResetError:
                pass
            writer.close()

    asyncio.run(scenario())
