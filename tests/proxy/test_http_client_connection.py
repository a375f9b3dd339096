"""The proxy's own HTTP client, one connection at a time, against a server that does what servers do, and worse."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest

from fleetgate.proxy.http_client.connection import UpstreamRequest
from fleetgate.proxy.http_client.failures import Disconnected, NotHttp
from fleetgate.proxy.http_client.pool import UpstreamConnections
from tests.proxy.origin import CHUNKED, OK, WHOLE, Reply, Wire, answering, ask, ask_in_pieces, asking, head, read

MB = 1 << 20


async def _pieces(number: int, size: int = MB) -> AsyncIterator[bytes]:
    for _ in range(number):
        yield bytes(size)


# One answer after the other.


async def test_a_connection_is_used_again() -> None:
    async with asking(answering(WHOLE)) as (origin, pool):
        for _ in range(5):
            response = await ask(pool)
            assert (response.status, await read(response)) == (200, b"ok")
        assert (origin.connections, origin.asked) == (1, 5)


async def test_as_many_connections_as_requests_at_once() -> None:
    everybody = asyncio.Barrier(3)

    async def behave(wire: Wire) -> None:
        await wire.body()
        await everybody.wait()
        await wire.say(WHOLE)

    async with asking(behave) as (origin, pool):
        for _ in range(2):
            answers = await asyncio.gather(*(ask(pool) for _ in range(3)))
            assert [await read(answer) for answer in answers] == [b"ok"] * 3
        assert origin.connections == 3, "and the second three use those of the first"


async def test_one_that_the_server_closed_meanwhile_is_not_used() -> None:
    async with asking(answering(WHOLE, then="close")) as (origin, pool):
        for number in (1, 2):
            await read(await ask(pool))
            while pool.idle:
                await asyncio.sleep(0.001)
            assert origin.connections == number


@pytest.mark.parametrize(
    ("data", "body"),
    [
        (OK + b"Connection: close\r\nContent-Length: 2\r\n\r\nok", b"ok"),
        (OK + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", b"ok"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok"),
        (b"HTTP/1.0 200 OK\r\n\r\nto the end", b"to the end"),
        (OK + b"\r\nto the end", b"to the end"),
        (OK + b"\r\n", b""),
    ],
    ids=["close", "close chunked", "1.0 with a length", "1.0", "1.1 without a length", "nothing"],
)
async def test_a_server_that_closes_after_its_answer(data: bytes, body: bytes) -> None:
    async with asking(answering(data, then="close")) as (origin, pool):
        for number in (1, 2):
            response = await ask(pool)
            assert await read(response) == body
            assert response.complete
            assert origin.connections == number


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
@pytest.mark.parametrize("length", [b"", b"Content-Length: 10\r\n"])
async def test_answers_without_a_body_end_with_their_head(status: bytes, length: bytes) -> None:
    async with asking(answering(b"HTTP/1.1 " + status + b"\r\n" + length + b"\r\n")) as (origin, pool):
        for _ in range(2):
            response = await ask(pool, "GET", b"")
            assert (response.status, await read(response)) == (int(status[:3]), b"")
        assert origin.connections == 1


async def test_the_answer_to_head_has_no_body_whatever_length_it_names() -> None:
    async def behave(wire: Wire) -> None:
        await wire.say(OK + b"Content-Length: 5000\r\n\r\n" if wire.head.startswith(b"HEAD") else WHOLE)

    async with asking(behave) as (_, pool):
        response = await ask(pool, "HEAD", b"")
        assert (response.status, await read(response)) == (200, b"")
        assert (b"Content-Length", b"5000") in response.raw_headers
        assert await read(await ask(pool, "GET", b"")) == b"ok"


# What comes before, behind and around an answer.


async def test_answers_of_the_first_hundred_come_before_the_answer() -> None:
    early = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: <x>\r\nContent-Length: 9\r\n\r\n"

    async def behave(wire: Wire) -> None:
        await wire.body()
        await wire.say(early)
        await asyncio.sleep(0.02)  # so that they mostly come apart; either way is right
        await wire.say(early + WHOLE)

    async with asking(behave) as (origin, pool):
        for _ in range(2):
            response = await ask(pool)
            assert (response.status, await read(response)) == (200, b"ok")
            assert response.raw_headers == [(b"Content-Length", b"2")]
        assert origin.connections == 1


async def test_answers_of_the_first_hundred_without_end_are_none() -> None:
    async def behave(wire: Wire) -> None:
        while True:
            await wire.say(b"HTTP/1.1 102 Processing\r\nX: y\r\n\r\n" * 1000)

    async with asking(behave) as (_, pool):
        with pytest.raises(NotHttp, match=r"do not end|longer than"):
            await ask(pool)


@pytest.mark.parametrize("status", [b"101 Switching Protocols", b"200 OK"])
async def test_a_server_that_wants_another_protocol(status: bytes) -> None:
    data = b"HTTP/1.1 " + status + b"\r\nConnection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 0\r\n\r\n"
    async with asking(answering(data + b"\x81\x00" if status[0:1] == b"1" else data)) as (_, pool):
        if status.startswith(b"101"):
            with pytest.raises(NotHttp, match="another protocol"):
                await ask(pool)
        else:
            assert (await ask(pool)).status == 200, "it only says that it could"


@pytest.mark.parametrize("behind", [b"garbage", WHOLE, b"H"])
async def test_what_comes_behind_an_answer_is_nobodys_answer(behind: bytes) -> None:
    async with asking(answering(WHOLE + behind)) as (origin, pool):
        for number in (1, 2, 3):
            assert await read(await ask(pool)) == b"ok"
            assert origin.connections == number


async def test_what_comes_when_nobody_asked_ends_the_connection() -> None:
    answered = asyncio.Event()

    async def behave(wire: Wire) -> None:
        await wire.body()
        await wire.say(WHOLE)
        await answered.wait()
        await wire.say(b"HTTP/1.1 408 UpstreamRequest Timeout\r\nContent-Length: 0\r\n\r\n")

    async with asking(behave) as (origin, pool):
        await read(await ask(pool))
        answered.set()
        async with asyncio.timeout(60):
            while pool.idle:
                await asyncio.sleep(0.005)
        assert (await ask(pool)).status == 200
        assert origin.connections == 2


async def test_trailers_are_no_headers() -> None:
    data = CHUNKED + b"2\r\nok\r\n0\r\nContent-Type: text/plain\r\nX-Sum: 1\r\n\r\n"
    async with asking(answering(data)) as (origin, pool):
        for _ in range(2):
            response = await ask(pool)
            assert await read(response) == b"ok"
            assert response.raw_headers == [(b"Transfer-Encoding", b"chunked")]
        assert origin.connections == 1


@pytest.mark.parametrize("trailer", [b"X: " + b"y" * MB, b"X: y\r\n" * 100_000], ids=["one", "many"])
async def test_trailers_without_end_are_broken_off(trailer: bytes) -> None:
    async with asking(answering(CHUNKED + b"2\r\nok\r\n0\r\n" + trailer)) as (_, pool):
        response = await ask(pool)
        with pytest.raises(NotHttp):
            await read(response)


async def test_a_chunk_header_without_end_is_broken_off() -> None:
    async with asking(answering(CHUNKED + b"2;" + b"x" * MB)) as (_, pool):
        response = await ask(pool)
        with pytest.raises(NotHttp):
            await read(response)


# What is no answer.


@pytest.mark.parametrize(
    "data",
    [
        OK + b"X: " + b"y" * 70_000 + b"\r\nContent-Length: 0\r\n\r\n",
        OK + b"X: y\r\n" * 20_000 + b"Content-Length: 2\r\n\r\nok",
        OK + b"X: " + b"y" * MB,
        b"garbage",
        b"HTTP/2.7 200 OK\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nokk",
        OK + b"Content-Length: -1\r\n\r\n",
        OK + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        OK + b"X\x00Y: z\r\n\r\n",
        OK + b"X: a\x00b\r\nContent-Length: 0\r\n\r\n",
    ],
    ids=["large", "many", "endless", "garbage", "2.7", "TLS", "lengths", "length", "both", "NUL", "NUL in value"],
)
async def test_what_is_no_answer_says_so(data: bytes) -> None:
    async with asking(answering(data)) as (origin, pool):
        for number in (1, 2):
            with pytest.raises(NotHttp):
                await ask(pool)
            assert origin.connections == number


@pytest.mark.parametrize("body", [b"ZZ\r\nok\r\n", b"2\r\nokay", b"-2\r\nok", b"fffffffffffffffff\r\nok"])
async def test_a_bad_chunk_ends_the_answer_where_it_is(body: bytes) -> None:
    async def behave(wire: Wire) -> None:
        await wire.body()
        await wire.say(CHUNKED + b"5\r\nfirst\r\n")
        await asyncio.sleep(0.02)
        await wire.say(body)

    async with asking(behave) as (_, pool):
        response = await ask(pool)
        assert await response.readany() == b"first"
        with pytest.raises(NotHttp):
            await read(response)
        assert not response.complete


@pytest.mark.parametrize(
    "data",
    [OK + b"Content-Length: 50\r\n\r\nhalf", CHUNKED + b"4\r\nhalf\r\n", CHUNKED + b"8\r\nhalf"],
    ids=["less than its length", "no last chunk", "in a chunk"],
)
async def test_what_ends_too_early_never_looks_whole(data: bytes) -> None:
    async with asking(answering(data, then="close")) as (_, pool):
        response = await ask(pool)
        assert await response.readany() == b"half"
        with pytest.raises(Disconnected):
            await read(response)
        assert not response.complete


async def test_what_we_break_off_ourselves_never_looks_whole() -> None:
    """A body that ends with the connection, and the client that closes it when the service ends."""
    async with asking(answering(OK + b"\r\nhalf")) as (_, pool):
        response = await ask(pool)
        assert await response.readany() == b"half"
        await pool.close()
        with pytest.raises(Disconnected):
            await read(response)
        assert not response.complete


async def test_a_server_that_hangs_up_without_a_word() -> None:
    async with asking(answering(b"", then="close")) as (_, pool):
        with pytest.raises(Disconnected):
            await ask(pool)


# Large bodies.


@pytest.mark.parametrize("size", [None, 9 * MB], ids=["chunked", "with a length"])
async def test_a_large_body_arrives_as_it_is(size: int | None) -> None:
    got = []

    async def behave(wire: Wire) -> None:
        got.append(len(await wire.body()))
        await wire.say(WHOLE)

    async with asking(behave) as (origin, pool):
        for _ in range(2):
            assert await read(await ask_in_pieces(pool, _pieces(9), size)) == b"ok"
        assert got == [9 * MB] * 2
        assert origin.connections == 1


async def test_an_upstream_that_reads_slowly_slows_the_sender() -> None:
    sent = 0
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(64):
            sent += 1
            yield bytes(MB)

    async def behave(wire: Wire) -> None:
        asked.set()
        await go_on.wait()
        await wire.body()
        await wire.say(WHOLE)

    async with asking(behave) as (_, pool):
        asks = asyncio.create_task(ask_in_pieces(pool, pieces()))
        await asked.wait()
        before = -1
        while before < sent:
            before = sent
            await asyncio.sleep(0.1)
        assert sent < 32, "what nobody takes is not gathered"
        go_on.set()
        assert await read(await asks) == b"ok"
        assert sent == 64


@pytest.mark.parametrize("then", ["", "close"])
async def test_an_answer_that_comes_before_the_body_has_gone_out(then: str) -> None:
    async def behave(wire: Wire) -> str:
        await wire.say(b"HTTP/1.1 413 Payload Too Large\r\nContent-Length: 5\r\n\r\nlarge")
        return then

    async with asking(behave) as (origin, pool):
        for number in (1, 2):
            response = await ask_in_pieces(pool, _pieces(64))
            assert (response.status, await read(response)) == (413, b"large")
            assert origin.connections == number, "the other is of no use any more"


async def test_a_server_that_ends_its_half_while_the_body_is_sent() -> None:
    async def behave(wire: Wire) -> None:
        await wire.say(b"HTTP/1.1 413 Payload Too Large\r\n\r\nlarge")
        wire.writer.write_eof()
        await asyncio.sleep(0.2)  # and does not read
        await wire.gone()

    async with asking(behave) as (_, pool):
        response = await ask_in_pieces(pool, _pieces(64))
        assert (response.status, await read(response)) == (413, b"large")


async def test_a_server_that_hangs_up_while_the_body_is_sent() -> None:
    async def behave(wire: Wire) -> str:
        await wire.reader.read(1000)
        wire.writer.transport.abort()
        return "close"

    async with asking(behave) as (_, pool):
        with pytest.raises(Disconnected):
            await ask_in_pieces(pool, _pieces(64))


async def test_a_sender_that_fails_cuts_the_server_off() -> None:
    gone = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        yield b"x" * 10
        raise KeyError("the client left")

    async def behave(wire: Wire) -> None:
        await wire.gone()
        gone.set()

    async with asking(behave) as (_, pool):
        with pytest.raises(KeyError):
            await ask_in_pieces(pool, pieces())
        await gone.wait()


async def test_a_sender_that_fails_in_the_middle_of_the_answer_ends_it() -> None:
    fail = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        yield b"x" * 10
        await fail.wait()
        raise KeyError("the client left")

    async def behave(wire: Wire) -> None:
        await wire.say(CHUNKED + b"5\r\nfirst\r\n")
        await wire.gone()

    async with asking(behave) as (_, pool):
        response = await ask_in_pieces(pool, pieces())
        assert await response.readany() == b"first"
        fail.set()
        with pytest.raises(KeyError):
            await read(response)


# Answers that nobody reads.


async def test_an_answer_that_nobody_reads_is_not_gathered() -> None:
    said = 0

    async def behave(wire: Wire) -> None:
        nonlocal said
        await wire.say(CHUNKED)
        for _ in range(64):
            await wire.say(b"100000\r\n" + bytes(MB) + b"\r\n")
            said += 1
        await wire.say(b"0\r\n\r\n")

    async with asking(behave) as (origin, pool):
        response = await ask(pool)
        before = -1
        while before < said:
            before = said
            await asyncio.sleep(0.1)
        assert said < 32
        size = most = 0
        while part := await response.readany():
            size += len(part)
            most = max(most, len(part))
        assert size == 64 * MB
        assert most < MB, "as much as is kept for a reader"
        await read(await ask(pool))
        assert origin.connections == 1, "it reads again, and is used again"


async def test_an_answer_that_nobody_wants_any_more_is_broken_off() -> None:
    gone = asyncio.Event()

    async def behave(wire: Wire) -> None:
        await wire.say(CHUNKED + b"5\r\nfirst\r\n")
        await wire.gone()
        gone.set()

    async with asking(behave) as (_, pool):
        response = await ask(pool)
        response.close()
        response.close()
        await gone.wait()


async def test_one_who_is_cancelled_before_the_head_hangs_up() -> None:
    asked, gone = asyncio.Event(), asyncio.Event()

    async def behave(wire: Wire) -> None:
        asked.set()
        await wire.gone()
        gone.set()

    async with asking(behave) as (_, pool):
        for asks in (ask(pool), ask_in_pieces(pool, _pieces(64))):
            asked.clear()
            gone.clear()
            task = asyncio.create_task(asks)
            await asked.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await gone.wait()


@pytest.mark.parametrize("stays", [True, False])
@pytest.mark.parametrize("pause_s", [0.0, 0.05])
async def test_a_server_that_answers_before_it_is_asked_has_answered(stays: bool, pause_s: float) -> None:
    """One that is too busy says so as soon as somebody connects, and may hang up at once."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy")
        await writer.drain()
        if stays:
            await reader.read()
        writer.close()

    async with await asyncio.start_server(speak, "127.0.0.1", 0) as server:
        pool = UpstreamConnections(urlsplit(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
        connection = await pool.connect()
        await asyncio.sleep(pause_s)
        response = await Reply(connection, UpstreamRequest(b"POST", head(), b"{}")).head()
        assert (response.status, await read(response)) == (503, b"busy")
        assert not pool.idle, "what comes next would be taken for the next answer"
        await pool.close()
