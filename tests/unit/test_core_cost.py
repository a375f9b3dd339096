"""What a decision costs does not grow with those who wait for something else. Counted in calls of functions."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core.engine import Engine
from fleetgate.core.entities import Rule, Spec
from fleetgate.core.queue.positions import QueueView
from fleetgate.core.state.state import State
from tests.property.harness import SECOND, START

FEW, MANY = 200, 2_000
OTHER = Spec(("other/m",), host="h")


def crowded(number: int, *, jobs: bool, projects: int) -> Engine:
    """So many wait for `busy`, and nobody for `other`."""
    engine = Engine(me="me")
    for selector, cap in (("busy", 1), ("other", 5), ("host", 1_000)):
        engine.handle(cmd.SetRule(Rule("agents", selector, cap=cap)), START)
    engine.handle(cmd.Acquire("holds", Spec(("busy/m",), host="h"), "p"), START)
    host, holder = ("", "") if jobs else ("h", "p")
    for n in range(number):
        spec = Spec(("busy/m",), host=host, project=f"p{n % projects}")
        engine.handle(cmd.Acquire(f"t{n}", spec, holder, job=jobs, any_host=jobs), START)
    engine.handle(cmd.Acquire("kept", OTHER, "p", renew_ms=30_000), START)
    return engine


def acquire_and_release(engine: Engine, now: int) -> None:
    engine.handle(cmd.Acquire("new", OTHER, "p"), now)
    engine.handle(cmd.Release("new"), now)


def refuse(engine: Engine, now: int) -> None:
    engine.handle(cmd.Acquire("wide", Spec(("other/m",), slots=5, host="h"), "p", wait=False), now)


def back_off(engine: Engine, now: int) -> None:
    engine.handle(cmd.BackOff("third/m", "rate_limited", 60 * SECOND), now)
    engine.handle(cmd.EndBackoff("third/m"), now)


def report(engine: Engine, now: int) -> None:
    engine.handle(cmd.Report("", "agents", "other", SECOND), now)


def renew(engine: Engine, now: int) -> None:
    engine.handle(cmd.Renew("kept", "q", "wake"), now)


def set_cap(engine: Engine, now: int) -> None:
    for cap in (4, 5):
        engine.handle(cmd.SetRule(Rule("agents", "other", cap=cap)), now)
    engine.handle(cmd.SetRule(Rule("agents", "fourth/m", cap=3)), now)
    engine.handle(cmd.RemoveCap("agents", "fourth/m"), now)


def observe(engine: Engine, now: int) -> None:
    engine.handle(cmd.Observe("elsewhere", (("other/m", 1),)), now)


def tick(engine: Engine, now: int) -> None:
    engine.handle(cmd.Tick(), now)
    engine.next_deadline()
    engine.first_to_act()


def pause(engine: Engine, now: int) -> None:
    engine.handle(cmd.Pause("agents", "other", SECOND), now)
    engine.handle(cmd.Resume("agents", "other"), now)


def lose(engine: Engine, now: int) -> None:
    engine.handle(cmd.Acquire("dead", OTHER, "gone"), now)
    engine.handle(cmd.Lost(("gone",)), now)


def first_page(engine: Engine, now: int) -> None:
    assert len(QueueView(engine.state, now).page(0, 20)) == 20


def counted(work: Callable[[], None]) -> int:
    """How many functions it calls."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    gc.disable()  # other libraries have callbacks for each collection, which would be counted
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


def calls_of(work: Callable[[Engine, int], None], engine: Engine, now: int) -> int:
    return counted(lambda: work(engine, now))


WORK = [acquire_and_release, refuse, back_off, renew, set_cap, observe, tick, pause, lose, report]


@pytest.mark.parametrize("projects", [1, 100, MANY])
@pytest.mark.parametrize("jobs", [True, False], ids=["jobs", "tickets"])
def test_a_decision_costs_the_same_however_many_wait_for_something_else(jobs: bool, projects: int):
    few, many = (crowded(number, jobs=jobs, projects=projects) for number in (FEW, MANY))
    assert len(few.state.tickets) == FEW
    assert len(many.state.tickets) == MANY
    for work in WORK:
        for engine in (few, many):
            work(engine, START + SECOND)  # what is made on first use is there
    costs = {work.__name__: [calls_of(work, each, START + 2 * SECOND) for each in (few, many)] for work in WORK}
    assert {name: many for name, (_, many) in costs.items()} == {name: few for name, (few, _) in costs.items()}


@pytest.mark.parametrize("jobs", [True, False], ids=["jobs", "tickets"])
def test_the_first_page_of_the_queue_costs_the_same_however_many_stand_behind(jobs: bool):
    few, many = (crowded(number, jobs=jobs, projects=3) for number in (FEW, MANY))
    assert calls_of(first_page, many, START) <= calls_of(first_page, few, START) + 100


@pytest.mark.parametrize("jobs", [True, False], ids=["jobs", "tickets"])
def test_a_decision_costs_the_same_after_a_restart(jobs: bool):
    few, many = (
        Engine(State.restore(crowded(number, jobs=jobs, projects=MANY).state.export())) for number in (FEW, MANY)
    )
    for engine in (few, many):
        engine.handle(cmd.Tick(), START)
        for work in WORK:
            work(engine, START + SECOND)
    for work in WORK:
        assert calls_of(work, many, START + 2 * SECOND) == calls_of(work, few, START + 2 * SECOND), work.__name__
