"""Leases with an estimate, settled with what was used (rules V2, V3, U3), in both libraries."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import fleetgate
from fleetgate import BadRequest, BudgetView, FleetgateError, Usage

MODEL = "acme/coder"
CONFIG: dict[str, Any] = {
    "budgets": {
        "project:web": {"usd": 1, "per": "day", "estimate": "max"},
        "acme": [{"tokens": 1000, "per": "5h"}, {"calls": 100, "per": "5h"}],
    },
    "prices": {"acme": {"input": 1000, "output": 5000, "cache_read": 0, "cache_write": 0}},  # dollars for a million
}
DAY, TOKENS, CALLS = "project:web usd/day", "acme tokens/5h", "acme calls/5h"


async def budget(gate: fleetgate.Gate, name: str) -> BudgetView:
    return next(view for view in await gate.budgets() if view.name == name)


async def amounts(gate: fleetgate.Gate, name: str) -> tuple[int, int]:
    view = await budget(gate, name)
    return view.used, view.reserved


async def test_V2_an_estimate_is_reserved_and_replaced_by_what_was_used(store: str) -> None:
    async with fleetgate.open_gate(store, CONFIG) as gate:
        async with gate.lease(MODEL, project="web", estimate=Usage(input=100, output=20)) as lease:
            assert await amounts(gate, TOKENS) == (0, 120)
            assert await amounts(gate, DAY) == (0, 200_000)  # by the prices of the config
            assert await amounts(gate, CALLS) == (0, 1)
            await lease.settle(Usage(input=50, output=10))
            assert (await amounts(gate, TOKENS))[0] == 60
        assert await amounts(gate, TOKENS) == (60, 0)
        assert await amounts(gate, DAY) == (100_000, 0)
        assert await amounts(gate, CALLS) == (1, 0)


async def test_V2_a_lease_may_settle_several_times_and_be_more_than_its_estimate(store: str) -> None:
    async with fleetgate.open_gate(store, CONFIG) as gate:
        async with gate.lease(MODEL, project="web", estimate=Usage(input=10)) as lease:
            await lease.settle(Usage(input=8))
            await lease.settle(Usage(input=5, cost=7))
        assert await amounts(gate, TOKENS) == (13, 0)
        assert await amounts(gate, DAY) == (8_007, 0)
        assert await amounts(gate, CALLS) == (1, 0)


async def test_V3_what_was_reserved_counts_when_nothing_was_settled(store: str) -> None:
    async with fleetgate.open_gate(store, CONFIG) as gate:
        async with gate.lease(MODEL, estimate=Usage(input=30)):
            pass
        with pytest.raises(ZeroDivisionError):
            async with gate.lease(MODEL, estimate=Usage(input=40)):
                raise ZeroDivisionError
        assert await amounts(gate, TOKENS) == (70, 0)


async def test_V3_a_refused_call_used_nothing(store: str) -> None:
    async with fleetgate.open_gate(store, CONFIG) as gate:
        async with gate.lease(MODEL, estimate=Usage(input=30)) as lease:
            await lease.report(fleetgate.RateLimited(0.01))
        other = await gate.try_lease("acme/other", estimate=Usage(input=30))
        assert isinstance(other, fleetgate.Leased)
        await other.release("overloaded")
        assert await amounts(gate, TOKENS) == (0, 0)


async def test_V2_parallel_calls_never_use_more_than_the_budget(store: str) -> None:
    async with fleetgate.open_gate(store, CONFIG) as gate:
        spent: list[int] = []
        refused: list[tuple[str, str]] = []

        async def call() -> None:
            try:
                async with gate.lease(MODEL, project="web", estimate=Usage(output=10), timeout_s=0) as lease:
                    await asyncio.sleep(0)
                    await lease.settle(Usage(output=10))
                    spent.append(50_000)
            except fleetgate.NotAdmitted as error:
                refused.append((error.reason.code, error.reason.budget))

        await asyncio.gather(*(call() for _ in range(40)))
        assert sum(spent) == 1_000_000
        assert refused == [("budget", DAY)] * 20
        assert (await budget(gate, DAY)).free == 0


async def test_U3_a_model_without_a_price_has_no_cost(store: str) -> None:
    async with fleetgate.open_gate(store, {"budgets": {"project": {"usd": 1, "per": "day"}}}) as gate:
        async with gate.lease(MODEL) as lease:
            await lease.settle(Usage(input=10))
        assert await amounts(gate, "project:default usd/day") == (0, 0)
        used = [event.usage async for event in _settled(gate)]
        assert [(usage.cost, usage.input, usage.source) for usage in used] == [(None, 10, "response")]


async def _settled(gate: fleetgate.Gate) -> Any:
    async for _, _, event in gate.events(0):
        if type(event).__name__ == "Settled":
            yield event
        if type(event).__name__ == "Released":
            return


@pytest.mark.parametrize(
    "wrong",
    [Usage(input=-1), Usage(output=10**18), Usage(cost=-1), Usage(input=True), {"input": 1}, 5, Usage(input=1.5)],  # type: ignore[arg-type]
)
async def test_a_usage_that_cannot_be_is_refused_and_changes_nothing(wrong: Any) -> None:
    async with fleetgate.open_gate("memory://", CONFIG) as gate:
        with pytest.raises(BadRequest, match="valid is"):
            gate.lease(MODEL, estimate=wrong)
        async with gate.lease(MODEL, estimate=Usage(input=1)) as lease:
            with pytest.raises(BadRequest, match="valid is"):
                await lease.settle(wrong)
        assert await amounts(gate, TOKENS) == (1, 0)


async def test_only_a_lease_that_is_held_can_be_settled() -> None:
    async with fleetgate.open_gate("memory://", CONFIG) as gate:
        lease = gate.lease(MODEL)
        with pytest.raises(FleetgateError, match="not held"):
            await lease.settle(Usage(input=1))
        async with lease:
            pass
        with pytest.raises(FleetgateError, match="no lease"):
            await lease.settle(Usage(input=1))


def test_V2_the_synchronous_library_settles_too(store: str) -> None:
    with fleetgate.sync.open_gate(store, CONFIG) as gate:
        with gate.lease(MODEL, estimate=Usage(input=100)) as lease:
            lease.settle(Usage(input=25, output=5))
        other = gate.try_lease(MODEL, estimate=Usage(input=3))
        assert isinstance(other, fleetgate.sync.Leased)
        other.release()
        (view,) = [view for view in gate.budgets() if view.name == TOKENS]
        assert (view.used, view.reserved, view.free) == (33, 0, 967)
