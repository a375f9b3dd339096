"""The library on a PostgreSQL store: many machines, one gate (rules A1, L2, Q2, Y1)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing, contextmanager
from time import monotonic

import pytest

import fleetgate
from fleetgate.gate.library import background_tasks
from fleetgate.gate.library.gate import Gate
from fleetgate.gate.liveness import host_beats, process_identity
from fleetgate.log.protocol import StoreError
from tests.library.helpers import in_queue, until
from tests.postgres_server import Server
from tests.postgres_stores import admin, fresh_store
from tests.timed import within

pytestmark = [pytest.mark.postgres]

SOON_S = 20.0  # by which something must have happened that no process polls for


@pytest.fixture
def url(postgres: Server, tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("FLEETGATE_HOME", f"{tmp_path}/s")
    return fresh_store(postgres)


@contextmanager
def on_machine(name: str) -> Iterator[None]:
    """As if this process ran on another machine."""
    kept = process_identity._here, process_identity._this
    pid, _, _, pidns, ours = process_identity._look_around()
    process_identity._here, process_identity._this = (pid, name, f"boot-{name}", pidns, ours), (0, "")
    try:
        yield
    finally:
        process_identity._here, process_identity._this = kept


def open_on(url: str, machine: str) -> Gate:
    with on_machine(machine):
        return fleetgate.open_gate(url, {})


def test_a_release_on_one_machine_wakes_the_waiter_on_another(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_tasks, "POLL_S", 3_600.0)  # no process finds out by polling
    monkeypatch.setattr(background_tasks, "UPKEEP_S", 3_600.0)

    async def story() -> None:
        async with open_on(url, "one") as one, open_on(url, "two") as two:
            await one.set_cap("umans", 1, on_429="step")
            await one.set_cooldown("umans", 0)
            await until(lambda: two.core.listener.listens.is_set())  # type: ignore[union-attr]
            await two.status()  # what was told when it began to listen is heard by now
            held = await one.lease("umans/coder").acquire()
            assert not isinstance(held, fleetgate.Deferred)
            waiting = asyncio.ensure_future(two.lease("umans/coder", timeout_s=SOON_S).acquire())
            await in_queue(one, 1)
            await held.release()
            got = await waiting
            assert not isinstance(got, fleetgate.Deferred)
            await got.release()

    asyncio.run(story())


def test_A1_many_tasks_on_two_machines_never_exceed_the_cap_and_leave_nothing_behind(url: str) -> None:
    inside = most = 0

    async def work(gate: Gate) -> None:
        nonlocal inside, most
        for _ in range(5):
            async with gate.lease("umans/coder"):
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0.001)
                inside -= 1

    async def story() -> None:
        async with open_on(url, "one") as one, open_on(url, "two") as two:
            await one.set_cap("umans", 3)
            await one.set_cooldown("umans", 0)
            await asyncio.gather(*(work(gate) for gate in (one, two) for _ in range(15)))
            assert await one.queue() == []
            (pool,) = [view for view in await two.status() if view.selector == "umans"]
            assert pool.in_flight == 0

    asyncio.run(story())
    assert 1 <= most <= 3


def test_Q2_connections_that_are_killed_again_and_again_lose_no_lease_and_lend_none_twice(
    url: str, postgres: Server
) -> None:
    async def story() -> int:
        done = inside = 0
        async with open_on(url, "one") as gate:
            await gate.set_cap("umans", 2)
            await gate.set_cooldown("umans", 0)

            async def work() -> None:
                nonlocal done, inside
                for _ in range(20):
                    async with gate.lease("umans/coder"):
                        inside += 1
                        assert inside <= 2
                        await asyncio.sleep(0)
                        inside -= 1
                        done += 1

            async def kill() -> None:
                with admin(url) as operator:
                    while done < 75:
                        operator.execute(
                            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
                            "AND datname = current_database()"
                        )
                        await asyncio.sleep(0.05)

            await asyncio.gather(kill(), *(work() for _ in range(4)))
            assert await gate.queue() == []
        return done

    assert asyncio.run(story()) == 80


def test_Q2_the_loop_goes_on_while_another_process_keeps_the_lock(url: str) -> None:
    async def story() -> float:
        async with open_on(url, "one") as gate:
            worst = 0.0

            async def tick() -> None:
                nonlocal worst
                while True:
                    began = monotonic()
                    await asyncio.sleep(0.01)
                    worst = max(worst, monotonic() - began)

            ticking = asyncio.ensure_future(tick())
            with admin(url) as operator, operator.transaction():
                operator.execute("SELECT 1 FROM fleetgate.namespaces FOR UPDATE")
                asked = asyncio.ensure_future(gate.lease("umans/coder").acquire())
                await asyncio.sleep(1.5)  # the time in which the loop could stand still
                assert not asked.done()
            got = await asyncio.wait_for(asked, SOON_S)
            assert not isinstance(got, fleetgate.Deferred)
            await got.release()
            ticking.cancel()
            return worst

    within(asyncio.run(story()), 1.0, "s that the loop stood still")


def test_L2_a_program_that_waits_for_the_lock_all_the_time_is_heard_of_as_others_are(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (background_tasks, host_beats):
        monkeypatch.setattr(module, "BEAT_S", 0.2)

    async def story() -> None:
        async with open_on(url, "busy") as gate:
            await gate.set_cap("umans", 1)
            log = gate.core.log.connect()
            with closing(log), admin(url) as operator, operator.transaction():
                operator.execute("SELECT * FROM fleetgate.namespaces FOR UPDATE")
                waiting = asyncio.ensure_future(gate.lease("umans/coder").acquire())
                await until(lambda: gate.core.commits.busy)
                deadline = monotonic() + SOON_S
                await asyncio.to_thread(log.head)
                since = log.now()
                while int(log.side_value("beats", gate.core.beats.site) or 0) <= since:
                    assert monotonic() < deadline, "to all others this host is silent"
                    await asyncio.sleep(0.05)
                assert gate.core.commits.busy
            lease = await waiting
            assert not isinstance(lease, fleetgate.Deferred)
            await lease.release()

    asyncio.run(story())


def test_Q2_a_server_that_is_gone_fails_requests_and_they_work_again_when_it_is_back() -> None:
    server = Server()
    try:
        url = fresh_store(server)

        async def story() -> None:
            async with open_on(url, "one") as gate:
                async with gate.lease("umans/coder"):
                    pass
                server.stop()
                with pytest.raises(StoreError, match="cannot be reached"):
                    async with gate.lease("umans/coder"):
                        pass
                server.start()
                deadline = monotonic() + SOON_S
                while True:
                    try:
                        async with gate.lease("umans/coder"):
                            return
                    except StoreError:
                        assert monotonic() < deadline
                        await asyncio.sleep(0.1)

        asyncio.run(story())
    finally:
        server.remove()


def test_Y1_events_are_told_from_any_machine(url: str) -> None:
    async def story() -> list[str]:
        async with open_on(url, "one") as one, open_on(url, "two") as two:
            told = two.events(since=0)
            await one.set_cap("umans", 3)
            async with one.lease("umans/coder"):
                pass
            names: list[str] = []
            async with asyncio.timeout(SOON_S):
                async for _, _, event in told:
                    names.append(type(event).__name__)
                    if names[-1] == "Released":
                        await told.aclose()
                        return names
        return names

    assert asyncio.run(story())[-2:] == ["Granted", "Released"]
