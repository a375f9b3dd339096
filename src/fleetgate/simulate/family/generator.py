"""The random scenarios of `simulate --random`: one for each seed, with tags that say what kind it is.

A list of scenarios invites rules that fit the list. Here everything is drawn: how large the provider's limit is and how
it moves, what neighbours on the account take, how long a finished call is counted, how long calls take, how many
agents there are, what a refusal costs, and what is reported late. The same seed gives the same scenario everywhere.

A scenario is about as large as its number of calls: where calls are short and slots are many, the time is shorter.
"""

from __future__ import annotations

from itertools import pairwise
from math import exp, log
from random import Random
from typing import Final

from fleetgate.core.errors import BadRequest
from fleetgate.simulate.provider import changes_of
from fleetgate.simulate.scenario import Project, ProviderScenario, Scenario

CALLS: Final = 40_000  # about so many in a scenario
LEAST_MIN: Final = 20.0  # a scenario takes at least this long
SLOW_MIN: Final = 10.0  # at least so many minutes between changes: slow; else fast
MOVES: Final = ("constant", "steps", "drift", "periodic", "walk", "neighbours")
TAGS: Final = {
    "constant": "the limit never changes",
    "steps": "the limit jumps, at random times",
    "drift": "the limit goes up or down, in even steps",
    "periodic": "the limit goes up and down again and again",
    "walk": "the limit is a random walk",
    "neighbours": "others on the account take slots, which change in one of these ways",
    "slow": f"at least {SLOW_MIN:g} minutes between changes",
    "fast": "less than that",
    "large": "a limit of 200 or more",
    "small": "a limit of 4 or less",
    "short": "calls of less than 2 s",
    "long": "calls of more than a minute",
    "mixed": "long and short calls in one pool",
    "light": "fewer calls than the limit allows",
    "bursts": "times with work and idle times",
    "lag": "finished calls count for more than a second",
    "late": "refusals and acceptances are reported late, or acceptances never",
    "penalty": "each refusal makes later calls slower",
    "overload": "some calls are refused because the provider is overloaded",
    "hint": "refusals say when to try again",
}

Moves = list[tuple[float, int]]  # from minute -> slots


def family(first_seed: int, number: int, tag: str = "", calls: int = CALLS) -> list[Scenario]:
    """So many scenarios, those of `first_seed` and the seeds after it which have the tag."""
    if tag and tag not in TAGS:
        raise BadRequest(f"no class {tag!r}: there are {', '.join(TAGS)}")
    found: list[Scenario] = []
    seed = first_seed
    while len(found) < number:
        scenario = random_scenario(seed, calls)
        if not tag or tag in scenario.tags:
            found.append(scenario)
        seed += 1
    return found


def random_scenario(seed: int, calls: int = CALLS) -> Scenario:
    """The scenario of a seed."""
    draw = Random(f"{seed}/family")
    kind = draw.choice(MOVES)
    most = round(_between(draw, 1, 2_000))
    slow = draw.random() < 0.5
    every = _between(draw, SLOW_MIN, 30) if slow else _between(draw, 0.5, SLOW_MIN)
    project, tags = _project(draw)
    busy = most * min(project.agents / 100, 1)  # `agents`: percent of the limit, until the horizon is known
    minutes = _minutes(draw, kind, slow, every)
    mean_s = project.service_mean_s()
    shortest_s = busy * minutes * 60 / calls
    if mean_s < shortest_s:  # too many calls: less time, but enough to see the limit move, and then longer calls
        minutes = max(minutes * mean_s / shortest_s, LEAST_MIN, 3 * every if kind != "constant" else 0)
        project.stretch(max(busy * minutes * 60 / calls / mean_s, 1))
    project.agents = _agents(most, project)
    moves = _moved(draw, "steps" if kind == "constant" else kind, most, every, minutes, slow)
    provider = _provider(draw, tags)
    if kind == "neighbours":
        provider.limit, provider.others = [(0, most)], moves
    else:
        provider.limit = moves if kind != "constant" else [(0, most)]
    cap = max(round(most * draw.choice((1, 1, 1.25, 2, 4))), 1)
    gaps = _gaps(provider, minutes)
    tags |= {kind, "slow" if min(gaps, default=minutes) >= SLOW_MIN else "fast"}
    tags |= {"large"} if most >= 200 else {"small"} if most <= 4 else set()
    mean_s = project.service_mean_s()
    tags |= {"short"} if mean_s < 2 else {"long"} if mean_s > 60 else set()
    about = f"{kind}, limit up to {most}, {len(gaps)} changes, calls of {mean_s:.2g} s"
    return Scenario(f"random-{seed}", about, cap, round(minutes, 2), provider, [project], tags=sorted(tags))


def _between(draw: Random, low: float, high: float) -> float:
    """Log-uniform: as often between 1 and 10 as between 10 and 100."""
    return low * exp(draw.random() * log(high / low))


def _project(draw: Random) -> tuple[Project, set[str]]:
    tags = set()
    median_s = _between(draw, 0.05, 300)
    load = draw.choice((60, 100, 300))
    project = Project(agents=load, think_s=median_s * _between(draw, 0.1, 2), median_s=median_s)
    project.sigma = 0.2 + 0.8 * draw.random()
    if draw.random() < 0.25:
        long = round(0.05 + 0.25 * draw.random(), 2)
        project.mix = [(long, min(median_s * _between(draw, 5, 40), 600)), (1 - long, median_s)]
        tags.add("mixed")
    if draw.random() < 0.2:
        project.busy_min, project.idle_min = _between(draw, 1, 10), _between(draw, 0.5, 10)
        tags.add("bursts")
    if load < 100:
        tags.add("light")
    return project, tags


def _agents(most: int, project: Project) -> int:
    """As many as bring the load to its percentage of the limit."""
    mean_s = project.service_mean_s()
    return max(round(most * project.agents / 100 * (mean_s + project.think_s) / mean_s), 1)


def _minutes(draw: Random, kind: str, slow: bool, every: float) -> float:
    if kind == "constant":
        return _between(draw, 20, 90)
    return min(max(every * (4 if slow else 12), LEAST_MIN), 120)


def _provider(draw: Random, tags: set[str]) -> ProviderScenario:
    provider = ProviderScenario()
    lag = draw.choice(("usual", "fixed", "wide"))
    if lag == "fixed":
        provider.lag_ms = (round(3_000 * draw.random()),) * 2
    elif lag == "wide":
        low, high = sorted((draw.random(), draw.random()))
        provider.lag_ms = (round(3_000 * low), round(3_000 * high))
    if provider.lag_ms[1] > 1_000:
        tags.add("lag")
    if draw.random() < 0.2:
        provider.retry_after_s = draw.choice((1, 5, 30))
        tags.add("hint")
    if draw.random() < 0.1:
        provider.slowed, provider.slowed_min = 1.5, _between(draw, 2, 30)
        tags.add("penalty")
    if draw.random() < 0.15:
        provider.overload_every_min, provider.overload_s = _between(draw, 3, 30), _between(draw, 1, 30)
        tags.add("overload")
    if draw.random() < 0.15:
        low_ms = round(_between(draw, 100, 1_000))
        provider.refusal_ms = (low_ms, 2 * low_ms)
        provider.accepted = draw.choice(("late", "never"))
        tags.add("late")
    return provider


def _moved(draw: Random, kind: str, most: int, every: float, minutes: float, slow: bool) -> Moves:
    """How the limit moves, or what neighbours take, over time."""
    if kind == "neighbours":
        part = max(round(most * (0.2 + 0.5 * draw.random())), 1)
        moves = _moved(draw, draw.choice(MOVES[1:5]), part, every, minutes, slow)
        return [(at, min(slots, max(most - 1, 0))) for at, slots in moves]
    least = max(round(most * _between(draw, 0.2, 0.8)), 1)
    number = int(minutes / every) + 1
    if kind == "steps":
        return _steps(draw, least, most, every, minutes, slow)
    if kind == "drift":
        path = [least + (most - least) * step / number for step in range(number + 1)]
        return _at_times(path if draw.random() < 0.5 else path[::-1], every)
    if kind == "periodic":
        levels = draw.choice(((0, 1), (0, 0.5, 1, 0.5), (0, 0.3, 0.7, 1, 0.7, 0.3)))
        first = draw.randrange(len(levels))
        path = [least + (most - least) * levels[(first + step) % len(levels)] for step in range(number)]
        return _at_times(path, every)
    step = most * _between(draw, 0.03, 0.25)
    slots, path = least + (most - least) * draw.random(), []
    for _ in range(number):
        path.append(slots)
        slots = min(max(slots + draw.choice((-1, 1)) * step, least), most)
    return _at_times(path, every)


def _steps(draw: Random, least: int, most: int, every: float, minutes: float, slow: bool) -> Moves:
    at, moves = 0.0, []
    while at < minutes:
        moves.append((round(at, 3), round(_between(draw, least, most))))
        at += every * (0.7 + 0.6 * draw.random()) if slow else max(draw.expovariate(1 / every), 0.2)
        at = max(at, moves[-1][0] + SLOW_MIN) if slow else at
    return moves


def _at_times(path: list[float], every: float) -> Moves:
    return [(round(step * every, 3), max(round(slots), 1)) for step, slots in enumerate(path)]


def _gaps(provider: ProviderScenario, minutes: float) -> list[float]:
    """The minutes between changes of what is there for us, the start included."""
    moments = changes_of(provider, minutes)
    return [later - earlier for earlier, later in pairwise(moments)]
