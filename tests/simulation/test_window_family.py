"""Random fleets on subscriptions (rule W2): pacing holds beyond the fleet that it was first made for."""

from __future__ import annotations

from fleetgate.core.entities import PlanRule
from tests.simulation.window_family import judge, one_person, reachable, rows, scenario

SEEDS = range(1_000, 1_030)


def test_w2_people_are_hardly_ever_refused_and_most_of_the_window_is_used_whatever_the_fleet():
    paced, bare = (rows(SEEDS, plan) for plan in (PlanRule("anthropic"), None))
    refused, before = (
        sum(one.refused for _, one in some) / sum(one.calls for _, one in some) for some in (paced, bare)
    )
    assert refused < before / 10
    assert refused < 0.05
    assert sum(one.waited for _, one in paced) == 0, "the gate itself never holds people back"
    assert sum(judge(*each).person for each in paced) > 2.5 * sum(judge(*each).person for each in bare)
    used = [one.used for scene, one in paced if reachable(scene)]
    assert sum(used) / len(used) > 0.9
    assert sum(judge(*each).switches for each in paced) >= 0.85 * len(paced)


def test_w2_with_one_person_at_work_nearly_every_window_meets_all_three_goals():
    """The fleet of the issue, with other speeds, calls and people: 97 % used, no person refused, at most 6 switches."""
    seeds = range(6_000, 6_040)
    paced, bare = (rows(seeds, plan, one_person) for plan in (PlanRule("anthropic"), None))
    met = [judge(*each) for each in paced]
    assert sum(each.used for each in met) >= 39
    assert sum(each.person for each in met) >= 38
    assert sum(each.switches for each in met) >= 38
    assert sum(all(each) for each in met) >= 36
    assert sum(one.waited for _, one in paced) == 0
    refused, before = (sum(one.refused for _, one in some) for some in (paced, bare))
    assert refused < before / 500
    assert sum(judge(*each).person for each in bare) <= 4


def test_w2_a_seed_is_always_the_same_scenario():
    assert scenario(7) == scenario(7)
    assert scenario(7) != scenario(8)
