"""The gate on PostgreSQL, with a server on this machine that syncs to disk.

The server is the tests' own (tests/postgres_server.py). The baseline is a bare transaction on the same server: lock a
row, add a row, commit. Prefect's global concurrency limits are measured on the same server where
FLEETGATE_BENCH_PREFECT names a Python that has Prefect.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from time import monotonic_ns, perf_counter

import psycopg

import fleetgate
from benchmarks.postgres_peers import NotHere, prefect
from benchmarks.report import Row, best_of, percentile
from fleetgate.core import commands as cmd
from fleetgate.core.entities import Rule, Spec
from fleetgate.gate.liveness import process_identity
from fleetgate.gate.request_ids import new_id
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.log import open_log
from fleetgate.log.postgres.migrations import migrate
from fleetgate.log.postgres.url import parse
from tests.postgres_server import NoServer, Server

CAPS = {"x": 1000, "x/y": 500, "project": 5000}
PAIRS = 600
TASKS = 64
PROCESSES = 8
EACH = 8
SECONDS = 6.0
ROUNDS = 200
SPEC = Spec(models=("x/y",), kind="requests")


def fresh(server: Server, namespace: str) -> str:
    url = server.url("bench", namespace=namespace)
    migrate(parse(url))
    gate = DirectGate(open_log(url))
    for selector, cap in CAPS.items():
        gate.one(cmd.SetRule(Rule("requests", selector, cap=cap, cooldown_ms=0, on_429="step")))
    gate.close()
    return url


def bare_pairs_a_second(server: Server) -> float:
    """Two transactions that only lock a row and add one: what the server and the way to it cost."""
    with psycopg.connect(server.url("bench"), autocommit=True) as conn:
        conn.execute("CREATE TABLE bare_lock (id int PRIMARY KEY); INSERT INTO bare_lock VALUES (1)")
        conn.execute("CREATE TABLE bare_log (number bigserial PRIMARY KEY, events text)")
        text = "x" * 300

        def work() -> None:
            for number in range(2 * PAIRS):
                with conn.transaction(), conn.pipeline():
                    conn.execute("SELECT 1 FROM bare_lock WHERE id = 1 FOR UPDATE")
                    conn.execute("INSERT INTO bare_log (events) VALUES (%s)", (text,))
                    if number % 2:
                        conn.execute("SET LOCAL synchronous_commit = off")

        return PAIRS / best_of(3, work)


def direct_pairs_a_second(url: str) -> float:
    """The path of `fleetgate run` and `acquire`: a transaction for each command."""
    gate = DirectGate(open_log(url))

    def work() -> None:
        for _ in range(PAIRS):
            ident = new_id()
            gate.decide([cmd.Acquire(ident, SPEC, gate.me)])
            gate.decide([cmd.Release(ident)])

    rate = PAIRS / best_of(3, work)
    gate.close()
    return rate


async def pairs_by(url: str, tasks: int, seconds: float) -> int:
    """How many pairs so many tasks of one process make in that time."""
    async with fleetgate.open_gate(url, {}) as gate:
        for _ in range(5):
            async with gate.lease("x/y"):
                pass
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        end = perf_counter() + seconds

        async def work() -> int:
            pairs = 0
            while perf_counter() < end:
                async with gate.lease("x/y"):
                    pairs += 1
            return pairs

        return sum(await asyncio.gather(*(work() for _ in range(tasks))))


def pairs_over_processes(url: str, count: int, tasks: int) -> float:
    """Pairs a second of several processes at once."""
    argv = [sys.executable, "-m", "benchmarks.postgres", "pairs", url, str(tasks)]
    workers = [subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    for worker in workers:
        assert worker.stdout is not None
        worker.stdout.readline()
    pairs = 0
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    for worker in workers:
        out, _ = worker.communicate()
        pairs += int(out)
    return pairs / SECONDS


# Waking.


def waiter(url: str, host: str) -> None:
    """Take the slot whenever it is free, say when, and give it back; on a machine of another name, if one is given."""
    import select

    from fleetgate.cli.run.acquire_slot import Request, acquire_slot
    from fleetgate.core.entities import Lease
    from fleetgate.log.store_url import local_folder

    if host:
        pid, _, _, pidns, ours = process_identity._look_around()
        process_identity._here = (pid, host, f"boot-{host}", pidns, ours)
    gate = DirectGate(open_log(url), folder=local_folder(url))
    request = Request(("x/y",), "requests", 1, "default", False, False, (), (), 0, None, 0, None, "", "", "", True)
    for _ in range(ROUNDS):
        asked = acquire_slot(gate, request)
        now = monotonic_ns()
        assert isinstance(asked.lease, Lease)
        gate.decide([cmd.Release(asked.lease.id)])
        print(now, flush=True)
        select.select([0], [], [])
        os.read(0, 1)


def wake_ups_ms(url: str, host: str) -> list[float]:
    gate = DirectGate(open_log(url))
    gate.one(cmd.SetRule(Rule("requests", "x", cap=1, cooldown_ms=0, on_429="step")))
    argv = [sys.executable, "-m", "benchmarks.postgres", "wait", url, host]
    took = []
    ident = new_id()
    gate.decide([cmd.Acquire(ident, SPEC, gate.me)])
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        for _ in range(ROUNDS):
            while not gate.replica.catch_up().tickets:
                if process.poll() is not None:
                    raise RuntimeError("the waiting process has ended")
            _settle()
            began = monotonic_ns()
            gate.decide([cmd.Release(ident)])
            took.append((int(process.stdout.readline()) - began) / 1e6)
            ident = new_id()
            gate.decide([cmd.Acquire(ident, SPEC, gate.me)])
            process.stdin.write(b".")
            process.stdin.flush()
    gate.close()
    return took


def _settle() -> None:
    """The waiter has queued up; let it begin to listen, as one that has waited for a while does."""
    from time import sleep

    sleep(0.05)


def measure() -> list[Row]:
    try:
        server = Server(fsync=True)
    except NoServer as error:
        return [Row("PostgreSQL", f"not measured: {error}")]
    try:
        with psycopg.connect(server.url("postgres"), autocommit=True) as conn:
            conn.execute("CREATE DATABASE bench")
        with tempfile.TemporaryDirectory(prefix="fg-") as folder:
            os.environ["FLEETGATE_HOME"] = folder
            return _rows(server)
    finally:
        server.remove()


def _rows(server: Server) -> list[Row]:
    bare = bare_pairs_a_second(server)
    direct = direct_pairs_a_second(fresh(server, "one"))
    many = pairs_over_processes(fresh(server, "many"), 1, TASKS)
    spread = pairs_over_processes(fresh(server, "spread"), PROCESSES, EACH)
    far = wake_ups_ms(fresh(server, "far"), "elsewhere")
    near = wake_ups_ms(fresh(server, "near"), "")
    baseline = f"{bare:,.0f} pairs/s of bare transactions"
    return [
        *_ours(baseline, direct, many, spread),
        _woken("PostgreSQL: release → a waiter of another machine's name goes on", far),
        _woken("PostgreSQL: release → a waiter of this machine goes on", near),
        *_prefects(server, direct, many),
    ]


def _ours(baseline: str, direct: float, many: float, spread: float) -> list[Row]:
    return [
        Row("PostgreSQL gate, one at a time", f"{direct:,.0f} pairs/s", "500 pairs/s", baseline),
        Row(f"the same, {TASKS} tasks in one process", f"{many:,.0f} pairs/s", "5,000 pairs/s", baseline),
        Row(f"the same, {PROCESSES} processes of {EACH} tasks", f"{spread:,.0f} pairs/s", "1,500 pairs/s", baseline),
    ]


def _prefects(server: Server, direct: float, many: float) -> list[Row]:
    """Prefect's limits beside ours, in the same run."""
    try:
        with prefect(server) as peer:
            version = peer.version()
            rates = {
                (how, tasks): peer.pairs_a_second(tasks, SECONDS, kept=how == "kept")
                for how in ("by the book", "kept")
                for tasks in (1, TASKS)
            }
    except NotHere as error:
        return [Row("Prefect's global concurrency limits", f"not measured: {error}")]
    rows = []
    for (how, tasks), rate in rates.items():
        client = "`concurrency()`" if how == "by the book" else "one HTTP client for all"
        ours = direct if tasks == 1 else many
        what = f"Prefect {version}, {client}, {'one at a time' if tasks == 1 else f'{tasks} tasks in one process'}"
        rows.append(Row(what, f"{rate:,.1f} pairs/s", "", f"Fleetgate {ours:,.0f}, {ours / rate:,.0f} times"))
    return rows


def _woken(what: str, took: list[float]) -> Row:
    return Row(what, f"p50 {percentile(took, 0.5):.2f}, p99 {percentile(took, 0.99):.2f} ms", "p50 under 5 ms")


if __name__ == "__main__":
    if sys.argv[1] == "pairs":
        print(asyncio.run(pairs_by(sys.argv[2], int(sys.argv[3]), SECONDS)), flush=True)
    else:
        waiter(sys.argv[2], sys.argv[3])
