"""The stores that the contract holds for. A new log is added here, and to nothing else in this folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from fleetgate.core.events import Event
from fleetgate.log import open_log
from fleetgate.log.memory import MemoryLog
from fleetgate.log.protocol import START, Log, Position, SideWrite
from fleetgate.log.sqlite.log import SqliteLog
from tests.memory_backup import RestorableStore
from tests.pooling_node import LendingNode
from tests.postgres_server import Server
from tests.postgres_stores import backup, fresh_store

DATABASE = ("fleetgate.db", "fleetgate.db-wal", "fleetgate.db-shm")


class Time:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


class Store:
    """One store, as its users see it: any number of logs on it, and an operator who restores backups."""

    def __init__(self) -> None:
        self.time = Time()
        self._opened: list[Log] = []

    def open(self) -> Log:
        """Another decider's log on this store."""
        log = self._open()
        self._opened.append(log)
        return log

    def close(self) -> None:
        for log in self._opened:
            log.close()

    def _open(self) -> Log:
        raise NotImplementedError

    def backup(self) -> Callable[[], None]:
        """Make a backup now; call what is returned to restore it under whoever runs."""
        raise NotImplementedError


class InMemory(Store):
    def __init__(self) -> None:
        super().__init__()
        self._store = RestorableStore(self.time)

    def _open(self) -> Log:
        return MemoryLog(store=self._store)

    def backup(self) -> Callable[[], None]:
        copy = self._store.backup()
        return lambda: self._store.restore(copy)


class InSqlite(Store):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder / "store"

    def _open(self) -> Log:
        return SqliteLog(str(self._folder), self.time)

    def backup(self) -> Callable[[], None]:
        copy = self._folder.parent / "backup"
        shutil.copytree(self._folder, copy)

        def restore() -> None:
            for name in DATABASE:
                (self._folder / name).unlink(missing_ok=True)
            for name in DATABASE[:2]:  # the third is the shared memory of processes that ran when the copy was made
                if (copy / name).exists():
                    shutil.copy(copy / name, self._folder / name)

        return restore


class InPostgres(Store):
    def __init__(self, server: Server) -> None:
        super().__init__()
        self._url = fresh_store(server)

    def _open(self) -> Log:
        return open_log(self._url, clock=self.time)

    def backup(self) -> Callable[[], None]:
        return backup(self._url)


class ThroughNode(InPostgres):
    """By connections that the node of a host lends."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._node = LendingNode(self._url)

    def _open(self) -> Log:
        return self._node.open(self.time)

    def close(self) -> None:
        assert all(log.upkept_by_node for log in self._opened if log._link.alive), "one went to the server by itself"  # type: ignore[attr-defined]
        super().close()
        self._node.stop()


_FAR = [pytest.param(name, marks=pytest.mark.postgres) for name in ("postgres", "node")]


@pytest.fixture(params=["memory", "sqlite", *_FAR])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    store: Store
    if request.param == "postgres":
        store = InPostgres(request.getfixturevalue("postgres"))
    elif request.param == "node":
        store = ThroughNode(request.getfixturevalue("postgres"))
    else:
        store = InMemory() if request.param == "memory" else InSqlite(tmp_path)
    yield store
    store.close()


@pytest.fixture
def log(store: Store) -> Log:
    return store.open()


Commits = Callable[..., Position]


@pytest.fixture
def commit() -> Commits:
    """Commit events behind everything that is there, as a decider does."""

    def commit(
        log: Log,
        events: Sequence[Event] = (),
        *,
        due: int | None = None,
        side: Sequence[SideWrite] = (),
        durable: bool = False,
        after: Position | None = None,
    ) -> Position:
        log.lock()
        try:
            log.begin(durable=durable)
            position = last_position(log, START) if after is None else after
            return log.append(position, log.now(), events, due, side)
        finally:
            log.unlock()

    return commit


def last_position(log: Log, position: Position) -> Position:
    stored = log.snapshot()
    if stored is not None:
        position = stored.position
    while commits := log.read(position):
        position = commits[-1].position
    return position
