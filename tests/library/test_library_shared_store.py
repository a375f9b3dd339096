"""Several gates on one store: in one process, and in several (rules L2, Q2)."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from statistics import median
from time import monotonic

import msgspec
import pytest

import fleetgate
from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Rule
from fleetgate.gate.library import background_tasks
from fleetgate.gate.library.gate import Gate
from fleetgate.gate.library.gate_core import GateCore
from fleetgate.gate.liveness import process_identity
from fleetgate.gate.replica.lost_log_recovery import LOCAL_MS
from fleetgate.gate.replica.replica import Replica
from fleetgate.log.memory import MemoryLog, MemoryStore
from fleetgate.log.sqlite.log import SqliteLog
from fleetgate.testing import FakeClock
from tests.library.helpers import CODER, PATIENCE_S, Witness, in_flight, in_queue, nothing_is_left, until
from tests.memory_backup import RestorableStore
from tests.simulation.stores import InSqlite
from tests.timed import within


async def test_two_gates_of_one_process_hand_over_directly(sqlite: str) -> None:
    async with fleetgate.open_gate(sqlite) as one, fleetgate.open_gate(sqlite) as two:
        await one.set_cap("umans", 1, cooldown_s=0)
        took = []
        for _ in range(5):
            holder = one.lease(CODER)
            await holder.acquire()
            waiter = asyncio.create_task(two.lease(CODER).acquire())
            await in_queue(one, 1)
            began = monotonic()
            await holder.release()
            lease = await waiter
            took.append(monotonic() - began)
            assert isinstance(lease, fleetgate.Leased)
            await lease.release()
        within(median(took), background_tasks.POLL_S / 2, f"by the poll, it seems: {took}")


HOLD = """
import asyncio, os, sys
import fleetgate

async def main():
    async with fleetgate.open_gate(sys.argv[1]) as gate:
        async with gate.lease("umans/coder"):
            print("holding", flush=True)
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    print("released", flush=True)

asyncio.run(main())
"""


async def start(program: str, *arguments: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(sys.executable, "-c", program, *arguments, stdin=pipe, stdout=pipe)


async def line_of(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.readline()).decode().strip()


async def go_on(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    await process.stdin.drain()


@pytest.mark.processes
async def test_two_processes_hand_over_by_datagram_both_ways(sqlite: str) -> None:
    async with fleetgate.open_gate(sqlite) as gate:
        await gate.set_cap("umans", 1, cooldown_s=0)
        ours = gate.lease(CODER)
        await ours.acquire()
        process = await start(HOLD, sqlite)
        await in_queue(gate, 1)
        began = monotonic()
        await ours.release()
        assert await line_of(process) == "holding"
        there = monotonic() - began
        waiter = asyncio.create_task(gate.lease(CODER).acquire())
        await in_queue(gate, 1)
        began = monotonic()
        await go_on(process)
        await waiter
        back = monotonic() - began
        assert await line_of(process) == "released"
        assert await process.wait() == 0
        within(min(there, back), background_tasks.POLL_S / 2, f"by the poll, it seems: {there}, {back}")


@pytest.mark.processes
async def test_L2_a_killed_process_frees_its_library_leases_for_a_waiter_elsewhere(sqlite: str) -> None:
    async with fleetgate.open_gate(sqlite) as gate:
        await gate.set_cap("umans", 1, cooldown_s=0)
        process = await start(HOLD, sqlite)
        assert await line_of(process) == "holding"
        waiter = asyncio.create_task(gate.lease(CODER).acquire())
        await in_queue(gate, 1)
        process.kill()
        assert await process.wait() == -signal.SIGKILL
        began = monotonic()
        await waiter
        took = monotonic() - began
        causes = []
        async for _, _, event in gate.events(since=0):
            if isinstance(event, ev.Reclaimed):
                causes.append(event.cause)
                break
        assert causes == ["lost"]
        within(took, 10, "s until the slot of a dead process was free")


@pytest.mark.processes
async def test_L2_a_process_killed_in_the_queue_does_not_hold_it_up(sqlite: str) -> None:
    async with fleetgate.open_gate(sqlite) as gate:
        await gate.set_cap("umans", 1, cooldown_s=0)
        ours = gate.lease(CODER)
        await ours.acquire()
        process = await start(HOLD, sqlite)
        await in_queue(gate, 1)
        waiter = asyncio.create_task(gate.lease(CODER).acquire())
        await in_queue(gate, 2)
        process.kill()
        await process.wait()
        await ours.release()  # no process hears: it is found to be gone
        began = monotonic()
        await asyncio.wait_for(waiter, PATIENCE_S)
        within(monotonic() - began, 8, "s, and not by the grant's return to the line after 10 s")


@pytest.mark.processes
async def test_L2_a_request_that_does_not_wait_is_not_refused_because_of_dead_holders(sqlite: str) -> None:
    async with fleetgate.open_gate(sqlite) as gate:
        await gate.set_cap("umans", 1, cooldown_s=0)
        process = await start(HOLD.replace('lease("umans/coder")', 'lease("umans/coder", key="nightly")'), sqlite)
        assert await line_of(process) == "holding"
        assert not await gate.try_lease(CODER)
        process.kill()
        await process.wait()
        got = await gate.try_lease(CODER)
        assert isinstance(got, fleetgate.Leased)
        await got.release()

        process = await start(HOLD.replace('lease("umans/coder")', 'lease("umans/coder", key="nightly")'), sqlite)
        assert await line_of(process) == "holding"
        process.kill()
        await process.wait()
        async with gate.lease("openai/gpt-5", key="nightly"):
            pass


ORPHAN = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)", sys.argv[1]],
                         stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
child.returncode = 0  # no process waits for it
"""


@pytest.mark.processes
async def test_A13_agents_started_elsewhere_are_looked_for_before_one_of_ours_enters(sqlite: str) -> None:
    config = {"census": [{"match": "an-agent-of-(?P<model>[a-z]+/[a-z]+)"}], "agents": {"host": 2}}
    # Nobody's child: what our own processes start is not foreign while we hold a lease.
    parent = await start(ORPHAN, "an-agent-of-umans/coder")
    pid = int(await line_of(parent))
    assert await parent.wait() == 0
    foreign = process_identity.identify(pid)
    assert foreign is not None
    try:
        async with fleetgate.open_gate(sqlite, config) as gate:
            async with gate.lease(CODER, kind="agents", timeout_s=20):
                told = await gate.try_lease(CODER, kind="agents")
                assert isinstance(told, fleetgate.Deferred)
                assert "1 by agents started outside" in told.reason.text
            os.kill(pid, signal.SIGKILL)
            await until(lambda: process_identity.is_gone(foreign))
            async with gate.lease(CODER, kind="agents", timeout_s=20), gate.lease(CODER, kind="agents", timeout_s=20):
                pass
    finally:
        if not process_identity.is_gone(foreign):
            os.kill(pid, signal.SIGKILL)


# Woken late, or not at all.


async def test_a_waiter_that_was_passed_over_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_tasks, "POLL_S", 0.02)
    clock = FakeClock(1_700_000_000_000)
    store = MemoryStore(clock)
    one, two = Gate(GateCore(MemoryLog(store=store))), Gate(GateCore(MemoryLog(store=store)))
    async with one, two:
        await one.set_cap("umans", 1, cooldown_s=0)
        holder = one.lease(CODER)
        await holder.acquire()
        waiter = asyncio.create_task(two.lease(CODER).acquire())
        await in_queue(one, 1)
        monkeypatch.setattr(background_tasks, "POLL_S", 3600)
        two.core.tasks[0].cancel()  # it does not look: as a stopped process
        await holder.release()
        clock.advance(11_000)
        await one.set_cooldown("umans", 0)
        (view,) = await one.queue()
        assert view.ticket.away
        assert view.reason.code == "passed_over"
        await two.status()  # it looks again
        await asyncio.wait_for(waiter, PATIENCE_S)


@pytest.mark.parametrize("end", ["released", "reclaimed"])
async def test_L3_a_grant_taken_away_before_its_waiter_heard_of_it_does_not_leave_it_waiting_for_ever(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_tasks, "POLL_S", 3600)
    store = MemoryStore(FakeClock(1_700_000_000_000))
    one, two = Gate(GateCore(MemoryLog(store=store))), Gate(GateCore(MemoryLog(store=store)))
    async with one, two:
        await one.set_cap("umans", 1, cooldown_s=0)
        holder = one.lease(CODER)
        await holder.acquire()
        lease = two.lease(CODER)
        waiter = asyncio.create_task(lease.acquire())
        await in_queue(one, 1)
        await holder.release()
        operator = Replica(MemoryLog(store=store), "operator")
        operator.decide([cmd.Release(lease.id) if end == "released" else cmd.Reclaim(lease.id, "operator")])
        await two.status()
        with pytest.raises(fleetgate.NotAdmitted, match=end):
            await asyncio.wait_for(waiter, PATIENCE_S)
        await nothing_is_left(one)


async def test_Q2_a_store_restored_from_a_backup_does_not_strand_waiting_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_tasks, "POLL_S", 0.02)
    store = InSqlite(tmp_path)
    folder = str(tmp_path / "store")
    store.clock.advance(1)
    gate = Gate(GateCore(SqliteLog(folder), None, folder))
    async with gate:
        await gate.set_cap("umans", 1, cooldown_s=0)
        restore = store.backup()
        holder = gate.lease(CODER)
        await holder.acquire()
        waiter = asyncio.create_task(gate.lease(CODER).acquire())
        await in_queue(gate, 1)
        restore()
        # The copy knows of neither: the one who holds is counted again, and the one who waits asks again.
        while not any(event.adopted for _, _, event in gate.core.log.history() if isinstance(event, ev.Granted)):
            await asyncio.sleep(0.01)
        assert not waiter.done()
        await holder.release()
        await asyncio.wait_for(waiter, 20)
        lease = waiter.result()
        assert isinstance(lease, fleetgate.Leased)
        await lease.release()
        await nothing_is_left(gate)


async def test_Q2_a_program_that_only_holds_a_lease_notices_a_restored_store_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No request waits in it and it sends none: the next request must find it counted."""
    monkeypatch.setattr(background_tasks, "POLL_S", 0.02)
    store = InSqlite(tmp_path)
    folder = str(tmp_path / "store")
    async with Gate(GateCore(SqliteLog(folder), None, folder)) as gate:
        await gate.set_cap("umans", 1, cooldown_s=0)
        restore = store.backup()
        holder = gate.lease(CODER)
        await holder.acquire()
        restore()
        log = SqliteLog(folder)
        async with asyncio.timeout(PATIENCE_S):
            while not any(event.adopted for _, _, event in log.history() if isinstance(event, ev.Granted)):
                await asyncio.sleep(0.01)
        log.close()
        await holder.release()
        await nothing_is_left(gate)


async def test_Q2_a_store_that_fails_while_a_gate_finds_its_bearings_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(background_tasks, "POLL_S", 0.02)
    clock = FakeClock(1_700_000_000_000)
    store = RestorableStore(clock)
    log = Witness(MemoryLog(store=store))
    gate = Gate(GateCore(log))
    async with gate:
        await gate.set_cap("umans", 1, cooldown_s=0)
        backup = store.backup()
        holder = gate.lease(CODER)
        await holder.acquire()
        waiter = asyncio.create_task(gate.lease(CODER).acquire())
        await in_queue(gate, 1)
        log.arm(at="side", kind="error")
        store.restore(backup)
        await gate.set_cap("umans", 1)
        assert log.failed_at == "side"
        clock.advance(LOCAL_MS)
        await holder.release()
        await asyncio.wait_for(waiter, PATIENCE_S)


async def test_Q2_what_was_decided_while_a_gate_loaded_its_log_again_is_noticed(
    sqlite: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot swallows the events behind it: a gate that loads it must look at the state, not only at the tail."""
    monkeypatch.setattr(background_tasks, "POLL_S", 3600)
    folder = sqlite.removeprefix("sqlite://")
    gate = Gate(GateCore(SqliteLog(folder)))  # without a mailbox
    async with gate:
        await gate.set_cap("umans", 1, cooldown_s=0)
        holder = gate.lease(CODER)
        await holder.acquire()
        waiting = gate.lease(CODER)
        waiter = asyncio.create_task(waiting.acquire())
        cancelled = gate.lease(CODER)
        leaver = asyncio.create_task(cancelled.acquire())
        await in_queue(gate, 2)
        operator = Replica(SqliteLog(folder), "operator")
        operator.decide([cmd.Release(holder.id), cmd.Cancel(cancelled.id, "operator")])
        operator.log.save_snapshot(msgspec.json.encode(operator.state.export()), operator.position)
        operator.log.close()
        gate.core.replica._engine = None  # as after a commit that failed
        await gate.status()
        assert await asyncio.wait_for(waiter, PATIENCE_S)
        with pytest.raises(fleetgate.NotAdmitted, match="cancelled"):
            await asyncio.wait_for(leaver, PATIENCE_S)


# Leases in our name.


async def test_a_lease_in_our_name_that_we_do_not_hold_is_given_back(
    sqlite: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_tasks, "UPKEEP_S", 0.02)
    async with fleetgate.open_gate(sqlite) as gate, fleetgate.open_gate(sqlite) as neighbour:
        await gate.set_cap("umans", 3, on_429="step")
        kept = gate.lease(CODER)
        await kept.acquire()
        await neighbour.lease(CODER).acquire()
        stranger = gate.lease(CODER)._command
        other = Replica(SqliteLog(sqlite.removeprefix("sqlite://")), "other")
        other.decide([stranger])
        assert len(other.state.leases) == 3
        await until(lambda: stranger.id not in other.catch_up().leases)
        assert await in_flight(gate) == 2, "its own, and that of another gate of the same process, stay"
        other.log.close()


async def test_a_cap_set_elsewhere_admits_requests_that_wait_here(sqlite: str) -> None:
    async with fleetgate.open_gate(sqlite) as gate:
        await gate.set_cap("umans", 1)
        await gate.lease(CODER).acquire()
        waiter = asyncio.create_task(gate.lease(CODER).acquire())
        await in_queue(gate, 1)
        operator = Replica(SqliteLog(sqlite.removeprefix("sqlite://")), "operator", lambda wake: woken.append(wake))
        woken: list[object] = []
        operator.decide([cmd.SetRule(Rule("requests", "umans", cap=2, on_429="step"))])
        operator.log.close()
        assert woken
        await asyncio.wait_for(waiter, PATIENCE_S)
