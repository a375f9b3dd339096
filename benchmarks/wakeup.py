"""The time from a release in one process until a waiter in another continues, compared with a bare datagram."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from time import monotonic_ns

from benchmarks.report import Row, percentile

ROUNDS = 300


def waiter(store: str) -> None:
    """Take the slot whenever it is free, say when, and give it back."""
    import select

    from fleetgate.cli.run.acquire_slot import Request, acquire_slot
    from fleetgate.core import commands as cmd
    from fleetgate.core.entities import Lease
    from fleetgate.gate.slots.direct_gate import DirectGate
    from fleetgate.log import open_log

    gate = DirectGate(open_log(store), folder=store.removeprefix("sqlite://"))
    request = Request(("x/y",), "requests", 1, "default", False, False, (), (), 0, None, 0, None, "", "", "", True)
    for _ in range(ROUNDS):
        asked = acquire_slot(gate, request)
        now = monotonic_ns()
        assert isinstance(asked.lease, Lease)
        gate.decide([cmd.Release(asked.lease.id)])
        print(now, flush=True)
        select.select([0], [], [])
        os.read(0, 1)


def wake_ups_ms(store: str) -> list[float]:
    from fleetgate.core import commands as cmd
    from fleetgate.core.entities import Rule, Spec
    from fleetgate.gate.request_ids import new_id
    from fleetgate.gate.slots.direct_gate import DirectGate
    from fleetgate.log import open_log

    gate = DirectGate(open_log(store), folder=store.removeprefix("sqlite://"))
    gate.one(cmd.SetRule(Rule("requests", "x", cap=1, cooldown_ms=0)))
    argv = [sys.executable, "-m", "benchmarks.wakeup", store]
    spec = Spec(models=("x/y",), kind="requests")
    took = []
    ident = new_id()
    gate.decide([cmd.Acquire(ident, spec, gate.me)])
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        for _ in range(ROUNDS):
            while not gate.replica.catch_up().tickets:
                if process.poll() is not None:
                    raise RuntimeError("the waiting process has ended")
            began = monotonic_ns()
            gate.decide([cmd.Release(ident)])
            took.append((int(process.stdout.readline()) - began) / 1e6)
            ident = new_id()
            gate.decide([cmd.Acquire(ident, spec, gate.me)])
            process.stdin.write(b".")
            process.stdin.flush()
    return took


def bare_datagrams_ms() -> list[float]:
    """There and back between two processes, halved."""
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    if os.fork() == 0:
        for _ in range(ROUNDS):
            other.send(other.recv(16))
        os._exit(0)
    took = []
    for _ in range(ROUNDS):
        began = monotonic_ns()
        one.send(b"x")
        one.recv(16)
        took.append((monotonic_ns() - began) / 2e6)
    os.wait()
    return took


def measure() -> list[Row]:
    bare = bare_datagrams_ms()
    with tempfile.TemporaryDirectory(prefix="hg-") as folder:
        took = wake_ups_ms(f"sqlite://{folder}/s")
    figure = f"p50 {percentile(took, 0.5):.2f}, p99 {percentile(took, 0.99):.2f} ms"
    baseline = f"a bare datagram: p50 {percentile(bare, 0.5):.2f}, p99 {percentile(bare, 0.99):.2f} ms"
    return [
        Row("release in one process → waiter in another goes on", figure, "p50 under 2 ms, p99 under 20 ms", baseline)
    ]


if __name__ == "__main__":
    waiter(sys.argv[1])
