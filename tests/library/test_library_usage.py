"""Rules Y3, G1 to G4: the usage gate in programs: a function of theirs, or the provider over HTTP, answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import fleetgate
import fleetgate.sync
from fleetgate.testing import FakeProvider
from tests.library.helpers import CODER, in_queue, until


class Upstream:
    """A provider that a program knows how to ask."""

    def __init__(self, count: object) -> None:
        self.count = count
        self.asked: list[str] = []
        self.now = self.most = 0

    async def __call__(self, account: str) -> Any:
        self.asked.append(account)
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.01)
        self.now -= 1
        if isinstance(self.count, Exception):
            raise self.count
        return self.count


async def test_y3_g1_a_function_of_the_program_answers_and_one_enters_for_each_answer(store: str) -> None:
    upstream = Upstream(2)
    async with fleetgate.open_gate(store, usage={"umans": upstream}) as gate:
        await gate.set_cap("umans", 2, cooldown_s=0, on_429="step", usage_gate=True)
        entered: list[int] = []
        hold = asyncio.Event()

        async def work(number: int) -> None:
            async with gate.lease(CODER):
                entered.append(number)
                await hold.wait()

        async with gate.lease(CODER), gate.lease(CODER):
            tasks = [asyncio.create_task(work(number)) for number in range(2)]
            await in_queue(gate, 2)
        before = len(upstream.asked)
        await until(lambda: len(upstream.asked) >= before + 2)
        assert entered == []
        assert {view.reason.code for view in await gate.queue()} == {"usage_gate"}
        upstream.count = 1.9
        await until(lambda: entered == [0])
        await until(lambda: entered == [0, 1])
        assert set(upstream.asked) == {"default"}
        assert upstream.most == 1
        hold.set()
        await asyncio.gather(*tasks)
        asked = len(upstream.asked)
        async with gate.lease(CODER):
            assert len(upstream.asked) == asked, "no request waits: no questions"


@pytest.mark.parametrize("count", ["three", float("nan"), -1, None, True, RuntimeError("no"), TimeoutError()])
async def test_g4_a_function_that_fails_never_raises_and_holds_no_request_back(store: str, count: object) -> None:
    async with fleetgate.open_gate(store, usage={"umans": Upstream(count)}) as gate:
        await gate.set_cap("umans", 1, cooldown_s=0, usage_gate=True)
        async with gate.lease(CODER):
            waiter = asyncio.create_task(gate.lease(CODER).acquire())
            await in_queue(gate, 1)
        lease = await waiter
        assert isinstance(lease, fleetgate.Leased)
        (view,) = [view for view in await gate.status() if view.pool == "umans"]
        assert view.upstream is not None
        assert view.upstream.error
        await lease.release()


async def test_g1_the_service_asks_the_provider_over_http(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMANS_TEST_KEY", "sk-1")
    async with FakeProvider(keys=["sk-1"], others=1) as provider:
        config = {
            "requests": {"umans": {"cap": 1, "cooldown": "0s", "usage_gate": True}},
            "providers": {
                "umans": {
                    "base_url": provider.url,
                    "key_env": "UMANS_TEST_KEY",
                    "usage_path": "/usage",
                    "usage_field": "usage.concurrent_sessions",
                }
            },
        }
        async with fleetgate.open_gate(store, config) as gate:
            async with gate.lease(CODER):
                waiter = asyncio.create_task(gate.lease(CODER).acquire())
                await in_queue(gate, 1)
            await until(lambda: provider.stats.usage_asked >= 2)
            assert not waiter.done()
            provider.count.others = 0
            lease = await waiter
            assert isinstance(lease, fleetgate.Leased)
            await lease.release()


def test_y3_y2_the_same_for_synchronous_programs(store: str) -> None:
    upstream = Upstream(0)
    with fleetgate.sync.open_gate(store, usage={"umans": upstream}) as gate:
        gate.set_cap("umans", 1, cooldown_s=0, usage_gate=True)
        with gate.lease(CODER):
            pass
    assert upstream.asked == []
