"""The time of one decision while eight processes decide on one store as fast as they can."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import msgspec

from benchmarks.report import Row, percentile

PROCESSES = 8
SECONDS = 6.0


def worker(store: str, seconds: float) -> None:
    """Acquire and release for a while; the durations in ms, as JSON on stdout."""
    from time import perf_counter

    from fleetgate.core import commands as cmd
    from fleetgate.core.entities import Spec
    from fleetgate.gate.request_ids import new_id
    from fleetgate.gate.slots.direct_gate import DirectGate
    from fleetgate.log import open_log

    gate = DirectGate(open_log(store))
    spec = Spec(models=("x/y",), kind="requests")
    took = []
    end = perf_counter() + seconds
    while perf_counter() < end:
        ident = new_id()
        for command in (cmd.Acquire(ident, spec, gate.me), cmd.Release(ident)):
            began = perf_counter()
            gate.decide([command])
            took.append((perf_counter() - began) * 1000)
    sys.stdout.buffer.write(msgspec.json.encode(took))


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="hg-bench-") as folder:
        argv = [sys.executable, "-m", "benchmarks.contention", f"sqlite://{folder}/s", str(SECONDS)]
        workers = [subprocess.Popen(argv, stdout=subprocess.PIPE) for _ in range(PROCESSES)]
        took: list[float] = []
        for process in workers:
            out, _ = process.communicate()
            took.extend(msgspec.json.decode(out, type=list[float]))
    rate = len(took) / SECONDS
    figure = f"p50 {percentile(took, 0.5):.2f}, p99 {percentile(took, 0.99):.1f}, most {max(took):.0f} ms"
    figure += f"; {rate:,.0f} decisions/s"
    return [Row(f"{PROCESSES} processes contending, one decision", figure, "p99 under 50 ms, none over 500 ms")]


if __name__ == "__main__":
    worker(sys.argv[1], float(sys.argv[2]))
    sys.stdout.flush()
    os._exit(0)
