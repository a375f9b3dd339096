"""The fake provider's HTTP: every input is a request or a refusal, and a client that left is noticed."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetgate.testing.http1 import (
    CHUNKED,
    MAX_BODY_BYTES,
    MAX_HEAD_BYTES,
    BadRequest,
    Request,
    body_length,
    chunk_size,
    parse_head,
    response_head,
)
from fleetgate.testing.server import Reply, Server, _Connection

TOKENS = st.text("abcXYZ019-_!", min_size=1, max_size=10)


class Writer:
    """Takes what a connection says before it has read a whole request."""

    def __init__(self) -> None:
        self.said = b""

    def write(self, data: bytes) -> None:
        self.said += data


async def read_requests(*parts: bytes) -> tuple[list[Request], str, bytes]:
    """What a connection reads when these bytes arrive one after the other: requests, the refusal, what it said."""
    reader, writer = asyncio.StreamReader(), Writer()
    connection = _Connection(reader, cast(asyncio.StreamWriter, writer))

    async def feed() -> None:
        for part in parts:
            reader.feed_data(part)
            await asyncio.sleep(0)
        reader.feed_eof()

    feeding = asyncio.create_task(feed())
    requests: list[Request] = []
    refusal = ""
    try:
        while (request := await connection.next_request()) is not None:
            requests.append(request)
    except BadRequest as error:
        refusal = f"{error.status} {error}"
    await feeding
    return requests, refusal, writer.said


@given(st.binary(max_size=300))
def test_any_bytes_are_a_head_or_a_refusal(head: bytes):
    try:
        status = 200 if body_length(parse_head(head)) >= CHUNKED else 0
    except BadRequest as error:
        status = error.status
    assert status in (200, 400, 413, 431, 501, 505)


@given(st.lists(st.binary(max_size=60), max_size=6), st.booleans())
def test_any_bytes_on_a_connection_are_requests_or_a_refusal(parts: list[bytes], after_a_start: bool):
    start = [b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"] if after_a_start else []
    asyncio.run(read_requests(*start, *parts))


@given(
    method=TOKENS,
    name=TOKENS,
    value=st.text("abc ,;=\"'\xe4", max_size=20),
    body=st.binary(max_size=40),
    data=st.data(),
)
def test_a_request_is_read_alike_however_its_bytes_arrive(method: str, name: str, value: str, body: bytes, data):
    field = f"x{name}: {value}\r\n"
    wire = f"{method} /a%20b?c=1 HTTP/1.1\r\n{field}Content-Length: {len(body)}\r\n\r\n".encode("latin-1") + body
    wire += b"GET /second HTTP/1.1\r\n\r\n"
    cuts = sorted(data.draw(st.sets(st.integers(1, len(wire) - 1), max_size=8)))
    parts = [wire[start:end] for start, end in zip([0, *cuts], [*cuts, len(wire)], strict=True)]
    (first, second), refusal, _ = asyncio.run(read_requests(*parts))
    assert (first.method, first.path, first.query, first.body) == (method, "/a b", {"c": "1"}, body)
    assert first.headers[f"x{name}".lower()] == value.strip(" ")
    assert (second.path, refusal) == ("/second", "")


def test_a_chunked_body_is_put_together_and_the_next_request_follows():
    head = b"POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\nExpect: 100-continue\r\n\r\n"
    wire = head + b"3;why=not\r\nabc\r\nA\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n\r\nGET / HTTP/1.0\r\n\r\n"
    requests, refusal, said = asyncio.run(read_requests(*(bytes([byte]) for byte in wire)))
    assert [request.body for request in requests] == [b"abc0123456789", b""]
    assert refusal == ""
    assert said.startswith(b"HTTP/1.1 100 Continue\r\n")


@pytest.mark.parametrize(
    ("wire", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),
        (b"hello\r\n\r\n", 400),
        (b"GET  / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 505),
        (b"GET / SPDY/3\r\n\r\n", 400),
        (b"GET nowhere HTTP/1.1\r\n\r\n", 400),
        (b"G(T / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: 1\r\n folded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: \0\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: \xb2\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"GET / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1), 413),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % (MAX_BODY_BYTES + 1), 413),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n", 400),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"0" * 2000, 400),
        (b"GET /" + b"a" * MAX_HEAD_BYTES + b" HTTP/1.1\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"A: 1\r\n" * 200 + b"\r\n", 431),
        (b"GET /?" + b"a&" * 200 + b" HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: 5\r\n\r\nab", 400),
        (b"GET / HT", 400),
    ],
)
def test_what_is_not_http_is_refused_with_the_right_status(wire: bytes, status: int):
    requests, refusal, _ = asyncio.run(read_requests(wire))
    assert requests == []
    assert refusal.startswith(str(status))


def test_an_absolute_target_and_a_repeated_field_are_understood():
    request = parse_head(b"GET http://host:80/path?q= HTTP/1.1\r\nA: 1\r\nA: 2")
    assert (request.path, request.query, request.headers) == ("/path", {"q": ""}, {"a": "1, 2"})
    assert chunk_size(b"1F ; x") == 31


def test_a_scripted_field_cannot_break_a_response_in_two():
    head = response_head(529, [("X", "a\r\n\r\nHTTP/1.1 200 OK")])
    assert head.startswith(b"HTTP/1.1 529 Overloaded\r\n")
    assert head.count(b"\r\n\r\n") == 1


def test_a_handler_is_cancelled_as_soon_as_its_client_has_left():
    async def scenario() -> None:
        began, cancelled = asyncio.Event(), asyncio.Event()

        async def handler(request: Request, reply: Reply) -> None:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        server = await Server(handler).start()
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await began.wait()
        writer.close()
        await writer.wait_closed()
        async with asyncio.timeout(60):
            await cancelled.wait()
        await server.stop()
        assert server.open_connections == 0

    asyncio.run(scenario())


def test_a_failing_handler_is_a_500_and_the_server_goes_on(caplog: pytest.LogCaptureFixture):
    async def handler(request: Request, reply: Reply) -> None:
        if request.path == "/bad":
            raise RuntimeError("a bug")
        await reply.send(200, b"fine")

    async def scenario() -> bytes:
        server = await Server(handler).start()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /bad HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
        await server.stop()
        return answer

    answer = asyncio.run(scenario())
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert answer.endswith(b"fine")
    assert "the handler failed on GET /bad" in caplog.text


def test_stopping_the_server_ends_connections_that_wait():
    async def scenario() -> None:
        async def handler(request: Request, reply: Reply) -> None:
            await asyncio.Event().wait()

        server = await Server(handler).start()
        idle = await asyncio.open_connection("127.0.0.1", server.port)
        busy = await asyncio.open_connection("127.0.0.1", server.port)
        busy[1].write(b"GET / HTTP/1.1\r\n\r\n")
        while server.open_connections < 2:
            await asyncio.sleep(0)
        await server.stop()
        for reader, writer in (idle, busy):
            try:
                assert await reader.read() == b""
            except ConnectionResetError:
                pass
            writer.close()

    asyncio.run(scenario())
