"""`adapt` learns how long a provider counts a call that is over, from above (rules P4, K1)."""

from __future__ import annotations

from itertools import pairwise

import pytest

from fleetgate.core.limits import AdaptiveLimit
from fleetgate.core.limits.adaptive_state import Belief
from fleetgate.core.limits.adaptive_tuning import (
    CLEAN,
    CLEAN_SHORTENED,
    CLEAN_SMALL,
    DROP,
    LAG_PART,
    LARGE,
    LONG_MS,
    MOST_LAG_MS,
    USUAL_LAG_MS,
)
from fleetgate.core.state.state import State
from tests.unit.test_core_adaptive_limit import START, Calls

LEVEL = 40


class Edge:
    """An adaptive limit at which slots are granted again as soon as the lag allows."""

    def __init__(
        self, *, apart_ms: int = 100, fixed_lag_ms: int | None = None, level: int = LEVEL, **believed: int
    ) -> None:
        self.level = level
        belief = Belief()
        belief.limit = belief.proven = level
        belief.proven_at, belief.hold_ms, belief.gap_ms = START, 1_000, 16 * apart_ms
        belief.last_at = START - 60_000  # something was refused before
        for name, value in believed.items():
            setattr(belief, name, value)
        self.adapt = AdaptiveLimit(belief)
        self.adapt.configure(level, explore=False, fixed_lag_ms=fixed_lag_ms)
        self.now = START
        self.sent = 0

    @property
    def belief(self) -> Belief:
        return self.adapt.belief

    def send(self) -> str:
        """A slot whose lag is just over is granted again."""
        self.sent += 1
        self.now += 1_000
        self.belief.freed = [(self.now - self.adapt.lag_ms, 1)]
        self.adapt.sync_calls({"other": self.level - 1}, self.now)
        self.adapt.admitted(f"c{self.sent}", self.level, self.now, self.level - 1)
        return f"c{self.sent}"

    def accept(self, times: int = 1) -> None:
        for _ in range(times):
            self.adapt.accepted(self.send(), self.now)

    def refuse(self) -> str:
        ident = self.send()
        verdict = self.adapt.verdict(ident, self.adapt.limit, self.now)
        self.adapt.refused(ident, verdict, self.now)
        return verdict.why


@pytest.mark.parametrize(("apart_ms", "step_ms"), [(100, 2 * 100), (300, 2 * 300), (1_000, MOST_LAG_MS // 4)])
def test_p4_a_shorter_lag_is_tried_after_enough_clean_grants_in_steps_that_free_about_two_slots(
    apart_ms: int, step_ms: int
) -> None:
    edge = Edge(apart_ms=apart_ms)
    edge.accept(CLEAN - 1)
    assert edge.adapt.lag_ms == MOST_LAG_MS
    edge.accept()
    assert edge.adapt.lag_ms == MOST_LAG_MS - step_ms
    edge.accept(CLEAN)
    assert edge.adapt.lag_ms < MOST_LAG_MS - step_ms


def test_p4_a_shorter_lag_has_held_for_twice_its_time_before_the_next_step() -> None:
    edge = Edge()
    edge.accept(CLEAN)
    shortened, at = edge.adapt.lag_ms, edge.now
    edge.belief.clean = CLEAN
    edge.now = at + 2 * shortened - 1_001  # a call is sent a second later
    edge.accept()
    assert edge.adapt.lag_ms == shortened
    edge.now = at + 2 * shortened - 1_000
    edge.accept()
    assert edge.adapt.lag_ms < shortened


def test_p4_a_grant_below_the_limit_or_long_after_a_release_says_nothing_of_the_lag() -> None:
    edge = Edge()
    edge.accept(CLEAN - 1)
    edge.now += 1_000
    edge.adapt.admitted("below", LEVEL - 1, edge.now, LEVEL - 2)
    edge.adapt.accepted("below", edge.now)
    edge.belief.freed = []
    edge.adapt.admitted("late", LEVEL, edge.now, LEVEL - 1)
    edge.adapt.accepted("late", edge.now)
    assert (edge.belief.clean, edge.adapt.lag_ms) == (CLEAN - 1, MOST_LAG_MS)


def test_p4_a_refusal_soon_after_the_lag_was_shortened_lengthens_it_again_and_does_not_cut_the_limit() -> None:
    edge = Edge()
    edge.accept(CLEAN)
    shortened = edge.adapt.lag_ms
    edge.accept(3)
    assert edge.refuse() == "lag"
    assert (edge.adapt.limit, edge.adapt.lag_ms, edge.belief.proven) == (LEVEL, MOST_LAG_MS, LEVEL)
    assert edge.belief.lag_low == shortened
    assert edge.adapt.lag_is_learned


@pytest.mark.parametrize(("clean", "why"), [(CLEAN_SHORTENED - 1, "lag"), (CLEAN_SHORTENED, "drop")])
def test_p4_a_refusal_long_after_the_lag_was_shortened_means_that_the_limit_has_fallen(clean: int, why: str) -> None:
    edge = Edge(lag_ms=1_000, lag_was=1_200, lag_low=950, lag_at=START)  # a shorter one is of no use
    edge.accept(clean)
    assert edge.refuse() == why
    part, whole = DROP
    cut = (LEVEL, 1_200) if why == "lag" else (LEVEL * part // whole, 1_000)
    assert (edge.adapt.limit, edge.adapt.lag_ms) == cut


def test_p4_the_lag_is_searched_between_one_that_was_refused_and_one_that_works_until_that_is_of_no_use() -> None:
    low, high = 600, 2_000
    edge = Edge(lag_ms=high, lag_low=low, lag_at=START - 60_000, apart_ms=5_000)
    edge.accept(CLEAN)
    assert edge.adapt.lag_ms == (low + high) // 2
    while True:
        before = edge.adapt.lag_ms
        edge.now += 60_000
        edge.accept(CLEAN)
        if edge.adapt.lag_ms == before:
            break
        assert low < edge.adapt.lag_ms < before
    assert (before - low) * LAG_PART <= edge.belief.hold_ms + before


def test_k1_a_lag_that_a_person_set_is_neither_shortened_nor_lengthened() -> None:
    edge = Edge(fixed_lag_ms=700)
    edge.accept(CLEAN)
    assert edge.adapt.lag_ms == 700
    edge.belief.clean = 0
    assert edge.refuse() == "drop"
    assert edge.adapt.lag_ms == 700


def test_k1_an_assumed_lag_depends_on_how_long_calls_take_and_a_restored_snapshot_has_the_same_in_force() -> None:
    calls = Calls(short=True)
    assert calls.pool.cooldown_ms == USUAL_LAG_MS, "nothing was refused yet"
    calls.believe(last_at=START)
    seen = []
    for held_ms in [100] * 3 + [10_000] * 12 + [100] * 12:
        ident = calls.call()
        calls.wait(held_ms)
        calls.end(ident)
        restored = State.restore(calls.engine.state.export(calls.now)).named("requests", "umans")
        replica = calls.replica.state.named("requests", "umans")
        assert restored is not None
        assert replica is not None
        assert calls.pool.cooldown_ms == restored.cooldown_ms == replica.cooldown_ms
        assert calls.pool.cooldown_ms == (USUAL_LAG_MS if calls.belief.hold_ms >= LONG_MS else MOST_LAG_MS)
        seen.append(calls.pool.cooldown_ms)
        calls.wait(5_000)
    changes = [after for before, after in pairwise(seen) if before != after]
    assert (seen[0], changes) == (MOST_LAG_MS, [USUAL_LAG_MS, MOST_LAG_MS])


def test_k1_a_learned_lag_stays_however_long_calls_take_and_a_restored_snapshot_has_it_in_force() -> None:
    calls = Calls(short=True)
    calls.believe(lag_ms=1_300, lag_at=START)
    for held_ms in (100, 60_000, 60_000, 60_000):
        ident = calls.call()
        calls.wait(held_ms)
        calls.end(ident)
        restored = State.restore(calls.engine.state.export(calls.now)).named("requests", "umans")
        assert restored is not None
        assert calls.pool.cooldown_ms == restored.cooldown_ms == 1_300


def test_k1_where_the_provider_tells_its_count_the_usual_lag_is_assumed_for_short_calls_too() -> None:
    for gated, lag_ms in ((True, USUAL_LAG_MS), (False, MOST_LAG_MS)):
        calls = Calls(short=True, usage_gate=gated)
        calls.believe(last_at=START)
        assert calls.pool.cooldown_ms == lag_ms


@pytest.mark.parametrize(("held_ms", "why"), [(1_000, "lag"), (LONG_MS, "drop")])
def test_p4_the_first_refusal_of_short_calls_begins_the_search_for_the_lag_and_cuts_nothing(
    held_ms: int, why: str
) -> None:
    edge = Edge(apart_ms=1_000, last_at=0, hold_ms=held_ms, clean=CLEAN)
    assert edge.adapt.lag_ms == USUAL_LAG_MS
    assert edge.refuse() == why
    assert (edge.adapt.limit == LEVEL) == (why == "lag")
    assert edge.adapt.lag_ms == (MOST_LAG_MS if why == "lag" else USUAL_LAG_MS)
    assert edge.belief.proven == 0, "what was proven with another lag is not known"


def test_p4_in_a_small_pool_of_short_calls_fewer_clean_grants_shorten_the_lag_until_one_is_refused() -> None:
    edge = Edge(level=LARGE - 1, apart_ms=1_000)
    edge.accept(CLEAN_SMALL - 1)
    assert edge.adapt.lag_ms == MOST_LAG_MS
    edge.accept()
    shortened = edge.adapt.lag_ms
    assert shortened < MOST_LAG_MS
    assert edge.refuse() == "lag"
    edge.accept(CLEAN - 1)
    assert edge.adapt.lag_ms == MOST_LAG_MS
    edge.accept()
    assert shortened < edge.adapt.lag_ms < MOST_LAG_MS


def test_p4_in_a_small_pool_of_long_calls_the_lag_is_shortened_after_as_many_clean_grants_as_elsewhere() -> None:
    edge = Edge(level=LARGE - 1, apart_ms=1_000, hold_ms=LONG_MS, lag_at=START)
    edge.accept(CLEAN - 1)
    assert edge.adapt.lag_ms == MOST_LAG_MS
    edge.accept()
    assert edge.adapt.lag_ms < MOST_LAG_MS
