"""The library gate on SQLite: one task and 64 tasks at once, compared with bare appends to the same kind of table."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from time import perf_counter

import fleetgate
from benchmarks.report import Row, best_of
from fleetgate.core import commands as cmd
from fleetgate.core.entities import Rule, Spec
from fleetgate.gate.request_ids import new_id
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.log import open_log

CONFIG = {
    "requests": {
        "x": {"cap": 1000, "cooldown": 0},
        "x/y": {"cap": 500, "cooldown": 0},
        "project": {"cap": 5000, "cooldown": 0},
    }
}
PAIRS = 3_000
TASKS = 64


def bare_appends(folder: str) -> float:
    """Pairs a second that only append a row each: what SQLite itself costs."""
    db = sqlite3.connect(f"{folder}/bare.db", isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=NORMAL")
    db.execute("CREATE TABLE log (number INTEGER PRIMARY KEY, events TEXT)")
    text = "x" * 300

    def work() -> None:
        for _ in range(2 * PAIRS):
            db.execute("BEGIN IMMEDIATE")
            db.execute("INSERT INTO log (events) VALUES (?)", (text,))
            db.execute("COMMIT")

    return PAIRS / best_of(3, work)


def direct_pairs_a_second(folder: str) -> float:
    """The path of `fleetgate run` and `acquire`: no asyncio, a transaction for each command."""
    gate = DirectGate(open_log(f"sqlite://{folder}"), folder=folder)
    for selector, options in CONFIG["requests"].items():
        gate.one(cmd.SetRule(Rule("requests", selector, cap=options["cap"], cooldown_ms=0)))
    spec = Spec(models=("x/y",), kind="requests")

    def work() -> None:
        for _ in range(PAIRS):
            ident = new_id()
            gate.decide([cmd.Acquire(ident, spec, gate.me)])
            gate.decide([cmd.Release(ident)])

    return PAIRS / best_of(3, work)


async def pairs_a_second(store: str, tasks: int, each: int) -> float:
    async with fleetgate.open_gate(store, CONFIG) as gate:

        async def work(count: int) -> None:
            for _ in range(count):
                async with gate.lease("x/y"):
                    pass

        await work(100)
        rates = []
        for _ in range(3):
            began = perf_counter()
            await asyncio.gather(*(work(each) for _ in range(tasks)))
            rates.append(tasks * each / (perf_counter() - began))
        return max(rates)


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="hg-bench-") as folder:
        bare = bare_appends(folder)
        direct = direct_pairs_a_second(f"{folder}/direct")
        one = asyncio.run(pairs_a_second(f"sqlite://{folder}/one", 1, PAIRS))
        many = asyncio.run(pairs_a_second(f"sqlite://{folder}/many", TASKS, 400))
    baseline = f"{bare:,.0f} pairs/s of bare appends"
    return [
        Row(
            "SQLite gate, one process, one at a time",
            f"{direct:,.0f} pairs/s, {direct / bare:.2f} times",
            "5,000 pairs/s",
            baseline,
        ),
        Row(
            "the same through the asyncio library",
            f"{one:,.0f} pairs/s, {one / bare:.2f} times",
            "5,000 pairs/s",
            baseline,
        ),
        Row(
            f"the same, {TASKS} tasks at once",
            f"{many:,.0f} pairs/s, {many / bare:.2f} times",
            "25,000 pairs/s",
            baseline,
        ),
    ]
