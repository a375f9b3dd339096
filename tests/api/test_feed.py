"""H2: the feed and its streams in one process: slow readers, what was pruned, a log that is replaced, trouble."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fleetgate.api.events import feed as feeds
from fleetgate.api.events import sse as streams
from fleetgate.api.events.feed import Batch, Feed, FeedEvent, FeedListener, Notice
from fleetgate.api.events.sse import Stream
from fleetgate.api.history_reader import HistoryReader
from fleetgate.core import commands as cmd
from fleetgate.core.entities import Rule
from fleetgate.front.asgi import AsgiExchange, scope_of
from fleetgate.gate.library.gate_core import GateCore
from fleetgate.gate.serving.service_gate import ServiceGate
from fleetgate.log.memory import MemoryLog
from fleetgate.log.protocol import Commit, Position, StoreError
from fleetgate.log.sqlite.log import SqliteLog
from fleetgate.testing import FakeClock
from tests.front.fronted import until
from tests.front.request_wire import RequestWire
from tests.service_gate import opened_service


class Service:
    """As much of one as a stream needs."""

    version = "1"
    started_at = "now"

    def __init__(self, gate: ServiceGate) -> None:
        self.gate = gate
        self.feed = Feed(gate)
        self.archive = HistoryReader(gate)


class Wire(RequestWire):
    """What a stream sends, and a reader that may be slow or leave."""

    def stream(self, stream: Stream) -> asyncio.Future[None]:
        exchange = AsgiExchange(self.request)
        return asyncio.ensure_future(stream(scope_of(self.request, {}), exchange.receive, exchange.send))

    def events(self) -> list[tuple[str, Any]]:
        found = []
        for block in self.sent.decode().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
            if "event" in fields:
                found.append((fields["event"], msgspec.json.decode(fields["data"])))
        return found

    async def until(self, event: str) -> Any:
        await until(lambda: any(name == event for name, _ in self.events()))
        found = [data for name, data in self.events() if name == event]
        return found[0]


async def cap(gate: ServiceGate, number: int) -> None:
    await gate.decide(cmd.SetRule(Rule("requests", "umans", cap=number)))


async def test_h2_a_reader_that_does_not_keep_up_is_told_so_and_let_go(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(feeds, "_MOST_PENDING", 3)
    async with opened_service(GateCore(MemoryLog())) as gate:
        service, wire = Service(gate), Wire()
        await service.feed.start()
        stream = Stream(service, None, frozenset())  # type: ignore[arg-type]
        running = wire.stream(stream)
        await wire.until("hello")
        wire.pause()
        for number in range(1, 10):
            await cap(gate, number)
        await until(lambda: service.feed.seq >= 9)
        wire.resume()
        behind = await wire.until("behind")
        await running
        assert behind["seq"] < 9
        assert len(service.feed) == 0
        # It resumes from what it has seen, and misses nothing.
        again = Wire()
        resumed = again.stream(Stream(service, behind["seq"], frozenset()))  # type: ignore[arg-type]
        await until(lambda: again.events() and again.events()[-1][1].get("seq") == 9)
        assert [data["seq"] for name, data in again.events() if name == "rule_set"] == list(
            range(behind["seq"] + 1, 10)
        )
        again.leave()
        await resumed
        await service.feed.stop()


async def test_h2_a_reader_that_takes_nothing_at_all_is_let_go(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(streams, "STUCK_S", 0.05)
    async with opened_service(GateCore(MemoryLog())) as gate:
        service, wire = Service(gate), Wire()
        await service.feed.start()
        running = wire.stream(Stream(service, None, frozenset()))  # type: ignore[arg-type]
        await wire.until("hello")
        wire.pause()
        await cap(gate, 1)
        await running
        assert len(service.feed) == 0
        await service.feed.stop()


async def test_h2_what_is_no_longer_kept_is_said(tmp_path: Path):
    folder = str(tmp_path / "store")
    clock = FakeClock(1_700_000_000_000)
    log = SqliteLog(folder, clock)
    async with opened_service(GateCore(log, None, folder)) as gate:
        service, wire = Service(gate), Wire()
        for number in range(1, 6):
            await cap(gate, number)
            if number > 3:  # two snapshots: what is behind the older one may go
                log.save_snapshot(msgspec.json.encode((await gate.read()).export()), await gate.position())
        clock.advance(2)
        log.maintain(keep_ms=1)
        await service.feed.start()
        running = wire.stream(Stream(service, 1, frozenset()))  # type: ignore[arg-type]
        told = await wire.until("pruned")
        assert (told["from"], told["to"]) == (2, 3)
        assert "no longer kept" in told["text"]
        await wire.until("rule_set")
        assert [data["seq"] for name, data in wire.events() if name == "rule_set"] == [4, 5]
        wire.leave()
        await running
        await service.feed.stop()
        service.archive.close()


async def test_h2_a_reader_that_knows_more_than_was_told_yet_is_not_taken_for_one_of_another_log():
    async with opened_service(GateCore(MemoryLog())) as gate:
        service, wire = Service(gate), Wire()
        await service.feed.start()
        await service.feed.stop()  # as far as it has read, the log is empty
        await cap(gate, 1)
        running = wire.stream(Stream(service, 1, frozenset()))  # type: ignore[arg-type]
        await wire.until("hello")
        await cap(gate, 2)
        await service.feed._read()
        assert (await wire.until("rule_set"))["seq"] == 2
        assert [name for name, _ in wire.events()] == ["hello", "rule_set"]
        wire.leave()
        await running


async def test_h2_heartbeats_carry_how_far_a_filtered_stream_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(streams, "HEARTBEAT_S", 0.05)
    async with opened_service(GateCore(MemoryLog())) as gate:
        service, wire = Service(gate), Wire()
        await service.feed.start()
        running = wire.stream(Stream(service, None, frozenset({"granted"})))  # type: ignore[arg-type]
        await wire.until("hello")
        await cap(gate, 1)
        await until(lambda: b"\nid: 1\n" in wire.sent)
        assert b"event: rule_set" not in wire.sent
        wire.leave()
        await running
        await service.feed.stop()


async def test_q2_trouble_with_the_store_is_told_once_and_the_stream_goes_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(feeds, "_TROUBLE_S", 0.01)
    async with opened_service(GateCore(MemoryLog())) as gate:
        service = Service(gate)
        await service.feed.start()
        listener = service.feed.listen()
        broken, failures = True, 0
        commits = gate.commits

        async def fails(after: Any, limit: int) -> Any:
            nonlocal failures
            if broken:
                failures += 1
                raise StoreError("the disk is full")
            return await commits(after, limit)

        gate.commits = fails  # type: ignore[method-assign]
        await until(lambda: failures >= 5)
        assert list(listener.pending) == [Notice("trouble", {"text": "the disk is full"})]
        broken = False
        await cap(gate, 1)
        await until(lambda: len(listener.pending) >= 2)
        second = listener.pending[1]
        assert isinstance(second, Batch)
        assert second.first == 1
        await service.feed.stop()


async def test_h2_a_listener_keeps_no_more_than_it_may(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(feeds, "_MOST_PENDING", 2)
    listener = FeedListener(0)
    for seq in (1, 2, 3, 4):
        listener.tell(Batch([FeedEvent(seq, "x", b"")]))
    assert listener.behind
    assert not listener.pending
    assert listener.seq == 2


async def test_h2_what_was_decided_together_is_read_in_slices_so_that_others_have_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feeds, "_EVENTS_AT_ONCE", 10)
    monkeypatch.setattr(feeds, "_IDLE_PAUSE_S", 0.01)
    async with opened_service(GateCore(MemoryLog())) as gate:
        feed = Feed(gate)
        slices: list[int] = []
        read = gate.commits

        async def commits(position: Position, most: int) -> list[Commit]:
            found = await read(position, most)
            slices.append(sum(len(commit.events) for commit in found))
            return found

        monkeypatch.setattr(gate, "commits", commits)
        heard: list[object] = []
        feed.hear(heard.append)
        await feed.start()
        feed.listen()  # so that it reads the log

        for number in range(1, 6):  # commits of five: it learns how large they are
            await asyncio.gather(*(cap(gate, 5 * number + each) for each in range(5)))
            await until(lambda: len(heard) >= 5 * number)  # noqa: B023
        slices.clear()
        for number in range(6, 46):
            await asyncio.gather(*(cap(gate, 5 * number + each) for each in range(5)))
        await until(lambda: len(heard) >= 5 * 45)
        await feed.stop()
    assert 0 < max(slices) <= 10
