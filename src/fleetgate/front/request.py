"""One request of a client, and the response to it.

The connection fills the request in as it comes. The handler reads it, and responds with `begin`, `write` and `end`, or
with `respond` if it has all of the response. These never wait: a handler of a long response checks `paused` before it
writes, and `on_room` calls it when the client reads again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fleetgate.front.connection import ClientLink

Headers = list[tuple[bytes, bytes]]
Address = tuple[str, int]

STATUS_LINES = {each.value: f"HTTP/1.1 {each.value} {each.phrase}\r\n".encode() for each in HTTPStatus}
_BODILESS = (204, 304)


class ClientLeft(Exception):
    """The client closed its connection, or broke its request off."""


class ClientRequest:
    """A request, as far as it has come, and its response, as far as it was sent."""

    __slots__ = (
        "_bodiless",
        "_chunked",
        "_left",
        "_link",
        "_out",
        "awaits_continue",
        "body",
        "body_complete",
        "body_limit",
        "gone",
        "headers",
        "http_version",
        "keep_alive",
        "method",
        "on_gone",
        "on_news",
        "on_room",
        "path",
        "query",
        "responded",
        "response_begun",
    )

    def __init__(self, link: ClientLink) -> None:
        self._link = link
        self.method = ""
        self.path = b""  # as it was sent, with its escapes
        self.query = b""
        self.headers: Headers = []  # names in lower case
        self.http_version = "1.1"
        self.keep_alive = True
        self.awaits_continue = False  # the client sends its body when it is told to
        self.body = b""  # what has come of it and was not taken yet
        self.body_complete = False
        self.body_limit = -1  # in bytes: a client that sends more is refused; -1: there is none
        self.gone = False  # the client has left
        self.on_gone: Callable[[], None] | None = None  # called when the client leaves
        self.on_news: Callable[[], None] | None = None  # called when more of the body has come, or the client has left
        self.on_room: Callable[[], None] | None = None  # called when the client reads again
        self.response_begun = False
        self.responded = False  # the response is complete
        self._out = b""  # a head that was not written yet
        self._chunked = self._bodiless = False
        self._left = 0  # of a body whose length was announced; -1 if it ends with the connection

    # The connection.

    @property
    def client(self) -> Address | None:
        """The address of the client."""
        return self._link.client

    @property
    def server(self) -> Address | None:
        """The address that the client connected to."""
        return self._link.server

    @property
    def scheme(self) -> str:
        return self._link.scheme

    @property
    def peer(self) -> object:
        """What the server's `identify` returned for this connection."""
        return self._link.peer

    def watch_client(self, call: Callable[[], None]) -> Callable[[], object]:
        """Call a function when the client leaves, at once if it has left; returns how to stop that. One at a time."""
        if self.gone:
            call()
        self.on_gone = call
        return self._stop_watch

    def _stop_watch(self) -> None:
        self.on_gone = None

    def lose_client(self) -> None:
        """The client has left. For the connection, which may say so twice."""
        if self.gone:
            return
        self.gone = True
        for call in (self.on_gone, self.on_news, self.on_room):
            if call is not None:
                call()

    # The body.

    @property
    def body_size(self) -> int:
        """How much of it has come, taken or not."""
        return self._link.body_size

    def take_body(self) -> bytes:
        """What has come of the body since the last call. A client that waits for a word to send it is told to."""
        if self.awaits_continue and not self.response_begun:
            self.awaits_continue = False
            self._link.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body, self.body = self.body, b""
        if body and not self.body_complete:
            self._link.resume_body()
        return body

    async def read_body(self) -> tuple[bytes, bool]:
        """Wait for more of the body; returns it, and whether there is more. ClientLeft."""
        body = self.take_body()
        while not body and not self.body_complete:
            await self.wait_for_body()
            body = self.take_body()
        return body, not self.body_complete

    async def wait_for_body(self) -> None:
        """Wait until more of the body has come, or its end. ClientLeft."""
        if self.gone:
            raise ClientLeft
        await self._wait_for_news()
        if self.gone:
            raise ClientLeft

    async def read_whole_body(self) -> bytes:
        """Wait for all of the body; a handler that calls this has set `body_limit`. ClientLeft."""
        parts, more = [], True
        while more:
            part, more = await self.read_body()
            parts.append(part)
        return b"".join(parts)

    async def wait_until_gone(self) -> None:
        """Return when the client has left, or when the response is complete."""
        while not self.gone and not self.responded:
            await self._wait_for_news()

    async def _wait_for_news(self) -> None:
        news = asyncio.get_running_loop().create_future()
        self.on_news = lambda: None if news.done() else news.set_result(None)
        try:
            await news
        finally:
            self.on_news = None

    # The response.

    @property
    def paused(self) -> bool:
        """Whether the client reads nothing now."""
        return self._link.write_paused

    async def drain(self) -> None:
        """Wait until the client reads again."""
        while self._link.write_paused and not self.gone:
            room = asyncio.get_running_loop().create_future()
            self.on_room = partial(_finish, room)
            try:
                await room
            finally:
                self.on_room = None

    def begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """The head, which is written with what follows it. Names are in lower case. ValueError: it is not valid."""
        lines: list[bytes] = []
        length = None
        for pair in headers:
            name = pair[0]
            if name == b"content-length":
                if status in _BODILESS:
                    continue
                length = int(pair[1])
            elif name == b"transfer-encoding":
                continue
            elif name == b"connection":
                self.keep_alive = self.keep_alive and b"close" not in pair[1].lower()
                continue
            lines.append(b"%s: %s\r\n" % pair)
        self.begin_with(status, lines, length)

    def begin_with(self, status: int, lines: list[bytes], length: int | None) -> None:
        """The same with header lines. `length` is the body's, if a line says it; no line says how it is framed."""
        if self.response_begun:
            raise ValueError("the response has begun already")
        self._bodiless = self.method == "HEAD" or status in _BODILESS
        if length is not None:
            self._left = length
        elif not self._bodiless:
            if self.http_version == "1.1":
                self._chunked = True
                lines.append(b"transfer-encoding: chunked\r\n")
            else:
                self._left, self.keep_alive = -1, False
        self._begin(status, checked(lines))

    def _begin(self, status: int, lines: bytes) -> None:
        if self.awaits_continue or self._link.closing:
            self.keep_alive = False
        if not self.keep_alive:
            lines = b"connection: close\r\n" + lines
        elif self.http_version == "1.0":
            lines = b"connection: keep-alive\r\n" + lines
        self.response_begun = True
        status_line = STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
        self._out = b"%s%s%s\r\n" % (status_line, self._link.date_header(), lines)

    def write(self, piece: bytes) -> None:
        """More of the body; with nothing, at least the head is sent."""
        self.write_parts((piece,) if piece else ())

    def write_parts(self, parts: Sequence[bytes]) -> None:
        """The same for several parts that follow each other, without a copy of them."""
        size = sum(map(len, parts))
        if self._bodiless or not size:
            framed: Sequence[bytes] = ()
        elif self._chunked:
            framed = (b"%x\r\n" % size, *parts, b"\r\n")
        else:
            self._count(size)
            framed = parts
        self._send(framed)

    def end(self, piece: bytes = b"") -> None:
        """The last of the body; the response is complete."""
        if self._bodiless:
            self._send(())
        elif self._chunked:
            self._send((b"%x\r\n%s\r\n0\r\n\r\n" % (len(piece), piece) if piece else b"0\r\n\r\n",))
        else:
            self._count(len(piece))
            if self._left > 0:
                raise ValueError("the response is shorter than its head says")
            self._send((piece,) if piece else ())
        self.responded = True
        if self.on_news is not None:
            self.on_news()
        self._link.finish_response(self)

    def respond(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes = b"") -> None:
        """A whole response."""
        self.begin(status, [*headers, (b"content-length", b"%d" % len(body))])
        self.end(body)

    def respond_with(self, status: int, lines: bytes, body: bytes) -> None:
        """The same with the header lines of `header_lines`, for a handler that responds often."""
        self._left = len(body)
        self._bodiless = self.method == "HEAD"
        self._begin(status, b"%scontent-length: %d\r\n" % (lines, len(body)))
        self.end(body)

    def abort(self) -> None:
        """Cut the connection: the client sees that the response is not complete."""
        self._link.abort()

    def _count(self, size: int) -> None:
        if self._left < 0:
            return
        if size > self._left:
            raise ValueError("the response is longer than its head says")
        self._left -= size

    def _send(self, parts: Sequence[bytes]) -> None:
        out, self._out = self._out, b""
        if self.gone:
            return
        if len(parts) > 1:
            self._link.write_parts((out, *parts) if out else parts)
        elif out or parts:
            self._link.write(out + parts[0] if parts else out)


def header_lines(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Headers as they are sent. ValueError: one has a line break in it."""
    return checked([b"%s: %s\r\n" % pair for pair in headers])


def checked(lines: Sequence[bytes]) -> bytes:
    """The lines of headers together. ValueError: one of them is more than a line."""
    head = b"".join(lines)
    if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines) or b"\0" in head:
        raise ValueError("a header has a line break in it")
    return head


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
