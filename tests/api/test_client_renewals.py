"""H2: clients that a service speaks for, in one process and with short times."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Lease, Rule, Spec
from fleetgate.core.errors import FleetgateError
from fleetgate.gate.library.gate_core import GateCore
from fleetgate.gate.library.lease_handles import Deferred
from fleetgate.gate.serving import client_renewals as module
from fleetgate.gate.serving.client_renewals import ClientRenewals, Gone, StillQueued, Stop
from fleetgate.gate.serving.service_gate import ServiceGate
from fleetgate.log import open_log
from tests.api.served import PATIENCE_S
from tests.postgres_server import Server
from tests.postgres_stores import backup, fresh_store
from tests.service_gate import opened_service
from tests.simulation.stores import InSqlite

CODER = Spec(("umans/coder",), "requests")
GRACE_S = 1.0


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SWEEP_S", 0.02)


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[tuple[ServiceGate, ClientRenewals]]:
    async with opened_service(GateCore(open_log(f"sqlite://{folder}"), None, str(folder))) as gate:
        await gate.decide(cmd.SetRule(Rule("requests", "umans", cap=1, cooldown_ms=0)))
        clients = ClientRenewals(gate, GRACE_S)
        await clients.start()
        try:
            yield gate, clients
        finally:
            await clients.stop()


def never(tell: Callable[[], None]) -> Stop:
    return lambda: None


def at_once(tell: Callable[[], None]) -> Stop:
    tell()
    return lambda: None


def asking(gate: ServiceGate, ident: str, *, wait: bool = True, renew_ms: int = 60_000) -> cmd.Acquire:
    return cmd.Acquire(ident, CODER, gate.me, wait, wake=gate.address, client="me", renew_ms=renew_ms)


async def ended(gate: ServiceGate, kind: type) -> ev.Event:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            history = await gate.core.read_log(lambda log: list(log.history()))
            found = [event for _, _, event in history if isinstance(event, kind)]
            if found:
                return found[0]
            await asyncio.sleep(0.01)


async def queued(gate: ServiceGate, ident: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while ident not in (await gate.read()).tickets:
            await asyncio.sleep(0.01)


async def test_h2_a_lease_that_is_not_renewed_in_time_is_reclaimed(tmp_path: Path):
    async with opened(tmp_path) as (gate, clients):
        assert isinstance(await clients.ask(asking(gate, "a", renew_ms=200), 0, never, new=True), Lease)
        event = await ended(gate, ev.Reclaimed)
        assert isinstance(event, ev.Reclaimed)
        assert (event.id, event.cause, event.by) == ("a", "unrenewed", "fleetgate serve")
        with pytest.raises(Gone) as gone:
            await clients.renew("a")
        assert gone.value.cause == "unrenewed"


async def test_h2_who_renews_keeps_its_lease_and_the_log_does_not_grow(tmp_path: Path):
    async with opened(tmp_path) as (gate, clients):
        await clients.ask(asking(gate, "a", renew_ms=1500), 0, never, new=True)
        seq = (await gate.read()).seq
        for _ in range(10):
            await asyncio.sleep(0.2)  # the pace of a client: ten of them last longer than one renewal does
            assert (await clients.renew("a")).id == "a"
        assert (await gate.read()).seq == seq


async def test_h2_who_hangs_up_in_the_queue_is_taken_out_after_the_grace_time_and_not_before(tmp_path: Path):
    async with opened(tmp_path) as (gate, clients):
        await clients.ask(asking(gate, "a"), 0, never, new=True)
        assert isinstance(await clients.ask(asking(gate, "b"), 30, at_once, new=True), StillQueued)
        assert "b" in (await gate.read()).tickets
        event = await ended(gate, ev.Cancelled)
        assert isinstance(event, ev.Cancelled)
        assert (event.id, event.by) == ("b", "its client did not come back")
        with pytest.raises(Gone, match="taken out of the queue"):
            await clients.ask(asking(gate, "b"), 0.1, never, new=False)


async def test_h2_a_slot_that_comes_between_two_polls_is_there_at_the_next(tmp_path: Path):
    async with opened(tmp_path) as (gate, clients):
        await clients.ask(asking(gate, "a"), 0, never, new=True)
        assert isinstance(await clients.ask(asking(gate, "b"), 0.01, never, new=True), StillQueued)
        await gate.decide(cmd.Release("a"))
        got = await clients.ask(asking(gate, "b"), 5, never, new=False)
        assert isinstance(got, Lease)
        assert got.id == "b"


async def test_h2_a_slot_that_nobody_fetches_goes_back(tmp_path: Path):
    async with opened(tmp_path) as (gate, clients):
        await clients.ask(asking(gate, "a"), 0, never, new=True)
        await clients.ask(asking(gate, "b"), 0.01, never, new=True)
        await gate.decide(cmd.Release("a"))
        event = await ended(gate, ev.Reclaimed)
        assert isinstance(event, ev.Reclaimed)
        assert (event.id, event.cause) == ("b", "unrenewed")


async def test_h2_two_polls_of_one_request_get_one_lease(tmp_path: Path):
    async with opened(tmp_path) as (gate, clients):
        await clients.ask(asking(gate, "a"), 0, never, new=True)
        polls = [asyncio.ensure_future(clients.ask(asking(gate, "b"), 5, never, new=False)) for _ in range(3)]
        await queued(gate, "b")
        await gate.decide(cmd.Release("a"))
        got = [await poll for poll in polls]
        assert {lease.id for lease in got if isinstance(lease, Lease)} == {"b"}
        assert len((await gate.read()).leases) == 1


async def test_h2_who_does_not_want_to_wait_is_deferred_and_forgotten(tmp_path: Path):
    async with opened(tmp_path) as (gate, clients):
        await clients.ask(asking(gate, "a"), 0, never, new=True)
        assert isinstance(await clients.ask(asking(gate, "b", wait=False), 0, never, new=True), Deferred)
        assert "b" not in clients


async def test_h2_closing_leaves_leases_and_tickets_to_the_next(tmp_path: Path):
    async with opened(tmp_path) as (gate, clients):
        await clients.ask(asking(gate, "a"), 0, never, new=True)
        waiting = asyncio.ensure_future(clients.ask(asking(gate, "b"), 60, never, new=True))
        await queued(gate, "b")
        clients.answer_polls()
        assert isinstance(await waiting, StillQueued)
    async with opened(tmp_path) as (gate, clients):
        state = await gate.read()
        assert (list(state.leases), list(state.tickets)) == (["a"], ["b"])
        assert (await clients.renew("a")).id == "a"
        got = await clients.ask(asking(gate, "b"), 0.01, never, new=False)
        assert isinstance(got, StillQueued)


async def test_h2_a_client_goes_from_one_service_to_another_that_runs_beside_it(tmp_path: Path):
    async with opened(tmp_path) as (one, first), opened(tmp_path) as (two, second):
        await first.ask(asking(one, "a", renew_ms=1500), 0, never, new=True)
        for _ in range(10):
            await asyncio.sleep(0.2)  # the pace of a client: ten of them last longer than one renewal does
            await second.renew("a")
        assert (await two.read()).leases["a"].ticket.wake == two.address
        assert "a" in (await one.read()).leases  # the first one no longer judges it


# A log that lost its last commits.


@asynccontextmanager
async def restorable(tmp_path: Path, me: str = "", url: str = "") -> AsyncIterator[tuple[ServiceGate, ClientRenewals]]:
    folder = str(tmp_path / "store")
    core = GateCore(open_log(url or f"sqlite://{folder}"), None, folder)
    if me:
        core.me = core.replica.me = me
    async with opened_service(core) as node:
        await node.decide(cmd.SetRule(Rule("requests", "umans", cap=1, cooldown_ms=0, on_429="step")))
        clients = ClientRenewals(node, GRACE_S)
        await clients.start()
        try:
            yield node, clients
        finally:
            await clients.stop()


async def adoptions(gate: ServiceGate) -> list[tuple[str, str]]:
    history = await gate.core.read_log(lambda log: list(log.history()))
    return [(event.id, event.adopted) for _, _, event in history if isinstance(event, ev.Granted) and event.adopted]


async def test_q2_a_client_whose_lease_a_restored_log_has_forgotten_is_counted_before_anybody_enters(tmp_path: Path):
    store = InSqlite(tmp_path)
    async with restorable(tmp_path) as (gate, clients):
        restore = store.backup()
        assert isinstance(await clients.ask(asking(gate, "a"), 0, never, new=True), Lease)
        waiter = asyncio.create_task(clients.ask(asking(gate, "b"), 60, never, new=True))
        await queued(gate, "b")
        restore()
        assert (await clients.renew("a")).ticket.renew_ms == 60_000
        assert await adoptions(gate) == [("a", "log_lost")]
        state = await gate.read()
        assert list(state.leases) == ["a"]
        assert not waiter.done()
        await gate.decide(cmd.Release("a"))
        assert isinstance(await asyncio.wait_for(waiter, 30), Lease)  # when the log has recovered


@pytest.mark.postgres
async def test_q2_a_client_whose_lease_a_standby_has_forgotten_is_counted_at_its_next_renewal(
    tmp_path: Path, postgres: Server
):
    url = fresh_store(postgres)
    (tmp_path / "store").mkdir()
    async with restorable(tmp_path, url=url) as (gate, clients):
        restore = backup(url)
        assert isinstance(await clients.ask(asking(gate, "a"), 30, never, new=True), Lease)
        restore()
        assert (await clients.renew("a")).ticket.renew_ms == 60_000
        assert await adoptions(gate) == [("a", "log_lost")]
        assert (await gate.read()).recovers_until > gate.now()


async def test_q2_a_client_that_is_silent_after_a_restore_loses_its_lease_as_ever(tmp_path: Path):
    store = InSqlite(tmp_path)
    async with restorable(tmp_path) as (gate, clients):
        restore = store.backup()
        assert isinstance(await clients.ask(asking(gate, "a", renew_ms=500), 0, never, new=True), Lease)
        restore()
        event = await asyncio.wait_for(ended(gate, ev.Reclaimed), 30)
        assert isinstance(event, ev.Reclaimed)
        assert (event.id, event.cause) == ("a", "unrenewed")
        assert await adoptions(gate) == [("a", "log_lost")]


async def test_q2_another_service_counts_a_forgotten_client_when_it_renews_there(tmp_path: Path):
    store = InSqlite(tmp_path)
    async with (
        restorable(tmp_path, "elsewhere|boot|1|77|88") as (gone, of_gone),
        restorable(tmp_path) as (gate, clients),
    ):
        restore = store.backup()
        assert isinstance(await of_gone.ask(asking(gone, "a"), 0, never, new=True), Lease)
        assert "a" in (await gate.read()).leases
        await of_gone.stop()
        await gone.core.close()
        restore()
        assert not (await gate.read()).leases
        assert (await clients.renew("a")).ticket.holder == gate.me
        assert await adoptions(gate) == [("a", "log_lost")]
        await gate.decide(cmd.Release("a"))
        with pytest.raises(FleetgateError):
            await clients.renew("a")
