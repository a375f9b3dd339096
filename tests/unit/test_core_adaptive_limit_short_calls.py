"""`adapt` where calls are short: slots cool down nearly always (rule P4; docs/adaptive-limits.md, "Short calls")."""

from __future__ import annotations

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core.limits.adaptive_tuning import (
    FRESH_MS,
    HASTE_MS,
    MOST_LAG_MS,
    REORDER_MS,
    SHORT_HASTE_MS,
    SHORT_MS,
    USUAL_LAG_MS,
)
from tests.unit.test_core_adaptive_limit import START, Calls

CALL_MS = 100


class Short(Calls):
    """A line of calls of 100 ms, as if their lag had been learned."""

    def __init__(self, cap: int = 20, waiting: int = 60, lag_ms: int = USUAL_LAG_MS, **said: object) -> None:
        super().__init__(cap, short=True, **said)
        self.believe(lag_ms=lag_ms, lag_at=START)
        self.line = [self.ask() for _ in range(waiting)]

    def in_flight(self) -> list[str]:
        return list(self.engine.state.leases)

    def round(self) -> int:
        """All that is in flight ends well at once, and cools down; how many are sent then?"""
        self.wait(CALL_MS)
        for ident in self.in_flight():
            self.end(ident)
        if self.in_flight():  # one more, while all are surely counted
            self.wait(FRESH_MS + 1)
            self.end(self.in_flight()[0])
        self.wait(self.adapt.lag_ms)
        return len(self.in_flight())


def test_p4_short_calls_are_sent_together_with_one_more_as_soon_as_nothing_cools_down() -> None:
    calls = Short()
    sizes = [calls.round() for _ in range(6)]
    assert sizes == [3, 5, 7, 9, 11, 13]
    assert calls.now < calls.engine.state.leases[calls.in_flight()[0]].granted_at + 5_000


def test_p4_at_most_one_short_call_is_unproven() -> None:
    calls = Short()
    for _ in range(5):
        assert calls.round() == calls.belief.proven + 1
        assert calls.belief.calls[calls.belief.unproven].level == calls.belief.proven + 1


def test_p4_one_program_that_calls_again_and_again_does_not_wait_for_the_cooldown() -> None:
    calls = Short(waiting=0)
    calls.end(calls.call())
    again = calls.ask()
    assert calls.admitted(again)  # the provider surely still counts the first: a level of 2
    calls.wait(CALL_MS)
    calls.end(again)
    assert calls.belief.proven == 2


def test_p4_levels_are_not_proven_by_slots_that_cool_down_far_above_those_in_flight() -> None:
    """A provider that forgets a call at once has then seen one at a time."""
    calls = Short(waiting=0)
    for _ in range(4):
        calls.end(calls.call())
    assert calls.belief.proven == 4
    assert calls.belief.firm == 1
    assert not calls.admitted(calls.ask())


def test_p4_what_cools_down_and_may_be_forgotten_is_waited_for() -> None:
    calls = Short(waiting=1)
    calls.wait(CALL_MS)
    calls.end(calls.in_flight()[0])
    calls.wait(FRESH_MS + 1)
    second = calls.ask()
    assert not calls.admitted(second)
    calls.let_in(second)
    assert calls.belief.calls[second].level == 1  # when nothing cooled down any more


def test_p4_proven_levels_wait_for_the_round_while_short_calls_climb() -> None:
    calls = Short()
    calls.round()
    assert calls.round() == 5
    calls.wait(CALL_MS)
    five = calls.in_flight()
    for ident in five[2:]:
        calls.end(ident)
    calls.wait(2 * FRESH_MS)
    for ident in five[:2]:
        calls.end(ident)
    calls.wait(USUAL_LAG_MS - 2 * FRESH_MS)
    assert calls.pool.cooldown.slots + 1 <= calls.belief.proven
    assert calls.in_flight() == []
    calls.wait(2 * FRESH_MS)
    assert len(calls.in_flight()) == 6


def test_p4_nobody_waits_for_a_round_when_no_higher_level_was_tried_lately() -> None:
    calls = Short(waiting=0)
    three = calls.prove(3)
    calls.wait(2 * SHORT_HASTE_MS)
    for ident in three:
        calls.end(ident)
    calls.believe(hold_ms=CALL_MS)
    calls.wait(USUAL_LAG_MS)
    calls.end(calls.call())
    calls.wait(FRESH_MS + 1)
    assert calls.pool.cooldown.slots == 1
    assert calls.admitted(calls.ask())


def test_p4_a_short_call_is_not_held_for_a_moment_that_does_not_come() -> None:
    calls = Short(waiting=0)
    calls.prove(2)
    calls.believe(hold_ms=CALL_MS)
    third = calls.ask()
    tried_at = calls.belief.tried_at
    while not calls.admitted(third):  # something cools down all the time
        calls.end(calls.in_flight()[0])
        calls.wait(10)
        calls.ids += 1
        calls.do(cmd.Acquire(f"c{calls.ids}", calls.engine.state.tickets[third].spec, "p", priority=9))
        calls.wait(200)
        assert calls.now < tried_at + HASTE_MS
    assert calls.now >= tried_at


def test_p4_an_unproven_short_call_waits_until_what_was_sent_was_accepted() -> None:
    calls = Short(waiting=0)
    calls.prove(3)
    calls.believe(hold_ms=CALL_MS)
    first, *_ = calls.in_flight()
    calls.end(first)
    calls.wait(USUAL_LAG_MS)
    third = calls.ask()
    assert calls.admitted(third)
    calls.wait(REORDER_MS // 2)
    fourth = calls.ask()
    assert not calls.admitted(fourth)  # the third may still be refused
    calls.end(third)
    assert calls.admitted(fourth)  # it was not


def test_p4_a_refusal_of_one_sent_with_the_call_that_tried_a_level_means_that_level() -> None:
    calls = Short()
    calls.round()
    assert calls.round() == 5
    *first, tried = calls.in_flight()
    calls.wait(CALL_MS)
    calls.end(tried)  # came before another of them, and "proved" five
    assert calls.belief.proven == 5
    refused = calls.refuse(first[0])
    assert (refused.why, refused.level, refused.limit) == ("exact", 5, 4)
    assert calls.belief.proven == 4


def test_p4_of_calls_sent_together_as_many_are_possible_as_were_accepted() -> None:
    calls = Short()
    for _ in range(3):
        calls.round()
    calls.believe(clean=99)
    seven = calls.in_flight()
    assert len(seven) == 7
    refused = [calls.refuse(ident) for ident in (seven[6], seven[0], seven[3])]
    assert [each.why for each in refused] == ["exact", "fit", "fit"]
    assert calls.pool.limit == 4


def test_p4_short_calls_that_are_counted_for_long_do_not_cut_below_what_was_in_flight_at_once() -> None:
    """In each round the provider still counts the one before."""
    calls = Short()
    for _ in range(3):
        calls.round()
    seven = calls.in_flight()
    for ident in seven:
        calls.refuse(ident)
    assert calls.belief.firm == 5
    assert calls.pool.limit == 5


@pytest.mark.parametrize("lag_ms", [USUAL_LAG_MS, MOST_LAG_MS])
def test_p4_rounds_of_short_calls_grow_one_unproven_call_at_a_time_whatever_the_lag(lag_ms: int) -> None:
    calls = Short(lag_ms=lag_ms)
    sizes = []
    for _ in range(6):
        sizes.append(calls.round())
        assert sum(call.bold and not call.decided for call in calls.belief.calls.values()) <= 1
    assert sizes == sorted(set(sizes))
    assert sizes[-1] >= 10


def test_p4_a_single_long_call_does_not_make_short_ones_long() -> None:
    calls = Short(waiting=0)
    for _ in range(30):
        calls.end(calls.call())
    long = calls.call()
    calls.wait(3_600_000)
    calls.end(long)
    assert calls.belief.hold_ms < SHORT_MS
