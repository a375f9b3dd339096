"""`adapt` with a usage gate (rules G1-G3, P4; docs/usage-gate.md): the provider's count moves the limit."""

from __future__ import annotations

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Spec
from fleetgate.core.pools.usage_gate import APART_MS
from fleetgate.core.views.limit_explanation import explain
from tests.unit.test_core_adaptive_limit import Calls

SPEC = Spec(models=("umans/coder",), kind="requests")


class Gated(Calls):
    """Calls of a process that can ask the provider."""

    def __init__(self, cap: int = 2, **said: object) -> None:
        super().__init__(cap, usage_gate=True, **said)

    def line_up(self) -> str:
        self.ids += 1
        self.do(cmd.Acquire(f"w{self.ids}", SPEC, "p", asks=("umans",)))
        return f"w{self.ids}"

    def question(self) -> bool:
        return any(isinstance(event, ev.UsageAsked) for event in self.do(cmd.AskUsage("requests", "umans", "p")))

    def answer(self, count: int | None, error: str = "") -> None:
        self.do(cmd.AnswerUsage("requests", "umans", "p", count, error))


def test_g1_where_the_limit_is_learned_no_call_waits_for_an_answer() -> None:
    calls = Gated()
    one, _ = calls.prove(2)
    calls.wait(20_000)
    waiter = calls.line_up()
    assert calls.question()
    calls.end(one)
    calls.wait(600)
    assert calls.lent(waiter)


def test_g3_questions_are_half_a_second_apart_where_the_limit_is_learned() -> None:
    calls = Gated()
    one, _ = calls.prove(2)
    calls.wait(20_000)
    calls.line_up()
    calls.line_up()
    assert calls.question()
    calls.answer(2)
    calls.end(one)
    assert not calls.question()
    calls.wait(APART_MS)
    assert calls.question()


def test_g1_a_neighbour_who_leaves_makes_room_without_a_probe() -> None:
    calls = Gated(cap=4)
    calls.prove(2)
    assert calls.refuse(calls.call()).why == "exact"
    assert calls.pool.limit == 2
    calls.wait(60_000)
    calls.line_up()
    for count in (4, 4, 4, 3, 3):
        calls.wait(1_000)
        assert calls.question()
        calls.answer(count)
    assert calls.pool.limit == 3
    calls.wait(1_000)
    assert calls.pool.used == 3


def test_explain_tells_what_the_provider_counts() -> None:
    calls = Gated()
    calls.prove(2)
    calls.wait(20_000)
    calls.line_up()
    calls.question()
    calls.answer(2)
    assert "The provider itself counts 2" in explain(calls.pool, calls.now).sentences[-1]
