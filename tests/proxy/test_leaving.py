"""Clients that leave, at any moment: the provider is told, and no seat stays taken (SPEC X4).

`HEADGATE_SOAK=1` makes the storm one of a thousand clients.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from headgate.testing.provider import FakeProvider
from tests.proxy.proxied import CHAT, Proxied
from tests.proxy.upstream import RawUpstream, until_gone

SOAK = bool(os.environ.get("HEADGATE_SOAK"))
STORM = 1000 if SOAK else 150
SOON_S = 0.05
SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_x4_a_client_that_leaves_the_line_leaves_it(proxied: Callable[..., Proxied]) -> None:
    with FakeProvider(latency_s=30) as provider:
        gate = proxied(provider, requests="fake = { cap = 1, cooldown = 0 }")
        with gate.begin():
            gate.wait_until(gate.leases, "the first is in")
            with gate.begin():
                gate.wait_until(gate.tickets, "the second waits")
            gate.wait_until(lambda: not gate.tickets(), "the second has left")
            assert provider.stats.calls == 1
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
            assert took[len(took) // 2] < SOON_S, took


async def _leave_at_random(port: int, body: bytes, rng: random.Random) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = f"POST /fake/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body[: rng.choice((len(body), len(body), len(body), 5))])
        await asyncio.sleep(rng.random() * 0.4)
        if rng.random() < 0.5:
            return "left"
        try:
            async with asyncio.timeout(rng.random() * 0.5):
                await reader.read(100)
        except TimeoutError:
            return "left in line"
        return "left in the stream"
    finally:
        writer.transport.abort()


def test_x4_after_a_storm_of_leavers_nothing_is_held(proxied: Callable[..., Proxied]) -> None:
    rng = random.Random(4)
    with FakeProvider(latency_s=(0, 0.1), chunks=20, chunk_delay_s=(0.005, 0.02)) as provider:
        gate = proxied(provider, requests="fake = { cap = 20, cooldown = 0 }")
        gate.chat()
        assert gate.process is not None
        before = _memory_mb(gate.process.pid)
        body = b'{"model":"m1","stream":true,"messages":[{"role":"user","content":"hi"}]}'

        async def storm() -> list[str]:
            return list(await asyncio.gather(*(_leave_at_random(gate.port, body, rng) for _ in range(STORM))))

        ways = asyncio.run(storm())
        assert len(set(ways)) == 3, "they left in line, before the head and in the stream"
        provider.wait_until(lambda stats: stats.active == 0)
        gate.check_nothing_is_held()
        assert provider.stats.most_at_once <= 20
        assert gate.chat().status == 200
        gate.wait_until(lambda: len(gate.lines()) == STORM + 2, "each has its line")
        assert _memory_mb(gate.process.pid) < before + 60


def test_x4_when_the_service_ends_so_do_its_calls(proxied: Callable[..., Proxied]) -> None:
    with FakeProvider(latency_s=30) as provider:
        gate = proxied(provider, requests="fake = 1")
        with gate.begin():
            provider.wait_until(lambda stats: stats.active == 1)
            assert gate.stop() == 0
            provider.wait_until(lambda stats: stats.active == 0)
        gate.start()
        assert gate.leases() == []


def test_x4_a_killed_service_leaks_no_seat(proxied: Callable[..., Proxied]) -> None:
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
