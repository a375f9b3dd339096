"""The writer of an answer that is passed on as it comes: what uvicorn's `send` does, without `await`.

The head is written together with what follows it. The caller checks `paused` before it writes, and is called when there
is room again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from fleetgate.api.http.client import Receive, Stop, cycle_of, has_left, on_disconnect

_BODILESS = (204, 304)


class ResponseWriter:
    """The answer to the request that `receive` belongs to."""

    __slots__ = ("_chunked", "_cycle", "_left", "_out", "_receive")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._cycle: Any = cycle_of(receive)
        self._out = b""  # a head that was not written yet
        self._chunked = False
        self._left = 0  # of a body whose length was said

    @property
    def paused(self) -> bool:
        """Whether the client takes nothing now."""
        return bool(self._cycle.flow.write_paused)

    @property
    def has_left(self) -> bool:
        return has_left(self._receive)

    def on_disconnect(self, call: Callable[[], None], *, by_task: bool) -> Stop:
        """Call a function when the client leaves (api/http/client.py)."""
        return on_disconnect(self._receive, call, by_task=by_task)

    def on_room(self, call: Callable[[], None] | None) -> None:
        """Call a function when the client takes data again."""
        self._cycle.transport.on_room = call

    def begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """The head: names in lower case. ValueError when it is none."""
        cycle = self._cycle
        lines = [b"%s: %s\r\n" % pair for pair in cycle.default_headers]
        sized = False
        for pair in headers:
            if pair[0] == b"content-length":
                sized, self._left = True, int(pair[1])
            lines.append(b"%s: %s\r\n" % pair)
        if not cycle.keep_alive:
            lines.append(b"connection: close\r\n")
        bodiless = cycle.scope["method"] == "HEAD" or status in _BODILESS
        if bodiless:
            self._left = 0
        elif not sized:
            self._chunked = True
            lines.append(b"transfer-encoding: chunked\r\n")
        head = b"".join(lines)
        if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines) or b"\0" in head:
            raise ValueError("a header has a line break in it")
        cycle.response_started = True
        cycle.waiting_for_100_continue = False
        self._out = b"%s%s\r\n" % (STATUS_LINE[status], head)

    def write(self, piece: bytes) -> None:
        """More of the body; nothing: at least the head."""
        out, self._out = self._out, b""
        if not self._chunked:
            self._left -= len(piece)
            out += piece
        elif piece:
            out = b"%s%x\r\n%s\r\n" % (out, len(piece), piece)
        if self._left < 0:
            raise ValueError("there is more than its head says")
        if out and not self._cycle.disconnected:
            self._cycle.transport.write_now(out)

    def end(self, piece: bytes) -> None:
        """The last of it."""
        cycle = self._cycle
        if self._chunked:
            out = b"%s%x\r\n%s\r\n0\r\n\r\n" % (self._out, len(piece), piece) if piece else self._out + b"0\r\n\r\n"
        else:
            self._left -= len(piece)
            out = self._out + piece
        if self._left:
            raise ValueError("it has another length than its head says")
        if cycle.disconnected:
            return
        if out:
            cycle.transport.write_now(out)
        cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()
