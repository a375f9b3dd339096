"""The table of docs/adaptive-limits.md: policies over all scenarios, on seeds that were not used in development.

The controller's own cost and the simulator's speed are measured as well. Takes some minutes.
"""

from __future__ import annotations

import os
import sys
from time import perf_counter, process_time

from benchmarks.report import Row, best_of
from fleetgate.core.compiled import COMPILED
from fleetgate.core.limits import AdaptiveLimit
from fleetgate.simulate.policies import plan
from fleetgate.simulate.result import Mean, mean
from fleetgate.simulate.runs import SimulationRun, every, one
from fleetgate.simulate.scenario import load
from fleetgate.simulate.table import compared, markdown
from fleetgate.simulate.world import World

SCENARIOS = ("A1", "A2", "A3", "B1", "B2", "C1", "C2", "D1", "E1", "F1", "G1", "H1", "I1", "R1", "S1", "S2")
POLICIES = ("none", "fixed", "step", "step-gate", "aimd", "adapt", "adapt-gate", "oracle")
FIRST, SEEDS = 51_001, 5  # looked at in development: 1 to 50, 101 to 105, five each from 7001, 9001, 31001, 41001
SHORT = ("S1", "S2")
HIDDEN = (1, 2, 4, 8, 20)
SPEED = ("A2", "C2", "I1")
CORE = "compiled" if COMPILED else "not compiled"

# The figures that adapt must reach: utilisation, 429s.
REACH = {
    "A2": (96, 0),
    "B1": (96, 1),
    "C1": (94, 4),
    "C2": (93, 6),
    "D1": (86, 1.2),
    "E1": (93, 10),
    "F1": (96, 0),
    "I1": (77, 0),
}
NEAR_THE_ORACLE = ("A1", "A2", "A3", "B1", "C1", "C2", "F1")


def results(scenarios: tuple[str, ...], policies: tuple[str, ...]) -> list[Mean]:
    runs = [
        SimulationRun(load(scenario), policy, seed)
        for scenario in scenarios
        for policy in policies
        for seed in range(FIRST, FIRST + SEEDS)
    ]
    done = list(every(runs, os.cpu_count() or 1, _tell))
    return [mean(done[at : at + SEEDS]) for at in range(0, len(done), SEEDS)]


def _tell(part: float) -> None:
    if sys.stderr.isatty():
        print(f"\r{part:.0%} ", end="", file=sys.stderr, flush=True)


def measure() -> list[Row]:
    means = results(SCENARIOS, POLICIES)
    print(f"utilisation % / number of 429s, mean of seeds {FIRST} to {FIRST + SEEDS - 1}\n")
    print(markdown(*compared(means)), "\n")
    by = {(each.scenario, each.policy): each for each in means}
    rows = [_row(scenario, by[scenario, "adapt"], by[scenario, "oracle"]) for scenario in SCENARIOS]
    short = [_short(scenario, hidden) for scenario in SHORT for hidden in HIDDEN]
    return [*rows, *short, *map(_speed, SPEED), _speed_of_all(), _cost()]


def _row(scenario: str, adapt: Mean, oracle: Mean) -> Row:
    wanted = []
    if scenario in REACH:
        least, most = REACH[scenario]
        wanted.append(f"at least {least} %, at most {most} 429s")
    if scenario in NEAR_THE_ORACLE:
        wanted.append("the oracle within 4 points")
    figure = f"{adapt.utilisation:.1f} %, {adapt.refusals:g} 429s"
    return Row(f"adapt on {scenario}", figure, "; ".join(wanted), f"oracle {oracle.utilisation:.1f} %")


def _short(name: str, hidden: int) -> Row:
    """How soon a new pool of short calls is used, where the provider allows so many of 20."""
    scenario = load(name)
    scenario.minutes = 4
    scenario.provider.limit = [(0, hidden)]
    done = [one(SimulationRun(scenario, "adapt", seed, series=True)) for seed in range(FIRST, FIRST + SEEDS)]
    soonest = [_used_after_s([began for began, _ in result.calls]) for result in done]
    fiftieth = [sorted(ended for _, ended in result.calls)[49] / 1000 for result in done]
    refusals = sum(result.refusals for result in done) / SEEDS
    figure = f"90 % after {sum(soonest) / SEEDS:.1f} s, 50 calls in {sum(fiftieth) / SEEDS:.1f} s, {refusals:g} 429s"
    return Row(f"adapt on {name} with a hidden limit of {hidden}", figure, "one 429" if hidden < 20 else "no 429")


def _used_after_s(began: list[int]) -> float:
    """When the first five seconds begin in which nine tenths as many calls begin as on average after the first."""
    wanted = 0.9 * sum(at >= 60_000 for at in began) / 36
    moments = sorted(began)
    return next((at for at in moments if sum(at <= each < at + 5_000 for each in moments) >= wanted), 60_000) / 1000


def _speed(scenario: str) -> Row:
    """The best of three, by processor time: neighbours slow one process down by half."""
    rates = []
    for _ in range(3):
        world = World(load(scenario), plan("adapt"), FIRST)
        began = process_time()
        world.run()
        rates.append(len(world.calls) / (process_time() - began))
    return Row(f"simulator, {CORE}: {scenario}, requests in a second of one processor", f"{max(rates):,.0f}")


def _speed_of_all() -> Row:
    """As `fleetgate simulate` does it: seeds on all processors at once, by the clock, start of processes and all."""
    processors = os.cpu_count() or 1
    runs = [SimulationRun(load("I1"), "adapt", seed) for seed in range(FIRST, FIRST + 2 * processors)]
    began = perf_counter()
    requests = sum(result.requests for result in every(runs, processors))
    rate = requests / (perf_counter() - began)
    return Row(
        f"simulator, {CORE}: I1, {len(runs)} seeds on {processors} processors, requests in a second",
        f"{rate:,.0f}",
        "50,000",
    )


def _cost() -> Row:
    """All queries and reports of one call to the policy."""
    adapt = AdaptiveLimit()
    adapt.configure(50, explore=False, fixed_lag_ms=None)
    calls = 20_000

    def play() -> None:
        now = 10_000_000
        for _ in range(calls):
            now += 300
            adapt.admits(1, adapt.limit, now, 0, 0)
            adapt.admitted("a", 1, now, 0)
            adapt.released("a", 1, "ok", now + 100)

    return Row("adapt: all it does for one call", f"{best_of(3, play) / calls * 1e6:.1f} µs", "under 5 µs a decision")
