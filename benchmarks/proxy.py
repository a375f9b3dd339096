"""The proxy, where every request is a decision over three pools, committed to SQLite. It is compared with the provider
itself, with the previous version (on uvicorn), and with nginx and LiteLLM where they are installed. The load runs on
one core and the proxy on another, if there are two.

`FLEETGATE_BENCH_SMALL=1` only checks that it works.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Iterable
from typing import NamedTuple

import uvloop

from benchmarks.gateways import NotHere, Target, litellm, nginx, ours, pin, previous
from benchmarks.paced_streams import PER_S, PacedStreams
from benchmarks.process_usage import cpu_s, kernel_cpu_s, memory_mb
from benchmarks.report import Row, percentile
from benchmarks.traffic import Client, Provider, load

SMALL = bool(os.environ.get("FLEETGATE_BENCH_SMALL"))
CLIENTS = 4 if SMALL else 32
REQUESTS = 80 if SMALL else 6_000
ONE_CLIENT = 20 if SMALL else 1_000
ROUNDS = 1 if SMALL else 3
STREAMS = 8 if SMALL else 128
MEMORY_STREAMS = 16 if SMALL else 256
IDLE_CONNECTIONS = 16 if SMALL else 2_000
FIRST_STREAMS, MOST_STREAMS = (16, 32) if SMALL else (512, 3_500)  # that are tried; there may be 4,000 connections
STREAMS_S = 1.0 if SMALL else 4.0
SHORT, SHORT_S = "stream/20/20", 0.4  # a stream for the time to first byte: 20 events, and how long it takes
EVENTS = 50 if SMALL else 500  # of a paced stream, 100 a second
SLOW = 20  # a slow one is asked for so many times less


class Measured:
    """One of those that are compared."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.one: list[float] = []
        self.first: list[float] = []
        self.burst: list[float] = []
        self.failed = 0
        self.memory: list[float] = []
        self.cpu_us: list[float] = []  # of the process, for each request

    def count(self, clients: list[Client]) -> None:
        self.failed += sum(each.failed for each in clients)


class Paced(NamedTuple):
    """How paced streams went: how late the last event was, and how much later the last tenth than the first."""

    late_s: float
    grown_s: float
    cpu: float  # of one core
    failed: int


async def _one_round(targets: dict[str, Target], found: dict[str, Measured]) -> None:
    for name, target in targets.items():
        into = found[name]
        port, path = target.port, f"{target.base}/chat/completions"
        slower = SLOW if name == "litellm" else 1
        into.memory.append(memory_mb(target.pid))
        await load(port, path, CLIENTS, 2 if slower > 1 else 10)
        before_s = cpu_s(target.pid)
        clients, seconds = await load(port, path, CLIENTS, max(REQUESTS // CLIENTS // slower, 1))
        answers = sum(len(each.took) for each in clients)
        into.rates.append(answers / seconds)
        into.cpu_us.append((cpu_s(target.pid) - before_s) / max(answers, 1) * 1e6)
        into.count(clients)
        clients, _ = await load(port, path, 1, max(ONE_CLIENT // slower, 5))
        into.one.extend(clients[0].took)
        if target.streams:
            for first, over_s in ((into.first, SHORT_S), (into.burst, 0.0)):
                clients, _ = await load(port, f"{target.base}/{SHORT}", CLIENTS, 4, over_s)
                first.extend(time for each in clients for time in each.first_byte)
                into.count(clients)


async def _paced(target: Target, number: int) -> Paced:
    """So many streams of 100 events a second, at once."""
    before_s = cpu_s(target.pid)
    clients, seconds = await load(target.port, f"{target.base}/stream/{EVENTS}/10", number, 1)
    cpu = (cpu_s(target.pid) - before_s) / seconds
    whole = [each for each in clients if each.took]
    late = [each.took[0] - EVENTS / 100 for each in whole]
    tenth = max(EVENTS // 10, 1)
    behind = [_behind(each.lags) for each in whole]
    grown = [percentile(each[-tenth:], 0.5) - percentile(each[:tenth], 0.5) for each in behind]
    failed = number - len(whole) + sum(each.failed for each in whole)
    return Paced(percentile(late, 0.99), percentile(grown, 0.9), cpu, failed)


def _behind(lags: list[tuple[float, int]]) -> list[float]:
    """How late the pieces of a stream were: so much of it should have come by then, at an even pace."""
    total = lags[-1][1] if lags else 1
    return [at - EVENTS / 100 * size / total for at, size in lags] or [0.0]


class MostStreams(NamedTuple):
    """The most streams at once whose lag does not grow, and the first number that was too many (0: none was)."""

    good: int
    too_many: int
    share: float  # of a core, with the most streams
    event_us: float  # CPU for one event, with the first number of streams
    kernel_us: float  # and how much of it the kernel took


def _how_many(load: PacedStreams, target: Target) -> MostStreams:
    good, number, share, event_us, kernel_us = 0, FIRST_STREAMS, 0.0, 0.0, 0.0
    path = f"{target.base}/chat/completions"
    while number <= MOST_STREAMS:
        before, kernel_before = cpu_s(target.pid), kernel_cpu_s(target.pid)
        found = load.run(target.port, path, number, STREAMS_S, lambda: cpu_s(target.pid))
        if not event_us:
            event_us = found.cpu / number / PER_S * 1e6
            used_s = cpu_s(target.pid) - before
            kernel_us = event_us * (kernel_cpu_s(target.pid) - kernel_before) / used_s if used_s else 0.0
        if not found.kept_up:
            return MostStreams(good, number, share, event_us, kernel_us)
        good, share, number = number, found.cpu, number * 5 // 4
    return MostStreams(good, 0, share, event_us, kernel_us)


def _most_streams() -> dict[str, MostStreams]:
    """Of each that is installed here, and of the load itself."""
    load = PacedStreams()
    found = {"direct": _how_many(load, Target(load.port, "/v1", 0))}
    for each in (nginx, previous, ours):
        with contextlib.ExitStack() as stack:
            try:
                with load.answering():
                    target = stack.enter_context(each(load.port))
            except NotHere:
                continue
            found[each.__name__] = _how_many(load, target)
    load.close()
    return found


async def _memory_with_streams(target: Target) -> float:
    """While many streams are open."""
    asks = asyncio.create_task(load(target.port, f"{target.base}/stream/{EVENTS}/20", MEMORY_STREAMS, 1))
    most = 0.0
    while not asks.done():
        most = max(most, memory_mb(target.pid))
        await asyncio.sleep(0.05)
    await asks
    return most


async def _memory_with_idle_connections(target: Target) -> float:
    """While many connections are open on which nothing is asked; a little of it is what streams have left behind."""
    loop, made = asyncio.get_running_loop(), []
    for _ in range(IDLE_CONNECTIONS):
        made.append((await loop.create_connection(asyncio.Protocol, "127.0.0.1", target.port))[0])
    await asyncio.sleep(0.5)
    memory = memory_mb(target.pid)
    for transport in made:
        transport.abort()
    return memory


class Run:
    """One run over everything that is installed here."""

    def __init__(self) -> None:
        self.found: dict[str, Measured] = {}
        self.skipped: list[str] = []
        self.paced: dict[str, Paced] = {}
        self.most: dict[str, MostStreams] = {}
        self.memory_mb: dict[str, float] = {}
        self.idle_mb: dict[str, float] = {}

    async def measure(self) -> None:
        server = await asyncio.get_running_loop().create_server(Provider, "127.0.0.1", 0, backlog=4096)
        upstream = server.sockets[0].getsockname()[1]
        with contextlib.ExitStack() as stack:
            targets = {"direct": Target(upstream, "/v1", 0)}
            for each in (ours, previous, nginx, litellm):
                try:  # in a thread: what starts may ask the provider, which is in this loop
                    targets[each.__name__] = await asyncio.to_thread(stack.enter_context, each(upstream))
                except NotHere as error:
                    self.skipped.append(str(error))
            self.found = {name: Measured() for name in targets}
            for _ in range(ROUNDS):
                await _one_round(targets, self.found)
            for name, target in targets.items():
                if target.streams:
                    self.paced[name] = await _paced(target, STREAMS)
            for name in ("previous", "ours"):
                if name in targets:
                    self.memory_mb[name] = await _memory_with_streams(targets[name])
                    self.idle_mb[name] = await _memory_with_idle_connections(targets[name])
        server.close()


def measure() -> list[Row]:
    """As rows of the table."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    pin(0)
    run = Run()
    try:
        uvloop.run(run.measure())
        run.most = _most_streams()
    finally:
        if cores:
            os.sched_setaffinity(0, cores)
    for sentence in run.skipped:
        print(f"not measured: {sentence}", file=sys.stderr)
    return _rows(run)


def _rows(run: Run) -> list[Row]:
    found = run.found
    direct, ours_ = found["direct"], found["ours"]
    others = [name for name in found if name != "ours"]
    proxies = others[1:]
    rate, cpu = max(ours_.rates), min(ours_.cpu_us)
    skipped = f"; {'; '.join(run.skipped)}" if run.skipped else ""

    def ms(values: list[float], part: float, over: list[float]) -> str:
        return f"{(percentile(values, part) - percentile(over, part)) * 1000:.2f}"

    def beside(tell: Callable[[str], str], names: Iterable[str]) -> str:
        return ", ".join(f"{name} {tell(name)}" for name in names)

    def added(values: Callable[[Measured], list[float]]) -> Callable[[str], str]:
        def tell(name: str) -> str:
            own, over = values(found[name]), values(direct)
            return f"{ms(own, 0.5, over)} / {ms(own, 0.99, over)}"

        return tell

    def paced(name: str) -> str:
        one = run.paced[name]
        return f"{one.late_s * 1000:.0f} / {one.grown_s * 1000:.0f}, {one.cpu:.0%} of a core"

    def most(name: str) -> str:
        found = run.most[name]
        end = f"not {found.too_many:,}" if found.too_many else "no end found"
        return f"{found.good:,} ({end}" + (f"; {found.share:.0%} of a core)" if found.share else ")")

    def event(name: str) -> str:
        return f"{run.most[name].event_us:.1f} ({run.most[name].kernel_us:.1f} in the kernel)"

    def memory(name: str) -> str:
        return f"{found[name].memory[0]:.0f} / {run.memory_mb[name]:.0f} / {run.idle_mb[name]:.0f}"

    def ratio(own: float, of: Callable[[Measured], float]) -> str:
        return "".join(f", {own / of(found[name]):.2f} × {name}" for name in proxies if of(found[name]))

    latency, first, burst = added(lambda one: one.one), added(lambda one: one.first), added(lambda one: one.burst)
    streaming = [name for name in proxies if found[name].first]
    return [
        Row(
            f"requests/s through the proxy, {CLIENTS} clients",
            f"{rate:,.0f}{ratio(rate, lambda one: max(one.rates))}; {ours_.failed} failed",
            "8,000 on one core, 2.5 × previous",
            beside(lambda name: f"{max(found[name].rates):,.0f}", others) + skipped,
        ),
        Row(
            f"CPU for one request, {CLIENTS} clients, µs",
            f"{cpu:.0f}{ratio(cpu, lambda one: min(one.cpu_us))}",
            "110, 4 × nginx",
            beside(lambda name: f"{min(found[name].cpu_us):.0f}", proxies),
        ),
        Row("added latency, 1 client, p50 / p99 ms", latency("ours"), "0.35 / 1.5", beside(latency, proxies)),
        Row(
            f"added time to first byte, {CLIENTS} clients that stream all the time, p50 / p99 ms",
            first("ours"),
            "2 / –",
            beside(first, streaming),
        ),
        Row(f"the same when all {CLIENTS} begin at the same moment", burst("ours"), "–", beside(burst, streaming)),
        Row(
            f"{STREAMS} streams of 100 events/s: the last event is late by (p99) / lag grown by (p90), ms",
            paced("ours"),
            "no growing lag",
            beside(paced, [name for name in run.paced if name != "ours"]),
        ),
        Row(
            "streams of 100 events/s at once before lag grows",
            most("ours"),
            "2 × previous",
            beside(most, [name for name in run.most if name != "ours"]),
        ),
        Row(
            f"CPU for one event of {FIRST_STREAMS} streams, µs",
            event("ours"),
            "–",
            beside(event, [name for name in run.most if name not in ("ours", "direct")]),
        ),
        Row(
            f"memory of the service, idle / with {MEMORY_STREAMS} streams / with {IDLE_CONNECTIONS:,} idle "
            "connections, MB",
            memory("ours"),
            "45 / 70 / 90",
            beside(memory, [name for name in run.memory_mb if name != "ours"]),
        ),
    ]
