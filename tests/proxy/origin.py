"""A server in the test's own loop, for what the proxy's client must take: each request is answered by a coroutine.

`asking(…)` gives a test the server and a pool of connections to it; at its end nothing may be left of either.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple, Self
from urllib.parse import urlsplit

from fleetgate.proxy.http_client.connection import Connection, UpstreamRequest
from fleetgate.proxy.http_client.pool import UpstreamConnections

PATIENCE_S = 60.0
OK = b"HTTP/1.1 200 OK\r\n"
WHOLE = OK + b"Content-Length: 2\r\n\r\nok"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


class Wire(NamedTuple):
    """One request that has come, and the connection that it came by."""

    head: bytes
    number: int  # of its connection, from 1
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def body(self) -> bytes:
        """All of its body."""
        head = self.head.lower()
        if b"transfer-encoding: chunked" not in head:
            length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
            return await self.reader.readexactly(length)
        parts = []
        while size := int(await self.reader.readline(), 16):
            parts.append(await self.reader.readexactly(size))
            await self.reader.readexactly(2)
        await self.reader.readexactly(2)
        return b"".join(parts)

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def gone(self) -> None:
        """Until the other side has hung up."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while await self.reader.read(65536):
                    pass
        except ConnectionError:
            pass


Behaviour = Callable[[Wire], Awaitable[object]]


class Origin:
    """`behave` answers a request. What it returns as "close" closes the connection."""

    def __init__(self, behave: Behaviour) -> None:
        self.behave = behave
        self.connections = self.asked = self.open = 0
        self.all_closed = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        self.all_closed.clear()
        number = self.connections
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.asked += 1
                if await self.behave(Wire(head, number, reader, writer)) == "close":
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            self.open -= 1
            if not self.open:
                self.all_closed.set()


def answering(data: bytes, then: str = "") -> Behaviour:
    """Takes in a request, and says always the same."""

    async def behave(wire: Wire) -> str:
        await wire.body()
        await wire.say(data)
        return then

    return behave


@asynccontextmanager
async def asking(behave: Behaviour) -> AsyncIterator[tuple[Origin, UpstreamConnections]]:
    """A server and its client. At the end the client closes; no task and no connection may stay behind."""
    tasks, sockets = asyncio.all_tasks(), _sockets()
    origin = Origin(behave)
    server = await asyncio.start_server(origin.serve, "127.0.0.1", 0, limit=1 << 20)
    pool = UpstreamConnections(urlsplit(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
    try:
        yield origin, pool
        await pool.close()
        if origin.open:
            async with asyncio.timeout(PATIENCE_S):
                await origin.all_closed.wait()
    finally:
        server.close()
    async with asyncio.timeout(PATIENCE_S):
        while left := asyncio.all_tasks() - tasks:
            assert all("Origin.serve" in repr(task) for task in left), left
            await asyncio.wait(left)
        while _sockets() > sockets:
            await asyncio.sleep(0.01)


def _sockets() -> int:
    found = 0
    for file in Path("/proc/self/fd").iterdir():
        try:
            found += str(file.readlink()).startswith("socket:")
        except FileNotFoundError:  # that of the listing
            pass
    return found


def head(method: str = "POST", size: int | None = 2, *more: str) -> bytes:
    """The head of a request; without a size it is chunked."""
    length = "transfer-encoding: chunked" if size is None else f"content-length: {size}"
    return "\r\n".join([f"{method} /x HTTP/1.1", "host: h", length, *more, "", ""]).encode()


class Reply:
    """A response, for a test that waits for it."""

    def __init__(self, connection: Connection, request: UpstreamRequest) -> None:
        self._news = asyncio.Event()
        self._response = connection.send(request, lambda _: self._news.set())

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def raw_headers(self) -> list[tuple[bytes, bytes]]:
        return self._response.raw_headers

    @property
    def complete(self) -> bool:
        return self._response.complete

    def close(self) -> None:
        self._response.close()

    async def head(self) -> Self:
        try:
            while not self.status:
                await self._wait()
        except BaseException:
            self.close()
            raise
        return self

    async def readany(self) -> bytes:
        """What has come since the last call; nothing at the end."""
        while not (part := self._response.take()) and not self.complete:
            await self._wait()
        return part

    async def _wait(self) -> None:
        if self._response.error is not None:
            raise self._response.error
        self._news.clear()
        await self._news.wait()


async def send(pool: UpstreamConnections, request: UpstreamRequest) -> Reply:
    """Send a request by a connection that is idle, or by a new one; back with the head of the response."""
    async with asyncio.timeout(PATIENCE_S):
        return await Reply(pool.take_idle() or await pool.connect(), request).head()


async def ask(pool: UpstreamConnections, method: str = "POST", body: bytes = b"{}") -> Reply:
    return await send(pool, UpstreamRequest(method.encode(), head(method, len(body)), body))


async def ask_in_pieces(pool: UpstreamConnections, pieces: AsyncIterator[bytes], size: int | None = None) -> Reply:
    return await send(pool, UpstreamRequest(b"POST", head("POST", size), b"", pieces))


async def read(reply: Reply) -> bytes:
    """All of a body."""
    parts = []
    async with asyncio.timeout(PATIENCE_S):
        while part := await reply.readany():
            parts.append(part)
    return b"".join(parts)
