"""Many streams of 100 events a second, for benchmarks/proxy.py: the provider and its clients, on plain sockets.

The load must not reach its end before the proxy does. So an event costs the load little more than one system call: the
provider sends it, and each client reads ten times a second what has gathered. `own_s` is how late the load itself was.
"""

from __future__ import annotations

import resource
import selectors
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from time import perf_counter, sleep
from typing import NamedTuple

from benchmarks.background import repeated
from benchmarks.report import percentile
from benchmarks.traffic import ANSWER, CHUNK, HEAD

BODY = b'{"model":"m1","stream":true,"messages":[{"role":"user","content":"%s"}]}' % (b"hello " * 50)
PER_S = 100  # events of a stream
LOOKS_PER_S = 10  # how often a client reads
WAIT_S = 10.0  # for something that should happen at once
GROWS_S = 0.1  # a stream whose last tenth of events is later than its first by so much cannot keep up


class Streams(NamedTuple):
    """How streams went."""

    grown_s: float  # by how much their lag has grown, for nine in ten
    own_s: float
    cpu: float  # of one core
    failed: int

    @property
    def kept_up(self) -> bool:
        return self.grown_s <= GROWS_S and not self.failed


class PacedStreams:
    """A provider and its clients. `port` is the provider's."""

    def __init__(self) -> None:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)

    def close(self) -> None:
        self._selector.close()
        self._listener.close()

    def answering(self) -> AbstractContextManager[None]:
        """Answer any request meanwhile: a proxy that starts may ask for something."""
        return repeated(lambda: self._next_request(0.05, ANSWER))

    def run(self, port: int, path: str, number: int, seconds: float, cpu_s: Callable[[], float]) -> Streams:
        """So many streams at once, through the proxy at a port."""
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer some-key-of-a-client\r\n"
        request = f"{head}Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n".encode() + BODY
        sources: list[socket.socket] = []
        clients: list[socket.socket] = []
        try:
            for _ in range(number):
                clients.append(socket.create_connection(("127.0.0.1", port)))
                clients[-1].sendall(request)
                source = self._next_request(WAIT_S, HEAD)
                if source is None:
                    return Streams(0.0, 0.0, 0.0, number - len(sources))
                sources.append(source)
            for sock in (*sources, *clients):
                sock.setblocking(False)
            before, began = cpu_s(), perf_counter()
            lags, own_s = _pace(sources, clients, seconds)
            cpu = (cpu_s() - before) / (perf_counter() - began)
        finally:
            for sock in (*clients, *sources):
                sock.close()
        tenth = max(int(seconds * LOOKS_PER_S / 10), 1)
        whole = [each for each in lags if len(each) >= 2 * tenth]
        grown = [percentile(each[-tenth:], 0.5) - percentile(each[:tenth], 0.5) for each in whole]
        return Streams(percentile(grown, 0.9) if grown else 0.0, own_s, cpu, number - len(whole))

    def _next_request(self, within_s: float, answer: bytes) -> socket.socket | None:
        """Answer the next request that comes, by any connection; returns its socket, which is the caller's now."""
        until = perf_counter() + within_s
        while (left_s := until - perf_counter()) > 0:
            for key, _ in self._selector.select(left_s):
                if key.fileobj is self._listener:
                    sock, _ = self._listener.accept()
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._selector.register(sock, selectors.EVENT_READ)
                    continue
                sock = key.fileobj  # type: ignore[assignment]
                self._selector.unregister(sock)
                if sock.recv(1 << 16):  # all of it, since it is short
                    sock.sendall(answer)
                    return sock
                sock.close()
        return None


def _pace(
    sources: list[socket.socket], clients: list[socket.socket], seconds: float
) -> tuple[list[list[float]], float]:
    """Send and read: how late each stream was at each look, and how late the load was at its end."""
    every = PER_S // LOOKS_PER_S
    unsent = [0] * len(sources)
    seen = [0] * len(clients)
    lags: list[list[float]] = [[] for _ in clients]
    began = perf_counter()
    for tick in range(int(seconds * PER_S)):
        for index, source in enumerate(sources):
            try:
                if unsent[index]:  # the proxy did not take it
                    unsent[index] += 1
                    source.send(CHUNK)
                    unsent[index] -= 1
                source.send(CHUNK)
            except BlockingIOError:
                unsent[index] = unsent[index] or 1
            except OSError:
                pass  # its client sees that it ends early
        due = (tick + 1) / PER_S  # an event that was sent now
        for index in range(tick % every, len(clients), every):
            try:
                seen[index] += clients[index].recv(1 << 20).count(b"data: ")
            except BlockingIOError:
                pass
            except OSError:
                continue
            if tick >= every:
                lags[index].append(perf_counter() - began - seen[index] / PER_S)
        left_s = began + due - perf_counter()
        if left_s > 0:
            sleep(left_s)
    return lags, max(perf_counter() - began - seconds, 0.0)
