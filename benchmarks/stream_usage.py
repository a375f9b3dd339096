"""What it costs a proxied stream that its usage is read: the time for one event in the reader of responses, with and
without usage, as a part of the CPU time that the service takes for one event in all.

Both are measured in one run, alternately, and the least of many counts: it was disturbed least. Only the service's time
in user mode counts, as an instruction counter would have it. Counters of the processor are not available everywhere.
"""

from __future__ import annotations

import asyncio
import os
from time import process_time

import uvloop

from benchmarks.gateways import Target, ours
from benchmarks.report import Row
from benchmarks.traffic import EVENT, Provider, load
from fleetgate.core.usage import Usage
from fleetgate.proxy.calls.response_reader import ResponseReader
from fleetgate.signals.response_usage import UsageReader

SMALL = bool(os.environ.get("FLEETGATE_BENCH_SMALL"))
STREAMS = 4 if SMALL else 32
EVENTS = 50 if SMALL else 500  # of a stream, 100 a second
ROUNDS = 1 if SMALL else 5
TURNS, READ_STREAMS = (3, 2) if SMALL else (60, 40)
GOAL = 3.0  # percent
_DELTA = b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":" a few words"}}'
PIECES = {
    "Anthropic": b"event: content_block_delta\ndata: " + _DELTA + b"\n\n",
    "OpenAI, asked for usage": EVENT.replace(b"}]}", b'}],"usage":null}'),
}


class NoUsage(UsageReader):
    """Reads nothing."""

    __slots__ = ()

    def feed(self, piece: bytes) -> None:
        pass

    def skip(self) -> None:
        pass

    def result(self, *, complete: bool) -> Usage | None:
        return None


class ErrorsOnly(ResponseReader):
    """Looks for errors, as the proxy would without usage."""

    __slots__ = ()

    def __init__(self, provider: str, model: str) -> None:
        super().__init__(provider, model)
        self._usage = NoUsage(stream=True)


def measure() -> list[Row]:
    service_us = uvloop.run(_service_us())
    rows = []
    for name, piece in PIECES.items():
        without, with_usage = _reader_us(piece)
        cost_us = with_usage - without
        rows.append(
            Row(
                f"reading the usage of a proxied stream ({name}), by CPU time",
                f"{cost_us / (service_us - cost_us) * 100:.1f} % ({cost_us:.2f} µs for an event)",
                f"below {GOAL:g} %",
                f"the service: {service_us:.1f} µs for an event",
            )
        )
    return rows


def _reader_us(piece: bytes) -> tuple[float, float]:
    """The time for an event of a whole stream, without and with usage."""
    least = [float("inf"), float("inf")]
    for _ in range(TURNS):
        for which, kind in enumerate((ErrorsOnly, ResponseReader)):
            began = process_time()
            for _ in range(READ_STREAMS):
                reader = kind("bench", "m")
                feed = reader.feed
                for _ in range(EVENTS):
                    feed(piece)
                reader.end()
                reader.usage()
            least[which] = min(least[which], (process_time() - began) / (READ_STREAMS * EVENTS) * 1e6)
    return least[0], least[1]


async def _service_us() -> float:
    """The time that the service takes for one event of a stream, with everything that it does."""
    server = await asyncio.get_running_loop().create_server(Provider, "127.0.0.1", 0)
    upstream = ours(server.sockets[0].getsockname()[1])
    target = await asyncio.to_thread(upstream.__enter__)
    try:
        await load(target.port, f"{target.base}/stream/10/10", STREAMS, 1)
        return min([await _round_us(target) for _ in range(ROUNDS)])
    finally:
        await asyncio.to_thread(upstream.__exit__, None, None, None)
        server.close()


async def _round_us(target: Target) -> float:
    before_s = _user_s(target.pid)
    clients, _ = await load(target.port, f"{target.base}/stream/{EVENTS}/10", STREAMS, 1)
    assert not any(each.failed for each in clients)
    return (_user_s(target.pid) - before_s) / (STREAMS * EVENTS) * 1e6


def _user_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        return int(file.read().rpartition(")")[2].split()[11]) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    for row in measure():
        print(row)
