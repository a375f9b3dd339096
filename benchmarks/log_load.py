"""The start with 100,000 tickets in the log: from its snapshot, compared with a start from its events."""

from __future__ import annotations

import subprocess
import sys
import tempfile

from benchmarks.report import Row

TICKETS = 100_000

LOAD = """
import sys
from time import perf_counter
from fleetgate.gate.replica.replica import Replica
from fleetgate.log import open_log
began = perf_counter()
replica = Replica(open_log(sys.argv[1]), "me")
count = len(replica.catch_up().tickets)
replica.decide([])
print(perf_counter() - began)
assert count == int(sys.argv[2]), count
"""


def load_s(store: str) -> float:
    times = []
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", LOAD, store, str(TICKETS)], check=True, capture_output=True, text=True
        )
        times.append(float(done.stdout))
    return min(times)


def measure() -> list[Row]:
    from fleetgate.core import commands as cmd
    from fleetgate.core.entities import Rule, Spec
    from fleetgate.gate.liveness.process_identity import this_process
    from fleetgate.gate.replica.replica import Replica
    from fleetgate.gate.request_ids import new_id
    from fleetgate.log import open_log

    with tempfile.TemporaryDirectory(prefix="hg-") as folder:
        store = f"sqlite://{folder}/s"
        replica = Replica(open_log(store), this_process())
        replica.decide([cmd.SetRule(Rule("agents", "host", cap=1))])
        spec = Spec(models=("x/y",), host="h")
        for _ in range(TICKETS // 100):
            replica.decide([cmd.Acquire(new_id(), spec, replica.me, command="agent " * 5) for _ in range(100)])
        replica.decide([cmd.Acquire(new_id(), spec, replica.me)])
        from_events = load_s(store)
        replica.maintain()
        from_snapshot = load_s(store)
    return [
        Row(
            "start-up with 100,000 tickets in the log",
            f"{from_snapshot:.2f} s",
            "under 1 s",
            f"from its events, without a snapshot: {from_events:.2f} s",
        )
    ]
