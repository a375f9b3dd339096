"""One input of the fuzzer for the front: bytes of a client, sent in one piece and in pieces. Both must mean the same.

The first byte says how the rest is divided. `check` is used by `tools/fuzz_front.py`, and by a test that replays the
corpus in `tests/front/corpus`.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from fleetgate.front.connection import ClientLink
from fleetgate.front.request import Address, ClientRequest
from fleetgate.front.states import LinkState


class Seen(NamedTuple):
    """A request as its handler saw it."""

    method: str
    path: bytes
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


class Loop:
    """As much of an event loop as a connection needs; `run` does what is due."""

    def __init__(self) -> None:
        self._due: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()

    def time(self) -> float:
        return 0.0

    def call_soon(self, call: Callable[..., None], *arguments: Any) -> None:
        self._due.append((call, arguments))

    def run(self) -> None:
        while self._due:
            call, arguments = self._due.popleft()
            call(*arguments)


class Transport:
    """What the server writes."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def get_extra_info(self, _: str) -> Address:
        return ("127.0.0.1", 1)

    def write(self, data: bytes) -> None:
        assert not self.closed, "nothing is written after the end"
        self.written += data

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.closed = True

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Server:
    """Answers every request once its body is complete."""

    date = b"date: today\r\n"
    scheme = "http"
    stopping = False

    def __init__(self) -> None:
        self.seen: list[Seen] = []

    def handle(self, request: ClientRequest) -> None:
        parts: list[bytes] = []

        def read() -> None:
            if request.gone:
                return
            parts.append(request.take_body())
            if request.body_complete:
                request.on_news = None
                headers = tuple(request.headers)
                self.seen.append(Seen(request.method, request.path, request.query, headers, b"".join(parts)))
                request.respond(200, [], b"ok")

        request.on_news = read
        read()

    def identify(self, *_: object) -> None:
        return None

    def add(self, _: ClientLink) -> bool:
        return True

    def remove(self, _: ClientLink) -> None:
        pass


def send(pieces: list[bytes]) -> tuple[list[Seen], bytes]:
    """The requests that a handler saw, and what was written."""
    loop, server, transport = Loop(), Server(), Transport()
    link = ClientLink(server, loop)  # type: ignore[arg-type]
    link.connection_made(transport)
    for piece in pieces:
        if transport.closed and link.state is not LinkState.LINGER:
            break
        link.data_received(piece)
        loop.run()
    link.connection_lost(None)
    loop.run()
    return server.seen, transport.written


def check(data: bytes) -> None:
    """A client's bytes mean the same however they are divided, and every response to them is one."""
    step, data = (data[0] % 64 + 1, data[1:]) if data else (1, b"")
    whole, written = send([data] if data else [])
    divided, written_divided = send([data[at : at + step] for at in range(0, len(data), step)])
    # After a chunked body, what follows in the same piece ends the connection: one of them may have seen more.
    shared = min(len(whole), len(divided))
    assert whole[:shared] == divided[:shared], (whole, divided)
    for seen, out in ((whole, written), (divided, written_divided)):
        statuses = re.findall(rb"HTTP/1\.1 (\d{3}) ", out)  # nothing of the request is in a response
        answered = [status for status in statuses if status == b"200"]
        assert len(answered) == len(seen), (seen, out)
        assert len(statuses) <= len(seen) + 1 + statuses.count(b"100"), (seen, out)
