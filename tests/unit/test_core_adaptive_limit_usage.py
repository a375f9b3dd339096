"""`adapt` with a usage gate (rules G1-G3, P4; docs/adaptive-limits.md): the provider's count tells a call's level."""

from __future__ import annotations

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Spec
from fleetgate.core.limits import AdaptiveLimit, Verdict
from fleetgate.core.limits.adaptive_lag import ghosts_at
from fleetgate.core.limits.adaptive_tuning import LOOK_MS, REORDER_MS
from fleetgate.core.pools.pool import SHORT_MS
from fleetgate.core.pools.usage_gate import ANSWER_MS, APART_MS
from fleetgate.core.views.limit_explanation import explain
from tests.unit.test_core_adaptive_limit import AFTER_A_DROP, START, Calls

SPEC = Spec(models=("umans/coder",), kind="requests")


class Gated(Calls):
    """Calls of a process that can ask the provider."""

    def __init__(self, cap: int = 2, **said: object) -> None:
        super().__init__(cap, short=False, usage_gate=True, **said)

    def line_up(self) -> str:
        self.ids += 1
        self.do(cmd.Acquire(f"w{self.ids}", SPEC, "p", asks=("umans",)))
        return f"w{self.ids}"

    def question(self) -> bool:
        return any(isinstance(event, ev.UsageAsked) for event in self.do(cmd.AskUsage("requests", "umans", "p")))

    def answer(self, count: int | None, error: str = "") -> list[str]:
        """Who enters by it."""
        events = self.do(cmd.AnswerUsage("requests", "umans", "p", count, error))
        return [event.id for event in events if isinstance(event, ev.Granted)]

    def full(self, level: int = 2) -> list[str]:
        """So many proven calls, which began a while ago."""
        calls = self.prove(level)
        self.wait(20_000)
        return calls


def test_g1_a_slot_that_cools_here_is_lent_when_the_provider_no_longer_counts_it() -> None:
    calls = Gated()
    one, _ = calls.full()
    calls.believe(lag_ms=2_000)
    waiter = calls.line_up()
    calls.wait(1_000)
    calls.end(one)
    calls.wait(400)
    assert (calls.pool.occupied(calls.now), calls.question()) == (2, True)
    assert calls.answer(1) == [waiter]
    assert calls.belief.calls[waiter].level == 2


def test_g1_a_refusal_of_a_call_whose_level_was_counted_is_not_taken_for_lag() -> None:
    calls = Gated()
    one, _ = calls.full()
    waiter = calls.line_up()
    calls.end(one)
    calls.wait(700)
    assert ghosts_at(calls.adapt, calls.now) == (1, 700)
    assert calls.question()
    assert calls.answer(1) == [waiter]
    assert calls.belief.calls[waiter].ghosts == 0
    assert calls.refuse(waiter).why == "drop"


def test_g1_a_counted_level_that_is_not_proven_is_tried_when_the_last_call_has_arrived() -> None:
    adapt = Gated().adapt
    adapt.belief.proven, adapt.belief.proven_at, adapt.belief.sent_at = 1, START, START
    assert not adapt.admits(2, 2, START + REORDER_MS - 1, counted=True)
    assert adapt.admits(2, 2, START + REORDER_MS, counted=True)


def test_g1_the_level_is_what_the_provider_counts_neighbours_included() -> None:
    calls = Gated(cap=4)
    calls.full(2)
    calls.prove(3)
    waiter = calls.line_up()
    assert calls.question()
    assert calls.answer(4) == []
    calls.wait(1_000)
    assert calls.question()
    assert calls.answer(3) == [waiter]
    assert calls.belief.calls[waiter].level == 4
    assert calls.belief.unproven == waiter


def test_explain_tells_that_the_providers_own_count_lets_in() -> None:
    calls = Gated()
    calls.full()
    assert "own count" not in explain(calls.pool, calls.now).sentences[-1]
    calls.line_up()
    assert explain(calls.pool, calls.now).sentences[-1].endswith("it is unknown now.")
    assert calls.question()
    calls.answer(2)
    assert explain(calls.pool, calls.now).sentences[-1].endswith("own count, not by ours; it is 2 now.")


def test_a1_a_count_below_our_own_does_not_let_in_more_than_the_limit() -> None:
    calls = Gated()
    calls.full()
    calls.line_up()
    assert calls.question()
    assert calls.answer(0) == []


def test_g1_what_was_lent_since_the_question_was_asked_is_added_to_its_answer() -> None:
    calls = Gated()
    one, _ = calls.full()
    first = calls.line_up()
    calls.end(one)
    assert calls.question()
    calls.do(cmd.Cancel(first))
    calls.wait(600)
    newcomer = calls.ask()
    assert calls.admitted(newcomer), "no call waits: not gated"
    second = calls.line_up()
    calls.wait(1_000)
    calls.end(newcomer)
    assert calls.answer(1) == []
    assert calls.pool.usage_gate.count == 1
    calls.wait(600)
    assert calls.question()
    assert calls.answer(1) == [second]


def test_g3_questions_are_half_a_second_apart_where_levels_are_learned() -> None:
    calls = Gated()
    one, two = calls.full()
    calls.line_up()
    asked = calls.now
    assert calls.question()
    calls.answer(2)
    calls.wait(100)
    calls.end(one)
    calls.end(two)
    assert not calls.question()
    assert calls.engine.next_deadline() == asked + APART_MS
    calls.wait(APART_MS - 100)
    assert calls.question()


@pytest.mark.parametrize(("held_ms", "gated"), [(SHORT_MS - 100, False), (SHORT_MS + 100, True)])
def test_g1_short_calls_are_not_gated_where_levels_are_learned(held_ms: int, gated: bool) -> None:
    calls = Gated()
    for _ in range(9):
        ident = calls.call()
        calls.wait(held_ms)
        calls.end(ident)
    calls.full()
    calls.line_up()
    assert calls.pool.gated == gated
    assert calls.question() == gated


def test_g1_where_slots_are_given_back_more_often_than_answers_come_there_is_no_gate() -> None:
    calls = Gated(cap=50)
    calls.line_up()
    for engine in (calls.engine, calls.replica):
        pool = engine.state.pools["requests umans"]
        pool.hold_times.count, pool.hold_times.mean_ms, pool.usage_gate.askers = 9, 20_000, 1
        before = pool.gated
        pool.hold_times.mean_ms = 40_000
        assert (before, pool.gated) == (False, True)
        pool.hold_times.count, pool.hold_times.mean_ms, pool.usage_gate.askers = 0, 0, 0


# After a refusal, look again.


def refused_at_the_edge(calls: Gated) -> str:
    """A try at 3 is refused, and a call waits."""
    calls.full(2)
    bold = calls.call()
    waiter = calls.line_up()
    assert calls.refuse(bold, 0).why == "exact"
    assert calls.pool.limit == 2
    return waiter


def test_g1_a_try_that_a_neighbour_made_fail_cuts_nothing() -> None:
    calls = Gated(cap=4)
    refused_at_the_edge(calls)
    assert calls.question()
    calls.answer(4)
    assert (calls.pool.limit, calls.belief.failed, calls.belief.next_probe) == (4, 0, 0)
    assert calls.belief.last_why == "neighbour"


@pytest.mark.parametrize(("ours", "count", "limit"), [(0, 6, 6), (0, 2, 2), (0, 99, 8), (1, 6, 2)])
def test_g1_a_limit_below_what_neighbours_alone_have_in_flight_is_raised_when_nothing_of_ours_is(
    ours: int, count: int, limit: int
) -> None:
    policy = AdaptiveLimit()
    policy.configure(8, explore=False, fixed_lag_ms=None, gated=True)
    policy.admitted("refused", 3, 1_000)
    policy.refused("refused", Verdict("exact", 3, 2, 0), 1_100)
    policy.released("refused", 1, "rate_limited", 1_100)
    for number in range(ours):
        policy.admitted(str(number), number + 1, 2_000)
    policy.answered(count, 30_000, 29_900)
    assert policy.limit == limit


@pytest.mark.parametrize(("count", "failed"), [(6, 7), (7, 0)])
def test_g1_a_refused_level_that_neighbours_have_in_flight_is_no_bound_any_more(count: int, failed: int) -> None:
    policy = AdaptiveLimit()
    policy.configure(8, explore=False, fixed_lag_ms=None, gated=True)
    policy.admitted("refused", 7, 1_000)
    policy.refused("refused", Verdict("drop", 7, 5, 0), 1_100)
    policy.released("refused", 1, "rate_limited", 1_100)
    policy.answered(count, 30_000, 29_900)
    assert (policy.limit, policy.belief.failed) == (count, failed)


def test_g1_a_drop_that_a_neighbour_caused_is_none() -> None:
    calls = Gated(cap=8)
    calls.dropped(8)
    calls.line_up()
    assert calls.pool.limit == AFTER_A_DROP
    assert calls.question()
    calls.answer(9)
    assert (calls.pool.limit, calls.belief.proven, calls.belief.failed, calls.belief.next_probe) == (8, 8, 0, 0)


@pytest.mark.parametrize("count", [2, 3])
def test_g1_a_count_below_the_limit_leaves_the_cut(count: int) -> None:
    calls = Gated(cap=4)
    refused_at_the_edge(calls)
    assert calls.question()
    calls.answer(count)
    assert calls.pool.limit == 2
    calls.wait(1_000)
    assert calls.question()
    calls.answer(9)
    assert calls.pool.limit == 2, "it was looked at once"


def test_g1_an_answer_that_was_asked_for_before_the_refusal_or_is_unknown_tells_nothing() -> None:
    calls = Gated(cap=4)
    calls.full(2)
    bold = calls.call()
    calls.line_up()
    assert calls.question()
    calls.wait(50)
    calls.refuse(bold, 0)
    calls.answer(9)
    assert calls.pool.limit == 2
    calls.wait(1_000)
    assert calls.question()
    calls.answer(None, "status 500")
    assert calls.pool.limit == 2
    calls.wait(1_000)
    assert calls.question()
    calls.answer(9)
    assert calls.pool.limit == 4


def test_g1_an_answer_that_comes_too_late_tells_nothing() -> None:
    calls = Gated(cap=4)
    refused_at_the_edge(calls)
    calls.wait(LOOK_MS - ANSWER_MS)
    calls.wait(ANSWER_MS)
    assert calls.question()
    calls.answer(9)
    assert calls.pool.limit == 2


def test_g1_what_was_planned_before_the_cut_is_planned_again() -> None:
    calls = Gated(cap=8)
    calls.dropped(8)
    before = calls.belief.next_probe
    assert (calls.pool.limit, calls.belief.failed) == (AFTER_A_DROP, 8)
    calls.wait(3_000)
    while calls.pool.used:
        calls.end(next(iter(calls.engine.state.leases)))
    calls.wait(3_000)
    calls.prove(2)
    calls.wait(3_000)
    bold, limit = calls.call(), calls.pool.limit
    calls.line_up()
    assert calls.refuse(bold, 0).why == "exact"
    assert calls.pool.limit == 2 < limit
    assert calls.question()
    calls.answer(8)
    assert (calls.pool.limit, calls.belief.failed, calls.belief.next_probe) == (limit, 8, before)
