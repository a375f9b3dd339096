"""Rule Y1: caps, cooldowns, the queue and the stream of events, from a program."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

import fleetgate
from fleetgate.core import events as ev
from fleetgate.core.views.pool_and_lease_views import PoolView
from fleetgate.gate.library import background_tasks
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


async def view_of(gate: fleetgate.Gate, pool: str = "umans") -> PoolView | None:
    return next((view for view in await gate.status() if view.pool == pool), None)


async def test_Y1_A12_a_cap_is_set_raised_and_removed_and_requests_that_fit_enter_at_once(store: str) -> None:
    async with fleetgate.open_gate(store) as gate:
        assert await view_of(gate) is None
        await gate.set_cap("umans", 1, cooldown_s=0.5, on_429="pause", max_hold_s=60, name="house")
        view = await view_of(gate)
        assert view is not None
        assert (view.cap, view.limit, view.cooldown_ms, view.on_429, view.name) == (1, 1, 500, "pause", "house")
        async with asyncio.TaskGroup() as tasks:
            for _ in range(4):
                tasks.create_task(gate.lease(CODER).acquire())
            await in_queue(gate, 3)
            (first, *_) = await gate.queue()
            assert first.reason.code == "house_concurrency_cap"
            await gate.set_cap("umans", 2)
            await in_queue(gate, 2)
            await gate.remove_cap("umans")
        assert await view_of(gate) is None
        assert await gate.queue() == []


async def test_Y1_K2_K3_a_cooldown_is_set_by_itself_and_imposes_no_cap(store: str) -> None:
    async with fleetgate.open_gate(store) as gate:
        await gate.set_cooldown("umans", 30)
        assert await view_of(gate) is None
        await gate.set_cap("umans", 1)
        async with gate.lease(CODER):
            pass
        view = await view_of(gate)
        assert view is not None
        assert (view.cooldown_ms, view.cooling, view.in_flight) == (30_000, 1, 0)
        told = await gate.try_lease(CODER)
        assert isinstance(told, fleetgate.Deferred)
        assert told.reason.code == "cooling"


async def test_Y1_P4_a_program_says_what_a_refusal_costs(store: str) -> None:
    async with fleetgate.open_gate(store) as gate:
        await gate.set_cap("umans", 2, refusals="expensive")
        assert gate.core.replica.state.rules.caps["requests", "umans"].refusals == "expensive"
        with pytest.raises(fleetgate.FleetgateError, match="valid are cheap, normal, expensive"):
            await gate.set_cap("umans", 2, refusals="free")


async def test_Y1_caps_of_agents_are_set_by_kind(store: str) -> None:
    async with fleetgate.open_gate(store) as gate:
        await gate.set_cap("host", 1, kind="agents")
        async with gate.lease(CODER, kind="agents"):
            told = await gate.try_lease(CODER, kind="agents")
            assert isinstance(told, fleetgate.Deferred)
            assert await gate.try_lease(CODER, kind="requests")


async def test_N3_a_cap_on_requests_of_a_host_holds_for_the_library(store: str) -> None:
    async with fleetgate.open_gate(store) as gate:
        await gate.set_cap("host", 1)
        async with gate.lease(CODER):
            told = await gate.try_lease("openai/gpt-5")
            assert isinstance(told, fleetgate.Deferred)
            assert told.reason.pool == f"host:{gate.host}"


async def test_Y1_the_queue_lists_everybody_by_position(store: str) -> None:
    async with fleetgate.open_gate(store) as gate:
        await gate.set_cap("umans", 1)
        async with gate.lease(CODER):
            tasks = [asyncio.create_task(gate.lease(CODER, priority=number).acquire()) for number in (0, 5, 2)]
            await in_queue(gate, 3)
            queue = await gate.queue()
            assert [(view.position, view.ticket.priority) for view in queue] == [(1, 5), (2, 2), (3, 0)]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert await gate.queue() == []


async def test_Y1_a_look_shows_what_was_asked_just_before_it(store: str) -> None:
    async with fleetgate.open_gate(store) as gate:
        await gate.set_cap("umans", 1)
        task = asyncio.create_task(gate.lease(CODER).acquire())
        await turns(1)
        assert await in_flight(gate) == 1
        lease = await task
        assert isinstance(lease, fleetgate.Leased)
        releasing = asyncio.create_task(lease.release())
        await turns(1)
        assert await in_flight(gate) == 0
        await releasing


async def test_Y1_caps_of_a_config_are_in_force_and_may_be_a_mapping(sqlite: str) -> None:
    config = {"requests": {"umans": {"cap": 1, "cooldown": "0s"}}, "agents": {"host": 2}}
    async with fleetgate.open_gate(sqlite, config) as gate:
        view = await view_of(gate)
        assert view is not None
        assert (view.cap, view.source, view.cooldown_ms) == (1, "file", 0)
        await gate.set_cap("umans", 5)
    async with fleetgate.open_gate(sqlite, config) as gate:
        view = await view_of(gate)
        assert view is not None
        assert (view.cap, view.source) == (5, "run time")


async def test_C6_a_config_that_is_wrong_names_the_key_and_opens_nothing(sqlite: str) -> None:
    with pytest.raises(fleetgate.ConfigError, match="umans"):
        fleetgate.open_gate(sqlite, {"requests": {"umans": {"cap": 0}}})
    with pytest.raises(fleetgate.ConfigError):
        fleetgate.open_gate("mysql://nowhere")
    with pytest.raises(fleetgate.ConfigError):
        fleetgate.open_gate(sqlite, "/nonexistent/config.toml")


# Events.


async def take(gate: fleetgate.Gate, count: int, since: int | None = None) -> list[tuple[int, int, ev.Event]]:
    found = []
    async with asyncio.timeout(20), aclosing(gate.events(since)) as events:
        async for event in events:
            found.append(event)
            if len(found) == count:
                break
    return found


async def test_Y1_events_are_told_in_order_and_resumed_from_any_of_them(store: str) -> None:
    async with fleetgate.open_gate(store) as gate:
        await gate.set_cap("umans", 1)
        for _ in range(3):
            async with gate.lease(CODER):
                pass
            await gate.set_cooldown("umans", 0)
        everything = await take(gate, 10, since=0)
        assert [seq for seq, _, _ in everything] == list(range(1, 11))
        assert [type(event) for _, _, event in everything[:3]] == [ev.RuleSet, ev.Granted, ev.Released]
        for since in range(10):
            assert await take(gate, 10 - since, since=since) == everything[since:]
        times = [at for _, at, _ in everything]
        assert times == sorted(times)


async def test_Y1_without_since_events_begin_now_and_go_on(store: str) -> None:
    async with fleetgate.open_gate(store) as gate:
        await gate.set_cap("umans", 1)
        following = asyncio.create_task(take(gate, 2))
        also = asyncio.create_task(take(gate, 1))
        await turns(5)
        async with gate.lease(CODER):
            pass
        kinds = [type(event) for _, _, event in await following]
        assert kinds == [ev.Granted, ev.Released]
        assert [type(event) for _, _, event in await also] == [ev.Granted]


async def test_Y1_events_of_other_processes_are_told_too(sqlite: str) -> None:
    async with fleetgate.open_gate(sqlite) as gate, fleetgate.open_gate(sqlite) as other:
        following = asyncio.create_task(take(gate, 1))
        await turns(5)
        await other.set_cap("umans", 7)
        ((_, _, event),) = await following
        assert isinstance(event, ev.RuleSet)


async def test_Y1_nothing_is_told_before_it_is_committed(sqlite: str) -> None:
    """While a thread decides, the stream must not look into the transaction that is under way."""
    gate, log = witnessed(sqlite)
    async with gate:
        await gate.set_cap("umans", 1)
        told: list[int] = []

        async def follow() -> None:
            async for seq, _, _ in gate.events(since=0):
                told.append(seq)

        following = asyncio.create_task(follow())
        await until(lambda: told == [1])
        reads: list[bool] = []
        history = log.history

        def watched(since_seq: int = 0) -> object:
            reads.append(gate.core.commits.busy)
            return history(since_seq)

        log.history = watched  # type: ignore[assignment,method-assign]
        with LockHolder(rival(log)) as held:
            task = asyncio.create_task(gate.lease(CODER).acquire())
            await until(lambda: gate.core.commits.busy)
            await asyncio.sleep(background_tasks.POLL_S)  # in which it could read
            held.let_go()
        await task
        await until(lambda: told == [1, 2])
        assert not any(reads)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_Y1_the_stream_of_a_gate_that_is_closed_ends_with_an_error(store: str) -> None:
    async with fleetgate.open_gate(store) as gate:
        following = asyncio.create_task(take(gate, 1))
        await turns(5)
    with pytest.raises(fleetgate.FleetgateError, match="closed"):
        await following


async def test_Y1_several_who_follow_an_idle_gate_keep_it_idle(store: str) -> None:
    gate, log = witnessed(store)
    async with gate:
        followers = [asyncio.create_task(take(gate, 1)) for _ in range(3)]
        await turns(10)
        log.arm()
        await asyncio.sleep(0.2)  # the time in which they could
        assert len(log.steps) < 60, "they keep waking each other"
        await gate.set_cap("umans", 1)
        await asyncio.gather(*followers)
        await nothing_is_left(gate)
