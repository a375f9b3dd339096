"""Caps on the calls in flight of a session (rule W7): one pool for each, which comes and goes."""

from __future__ import annotations

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core.engine import Engine
from fleetgate.core.entities import BudgetRule, Rule, Spec
from fleetgate.core.errors import BadRequest
from fleetgate.core.invariants import check_invariants, check_settled
from fleetgate.core.state import state as states
from fleetgate.core.state.state import State
from fleetgate.core.views.pool_and_lease_views import lasting_pool_views, pool_views

ME = "h|b|n|1|1"
T0 = 1_800_000_000_000
MODEL = "umans/coder"


class Bench:
    """An engine with a cap of two calls in flight for each session."""

    def __init__(self) -> None:
        self.engine = Engine(me=ME)
        self.now = T0
        self.do(cmd.SetRule(Rule("requests", "session", cap=2)))

    @property
    def state(self) -> State:
        return self.engine.state

    def do(self, command: cmd.Command) -> None:
        self.now += 1
        self.engine.handle(cmd.Tick(), self.now)
        self.engine.handle(command, self.now)
        check_invariants(self.state)
        check_settled(self.state, self.now)

    def ask(self, ident: str, session: str = "", kind: str = "requests") -> bool:
        """Whether it enters."""
        self.do(cmd.Acquire(ident, Spec((MODEL,), kind, agent_session=session), ME))
        return ident in self.state.leases


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_w7_each_session_has_a_cap_of_its_own_and_its_slots_are_free_at_once(bench: Bench):
    assert [bench.ask(f"a{each}", "a") for each in range(3)] == [True, True, False]
    assert bench.ask("b0", "b")
    assert [bench.ask(f"n{each}") for each in range(5)] == [True] * 5, "a call of no session is not counted"
    bench.do(cmd.Release("a0"))
    assert "a2" in bench.state.leases, "nothing cools down: only we count here"


def test_w7_a_session_is_listed_while_it_is_full_or_paused_and_makes_no_series(bench: Bench):
    def listed() -> list[str]:
        return [view.pool for view in pool_views(bench.state, bench.now) if view.kind == "requests"]

    bench.ask("a0", "a")
    assert listed() == []
    bench.ask("a1", "a")
    bench.ask("b0", "b")
    assert listed() == ["session:a"]
    bench.do(cmd.Pause("requests", "session:b", None))
    assert listed() == ["session:a", "session:b"]
    assert [view for view in lasting_pool_views(bench.state, bench.now) if view.kind == "requests"] == []


def test_w7_sessions_that_ended_are_forgotten_and_those_in_use_or_paused_are_not(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(states, "_MAX_QUEUES", 8)
    bench.ask("held", "held")
    for ident in ("w0", "w1", "w2"):
        bench.ask(ident, "waits")
    bench.ask("p0", "paused")
    bench.do(cmd.Release("p0"))
    bench.do(cmd.Pause("requests", "session:paused", None))
    for each in range(60):
        bench.ask(f"c{each}", f"s{each}")
        bench.do(cmd.Release(f"c{each}"))
    sessions = {key for key in bench.state.pools if key.startswith("requests session:")}
    assert {"requests session:held", "requests session:waits", "requests session:paused"} <= sessions
    assert len(sessions) < 25
    bench.do(cmd.Release("w0"))
    assert "w2" in bench.state.leases


def test_w7_a_snapshot_has_no_word_of_a_session_but_its_calls_and_its_pause(bench: Bench):
    for ident in ("a0", "a1", "a2"):
        bench.ask(ident, "a")
    bench.ask("b0", "b")
    bench.do(cmd.Release("b0"))
    bench.do(cmd.Pause("requests", "session:b", 5_000))
    exported = bench.state.export(bench.now)
    assert [(each.pool, each.paused_until > bench.now, each.holds) for each in exported.pools] == [
        ("session:b", True, 0)
    ]
    restored = Engine(State.restore(exported))
    assert restored.state.export(bench.now) == exported
    restored.handle(cmd.Tick(), bench.now + 1)
    restored.handle(cmd.Release("a0"), bench.now + 1)
    assert restored.state.leases.keys() == {"a1", "a2"}


def test_w7_only_calls_have_a_session_and_it_has_no_budget(bench: Bench):
    with pytest.raises(BadRequest, match="kind requests"):
        bench.do(cmd.SetRule(Rule("agents", "session", cap=1)))
    with pytest.raises(BadRequest, match="no budget"):
        bench.do(cmd.SetBudget(BudgetRule("session", "calls", 1, "day")))
