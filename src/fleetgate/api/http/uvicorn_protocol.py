"""uvicorn's HTTP protocol with an end to what a connection costs (api/http/connection_limits.py), one write for a short
answer, word of a client that leaves, one timer for a connection, a look ahead at requests that came as a whole, and a
way round it all for what is asked most (api/leases/fast_path.py).

With httptools it has no such end of its own: it parses whatever comes, answered or not, and waits for ever for the rest
of a request. It writes head and body one by one, which wakes its client twice; who
wants to know that a client has left must wait for it in a task; each request stops a timer and makes another; and a
request's task begins in the loop's next turn, behind everything else that has come meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fleetgate.api.http import connection_limits
from fleetgate.api.leases.fast_path import LeaseExchange
from fleetgate.api.security.request_guard import HEAD_BYTES, PATH_BYTES
from fleetgate.gate.serving.local_peer import Peer

if TYPE_CHECKING:
    from fleetgate.api.server import ServiceConfig

_MOST = HEAD_BYTES + PATH_BYTES
_REFUSED = 32  # connections over the maximum that still get an answer


def _refusal(line: str, error: str, reason: str) -> bytes:
    body = f'{{"error":"{error}","reason":"{reason}"}}'
    head = f"HTTP/1.1 {line}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {len(body)}"
    return f"{head}\r\n\r\n{body}".encode()


_TOO_LONG = _refusal(
    "431 Request Header Fields Too Large",
    f"the request line and headers are too long: at most {_MOST} bytes",
    "too_large",
)
_TOO_SLOW = _refusal("408 Request Timeout", "the request took too long to arrive: send it at once", "too_slow")


# An optional method of an application: it gets a request whose body came with its head, before its task begins. True:
# it has taken the body, and finds the result in the scope.
Ahead = Callable[[Any, bytearray], bool]


class BufferedTransport:
    """A transport that keeps the head of an answer until its body comes, or until the loop's next turn."""

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self.is_closing = transport.is_closing
        self._loop = loop
        self._head = b""
        self.leavers: dict[object, Callable[[], None]] = {}  # called when the client has left; by whom it is wanted
        self.on_room: Callable[[], None] | None = None  # called when the client takes something again

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(b"HTTP/1.1 ") and data.endswith(b"\r\n\r\n"):
            self._head = data
            self._loop.call_soon(self._flush)
            return
        self._transport.write(data)

    def writelines(self, parts: Iterable[bytes]) -> None:
        self._flush()
        self._transport.writelines(parts)

    def write_now(self, data: bytes) -> None:
        """Not kept for anything that follows."""
        if self._head:
            data, self._head = self._head + data, b""
        self._transport.write(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._head:
            self.write(b"")


class IdleTimer:
    """The timer that ends an idle connection. It is started and stopped thousands of times a second."""

    def __init__(self, loop: asyncio.AbstractEventLoop, after_s: float, end: Callable[[], None]) -> None:
        self._loop = loop
        self._after_s = after_s
        self._end = end
        self._since = 0.0  # 0: it is not idle
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        self._since = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._after_s, self._look)

    def cancel(self) -> None:
        """It is not idle; the timer goes on, and finds that out."""
        self._since = 0.0

    def stop(self) -> None:
        """It has ended."""
        self._since = 0.0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if not self._since:
            return
        left_s = self._since + self._after_s - self._loop.time()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._look)
        else:
            self._end()


class ClientProtocol(HttpToolsProtocol):
    """One connection of a client."""

    config: ServiceConfig
    # As uvicorn has them, and more: a BufferedTransport, a ReadControl, and a LeaseExchange in place of its own.
    transport: Any
    flow: Any
    cycle: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.since = self.loop.time()  # idle, or waiting for the rest of a request
        self._waits_for = "head"  # what the client is to send; "" when it is our turn, or it may be idle
        self._loose = 0  # bytes since the last one of a body: of a head, of trailers, of what chunks say of themselves
        self._body = 0
        self._in_message = self._in_head = False
        self._kept = b""  # what came behind a request that is not answered yet
        self._unread_since = 0.0
        self._quick = self.config.fast_path
        self._idle: Any = IdleTimer(self.loop, self.timeout_keep_alive, self.timeout_keep_alive_handler)
        self._ahead: Ahead | None = getattr(self.app, "ahead", None)
        self._reading = False
        self._to_start: tuple[Any, Any] | None = None
        self._deaf = False  # what comes is read no more
        self._peer: Peer | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        together: Any = BufferedTransport(transport, self.loop)
        super().connection_made(together)
        self._peer = Peer(self.config.users, self.client, self.server)  # type: ignore[arg-type]
        self.flow = connection_limits.ReadControl(together, self._read_on)
        over = len(self.connections) - self.config.most_connections
        if over > 0 and not connection_limits.make_room(self.connections, self) and over > _REFUSED:  # type: ignore[type-var]
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._kept = b""
        self._idle.stop()
        for leave in list(self.transport.leavers.values()):
            leave()

    # Its place among the others, and the client's time.

    @property
    def idle(self) -> bool:
        """Whether nothing was asked that is not answered."""
        if self._kept or (self._in_message and not self._in_head):
            return False
        return self._is_answered() and not self.transport.is_closing()

    def give_way(self) -> None:
        """Another one needs the place."""
        self.transport.abort()

    def look_at_time(self, now: float) -> None:
        """Close it if its client lets us wait for too long. Called every LOOK_S."""
        if self._unread_since and now - self._unread_since > connection_limits.UNREAD_S:
            self.transport.abort()
        elif self._waits_for == "head":
            if now - self.since > connection_limits.HEAD_S:
                self._end_slow()
        elif self._waits_for == "body":
            if self.flow.read_paused or getattr(self.cycle, "waiting_for_100_continue", False):
                self.since += connection_limits.LOOK_S  # it is not the client that is slow
            elif now - self.since > connection_limits.BODY_S + self._body / connection_limits.BODY_BYTES_PER_S:
                self._end_slow()

    def _end_slow(self) -> None:
        if self._in_message and self._is_unanswered_yet():
            self.transport.write(_TOO_SLOW)
        self.transport.close()

    def _is_answered(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _is_unanswered_yet(self) -> bool:
        """Whether nothing of an answer was written that another would get mixed up with."""
        if self._in_head:
            return self._is_answered()
        return type(self.cycle) is LeaseExchange or not self.cycle.response_started

    def pause_writing(self) -> None:
        self._unread_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._unread_since = 0.0
        super().resume_writing()
        on_room = self.transport.on_room
        if on_room is not None:
            on_room()

    # What comes.

    def data_received(self, data: bytes) -> None:
        if self._kept or len(data) > connection_limits.SLICE_BYTES or not self._wants_more():
            self._kept += data
            self._read_kept()
        else:
            self._reading = True
            self._read(data)
            self._read_all()

    def _read_on(self) -> None:
        """What was kept may be read by now; not within whatever calls this."""
        if self._kept and not self._reading:
            self.loop.call_soon(self._read_kept)

    def _read_kept(self) -> None:
        kept, at = self._kept, 0
        self._reading = True
        while at < len(kept) and self._wants_more():
            self._read(kept[at : at + connection_limits.SLICE_BYTES])
            at += connection_limits.SLICE_BYTES
        self._kept = kept[at:]
        self.flow.fill(len(self._kept) > connection_limits.KEPT_BYTES)
        self._read_all()

    def _wants_more(self) -> bool:
        """Of a request that is not whole, what its application takes; else nothing before all is answered."""
        if self.transport.is_closing():
            return False
        return not self.flow.read_paused if self._in_message else self._is_answered()

    def _unsupported_upgrade_warning(self) -> None:
        """A request asks for another protocol: it is answered, and what follows it on this connection is not HTTP."""
        self._deaf = True
        if type(self.cycle) is not LeaseExchange:
            self.cycle.keep_alive = False

    def _read(self, data: bytes) -> None:
        if self._deaf:
            return
        self._loose += len(data)
        super().data_received(data)
        if self._in_message and self._loose > _MOST and not self.transport.is_closing():
            if self._is_unanswered_yet():
                self.transport.write(_TOO_LONG)
            self.transport.close()

    def _read_all(self) -> None:
        self._reading = False
        if self._to_start is not None:
            start, self._to_start = self._to_start, None
            self._start_asgi_task(*start)

    # What the parser tells.

    def on_message_begin(self) -> None:
        self._in_message = self._in_head = True
        self._loose = self._body = 0
        self._waits_for, self.since = "head", self.loop.time()
        super().on_message_begin()
        self.scope["fleetgate.peer"] = self._peer  # type: ignore[typeddict-unknown-key]

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # else it is a trailer, which goes nowhere
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._waits_for = "body"
        if self._is_answered():
            exchange = self._quick.find(self)
            if exchange is not None:
                self.cycle = exchange
                return
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._loose = 0
        self._body += len(body)
        if type(self.cycle) is LeaseExchange:
            self.cycle.body += body
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_message = False
        self._waits_for = ""
        if type(self.cycle) is LeaseExchange:
            self.cycle.begin()
        else:
            super().on_message_complete()

    # Answers.

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """Not before all that has come was read: the body may be with it, and then it is handed over ahead."""
        if self._reading:
            self._to_start = cycle, app
            return
        if self._ahead is not None and not cycle.more_body and self._ahead(cycle.scope, cycle.body):
            cycle.body = bytearray()
            cycle.message_event.clear()
            self.flow.resume_reading()  # as reading the body does: otherwise a client that leaves is not noticed
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        if self.pipeline or self.transport.is_closing():
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        self.flow.resume_reading()
        self.since = self.loop.time()
        self._idle.begin()
        self.timeout_keep_alive_task = self._idle  # cancelled when something comes
        self._read_on()
