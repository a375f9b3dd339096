"""A scenario of the simulator in real time: the same provider and the same agents, over HTTP.

`ScenarioPlay(scenario, seed)` has a fake provider that follows the scenario's limit, lag, refusals and durations, and
says what its agents do: how long each thinks and how long its calls take, drawn from the streams of the simulator. So
the same scenario and seed can be simulated and played, and the results compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from fleetgate.simulate import random_durations
from fleetgate.simulate.agent import idle_ms
from fleetgate.simulate.provider import HEADERS_MS, MINUTE, NETWORK_MS, SimulatedProvider
from fleetgate.simulate.random_durations import BITS
from fleetgate.simulate.scenario import Project, Scenario
from fleetgate.testing.provider import FakeProvider
from fleetgate.testing.server import SeenRequest

SERVICE: Final = "x-service-ms"  # the header by which a client says how long its call takes
_PIECES: Final = 4


class ScenarioPlay:
    """One play. `async with play.provider: …`, and `await play.follow()` from the moment at which the clients start."""

    def __init__(self, scenario: Scenario, seed: int = 1) -> None:
        about = scenario.provider
        if about.rates or about.slowed != 1 or about.overload_every_min or about.others_every_min:
            raise ValueError(f"{scenario.id}: a play has no rates, no overloads and no penalties")
        if about.accepted == "never":
            raise ValueError(f"{scenario.id}: the answers of a real provider begin some time")
        if any(project.requests for project in scenario.project):
            raise ValueError(f"{scenario.id}: the agents of a play work until its end")
        self.scenario = scenario
        self.seed = seed
        self.horizon_ms = int(scenario.minutes * MINUTE)
        self._upstream = SimulatedProvider(about, self.horizon_ms)
        self._began_ms: int | None = None
        self._calls: list[tuple[int, int]] = []  # when it was accepted, and how long it takes
        headers = random_durations.uniform(*HEADERS_MS[about.accepted])
        draw = random_durations.stream(seed, "headers", 0).getrandbits

        def timing(request: SeenRequest) -> tuple[float, float]:
            service_ms = int(request.headers[SERVICE])
            self._calls.append((self.provider.now_ms(), service_ms))
            begins_ms = min(headers[draw(BITS)], service_ms)
            return begins_ms / 1000, (service_ms - begins_ms) / _PIECES / 1000

        low, high = about.refusal_ms
        self.provider = FakeProvider(
            limit=self._upstream.room,
            lag_s=(about.lag_ms[0] / 1000, about.lag_ms[1] / 1000),
            retry_after_s=about.retry_after_s,
            refuse_after_s=(low / 1000, high / 1000),
            arrive_after_s=(NETWORK_MS[0] / 1000, NETWORK_MS[1] / 1000),
            timing=timing,
            chunks=_PIECES,
            seed=seed,
        )

    def agents(self) -> list[Iterator[tuple[float, int]]]:
        """Of each agent: how long it thinks, in seconds, and how long the call after that takes, in milliseconds."""
        found: list[Iterator[tuple[float, int]]] = []
        for project in self.scenario.project:
            thinks, services = project.think(), project.service()
            for _ in range(project.agents):
                work = random_durations.stream(self.seed, "work", len(found)).getrandbits
                found.append(self._work(project, thinks, services, work))
        return found

    def _work(
        self,
        project: Project,
        thinks: random_durations.Table,
        services: random_durations.Table,
        draw: Callable[[int], int],
    ) -> Iterator[tuple[float, int]]:
        if not project.think_first:
            yield 0.0, services[draw(BITS)]
        while True:
            think_ms = thinks[draw(BITS)]
            assert self._began_ms is not None, "agents begin when the provider follows the scenario"
            begins_at = self.provider.now_ms() - self._began_ms + think_ms
            yield (think_ms + idle_ms(project, begins_at, think_ms)) / 1000, services[draw(BITS)]

    async def follow(self) -> None:
        """Move the provider's limit as the scenario says, until its end."""
        self._began_ms = began_ms = self.provider.now_ms()
        for at, room in [*self._upstream.changes[1:], (self.horizon_ms, None)]:
            await asyncio.sleep(max(began_ms + min(at, self.horizon_ms) - self.provider.now_ms(), 0) / 1000)
            if room is not None and at < self.horizon_ms:
                self.provider.limit = room

    @property
    def utilisation(self) -> float:
        """Percent of the slots that the provider had for us, counted as the simulator does."""
        assert self._began_ms is not None, "it was not played"
        done = sum(min(took, max(self.horizon_ms - (at - self._began_ms), 0)) for at, took in self._calls)
        return 100 * done / self._upstream.slot_ms(self.horizon_ms)
