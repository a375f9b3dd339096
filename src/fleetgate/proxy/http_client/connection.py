"""One connection to a provider, HTTP/1.1 read by httptools: one request at a time, its answer piece by piece.

The rules:

- An answer that is not HTTP, or ends too early, is an error and never looks complete.
- An answer that is not read is not collected: the provider is slowed down.
- A connection is used again only after a complete answer with nothing behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import httptools

from fleetgate.proxy.http_client.failures import ClosedWithoutAnswer, Disconnected, NotHttp, UpstreamFailed

_HEAD_BYTES = 64 * 1024
_UNREAD_BYTES = 256 * 1024  # of a body, before the provider is slowed down; and of anything that has no end
_LINE_BYTES = 4  # of a header, besides its name and its value
_AT_ONCE_BYTES = 64 * 1024  # a smaller body is written together with the head


OnNews = Callable[["UpstreamResponse"], None]


class UpstreamResponse:
    """A response, as far as it has come. `on_news` is called whenever there is more of it, or nothing more comes."""

    __slots__ = ("_connection", "_parts", "_size", "complete", "error", "on_news", "raw_headers", "status")

    def __init__(self, connection: Connection, on_news: OnNews | None) -> None:
        self.on_news = on_news
        self.status = 0  # 0: its head has not come yet
        self.raw_headers: list[tuple[bytes, bytes]] = []
        self.complete = False  # its last byte is here
        self.error: BaseException | None = None  # nothing more comes of it
        self._connection: Connection | None = connection
        self._parts: list[bytes] = []
        self._size = 0

    def take(self) -> bytes:
        """What has come of the body since the last call."""
        parts = self._parts
        if not parts:
            return b""
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        self._parts = []
        self._size = 0
        if self._connection is not None:
            self._connection.go_on()
        return data

    def close(self) -> None:
        """It is not read any more: if it is not complete, close the connection."""
        self.on_news = None
        if self._connection is not None:
            self._connection.abort()

    # For the connection.

    def add(self, data: bytes) -> int:
        """More of its body; how much is unread."""
        self._parts.append(data)
        self._size += len(data)
        return self._size

    def end(self, error: BaseException | None = None) -> None:
        """It is whole, or nothing more comes of it."""
        if error is None:
            self.complete = True
        elif self.error is None:
            self.error = error
        self._connection = None

    def wake(self) -> None:
        """Call the reader, if there is anything to see."""
        if self.on_news is not None and (self.status or self.error is not None):
            self.on_news(self)


class UpstreamRequest(NamedTuple):
    """A request as it is sent. Its head says how long its body is, or that it is chunked."""

    method: bytes
    head: bytes
    body: bytes = b""
    pieces: AsyncIterator[bytes] | None = None  # instead of a body


class Connection:
    """A connection, a protocol of asyncio. `free` is called when it can be used again, `lost` when it is gone."""

    idle_since = 0.0

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        free: Callable[[Connection], None],
        lost: Callable[[Connection], None],
    ) -> None:
        self.loop = loop
        self._free = free
        self._lost = lost
        self._transport: Any = None
        self._parser = httptools.HttpResponseParser(self)
        self._response: UpstreamResponse | None = None
        self._writer: asyncio.Task[None] | None = None  # of a large body
        self._drained: asyncio.Future[None] | None = None
        self._paused = False
        self._asked = False  # something, ever
        self._early = b""  # what a new connection said before it was asked, such as "too busy"
        self._begin(b"")

    def _begin(self, method: bytes) -> None:
        self._method = method
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._fed_bytes = 0  # since the last byte of a body
        self._heard = False
        self._sized = False  # the head says where the body ends
        self._ended = self._surplus = self._keep = False
        self._wrong = ""

    @property
    def usable(self) -> bool:
        return self._response is None and self._transport is not None and not self._transport.is_closing()

    # Asking.

    def send(self, request: UpstreamRequest, on_news: OnNews) -> UpstreamResponse:
        """Send a request. `on_news` is called, never before this returns. ClosedWithoutAnswer."""
        early, self._early, self._asked = self._early, b"", True
        if not self.usable and not early:
            raise ClosedWithoutAnswer("it hung up at once")
        response = self._response = UpstreamResponse(self, None if early else on_news)
        self._begin(request.method)
        if early:
            self._surplus = True  # whatever comes next is not an answer to the next request
            self.data_received(early)
            response.on_news = on_news
            self.loop.call_soon(response.wake)
            if not self._awaits(response):
                return response  # it has answered without being asked
            if self._transport is None or self._transport.is_closing():
                self._hung_up(response, None)
                return response
        self._post(request, response)
        return response

    def _awaits(self, response: UpstreamResponse) -> bool:
        return self._response is response

    def _post(self, request: UpstreamRequest, response: UpstreamResponse) -> None:
        _, head, body, pieces = request
        if pieces is not None:
            self._transport.write(head)
            chunked = b"\r\ntransfer-encoding: chunked\r\n" in head
            self._writer = self.loop.create_task(self._write(pieces, chunked, response))
        elif len(body) < _AT_ONCE_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.writelines([head, body])

    async def _write(self, pieces: AsyncIterator[bytes], chunked: bool, response: UpstreamResponse) -> None:
        try:
            async for piece in pieces:
                self._transport.write(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
                if self._drained is not None:
                    await self._drained
            if chunked:
                self._transport.write(b"0\r\n\r\n")
            self._writer = None
        except Exception as error:  # the client left, or sent nonsense
            response.end(error)
            response.wake()
            self.abort()

    def go_on(self) -> None:
        """What had come was read."""
        if self._paused:
            self._paused = False
            self._transport.resume_reading()

    def abort(self) -> None:
        """Hang up, now."""
        if self._writer is not None:
            self._writer.cancel()
            self._writer = None
        if self._transport is not None:
            self._transport.abort()

    # What the loop tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def pause_writing(self) -> None:
        self._drained = self.loop.create_future()

    def resume_writing(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    def data_received(self, data: bytes) -> None:
        response = self._response
        if response is None:
            if self._asked or len(self._early) + len(data) > _UNREAD_BYTES:
                self.abort()  # no request was sent
            else:
                self._early += data
            return
        self._heard = True
        self._fed_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._wrong = "it wants to speak another protocol"
        except httptools.HttpParserError as error:
            self._wrong = self._wrong or str(error) or "it is not HTTP"
        if self._ended:
            self._end(response)
        else:
            if self._fed_bytes > _UNREAD_BYTES:
                self._wrong = self._wrong or "its headers do not end"
            if self._wrong:
                self._fail(response, NotHttp(self._wrong))
                self.abort()
        response.wake()

    def eof_received(self) -> bool:
        response = self._response
        if response is not None:
            if response.status and not self._sized:
                self._end(response)  # its end is the end of the connection
            else:
                self._hung_up(response, None)
            response.wake()
            self.abort()  # a body that it did not wait for is not sent to its end
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.resume_writing()
        if self._writer is not None:
            self._writer.cancel()
            self._writer = None
        response = self._response
        if response is not None:
            self._hung_up(response, error)
            response.wake()
        self._transport = None
        self._lost(self)

    def _hung_up(self, response: UpstreamResponse, error: Exception | None) -> None:
        if self._heard:
            self._fail(response, Disconnected(str(error) if error else "it closed the connection"))
        else:
            self._fail(response, ClosedWithoutAnswer(f"it hung up without a word{f' ({error})' if error else ''}"))

    def _fail(self, response: UpstreamResponse, error: UpstreamFailed) -> None:
        self._response = None
        response.end(error)

    def _end(self, response: UpstreamResponse) -> None:
        """The answer is whole."""
        self._response = None
        response.end()
        if self._keep and not self._surplus and not self._wrong and self._writer is None:
            self.go_on()
            self._free(self)
        else:
            self.abort()

    # What the parser tells.

    def on_message_begin(self) -> None:
        if self._ended:
            self._surplus = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._ended:
            return
        self._head_bytes += len(name) + len(value) + _LINE_BYTES
        if self._head_bytes > _HEAD_BYTES:
            self._wrong = f"its headers are longer than {_HEAD_BYTES} bytes"
            return
        if self._response is None or self._response.status:
            return  # a trailer: the head is with the client already
        small = name.lower()
        if small == b"content-length" or (small == b"transfer-encoding" and b"chunked" in value.lower()):
            self._sized = True
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._ended or status < 200 or self._wrong:
            return
        if status > 599:
            self._wrong = f"there is no status {status}"
            return
        response = self._response
        assert response is not None
        response.status, response.raw_headers = status, self._headers
        if self._method == b"HEAD":
            self._ended = True  # whatever length is named, no body comes; the parser does not know that

    def on_body(self, body: bytes) -> None:
        if self._ended or self._response is None:
            return
        self._fed_bytes = 0
        if self._response.add(body) > _UNREAD_BYTES and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if self._ended or self._wrong:
            return
        if self._parser.get_status_code() < 200:
            self._headers, self._sized = [], False  # not the answer yet
            return
        self._ended = True
        self._keep = self._parser.should_keep_alive()
