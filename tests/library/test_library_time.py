"""What time brings about in a library gate: cooldown, pause, rate limits, the longest hold (rules K, P, L5)."""

from __future__ import annotations

import asyncio
from time import monotonic

import pytest

import fleetgate
from fleetgate.core import events as ev
from fleetgate.gate.library import background_tasks
from tests.library.helpers import CODER, in_flight, in_queue, nothing_is_left, turns, witnessed
from tests.timed import within


@pytest.fixture
def without_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but its deadline wakes a waiter."""
    monkeypatch.setattr(background_tasks, "POLL_S", 3600)


@pytest.mark.usefixtures("without_poll")
async def test_K1_the_end_of_a_cooldown_wakes_a_waiter_without_any_other_traffic(store: str) -> None:
    async with fleetgate.open_gate(store) as gate:
        await gate.set_cap("umans", 1, cooldown_s=0.2)
        async with gate.lease(CODER):
            pass
        began = monotonic()
        async with gate.lease(CODER, timeout_s=20):
            took = monotonic() - began
        assert took > 0.1
        within(took, 10, "s until the end of a cooldown of 0.2 s woke it")


@pytest.mark.usefixtures("without_poll")
async def test_P1_the_end_of_a_pause_wakes_a_waiter_without_any_other_traffic(store: str) -> None:
    async with fleetgate.open_gate(store) as gate:
        await gate.set_cap("umans", 1)
        await gate.pause("umans", for_s=0.2)
        told = await gate.try_lease(CODER)
        assert isinstance(told, fleetgate.Deferred)
        assert told.reason.code == "paused"
        assert told.reason.until is not None
        async with gate.lease(CODER, timeout_s=20):
            pass


@pytest.mark.usefixtures("without_poll")
async def test_K1_a_deadline_is_met_although_the_first_in_the_queue_has_gone(sqlite: str) -> None:
    """Two gates wait for the same cooldown; the one that is to act is closed before it comes."""
    async with fleetgate.open_gate(sqlite) as one, fleetgate.open_gate(sqlite) as two:
        await one.set_cap("umans", 1, cooldown_s=0.3)
        holder = one.lease(CODER)
        await holder.acquire()
        first = asyncio.create_task(two.lease(CODER).acquire())
        await in_queue(one, 1)
        second = asyncio.create_task(one.lease(CODER).acquire())
        await in_queue(one, 2)
        await holder.release()
        await turns(5)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await asyncio.wait_for(second, 20)


async def test_P1_a_pause_holds_back_newcomers_until_it_is_ended(store: str) -> None:
    async with fleetgate.open_gate(store) as gate:
        await gate.set_cap("umans", 2)
        async with gate.lease(CODER):
            await gate.pause("umans")
            waiter = asyncio.create_task(gate.lease(CODER).acquire())
            await in_queue(gate, 1)
            (view,) = [view for view in await gate.status() if view.pool == "umans"]
            assert view.paused_until is not None
            assert view.in_flight == 1, "who is inside goes on"
            await gate.resume("umans")
            await waiter


async def test_P1_P2_P3_a_rate_limit_pauses_the_pool_and_lowers_its_limit_once_for_each_incident(store: str) -> None:
    gate, log = witnessed(store)
    async with gate:
        await gate.set_cap("umans", 3, on_429="step")
        async with gate.lease(CODER) as one, gate.lease(CODER) as two:
            await one.report(fleetgate.RateLimited(retry_after_s=30))
            await two.report(fleetgate.RateLimited(retry_after_s=20))
            (view,) = [view for view in await gate.status() if view.pool == "umans"]
            assert (view.limit, view.cap, view.auto_reduced, view.auto_reduced_from) == (2, 3, True, 3)
            assert view.paused_until is not None
            assert view.pause_cause == "rate_limited"
            assert log.count(ev.Reduced) == 1
            assert isinstance(await gate.try_lease(CODER), fleetgate.Deferred)
        await gate.report(fleetgate.RateLimited(retry_after_s=0), pool="umans")
        (view,) = [view for view in await gate.status() if view.pool == "umans"]
        assert view.limit == 1, "a report that names no lease is a new incident"
        await gate.set_cap("umans", 3)
        (view,) = [view for view in await gate.status() if view.pool == "umans"]
        assert (view.limit, view.auto_reduced) == (3, False)


async def test_L5_a_lease_held_too_long_is_taken_back_once_and_its_late_release_is_harmless(store: str) -> None:
    gate, log = witnessed(store)
    async with gate:
        await gate.set_cap("umans", 1, cooldown_s=0, max_hold_s=0.1)
        async with gate.lease(CODER) as late:
            async with gate.lease(CODER, timeout_s=20) as next_one:
                assert await in_flight(gate) == 1
                assert next_one.id != late.id
            with pytest.raises(fleetgate.NotFound):
                await late.report(fleetgate.RateLimited())
        reclaimed = [event for events in log.commits for event in events if isinstance(event, ev.Reclaimed)]
        assert [(event.id, event.cause) for event in reclaimed] == [(late.id, "overstayed")]
        assert log.count(ev.Released) == 1
        await nothing_is_left(gate)
