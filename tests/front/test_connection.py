"""The front reads HTTP/1.1 strictly, one request at a time."""

from __future__ import annotations

import asyncio
import ssl
from functools import partial
from typing import cast

import pytest

from fleetgate.front import limits
from fleetgate.front.connection import ClientLink
from fleetgate.front.handshake import TlsHandshake
from fleetgate.front.request import ClientRequest
from fleetgate.front.states import TRANSITIONS, LinkState
from tests.front.fronted import echo, fronted, until
from tests.proxy.tls import Authority

GET = b"GET /a?b=c HTTP/1.1\r\nhost: x\r\n\r\n"


def post(body: bytes, *, path: bytes = b"/p") -> bytes:
    return b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (path, len(body), body)


async def test_a_request_is_answered_and_the_connection_stays_open():
    async with fronted(echo) as (_, connect):
        client = await connect()
        for _ in range(3):
            client.send(GET)
            assert await client.response() == (200, b"GET /a ? b=c : ")


@pytest.mark.parametrize("cut", range(1, len(post(b"hello"))))
async def test_a_request_may_be_cut_anywhere(cut):
    whole = post(b"hello")
    async with fronted(echo) as (_, connect):
        client = await connect()
        client.send(whole[:cut])
        await asyncio.sleep(0.002)  # so that the two parts mostly come apart; either way is right
        client.send(whole[cut:] + GET)
        assert await client.response() == (200, b"POST /p ?  : hello")
        assert await client.response() == (200, b"GET /a ? b=c : ")


async def test_pipelined_requests_are_answered_in_order_one_at_a_time():
    waiting: list[ClientRequest] = []
    async with fronted(waiting.append) as (_, connect):
        client = await connect()
        client.send(post(b"1") + post(b"2", path=b"/q") + GET)
        for expected in (b"/p", b"/q", b"/a"):
            await until(lambda: waiting)
            (request,) = waiting  # the next one is not even begun
            assert request.path == expected
            waiting.clear()
            request.respond(200, [], request.take_body())
            assert (await client.response())[0] == 200


async def test_bodies_in_chunks_may_have_extensions_and_trailers_which_go_nowhere():
    async with fronted(echo) as (_, connect):
        client = await connect()
        head = b"POST /c HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        client.send(head + b"3;ext=1\r\nabc\r\n2\r\nde\r\n0\r\ntrailer: t\r\n\r\n")
        assert await client.response() == (200, b"POST /c ?  : abcde")
        client.send(GET)
        assert (await client.response())[0] == 200


SMUGGLED = {
    "a length and chunks": b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and a length": b"transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n",
    "two lengths": b"content-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
    "the same length twice": b"content-length: 3\r\ncontent-length: 3\r\n\r\nabc",
    "a list of lengths": b"content-length: 3, 3\r\n\r\nabc",
    "a negative length": b"content-length: -1\r\n\r\n",
    "a length with a sign": b"content-length: +3\r\n\r\nabc",
    "a hexadecimal length": b"content-length: 0x3\r\n\r\nabc",
    "a length too large to count": b"content-length: 99999999999999999999\r\n\r\n",
    "an encoding that is not chunked": b"transfer-encoding: gzip\r\n\r\nabc",
    "chunked is not the last encoding": b"transfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "an unknown encoding": b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked twice": b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "a folded header": b"x-a: 1\r\n 2\r\n\r\n",
    "a folded encoding": b"transfer-encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "a space before the colon": b"content-length : 3\r\n\r\nabc",
    "a header without a colon": b"nonsense\r\n\r\n",
    "a bare LF after a header": b"x-a: 1\nx-b: 2\r\n\r\n",
    "a bare CR in a header": b"x-a: 1\rx-b: 2\r\n\r\n",
    "a NUL in a header": b"x-a: 1\x002\r\n\r\n",
    "a chunk size that is not a number": b"transfer-encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n",
    "a chunk longer than its size": b"transfer-encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n",
    "a chunk that ends with a bare LF": b"transfer-encoding: chunked\r\n\r\n3\nabc\n0\n\n",
    "an unknown expectation": b"expect: something\r\ncontent-length: 0\r\n\r\n",
}


@pytest.mark.parametrize("rest", SMUGGLED.values(), ids=SMUGGLED.keys())
async def test_a_request_that_two_servers_could_read_differently_is_refused_and_nothing_behind_it_is_read(rest):
    seen: list[bytes] = []

    def handler(request: ClientRequest) -> None:
        seen.append(request.path)
        echo(request)

    async with fronted(handler) as (_, connect):
        client = await connect()
        client.send(b"POST /first HTTP/1.1\r\nhost: x\r\n" + rest + b"GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n")
        said = await client.rest()
        assert b"/smuggled" not in said
        assert said.split(b" ")[1] in (b"400", b"417"), said
        assert b"/smuggled" not in seen


STRANGE_LINES = {
    "no version": b"GET /\r\n\r\n",
    "version 2": b"GET / HTTP/2.0\r\nhost: x\r\n\r\n",
    "version 1.2": b"GET / HTTP/1.2\r\nhost: x\r\n\r\n",
    "a target without a slash": b"GET a HTTP/1.1\r\nhost: x\r\n\r\n",
    "an authority": b"CONNECT example.org:443 HTTP/1.1\r\nhost: x\r\n\r\n",
    "an asterisk": b"GET * HTTP/1.1\r\nhost: x\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "a preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "an unknown method": b"BREW / HTTP/1.1\r\nhost: x\r\n\r\n",
}


@pytest.mark.parametrize("line", STRANGE_LINES.values(), ids=STRANGE_LINES.keys())
async def test_a_strange_request_line_is_refused_before_any_handler_sees_it(line):
    def handler(request: ClientRequest) -> None:
        raise AssertionError(request.path)

    async with fronted(handler) as (_, connect):
        client = await connect()
        client.send(line)
        assert (await client.rest()).split(b" ")[1] in (b"400", b"505")


async def test_an_absolute_target_is_its_path():
    async with fronted(echo) as (_, connect):
        client = await connect()
        client.send(b"GET http://example.org/x/y?z=1 HTTP/1.1\r\nhost: example.org\r\n\r\n")
        assert await client.response() == (200, b"GET /x/y ? z=1 : ")


async def test_a_head_that_is_too_long_is_refused():
    async with fronted(echo) as (_, connect):
        client = await connect()
        client.send(b"GET / HTTP/1.1\r\nhost: x\r\nx-long: " + b"a" * limits.HEAD_BYTES)
        assert (await client.rest()).startswith(b"HTTP/1.1 431 ")


async def test_trailers_and_chunk_extensions_count_as_head():
    async with fronted(echo) as (_, connect):
        client = await connect()
        client.send(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3;" + b"a" * limits.HEAD_BYTES)
        assert (await client.rest()).startswith(b"HTTP/1.1 431 ")


async def test_a_head_or_a_body_that_does_not_come_is_given_up(monkeypatch):
    monkeypatch.setattr(limits, "CHECK_S", 0.02)
    monkeypatch.setattr(limits, "HEAD_S", 0.05)
    monkeypatch.setattr(limits, "BODY_S", 0.05)
    async with fronted(echo) as (_, connect):
        silent, begun, slow = await connect(), await connect(), await connect()
        begun.send(b"GET / HT")
        slow.send(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nab")
        assert await silent.rest() == b""
        assert (await begun.rest()).startswith(b"HTTP/1.1 408 ")
        assert (await slow.rest()).startswith(b"HTTP/1.1 408 ")


async def test_an_idle_connection_ends_after_a_while(monkeypatch):
    monkeypatch.setattr(limits, "CHECK_S", 0.02)
    monkeypatch.setattr(limits, "IDLE_S", 0.05)
    async with fronted(echo) as (_, connect):
        client = await connect()
        client.send(GET)
        await client.response()
        assert await client.rest() == b""


async def test_100_continue_is_said_when_the_handler_wants_the_body():
    async with fronted(echo) as (_, connect):
        client = await connect()
        client.send(b"POST /p HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n")
        assert await client.head() == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(b"hi")
        assert await client.response() == (200, b"POST /p ?  : hi")


async def test_a_refusal_instead_of_100_continue_ends_the_connection():
    async with fronted(lambda request: request.respond(413, [], b"no")) as (_, connect):
        client = await connect()
        client.send(b"POST /p HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n")
        said = await client.rest()
        assert said.startswith(b"HTTP/1.1 413 ")
        assert b"connection: close" in said


async def test_a_response_before_the_end_of_a_large_body_reaches_the_client():
    async with fronted(lambda request: request.respond(413, [], b"too large")) as (_, connect):
        client = await connect()
        client.send(b"POST /p HTTP/1.1\r\nhost: x\r\ncontent-length: 5000000\r\n\r\n")
        client.send(b"x" * 3_000_000)
        assert (await client.rest()).endswith(b"too large")


async def test_the_head_of_a_response_is_sent_for_HEAD_and_no_body():
    async with fronted(lambda request: request.respond(200, [], b"body")) as (_, connect):
        client = await connect()
        client.send(b"HEAD / HTTP/1.1\r\nhost: x\r\n\r\n" + GET)
        assert b"content-length: 4" in await client.head()
        assert await client.response() == (200, b"body")


async def test_HTTP_1_0_gets_a_body_that_ends_with_the_connection():
    def handler(request: ClientRequest) -> None:
        request.begin(200, [])
        request.write(b"one ")
        request.end(b"two")

    async with fronted(handler) as (_, connect):
        client = await connect()
        client.send(b"GET / HTTP/1.0\r\n\r\n")
        said = await client.rest()
        assert said.endswith(b"\r\n\r\none two")
        assert b"chunked" not in said


async def test_an_upgrade_is_answered_as_plain_HTTP_and_ends_the_connection():
    async with fronted(echo) as (_, connect):
        client = await connect()
        client.send(b"GET /a HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\nnot HTTP")
        said = await client.rest()
        assert said.startswith(b"HTTP/1.1 200 ")
        assert said.count(b"HTTP/1.1") == 1


async def test_a_client_that_leaves_is_noticed_whether_it_aborts_or_closes_its_half():
    waiting: list[ClientRequest] = []
    left: list[str] = []
    async with fronted(waiting.append) as (server, connect):
        for leave in ("abort", "close", "half"):
            client = await connect()
            client.send(post(b"x"))
            await until(lambda: waiting)
            waiting.pop().watch_client(partial(left.append, leave))
            if leave == "half":
                client.writer.write_eof()
            else:
                getattr(client, leave)()
            await until(lambda: left)
            assert left.pop() == leave
        await until(lambda: len(server) == 0)


def is_paused(link: ClientLink | TlsHandshake) -> bool:
    """Whether nothing more is read of a client."""
    return isinstance(link, ClientLink) and link._read_paused


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(GET * 5000, id="requests behind one that is not answered"),
        pytest.param(post(b"x" * 200_000), id="a body that the handler does not take"),
    ],
)
async def test_x4_a_client_that_leaves_is_noticed_while_nothing_more_is_read_of_it(sent, monkeypatch):
    monkeypatch.setattr(limits, "CHECK_S", 0.02)
    waiting: list[ClientRequest] = []
    left: list[str] = []
    async with fronted(waiting.append) as (server, connect):
        for leave in ("abort", "close"):
            client = await connect()
            client.send(sent)
            await until(lambda: waiting and server._links and all(is_paused(link) for link in server._links))
            waiting.pop().watch_client(partial(left.append, leave))
            await asyncio.sleep(0.1)  # in which a client that stays must not count as one that leaves
            assert left == []
            getattr(client, leave)()
            await until(lambda: left)
            assert left.pop() == leave
        await until(lambda: len(server) == 0)


async def test_x4_a_handler_hears_once_that_its_client_was_too_slow(monkeypatch):
    monkeypatch.setattr(limits, "CHECK_S", 0.02)
    monkeypatch.setattr(limits, "BODY_S", 0.05)
    waiting: list[ClientRequest] = []
    left: list[None] = []
    async with fronted(waiting.append) as (server, connect):
        client = await connect()
        client.send(b"POST /p HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nab")
        await until(lambda: waiting)
        waiting[0].watch_client(lambda: left.append(None))
        assert (await client.rest()).startswith(b"HTTP/1.1 408 ")
        client.close()
        await until(lambda: len(server) == 0)
        assert left == [None]


@pytest.mark.parametrize("with_tls", [False, True])
async def test_x1_a_slow_reader_gets_all_of_the_last_response_of_its_connection(with_tls, monkeypatch, tmp_path):
    monkeypatch.setattr(limits, "CHECK_S", 0.02)
    monkeypatch.setattr(limits, "LINGER_S", 0.05)
    size = 20_000_000
    authority = Authority(tmp_path) if with_tls else None

    def handler(request: ClientRequest) -> None:
        request.respond(200, [], b"x" * size)

    async with fronted(handler, tls=authority and authority.context) as (_, connect):
        client = await connect(ssl.create_default_context(cafile=authority.file) if authority else None)
        transport = cast(asyncio.Transport, client.writer.transport)
        transport.pause_reading()
        client.send(b"GET /a HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        await asyncio.sleep(0.5)
        transport.resume_reading()
        await client.head()
        assert len(await client.rest()) == size


async def test_h5_a_client_that_begins_no_tls_is_given_up_as_soon_as_one_that_sends_no_head(monkeypatch, tmp_path):
    monkeypatch.setattr(limits, "HEAD_S", 0.2)
    async with fronted(echo, tls=Authority(tmp_path).context) as (_, connect):
        client = await connect()
        assert await client.rest() == b""


async def test_a_handler_that_takes_nothing_stops_the_client_that_sends():
    waiting: list[ClientRequest] = []
    size = 20_000_000
    async with fronted(waiting.append) as (_, connect):
        client = await connect()
        client.send(b"POST /p HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % size)
        client.send(b"x" * size)
        await until(lambda: waiting and waiting[0].body)
        request = waiting[0]
        await asyncio.sleep(0.05)  # in which too much could come
        assert len(request.body) <= 2 * limits.BODY_BYTES
        taken, more = 0, True
        while more:
            piece, more = await request.read_body()
            taken += len(piece)
        assert taken == size
        request.respond(200, [], b"")


async def test_what_follows_an_unanswered_request_is_bounded():
    waiting: list[ClientRequest] = []
    async with fronted(waiting.append) as (server, connect):
        client = await connect()
        client.send(GET * 200_000)
        await until(lambda: waiting)
        await asyncio.sleep(0.05)  # in which too much could come
        assert len(waiting) == 1
        (link,) = server._links
        assert isinstance(link, ClientLink)
        assert len(link._buffer) < 1_000_000  # what one read brings; then nothing more is read


async def test_a_reader_that_stops_pauses_the_response():
    begun: list[ClientRequest] = []

    def handler(request: ClientRequest) -> None:
        begun.append(request)
        request.begin(200, [])
        request.write(b"x")

    async with fronted(handler) as (_, connect):
        client = await connect()
        client.send(GET)
        await client.head()
        (request,) = begun
        written = 0
        while not request.paused:
            request.write(b"y" * 65536)
            written += 65536
            assert written < 100_000_000
            await asyncio.sleep(0)
        room: list[bool] = []
        request.on_room = lambda: room.append(True)
        drained = asyncio.ensure_future(client.rest())
        await until(lambda: room)
        request.end()
        client.writer.write_eof()
        assert len(await drained) > written


@pytest.mark.parametrize("value", [b"a\r\nset-cookie: x", b"a\nb", b"a\rb", b"a\0b"])
async def test_a_header_with_a_line_break_is_never_sent(value):
    def handler(request: ClientRequest) -> None:
        with pytest.raises(ValueError, match="line break"):
            request.begin(200, [(b"x-a", value)])
        request.respond(500, [], b"")

    async with fronted(handler) as (_, connect):
        client = await connect()
        client.send(GET)
        assert (await client.response())[0] == 500


async def test_a_body_of_another_length_than_announced_is_never_sent():
    def handler(request: ClientRequest) -> None:
        request.begin(200, [(b"content-length", b"3")])
        with pytest.raises(ValueError, match="longer"):
            request.write(b"four")
        with pytest.raises(ValueError, match="shorter"):
            request.end(b"2")
        request.abort()

    async with fronted(handler) as (_, connect):
        client = await connect()
        client.send(GET)
        assert await client.rest() == b""


def test_every_transition_leads_to_a_known_state_and_every_state_can_close():
    assert set(TRANSITIONS) == set(LinkState)
    for state, following in TRANSITIONS.items():
        assert following <= set(LinkState)
        assert state is LinkState.CLOSED or LinkState.CLOSED in following
