"""A store whose bytes were changed: it is noticed and said what to do, or what is read is what was written."""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

import pytest

from fleetgate.core import events as ev
from fleetgate.log.protocol import START, Commit, Head, LogReplaced, Position, SideWrite, Stored, StoreError
from fleetgate.log.sqlite.log import SqliteLog

FLIPS = 400
FIRST_AT = 1_000_000
TABLES = ("told", "jobs")


def fill(log: SqliteLog, number: int, position: Position = START) -> Position:
    """Commits of different sizes, with values beside the log."""
    for n in range(number):
        log.lock()
        try:
            log.begin()
            log.read(position)
            events = [ev.Bypassed("h|b|n|1|1", ("umans/coder",), f"command {n} " + "x" * (37 * n % 900))] * (1 + n % 3)
            side = [SideWrite(TABLES[n % 2], f"key{n}", b"value of %d " % n * (n % 40 + 1))]
            position = log.append(position, FIRST_AT + n, events, FIRST_AT + 2 * n, side)
        finally:
            log.unlock()
    return position


class Everything(NamedTuple):
    """All that can be read of a log."""

    commits: list[Commit]
    head: Head | None
    events: list[tuple[int, int, ev.Event]]
    later: list[tuple[int, int, ev.Event]]
    snapshot: Stored | None
    values: dict[str, bytes]

    def is_as(self, written: Everything) -> bool:
        """The same. A value beside the log may not be found, and is never another."""
        return self[:-1] == written[:-1] and self.values.items() <= written.values.items()


def everything(log: SqliteLog) -> Everything:
    values = {key: value for table in TABLES for key, value in log.side_items(table)}
    return Everything(log.read(START), log.head(), list(log.history()), list(log.history(17)), log.snapshot(), values)


class Files:
    """The files of a store, to be changed in place and put back."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.path = folder / name
        self._kept = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}

    def put_back(self) -> None:
        for path in self.folder.iterdir():
            if path.is_file() and path not in self._kept:
                path.unlink()
        for path, data in self._kept.items():
            with path.open("r+b" if path.exists() else "w+b") as file:  # the same file: its inode is known
                file.write(data)
                file.truncate()

    def change(self, seed: int) -> None:
        """One byte, or a few that follow one another, are others."""
        chance = random.Random(seed)
        data = bytearray(self._kept[self.path])
        at = chance.randrange(len(data))
        for place in range(at, min(at + chance.choice((1, 1, 1, 4, 64)), len(data))):
            data[place] ^= chance.randrange(1, 256)
        with self.path.open("r+b") as file:
            file.write(data)


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Files, Everything]:
    """A store that nobody has open."""
    folder = tmp_path_factory.mktemp("closed")
    log = SqliteLog(str(folder), clock=lambda: FIRST_AT)
    position = fill(log, 60)
    log.save_snapshot(b"the state", position)
    fill(log, 60, position)
    written = everything(log)
    log.close()
    return Files(folder, "fleetgate.db"), written


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Files, Everything]:
    """A store whose commits are in the write-ahead log, as a crash leaves it."""
    folder = tmp_path_factory.mktemp("crashed")
    log = SqliteLog(str(folder), clock=lambda: FIRST_AT)
    position = fill(log, 60)
    log.save_snapshot(b"the state", position)
    fill(log, 60, position)
    written = everything(log)
    files = Files(folder, "fleetgate.db-wal")
    kept = (folder / "fleetgate.db-wal").rename(folder / "kept")  # closing would take it into the database
    log.close()
    kept.rename(folder / "fleetgate.db-wal")
    return files, written


@pytest.mark.parametrize("store", ["closed", "crashed"])
def test_a_changed_byte_is_noticed_or_changes_nothing(store: str, request: pytest.FixtureRequest):
    files, written = request.getfixturevalue(store)
    noticed = 0
    for seed in range(FLIPS):
        files.put_back()
        files.change(seed)
        try:
            log = SqliteLog(str(files.folder), clock=lambda: FIRST_AT)
        except StoreError:
            noticed += 1
            continue
        try:
            if log.seems_replaced():
                noticed += 1  # commits are missing: those who run are counted before anybody enters
            else:
                assert everything(log).is_as(written), f"seed {seed}"
        except StoreError as error:
            noticed += "`fleetgate doctor`" in str(error) or "restore a backup" in str(error)
        except LogReplaced:
            noticed += 1
        finally:
            log.close()
    assert noticed > FLIPS // 10


def test_damage_is_named_with_what_to_do(closed: tuple[Files, Everything]):
    files, _ = closed
    files.put_back()
    data = files.path.read_bytes()
    at = data.index(b"command 33 ")
    with files.path.open("r+b") as file:
        file.seek(at)
        file.write(b"Command")
    log = SqliteLog(str(files.folder), clock=lambda: FIRST_AT)
    try:
        with pytest.raises(
            StoreError, match=r"damaged \(commit 34 is not as it was written\).*fleetgate doctor.*backup"
        ):
            log.read(START)
        with pytest.raises(StoreError, match=r"commit 34"):
            list(log.history())
        assert len(log.read(START, 30)) == 30, "what is whole can be read"
    finally:
        log.close()


@pytest.mark.parametrize("what", ["empty", "cut", "folder", "text", "nothing"])
def test_what_is_no_store_is_said_in_a_sentence(what: str, tmp_path: Path):
    log = SqliteLog(str(tmp_path), clock=lambda: FIRST_AT)
    fill(log, 50)
    log.close()
    path = tmp_path / "fleetgate.db"
    if what == "empty":
        path.write_bytes(b"")
    elif what == "cut":
        path.write_bytes(path.read_bytes()[:9_000])
    elif what == "text":
        path.write_text("hello")
    else:
        path.unlink()
        if what == "folder":
            path.mkdir()
    said = says(tmp_path)
    assert (str(path) in said) == (what != "nothing"), said


def says(folder: Path) -> str:
    """What is said of a store in a folder that cannot be used; "" of one that can."""
    try:
        log = SqliteLog(str(folder), clock=lambda: FIRST_AT)
        try:
            everything(log)
        finally:
            log.close()
    except StoreError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("names", [("-wal",), ("-shm",), ("-wal", "-shm")], ids=["wal", "shm", "both"])
def test_files_that_are_removed_beside_an_open_store_are_survived(names: tuple[str, ...], tmp_path: Path):
    """What was only in the write-ahead log is lost, and that is noticed; nothing else is."""
    one, other = (SqliteLog(str(tmp_path), clock=lambda: FIRST_AT) for _ in range(2))
    try:
        position = fill(one, 20)
        assert len(other.read(START)) == 20
        for name in names:
            (tmp_path / f"fleetgate.db{name}").unlink()
        for log in (other, one):
            try:
                found = log.read(position)
                assert found == []
            except LogReplaced:
                position = START
            position = fill(log, 3, log.read(START)[-1].position if log.read(START) else START)
        commits = one.read(START)
        assert commits == other.read(START)
        assert [commit.number for commit in commits] == list(range(1, len(commits) + 1))
        assert len(commits) in (6, 26)
    finally:
        one.close()
        other.close()
