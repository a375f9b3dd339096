"""uvicorn's HTTP protocol with an end to how much of a head it takes in, one write for a short answer, word of a
client that leaves, one timer for a connection, a look ahead at requests that came as a whole, and a way round it all
for what is asked most (api/quick.py).

With httptools it has no such end of its own; it writes head and body one by one, which wakes its client twice; who
wants to know that a client has left must wait for it in a task; each request stops a timer and makes another; and a
request's task begins in the loop's next turn, behind everything else that has come meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headgate.api.guard import HEAD_BYTES, PATH_BYTES
from headgate.api.quick import Exchange, Quick

_MOST = HEAD_BYTES + PATH_BYTES
_BODY = b'{"error":"the request line and headers are too long: at most %d bytes","reason":"too_large"}' % _MOST
_REFUSAL = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
)


# What an application may have beside `__call__`: it is given a request whose body came with its head, before its task
# begins. True: it has taken the body, and will find in the scope what it made of it.
Ahead = Callable[[Any, bytearray], bool]


class Together:
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


class Idle:
    """The end of a connection on which nothing is asked for so long. Begun and stopped thousands of times a second."""

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


class Protocol(HttpToolsProtocol):
    """Counts the bytes of a head that does not end."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head = 0
        self._in_head = self._ended = False
        self._quick: Quick | None = getattr(self.config, "headgate_quick", None)
        self._idle: Any = Idle(self.loop, self.timeout_keep_alive, self.timeout_keep_alive_handler)
        self._ahead: Ahead | None = getattr(self.app, "ahead", None)
        self._reading = False
        self._to_start: tuple[Any, Any] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        together: Any = Together(transport, self.loop)
        super().connection_made(together)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._idle.stop()
        for leave in list(self.transport.leavers.values()):  # type: ignore[attr-defined]
            leave()

    def resume_writing(self) -> None:
        super().resume_writing()
        on_room = self.transport.on_room  # type: ignore[attr-defined]
        if on_room is not None:
            on_room()

    def on_response_complete(self) -> None:
        if self.pipeline or self.transport.is_closing():
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        self.flow.resume_reading()
        self._idle.begin()
        self.timeout_keep_alive_task = self._idle  # cancelled when something comes

    def on_message_begin(self) -> None:
        self._in_head = True
        self._head = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        cycle: Any = self.cycle
        if self._quick is not None and (cycle is None or cycle.response_complete):
            exchange: Any = self._quick.find(self)
            if exchange is not None:
                self.cycle = exchange
                return
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """Not before all that has come was read: the body may be with it, and then it is handed over ahead."""
        if self._reading:
            self._to_start = cycle, app
            return
        if self._ahead is not None and not cycle.more_body and self._ahead(cycle.scope, cycle.body):
            cycle.body = bytearray()
            cycle.message_event.clear()
            self.flow.resume_reading()  # as one who asks for a body does: else a client that leaves is not seen
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        cycle: Any = self.cycle
        if type(cycle) is Exchange:
            cycle.body += body
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._ended = True
        cycle: Any = self.cycle
        if type(cycle) is Exchange:
            cycle.begin()
        else:
            super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        self._reading, self._ended = True, False
        super().data_received(data)
        self._reading = False
        if self._to_start is not None:
            start, self._to_start = self._to_start, None
            self._start_asgi_task(*start)
        if self._in_head:
            if not self._ended:  # else most of it was the request before
                self._head += len(data)
            if self._head > _MOST and not self.transport.is_closing():
                self.transport.write(_REFUSAL)
                self.transport.close()
