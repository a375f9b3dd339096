"""What the library's tests share: waiting for things, and gates with a fault or a witness in their log."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from time import monotonic

from fleetgate.core.events import Event
from fleetgate.gate.library.gate import Gate
from fleetgate.gate.library.gate_core import GateCore
from fleetgate.log.memory import MemoryLog
from fleetgate.log.protocol import Log, Position, SideWrite
from fleetgate.log.sqlite.log import SqliteLog
from tests.simulation.faults import FaultyLog

CODER = "umans/coder"
PATIENCE_S = 60.0


async def until(true: Callable[[], object], within_s: float = PATIENCE_S) -> None:
    """Wait for something to become true."""
    deadline = monotonic() + within_s
    while not true():
        assert monotonic() < deadline, f"it did not come true within {within_s} s"
        await asyncio.sleep(0.002)


async def turns(count: int) -> None:
    """Let the loop go round so many times."""
    for _ in range(count):
        await asyncio.sleep(0)


async def in_queue(gate: Gate, count: int, within_s: float = PATIENCE_S) -> None:
    """Wait until so many wait in the queue."""
    deadline = monotonic() + within_s
    while len(await gate.queue()) != count:
        assert monotonic() < deadline, f"not {count} in the queue within {within_s} s"
        await asyncio.sleep(0.002)


async def in_flight(gate: Gate, pool: str = "umans") -> int:
    """The slots of a pool that are in use, by its status."""
    return next(view.in_flight for view in await gate.status() if view.pool == pool)


async def nothing_is_left(gate: Gate) -> None:
    """Wait until the queue is empty and no slot is in use."""
    deadline = monotonic() + PATIENCE_S
    while True:
        queue, status = await gate.queue(), await gate.status()
        if not queue and not any(view.in_flight for view in status):
            return
        assert monotonic() < deadline, f"left: {queue}, {[view for view in status if view.in_flight]}"
        await asyncio.sleep(0.002)


def open_inner(store: str) -> Log:
    return MemoryLog() if store == "memory://" else SqliteLog(store.removeprefix("sqlite://"))


class Witness(FaultyLog):
    """A log that remembers each commit, whether it was durable, and may fail."""

    def __init__(self, inner: Log) -> None:
        super().__init__(inner)
        self.commits: list[list[Event]] = []
        self.durable: list[bool] = []
        self._durable = False

    def begin(self, *, durable: bool = False) -> None:
        self._durable = durable
        super().begin(durable=durable)

    def append(
        self, after: Position, at: int, events: Sequence[Event], due: int | None, side: Sequence[SideWrite] = ()
    ) -> Position:
        position = super().append(after, at, events, due, side)
        self.commits.append(list(events))
        self.durable.append(self._durable)
        return position

    def count(self, kind: type) -> int:
        return sum(type(event) is kind for events in self.commits for event in events)


def witnessed(store: str) -> tuple[Gate, Witness]:
    """A gate, to be entered, and its log."""
    log = Witness(open_inner(store))
    folder = "" if store == "memory://" else store.removeprefix("sqlite://")
    return Gate(GateCore(log, None, folder)), log


class LockHolder:
    """Holds a store's write lock in another thread, as another process would."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._held = threading.Event()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._hold)

    def _hold(self) -> None:
        self._log.lock()
        self._held.set()
        self._done.wait()
        self._log.unlock()

    def __enter__(self) -> LockHolder:
        self._thread.start()
        assert self._held.wait(PATIENCE_S)
        return self

    def let_go(self) -> None:
        self._done.set()
        self._thread.join()

    def __exit__(self, *_: object) -> None:
        self.let_go()
        self._log.close()


def rival(log: Witness) -> Log:
    """Another decider's log on the same store."""
    inner = log.inner
    if isinstance(inner, MemoryLog):
        return inner.connect()
    assert isinstance(inner, SqliteLog)
    return SqliteLog(inner._db.folder)
