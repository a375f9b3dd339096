"""Rule Y1: leaving the block in any way releases the lease, even a cancellation at any moment."""

from __future__ import annotations

import asyncio

import pytest

import fleetgate
from fleetgate.core import events as ev
from tests.library.helpers import (
    CODER,
    LockHolder,
    in_flight,
    in_queue,
    nothing_is_left,
    rival,
    turns,
    until,
    witnessed,
)


async def test_Y1_leaving_by_an_exception_releases_and_says_so_in_history(store: str) -> None:
    gate, log = witnessed(store)
    async with gate:
        await gate.set_cap("umans", 1)
        with pytest.raises(ZeroDivisionError):
            async with gate.lease(CODER):
                _ = 1 / 0
        await nothing_is_left(gate)
        (released,) = [event for events in log.commits for event in events if isinstance(event, ev.Released)]
        assert released.outcome == "local_error"


async def test_Y1_a_task_cancelled_inside_the_block_releases(store: str) -> None:
    async with fleetgate.open_gate(store) as gate:
        await gate.set_cap("umans", 1)
        entered = asyncio.Event()

        async def work() -> None:
            async with gate.lease(CODER):
                entered.set()
                await asyncio.sleep(3600)

        task = asyncio.create_task(work())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await nothing_is_left(gate)


async def test_Y1_a_task_cancelled_in_the_queue_leaves_it(store: str) -> None:
    gate, log = witnessed(store)
    async with gate:
        await gate.set_cap("umans", 1)
        async with gate.lease(CODER):
            task = asyncio.create_task(gate.lease(CODER).acquire())
            await in_queue(gate, 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await in_queue(gate, 0)
            assert log.count(ev.Cancelled) == 1
        await nothing_is_left(gate)


async def test_Y1_a_task_cancelled_before_its_request_was_even_sent_leaves_nothing(store: str) -> None:
    async with fleetgate.open_gate(store) as gate:
        await gate.set_cap("umans", 1)
        task = asyncio.create_task(gate.lease(CODER).acquire())
        await turns(1)  # it has asked; the batch is not under way yet
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await nothing_is_left(gate)


async def test_Y1_a_task_cancelled_in_the_very_turn_of_its_grant_gives_it_back(store: str) -> None:
    gate, log = witnessed(store)
    async with gate:
        await gate.set_cap("umans", 1, cooldown_s=0)
        holder = gate.lease(CODER)
        await holder.acquire()
        task = asyncio.create_task(gate.lease(CODER).acquire())
        await in_queue(gate, 1)
        commits = len(log.commits)
        releasing = asyncio.create_task(holder.release())
        while len(log.commits) == commits:
            await turns(1)
        assert log.count(ev.Granted) == 2
        assert not task.done(), "it was told in the turn of the commit, and this test proves nothing"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await releasing
        await nothing_is_left(gate)


async def test_Y1_a_task_cancelled_while_it_releases_has_released(store: str) -> None:
    async with fleetgate.open_gate(store) as gate:
        await gate.set_cap("umans", 1)

        async def work() -> None:
            async with gate.lease(CODER):
                asyncio.get_running_loop().call_soon(task.cancel)

        task = asyncio.create_task(work())
        with pytest.raises(asyncio.CancelledError):
            await task
        await nothing_is_left(gate)


@pytest.mark.parametrize("free", [True, False], ids=["with a free slot", "behind others"])
async def test_Y1_a_task_cancelled_at_whichever_turn_of_the_loop_leaves_nothing(store: str, free: bool) -> None:
    async with fleetgate.open_gate(store) as gate:
        await gate.set_cap("umans", 1, cooldown_s=0)
        finished = False
        turn = 0
        while not finished:
            turn += 1
            holder = None if free else gate.lease(CODER)
            if holder is not None:
                await holder.acquire()

            async def work() -> None:
                async with gate.lease(CODER):
                    await turns(2)

            task = asyncio.create_task(work())
            if holder is not None:
                await turns(turn // 2)
                asyncio.ensure_future(holder.release())  # noqa: RUF006 - the gate keeps what it has to do
            await turns(turn)
            finished = task.done()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await nothing_is_left(gate)
        assert turn > 4


async def test_Y1_X4_a_storm_of_cancellations_leaks_nothing(store: str) -> None:
    gate, log = witnessed(store)
    async with gate:
        await gate.set_cap("umans", 3, cooldown_s=0)

        async def work() -> None:
            async with gate.lease(CODER):
                await turns(3)

        tasks = [asyncio.create_task(work()) for _ in range(200)]
        for number, task in enumerate(tasks):
            if number % 3:
                await turns(number % 4)
                task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert sum(end is None for end in ended) >= 67
        await nothing_is_left(gate)
        assert log.count(ev.Granted) == log.count(ev.Released) + log.count(ev.Reclaimed)


async def test_Y1_a_grant_that_was_not_claimed_is_released_without_cooling_down(sqlite: str) -> None:
    """A ticket granted by another process and left before it is claimed was never used."""
    gate, log = witnessed(sqlite)
    async with gate, fleetgate.open_gate(sqlite) as other:
        await gate.set_cap("umans", 1, cooldown_s=30)
        holder = other.lease(CODER)
        await holder.acquire()
        await gate.set_cooldown("umans", 0)
        task = asyncio.create_task(gate.lease(CODER).acquire())
        await in_queue(gate, 1)
        gate.core.read_mail = lambda: None  # type: ignore[method-assign]
        with LockHolder(rival(log)) as held:
            releasing = asyncio.create_task(holder.release())
            await asyncio.sleep(0)
            task.cancel()  # in its batch, behind the release that grants
            held.let_go()
        await asyncio.gather(task, releasing, return_exceptions=True)
        await nothing_is_left(gate)


# Closing.


async def test_Y1_a_gate_that_is_closed_gives_back_what_it_holds(sqlite: str) -> None:
    async with fleetgate.open_gate(sqlite) as other:
        await other.set_cap("umans", 2)
        gate = fleetgate.open_gate(sqlite)
        async with gate:
            await gate.lease(CODER).acquire()
            await gate.lease(CODER).acquire()
            assert await in_flight(other) == 2
        await nothing_is_left(other)
        await gate.close()


async def test_Y1_a_gate_closed_while_others_wait_tells_them(store: str) -> None:
    gate, log = witnessed(store)
    await gate.__aenter__()
    await gate.set_cap("umans", 1)
    held = gate.lease(CODER)
    await held.acquire()
    waiters = [asyncio.create_task(gate.lease(CODER).acquire()) for _ in range(3)]
    await in_queue(gate, 3)
    late = asyncio.create_task(gate.lease(CODER).acquire())
    await turns(1)
    await gate.close()
    told = await asyncio.gather(*waiters, late, return_exceptions=True)
    assert [type(one) for one in told] == [fleetgate.FleetgateError] * 4
    assert all("closed" in str(one) for one in told)
    await held.release()
    assert log.count(ev.Released) == log.count(ev.Granted)
    assert log.count(ev.Cancelled) >= 3


async def test_Y1_a_block_that_outlives_its_gate_ends_quietly(store: str) -> None:
    async with fleetgate.open_gate(store) as gate:
        await gate.set_cap("umans", 1)
        async with gate.lease(CODER) as lease:
            await gate.close()
            assert lease.model == CODER
            with pytest.raises(fleetgate.FleetgateError, match="closed"):
                await lease.report(fleetgate.RateLimited())


async def test_Y1_two_who_close_at_once_both_find_it_closed(store: str) -> None:
    gate = fleetgate.open_gate(store)
    async with gate:
        await gate.set_cap("umans", 1)
        await asyncio.gather(gate.close(), gate.close())


async def test_Y1_a_task_cancelled_while_it_closes_still_gives_everything_back(sqlite: str) -> None:
    gate, log = witnessed(sqlite)
    await gate.__aenter__()
    await gate.set_cap("umans", 1)
    await gate.lease(CODER).acquire()
    with LockHolder(rival(log)) as held:
        closing = asyncio.create_task(gate.close())
        await until(lambda: gate.core.commits.busy)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        held.let_go()
        await gate.close()
    async with fleetgate.open_gate(sqlite) as other:
        await nothing_is_left(other)


async def test_Y1_a_gate_that_cannot_be_opened_keeps_nothing_open(sqlite: str) -> None:
    gate, log = witnessed(sqlite)
    log.arm(at="read", kind="error")
    with pytest.raises(fleetgate.StoreError):
        await gate.__aenter__()
    assert "close" in log.steps
    with pytest.raises(fleetgate.FleetgateError, match="once"):
        await gate.__aenter__()
