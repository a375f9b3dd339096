"""Long polls, streams and much coming and going at the same time. A few seconds of it; minutes with `make soak`."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from time import monotonic, process_time
from typing import NamedTuple

import pytest
import uvloop

from tests.api.load import Load
from tests.api.served import Served

SOAK = bool(os.environ.get("FLEETGATE_SOAK"))
SECONDS = int(os.environ.get("FLEETGATE_SOAK_S", "300" if SOAK else "6"))
POLLING = 500 if SOAK else 60
STREAMS = 50 if SOAK else 6
MUST_A_SECOND = 2_000
PAIRS_A_SECOND = 2_100 if SOAK else 400  # a little more than must be: who comes late makes up for a second at most
POLL_S = 20 if SOAK else 2
CLIENTS = 128 if SOAK else 32  # so many that the service is never without a question


def resident_mb(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) / 1024


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def total(served: Served, metric: str) -> int:
    lines = served.get("/metrics").body.decode().splitlines()
    return sum(int(float(line.rsplit(" ", 1)[1])) for line in lines if line.startswith(f"{metric}{{"))


class Sample(NamedTuple):
    """The service after so many pairs."""

    pairs: int
    mb: float
    cpu_s: float
    at_s: float


async def run(served: Served, samples: list[Sample]) -> Load:
    assert served.process is not None
    load = Load(served.port, served.token)
    until: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    since = served.get("/v1/status").json["seq"]
    async with asyncio.TaskGroup() as listening:
        for _ in range(STREAMS):
            listening.create_task(load.stream(since, until))
        async with asyncio.TaskGroup() as clients:
            for _ in range(POLLING):
                clients.create_task(load.polls("narrow/x", 0.02, POLL_S))
            for _ in range(CLIENTS):
                clients.create_task(load.pairs("wide/x", PAIRS_A_SECOND / CLIENTS))
            for _ in range(10):
                await asyncio.sleep(SECONDS / 10)
                pid = served.process.pid
                samples.append(Sample(load.counts["pairs"], resident_mb(pid), cpu_s(pid), monotonic()))
            load.stop.set()
        until.set_result((await asyncio.to_thread(served.get, "/v1/status")).json["seq"])
    return load


@pytest.mark.timeout(SECONDS + 120)
def test_h2_under_much_load_nothing_is_lost_and_nothing_is_left(tmp_path: Path):
    with Served(tmp_path) as served:
        served.cap("wide", 100 if SOAK else 20, cooldown_ms=0)
        served.cap("narrow", 5, cooldown_ms=0)
        samples: list[Sample] = []
        here = process_time()
        load = uvloop.run(run(served, samples))
        counts, sizes = load.counts, [sample.mb for sample in samples]
        first, last = samples[0], samples[-1]  # by the first, everybody is there
        pairs, cpu = last.pairs - first.pairs, last.cpu_s - first.cpu_s
        a_second, each_us = pairs / (last.at_s - first.at_s), 1e6 * cpu / max(pairs, 1)
        print(f"{dict(counts)} in {SECONDS} s: {a_second:.0f} pairs/s; MB: {[*map(int, sizes)]}")
        print(f"CPU: service {cpu:.1f} s, {each_us:.0f} µs a pair; clients {process_time() - here:.1f} s")
        assert counts["pairs"]
        assert counts["polled"]
        assert served.get("/v1/leases").json["leases"] == []
        assert served.get("/v1/tickets").json["total"] == 0
        given = counts["pairs"] + counts["polled"]
        served.wait_until(lambda: total(served, "fleetgate_releases_total") == given, "all releases are counted")
        assert total(served, "fleetgate_grants_total") == given
        if SOAK:  # else it is not long enough to tell
            assert sizes[-1] < 1.1 * sizes[2] + 10, f"memory grows: {sizes}"
            assert MUST_A_SECOND * each_us < 0.95e6, f"one core is not enough for {MUST_A_SECOND} pairs/s"
            assert a_second >= MUST_A_SECOND, f"is the machine busy with something else? load {os.getloadavg()}"
