"""A front with a handler of the test's own, and clients that write bytes."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from fleetgate.front.request import ClientRequest
from fleetgate.front.server import FrontServer, Handler

PATIENCE_S = 30.0


class Client:
    """One connection that sends what a test says, byte for byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def head(self) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.readuntil(b"\r\n\r\n")

    async def read(self, size: int) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.readexactly(size)

    async def rest(self) -> bytes:
        """All until the server closes."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.read()

    async def response(self) -> tuple[int, bytes]:
        """The status and the body of a response with a length."""
        head = await self.head()
        lines = head.lower().split(b"\r\n")
        length = next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:"))
        return int(head.split(b" ")[1]), await self.read(length)

    def close(self) -> None:
        self.writer.close()

    def abort(self) -> None:
        self.writer.transport.abort()


class Connect(Protocol):
    """Connects to the front, with TLS if a context for it is given."""

    def __call__(self, tls: ssl.SSLContext | None = None) -> Awaitable[Client]: ...


@asynccontextmanager
async def fronted(handler: Handler, **options: object) -> AsyncIterator[tuple[FrontServer, Connect]]:
    """A front that listens, and how to connect to it."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    address = sock.getsockname()
    server = FrontServer(handler=handler, **options)  # type: ignore[arg-type]
    await server.start(sock, 100)
    clients: list[Client] = []

    async def connect(tls: ssl.SSLContext | None = None) -> Client:
        client = Client(*await asyncio.open_connection(*address, ssl=tls))
        clients.append(client)
        return client

    try:
        yield server, connect
    finally:
        for client in clients:
            client.abort()
        await server.stop(0.5)


def echo(request: ClientRequest) -> None:
    """Respond, once the body is complete, with what was understood of the request."""

    def respond() -> None:
        parts.append(request.take_body())
        if request.gone:
            return
        if request.body_complete:
            request.on_news = None
            said = b"%s %s ? %s : %s" % (request.method.encode(), request.path, request.query, b"".join(parts))
            request.respond(200, [(b"content-type", b"text/plain")], said)

    parts: list[bytes] = []
    request.on_news = respond
    respond()


async def until(condition: Callable[[], object]) -> None:
    """Wait until something is true."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)
