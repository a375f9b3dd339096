"""Clients that leave, at any moment: the provider is told, and no slot stays taken (rule X4).

`FLEETGATE_SOAK=1` makes the storm one of a thousand clients.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import uvloop

from fleetgate.testing.provider import FakeProvider
from tests.proxy.proxied import CHAT, Proxied
from tests.proxy.upstream import RawUpstream, until_gone
from tests.timed import TooSlow, within

SOAK = bool(os.environ.get("FLEETGATE_SOAK"))
STORM = 1000 if SOAK else 150
SLOTS = 15
SOON_S = 0.05
SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_x4_a_client_that_leaves_the_queue_leaves_it(proxied: Callable[..., Proxied]) -> None:
    with FakeProvider(latency_s=30) as provider:
        gate = proxied(provider, requests="fake = { cap = 1, cooldown = 0 }")
        with gate.begin():
            gate.wait_until(gate.leases, "the first is in")
            with gate.begin():
                gate.wait_until(gate.tickets, "the second waits")
            gate.wait_until(lambda: not gate.tickets(), "the second has left")
            provider.wait_until(lambda stats: stats.calls == 1)
        provider.wait_until(lambda stats: stats.disconnected == 1)


def test_x4_upstream_is_cut_off_as_soon_as_a_client_leaves(proxied: Callable[..., Proxied]) -> None:
    """Before the head, and in the stream. How soon is looked at when nothing else is going on."""
    left: list[float] = []
    lock = threading.Lock()
    gone: list[float] = []

    def behave(connection: socket.socket) -> None:
        if len(gone) % 2:
            connection.sendall(SSE + b"5\r\ndata:\r\n")
        at = until_gone(connection)
        with lock:
            gone.append(at)

    with RawUpstream(behave) as upstream:
        gate = proxied(upstream.url, requests="fake = { cap = 1, cooldown = 0 }")
        for number in range(1, 40 if SOAK else 5):
            with gate.begin() as client:
                gate.wait_until(lambda number=number: upstream.asked == number, "it is at the provider")
                if number % 2 == 0:
                    assert client.recv(65536)
            left.append(monotonic())
            gate.wait_until(lambda number=number: len(gone) == number, "the provider saw it leave")
        took = sorted(at - since for at, since in zip(gone, left, strict=True))
        if SOAK:
            within(took[len(took) // 2], SOON_S, f"s until the provider saw it leave: {took}")


def test_x4_one_who_asks_twice_at_once_and_leaves_is_seen_to_leave(proxied: Callable[..., Proxied]) -> None:
    """The second request is on the way already: the first is cut off all the same, the second is never made."""
    with FakeProvider(latency_s=30) as provider:
        gate = proxied(provider)
        with gate.begin() as client:
            client.sendall(b"GET /fake/v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            provider.wait_until(lambda stats: stats.active == 1)
        provider.wait_until(lambda stats: stats.active == 0)
        gate.check_nothing_is_held()
        assert [seen.method for seen in provider.seen] == ["POST"]


def test_x4_those_who_leave_as_soon_as_they_have_asked_hold_nothing(proxied: Callable[..., Proxied]) -> None:
    """A request is in the queue before its task has begun: its client may be gone by then."""
    with FakeProvider(latency_s=0.2) as provider:
        gate = proxied(provider, requests="fake = { cap = 2, cooldown = 0 }")
        for number in range(20):
            with gate.begin() as client:
                if number % 2:  # the connection is reset, not only closed
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gate.check_nothing_is_held()
        assert gate.chat().status == 200
        provider.wait_until(lambda stats: stats.active == 0)


class Storm:
    """Clients that leave at random moments, and the provider that they leave: when each left, and when it was seen."""

    def __init__(self, number: int, within_s: float) -> None:
        self._number = number
        self._within_s = within_s
        self._rng = random.Random(4)
        self.forget()

    def forget(self) -> None:
        self.left: dict[bytes, float] = {}
        self.came: dict[bytes, float] = {}
        self.gone: dict[bytes, float] = {}
        self.ways: Counter[str] = Counter()
        self.open = self.most_open = 0

    async def provide(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Takes up to 0.2 s to answer, and then streams for longer than anybody stays."""
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
                await self._answer(head.partition(b"?")[2].partition(b" ")[0], reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, ident: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.came[ident] = monotonic()
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        answer = asyncio.create_task(self._stream(ident, writer))
        try:
            await reader.read(1)  # nothing more comes before the end
            self.gone[ident] = monotonic()
        except ConnectionError:
            self.gone[ident] = monotonic()
            raise
        finally:
            self.open -= 1
            answer.cancel()

    async def _stream(self, ident: bytes, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(self._rng.random() * 0.2)
        writer.write(SSE)
        while ident not in self.gone:
            writer.write(b"5\r\ndata:\r\n")
            await asyncio.sleep(0.02)

    async def one(self, port: int, ident: bytes) -> None:
        await asyncio.sleep(self._rng.random() * self._within_s)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = b"POST /fake/chat/completions?%s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n"
        body = b'{"model":"m1","stream":true}'
        whole = self._rng.random() < 0.9
        writer.write(head % (ident, len(body)) + (body if whole else body[:5]))
        got = b""
        try:
            async with asyncio.timeout(self._rng.random() * 0.8):
                while part := await reader.read(1000):
                    got = part
                raise AssertionError("it ended before the client left")
        except TimeoutError:
            pass
        self.left[ident] = monotonic()
        writer.transport.abort()
        there = "in the stream" if got else "before the head" if ident in self.came else "in the queue"
        self.ways[there if whole else "while it sent"] += 1

    async def run(self, port: int) -> None:
        """All of it, until the provider has seen everybody leave who ever came to it."""
        await asyncio.gather(*(self.one(port, b"id-%d" % number) for number in range(self._number)))
        async with asyncio.timeout(60):
            while self.came.keys() != self.gone.keys():
                await asyncio.sleep(0.01)

    def took_s(self) -> list[float]:
        """How long it took the provider to see each leave, in order."""
        return sorted(at - max(self.left[ident], self.came[ident]) for ident, at in self.gone.items())


def test_x4_in_a_storm_of_leavers_each_is_seen_by_the_provider_and_nothing_is_held(
    proxied: Callable[..., Proxied],
) -> None:
    storm = Storm(STORM, 4.0 if SOAK else 1.0)
    with serving(storm) as (runner, url):
        gate = proxied(url, requests=f'fake = {{ cap = {SLOTS}, cooldown = 0, on_429 = "pause" }}')
        assert gate.process is not None
        memory_mb = []
        for _ in range(3 if SOAK else 2):
            storm.forget()
            runner.run(storm.run(gate.port))
            memory_mb.append(_memory_mb(gate.process.pid))
        gate.check_nothing_is_held()
        took = storm.took_s()
        if len(took) < 10:
            raise TooSlow(f"only {len(took)} came as far as the provider before they left")
        p50, p99 = took[len(took) // 2], took[len(took) * 99 // 100]
        print(f"\n{len(took)} were seen to leave: p50 {p50 * 1000:.1f} ms, p99 {p99 * 1000:.1f} ms")
        print(f"{dict(storm.ways)}, memory {memory_mb} MB")
        assert len(storm.ways) == 4, storm.ways
        assert 1 < storm.most_open <= SLOTS
        assert memory_mb[-1] < memory_mb[0] + 20
        within(p99, SOON_S if SOAK else 10 * SOON_S, "s until the provider saw them leave")


@contextmanager
def serving(storm: Storm) -> Iterator[tuple[asyncio.Runner, str]]:
    """The provider of a storm, and the loop that it is in."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        server = runner.run(asyncio.start_server(storm.provide, "127.0.0.1", 0, backlog=2000))
        try:
            yield runner, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()


def test_x4_when_the_service_ends_so_do_its_calls(proxied: Callable[..., Proxied]) -> None:
    with FakeProvider(latency_s=30) as provider:
        gate = proxied(provider, requests="fake = 1")
        with gate.begin():
            provider.wait_until(lambda stats: stats.active == 1)
            assert gate.stop() == 0
            provider.wait_until(lambda stats: stats.active == 0)
        gate.start()
        assert gate.leases() == []


def test_x4_a_killed_service_leaks_no_slot(proxied: Callable[..., Proxied]) -> None:
    with FakeProvider(latency_s=30) as provider:
        gate = proxied(provider, requests="fake = { cap = 1, cooldown = 0 }")
        with gate.begin(CHAT):
            gate.wait_until(gate.leases, "it is in")
            gate.kill()
        provider.latency_s = 0
        gate.start()
        assert gate.chat().status == 200


def _memory_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
