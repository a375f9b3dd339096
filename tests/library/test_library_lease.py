"""Rule Y1: leases that are granted, waited for and refused."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Any

import pytest

import fleetgate
from fleetgate.core import events as ev
from tests.library.helpers import CODER, in_flight, in_queue, nothing_is_left, witnessed


async def test_Y1_a_lease_is_held_inside_the_block_and_given_back_after_it(store: str) -> None:
    async with fleetgate.open_gate(store) as gate:
        await gate.set_cap("umans", 4)
        async with gate.lease(CODER) as lease:
            assert lease.model == CODER
            assert await in_flight(gate) == 1
        assert await in_flight(gate) == 0


async def test_Y1_a_request_waits_until_a_slot_is_free(store: str) -> None:
    async with fleetgate.open_gate(store) as gate:
        await gate.set_cap("umans", 1, cooldown_s=0)
        entered: list[int] = []

        async def work(number: int) -> None:
            async with gate.lease(CODER):
                entered.append(number)
                assert await in_flight(gate) == 1

        await asyncio.gather(*(work(number) for number in range(5)))
        assert entered == [0, 1, 2, 3, 4]


async def test_Y1_A4_the_older_prompt_and_the_higher_priority_go_first(store: str) -> None:
    async with fleetgate.open_gate(store) as gate:
        await gate.set_cap("umans", 1, cooldown_s=0)
        entered: list[str] = []
        now = time.time()

        async def work(name: str, **options: Any) -> None:
            async with gate.lease(CODER, **options):
                entered.append(name)

        async with gate.lease(CODER), asyncio.TaskGroup() as tasks:
            tasks.create_task(work("newest"))
            tasks.create_task(work("older", since=now - 60))
            tasks.create_task(work("oldest", since=datetime.fromtimestamp(now - 600, UTC)))
            tasks.create_task(work("urgent", priority=60))
            tasks.create_task(work("in the future", since=now + 600, priority=-1))
            await in_queue(gate, 5)
            await gate.set_cap("umans", 2)
        assert entered == ["urgent", "oldest", "older", "newest", "in the future"]


async def test_Y1_several_slots_are_taken_at_once(store: str) -> None:
    async with fleetgate.open_gate(store) as gate:
        await gate.set_cap("umans", 3)
        async with gate.lease(CODER, slots=3):
            assert await in_flight(gate) == 3
            assert not await gate.try_lease(CODER)


async def test_Y1_B5_with_any_the_next_candidate_is_taken_when_the_first_is_full(store: str) -> None:
    async with fleetgate.open_gate(store) as gate:
        await gate.set_cap("umans", 1)
        async with gate.lease(CODER), gate.lease([CODER, "openai/gpt-5"], any_candidate=True) as other:
            assert other.model == "openai/gpt-5"


async def test_Y1_agents_and_requests_are_counted_apart_and_agents_take_a_host_slot(store: str) -> None:
    async with fleetgate.open_gate(store) as gate:
        await gate.set_cap("umans", 1)
        async with gate.lease(CODER), gate.lease(CODER, kind="agents"):
            pools = {(view.kind, view.pool): view.in_flight for view in await gate.status()}
            assert pools["requests", "umans"] == 1
            assert pools["agents", f"host:{gate.host}"] == 1


# Being told no.


async def test_Y1_A7_try_lease_answers_at_once_with_a_lease_or_the_reason(store: str) -> None:
    gate, log = witnessed(store)
    async with gate:
        await gate.set_cap("umans", 1)
        held = await gate.try_lease(CODER)
        assert held
        assert not isinstance(held, fleetgate.Deferred)
        assert held.model == CODER
        told = await gate.try_lease(CODER)
        assert isinstance(told, fleetgate.Deferred)
        assert not told
        assert told.reason.code == "concurrency_cap"
        assert told.reason.pool == "umans"
        assert (told.reason.in_flight, told.reason.limit) == (1, 1)
        assert await gate.queue() == []
        await held.release()
        await held.release()
        assert log.count(ev.Released) == 1
        assert log.count(ev.Deferred) == 1


async def test_Y1_a_lease_of_try_lease_may_be_used_as_a_block(store: str) -> None:
    async with fleetgate.open_gate(store) as gate:
        await gate.set_cap("umans", 1, cooldown_s=0)
        got = await gate.try_lease(CODER)
        assert isinstance(got, fleetgate.Leased)
        async with got as lease:
            assert lease.model == CODER
        assert await gate.try_lease(CODER)


async def test_Y1_a_request_that_waits_longer_than_its_timeout_is_told_why_and_leaves_the_queue(store: str) -> None:
    async with fleetgate.open_gate(store) as gate:
        await gate.set_cap("umans", 1)
        async with gate.lease(CODER):
            with pytest.raises(fleetgate.NotAdmitted, match=r"within 0.05 s: 1 of 1 slots of umans") as told:
                async with gate.lease(CODER, timeout_s=0.05):
                    pytest.fail("it was let in")
            assert told.value.reason.code == "concurrency_cap"
            assert await gate.queue() == []
        await nothing_is_left(gate)


async def test_Y1_a_timeout_that_is_not_reached_changes_nothing(store: str) -> None:
    async with fleetgate.open_gate(store) as gate, gate.lease(CODER, timeout_s=30) as lease:
        assert lease.model == CODER


@pytest.mark.parametrize("kind", ["requests", "agents"])
async def test_Y1_without_any_time_to_wait_it_enters_where_there_is_room_and_else_not(store: str, kind: str) -> None:
    async with fleetgate.open_gate(store) as gate:
        await gate.set_cap("umans", 1, kind=kind, cooldown_s=0)
        async with gate.lease(CODER, kind=kind, timeout_s=0) as lease:
            assert lease.model == CODER
            with pytest.raises(fleetgate.NotAdmitted, match=r"at once: 1 of 1 slots of umans") as told:
                await gate.lease(CODER, kind=kind, timeout_s=0).acquire()
            assert told.value.reason.code == "concurrency_cap"
            assert await gate.queue() == []
        await nothing_is_left(gate)


async def test_Y1_a_timeout_at_the_moment_of_the_grant_leaves_nothing_behind(store: str) -> None:
    async with fleetgate.open_gate(store) as gate:
        await gate.set_cap("umans", 1, cooldown_s=0)
        for tenths in range(30):
            try:
                async with gate.lease(CODER, timeout_s=tenths / 10_000):
                    assert await in_flight(gate) == 1
            except fleetgate.NotAdmitted:
                pass
        await nothing_is_left(gate)


async def test_Y1_a_ticket_that_is_cancelled_tells_its_task(store: str) -> None:
    async with fleetgate.open_gate(store) as gate:
        await gate.set_cap("umans", 1)
        async with gate.lease(CODER):
            waiter = asyncio.create_task(gate.lease(CODER).acquire())
            await in_queue(gate, 1)
            (view,) = await gate.queue()
            assert view.position == 1
            await gate.cancel(view.ticket.id)
            with pytest.raises(fleetgate.NotAdmitted, match="cancelled"):
                await waiter
        await nothing_is_left(gate)


async def test_A10_a_lease_with_a_key_that_is_taken_is_not_entered(store: str) -> None:
    async with fleetgate.open_gate(store) as gate:
        async with gate.lease(CODER, key="nightly"):
            with pytest.raises(fleetgate.NotAdmitted, match="nightly") as told:
                async with gate.lease(CODER, key="nightly"):
                    pytest.fail("two at once with one key")
            assert told.value.reason.code == "key_taken"
            refused = await gate.try_lease(CODER, key="nightly")
            assert isinstance(refused, fleetgate.Deferred)
        async with gate.lease(CODER, key="nightly"):
            pass


# Mistakes.


@pytest.mark.parametrize("outcome", ["fine", "", None, 5, "\ud800"])
async def test_Q1_an_outcome_that_is_none_is_refused_and_the_lease_is_still_held(store: str, outcome: Any) -> None:
    async with fleetgate.open_gate(store) as gate:
        await gate.set_cap("umans", 1)
        async with gate.lease(CODER) as lease:
            with pytest.raises(fleetgate.BadRequest, match="valid are ok, rate_limited"):
                await lease.release(outcome)
            assert await in_flight(gate) == 1
            await lease.release("server_error")
        await nothing_is_left(gate)


async def test_Y1_a_lease_is_used_once(store: str) -> None:
    async with fleetgate.open_gate(store) as gate:
        lease = gate.lease(CODER)
        async with lease:
            with pytest.raises(fleetgate.FleetgateError, match="once"):
                async with lease:
                    pass
        with pytest.raises(fleetgate.FleetgateError, match="once"):
            async with lease:
                pytest.fail("nothing was asked for")
        tried = await gate.try_lease(CODER)
        assert isinstance(tried, fleetgate.Leased)
        await tried.release()
        with pytest.raises(fleetgate.FleetgateError, match="once"):
            async with tried:
                pytest.fail("it was given back")


async def test_Y1_a_model_of_a_lease_that_is_not_held_is_an_error(store: str) -> None:
    async with fleetgate.open_gate(store) as gate:
        with pytest.raises(fleetgate.FleetgateError, match="not held"):
            _ = gate.lease(CODER).model


async def test_Y1_a_gate_that_is_not_open_says_so(store: str) -> None:
    gate = fleetgate.open_gate(store)
    with pytest.raises(fleetgate.FleetgateError, match="async with"):
        async with gate.lease(CODER):
            pass
    with pytest.raises(fleetgate.FleetgateError, match="async with"):
        await gate.set_cap("umans", 1)
    with pytest.raises(fleetgate.FleetgateError, match="async with"):
        await gate.status()
    async with gate:
        with pytest.raises(fleetgate.FleetgateError, match="once"):
            async with gate:
                pass
    with pytest.raises(fleetgate.FleetgateError, match="closed"):
        async with gate.lease(CODER):
            pass
    with pytest.raises(fleetgate.FleetgateError, match="closed"):
        await gate.status()
    with pytest.raises(fleetgate.FleetgateError, match="closed"):
        await gate.set_cap("umans", 1)
    with pytest.raises(fleetgate.FleetgateError, match="once"):
        async with gate:
            pass
    await gate.close()


BAD_REQUESTS: list[tuple[Any, dict[str, Any]]] = [
    ("umans", {}),
    ("", {}),
    (5, {}),
    ([CODER, None], {}),
    ([["umans/coder"]], {}),
    (CODER, {"kind": "slots"}),
    (CODER, {"kind": None}),
    (CODER, {"slots": 0}),
    (CODER, {"slots": 1.5}),
    (CODER, {"slots": "1"}),
    (CODER, {"priority": 101}),
    (CODER, {"priority": 0.5}),
    (CODER, {"project": None}),
    (CODER, {"project": "\ud800"}),
    (CODER, {"key": "\udfff"}),
    (CODER, {"key": 7}),
    (CODER, {"since": float("nan")}),
    (CODER, {"since": float("-inf")}),
    (CODER, {"since": -1e300}),
    (CODER, {"since": "yesterday"}),
    (CODER, {"since": datetime(2026, 1, 1)}),  # noqa: DTZ001 - without a zone it means nothing
    (CODER, {"any_candidate": "yes"}),
]


@pytest.mark.parametrize(("model", "options"), BAD_REQUESTS)
async def test_Q1_a_request_that_cannot_be_is_refused_and_harms_no_other_request(
    model: Any, options: dict[str, Any], store: str
) -> None:
    gate, log = witnessed(store)
    async with gate:
        await gate.set_cap("umans", 64)

        async def good() -> None:
            async with gate.lease(CODER):
                pass

        async def bad() -> None:
            with pytest.raises(fleetgate.FleetgateError) as told:
                async with gate.lease(model, **options):
                    pytest.fail("it was let in")
            assert isinstance(told.value, fleetgate.BadName | fleetgate.BadRequest)
            with pytest.raises((fleetgate.BadName, fleetgate.BadRequest)):
                await gate.try_lease(model, **options)

        await asyncio.gather(good(), bad(), good())
        await nothing_is_left(gate)
        assert log.count(ev.Granted) == 2
    if store != "memory://":
        async with fleetgate.open_gate(store) as again:  # what was written can be read
            assert len([event async for event in up_to_now(again)]) > 2


async def up_to_now(gate: fleetgate.Gate) -> Any:
    last = None
    async with asyncio.timeout(20):
        async with gate.lease("end/of-it"):
            pass
        async for seq, at, event in gate.events(since=0):
            yield seq, at, event
            if isinstance(event, ev.Released) and event.model == "end/of-it":
                last = seq
                break
    assert last is not None


BAD_SETTINGS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("set_cap", ("umans", 0), {}),
    ("set_cap", ("umans", True), {}),
    ("set_cap", ("umans", 2.5), {}),
    ("set_cap", ("umans", "3"), {}),
    ("set_cap", ("not a selector", 3), {}),
    ("set_cap", (None, 3), {}),
    ("set_cap", ("umans", 3), {"cooldown_s": -1}),
    ("set_cap", ("umans", 3), {"cooldown_s": float("inf")}),
    ("set_cap", ("umans", 3), {"cooldown_s": "1"}),
    ("set_cap", ("umans", 3), {"max_hold_s": float("nan")}),
    ("set_cap", ("umans", 3), {"on_429": "panic"}),
    ("set_cap", ("umans", 3), {"name": 5}),
    ("set_cap", ("umans", 3), {"name": "\ud800"}),
    ("set_cap", ("umans", 3), {"kind": "slots"}),
    ("remove_cap", ("not a selector",), {}),
    ("set_cooldown", ("umans", None), {}),
    ("set_cooldown", ("umans", 1e300), {}),
    ("pause", ("umans",), {"for_s": 1e300}),
    ("pause", ("umans",), {"for_s": float("nan")}),
    ("pause", ("nobody",), {}),
    ("resume", ("nobody",), {}),
    ("cancel", ("nobody",), {}),
    ("cancel", ("\ud800",), {}),
    ("report", (fleetgate.RateLimited(),), {"pool": "nobody"}),
    ("report", (fleetgate.RateLimited(),), {"lease": "nobody"}),
    ("report", (fleetgate.RateLimited(retry_after_s=float("inf")),), {"pool": "umans"}),
    ("report", (fleetgate.RateLimited(retry_after_s=1e300),), {"pool": "umans"}),
]


@pytest.mark.parametrize(("method", "arguments", "options"), BAD_SETTINGS)
async def test_Q1_a_setting_that_cannot_be_is_refused_and_changes_nothing(
    method: str, arguments: tuple[Any, ...], options: dict[str, Any], store: str
) -> None:
    gate, log = witnessed(store)
    async with gate:
        await gate.set_cap("umans", 2)
        before, commits = await gate.status(), len(log.commits)
        with pytest.raises((fleetgate.BadName, fleetgate.BadRequest, fleetgate.NotFound)):
            await getattr(gate, method)(*arguments, **options)
        assert await gate.status() == before
        assert len(log.commits) == commits
