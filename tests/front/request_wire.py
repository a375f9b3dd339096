"""A request without a connection: a test sees what is written to it, pauses it, and lets its client leave."""

from __future__ import annotations

from collections.abc import Iterable

from fleetgate.front.request import Address, ClientRequest, Headers

HEADERS: Headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]


class RequestWire:
    """The connection, as far as its one request needs it."""

    client: Address | None = ("127.0.0.1", 1)
    server: Address | None = ("127.0.0.1", 2)
    scheme = "http"
    peer: object = None
    closing = False

    def __init__(
        self, method: str = "GET", path: bytes = b"/", body: bytes = b"", headers: Headers | None = None
    ) -> None:
        self.sent = b""
        self.writes = 0
        self.write_paused = False
        self.aborted = False
        self.finished = 0
        self.body_size = len(body)
        request = self.request = ClientRequest(self)  # type: ignore[arg-type]
        request.method, request.path = method, path
        request.headers = HEADERS if headers is None else headers
        request.body, request.body_complete = body, True

    def date_header(self) -> bytes:
        return b"date: today\r\n"

    def write(self, data: bytes) -> None:
        self.sent += data
        self.writes += 1

    def write_parts(self, parts: Iterable[bytes]) -> None:
        self.write(b"".join(parts))

    def abort(self) -> None:
        self.aborted = True

    def resume_body(self) -> None:
        pass

    def finish_response(self, request: ClientRequest) -> None:
        self.finished += 1

    # For the test.

    def leave(self) -> None:
        """The client closes its connection."""
        self.request.lose_client()

    def pause(self) -> None:
        """The client reads nothing from now on."""
        self.write_paused = True

    def resume(self) -> None:
        self.write_paused = False
        if self.request.on_room is not None:
            self.request.on_room()

    @property
    def status(self) -> int:
        return int(self.sent.split(b" ", 2)[1]) if self.sent else 0

    @property
    def body(self) -> bytes:
        """What was written after the head, with its framing."""
        return self.sent.partition(b"\r\n\r\n")[2]
