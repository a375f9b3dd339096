"""Random scenarios in real time: the adaptive limit behind the real proxy does what the simulator says it does.

Each scenario drives both: the fake provider follows its limit, lag and durations over HTTP, and the simulator plays the
same agents in virtual time. `make soak` plays three classes of the family for two minutes each. The short version plays
fifteen seconds of a small scenario, and allows for more.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Iterator
from statistics import mean

import aiohttp
import pytest

from fleetgate.simulate.family.generator import random_scenario
from fleetgate.simulate.result import SimulationResult
from fleetgate.simulate.runs import SimulationRun, one
from fleetgate.simulate.scenario import Project, ProviderScenario, RateScenario, Scenario
from fleetgate.testing.scenario import SERVICE, ScenarioPlay
from tests.proxy.proxied import Proxied

SEEDS = range(1, 8)  # of the simulations: chance moves them, too
MOST_POINTS = 3.0
# One scenario of each class whose provider a laptop can play: limits up to 24, calls of one to five seconds.
CLASSES = {"constant": 3480, "steps": 39148, "drift": 830}


class Clients:
    """The agents of a scenario: they think, call through the proxy, and think again."""

    def __init__(self, proxied: Proxied, play: ScenarioPlay) -> None:
        self._url = f"{proxied.url}/fake/v1/chat/completions"
        self._play = play
        self.statuses: Counter[int] = Counter()

    async def run(self) -> None:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, headers={"x-api-key": "one-key"}) as session:
            agents = [asyncio.create_task(self._agent(session, work)) for work in self._play.agents()]
            await self._play.follow()
            for agent in agents:
                agent.cancel()
            for ended in await asyncio.gather(*agents, return_exceptions=True):
                assert isinstance(ended, asyncio.CancelledError), ended

    async def _agent(self, session: aiohttp.ClientSession, work: Iterator[tuple[float, int]]) -> None:
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
        for think_s, service_ms in work:
            await asyncio.sleep(think_s)
            async with session.post(self._url, json=body, headers={SERVICE: str(service_ms)}) as response:
                await response.read()
                self.statuses[response.status] += 1


def simulated(scenario: Scenario) -> list[SimulationResult]:
    return [one(SimulationRun(scenario, "adapt", seed)) for seed in SEEDS]


def played(scenario: Scenario, proxied: Callable[..., Proxied]) -> ScenarioPlay:
    play = ScenarioPlay(scenario, SEEDS[0])
    with play.provider:
        clients = Clients(proxied(play.provider, requests=f"fake = {scenario.cap}"), play)
        asyncio.run(clients.run())
        assert set(clients.statuses) == {200}, "the agents see no refusal"
        play.provider.wait_until(lambda stats: stats.active == 0)
    return play


def compared(play: ScenarioPlay, results: list[SimulationResult]) -> float:
    """How many points the play is away from the mean of the simulations; it prints both."""
    found = [result.utilisation for result in results]
    off = abs(play.utilisation - mean(found))
    refusals = [result.refusals for result in results]
    real = f"{play.utilisation:.1f} % used, {play.provider.stats.refused} refused"
    print(f"{play.scenario.id} ({play.scenario.about}): {real}; {off:.1f} points off")
    print(f"simulated: {min(found):.1f} to {max(found):.1f} %, {min(refusals)} to {max(refusals)} refused")
    return off


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif("FLEETGATE_SOAK" not in os.environ, reason="two minutes for each: make soak")
@pytest.mark.parametrize("tag", CLASSES)
def test_p4_two_minutes_of_a_random_scenario_are_as_the_simulator_says(
    tag: str, proxied: Callable[..., Proxied]
) -> None:
    scenario = random_scenario(CLASSES[tag])
    assert tag in scenario.tags
    scenario.minutes = 2.0
    results = simulated(scenario)
    play = played(scenario, proxied)
    assert compared(play, results) <= MOST_POINTS
    assert play.provider.stats.refused <= max(result.refusals for result in results) + 2


def test_p4_a_short_scenario_is_about_as_the_simulator_says(proxied: Callable[..., Proxied]) -> None:
    project = Project(agents=8, think_s=0.5, median_s=1.0, sigma=0.3)
    provider = ProviderScenario(limit=[(0, 4), (8 / 60, 3)], lag_ms=(200, 300))
    scenario = Scenario("short", "a limit of 4, then 3", 6, 15 / 60, provider, [project])
    results = simulated(scenario)
    play = played(scenario, proxied)
    assert compared(play, results) <= 15
    assert play.provider.stats.refused <= max(result.refusals for result in results) + 4


@pytest.mark.parametrize(
    "about",
    [
        ProviderScenario(limit=[(0, 4)], slowed=1.5),
        ProviderScenario(limit=[(0, 4)], overload_every_min=3, overload_s=2),
        ProviderScenario(rates=[RateScenario(calls=5)]),
        ProviderScenario(limit=[(0, 4)], accepted="never"),
    ],
)
def test_a_scenario_that_the_fake_provider_cannot_play_is_refused(about: ProviderScenario) -> None:
    with pytest.raises(ValueError, match="mine: "):
        ScenarioPlay(Scenario("mine", "", 4, 1, about, [Project(agents=1)]))
