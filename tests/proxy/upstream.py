"""A server that answers each connection with what a test gives it, byte for byte, however wrong that is."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from time import monotonic
from types import TracebackType
from typing import Self

Behaviour = Callable[[socket.socket], None]


class RawUpstream:
    """`behave` gets a connection whose request was read; a test may set another."""

    def __init__(self, behave: Behaviour) -> None:
        self.behave = behave
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.asked = 0
        self.eager = False  # the next is answered before it was read

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                self.serve(connection)
            except OSError:
                pass

    def serve(self, connection: socket.socket) -> None:
        eager, self.eager = self.eager, False
        if not eager:
            read_request(connection)
        self.asked += 1
        self.behave(connection)


def read_request(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(65536)
        if not part:
            raise ConnectionError
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
    while len(body) < length:
        body += connection.recv(65536)
    return head + body


def until_gone(connection: socket.socket, patience_s: float = 60) -> float:
    """When the other side closed."""
    connection.settimeout(patience_s)
    try:
        while connection.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return monotonic()
