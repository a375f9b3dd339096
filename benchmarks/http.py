"""Acquire and release over HTTP on loopback: pairs a second and latency; start-up and idle CPU of the service."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic, perf_counter, sleep
from urllib.request import urlopen

from benchmarks.report import Row, percentile

CLIENTS = 32
SECONDS = 5.0
IDLE_S = 5.0


@contextmanager
def service(store: str = "") -> Iterator[tuple[int, str, int, float]]:
    """A service of its own: (port, token, pid, seconds until it answered)."""
    with tempfile.TemporaryDirectory() as home:
        dropped = ("FLEETGATE_CONFIG", "FLEETGATE_STORE", "FLEETGATE_TOKEN", "PYTHONDONTWRITEBYTECODE")
        environ = {name: value for name, value in os.environ.items() if name not in dropped}
        environ |= {"FLEETGATE_HOME": f"{home}/state", "XDG_CONFIG_HOME": f"{home}/config"}
        if store:
            environ["FLEETGATE_STORE"] = store
        began = monotonic()
        command = [sys.executable, "-m", "fleetgate", "serve", "--port", "0"]
        process = subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL)
        try:
            address = f"{home}/state/serve.json"
            while not os.path.exists(address):
                sleep(0.005)
            with open(address, encoding="utf-8") as file:
                port = json.load(file)["port"]
            urlopen(f"http://127.0.0.1:{port}/readyz").read()
            took = monotonic() - began
            with open(f"{home}/state/token", encoding="utf-8") as file:
                token = file.read().strip()
            yield port, token, process.pid, took
        finally:
            process.terminate()
            process.wait()


BARE = """
import asyncio, socket, uvloop
from fleetgate.front.server import FrontServer
BODY = b'{"lease":"' + b"x" * 12 + b'","padding":"' + b"y" * 90 + b'"}'
HEADERS = [(b"content-type", b"application/json")]

async def main():
    sock = socket.create_server(("127.0.0.1", 0))
    print(sock.getsockname()[1], flush=True)
    server = FrontServer(handler=lambda request: request.respond(200, HEADERS, BODY))
    await server.start(sock, 1024)
    await asyncio.Event().wait()

uvloop.run(main())
"""


@contextmanager
def bare_service() -> Iterator[int]:
    """The HTTP front with a handler that does nothing, for comparison."""
    process = subprocess.Popen([sys.executable, "-c", BARE], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.terminate()
        process.wait()


async def _client(port: int, token: str, until: float, times: list[float]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"Host: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n".encode()
    body = b'{"models":["umans/coder"],"wait_s":30}'
    ask = b"POST /v1/leases HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n%s" % (head, len(body), body)
    while monotonic() < until:
        began = perf_counter()
        writer.write(ask)
        lease = (await _answer(reader)).split(b'"lease":"', 1)[1].split(b'"', 1)[0]
        writer.write(b"POST /v1/leases/%s/release HTTP/1.1\r\n%sContent-Length: 0\r\n\r\n" % (lease, head))
        await _answer(reader)
        times.append(perf_counter() - began)
    writer.close()


async def _answer(reader: asyncio.StreamReader) -> bytes:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    return await reader.readexactly(int(head.split(b"content-length: ", 1)[1].split(b"\r", 1)[0]))


async def _pairs(port: int, token: str, clients: int) -> list[float]:
    times: list[float] = []
    until = monotonic() + SECONDS
    await asyncio.gather(*(_client(port, token, until, times) for _ in range(clients)))
    return times


def _cpu_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure() -> list[Row]:
    import uvloop

    with service() as (port, token, pid, took):
        before = _cpu_s(pid)
        sleep(IDLE_S)
        idle = 100 * (_cpu_s(pid) - before) / IDLE_S
        uvloop.run(_pairs(port, token, 4))  # warm
        before, began = _cpu_s(pid), monotonic()
        times = uvloop.run(_pairs(port, token, CLIENTS))
        wall = monotonic() - began
        per_core = len(times) / (_cpu_s(pid) - before)
    with bare_service() as port:
        uvloop.run(_pairs(port, "x", 4))
        began = monotonic()
        bare = uvloop.run(_pairs(port, "x", CLIENTS))
        bare_wall = monotonic() - began
    pairs, bare_pairs = _figures(times, wall), _figures(bare, bare_wall)
    ratio = percentile(times, 0.99) / percentile(bare, 0.99)
    return [
        Row("`fleetgate serve`: start until it answers", f"{took:.2f} s", "under 1 s"),
        Row("the same, idle", f"{idle:.1f} % CPU", "under 1 %"),
        Row(
            f"acquire + release over HTTP, {CLIENTS} clients on the same machine",
            f"{pairs}, {ratio:.1f} times",
            "10,000 pairs/s on one core, p99 under 20 ms",
            f"the front alone: {bare_pairs}; by the service's own CPU time: {per_core:.0f} pairs/s on one core",
        ),
    ]


def _figures(times: list[float], wall: float) -> str:
    p50, p99 = (1000 * percentile(times, part) for part in (0.5, 0.99))
    return f"{len(times) / wall:.0f} pairs/s; p50 {p50:.1f} ms, p99 {p99:.1f} ms"
