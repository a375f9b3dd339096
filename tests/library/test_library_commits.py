"""Group commit, and a store that is busy or fails, as a program sees it (rule Q2)."""

from __future__ import annotations

import asyncio
import threading
from time import monotonic
from typing import Any

import pytest

import fleetgate
from fleetgate.core import events as ev
from fleetgate.gate.library import background_tasks
from fleetgate.gate.library.background_tasks import BackgroundTasks
from fleetgate.gate.replica import replica
from fleetgate.log.sqlite.upkeep import Upkeep
from tests.library.helpers import (
    CODER,
    PATIENCE_S,
    LockHolder,
    in_flight,
    in_queue,
    nothing_is_left,
    rival,
    turns,
    until,
    witnessed,
)
from tests.timed import within

TASKS = 64


async def test_commands_of_many_tasks_share_commits(store: str) -> None:
    gate, log = witnessed(store)
    async with gate:
        await gate.set_cap("umans", TASKS, cooldown_s=0, on_429="step")
        begun = len(log.commits)
        inside = asyncio.Barrier(TASKS)

        async def work() -> None:
            async with gate.lease(CODER):
                await inside.wait()

        await asyncio.gather(*(work() for _ in range(TASKS)))
        assert log.count(ev.Granted) == log.count(ev.Released) == TASKS
        assert len(log.commits) - begun <= 4, "one for all that enter and one for all that leave, or little more"


async def test_commands_that_come_while_a_commit_is_under_way_go_into_the_next_one_together(store: str) -> None:
    gate, log = witnessed(store)
    async with gate:
        await gate.set_cap("umans", TASKS, on_429="step")
        with LockHolder(rival(log)) as held:
            first = asyncio.create_task(gate.lease(CODER).acquire())
            await until(lambda: gate.core.commits.busy)
            others = [asyncio.create_task(gate.lease(CODER).acquire()) for _ in range(TASKS - 1)]
            await turns(3)
            begun = len(log.commits)
            held.let_go()
            await asyncio.gather(first, *others)
        assert len(log.commits) - begun == 2


async def test_a_single_command_is_committed_at_once(store: str) -> None:
    gate, log = witnessed(store)
    async with gate:
        await gate.set_cap("umans", 1, cooldown_s=0)
        begun = len(log.commits)
        task = asyncio.create_task(gate.lease(CODER).acquire())
        await turns(2)
        assert len(log.commits) == begun + 1
        lease = await task
        assert isinstance(lease, fleetgate.Leased)
        await lease.release()
        assert len(log.commits) == begun + 2


async def test_what_a_person_sets_is_on_disk_and_lease_traffic_need_not_be(store: str) -> None:
    gate, log = witnessed(store)
    async with gate:
        for change in (
            gate.set_cap("umans", 1, cooldown_s=0),
            gate.set_cooldown("umans", 0),
            gate.pause("umans"),
            gate.resume("umans"),
            gate.remove_cap("umans"),
        ):
            log.durable.clear()
            await change
            assert log.durable == [True]
        log.durable.clear()
        async with gate.lease(CODER):
            pass
        assert log.durable == [False, False]


# Somebody else has the lock.


async def test_Q2_a_lock_that_another_process_holds_does_not_stop_the_loop(store: str) -> None:
    gate, log = witnessed(store)
    async with gate:
        await gate.set_cap("umans", 1)
        longest = 0.0

        async def tick() -> None:
            nonlocal longest
            last = monotonic()
            while True:
                await asyncio.sleep(0.001)
                now = monotonic()
                longest, last = max(longest, now - last), now

        with LockHolder(rival(log)) as held:
            ticking = asyncio.create_task(tick())
            task = asyncio.create_task(gate.lease(CODER).acquire())
            await until(lambda: gate.core.commits.busy)
            await asyncio.sleep(0.3)  # the time in which the loop could stand still
            assert not task.done()
            held.let_go()
            await task
            ticking.cancel()
        assert await in_flight(gate) == 1
        within(longest, 0.25, "s that the loop stood still")


async def test_Q2_a_timeout_is_kept_while_another_process_has_the_lock_and_names_it(store: str) -> None:
    gate, log = witnessed(store)
    async with gate:
        await gate.set_cap("umans", 1)
        with LockHolder(rival(log)) as held:
            with pytest.raises(fleetgate.NotAdmitted, match="lock") as told:
                async with gate.lease(CODER, timeout_s=0.05):
                    pass
            assert told.value.reason.code == "store_busy"
            held.let_go()
        await nothing_is_left(gate)


async def test_Q2_a_read_while_another_process_has_the_lock_waits_and_sees_the_result(store: str) -> None:
    gate, log = witnessed(store)
    async with gate:
        await gate.set_cap("umans", 1)
        with LockHolder(rival(log)) as held:
            task = asyncio.create_task(gate.lease(CODER).acquire())
            await until(lambda: gate.core.commits.busy)
            looking = asyncio.gather(gate.status(), gate.queue())
            await turns(5)
            assert not looking.done()
            held.let_go()
            status, queue = await looking
        assert [view.in_flight for view in status if view.pool == "umans"] == [1]
        assert queue == []
        await task


async def test_Q2_upkeep_does_not_stop_the_loop_for_a_lock_either(sqlite: str, monkeypatch: pytest.MonkeyPatch) -> None:
    at_work = threading.Event()
    write = BackgroundTasks._write_snapshot

    def noted(*arguments: Any) -> None:
        at_work.set()
        try:
            write(*arguments)
        finally:
            at_work.clear()

    monkeypatch.setattr(background_tasks, "UPKEEP_S", 0.01)
    monkeypatch.setattr(BackgroundTasks, "_write_snapshot", noted)
    monkeypatch.setattr(replica, "_SNAPSHOT_EVERY", 1)
    gate, log = witnessed(sqlite)
    with LockHolder(rival(log)) as held:
        # The thread that writes the snapshot must not keep the loop from letting go.
        asyncio.get_running_loop().call_later(0.3, held.let_go)
        async with gate:
            held.let_go()
            await gate.set_cap("umans", 1)
            async with gate.lease(CODER):
                pass
            await until(lambda: log.inner.snapshot() is not None)
    holder = LockHolder(rival(log))
    gate, log = witnessed(sqlite)
    async with gate:
        async with gate.lease(CODER):
            pass
        with holder as held:
            await until(at_work.is_set)
            began = monotonic()
            await asyncio.sleep(0.05)
            slept = monotonic() - began
            held.let_go()
        await nothing_is_left(gate)
        within(slept, 1, "s that the loop stood still")


async def test_decisions_do_not_wait_for_upkeep_that_waits_for_the_disk(
    sqlite: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go = threading.Event(), threading.Event()

    def slow_disk(upkeep: Upkeep) -> None:
        begun.set()
        assert go.wait(PATIENCE_S)

    monkeypatch.setattr(background_tasks, "UPKEEP_S", 0.01)
    monkeypatch.setattr(replica, "_SNAPSHOT_EVERY", 1)
    monkeypatch.setattr(Upkeep, "_checkpoint", slow_disk)
    async with fleetgate.open_gate(sqlite) as gate:
        await gate.set_cap("umans", 1, cooldown_s=0, on_429="step")
        await until(begun.is_set)
        try:
            for _ in range(3):
                async with gate.lease(CODER, timeout_s=PATIENCE_S / 4):
                    pass
        finally:
            go.set()
        await until(lambda: gate.core.log.snapshot() is not None)
        await nothing_is_left(gate)


# The store fails.


async def test_Q2_a_commit_that_fails_is_told_to_all_of_its_callers_and_the_next_call_works(store: str) -> None:
    gate, log = witnessed(store)
    async with gate:
        await gate.set_cap("umans", 4, on_429="step")
        log.arm(at="append", kind="error")
        told = await asyncio.gather(
            gate.lease(CODER).acquire(),
            gate.try_lease(CODER),
            gate.set_cap("umans", 9, on_429="step"),
            return_exceptions=True,
        )
        assert [type(one) for one in told] == [fleetgate.StoreError] * 3
        assert [view.cap for view in await gate.status() if view.pool == "umans"] == [4]
        async with gate.lease(CODER):
            assert await in_flight(gate) == 1
        await nothing_is_left(gate)


async def test_Q2_a_lease_whose_commit_came_and_whose_answer_did_not_is_given_back(store: str) -> None:
    gate, log = witnessed(store)
    async with gate:
        await gate.set_cap("umans", 1, cooldown_s=0)
        log.arm(at="appended", kind="error")
        with pytest.raises(fleetgate.StoreError):
            await gate.lease(CODER).acquire()
        await nothing_is_left(gate)
        async with gate.lease(CODER, timeout_s=5):
            pass


async def test_Q2_a_release_that_failed_is_made_good_as_soon_as_the_store_works_again(store: str) -> None:
    gate, log = witnessed(store)
    async with gate:
        await gate.set_cap("umans", 1, cooldown_s=0)
        lease = gate.lease(CODER)
        await lease.acquire()
        log.arm(at="append", kind="error")
        with pytest.raises(fleetgate.StoreError):
            await lease.release()
        await gate.set_cooldown("umans", 0)
        await nothing_is_left(gate)


async def test_Q2_a_release_that_failed_is_made_good_when_the_gate_is_closed(sqlite: str) -> None:
    async with fleetgate.open_gate(sqlite) as other:
        gate, log = witnessed(sqlite)
        async with gate:
            await gate.set_cap("umans", 1)
            lease = gate.lease(CODER)
            await lease.acquire()
            log.arm(at="append", kind="error")
            with pytest.raises(fleetgate.StoreError):
                await lease.release()
        await nothing_is_left(other)


async def test_Q2_what_left_the_block_is_told_and_not_that_the_store_failed_then(store: str) -> None:
    gate, log = witnessed(store)
    async with gate:
        await gate.set_cap("umans", 1)

        async def leave_by(error: type[Exception] | None) -> None:
            async with gate.lease(CODER):
                log.arm(at="append", kind="error")
                if error is not None:
                    raise error

        with pytest.raises(ZeroDivisionError):
            await leave_by(ZeroDivisionError)
        with pytest.raises(fleetgate.StoreError):
            await leave_by(None)

        async def work() -> None:
            async with gate.lease(CODER):
                log.arm(at="append", kind="error")
                await asyncio.sleep(3600)

        task = asyncio.create_task(work())
        while not await in_flight(gate):
            await turns(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await gate.set_cap("umans", 1)
        await nothing_is_left(gate)


async def test_Q2_a_store_that_fails_for_a_while_does_not_end_a_wait(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_tasks, "POLL_S", 0.02)
    gate, log = witnessed(store)
    async with gate:
        await gate.set_cap("umans", 1, cooldown_s=0)
        holder = gate.lease(CODER)
        await holder.acquire()
        task = asyncio.create_task(gate.lease(CODER).acquire())
        await in_queue(gate, 1)
        for step in ("read", "was read", "read", "append"):
            log.arm(at=step, kind="error")
            if step == "append":
                with pytest.raises(fleetgate.StoreError):
                    await gate.set_cap("umans", 1)
            await until(lambda: bool(log.failed_at))
        assert not task.done()
        await holder.release()
        await task


async def test_Q2_a_claim_that_failed_is_tried_again(sqlite: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_tasks, "POLL_S", 0.05)
    gate, log = witnessed(sqlite)
    async with gate, fleetgate.open_gate(sqlite) as other:
        await gate.set_cap("umans", 1, cooldown_s=0)
        holder = other.lease(CODER)
        await holder.acquire()
        task = asyncio.create_task(gate.lease(CODER).acquire())
        await in_queue(other, 1)
        log.arm(at="append", kind="error")
        began = monotonic()
        await holder.release()
        await task
        assert log.failed_at == "append"
        within(monotonic() - began, 8, "s, and not by the grant's return to the line after 10 s")


async def test_a_gate_that_does_nothing_does_not_hoard_what_others_do(
    sqlite: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_tasks, "UPKEEP_S", 0.01)
    async with fleetgate.open_gate(sqlite) as idle, fleetgate.open_gate(sqlite) as busy:
        for _ in range(20):
            async with busy.lease(CODER):
                pass
        await until(lambda: idle.core.replica.position == busy.core.replica.position)
        await until(lambda: not idle.core.replica.seen)
