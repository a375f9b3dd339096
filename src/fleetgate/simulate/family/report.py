"""How policies do on random scenarios, by class: the part of the oracle's utilisation, and refusals for each change.

A *change* is one of what is there for us: of the limit, or of what neighbours take. The beginning counts as one,
because the limit has to be found once.
"""

from __future__ import annotations

from msgspec import Struct

from fleetgate.simulate.family.generator import TAGS
from fleetgate.simulate.provider import changes_of
from fleetgate.simulate.result import SimulationResult
from fleetgate.simulate.scenario import Scenario

ORACLE = "oracle"


class Score(Struct, frozen=True):
    """One policy on one scenario."""

    scenario: str
    tags: list[str]
    policy: str
    of_oracle: float  # percent of the oracle's utilisation
    refusals: int
    changes: int


class ClassScore(Struct, frozen=True):
    """One policy on the scenarios of one class."""

    name: str
    policy: str
    scenarios: int
    of_oracle: float  # the mean, in percent
    worst: float
    refusals_per_change: float


def scores(scenarios: list[Scenario], results: list[SimulationResult]) -> list[Score]:
    """Of all results but the oracle's own, in their order."""
    by_id = {scenario.id: scenario for scenario in scenarios}
    best = {result.scenario: result.utilisation for result in results if result.policy == ORACLE}
    return [
        _score(by_id[result.scenario], result, best[result.scenario]) for result in results if result.policy != ORACLE
    ]


def _score(scenario: Scenario, result: SimulationResult, best: float) -> Score:
    part = 100 * result.utilisation / best if best else 100.0
    changes = len(changes_of(scenario.provider, scenario.minutes))
    return Score(scenario.id, scenario.tags, result.policy, round(part, 3), result.refusals, changes)


def by_class(found: list[Score]) -> list[ClassScore]:
    """All scenarios, then those of each tag."""
    policies = list(dict.fromkeys(score.policy for score in found))
    classes = ["all", *(tag for tag in TAGS if any(tag in score.tags for score in found))]
    return [
        _of_class(name, policy, [s for s in found if s.policy == policy and (name == "all" or name in s.tags)])
        for name in classes
        for policy in policies
    ]


def _of_class(name: str, policy: str, among: list[Score]) -> ClassScore:
    parts = [score.of_oracle for score in among]
    refusals = sum(score.refusals for score in among) / sum(score.changes for score in among)
    return ClassScore(name, policy, len(among), round(sum(parts) / len(parts), 2), min(parts), round(refusals, 2))


def table(found: list[ClassScore]) -> tuple[list[str], list[list[str]]]:
    """Head and rows: a row for each class, for each policy `mean % (worst) / refusals for each change`."""
    policies = list(dict.fromkeys(each.policy for each in found))
    rows: dict[str, list[str]] = {}
    for each in found:
        row = rows.setdefault(each.name, [each.name, str(each.scenarios)])
        row.append(f"{each.of_oracle:.1f} ({each.worst:.0f}) / {each.refusals_per_change:.2f}")
    return ["", "scenarios", *policies], list(rows.values())
