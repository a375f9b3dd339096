"""The mark beside a SQLite store tells a log that was put in place of another, to who has never read it (rule Q2)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetgate.core.events import Returned
from fleetgate.log.protocol import START
from fleetgate.log.sqlite.log import SqliteLog
from fleetgate.log.sqlite.replacement_mark import NAME

DATABASE = ("fleetgate.db", "fleetgate.db-wal")


class Store:
    def __init__(self, folder: Path) -> None:
        self.folder = folder / "store"
        self._logs: list[SqliteLog] = []

    def open(self) -> SqliteLog:
        log = SqliteLog(str(self.folder))
        self._logs.append(log)
        return log

    def commit(self, ident: str) -> None:
        log = self.open()
        log.lock()
        log.begin()
        commits = log.read(START)
        log.append(commits[-1].position if commits else START, log.now(), [Returned(id=ident)], None)
        log.unlock()

    def close(self) -> None:
        for log in self._logs:
            log.close()
        self._logs.clear()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path)
    yield store
    store.close()


def put_back(store: Store, copy: Path, *, in_place: bool) -> None:
    store.close()
    for name in (*DATABASE, "fleetgate.db-shm"):
        if not in_place or name.endswith("shm"):
            (store.folder / name).unlink(missing_ok=True)
    for name in DATABASE:
        if (copy / name).exists():
            (store.folder / name).write_bytes((copy / name).read_bytes())
        else:
            (store.folder / name).unlink(missing_ok=True)


def test_q2_a_store_that_is_what_it_was_is_not_replaced(store: Store) -> None:
    assert not store.open().seems_replaced()
    for ident in "abc":
        store.commit(ident)
        assert not store.open().seems_replaced()


@pytest.mark.parametrize("in_place", [True, False], ids=["into the same file", "as another file"])
def test_q2_an_older_copy_is_noticed_until_something_is_decided(store: Store, tmp_path: Path, in_place: bool) -> None:
    store.commit("a")
    store.close()
    shutil.copytree(store.folder, tmp_path / "copy")
    store.commit("b")
    put_back(store, tmp_path / "copy", in_place=in_place)
    assert store.open().seems_replaced()
    assert store.open().seems_replaced(), "looking changes nothing"
    store.commit("c")
    assert not store.open().seems_replaced()


def test_q2_a_whole_folder_that_was_copied_is_another_one(store: Store, tmp_path: Path) -> None:
    store.commit("a")
    store.close()
    shutil.copytree(store.folder, tmp_path / "copy")
    store.folder = tmp_path / "copy"
    assert store.open().seems_replaced()


@pytest.mark.parametrize("content", [b"", b"garbage", b"1 x y 2" + b" " * 88 + b"\n", b"\xff" * 96])
def test_q2_a_mark_that_cannot_be_read_says_nothing(store: Store, content: bytes) -> None:
    store.commit("a")
    store.close()
    (store.folder / NAME).write_bytes(content)
    assert not store.open().seems_replaced()
    store.commit("b")
    assert not store.open().seems_replaced()


def test_q2_a_mark_that_is_missing_is_made(store: Store) -> None:
    store.commit("a")
    store.close()
    (store.folder / NAME).unlink()
    store.commit("b")
    assert (store.folder / NAME).stat().st_mode & 0o777 == 0o600
    assert not store.open().seems_replaced()
