"""The memory of a waiting `fleetgate run` with 1,000 tickets in the queue."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from time import sleep

from benchmarks.report import Row

TICKETS = 1_000


def resident_mb(pid: int) -> float:
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmRSS"))


def fill(folder: str) -> None:
    from fleetgate.core import commands as cmd
    from fleetgate.core.entities import Rule, Spec
    from fleetgate.gate.request_ids import new_id
    from fleetgate.gate.slots.direct_gate import DirectGate
    from fleetgate.log import open_log

    gate = DirectGate(open_log(f"sqlite://{folder}"), folder=folder)
    gate.one(cmd.SetRule(Rule("agents", "host", cap=1)))
    spec = Spec(models=("x/y",), host=gate.host)
    gate.decide([cmd.Acquire(new_id(), spec, gate.me, command="agent " * 20) for _ in range(TICKETS + 1)])


def measure() -> list[Row]:
    if sys.platform != "linux":
        return [Row("memory of a waiting `fleetgate run`", "not measured: needs /proc")]
    with tempfile.TemporaryDirectory(prefix="hg-") as folder:
        fill(folder)
        env = {**os.environ, "FLEETGATE_HOME": folder, "XDG_CONFIG_HOME": folder}
        argv = [sys.executable, "-m", "fleetgate", "run", "-m", "x/y", "--", "true"]
        with subprocess.Popen(argv, env=env, stderr=subprocess.PIPE) as process:
            assert process.stderr
            line = process.stderr.readline().decode()
            sleep(2.5)  # a few polls
            resident = resident_mb(process.pid)
            process.terminate()
    assert f"position {TICKETS + 1}" in line, line
    bare = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    sleep(0.5)
    base = resident_mb(bare.pid)
    bare.kill()
    bare.wait()
    return [
        Row(
            "memory of a waiting `fleetgate run`, 1,000 tickets in the queue",
            f"{resident:.0f} MB",
            "under 40 MB",
            f"bare Python: {base:.0f} MB",
        )
    ]
