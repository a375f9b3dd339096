"""A provider that answers at once and clients that send without pause, both small, for benchmarks/proxy.py.

Bodies with `"stream":true` are answered as an event stream, in as many events and with such pauses as the path says:
`/stream/EVENTS/PAUSE_MS`.
"""

from __future__ import annotations

import asyncio
from time import perf_counter

TEXT = b'{"id":"x","object":"chat.completion","model":"m1","choices":[{"message":{"content":"%s"}}]}' % (b"word " * 40)
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(TEXT), TEXT)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"word "}}]}\n\n'
CHUNK = b"%x\r\n%s\r\n" % (len(EVENT), EVENT)
BODY = b'{"model":"m1","messages":[{"role":"user","content":"%s"}]}' % (b"hello " * 50)


class Provider(asyncio.Protocol):
    """One connection to the provider."""

    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self._data = b""
        self._task: asyncio.Task[None] | None = None

    def connection_lost(self, error: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head = self._data[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._data) < end + 4 + length:
                return
            self._data = self._data[end + 4 + length :]
            path = head.split(b" ", 2)[1]
            if b"/stream/" in path:
                _, events, pause_ms = path.rsplit(b"/", 2)
                self._task = asyncio.ensure_future(self._stream(int(events), int(pause_ms) / 1000))
            else:
                self.transport.write(ANSWER)

    async def _stream(self, events: int, pause_s: float) -> None:
        self.transport.write(HEAD)
        began = perf_counter()
        for index in range(events):
            if pause_s:
                await asyncio.sleep(max(began + (index + 1) * pause_s - perf_counter(), 0))
            self.transport.write(CHUNK)
        self.transport.write(b"0\r\n\r\n")


class Client(asyncio.Protocol):
    """One connection of a client: asks, and asks again as soon as it has its answer."""

    transport: asyncio.Transport

    def __init__(self, path: str, times: int, done: asyncio.Future[None]) -> None:
        self._request = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer some-key-of-a-client\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n"
        ).encode() + BODY
        self._left = times
        self._done = done
        self._data = b""
        self.took: list[float] = []
        self.first_byte: list[float] = []
        self.lags: list[tuple[float, int]] = []  # of a stream: when something came, and how much had come by then
        self.failed = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self._ask()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._done.done():
            self.failed += self._left
            self._done.set_result(None)

    def _ask(self) -> None:
        if not self._left:
            if not self._done.done():
                self._done.set_result(None)
            self.transport.close()
            return
        self._left -= 1
        self._data = b""
        self._began = perf_counter()
        self._first = 0.0
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if not self._data:
            self._first = perf_counter()
        self._data += data
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._data[:end].lower()
        at = head.find(b"content-length:")
        if at >= 0:
            whole = len(self._data) >= end + 4 + int(head[at + 15 :].split(b"\r\n", 1)[0])
        else:
            self.lags.append((perf_counter() - self._began, len(self._data)))
            whole = self._data.endswith(b"0\r\n\r\n")
        if whole:
            now = perf_counter()
            self.failed += not self._data.startswith(b"HTTP/1.1 200")
            self.took.append(now - self._began)
            self.first_byte.append(self._first - self._began)
            self._ask()


async def load(port: int, path: str, clients: int, each: int, over_s: float = 0.0) -> tuple[list[Client], float]:
    """So many clients that each ask so often: the clients with what they measured, and seconds in all.

    They begin one after another, `over_s` in all: those whose answers take the same time would stay in step for ever.
    """
    loop = asyncio.get_running_loop()
    waits = [loop.create_future() for _ in range(clients)]
    began = perf_counter()
    made: list[Client] = []
    for index, wait in enumerate(waits):
        if over_s:
            await asyncio.sleep(max(began + index * over_s / clients - perf_counter(), 0))
        made.append(
            (await loop.create_connection(lambda wait=wait: Client(path, each, wait), "127.0.0.1", port))[1]  # type: ignore[misc]
        )
    await asyncio.gather(*waits)
    return made, perf_counter() - began
