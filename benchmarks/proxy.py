"""The proxy, where every request is a decision over three pools, committed to SQLite: against the provider itself, and
against the same parts without any decision. The load is on one core, what is measured on another, where there are two.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from time import sleep
from urllib.request import urlopen

import uvloop

from benchmarks.report import Row, percentile
from benchmarks.traffic import Client, Provider, load

CLIENTS = 32
REQUESTS = 6_000
ONE_CLIENT = 1_000
STREAMS = 128
ROUNDS = 3

_CONFIG = """
[requests]
bench = 100000
"bench/m*" = 100000
project = 100000
[providers.bench]
base_url = "http://127.0.0.1:{port}/v1"
[serve]
access_log = true
"""


def _pin(core: int) -> None:
    if hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(0, {core})


@contextlib.contextmanager
def _bare(upstream: int) -> Iterator[tuple[int, int]]:
    command = [sys.executable, "-m", "benchmarks.bare_proxy", f"http://127.0.0.1:{upstream}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=lambda: _pin(1))
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline()), process.pid
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def _ours(upstream: int) -> Iterator[tuple[int, int]]:
    with tempfile.TemporaryDirectory() as home:
        with open(f"{home}/config.toml", "w", encoding="utf-8") as file:
            file.write(_CONFIG.format(port=upstream))
        dropped = ("HEADGATE_STORE", "HEADGATE_TOKEN", "PYTHONDONTWRITEBYTECODE")
        environ = {name: value for name, value in os.environ.items() if name not in dropped}
        environ |= {"HEADGATE_HOME": f"{home}/state", "HEADGATE_CONFIG": f"{home}/config.toml"}
        command = [sys.executable, "-m", "headgate", "serve", "--port", "0"]
        process = subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL, preexec_fn=lambda: _pin(1))
        try:
            while not os.path.exists(f"{home}/state/serve.json"):
                sleep(0.01)
            with open(f"{home}/state/serve.json", encoding="utf-8") as file:
                port = json.load(file)["port"]
            urlopen(f"http://127.0.0.1:{port}/readyz").read()
            yield port, process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


class Measured:
    """One of the three."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.one: list[float] = []
        self.first: list[float] = []
        self.lag: list[float] = []
        self.failed = 0
        self.memory: list[float] = []
        self.cpu_us: list[float] = []  # of the process, for each request


async def _one_round(targets: dict[str, tuple[int, str, int]], found: dict[str, Measured]) -> None:
    for name, (port, base, pid) in targets.items():
        into = found[name]
        into.memory.append(_memory_mb(pid))
        await load(port, f"{base}/chat/completions", CLIENTS, 10)
        before_s = _cpu_s(pid)
        clients, seconds = await load(port, f"{base}/chat/completions", CLIENTS, REQUESTS // CLIENTS)
        answers = sum(len(each.took) for each in clients)
        into.rates.append(answers / seconds)
        into.cpu_us.append((_cpu_s(pid) - before_s) / answers * 1e6)
        _count(into, clients)
        clients, _ = await load(port, f"{base}/chat/completions", 1, ONE_CLIENT)
        into.one.extend(clients[0].took)
        clients, _ = await load(port, f"{base}/stream/20/20", CLIENTS, 4)
        into.first.extend(time for each in clients for time in each.first_byte)
        _count(into, clients)


async def _streams(targets: dict[str, tuple[int, str, int]], found: dict[str, Measured]) -> None:
    """128 streams of 100 events a second for 3 s: how late the last events are."""
    for name, (port, base, pid) in targets.items():
        clients, _ = await load(port, f"{base}/stream/300/10", STREAMS, 1)
        found[name].lag.extend(each.took[0] - 3.0 for each in clients if each.took)
        found[name].memory.append(_memory_mb(pid))
        _count(found[name], clients)


def _count(into: Measured, clients: list[Client]) -> None:
    into.failed += sum(each.failed for each in clients)


def _cpu_s(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return 0.0


def _memory_mb(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except (OSError, ValueError):
        return 0.0


async def _measure() -> dict[str, Measured]:
    server = await asyncio.get_running_loop().create_server(Provider, "127.0.0.1", 0)
    upstream = server.sockets[0].getsockname()[1]
    found = {name: Measured() for name in ("direct", "bare", "ours")}
    with _bare(upstream) as (bare, bare_pid), _ours(upstream) as (ours, ours_pid):
        targets = {
            "direct": (upstream, "/v1", 0),
            "bare": (bare, "/v1", bare_pid),
            "ours": (ours, "/bench/v1", ours_pid),
        }
        for _ in range(ROUNDS):
            await _one_round(targets, found)
        await _streams(targets, found)
    server.close()
    return found


def measure() -> list[Row]:
    """As rows of the table."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    _pin(0)
    try:
        found = uvloop.run(_measure())
    finally:
        if cores:
            os.sched_setaffinity(0, cores)
    direct, bare, ours = found["direct"], found["bare"], found["ours"]
    rate, baseline = max(ours.rates), max(bare.rates)

    def ms(values: list[float], part: float, over: list[float]) -> str:
        return f"{(percentile(values, part) - percentile(over, part)) * 1000:.2f}"

    return [
        Row(
            f"requests/s through the proxy, {CLIENTS} clients",
            f"{rate:,.0f} ({rate / baseline:.0%} of bare), {ours.failed} failed",
            "60 % of bare, 1,860/s",
            f"bare {baseline:,.0f}, direct {max(direct.rates):,.0f}",
        ),
        Row(
            f"CPU for one request, {CLIENTS} clients, µs",
            f"{min(ours.cpu_us):.0f} ({min(bare.cpu_us) / max(min(ours.cpu_us), 1):.0%} of what bare does with it)",
            "60 %",
            f"bare {min(bare.cpu_us):.0f}",
        ),
        Row(
            "added latency, 1 client, p50 / p99 ms",
            f"{ms(ours.one, 0.5, direct.one)} / {ms(ours.one, 0.99, direct.one)}",
            "0.8 / 3",
            f"bare {ms(bare.one, 0.5, direct.one)} / {ms(bare.one, 0.99, direct.one)}",
        ),
        Row(
            f"added time to first byte, streaming, {CLIENTS} clients, p50 / p99 ms",
            f"{ms(ours.first, 0.5, direct.first)} / {ms(ours.first, 0.99, direct.first)}",
            "2 / –",
            f"bare {ms(bare.first, 0.5, direct.first)} / {ms(bare.first, 0.99, direct.first)}",
        ),
        Row(
            f"{STREAMS} streams of 100 events/s for 3 s: the last event is late by, p50 / p99 ms",
            f"{percentile(ours.lag, 0.5) * 1000:.0f} / {percentile(ours.lag, 0.99) * 1000:.0f}",
            "no growing lag",
            f"bare {percentile(bare.lag, 0.5) * 1000:.0f}, direct {percentile(direct.lag, 0.5) * 1000:.0f}",
        ),
        Row(
            "memory of the service, at first / after, MB",
            f"{ours.memory[0]:.0f} / {max(ours.memory):.0f}",
            "80 / 200",
            f"bare {max(bare.memory):.0f}",
        ),
    ]
