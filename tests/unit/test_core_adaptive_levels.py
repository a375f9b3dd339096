"""`adapt` where limits are large: a part of the proven level is tried ahead, at a pace (rule P4)."""

from __future__ import annotations

from itertools import accumulate
from math import isqrt

import pytest

from fleetgate.core.limits import NEVER, AdaptiveLimit
from fleetgate.core.limits.adaptive_tuning import LARGE, MARGIN, PACE_MS, PART, PROOF_MS
from fleetgate.simulate.runs import SimulationRun, one
from fleetgate.simulate.scenario import Project, ProviderScenario, Scenario

START = 1_000_000


class Climb:
    """A pool in which nothing ends: each call is sent as soon as it may be."""

    def __init__(self, cap: int) -> None:
        self.adapt = AdaptiveLimit()
        self.adapt.configure(cap, explore=False, fixed_lag_ms=0)
        self.adapt.belief.hold_ms = 60_000
        self.now = START
        self.sent = 0

    def may_send_at(self) -> int:
        return self.adapt.admits_at(self.sent + 1, self.adapt.limit, self.now, self.sent)

    def send(self) -> str:
        """Send the next call when it may be sent."""
        moment = self.may_send_at()
        assert moment < NEVER
        self.now = max(self.now, moment)
        self.sent += 1
        self.adapt.admitted(f"c{self.sent}", self.sent, self.now, self.sent - 1)
        return f"c{self.sent}"

    def to(self, level: int) -> None:
        """Climb to a level at which all are accepted, one after the other."""
        while self.sent < level:
            self.adapt.accepted(self.send(), self.now)

    def refuse(self, ident: str) -> tuple[str, int]:
        verdict = self.adapt.verdict(ident, self.adapt.limit, self.now)
        self.adapt.refused(ident, verdict, self.now)
        self.adapt.released(ident, 1, "rate_limited", self.now)
        self.sent -= 1
        return verdict.why, verdict.limit


def test_p4_up_to_a_small_level_nothing_is_tried_ahead() -> None:
    climb = Climb(cap=1_000)
    climb.to(LARGE - 1)
    assert (climb.adapt.belief.proven, climb.adapt.belief.ahead) == (LARGE - 1, 0)
    assert climb.send() == climb.adapt.belief.unproven
    assert climb.may_send_at() == NEVER


def test_p4_from_a_large_level_on_a_part_is_tried_at_a_pace_before_the_last_call_is_decided() -> None:
    climb = Climb(cap=1_000)
    climb.to(LARGE - 1)
    assert climb.adapt.belief.ahead == 0
    climb.to(LARGE)
    assert climb.adapt.belief.ahead == 1
    climb.adapt.belief.proven, climb.adapt.belief.ahead = 100, 0
    climb.sent = 100
    climb.adapt.accepted(climb.send(), climb.now)
    belief = climb.adapt.belief
    ahead = (101 - LARGE) // PART + 1  # a part of what is above LARGE, and one
    top = 101 + ahead
    assert (belief.proven, belief.ahead) == (top, ahead)
    began = climb.now
    tries = [climb.send() for _ in range(ahead)]
    assert climb.now - began == sum(PACE_MS // isqrt(level) for level in range(102, top + 1))
    assert climb.may_send_at() == NEVER  # the top one has to be decided first
    climb.adapt.accepted(tries[0], climb.now)
    assert (belief.proven, belief.ahead, belief.unproven) == (top, ahead - 1, tries[-1])
    climb.adapt.accepted(tries[-1], climb.now)
    assert belief.proven - belief.ahead == top
    assert climb.may_send_at() < NEVER


def test_p4_a_refused_call_that_was_tried_ahead_tells_the_limit_and_the_rest_only_fits() -> None:
    climb = Climb(cap=1_000)
    climb.to(LARGE)
    climb.adapt.belief.proven, climb.adapt.belief.ahead, climb.sent = 100, 0, 100
    climb.adapt.accepted(climb.send(), climb.now)
    tries = [climb.send() for _ in range(4)]
    limit = 103 - 1 - 103 // MARGIN  # a little below the level that was refused
    assert climb.refuse(tries[1]) == ("exact", limit)
    assert climb.refuse(tries[3])[0] == "fit"
    belief = climb.adapt.belief
    assert (climb.adapt.limit, belief.proven, belief.ahead, belief.failed) == (limit, limit, 0, 103)


def test_p4_nothing_is_tried_ahead_at_a_level_that_was_refused_or_after_a_drop_or_on_an_old_proof() -> None:
    climb = Climb(cap=1_000)
    climb.to(LARGE)
    belief = climb.adapt.belief
    belief.proven, belief.ahead, belief.failed, climb.sent = 100, 0, 104, 100
    climb.adapt.accepted(climb.send(), climb.now)
    assert (belief.proven, belief.ahead) == (103, 2)
    old = climb.now + PROOF_MS
    climb.adapt.admitted("late", 50, old, 49)
    assert (belief.proven, belief.ahead) == (49, 0)
    belief.proven, belief.ahead, belief.proven_at = 110, 10, old
    climb.now = old + 5_000
    climb.adapt.admitted("again", 60, climb.now, 59)
    assert climb.refuse("again")[0] == "drop"
    assert (belief.proven, belief.ahead) == (0, 0)


def test_p4_a_level_that_was_tried_since_the_last_refusal_waits_for_no_pace() -> None:
    climb = Climb(cap=1_000)
    climb.to(LARGE)
    belief = climb.adapt.belief
    belief.proven, belief.ahead, climb.sent = 100, 0, 100
    climb.adapt.accepted(climb.send(), climb.now)
    tries = [climb.send() for _ in range(4)]
    climb.adapt.released(tries[0], 1, "ok", climb.now)
    climb.sent -= 1
    assert climb.may_send_at() == 0  # that many were in flight a moment ago
    climb.send()
    assert climb.may_send_at() > climb.now
    climb.now += 1
    climb.refuse(tries[3])
    belief.proven, belief.ahead, climb.sent = 103, 2, 101
    assert climb.may_send_at() > climb.now  # the refusal ended that


@pytest.mark.parametrize("median_s", [20, 60])
def test_p4_a_limit_of_400_is_in_use_within_a_minute_of_a_cold_start_with_few_refusals(median_s: int) -> None:
    firsts = []
    for seed in (1, 2, 3):
        project = Project(agents=1_500, think_s=5, median_s=median_s)
        scenario = Scenario("cold", "", 1_000, 1.5, ProviderScenario(limit=[(0, 400)]), [project])
        result = one(SimulationRun(scenario, "adapt", seed, series=True))
        moments = sorted([(began, 1) for began, _ in result.calls] + [(ended, -1) for _, ended in result.calls])
        used = list(accumulate(step for _, step in moments))
        firsts.append(next(at for (at, _), slots in zip(moments, used, strict=True) if slots >= 360))
        assert result.refusals <= 12
    assert sum(firsts) / len(firsts) < 60_000
    assert max(firsts) < 70_000  # an early refusal delays it a little
