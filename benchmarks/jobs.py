"""Jobs: the rate of submission in a batch and one by one, the time until a job starts, and both with 100,000 queued.

The baseline of one by one is a synced commit of one row in SQLite on this disk. job_peers.py has other job queues.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
from time import perf_counter, sleep, time_ns

from benchmarks import job_peers
from benchmarks.report import Row, percentile
from fleetgate.core import commands as cmd
from fleetgate.core.entities import Rule
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.gate.wakeup import mailbox
from fleetgate.jobs import job_store, submit
from fleetgate.jobs.job_record import JobSpec
from fleetgate.log import open_log

BATCH = 1_000
ALONE = 200
STARTS = 60
QUEUED = 100_000


def bare_commits(folder: str) -> float:
    """Synced commits of one row in a second."""
    db = sqlite3.connect(f"{folder}/bare.db", isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("CREATE TABLE jobs (id INTEGER PRIMARY KEY, spec TEXT)")
    began = perf_counter()
    for _ in range(ALONE):
        db.execute("INSERT INTO jobs (spec) VALUES (?)", ("x" * 500,))
    return ALONE / (perf_counter() - began)


class Bench:
    """A store with so many jobs in it that no worker takes."""

    def __init__(self, folder: str, queued: int) -> None:
        self.gate = DirectGate(open_log(f"sqlite://{folder}"), folder=folder)
        self.gate.one(cmd.SetRule(Rule("agents", "host", cap=8)))
        self.folder = folder
        for start in range(0, queued, 5_000):
            self.submit(min(5_000, queued - start), project="idle")
        self.gate.maintain()

    def submit(self, number: int, project: str = "default") -> list[str]:
        specs = [JobSpec(("true",), "/", self.gate.host, project=project) for _ in range(number)]
        return [each.id for each in submit.submit(self.gate, specs)]

    def batch_a_second(self) -> float:
        began = perf_counter()
        self.submit(BATCH, "idle")
        return BATCH / (perf_counter() - began)

    def alone_a_second(self) -> float:
        began = perf_counter()
        for _ in range(ALONE):
            self.submit(1, "idle")
        return ALONE / (perf_counter() - began)

    def start_ms(self) -> tuple[list[float], list[float]]:
        """From the call of submit to the start of the process: by the job's own row, and by the job's own clock."""
        env = {**os.environ, "FLEETGATE_HOME": self.folder, "FLEETGATE_CONFIG": f"{self.folder}/none.toml"}
        with open(f"{self.folder}/none.toml", "w") as file:
            file.write("")
        command = [
            f"{os.path.dirname(sys.executable)}/fleetgate",
            "worker",
            "-n",
            str(job_peers.HANDS),
            "--project",
            "default",
        ]
        with subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL) as worker:
            try:
                while len(mailbox.worker_processes(self.folder)) < job_peers.HANDS:
                    sleep(0.01)
                for _ in range(5):
                    self._run_one()
                by_row = [self._run_one() for _ in range(STARTS)]
                return by_row, job_peers.starts(self._submit_one, self.folder, STARTS)
            finally:
                worker.terminate()

    def _submit_one(self, argv: list[str]) -> None:
        submit.submit(self.gate, [JobSpec(tuple(argv), "/", self.gate.host)])

    def _run_one(self) -> float:
        began = time_ns() // 1_000_000
        (ident,) = self.submit(1)
        while (job := job_store.find(self.gate.log, ident)) is None or job.state != "succeeded":
            sleep(0.002)
        sleep(0.02)
        return job.started_at - began


def measure() -> list[Row]:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        bare = bare_commits(folder)
    for queued in (0, QUEUED):
        what = f", {queued:,} queued" if queued else ""
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(folder, queued)
            rows.append(Row(f"jobs: submit in a batch{what}", f"{bench.batch_a_second():,.0f}/s", "1,000/s"))
            alone = bench.alone_a_second()
            synced = f"{bare:,.0f}/s synced commits of a row"
            rows.append(
                Row(f"jobs: submit one by one{what}", f"{alone:,.0f}/s, {alone / bare:.2f} times", "200/s", synced)
            )
            by_row, by_clock = bench.start_ms()
            rows.append(Row(f"jobs: from submit to its start, a slot free{what}", _told(by_row), "p50 under 20 ms"))
            rows.append(Row(f"jobs: the same to the job's own look at the clock{what}", _told(by_clock)))
            bench.gate.close()
    return rows + _peers()


def _peers() -> list[Row]:
    rows = []
    for peer in (job_peers.task_spooler, job_peers.huey):
        with tempfile.TemporaryDirectory() as folder:
            found = peer(folder, ALONE, STARTS)
        if isinstance(found, str):
            rows.append(Row(found, "not measured"))
            continue
        rows.append(Row(f"{found.name}: submit one by one", f"{found.a_second:,.0f}/s"))
        rows.append(Row(f"{found.name}: from submit to the job's own look at the clock", _told(found.starts_ms)))
    return rows


def _told(times: list[float]) -> str:
    return f"p50 {percentile(times, 0.5):.0f}, p99 {percentile(times, 0.99):.0f} ms"
