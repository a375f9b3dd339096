"""The limits of other programs, as their sources say: numbers worked out by hand from the rules in `rivals.py`."""

from __future__ import annotations

import pytest

from fleetgate.core.errors import NotFound
from fleetgate.simulate.policies import plan, plans
from fleetgate.simulate.rivals import RIVALS, Aimd, CallSample, DataDesigner, Gradient, Inspect, Rival, Vegas, rival
from fleetgate.simulate.runs import SimulationRun, one
from fleetgate.simulate.scenario import Project, ProviderScenario, Scenario


def accept(rival: Rival, number: int, now: int, took_ms: int = 1_000, in_flight: int = 1_000) -> None:
    """So many calls end at `now`, each sent when so many were in flight."""
    for _ in range(number):
        rival.sent(now, in_flight)
        rival.accepted(CallSample(now - took_ms, now, in_flight))


def refuse(rival: Rival, now: int, sent_at: int | None = None, hint_ms: int | None = None) -> None:
    rival.refused(CallSample(now - 50 if sent_at is None else sent_at, now, 10, hint_ms=hint_ms))


def test_inspect_starts_at_20_and_doubles_after_each_full_round_up_to_the_cap() -> None:
    rival = Inspect(100)
    assert rival.cap == 20
    accept(rival, 19, 0)
    assert rival.cap == 20
    accept(rival, 1, 0)
    assert rival.cap == 40
    accept(rival, 40 + 80, 0)
    assert rival.cap == 100
    assert Inspect(8).cap == 8


def test_inspect_does_not_grow_where_less_than_four_fifths_were_used() -> None:
    rival = Inspect(100)
    accept(rival, 20, 0, in_flight=15)
    assert rival.cap == 20
    accept(rival, 20, 0, in_flight=16)
    assert rival.cap == 40


def test_inspect_cuts_to_four_fifths_once_in_fifteen_seconds_and_counts_nothing_meanwhile() -> None:
    rival = Inspect(100)
    refuse(rival, 1_000)
    assert rival.cap == 15, "16, rounded down to a multiple of 5"
    refuse(rival, 10_000)
    assert rival.cap == 15
    accept(rival, 100, 15_999)
    assert rival.cap == 15
    accept(rival, 15, 16_000)
    assert rival.cap == 20, "16, rounded up to a multiple of 5: it no longer doubles"
    refuse(rival, 20_000, hint_ms=60_000)
    refuse(rival, 79_999)
    assert rival.cap == 15, "Retry-After is longer than 15 s"
    refuse(rival, 80_000)
    assert rival.cap == 10


def test_inspect_moves_by_one_below_ten_and_a_round_has_at_least_four_calls() -> None:
    rival = Inspect(3)
    refuse(rival, 0)
    assert rival.cap == 2
    accept(rival, 3, 20_000)
    assert rival.cap == 2
    accept(rival, 1, 20_000)
    assert rival.cap == 3


def test_inspect_does_not_count_a_call_that_was_sent_again() -> None:
    rival = Inspect(100)
    for _ in range(40):
        rival.accepted(CallSample(0, 1_000, 20, again=True))
    assert rival.cap == 20


def test_data_designer_starts_at_the_cap_and_adds_one_after_25_calls_in_a_row() -> None:
    rival = DataDesigner(10)
    assert rival.cap == 10
    refuse(rival, 1_000)
    assert rival.cap == 7
    accept(rival, 100, 2_999)
    assert rival.cap == 7, "no call counts during the pause"
    accept(rival, 25 + 25 + 24, 3_000)
    assert rival.cap == 9
    accept(rival, 26, 3_000)
    assert rival.cap == 10, "never above the cap"


def test_data_designer_cuts_once_for_calls_that_were_sent_before_the_cut() -> None:
    rival = DataDesigner(10)
    refuse(rival, 1_000)
    refuse(rival, 1_100, sent_at=990)
    assert rival.cap == 7
    refuse(rival, 1_200, sent_at=1_150)
    assert rival.cap == 5
    accept(rival, 24, 9_000)
    refuse(rival, 9_000, sent_at=0)
    accept(rival, 24, 20_000)
    assert rival.cap == 5, "a refusal ends the row"


def test_vegas_grows_while_calls_take_the_shortest_time_and_shrinks_when_they_take_longer() -> None:
    rival = Vegas(1_000)
    accept(rival, 1, 0, took_ms=100)
    assert rival.cap == 20
    accept(rival, 1, 0, took_ms=100)
    assert rival.cap == 26, "no queue: six more"
    accept(rival, 1, 0, took_ms=106)
    assert rival.cap == 27, "a queue of two: one more"
    accept(rival, 1, 0, took_ms=120)
    assert rival.cap == 27, "a queue of five: as it was"
    accept(rival, 1, 0, took_ms=200)
    assert rival.cap == 26, "a queue of 14: one less"
    accept(rival, 1, 0, took_ms=100, in_flight=12)
    assert rival.cap == 26, "less than half was used"


def test_vegas_takes_the_time_of_a_refusal_for_the_shortest_until_it_forgets_it() -> None:
    rival = Vegas(1_000)
    accept(rival, 1, 0, took_ms=1_000)
    refuse(rival, 1_000)
    assert rival.cap == 20, "a sample that is the shortest moves nothing"
    refuse(rival, 2_000)
    assert rival.cap == 19
    accept(rival, 18, 3_000)
    assert rival.cap == 6, "each call seems to queue, down to the six that may"
    accept(rival, 2_000, 3_000)
    assert rival.cap > 100, "the shortest time was forgotten"


def test_gradient_grows_while_times_stay_the_same_whatever_is_refused() -> None:
    rival = Gradient(200)
    accept(rival, 5, 0)
    assert rival.level == pytest.approx(24), "0.8 more each time"
    refuse(rival, 1_000)
    assert rival.level == pytest.approx(20 + 5 * 0.8, abs=1), "one in flight of 10 is less than half"
    rival.refused(CallSample(0, 50, 30))
    assert rival.level == pytest.approx(24.8), "a refusal is only a short time"
    accept(rival, 1, 0, took_ms=10_000)
    assert rival.level < 24.8, "a long time lowers it"


def test_aimd_halves_once_for_the_calls_sent_before_and_adds_one_after_as_many_as_the_limit() -> None:
    rival = Aimd(16)
    refuse(rival, 1_000)
    refuse(rival, 1_010, sent_at=990)
    assert rival.cap == 8
    accept(rival, 9, 2_000)
    assert rival.cap == 9


@pytest.mark.parametrize("name", RIVALS)
def test_no_rival_goes_below_one_or_above_the_cap_and_none_waits_for_a_slot_to_cool_down(name: str) -> None:
    moved = rival(name, 5)
    assert moved is not None
    for now in range(20_000, 4_000_000, 20_000):
        refuse(moved, now)
        assert 1 <= moved.cap <= 5
    accept(moved, 10_000, 5_000_000, took_ms=50)
    assert moved.cap == 5
    assert plan(name).rule(5).cooldown_ms == 0


def test_a_refusal_holds_back_the_refused_call_of_a_rival_and_no_other() -> None:
    about = ProviderScenario(limit=[(0, 4)], retry_after_s=30)
    scenario = Scenario("mine", "", 8, 10, about, [Project(agents=8, think_s=0.5, median_s=2)])
    found = {
        name: one(SimulationRun(scenario, name, 1)) for name in ("none", "fixed", "aimd", "inspect", "data-designer")
    }
    assert found["aimd"].refusals > 5
    for name in ("aimd", "inspect"):
        assert found[name].utilisation > 50
        assert found[name].utilisation > found["fixed"].utilisation + 10, "there the model is backed off for 30 s"
    assert found["data-designer"].utilisation < found["aimd"].utilisation, "it pauses for 30 s"
    assert found["none"].refusals < 8 * 10 * 60 / 30, "clients wait as long as Retry-After says"


def test_every_rival_has_a_policy_and_an_unknown_one_is_refused() -> None:
    assert {each.rival for each in plans().values()} - {""} == set(RIVALS)
    assert rival("", 5) is None
    with pytest.raises(NotFound, match="there are aimd"):
        rival("tcp", 5)
