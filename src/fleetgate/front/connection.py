"""One connection of a client: the parser, its limits, and back-pressure in both directions.

The states and what may follow them are in `states.py`. The parser gets one request at a time: `_next_piece` gives it a
head, then a body, and leaves what follows in the buffer until the response is complete. If a chunked body ends in the
middle of a piece and another request begins there, the parser has seen too much of it; the connection then ends
after the response, and the client sends that request again on another connection, as HTTP allows.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import httptools

from fleetgate.front import limits, refusals
from fleetgate.front.hang_up import has_hung_up
from fleetgate.front.request import Address, ClientRequest
from fleetgate.front.states import LinkState

_END_OF_HEAD = b"\r\n\r\n"
_METHODS = {name.encode(): name for name in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")}


class ServerSide(Protocol):
    """What a connection needs of its server."""

    date: bytes  # the whole line
    scheme: str
    stopping: bool

    def handle(self, request: ClientRequest) -> None: ...
    def identify(self, client: Address | None, server: Address | None) -> object: ...
    def add(self, link: Any) -> bool: ...
    def remove(self, link: Any) -> None: ...


class ClientLink:
    """A connection: what asyncio calls a protocol. Methods below "For the request" are called by the request that it
    carries.
    """

    __slots__ = (
        "_at",
        "_body_left",
        "_buffer",
        "_dispatched",
        "_head_tail",
        "_loop",
        "_loose",
        "_parser",
        "_parsing",
        "_read_paused",
        "_refusal",
        "_request",
        "_second",
        "_server",
        "_target",
        "_transport",
        "_unread_since",
        "body_size",
        "client",
        "peer",
        "server",
        "since",
        "state",
        "write_paused",
    )

    def __init__(self, server: ServerSide, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport
        self._request: ClientRequest | None = None
        self.state = LinkState.IDLE
        self.since = loop.time()  # in this state
        self.client: Address | None = None
        self.server: Address | None = None
        self.peer: object = None
        self.write_paused = False
        self._buffer = b""  # what has come,
        self._at = 0  # parsed up to here
        self._parsing = False
        self._read_paused = False
        self._unread_since = 0.0
        self._target = b""
        self._head_tail = b""  # the last bytes of a head that is not complete
        self._loose = 0  # bytes since the last one of a body: of a head, of trailers, of chunk sizes; or dropped
        self._body_left = 0  # of a body of known length; -1: it comes in chunks
        self.body_size = 0
        self._dispatched = False  # the handler has the request
        self._second = False  # the parser has seen the beginning of another request
        self._refusal = b""  # why the head is not accepted

    # The transport.

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self.client = _address(transport.get_extra_info("peername"))
        self.server = _address(transport.get_extra_info("sockname"))
        self.peer = self._server.identify(self.client, self.server)
        if not self._server.add(self):
            transport.abort()

    def connection_lost(self, _: Exception | None) -> None:
        self.state = LinkState.CLOSED
        self._buffer = b""
        self._server.remove(self)
        request, self._request = self._request, None
        if request is not None and not request.responded:
            request.lose_client()

    def eof_received(self) -> None:
        """A client that closes its half has left: there is no other way to see that it gave up."""

    def pause_writing(self) -> None:
        self.write_paused = True
        self._unread_since = self._loop.time()

    def resume_writing(self) -> None:
        self.write_paused = False
        self._unread_since = 0.0
        request = self._request
        if request is not None:
            if request.on_room is not None:
                request.on_room()
        elif self._buffer:
            self._loop.call_soon(self._parse_rest)

    def data_received(self, data: bytes) -> None:
        if self.state is LinkState.LINGER:
            self._loose += len(data)
            if self._loose > limits.LINGER_BYTES:
                self._transport.abort()
            return
        if self._buffer:
            self._buffer, self._at = self._buffer[self._at :] + data, 0
        else:
            self._buffer = data
        if not self._parsing:
            self._parse()

    # The parser.

    def _parse(self) -> None:
        """Parse as much as may be parsed now, and hand the request over."""
        self._parsing = True
        try:
            while self._buffer and self.state in _READING and not self._must_wait():
                self._feed(self._next_piece())
                if self._request is not None and not self._dispatched and self._is_ready():
                    self._dispatched = True
                    self._server.handle(self._request)
        finally:
            self._parsing = False
        self._adjust_reading()

    def _must_wait(self) -> bool:
        """Whether the handler has to take some of the body first, or the client the responses that it has."""
        return self._body_is_full() if self.state is LinkState.BODY else self.write_paused

    def _body_is_full(self) -> bool:
        request = self._request
        return self.state is LinkState.BODY and request is not None and len(request.body) >= limits.BODY_BYTES

    def _is_ready(self) -> bool:
        """Whether the handler gets the request now: with its body, if that came with its head."""
        return self.state is LinkState.RESPONSE or (
            self.state is LinkState.BODY and (not self._buffer or self._body_is_full())
        )

    def _next_piece(self) -> bytes:
        """Take the rest of the head, or of the body, out of the buffer."""
        buffer, at = self._buffer, self._at
        if self.state is LinkState.BODY:
            size = self._body_left if self._body_left > 0 else len(buffer)
            end = at + min(size, limits.BODY_BYTES)
        else:
            end = self._find_end_of_head(buffer, at)
        if end < len(buffer):
            self._at = end
            return buffer[at:end]
        self._buffer, self._at = b"", 0
        return buffer[at:] if at else buffer

    def _find_end_of_head(self, buffer: bytes, at: int) -> int:
        """Where the head ends in the buffer, or where the buffer does."""
        tail, self._head_tail = self._head_tail, b""
        if tail:  # the end may be divided between this piece and the last one
            found = (tail + buffer[at : at + 3]).find(_END_OF_HEAD)
            if found >= 0:
                return at + found + 4 - len(tail)
        found = buffer.find(_END_OF_HEAD, at)
        if found >= 0:
            return found + 4
        self._head_tail = (tail + buffer[at:])[-3:]
        return len(buffer)

    def _feed(self, piece: bytes) -> None:
        self._loose += len(piece)
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            self._end_after_response()  # what follows is another protocol, which nothing here speaks
        except httptools.HttpParserError:
            self._refuse(self._refusal or refusals.INVALID)
            return
        if self._loose > limits.HEAD_BYTES:
            self._refuse(refusals.TOO_LONG)
        elif self._second:
            self._end_after_response()

    def _end_after_response(self) -> None:
        self._buffer, self._at = b"", 0
        if self._request is not None:
            self._request.keep_alive = False

    def on_message_begin(self) -> None:
        if self.state is not LinkState.IDLE:
            self._second = True
            return
        self._request = ClientRequest(self)
        self._target, self.body_size, self._dispatched = b"", 0, False
        self._enter(LinkState.HEAD)

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        request = self._request
        if self.state is LinkState.HEAD and request is not None:  # else it is a trailer, which goes nowhere
            request.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        request = self._request
        if request is None or self.state is not LinkState.HEAD:
            return
        parser = self._parser
        method = parser.get_method()
        request.method = _METHODS.get(method) or method.decode("ascii")
        request.http_version = parser.get_http_version()
        request.keep_alive = parser.should_keep_alive() and not self._server.stopping
        self._refusal = self._read_head(request)
        if self._refusal:
            raise ValueError(self._refusal)  # the parser stops, and `_feed` responds
        self._enter(LinkState.BODY)

    def _read_head(self, request: ClientRequest) -> bytes:
        """Take from the head what the connection needs; returns why it is refused, or nothing."""
        if request.http_version not in ("1.1", "1.0"):
            return refusals.VERSION
        self._body_left = 0
        for name, value in request.headers:
            if name == b"content-length":
                self._body_left = int(value)  # which the parser has checked
            elif name == b"transfer-encoding":
                if request.http_version == "1.0":
                    return refusals.INVALID
                self._body_left = -1
            elif name == b"expect":
                if value.lower() != b"100-continue":
                    return refusals.UNEXPECTED
                request.awaits_continue = request.http_version == "1.1"
        return b"" if self._read_target(request) else refusals.INVALID

    def _read_target(self, request: ClientRequest) -> bool:
        target = self._target
        if target.startswith(b"/"):
            request.path, _, request.query = target.partition(b"#")[0].partition(b"?")
            return True
        if target == b"*" and request.method == "OPTIONS":
            request.path = target
            return True
        if not target.lower().startswith((b"http://", b"https://")):
            return False
        try:
            url = httptools.parse_url(target)
        except httptools.HttpParserInvalidURLError:
            return False
        request.path, request.query = url.path or b"/", url.query or b""
        return True

    def on_body(self, body: bytes) -> None:
        request = self._request
        if self._second or request is None:
            return
        self._loose = 0
        self.body_size += len(body)
        if self._body_left > 0:
            self._body_left -= len(body)
        if request.responded:
            return
        if 0 <= request.body_limit < self.body_size:
            self._refusal = refusals.too_large(request.body_limit)
            raise ValueError(self._refusal)  # the parser stops, and `_feed` responds
        request.body = request.body + body if request.body else body
        if self._dispatched and request.on_news is not None:
            request.on_news()

    def on_message_complete(self) -> None:
        request = self._request
        if self._second or request is None or self.state is not LinkState.BODY:
            return
        request.body_complete = True
        request.awaits_continue = False
        self._enter(LinkState.RESPONSE)
        if self._dispatched and request.on_news is not None:
            request.on_news()

    # For the request.

    @property
    def scheme(self) -> str:
        return self._server.scheme

    @property
    def closing(self) -> bool:
        """Whether this response is the last one, because the server stops."""
        return self._server.stopping

    def date_header(self) -> bytes:
        return self._server.date

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def write_parts(self, parts: Any) -> None:
        self._transport.writelines(parts)

    def abort(self) -> None:
        self._transport.abort()

    def resume_body(self) -> None:
        """The handler has taken some of the body: parse more of it, but not within what calls this."""
        if self._buffer and not self._parsing:
            self._loop.call_soon(self._parse_rest)
        elif self._read_paused:
            self._adjust_reading()

    def finish_response(self, request: ClientRequest) -> None:
        """The response is complete."""
        if request.gone or request is not self._request:
            return
        if self.state is LinkState.BODY or not request.keep_alive or self._server.stopping:
            self._linger()
            return
        self._request = None
        self._loose = 0
        self._enter(LinkState.IDLE)
        if self._buffer and not self._parsing:
            self._loop.call_soon(self._parse_rest)
        elif self._read_paused:
            self._adjust_reading()

    def _parse_rest(self) -> None:
        if not self._parsing and self.state is not LinkState.CLOSED:
            self._parse()

    # The end.

    def _refuse(self, response: bytes) -> None:
        """Respond without a handler, if nothing else was written, and end the connection."""
        request = self._request
        if request is None or not request.response_begun:
            self._transport.write(response)
            if request is not None:
                request.response_begun = True
            self._linger()
        else:
            self._transport.abort()
        if request is not None and self._dispatched and not request.gone:
            request.lose_client()

    def _linger(self) -> None:
        """Close the sending half, and drop what the client still sends until it closes its own."""
        complete = self.state is not LinkState.BODY and self.state is not LinkState.HEAD
        self._buffer, self._at = b"", 0
        self._loose = 0
        self._enter(LinkState.LINGER)
        if complete or not self._transport.can_write_eof():
            self._transport.close()
            return
        self._transport.write_eof()
        self._adjust_reading()

    def _enter(self, state: LinkState) -> None:
        self.state = state
        self.since = self._loop.time()

    def _adjust_reading(self) -> None:
        """Read nothing while there is enough to do."""
        full = len(self._buffer) - self._at > limits.KEPT_BYTES or self._body_is_full()
        if full is self._read_paused or self._transport.is_closing():
            return
        self._read_paused = full
        if full:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    # For the server.

    @property
    def idle(self) -> bool:
        """Whether there is no request that is not answered."""
        return self.state is LinkState.IDLE or self.state is LinkState.HEAD

    def close(self) -> None:
        """End the connection; after its response, if there is a request."""
        if self.idle:
            self._transport.close()
        elif self._request is not None:
            self._request.keep_alive = False

    def check_time(self, now: float) -> None:
        """End the connection if its client takes too long. Called every CHECK_S."""
        waited_s = now - self.since
        unread = self._unread_since and now - self._unread_since > limits.UNREAD_S
        if unread or (self._read_paused and has_hung_up(self._transport)):
            self._transport.abort()
        elif self.state is LinkState.IDLE:
            if waited_s > (limits.IDLE_S if self._request_was_here() else limits.HEAD_S):
                self._transport.close()
        elif self.state is LinkState.HEAD:
            if waited_s > limits.HEAD_S:
                self._refuse(refusals.TOO_SLOW)
        elif self.state is LinkState.BODY:
            request = self._request
            if self._body_is_full() or (request is not None and request.awaits_continue):
                self.since += limits.CHECK_S  # it is not the client that is slow
            elif waited_s > limits.BODY_S + self.body_size / limits.BODY_BYTES_PER_S:
                self._refuse(refusals.TOO_SLOW)
        elif self.state is LinkState.LINGER and waited_s > self._linger_s():
            self._transport.abort()

    def _linger_s(self) -> float:
        """How long the last response may take to leave. What TLS has in buffers of its own is not known here."""
        unsent = self._transport.get_write_buffer_size() or not self._transport.can_write_eof()
        return limits.UNREAD_S if unsent else limits.LINGER_S

    def _request_was_here(self) -> bool:
        return bool(self._target)


_READING = (LinkState.IDLE, LinkState.HEAD, LinkState.BODY)


def _address(found: Any) -> Address | None:
    return (str(found[0]), int(found[1])) if isinstance(found, tuple) and len(found) >= 2 else None
