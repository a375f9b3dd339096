"""A provider and clients on plain sockets, for benchmarks in which the load must not reach its end before the service.

Each client sends its next request when it has its answer. A request costs the load two system calls, and two more if it
reaches the provider. `own_s` is the CPU time of the load, so a benchmark can show that the load waited for the service
and not the other way round.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from time import perf_counter, process_time
from typing import NamedTuple

from benchmarks.background import repeated
from benchmarks.traffic import ANSWER, BODY

_ANSWER_END, _BODY_END = b"}", b'"}]}'  # the last bytes of an answer to a client, and of our own requests


class Exchange(NamedTuple):
    """What a client does over and over: a request, and perhaps a second one that depends on the first answer."""

    first: bytes
    second: Callable[[bytes], bytes] | None = None


class Result(NamedTuple):
    """How a load went."""

    exchanges: int
    seconds: float
    own_s: float  # CPU time of the load
    took_s: list[float]  # each exchange

    @property
    def per_s(self) -> float:
        return self.exchanges / self.seconds

    @property
    def own_share(self) -> float:
        """Of one core. Well below 1, the load has waited for the service."""
        return self.own_s / self.seconds


def model_call(path: str, body: bytes = BODY) -> Exchange:
    """A request through the proxy."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer some-key-of-a-client\r\n"
    return Exchange(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)


def lease_pair(port: int, token: str) -> Exchange:
    """Acquire a slot, and release it."""
    head = f"Host: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n".encode()
    body = b'{"models":["umans/coder"],"wait_s":30}'

    def release(answer: bytes) -> bytes:
        lease = answer.split(b'"lease":"', 1)[1].split(b'"', 1)[0]
        return b"POST /v1/leases/%s/release HTTP/1.1\r\n%sContent-Length: 0\r\n\r\n" % (lease, head)

    return Exchange(b"POST /v1/leases HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n%s" % (head, len(body), body), release)


class SocketLoad:
    """A provider and its clients, in one loop. `port` is the provider's."""

    def __init__(self, answer: bytes = ANSWER) -> None:
        self._answer = answer  # the provider's
        self._poll = select.epoll()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.port: int = self._listener.getsockname()[1]
        self._poll.register(self._listener, select.EPOLLIN)
        self._calls: dict[int, socket.socket] = {}  # connections to the provider
        self._begun: dict[int, bytes] = {}  # requests to it that are not whole yet

    def close(self) -> None:
        for sock in self._calls.values():
            sock.close()
        self._listener.close()
        self._poll.close()

    def answering(self) -> AbstractContextManager[None]:
        """Answer as the provider meanwhile: a service that starts may ask for something."""
        return repeated(lambda: self._answer_for(0.05))

    def _answer_for(self, within_s: float) -> None:
        for descriptor, _ in self._poll.poll(within_s):
            self._provide(descriptor)

    def run(self, port: int, exchange: Exchange, clients: int, exchanges: int) -> Result:
        """So many exchanges, by so many clients of the service at a port. RuntimeError: one was refused."""
        socks = {}
        for _ in range(clients):
            sock = socket.create_connection(("127.0.0.1", port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            socks[sock.fileno()] = sock
        try:
            return self._run(socks, exchange, exchanges)
        finally:
            for sock in socks.values():
                sock.close()

    def _run(self, socks: dict[int, socket.socket], exchange: Exchange, exchanges: int) -> Result:
        own, began = process_time(), perf_counter()
        since = dict.fromkeys(socks, began)
        left, took_s = max(exchanges - len(socks), 0), []
        first, second = exchange
        halfway: set[int] = set()
        begun: dict[int, bytes] = {}  # answers that are not whole yet
        for descriptor, sock in socks.items():
            self._poll.register(descriptor, select.EPOLLIN)
            sock.send(first)
        while since:
            for descriptor, _ in self._poll.poll():
                if descriptor not in socks:
                    self._provide(descriptor)
                    continue
                piece = socks[descriptor].recv(1 << 16)
                answer = begun.pop(descriptor) + piece if descriptor in begun else piece
                if not piece or not answer.startswith(b"HTTP/1.1 20"):
                    raise RuntimeError(f"the service answered {answer[:200]!r}")
                if not answer.endswith(_ANSWER_END):
                    begun[descriptor] = answer
                    continue
                if second is not None and descriptor not in halfway:
                    halfway.add(descriptor)
                    socks[descriptor].send(second(answer))
                    continue
                halfway.discard(descriptor)
                now = perf_counter()
                took_s.append(now - since[descriptor])
                if left:
                    left -= 1
                    since[descriptor] = now
                    socks[descriptor].send(first)
                else:
                    del since[descriptor]
                    self._poll.unregister(descriptor)
        return Result(len(took_s), perf_counter() - began, process_time() - own, took_s)

    def _provide(self, descriptor: int) -> None:
        """Something has come for the provider."""
        if descriptor == self._listener.fileno():
            sock, _ = self._listener.accept()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._calls[sock.fileno()] = sock
            self._poll.register(sock, select.EPOLLIN)
            return
        sock = self._calls[descriptor]
        request = sock.recv(1 << 16)
        if not request:
            self._poll.unregister(descriptor)
            del self._calls[descriptor]
            sock.close()
            return
        request = self._begun.pop(descriptor, b"") + request
        if request.endswith(_BODY_END) or _is_whole(request):
            sock.send(self._answer)
        else:
            self._begun[descriptor] = request


def _is_whole(request: bytes) -> bool:
    head, end, body = request.lower().partition(b"\r\n\r\n")
    _, found, length = head.partition(b"content-length:")
    return bool(end) and len(body) >= (int(length.split(b"\r\n", 1)[0]) if found else 0)
