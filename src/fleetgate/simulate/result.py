"""The result of one run, and the mean of several."""

from __future__ import annotations

from msgspec import Struct, field


class SimulationResult(Struct):
    """One scenario, one policy, one seed."""

    scenario: str
    policy: str
    seed: int
    horizon_ms: int
    utilisation: float  # in percent: of the slots that were there, or of the most used rate, if that is more
    tokens_per_min: float  # input and output that were served
    refusals: int  # 429s
    requests: int  # calls that the provider took
    wait_p50_s: float
    wait_p99_s: float
    wait_max_s: float
    overtaken_s: float  # the most by which anybody of a project was passed by one who queued later
    shares: dict[str, float]  # of the time or tokens served, by project (and priority), in percent
    waits_max_s: dict[str, float]  # by project (and priority)
    limits: list[tuple[int, int]] = field(default_factory=list)  # (when, limit), where it changed
    refused_at: list[int] = field(default_factory=list)
    calls: list[tuple[int, int]] = field(default_factory=list)  # (began, ended) at the provider


class Mean(Struct):
    """One scenario and policy over several seeds."""

    scenario: str
    policy: str
    seeds: int
    utilisation: float
    tokens_per_min: float
    refusals: float
    requests: float
    wait_p50_s: float
    wait_p99_s: float
    wait_max_s: float
    overtaken_s: float
    shares: dict[str, float]
    waits_max_s: dict[str, float]


def mean(results: list[SimulationResult]) -> Mean:
    first, number = results[0], len(results)

    def average(name: str) -> float:
        return round(float(sum(getattr(result, name) for result in results)) / number, 3)

    return Mean(
        scenario=first.scenario,
        policy=first.policy,
        seeds=number,
        utilisation=average("utilisation"),
        tokens_per_min=average("tokens_per_min"),
        refusals=average("refusals"),
        requests=average("requests"),
        wait_p50_s=average("wait_p50_s"),
        wait_p99_s=average("wait_p99_s"),
        wait_max_s=max(result.wait_max_s for result in results),
        overtaken_s=max(result.overtaken_s for result in results),
        shares={
            name: round(sum(result.shares.get(name, 0) for result in results) / number, 3) for name in first.shares
        },
        waits_max_s={name: max(result.waits_max_s.get(name, 0) for result in results) for name in first.waits_max_s},
    )
