"""The pure engine: acquire + release over three pools, with an empty queue and with 100,000 tickets in it."""

from __future__ import annotations

from collections import deque

from benchmarks.report import Row, best_of
from fleetgate.core import commands as cmd
from fleetgate.core.engine import Engine
from fleetgate.core.entities import Rule, Spec

PAIRS = 20_000
WAITING = 100_000
SPEC = Spec(models=("x/y",), host="h")
RULES = (
    Rule("agents", "host", cap=1_000_000),
    Rule("agents", "x", cap=100),
    Rule("agents", "x/y", cap=50),
    Rule("agents", "full/*", cap=1),
)


def an_engine() -> Engine:
    engine = Engine(me="p")
    engine.handle(cmd.LoadFile("f", "d", 1, RULES), 1_000)
    engine.handle(cmd.Tick(), 1_000)
    return engine


def pairs(engine: Engine) -> None:
    now = engine.state.at
    for number in range(PAIRS):
        now += 1
        engine.handle(cmd.Tick(), now)
        engine.handle(cmd.Acquire(str(number), SPEC, "p"), now)
        engine.handle(cmd.Release(str(number)), now)


def with_line(spec: Spec, holders: int) -> Engine:
    engine = an_engine()
    for number in range(holders + WAITING):
        engine.handle(cmd.Acquire(f"w{number}", spec, "p"), 2_000)
    assert len(engine.state.tickets) == WAITING
    return engine


def hand_over(engine: Engine) -> None:
    """Release the oldest lease: its slot goes to the head of the queue; a newcomer queues behind."""
    now = engine.state.at
    held = deque(engine.state.leases)
    for number in range(PAIRS):
        now += 1
        engine.handle(cmd.Tick(), now)
        events = engine.handle(cmd.Release(held.popleft()), now)
        held.append(events[-1].id)  # type: ignore[union-attr]
        engine.handle(cmd.Acquire(f"n{now}-{number}", SPEC, "p"), now)


def measure() -> list[Row]:
    empty, other, same = an_engine(), with_line(Spec(models=("full/z",), host="h"), 1), with_line(SPEC, 50)
    alone = best_of(3, lambda: pairs(empty)) / PAIRS * 1e6
    beside = best_of(3, lambda: pairs(other)) / PAIRS * 1e6
    through = best_of(3, lambda: hand_over(same)) / PAIRS * 1e6
    return [
        Row("engine: acquire + release over 3 pools", f"{alone:.1f} µs", "under 15 µs"),
        Row(
            "the same, 100,000 waiting for another pool",
            f"{beside:.1f} µs, {beside / alone:.2f} times",
            "at most 2 times",
            f"{alone:.1f} µs with none",
        ),
        Row("engine: release, grant to the head of 100,000, queue one more", f"{through:.1f} µs"),
    ]
