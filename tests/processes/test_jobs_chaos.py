"""Jobs under random kill -9 of workers, their processes and agents (rules J2, L2): each ends once and never runs twice.

A job takes a lock of its own while it runs, which the system drops at the instant of its death: a second one that runs
at the same time finds it taken, and says so. In the suite a few seconds of it; `make soak` has the whole: 200 jobs,
four workers, two minutes.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Rule
from fleetgate.gate.liveness import process_identity
from fleetgate.jobs import job_store, state_machine
from tests.postgres_stores import admin, fresh_store
from tests.processes.fleet import PYTHON, Fleet, Run, is_alive, kill_if_there
from tests.processes.job_fleet import Jobs, processes_of

pytestmark = pytest.mark.processes

SOAK = bool(os.environ.get("FLEETGATE_SOAK"))
FAR = [pytest.mark.postgres, pytest.mark.skipif(not SOAK, reason="two minutes of it: make soak")]
JOBS, SECONDS = (200, 120) if SOAK else (24, 6)
WORKERS, PROCESSES, CAP = 4, 2, 5

JOB = """
import fcntl, os, sys, time
record, name, seconds = sys.argv[1:]
out = os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
mine = os.open(f"{record}.{name}", os.O_RDWR | os.O_CREAT, 0o600)
try:
    fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    os.write(out, f"twice {name}\\n".encode())
os.write(out, f"start {name}\\n".encode())
time.sleep(float(seconds))
os.write(out, f"end {name}\\n".encode())
"""


@pytest.mark.parametrize("where", ["sqlite", pytest.param("postgres", marks=FAR)])
def test_j2_jobs_survive_random_kills_each_ends_once_and_none_runs_twice_at_once(
    where: str, request: pytest.FixtureRequest
) -> None:
    """On PostgreSQL the node with their connections is killed as well, and so are single connections."""
    url = fresh_store(request.getfixturevalue("postgres")) if where == "postgres" else ""
    seed = int(os.environ.get("FLEETGATE_SEED") or time.time())
    print(f"FLEETGATE_SEED={seed}")
    chance = random.Random(seed)
    with Fleet(f"[agents]\nhost = {CAP}\n", store=url) as fleet:
        fleet.gate.decide([cmd.SetRule(Rule("agents", "host", cap=CAP))])
        jobs = Jobs(fleet)
        script, record = fleet.folder / "job.py", fleet.folder / "chaos"
        script.write_text(JOB)
        commands = [
            [*PYTHON, str(script), str(record), str(number), f"{chance.uniform(0.05, 0.6 if not SOAK else 4):.2f}"]
            for number in range(JOBS)
        ]
        idents = jobs.many(commands, retries=1000)
        workers = [jobs.worker(PROCESSES) for _ in range(WORKERS)]
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            if url and chance.random() < 0.2:
                kill_node_or_connections(chance, fleet)
            kill_something(chance, fleet, workers)
            workers = [worker if worker.code is None else jobs.worker(PROCESSES) for worker in workers]
            time.sleep(chance.uniform(0, 0.4))  # the pace of the killing, not a wait for anything
        fleet.until(lambda: all_ended(fleet, idents), 60 if not SOAK else 600, "every job ended")
        check(fleet, idents, record.read_text().split("\n"))
        for worker in workers:
            worker.signal(15)
        assert [worker.wait() for worker in workers] == [0] * WORKERS
        assert fleet.is_empty(), fleet.dump()
        fleet.check_log()


def kill_something(chance: random.Random, fleet: Fleet, workers: list[Run]) -> None:
    """kill -9 of a worker, a worker process, or an agent."""
    what = chance.choices(("worker", "process", "agent"), (1, 3, 3))[0]
    worker = chance.choice(workers)
    if what == "worker":
        kill_if_there(worker.pid)
        worker.process.wait()
    elif what == "process" and (processes := processes_of(worker)):
        kill_if_there(chance.choice(processes))
    else:
        children = [lease.child for lease in fleet.state.leases.values() if lease.child]
        alive = [process for process in children if process_identity.is_gone(process) is False]
        if alive and (pid := process_identity.local_pid(chance.choice(alive))) is not None and is_alive(pid):
            kill_if_there(pid)


def kill_node_or_connections(chance: random.Random, fleet: Fleet) -> None:
    if chance.random() < 0.5:
        for pid in fleet.processes():
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"node" in line:
                kill_if_there(pid)
    else:
        with admin(fleet.store) as operator:
            operator.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name LIKE 'fleetgate %' AND pid != pg_backend_pid()"
            )


def all_ended(fleet: Fleet, idents: list[str]) -> bool:
    rows = job_store.every(fleet.gate.log)
    return all(rows[ident].state in state_machine.FINAL for ident in idents)


def check(fleet: Fleet, idents: list[str], lines: list[str]) -> None:
    assert not [line for line in lines if line.startswith("twice")], "a job ran twice at the same time"
    ends = Counter(event.id for _, event in fleet.events_of(ev.JobEnded))
    assert ends == Counter(idents), "every job is told to have ended, and once"
    rows = job_store.every(fleet.gate.log)
    assert Counter(rows[ident].state for ident in idents) == {"succeeded": len(idents)}
    finished = Counter(line.split()[1] for line in lines if line.startswith("end"))
    assert set(finished) == {str(number) for number in range(len(idents))}
    assert not fleet.state.leases, "no lease is left"
