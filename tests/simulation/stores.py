"""The stores of a simulation: any number of deciders on each, in virtual time, and an operator who restores backups."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from fleetgate.log.memory import MemoryLog
from fleetgate.log.postgres import PostgresLog
from fleetgate.log.protocol import Log
from fleetgate.log.sqlite.log import SqliteLog
from fleetgate.testing import FakeClock
from tests.memory_backup import RestorableStore
from tests.postgres_server import Server
from tests.postgres_stores import backup, fresh_store

START_MS = 1_700_000_000_000
_DATABASE = ("fleetgate.db", "fleetgate.db-wal", "fleetgate.db-shm")


class Store:
    """One store and its clock."""

    def __init__(self) -> None:
        self.clock = FakeClock(START_MS)

    def open(self) -> Log:
        """Another decider's log."""
        raise NotImplementedError

    def backup(self) -> Callable[[], None]:
        """Make a backup now; call what is returned to restore it under whoever runs."""
        raise NotImplementedError


class InMemory(Store):
    def __init__(self) -> None:
        super().__init__()
        self._store = RestorableStore(self.clock)

    def open(self) -> MemoryLog:
        return MemoryLog(store=self._store)

    def backup(self) -> Callable[[], None]:
        copy = self._store.backup()
        return lambda: self._store.restore(copy)


class InSqlite(Store):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder / "store"
        self._backups = 0

    def open(self) -> SqliteLog:
        return SqliteLog(str(self._folder), self.clock)

    def backup(self) -> Callable[[], None]:
        self._backups += 1
        copy = self._folder.parent / f"backup-{self._backups}"
        shutil.copytree(self._folder, copy)

        def restore() -> None:
            for name in _DATABASE:
                (self._folder / name).unlink(missing_ok=True)
            for name in _DATABASE[:2]:  # the third is the shared memory of those who ran when the copy was made
                if (copy / name).exists():
                    shutil.copy(copy / name, self._folder / name)
            shutil.rmtree(self._folder / "snapshots", ignore_errors=True)
            if (copy / "snapshots").exists():
                shutil.copytree(copy / "snapshots", self._folder / "snapshots")

        return restore


class InPostgres(Store):
    def __init__(self, server: Server) -> None:
        super().__init__()
        self._url = fresh_store(server)

    def open(self) -> PostgresLog:
        return PostgresLog(self._url, self.clock)

    def backup(self) -> Callable[[], None]:
        return backup(self._url)
