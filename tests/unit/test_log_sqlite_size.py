"""A SQLite store does not grow without limit: what was pruned is given back to the file system."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetgate.core.events import Returned
from fleetgate.log.protocol import START, Position
from fleetgate.log.sqlite import upkeep
from fleetgate.log.sqlite.log import SqliteLog

NOW = 1_000_000


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that a small store takes, too."""
    for name, value in {"PRUNE_COMMITS": 40, "FREE_PAGES": 20, "VACUUM_PAGES": 16}.items():
        monkeypatch.setattr(upkeep, name, value)


def fill(log: SqliteLog, number: int, position: Position) -> Position:
    for n in range(number):
        log.lock()
        log.begin()
        log.read(position)
        position = log.append(position, NOW + n, [Returned(id="x" * 1_000)], None)
        log.unlock()
    return position


def tend(log: SqliteLog, most_bytes: int) -> int:
    """Do all that is to be done; in how many steps."""
    steps = 1
    while log.maintain(10**12, most_bytes):
        steps += 1
    return steps


def filled(folder: Path) -> tuple[SqliteLog, Position]:
    log = SqliteLog(str(folder), clock=lambda: NOW)
    position = fill(log, 600, START)
    log.save_snapshot(b"a", position)
    position = fill(log, 2, position)
    log.save_snapshot(b"b", position)
    log._db.conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return log, position


def size(folder: Path) -> int:
    return (folder / "fleetgate.db").stat().st_size


@pytest.mark.usefixtures("small")
def test_what_was_pruned_is_given_back_in_small_steps(tmp_path: Path):
    log, position = filled(tmp_path)
    assert size(tmp_path) > 600_000
    assert 10 < tend(log, 50_000) < 40
    assert size(tmp_path) < 250_000
    assert log.read(position) == []
    assert fill(log, 3, position).commit == 605
    log.close()


@pytest.mark.usefixtures("small")
def test_a_store_of_an_older_release_gives_back_too(tmp_path: Path):
    log, _ = filled(tmp_path)
    log.close()
    older(tmp_path / "fleetgate.db")
    before = size(tmp_path)
    log = SqliteLog(str(tmp_path), clock=lambda: NOW)
    tend(log, 50_000)
    assert size(tmp_path) < before / 3
    assert log._db.rows("PRAGMA auto_vacuum") == [(2,)]
    assert log._db.rows("PRAGMA journal_mode") == [("wal",)]
    log.close()


def older(path: Path) -> None:
    """As an older release made it: space is never given back, and values have no checksum."""
    conn = sqlite3.connect(path, isolation_level=None)
    for statement in ("ALTER TABLE side DROP COLUMN checksum", "PRAGMA auto_vacuum=NONE", "VACUUM"):
        conn.execute(statement)
    conn.close()


def test_values_beside_the_log_of_an_older_release_are_read_and_new_ones_have_a_checksum(tmp_path: Path):
    log, _ = filled(tmp_path)
    log.beat("site")
    log.close()
    older(tmp_path / "fleetgate.db")
    log = SqliteLog(str(tmp_path), clock=lambda: NOW)
    assert log.side_items("beats")
    assert log._db.rows("SELECT checksum FROM side") == [(None,)] * len(log.side_items("beats"))
    log.beat("other")
    assert any(checksum is not None for (checksum,) in log._db.rows("SELECT checksum FROM side"))
    log.close()


@pytest.mark.usefixtures("small")
def test_others_decide_between_two_steps(tmp_path: Path):
    log, position = filled(tmp_path)
    other = SqliteLog(str(tmp_path), clock=lambda: NOW)
    taken: list[bool] = []
    unlock: Callable[[], None] = log.unlock

    def unlocking() -> None:
        unlock()
        taken.append(other.try_lock())
        other.unlock()

    log.unlock = unlocking  # type: ignore[method-assign]
    tend(log, 50_000)
    assert len(taken) > 10
    assert all(taken)
    log.close()
    other.close()
