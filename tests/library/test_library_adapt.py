"""An unknown limit, learned from real calls over HTTP: the library, SQLite, and the fake provider (rule P4).

The short version runs with the others. `make soak` runs the whole one, of about a quarter of an hour: two minutes at a
hidden limit of 6, then 3, then 6 again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic

import aiohttp
import pytest

import fleetgate
from fleetgate.gate.library.gate import Gate
from fleetgate.testing import FakeProvider

CLIENTS = 40
CALL = {"model": "coder", "stream": True, "messages": [{"role": "user", "content": "hello"}]}


async def client(gate: Gate, session: aiohttp.ClientSession, provider: FakeProvider, stop: asyncio.Event) -> None:
    """Call, and call again; a refused call goes back in the queue."""
    while not stop.is_set():
        async with (
            gate.lease("umans/coder") as lease,
            session.post(f"{provider.url}/v1/chat/completions", json=CALL) as response,
        ):
            if response.status == 429:
                await lease.release("rate_limited")
            else:
                await lease.accepted()
                await response.read()


@asynccontextmanager
async def fleet(folder: Path, provider: FakeProvider) -> AsyncIterator[Gate]:
    stop = asyncio.Event()
    async with (
        fleetgate.open_gate(f"sqlite://{folder}/gate") as gate,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        await gate.set_cap("umans", 20)
        clients = [asyncio.create_task(client(gate, session, provider, stop)) for _ in range(CLIENTS)]
        try:
            yield gate
        finally:
            stop.set()
            for task in clients:
                task.cancel()
            await asyncio.gather(*clients, return_exceptions=True)


async def limit(gate: Gate) -> int | None:
    return next(view.limit for view in await gate.status() if view.pool == "umans")


def test_p4_a_hidden_limit_is_found_by_real_calls_at_the_price_of_a_few_refusals(tmp_path: Path) -> None:
    async def play() -> None:
        with FakeProvider(limit=6, lag_s=0.4, latency_s=0.05, chunks=4, chunk_delay_s=0.4) as provider:
            async with fleet(tmp_path, provider) as gate:
                async with asyncio.timeout(60):
                    while await limit(gate) == 20:  # until the first refusal is heard of
                        await asyncio.sleep(0.01)
                assert await limit(gate) == 6
                calls = provider.stats.calls
                await provider.until(lambda stats: stats.calls > calls + 24, 60)
                assert provider.stats.refused <= 3
                assert provider.stats.most_counted == 6

    asyncio.run(play())


async def used(provider: FakeProvider, seconds: float, most: int) -> float:
    """The part of the provider's slots that were in use, in percent."""
    end, looks, seen = monotonic() + seconds, 0, 0
    while monotonic() < end:
        await asyncio.sleep(0.05)
        looks, seen = looks + 1, seen + provider.stats.active
    return 100 * seen / (looks * most)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif("FLEETGATE_SOAK" not in os.environ, reason="a quarter of an hour: make soak")
def test_p4_the_limit_is_followed_down_and_up_again_in_real_time(tmp_path: Path) -> None:
    async def play() -> None:
        with FakeProvider(limit=6, lag_s=0.4, latency_s=(0.4, 1.0), chunks=20, chunk_delay_s=(0.3, 0.7)) as provider:
            async with fleet(tmp_path, provider):
                await asyncio.sleep(20)
                assert await used(provider, 100, 6) >= 90
                found = provider.stats.refused
                assert found <= 3
                provider.limit = 3
                await asyncio.sleep(30)  # those in flight end
                assert await used(provider, 60, 3) >= 80
                assert provider.stats.refused <= found + 4
                provider.limit = 6
                await asyncio.sleep(11 * 60)  # a probe comes ten minutes after the drop
                assert await used(provider, 60, 6) >= 85
                assert provider.stats.refused <= found + 6

    asyncio.run(play())
