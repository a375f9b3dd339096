"""A small HTTP/1.1 server on asyncio streams, for the fake provider: keep-alive, chunked bodies, bounded input.

The rule: a handler whose client has left is cancelled at once, and whatever bytes arrive, the answer is a response or
a closed connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Self

from fleetgate.testing.http1 import (
    CHUNKED,
    MAX_BODY_BYTES,
    MAX_CHUNK_LINE_BYTES,
    MAX_HEAD_BYTES,
    BadRequest,
    Request,
    body_length,
    can_start,
    check_size,
    chunk_size,
    parse_head,
    response_head,
)

READ_BYTES = 64 * 1024
IDLE_S = 75.0
BACKLOG = 1024

Fields = Iterable[tuple[str, str]]
Handler = Callable[[Request, "Reply"], Awaitable[None]]

_log = logging.getLogger(__name__)


class Reply:
    """One response: either `send` it whole, or `start`, `write` and `finish` it. `drop` cuts the connection.

    `before_end` is called once, just before the last bytes leave: whoever has seen the end comes after it.
    """

    def __init__(self, writer: asyncio.StreamWriter, request: Request) -> None:
        self._writer = writer
        self._head_only = request.method == "HEAD"
        self._keep_alive = request.keep_alive
        self._chunked = request.minor == 1
        self.before_end: Callable[[], None] = _nothing
        self.started = False
        self.finished = False

    @property
    def reusable(self) -> bool:
        """Whether the connection can carry another request after this response."""
        return self.finished and self._keep_alive and not self._writer.is_closing()

    async def send(self, status: int, body: bytes, fields: Fields = ()) -> None:
        self.started = True
        head = response_head(status, [*fields, ("Content-Length", str(len(body))), self._connection()])
        await self._write_last(head if self._head_only else head + body)
        self.finished = True

    async def start(self, status: int, fields: Fields = ()) -> None:
        self.started = True
        framing = [("Transfer-Encoding", "chunked")] if self._chunked else []
        self._keep_alive &= self._chunked  # HTTP/1.0: the body ends with the connection
        self._writer.write(response_head(status, [*fields, *framing, self._connection()]))
        await self._writer.drain()

    async def write(self, data: bytes) -> None:
        self._writer.write(self._framed(data))
        await self._writer.drain()

    async def finish(self, data: bytes = b"") -> None:
        """The last piece and the end in one."""
        await self._write_last(self._framed(data) + (b"0\r\n\r\n" if self._chunked and not self._head_only else b""))
        self.finished = True

    async def send_part(self, status: int, body: bytes, fields: Fields, part: int) -> None:
        """Promise the whole body, send its first `part` bytes, and cut the connection."""
        self.started = True
        head = response_head(status, [*fields, ("Content-Length", str(len(body)))])
        await self._write_last(head + body[:part])
        self.drop()

    def drop(self) -> None:
        self.end()
        self._keep_alive = False
        self._writer.close()  # what was written is still sent, unlike with abort

    async def _write_last(self, data: bytes) -> None:
        self.end()
        self._writer.write(data)
        await self._writer.drain()

    def end(self) -> None:
        """Say that this response ends here, if it has not been said."""
        before_end, self.before_end = self.before_end, _nothing
        before_end()

    def _framed(self, data: bytes) -> bytes:
        if not data or self._head_only:
            return b""
        return b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data

    def _connection(self) -> tuple[str, str]:
        return ("Connection", "keep-alive" if self._keep_alive else "close")


class Server:
    """Listens, reads requests one after the other from each connection, and gives each to the handler."""

    def __init__(self, handler: Handler, host: str = "127.0.0.1", port: int = 0) -> None:
        self._handler = handler
        self._host = host
        self._port = port
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """The port listened on; before the start the one asked for."""
        return self._port

    @property
    def open_connections(self) -> int:
        return len(self._connections)

    async def start(self) -> Self:
        self._server = await asyncio.start_server(
            self._connected, self._host, self._port, limit=READ_BYTES, backlog=BACKLOG
        )
        self._port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in self._connections:
            task.cancel()
        # Cancelled tasks may not have run yet; each takes itself off the set, so wait on a copy.
        await asyncio.gather(*tuple(self._connections), return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._serve(_Connection(reader, writer))
        except (OSError, asyncio.CancelledError):
            writer.transport.abort()  # gone, or the server stops: nobody is owed the rest
        finally:
            await _close(writer)
            self._connections.discard(task)

    async def _serve(self, connection: _Connection) -> None:
        while True:
            try:
                request = await connection.next_request()
            except BadRequest as error:
                await connection.refuse(error)
                return
            if request is None:
                return
            reply = Reply(connection.writer, request)
            await self._answer(connection, request, reply)
            if not reply.reusable:
                return

    async def _answer(self, connection: _Connection, request: Request, reply: Reply) -> None:
        """Run the handler while watching that the client stays; end it at once when the client leaves."""
        work = asyncio.ensure_future(self._handler(request, reply))
        gone = asyncio.ensure_future(connection.left())
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            work.cancel()
            gone.cancel()
            outcome, _ = await asyncio.gather(work, gone, return_exceptions=True)
        if isinstance(outcome, Exception) and not isinstance(outcome, OSError):
            _log.error("the handler failed on %s %s", request.method, request.path, exc_info=outcome)
            if not reply.started:
                await reply.send(500, b"the handler failed: " + repr(outcome).encode())


class _Connection:
    """The bytes of one client, read into a buffer of our own so that it can be watched while it is answered."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._buffer = bytearray()

    async def next_request(self) -> Request | None:
        """The next request with its body, or None when the client is done."""
        try:
            async with asyncio.timeout(IDLE_S):
                head = await self._read_head()
                if head is None:
                    return None
                request = parse_head(head)
                request.body = await self._read_body(request)
                return request
        except TimeoutError:
            if not self._buffer:
                return None
            raise BadRequest(408, f"no whole request within {IDLE_S:g} s") from None

    async def left(self) -> None:
        """Return when the client has closed its side; what it sends meanwhile is kept for later."""
        while len(self._buffer) <= MAX_HEAD_BYTES + MAX_BODY_BYTES:
            try:
                if not await self._fill():
                    return
            except OSError:
                return
        await asyncio.Event().wait()  # enough is kept: read no more until this request is answered

    async def refuse(self, error: BadRequest) -> None:
        body = f"{error}\n".encode()
        fields = [("Content-Type", "text/plain"), ("Content-Length", str(len(body))), ("Connection", "close")]
        self.writer.write(response_head(error.status, fields) + body)
        await self.writer.drain()
        self.writer.write_eof()
        # Closing with unread bytes makes the kernel reset the connection, and the answer may be lost with it.
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(1.0):
                while await self._reader.read(READ_BYTES):
                    pass

    async def _read_head(self) -> bytes | None:
        searched = 0
        while True:
            while self._buffer[:2] == b"\r\n":
                del self._buffer[:2]  # an empty line before a request is allowed
            if self._buffer and not can_start(self._buffer[0]):
                raise BadRequest(400, "this is not HTTP; is it https:// to a plain port?")
            end = self._buffer.find(b"\r\n\r\n", max(0, searched - 3))
            if end > MAX_HEAD_BYTES or (end < 0 and len(self._buffer) > MAX_HEAD_BYTES):
                raise BadRequest(431, f"a request's head has at most {MAX_HEAD_BYTES} bytes")
            if end >= 0:
                return self._take(end, skip=4)
            searched = len(self._buffer)
            if not await self._fill():
                if self._buffer:
                    raise BadRequest(400, "the request ends in the middle of its head")
                return None

    async def _read_body(self, request: Request) -> bytes:
        length = body_length(request)
        if length != 0 and request.headers.get("expect", "").lower() == "100-continue":
            self.writer.write(response_head(100, ()))
        return await self._read_chunks() if length == CHUNKED else await self._exactly(length)

    async def _read_chunks(self) -> bytes:
        body = bytearray()
        while size := chunk_size(await self._line(MAX_CHUNK_LINE_BYTES)):
            check_size(len(body) + size)
            body += await self._exactly(size)
            if await self._exactly(2) != b"\r\n":
                raise BadRequest(400, "a chunk ends with an empty line")
        left = MAX_HEAD_BYTES
        while trailer := await self._line(left):
            left -= len(trailer)
        return bytes(body)

    async def _line(self, limit: int) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0 and len(self._buffer) <= limit:
            await self._fill_or_fail()
        if end < 0 or end > limit:
            raise BadRequest(400, f"a line of a chunked body has at most {limit} bytes")
        return self._take(end, skip=2)

    async def _exactly(self, length: int) -> bytes:
        while len(self._buffer) < length:
            await self._fill_or_fail()
        return self._take(length)

    async def _fill_or_fail(self) -> None:
        if not await self._fill():
            raise BadRequest(400, "the request ends in the middle of its body")

    async def _fill(self) -> bool:
        data = await self._reader.read(READ_BYTES)
        self._buffer += data
        return bool(data)

    def _take(self, length: int, skip: int = 0) -> bytes:
        taken = bytes(self._buffer[:length])
        del self._buffer[: length + skip]
        return taken


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        await writer.wait_closed()
    except (OSError, asyncio.CancelledError):
        writer.transport.abort()


def _nothing() -> None: ...
