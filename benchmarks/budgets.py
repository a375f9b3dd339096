"""Decisions over three pools and three rates, beside decisions over the pools alone; and what reading usage costs a
proxied stream (benchmarks/stream_usage.py).

A decision is an acquire and a release of a model call. The kinds of decisions take turns, so that a slow moment of the
machine hits all of them. Where valgrind is installed, instructions are counted too: neighbours do not change those.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from time import process_time

from benchmarks import stream_usage
from benchmarks.report import Row
from fleetgate.core import commands as cmd
from fleetgate.core.engine import Engine
from fleetgate.core.entities import BudgetRule, Rule, Spec
from fleetgate.core.usage import RESPONSE, Size, Usage

PAIRS = 20_000
FEW, MANY = 500, 2_500  # pairs under valgrind; the difference is free of the start
ROUNDS = 7
SPEC = Spec(models=("x/y",), kind="requests", host="h", project="web")
POOLS = (
    Rule("requests", "host", cap=1_000_000, on_429="fixed", cooldown_ms=0),
    Rule("requests", "x", cap=100, on_429="fixed", cooldown_ms=0),
    Rule("requests", "x/y", cap=50, on_429="fixed", cooldown_ms=0),
)
# Large enough that no call waits: the decision is measured, not the queue.
RATES = tuple(BudgetRule("x/y", unit, 10**9, "1m", 60_000) for unit in ("calls", "input", "output"))
SIZE = Size(body_bytes=4_000, max_tokens=1_000)
USAGE = Usage(calls=1, input=1_000, output=200, source=RESPONSE)


def an_engine(budgets: tuple[BudgetRule, ...] = ()) -> Engine:
    engine = Engine(me="p")
    engine.handle(cmd.LoadFile("f", "d", 1, POOLS, budgets=budgets), 1_000)
    engine.handle(cmd.Tick(), 1_000)
    return engine


def calls(engine: Engine, size: Size | None, usage: Usage | None, pairs: int = PAIRS) -> None:
    now = engine.state.at
    for number in range(pairs):
        now += 1
        engine.handle(cmd.Tick(), now)
        engine.handle(cmd.Acquire(str(number), SPEC, "p", size=size), now)
        engine.handle(cmd.Release(str(number), usage=usage), now)


def _took_us(work: Callable[[], None]) -> float:
    start = process_time()
    work()
    return (process_time() - start) / PAIRS * 1e6


def _instructions(kind: str) -> float:
    """What the processor executes for one pair of this kind."""
    few, many = (_executed(kind, pairs) for pairs in (FEW, MANY))
    return (many - few) / (MANY - FEW)


def _executed(kind: str, pairs: int) -> int:
    tool = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    command = [*tool, sys.executable, "-m", "benchmarks.budgets", kind, str(pairs)]
    environ = {**os.environ, "PYTHONHASHSEED": "0"}
    said = subprocess.run(command, env=environ, check=True, capture_output=True, text=True).stderr
    found = re.search(r"I\s+refs:\s+([0-9,]+)", said)
    assert found is not None, said[-300:]
    return int(found[1].replace(",", ""))


def _instruction_rows() -> list[Row]:
    if shutil.which("valgrind") is None:
        return [Row("the same by instructions", "not measured: valgrind is not installed")]
    pools, usage, rates = (_instructions(kind) for kind in ("pools", "usage", "rates"))
    return [
        Row(
            "the same by instructions: 3 pools and 3 rates",
            f"{rates:,.0f}, {rates / pools:.2f} times",
            "at most 2 times",
            f"{pools:,.0f} over 3 pools; {usage:,.0f} over 3 pools with usage ({rates / usage:.2f} times)",
        )
    ]


def measure() -> list[Row]:
    pools, counted, rated = an_engine(), an_engine(), an_engine(RATES)
    kinds: dict[str, Callable[[], None]] = {
        "pools": lambda: calls(pools, None, None),
        "usage": lambda: calls(counted, SIZE, USAGE),
        "rates": lambda: calls(rated, SIZE, USAGE),
    }
    best = dict.fromkeys(kinds, float("inf"))
    for _ in range(ROUNDS):
        for name, work in kinds.items():
            best[name] = min(best[name], _took_us(work))
    assert len(rated.state.budgets) == len(RATES)
    plain = best["pools"]
    return [
        Row(
            "engine: acquire + release of a call over 3 pools and 3 rates",
            f"{best['rates']:.1f} µs, {best['rates'] / plain:.2f} times",
            "at most 2 times",
            f"{plain:.1f} µs over 3 pools",
        ),
        Row(
            "the same over 3 pools, with the usage of each call but no rate",
            f"{best['usage']:.1f} µs, {best['usage'] / plain:.2f} times",
            "",
            f"{plain:.1f} µs over 3 pools",
        ),
        *_instruction_rows(),
        *stream_usage.measure(),
    ]


if __name__ == "__main__":  # under valgrind
    is_plain = sys.argv[1] == "pools"
    calls(
        an_engine(RATES if sys.argv[1] == "rates" else ()),
        None if is_plain else SIZE,
        None if is_plain else USAGE,
        int(sys.argv[2]),
    )
