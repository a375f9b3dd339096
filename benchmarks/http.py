"""Acquire and release over HTTP on loopback: pairs a second and latency; start-up and idle CPU of the service."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from time import monotonic, sleep
from typing import NamedTuple
from urllib.request import Request, urlopen

from benchmarks.gateways import pin
from benchmarks.process_usage import cpu_s
from benchmarks.report import Row, percentile
from benchmarks.socket_load import Result, SocketLoad, lease_pair

SMALL = bool(os.environ.get("FLEETGATE_BENCH_SMALL"))
CLIENTS = 32
PAIRS = 200 if SMALL else 10_000  # in a round
ROUNDS = 2 if SMALL else 9
IDLE_S = 0.5 if SMALL else 5.0


@contextmanager
def service(store: str = "", core: int | None = None) -> Iterator[tuple[int, str, int, float]]:
    """A service of its own, on one core or on all: (port, token, pid, seconds until it answered)."""
    with tempfile.TemporaryDirectory() as home:
        dropped = ("FLEETGATE_CONFIG", "FLEETGATE_STORE", "FLEETGATE_TOKEN", "PYTHONDONTWRITEBYTECODE")
        environ = {name: value for name, value in os.environ.items() if name not in dropped}
        environ |= {"FLEETGATE_HOME": f"{home}/state", "XDG_CONFIG_HOME": f"{home}/config"}
        if store:
            environ["FLEETGATE_STORE"] = store
        began = monotonic()
        command = [sys.executable, "-m", "fleetgate", "serve", "--port", "0"]
        process = subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL, preexec_fn=lambda: pin(core))
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
def bare_service(core: int | None) -> Iterator[tuple[int, int]]:
    """The HTTP front with a handler that does nothing, for comparison: (port, pid)."""
    command = [sys.executable, "-c", BARE]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=lambda: pin(core))
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline()), process.pid
    finally:
        process.terminate()
        process.wait()


class Round(NamedTuple):
    """One round with the service or with the bare front."""

    result: Result
    cpu_us: float  # for each pair


def _round(load: SocketLoad, port: int, token: str, pid: int) -> Round:
    before = cpu_s(pid)
    result = load.run(port, lease_pair(port, token), CLIENTS, PAIRS)
    return Round(result, (cpu_s(pid) - before) / result.exchanges * 1e6)


def measure() -> list[Row]:
    """The service and the bare front in alternating rounds, each on one core, the load on the other."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    load = SocketLoad()
    rounds: list[tuple[Round, Round]] = []
    pin(0)
    try:
        with service(core=1) as (port, token, pid, took), bare_service(core=1) as (bare_port, bare_pid):
            before = cpu_s(pid)
            sleep(IDLE_S)
            idle = 100 * (cpu_s(pid) - before) / IDLE_S
            commands = _commands(port, token)
            for _ in range(ROUNDS + 1):
                rounds.append((_round(load, port, token, pid), _round(load, bare_port, "x", bare_pid)))
            commands = [after - then for after, then in zip(_commands(port, token), commands, strict=True)]
    finally:
        load.close()
        if cores:
            os.sched_setaffinity(0, cores)
    ours, bare = zip(*rounds[1:], strict=True)  # the first is for warming up
    ratio = median(one.cpu_us / other.cpu_us for one, other in rounds[1:])
    return [
        Row("`fleetgate serve`: start until it answers", f"{took:.2f} s", "under 1 s"),
        Row("the same, idle", f"{idle:.1f} % CPU", "under 1 %"),
        Row(
            f"acquire + release over HTTP, {CLIENTS} clients, {ROUNDS} rounds, slowest to fastest",
            _rates(ours),
            "10,000 pairs/s on one core, p99 under 20 ms",
            f"the front alone: {_rates(bare)}",
        ),
        Row(
            "CPU for one pair, fastest to slowest round",
            f"{_cpu(ours)}; {commands[0] / max(commands[1], 1):.0f} commands in a transaction",
            "–",
            f"the front alone: {_cpu(bare)}; a pair takes {ratio:.1f} times that of the same round",
        ),
    ]


def _rates(rounds: tuple[Round, ...]) -> str:
    rates = sorted(each.result.per_s for each in rounds)
    took_s = [time for each in rounds for time in each.result.took_s]
    p50, p99 = (1000 * percentile(took_s, part) for part in (0.5, 0.99))
    share = median(each.result.own_share for each in rounds)
    return f"{rates[0]:,.0f} to {rates[-1]:,.0f} pairs/s; p50 {p50:.1f}, p99 {p99:.1f} ms; load {share:.0%} of a core"


def _cpu(rounds: tuple[Round, ...]) -> str:
    used = [each.cpu_us for each in rounds]
    return f"{min(used):.0f} to {max(used):.0f} µs"


def _commands(port: int, token: str) -> list[float]:
    """How many commands the service has decided, and in how many transactions."""
    request = Request(f"http://127.0.0.1:{port}/metrics", headers={"Authorization": f"Bearer {token}"})
    lines = urlopen(request).read().decode().splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return [float(values[f"fleetgate_log_batch_size_{end}"]) for end in ("sum", "count")]
