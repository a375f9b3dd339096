"""The rates of a provider, followed by the real proxy: clients at twice its rate use its tokens, and none is refused.

The provider counts like Anthropic: input without cache reads, output reserved from `max_tokens`. Nothing about its
rates is configured; its headers report them (rule V6). Forty clients call a model whose input rate is the tight one,
and forty more one whose output rate is. `make soak` runs it for two minutes, from full buckets. The short version
begins with a tenth of that.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import aiohttp
import pytest

from fleetgate.core.usage import Usage
from fleetgate.testing import FakeProvider, ProviderRate
from fleetgate.testing.server import SeenRequest
from tests.proxy.proxied import Proxied

SOAK = bool(os.environ.get("FLEETGATE_SOAK"))
SECONDS = 120 if SOAK else 12
MOST_SECONDS = 4 * SECONDS  # on a machine that is busy with other things
TICK_S = 0.05
CLIENTS = 40
THINK_S = 1.8  # at most. A call takes 1.1 s, so forty clients want twenty calls in a second
BYTES_PER_TOKEN = 4
# A level of the bucket that stays unused is a sixtieth of a minute's tokens or so. In a short run that counts for more.
LEAST_USED = 0.95 if SOAK else 0.85
# By each rate: each of the two models has another tight one. A short run begins with calls that are sent before any
# response has reported the rates, to buckets that are nearly empty.
MOST_REFUSED = 2 if SOAK else 5
RATES = {"calls": 1_200, "input": 600_000, "output": 180_000}  # per minute


class Calls(NamedTuple):
    """The calls of one model, in tokens: ranges that are drawn from, evenly."""

    tight: str  # the rate of which twice as much is wanted as there is
    input: tuple[int, int]
    output: tuple[int, int]
    max_tokens: int


MODELS = {
    "claude-large-prompts": Calls("input", (400, 1_600), (50, 250), 400),
    "claude-long-answers": Calls("output", (100, 500), (100, 500), 1_000),
}


def provider_rates() -> list[ProviderRate]:
    return [
        ProviderRate(unit, amount, start=None if SOAK else amount // 10, rounding=1 if unit == "calls" else 1000)
        for unit, amount in RATES.items()
    ]


def usage(request: SeenRequest) -> Usage:
    """Input by the size of the body, and more that is read from a cache; the client says how much output it gets."""
    return Usage(input=len(request.body) // BYTES_PER_TOKEN, cache_read=500, output=int(request.headers["x-output"]))


async def busy_aware_sleep(seconds: float) -> None:
    """Sleep, and add what the machine took away: clients that do not get a core want fewer tokens than there are, and
    their late start counts for less in a longer run. Nothing is added where this loop is on time.
    """
    loop = asyncio.get_running_loop()
    until, last = loop.time() + seconds, loop.time() + MOST_SECONDS
    while (now := loop.time()) < min(until, last):
        await asyncio.sleep(TICK_S)
        late_s = loop.time() - now - TICK_S
        if late_s > TICK_S:
            until += 4 * late_s


class Fleet:
    """Clients that call, think, and call again, and what they saw."""

    def __init__(self, proxied: Proxied) -> None:
        self._url = f"{proxied.url}/anthropic/v1/messages"
        self.statuses: Counter[int] = Counter()

    async def run(self, seconds: float) -> None:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, headers={"x-api-key": "one-key"}) as session:
            clients = [
                asyncio.create_task(self._call_for_ever(session, model, number))
                for model in MODELS
                for number in range(CLIENTS)
            ]
            await busy_aware_sleep(seconds)
            for client in clients:
                client.cancel()
            for ended in await asyncio.gather(*clients, return_exceptions=True):
                assert isinstance(ended, asyncio.CancelledError), ended

    async def _call_for_ever(self, session: aiohttp.ClientSession, model: str, number: int) -> None:
        draw, calls = random.Random(f"{model} {number}"), MODELS[model]
        while True:
            await asyncio.sleep(draw.uniform(0, THINK_S))
            text = "x" * (draw.randrange(*calls.input) * BYTES_PER_TOKEN)
            body = {"model": model, "max_tokens": calls.max_tokens, "stream": True, "messages": text}
            output = str(draw.randrange(*calls.output))
            async with session.post(self._url, json=body, headers={"x-output": output}) as response:
                await response.read()
                self.statuses[response.status] += 1


@pytest.mark.timeout(MOST_SECONDS + 60)
def test_v6_clients_at_twice_the_rate_use_its_tokens_and_see_no_refusal(proxied: Callable[..., Proxied]) -> None:
    with FakeProvider(rates=provider_rates(), usage=usage, latency_s=0.3, chunk_delay_s=0.2) as provider:
        fleet = Fleet(proxied(provider))
        asyncio.run(fleet.run(SECONDS))
        now, stats = provider.now_ms(), provider.stats
        used = {
            (model, rate.unit): bucket.used_part(now)
            for model in MODELS
            for rate, bucket in provider.buckets["one-key", model].buckets.items()
        }
        parts = ", ".join(f"{model} {unit} {part:.1%}" for (model, unit), part in used.items())
        print(f"used: {parts}; {stats.calls} calls, refused {stats.refused_at_rates}, clients saw {fleet.statuses}")
        assert set(fleet.statuses) == {200}
        assert max(stats.refused_at_rates.values(), default=0) <= MOST_REFUSED
        for model, calls in MODELS.items():
            assert used[model, calls.tight] >= LEAST_USED
