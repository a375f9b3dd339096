"""How the proxy's client gets its connections, keeps them and lets go of them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from fleetgate.proxy.http_client import pool as http_client_pool
from fleetgate.proxy.http_client.failures import CannotConnect
from fleetgate.proxy.http_client.pool import UpstreamConnections
from tests.proxy.origin import WHOLE, Wire, answering, ask, asking, read


@pytest.fixture
def deaf() -> Iterator[int]:
    """A port that takes no more connections, and does not say so."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        waiting = []
        for _ in range(4):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(address)
            waiting.append(one)
        yield address[1]
        for one in waiting:
            one.close()


def _address(port: int) -> Any:
    return (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))


async def test_of_several_addresses_the_next_is_tried_beside_one_that_does_not_answer(
    deaf: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asking(answering(WHOLE)) as (_, pool):

        async def several(host: str, port: int) -> list[Any]:
            return [_address(deaf), _address(9), _address(port)]

        monkeypatch.setattr(http_client_pool, "addresses_of", several)
        began = asyncio.get_running_loop().time()
        assert await read(await ask(pool)) == b"ok"
        assert asyncio.get_running_loop().time() - began < 10


async def test_no_connection_in_time_is_a_time_out(deaf: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client_pool, "CONNECT_S", 0.2)
    with pytest.raises(TimeoutError, match=r"no connection within 0\.2 s"):
        await ask(UpstreamConnections(urlsplit(f"http://127.0.0.1:{deaf}")))


async def test_a_tls_handshake_that_is_not_answered_is_a_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(wire: Wire) -> None:  # never called: what comes is no request
        raise AssertionError

    monkeypatch.setattr(http_client_pool, "CONNECT_S", 0.3)
    async with asking(silent) as (_, plain):
        pool = UpstreamConnections(urlsplit(f"https://127.0.0.1:{plain.port}"))
        with pytest.raises(TimeoutError):
            await ask(pool)


@pytest.mark.parametrize(
    ("url", "says"),
    [("http://127.0.0.1:9", "refused"), ("http://nobody.invalid", "not known|resolution|getaddrinfo|address")],
)
async def test_one_that_cannot_be_reached_says_why(url: str, says: str) -> None:
    with pytest.raises(CannotConnect, match=f"(?i){says}"):
        await ask(UpstreamConnections(urlsplit(url)))


async def test_a_server_of_plain_http_is_no_server_of_tls() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad UpstreamRequest\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(plain, "127.0.0.1", 0) as server:
        with pytest.raises(CannotConnect, match="no TLS: WRONG_VERSION_NUMBER"):
            await ask(UpstreamConnections(urlsplit(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")))


async def test_one_who_is_cancelled_while_it_connects_leaves_nothing(deaf: int) -> None:
    async with asking(answering(WHOLE)):
        task = asyncio.create_task(ask(UpstreamConnections(urlsplit(f"http://127.0.0.1:{deaf}"))))
        await asyncio.sleep(0.05)  # it connects, and gets no answer
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_idle_connections_are_closed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client_pool, "KEEP_ALIVE_S", 1.0)
    everybody = asyncio.Barrier(3)

    async def behave(wire: Wire) -> None:
        await wire.body()
        await everybody.wait()
        await wire.say(WHOLE)

    async with asking(behave) as (origin, pool):
        for answer in await asyncio.gather(*(ask(pool) for _ in range(3))):
            await read(answer)
        assert pool.idle == 3
        origin.behave = answering(WHOLE)
        async with asyncio.timeout(60):
            while origin.open > 1:  # one is used again and again, the others are not
                await read(await ask(pool))
                await asyncio.sleep(0.02)
        assert origin.connections == 3
        async with asyncio.timeout(60):
            await origin.all_closed.wait()
        assert pool.idle == 0


async def test_after_close_nothing_is_kept() -> None:
    async with asking(answering(WHOLE)) as (origin, pool):
        response = await ask(pool)
        await pool.close()
        assert await read(response) == b"ok"
        assert await read(await ask(pool)) == b"ok", "one that was under way gets its connection"
        async with asyncio.timeout(60):
            await origin.all_closed.wait()
        assert pool.idle == 0
