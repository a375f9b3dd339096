"""`adapt`: when a higher limit is tried, how the limit rises, and a limit that is met again (rule P4)."""

from __future__ import annotations

from itertools import pairwise
from math import isqrt

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core.entities import Rule
from fleetgate.core.limits import AdaptiveLimit, Verdict
from fleetgate.core.limits.adaptive_pace import plan_probe, settle
from fleetgate.core.limits.adaptive_state import Belief
from fleetgate.core.limits.adaptive_tuning import DROP, MARGIN, MOVED, PACE_MS, PRICE_S, STRIDE
from tests.unit.test_core_adaptive_limit import Calls

START = 1_000_000
HOUR_MS = 3_600_000


class Policy:
    """An adaptive limit of long calls that told a level before, and nothing that cools down."""

    def __init__(self, cap: int, level: int, refusals: str = "normal", **believed: int) -> None:
        belief = Belief()
        belief.limit, belief.proven, belief.proven_at, belief.began_at = level, level, START, START
        belief.hold_ms = 60_000
        for name, value in believed.items():
            setattr(belief, name, value)
        self.adapt = AdaptiveLimit(belief)
        self.adapt.configure(cap, explore=False, fixed_lag_ms=0, refusals=refusals)
        self.now = START
        self.sent = 0

    @property
    def belief(self) -> Belief:
        return self.adapt.belief

    def send(self, level: int) -> str:
        self.sent += 1
        self.now += 1_000
        self.adapt.admitted(f"c{self.sent}", level, self.now, level - 1)
        return f"c{self.sent}"

    def accept(self, level: int) -> int:
        """A call at this level is accepted; the limit after that."""
        ident = self.send(level)
        self.adapt.accepted(ident, self.now)
        del self.belief.calls[ident]
        return self.adapt.limit

    def refuse(self, level: int) -> Verdict:
        """A call at this level is refused while others are in flight."""
        self.adapt.sync_calls({"other": level - 1}, self.now)
        ident = self.send(level)
        verdict = self.adapt.verdict(ident, self.adapt.limit, self.now)
        self.adapt.refused(ident, verdict, self.now)
        self.adapt.released(ident, 1, "rate_limited", self.now)
        return verdict

    def wait_ms(self, now: int) -> int:
        """How long after `now` the next probe is planned."""
        plan_probe(self.adapt, now)
        return self.belief.next_probe - now


# When a higher limit is tried.


def test_p4_the_time_to_the_next_probe_grows_with_the_time_watched() -> None:
    policy = Policy(16, 8)
    waits = [policy.wait_ms(START + hours * HOUR_MS) for hours in (0, 1, 10, 100, 1_000)]
    assert waits == sorted(set(waits))
    assert waits[4] // waits[3] == 3  # with the square root


def test_p4_the_time_to_the_next_probe_falls_with_the_changes_seen() -> None:
    waits = [Policy(16, 8, changes=changes).wait_ms(START + HOUR_MS) for changes in (0, 1, 2, 4, 12)]
    assert waits == sorted(set(waits), reverse=True)
    assert waits[0] == pytest.approx(3 * waits[3], abs=5_000)  # nine half changes instead of one


def test_p4_a_cheap_refusal_probes_twice_as_often_as_a_normal_one_and_an_expensive_one_four_times_more_seldom() -> None:
    waits = {}
    for price in PRICE_S:
        calls = Calls(refusals=price)
        calls.prove(4)
        assert calls.refuse(calls.call()).why == "exact"
        waits[price] = calls.belief.next_probe - calls.now
    assert waits["normal"] == pytest.approx(2 * waits["cheap"], abs=2_000)
    assert waits["expensive"] == pytest.approx(4 * waits["normal"], abs=4_000)


def test_p4_a_pool_that_is_refused_before_it_admitted_a_call_itself_is_probed_as_soon_as_a_new_one() -> None:
    """The calls in flight are older than what is believed: as after a change of the policy, or an older snapshot."""
    young = Calls()
    young.prove(3)
    young.refuse(young.call())
    calls = Calls(on_429="step")
    first, *_ = [calls.ask() for _ in range(3)]
    calls.do(cmd.SetRule(Rule("requests", "umans", on_429="adapt")))
    assert calls.refuse(first).why == "drop"
    assert 0 < calls.belief.next_probe - calls.now <= young.belief.next_probe - young.now


@pytest.mark.parametrize(("found", "changes"), [(64, 0), (64 + 64 // MOVED, 0), (65 + 64 // MOVED, 1), (40, 1)])
def test_p4_a_limit_that_is_found_more_than_a_part_away_from_the_one_before_has_changed(
    found: int, changes: int
) -> None:
    belief = Belief()
    settle(belief, 64)
    assert belief.changes == 0  # the first one is no change
    settle(belief, found)
    assert (belief.settled, belief.changes) == (found, changes)


# How it rises.


def test_p4_an_accepted_probe_raises_the_limit_in_strides_that_double_until_the_cap() -> None:
    policy = Policy(cap=100, level=40, settled=40)
    limits = [policy.accept(41)]
    while limits[-1] < 100:
        limits.append(policy.accept(limits[-1]))
    strides = [after - before for before, after in pairwise([41, *limits])]
    assert strides[0] == 41 // STRIDE
    assert all(after == 2 * before for before, after in pairwise(strides[:-1]))
    assert len(strides) >= 4
    assert strides[-1] <= 2 * strides[-2]  # the rest of the way to the cap
    policy.accept(100)
    assert (policy.adapt.limit, policy.belief.stride, policy.belief.settled) == (100, 0, 100)
    assert policy.belief.changes == 1


def test_p4_a_level_that_is_refused_on_the_way_up_ends_the_rise_a_little_below_it() -> None:
    policy = Policy(cap=1_000, level=40)
    limit = policy.accept(41)
    policy.accept(limit)
    assert policy.belief.stride
    level = policy.belief.proven - policy.belief.ahead + 1
    assert policy.refuse(level).why == "exact"
    assert policy.adapt.limit == level - 1 - level // MARGIN
    assert policy.belief.stride == 0
    assert policy.accept(policy.adapt.limit) == level - 1 - level // MARGIN


def test_p4_the_climb_after_a_drop_stops_just_below_the_level_that_was_refused() -> None:
    policy = Policy(cap=100, level=64)
    assert policy.refuse(64).why == "drop"
    limits = [policy.adapt.limit]
    assert limits == [64 * DROP[0] // DROP[1]]
    while policy.belief.stride:
        limits.append(policy.accept(limits[-1]))
    assert limits[-1] == 64 - 1 - 64 // MARGIN
    assert limits[:-1] == sorted(set(limits[:-1]))
    assert policy.belief.next_probe > policy.now
    assert policy.accept(limits[-1]) == limits[-1]


# A limit that is met again.


def test_p4_a_limit_that_is_met_again_is_cut_by_a_growing_margin_and_not_by_a_quarter() -> None:
    policy = Policy(cap=1_000, level=256, settled=256)
    cuts, changes = [], []
    for _ in range(3):
        level = policy.adapt.limit
        policy.accept(level)
        verdict = policy.refuse(level)
        assert (verdict.why, verdict.level) == ("again", level)
        cuts.append((level - policy.adapt.limit) / level)
        changes.append(policy.belief.changes)
    part, whole = DROP
    assert cuts == sorted(set(cuts))
    assert cuts[-1] < 1 - part / whole
    assert changes[:2] == [0, 0]  # it has not moved


def test_p4_a_limit_that_is_met_far_from_the_one_found_before_or_twice_in_a_row_has_fallen() -> None:
    far = Policy(cap=1_000, level=256, settled=200)
    assert far.refuse(256).why == "drop"
    twice = Policy(cap=1_000, level=256, settled=256)
    assert twice.refuse(256).why == "again"
    twice.belief.proven = twice.adapt.limit
    assert twice.refuse(twice.adapt.limit).why == "drop"


def test_p4_a_level_above_the_limit_that_works_takes_back_a_part_of_the_margin() -> None:
    policy = Policy(cap=1_000, level=256, settled=256)
    policy.refuse(256)
    assert policy.belief.again == 1
    policy.accept(policy.adapt.limit + 1)
    assert policy.belief.again == 0


# After a refusal.


def test_p4_after_a_refusal_calls_of_proven_levels_above_those_accepted_since_are_sent_at_a_pace() -> None:
    policy = Policy(cap=100, level=40)
    assert policy.adapt.admits_at(30, 40, policy.now, 29) == 0  # nothing was refused yet
    assert policy.refuse(41).why == "probe"
    assert policy.belief.proven == 40
    policy.send(10)
    assert policy.adapt.admits_at(11, 40, policy.now, 10) == policy.now + PACE_MS // isqrt(11)
    assert not policy.adapt.admits(30, 40, policy.now, 29)
    policy.accept(30)
    assert policy.adapt.admits(30, 40, policy.now, 29)
    assert not policy.adapt.admits(31, 40, policy.now, 30)
