"""Random scenarios: one seed one scenario, every kind occurs, and the report compares with the oracle."""

from __future__ import annotations

from itertools import pairwise

import pytest

from fleetgate.core.errors import BadRequest
from fleetgate.simulate.family.generator import MOVES, SLOW_MIN, TAGS, family, random_scenario
from fleetgate.simulate.family.pareto import front, svg
from fleetgate.simulate.family.report import ClassScore, by_class, scores, table
from fleetgate.simulate.provider import SimulatedProvider, changes_of
from fleetgate.simulate.runs import SimulationRun, one
from fleetgate.simulate.scenario import Project, ProviderScenario, Scenario

MANY = family(1, 300)


def test_one_seed_gives_one_scenario_and_another_seed_another() -> None:
    assert random_scenario(7) == random_scenario(7)
    assert random_scenario(7) != random_scenario(8)


def test_every_kind_occurs() -> None:
    assert {tag for scenario in MANY for tag in scenario.tags} == set(TAGS)
    for move in MOVES:
        assert sum(move in scenario.tags for scenario in MANY) > 20


def test_limits_lags_and_calls_cover_what_providers_have() -> None:
    limits = [max(limit for _, limit in scenario.provider.limit) for scenario in MANY]
    assert min(limits) <= 2
    assert max(limits) >= 1_500
    lags = [scenario.provider.lag_ms[1] for scenario in MANY]
    assert min(lags) < 200
    assert max(lags) > 2_800
    means = [scenario.project[0].service_mean_s() for scenario in MANY]
    assert min(means) < 0.3
    assert max(means) > 250
    for scenario in MANY:
        provider = SimulatedProvider(scenario.provider, int(scenario.minutes * 60_000))
        assert min(room for _, room in provider.changes) >= 1
        assert scenario.cap >= max(room for _, room in provider.changes)


def test_slow_ones_have_ten_minutes_between_changes() -> None:
    for scenario in MANY:
        moments = changes_of(scenario.provider, scenario.minutes)
        gaps = [later - earlier for earlier, later in pairwise(moments)]
        assert ("slow" in scenario.tags) == (not gaps or min(gaps) >= SLOW_MIN)


def test_a_class_takes_the_next_seeds_that_have_it() -> None:
    chosen = family(1, 3, "penalty")
    assert all("penalty" in scenario.tags for scenario in chosen)
    assert [scenario.id for scenario in chosen] == [each.id for each in MANY if "penalty" in each.tags][:3]
    with pytest.raises(BadRequest, match="no class 'odd': there are constant"):
        family(1, 1, "odd")


def _small(**provider: object) -> Scenario:
    about = ProviderScenario(limit=[(0, 4)], **provider)  # type: ignore[arg-type]
    return Scenario("small", "", 4, 10, about, [Project(agents=8, think_s=1, median_s=2)], tags=["constant"])


def test_overloads_refuse_every_call_and_are_no_rate_limits() -> None:
    result = one(SimulationRun(_small(overload_every_min=3, overload_s=20), "adapt", 1, series=True))
    assert not [at for at in result.refused_at if at >= 180_000]
    assert result.refusals <= 1  # before the first overload, by a lag that was too short
    assert {limit for _, limit in result.limits} == {4}
    starts = [began for began, _ in result.calls]
    assert not [at for at in starts if 180_000 <= at < 200_000]
    assert [at for at in starts if at > 240_000]


def test_work_that_comes_in_bursts_leaves_the_provider_idle_between_them() -> None:
    scenario = _small()
    scenario.project[0].busy_min, scenario.project[0].idle_min = 2, 3
    starts = [began for began, _ in one(SimulationRun(scenario, "oracle", 1, series=True)).calls]
    assert not [at for at in starts if 140_000 < at < 300_000]
    assert [at for at in starts if 300_000 <= at < 420_000]


@pytest.mark.parametrize("accepted", ["late", "never"])
def test_acceptances_may_be_reported_late_or_never(accepted: str) -> None:
    assert one(SimulationRun(_small(accepted=accepted, refusal_ms=(500, 2_000)), "adapt", 1)).requests > 100


def test_the_report_compares_with_the_oracle_class_by_class() -> None:
    chosen = [_small()]
    results = [one(SimulationRun(chosen[0], policy, 1)) for policy in ("adapt", "oracle")]
    found = scores(chosen, results)
    assert [(score.policy, score.changes) for score in found] == [("adapt", 1)]
    assert 80 < found[0].of_oracle <= 101
    head, rows = table(by_class(found))
    assert head == ["", "scenarios", "adapt"]
    assert [row[:2] for row in rows] == [["all", "1"], ["constant", "1"]]


def test_the_front_has_the_policies_that_no_other_one_beats_in_both() -> None:
    points = {"none": (99.0, 5_000.0), "good": (95.0, 1.0), "worse": (90.0, 2.0), "safe": (60.0, 0.0), "idle": (50, 0)}
    found = [ClassScore("all", name, 2, part, part, refusals) for name, (part, refusals) in points.items()]
    assert [each.policy for each in front(found)] == ["safe", "good", "none"]
    picture = svg(found)
    assert picture.count("<circle") == 5
    assert picture.count('class="best"') == 3
    assert "less than 10 minutes" not in picture, "no panel for a class without scenarios"


def test_labels_of_policies_that_do_equally_well_do_not_cover_each_other() -> None:
    found = [ClassScore("all", f"policy-{number}", 1, 90.0, 90.0, 1.0) for number in range(6)]
    heights = sorted(
        float(part.split('y="')[1].split('"')[0]) for part in svg(found).split("<text") if ">policy-" in part
    )
    assert all(later - earlier >= 12 for earlier, later in pairwise(heights))
