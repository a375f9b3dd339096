"""The SQLite log: its folder, its files, what is done when they are damaged, replaced or full of old things."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from fleetgate.core.errors import InternalError
from fleetgate.core.events import Event, Returned
from fleetgate.log import clock
from fleetgate.log.protocol import START, LogReplaced, Position, SideWrite, StoreError
from fleetgate.log.sqlite import connection, upkeep
from fleetgate.log.sqlite import log as sqlite_log
from fleetgate.log.sqlite.log import SqliteLog

Open = Callable[..., SqliteLog]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def open_log(folder: Path) -> Iterator[Open]:
    opened: list[SqliteLog] = []

    def open_log(at: Path = folder, time: Callable[[], int] | None = None) -> SqliteLog:
        opened.append(SqliteLog(str(at), time))
        return opened[-1]

    yield open_log
    for log in opened:
        log.close()


def commit(log: SqliteLog, events: Sequence[Event] = (), after: Position | None = None) -> Position:
    log.lock()
    try:
        log.begin()
        position = last_position(log) if after is None else after
        return log.append(position, log.now(), events, None)
    finally:
        log.unlock()


def last_position(log: SqliteLog) -> Position:
    stored = log.snapshot()
    position = stored.position if stored else START
    while commits := log.read(position):
        position = commits[-1].position
    return position


def fill(log: SqliteLog, count: int) -> list[Position]:
    position = last_position(log)
    positions = []
    for index in range(count):
        position = commit(log, [Returned(id=str(index))], position)
        positions.append(position)
    return positions


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# The folder.


def test_R6_the_first_use_makes_a_private_folder(folder: Path, open_log: Open) -> None:
    log = open_log(folder / "a" / "b")
    log.save_snapshot(b"{}", commit(log, [Returned(id="a")]))
    made = folder / "a" / "b"
    assert mode(made) == mode(made / "snapshots") == 0o700
    assert sorted(path.name for path in made.iterdir()) == [
        "fleetgate.db",
        "fleetgate.db-shm",
        "fleetgate.db-wal",
        "fleetgate.lock",
        "fleetgate.mark",
        "snapshots",
    ]
    for path in made.rglob("*"):
        assert path.is_dir() or mode(path) == 0o600, path


def test_files_in_a_folder_that_a_group_shares_are_shared_too(folder: Path, open_log: Open) -> None:
    folder.mkdir()
    folder.chmod(0o2775)
    umask = os.umask(0o077)
    try:
        log = open_log()
        log.save_snapshot(b"{}", commit(log, [Returned(id="a")]))
    finally:
        os.umask(umask)
    assert mode(folder) == 0o2775
    assert mode(folder / "snapshots") & 0o777 == 0o770
    for path in folder.rglob("*"):
        assert path.is_dir() or mode(path) == 0o660, path


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files for others")
def test_what_root_makes_in_somebodys_folder_is_theirs(folder: Path, open_log: Open) -> None:
    folder.mkdir()
    os.chown(folder, 1234, 1234)
    log = open_log()
    log.save_snapshot(b"{}", commit(log, [Returned(id="a")]))
    assert {path.stat().st_uid for path in folder.rglob("*")} == {1234}


def test_any_name_will_do_for_the_folder(tmp_path: Path, open_log: Open) -> None:
    for name in ("100% sure?", "#1", "file:x?mode=ro", "naïve 你好", 'it\'s "quoted"'):
        log = open_log(tmp_path / name)
        position = commit(log, [Returned(id="a")])
        assert open_log(tmp_path / name).read(START)[0].position == position
        assert (tmp_path / name / "fleetgate.db").exists()


def test_Q1_a_file_in_the_place_of_the_folder_is_refused(folder: Path, open_log: Open) -> None:
    folder.write_text("mine")
    with pytest.raises(StoreError, match=r"needs a folder, and .* is none"):
        open_log()
    with pytest.raises(StoreError, match="needs a folder"):
        open_log(folder / "below")
    assert folder.read_text() == "mine"


def test_a_creation_that_was_killed_half_way_is_done_again(folder: Path, open_log: Open) -> None:
    folder.mkdir()
    for name in ("fleetgate.db.new", "fleetgate.db.new-wal", "fleetgate.db.new-shm"):
        (folder / name).write_bytes(b"half")
    assert commit(open_log(), [Returned(id="a")]).commit == 1
    assert not list(folder.glob("*.new*"))


# Formats and damage.


def test_Q1_a_store_of_a_newer_fleetgate_is_refused(folder: Path, open_log: Open) -> None:
    open_log().close()
    with sqlite3.connect(folder / "fleetgate.db") as conn:
        conn.execute("PRAGMA user_version=99")
    conn.close()
    with pytest.raises(StoreError, match=r"format 99, written by a newer fleetgate .*: upgrade fleetgate"):
        open_log()


def damage_with_garbage(path: Path) -> None:
    path.write_bytes(b"this is not a database" * 1000)


def damage_by_emptying(path: Path) -> None:
    path.write_bytes(b"")


def damage_pages(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xab" * (len(data) - 4096)
    path.write_bytes(data)


def damage_by_truncating(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def put_another_database(path: Path) -> None:
    path.unlink()
    conn = sqlite3.connect(path)
    conn.execute("CREATE TABLE log (something_else)")
    conn.commit()
    conn.close()


DAMAGES = [damage_with_garbage, damage_by_emptying, damage_pages, damage_by_truncating, put_another_database]


@pytest.mark.parametrize("damage", DAMAGES)
def test_Q2_a_damaged_database_is_named_and_left_alone(
    folder: Path, open_log: Open, damage: Callable[[Path], None]
) -> None:
    log = open_log()
    fill(log, 50)
    log.close()
    path = folder / "fleetgate.db"
    damage(path)
    before = path.read_bytes()

    def use() -> None:
        log = open_log()
        log.read(START)
        commit(log, [Returned(id="a")])

    with pytest.raises(StoreError) as failure:
        use()
    said = str(failure.value)
    assert str(path) in said
    assert "damaged" in said
    assert "fleetgate doctor" in said
    assert path.read_bytes() == before

    command = said.partition("moving this one away: ")[2]
    subprocess.run(["sh", "-c", command], check=True)
    assert commit(open_log(), [Returned(id="a")]).commit == 1
    assert (folder / "damaged" / "fleetgate.db").read_bytes() == before


def test_damage_that_appears_under_a_running_process_is_told_and_ends_when_it_ends(
    folder: Path, open_log: Open
) -> None:
    log = open_log()
    fill(log, 3)
    shutil.copytree(folder, folder.parent / "copy")
    damage_with_garbage(folder / "fleetgate.db")
    (folder / "fleetgate.db-wal").unlink()
    for _ in range(2):
        with pytest.raises(StoreError, match="damaged"):
            log.try_lock()
        with pytest.raises(StoreError, match="damaged"):
            log.head()
    for name in ("fleetgate.db", "fleetgate.db-wal"):
        shutil.copy(folder.parent / "copy" / name, folder / name)
    assert len(log.read(START)) == 3
    assert commit(log, []).commit == 4


def test_the_write_ahead_log_of_a_database_that_was_moved_away_is_not_played_into_the_next(
    folder: Path, open_log: Open
) -> None:
    log = open_log()
    fill(log, 5)
    shutil.copytree(folder, folder.parent / "killed")  # as a kill -9 leaves it
    killed = folder.parent / "killed"
    (killed / "fleetgate.db").rename(killed / "old.db")
    fresh = open_log(killed)
    assert fresh.read(START) == []
    assert commit(fresh, [Returned(id="new")]).commit == 1
    assert len(list(killed.glob("fleetgate.db-wal.left-*"))) == 1


def test_events_that_this_version_does_not_know_ask_for_an_upgrade(folder: Path, open_log: Open) -> None:
    log = open_log()
    fill(log, 1)
    with sqlite3.connect(folder / "fleetgate.db") as conn:
        conn.execute("""UPDATE log SET id = '0123456789abcdef', events = '[{"type":"from_the_future"}]'""")
    conn.close()
    with pytest.raises(StoreError, match=r"commit 1 .* does not know .*: upgrade fleetgate"):
        log.read(START)


def test_events_that_cannot_be_read_are_told(folder: Path, open_log: Open) -> None:
    log = open_log()
    fill(log, 1)
    with sqlite3.connect(folder / "fleetgate.db") as conn:
        conn.execute("UPDATE log SET events = '[{'")
    conn.close()
    with pytest.raises(StoreError, match=r"is damaged \(commit 1 is not as it was written\)"):
        log.read(START)
    with sqlite3.connect(folder / "fleetgate.db") as conn:
        conn.execute("UPDATE log SET id = '0123456789abcdef'")  # as older releases wrote it: without a checksum
    conn.close()
    with pytest.raises(StoreError, match=r"commit 1 .* is damaged"):
        log.read(START)


# Replaced under a running process.


def test_a_folder_that_was_moved_away_is_made_anew(folder: Path, open_log: Open) -> None:
    log = open_log()
    position = fill(log, 2)[-1]
    folder.rename(folder.with_name("moved"))
    with pytest.raises(LogReplaced):
        log.read(position)
    assert log.read(START) == []
    assert commit(log, [Returned(id="new")]).commit == 1
    assert len(open_log(folder.with_name("moved")).read(START)) == 2


def test_files_that_go_away_while_they_are_opened_are_looked_for_again(
    folder: Path, open_log: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = open_log()
    commit(first, [Returned(id="a")])
    look = connection.StoreConnection._look
    looks: list[int] = []

    def moved_in_between(db: connection.StoreConnection) -> tuple[int, ...]:
        looks.append(1)
        if len(looks) == 1:
            raise FileNotFoundError(2, "No such file or directory", db.wal_path)  # as `store copy` moves it
        return look(db)

    monkeypatch.setattr(connection, "REPLACING_S", 0.0)
    monkeypatch.setattr(connection.StoreConnection, "_look", moved_in_between)
    assert last_position(open_log()) == last_position(first)
    assert len(looks) > 1


def test_upkeep_of_a_write_ahead_log_that_went_away_waits_for_the_next_time(
    folder: Path, open_log: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    monkeypatch.setattr(connection.StoreConnection, "in_place", lambda db: True)
    (folder / "fleetgate.db-wal").unlink()
    log.maintain(1_000)


def test_a_folder_that_was_replaced_by_another_is_noticed_under_the_lock(folder: Path, open_log: Open) -> None:
    log = open_log()
    kept = fill(log, 2)[-1]
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*-shm"))
    lost = fill(log, 2)[-1]
    folder.rename(folder.with_name("old"))
    copy.rename(folder)
    log.lock()
    log.begin()
    with pytest.raises(LogReplaced):
        log.append(lost, log.now(), [], None)
    log.begin()
    assert log.append(kept, log.now(), [], None).commit == 3
    log.unlock()
    assert len(open_log().read(START)) == 3
    assert len(open_log(folder.with_name("old")).read(START)) == 4


@pytest.mark.parametrize("ending", ["used", "closed"])
def test_a_backup_copied_over_the_open_file_is_not_spoiled_by_what_runs(
    folder: Path, open_log: Open, ending: str
) -> None:
    """`cp` keeps the inode, so only the removed write-ahead log gives it away."""
    log = open_log()
    kept = fill(log, 20)[-1]
    backup = folder.with_name("backup.db")
    with sqlite3.connect(folder / "fleetgate.db") as source, sqlite3.connect(backup) as target:
        source.backup(target)
    source.close()
    target.close()
    lost = fill(log, 200)[-1]
    before = backup.read_bytes()
    inode = (folder / "fleetgate.db").stat().st_ino
    (folder / "fleetgate.db").write_bytes(before)
    assert (folder / "fleetgate.db").stat().st_ino == inode
    for name in ("fleetgate.db-wal", "fleetgate.db-shm"):
        (folder / name).unlink()

    if ending == "closed":
        log.close()
        assert (folder / "fleetgate.db").read_bytes() == before
        log = open_log()
    with pytest.raises(LogReplaced):
        log.read(lost)
    assert log.read(kept) == []
    assert commit(log, [Returned(id="new")], kept).commit == 21
    log.close()
    with sqlite3.connect(folder / "fleetgate.db") as conn:
        assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert conn.execute("SELECT count(*) FROM log").fetchall() == [(21,)]
    conn.close()


def test_a_backup_that_is_not_in_wal_mode_is_put_into_it(folder: Path, open_log: Open) -> None:
    log = open_log()
    position = fill(log, 3)[-1]
    with sqlite3.connect(folder / "fleetgate.db") as conn:
        conn.execute("VACUUM INTO ?", (str(folder.with_name("backup.db")),))
    conn.close()
    log.close()
    shutil.copy(folder.with_name("backup.db"), folder / "fleetgate.db")
    log = open_log()
    assert log.read(position) == []
    assert (folder / "fleetgate.db-wal").exists()
    assert commit(log, [], position).commit == 4


def test_a_restore_through_sqlite_itself_is_noticed(folder: Path, open_log: Open) -> None:
    log = open_log()
    kept = fill(log, 3)[-1]
    backup = sqlite3.connect(folder.with_name("backup.db"))
    running = sqlite3.connect(folder / "fleetgate.db")
    running.backup(backup)
    lost = fill(log, 3)[-1]
    backup.backup(running)
    backup.close()
    running.close()
    with pytest.raises(LogReplaced):
        log.read(lost)
    assert log.read(kept) == []
    assert commit(log, [], kept).commit == 4


def test_a_lock_file_that_was_removed_still_locks(folder: Path, open_log: Open) -> None:
    one, two = open_log(), open_log()
    (folder / "fleetgate.lock").unlink()
    one.lock()
    assert not two.try_lock()
    assert two.lock_owner() == os.getpid()
    one.unlock()
    assert two.try_lock()
    assert not one.try_lock()
    two.unlock()


def test_looking_at_the_folder_is_enough_once_it_has_settled(
    folder: Path, open_log: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CTIME_SETTLES_NS", -1)
    log = open_log()
    position = fill(log, 2)[-1]
    looks = []
    monkeypatch.setattr(connection.StoreConnection, "_look", lambda db: looks.append(db))
    assert log.read(position) == []
    assert log.try_lock()
    log.unlock()
    assert not looks
    monkeypatch.undo()
    (folder / "fleetgate.db").rename(folder / "old.db")
    with pytest.raises(LogReplaced):
        log.read(position)


# Other programs.


def test_Q2_a_program_that_keeps_the_database_locked_is_told_and_waited_out(
    folder: Path, open_log: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "BUSY_S", 0.05)
    log = open_log()
    fill(log, 1)
    shell = sqlite3.connect(folder / "fleetgate.db", isolation_level=None)
    shell.execute("BEGIN IMMEDIATE")
    log.lock()
    with pytest.raises(StoreError, match=r"another program keeps .* locked: close it"):
        log.begin()
    log.unlock()
    assert len(log.read(START)) == 1
    shell.execute("COMMIT")
    shell.close()
    assert commit(log, []).commit == 2


def test_a_log_that_was_closed_cannot_be_used(open_log: Open) -> None:
    log = open_log()
    log.close()
    for _ in range(2):
        with pytest.raises(InternalError):
            log.read(START)
        with pytest.raises(InternalError):
            log.lock()


# The decision path.


def test_a_transaction_runs_four_statements(open_log: Open) -> None:
    log = open_log()
    position = fill(log, 3)[-1]
    said: list[str] = []
    log._db.conn.set_trace_callback(said.append)
    for _ in range(2):
        assert log.try_lock()
        log.begin()
        assert log.read(position) == []
        position = log.append(position, log.now(), [], None)
        log.unlock()
    log._db.conn.set_trace_callback(None)
    assert [one.split()[0] for one in said] == ["BEGIN", "SELECT", "INSERT", "COMMIT"] * 2


def test_syncing_is_chosen_before_the_transaction_and_only_when_it_changes(open_log: Open) -> None:
    log = open_log()
    position = START
    said: list[str] = []
    log._db.conn.set_trace_callback(said.append)
    for durable in (False, True, True, False, False):
        log.lock()
        log.begin(durable=durable)
        position = log.append(position, log.now(), [], None)
        log.unlock()
    log._db.conn.set_trace_callback(None)
    chosen = [one for one in said if one.startswith(("PRAGMA", "BEGIN"))]
    begin = "BEGIN IMMEDIATE"
    full, normal = "PRAGMA synchronous=FULL", "PRAGMA synchronous=NORMAL"
    assert chosen == [begin, full, begin, begin, normal, begin, begin]


def test_importing_the_log_loads_little() -> None:
    script = (
        "import sys, msgspec, fleetgate.core.events; before = set(sys.modules); import fleetgate.log.sqlite.log;"
        "print(*sorted(name for name in set(sys.modules) - before if not name.startswith('fleetgate')))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {"_sqlite3", "sqlite3", "sqlite3.dbapi2", "fcntl", "zlib"}


# Snapshots.


def snapshot_files(folder: Path) -> list[str]:
    return sorted((path.name for path in (folder / "snapshots").iterdir()), key=lambda name: int(name.split("-")[0]))


def test_two_snapshots_are_kept_and_the_files_of_older_ones_deleted(folder: Path, open_log: Open) -> None:
    log = open_log()
    for index, position in enumerate(fill(log, 5)):
        log.save_snapshot(b"%d" % index, position)
    assert [name.split("-")[0] for name in snapshot_files(folder)] == ["4", "5"]
    assert (folder / "snapshots" / snapshot_files(folder)[1]).read_bytes() == b"4"


def test_what_is_left_of_a_snapshot_that_was_killed_goes_with_its_age(folder: Path, open_log: Open) -> None:
    log = open_log()
    positions = fill(log, 4)
    log.save_snapshot(b"0", positions[0])
    (folder / "snapshots" / "1-abc-def.json.0123.tmp").write_bytes(b"half")
    (folder / "snapshots" / "9-abc-def.json.0123.tmp").write_bytes(b"somebody writes this now")
    (folder / "snapshots" / "notes.txt").write_text("not ours")
    for index in (2, 3):
        log.save_snapshot(b"%d" % index, positions[index])
    names = {path.name for path in (folder / "snapshots").iterdir()}
    assert {"9-abc-def.json.0123.tmp", "notes.txt"} < names
    assert len(names) == 4


def spoil(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"!")


@pytest.mark.parametrize("harm", [spoil, Path.unlink])
def test_Q2_a_damaged_snapshot_falls_back_to_the_one_before_it(
    folder: Path, open_log: Open, harm: Callable[[Path], None]
) -> None:
    now = 1000
    log = open_log(time=lambda: now)
    positions = fill(log, 6)
    log.save_snapshot(b"older", positions[2])
    log.save_snapshot(b"newer", positions[4])
    older, newer = (folder / "snapshots" / name for name in snapshot_files(folder))
    harm(newer)
    assert log.snapshot() == (b"older", positions[2])
    harm(older)
    assert log.snapshot() is None
    assert len(log.read(START)) == 6
    now += 10
    log.maintain(0)
    with pytest.raises(
        StoreError, match=r"no snapshot .* can be read, and the log before commit 3 was pruned: restore"
    ):
        log.snapshot()


def test_a_snapshot_that_cannot_be_pointed_to_leaves_no_file(folder: Path, open_log: Open) -> None:
    log = open_log()
    position = fill(log, 1)[-1]
    with pytest.raises(LogReplaced):
        log.save_snapshot(b"x", position._replace(id="0" * 16))
    assert snapshot_files(folder) == []


def test_a_snapshot_is_saved_outside_the_lock_but_for_its_pointer(folder: Path, open_log: Open) -> None:
    log, other = open_log(), open_log()
    position = fill(log, 1)[-1]
    held: list[bool] = []
    write = os.rename

    def renaming(*args: str) -> None:
        held.append(other.lock_owner() is not None)
        write(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "rename", renaming)
        log.save_snapshot(b"x", position)
    assert held == [False]
    assert log.snapshot() == (b"x", position)


# Upkeep.


def test_maintenance_with_nothing_to_do_takes_no_lock(open_log: Open) -> None:
    log, other = open_log(), open_log()
    for position in fill(log, 3):
        log.save_snapshot(b"x", position)
    other.lock()
    log.maintain(1_000_000)
    other.unlock()


def test_pruning_goes_in_steps_so_that_nobody_waits_long(
    folder: Path, open_log: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "PRUNE_COMMITS", 4)
    now = 1000
    log = open_log(time=lambda: now)
    positions = fill(log, 12)
    log.save_snapshot(b"a", positions[9])
    log.save_snapshot(b"b", positions[11])
    now += 1
    left = []
    for _ in range(5):
        log.maintain(0)
        left.append(next(log.history())[0])
    assert left == [5, 9, 10, 10, 10]


def test_checkpoints_happen_in_maintenance_only_and_bound_the_write_ahead_log(
    folder: Path, open_log: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "CHECKPOINT_BYTES", 200_000)
    monkeypatch.setattr(connection, "WAL_KEPT_BYTES", 100_000)
    log = open_log()
    wal = folder / "fleetgate.db-wal"
    size = (folder / "fleetgate.db").stat().st_size
    position = fill(log, 100)[-1]
    assert wal.stat().st_size > 400_000
    assert (folder / "fleetgate.db").stat().st_size == size, "nothing moved to the database yet"
    log.maintain(1_000_000)
    assert (folder / "fleetgate.db").stat().st_size > size
    position = commit(log, [Returned(id="x")], position)
    assert wal.stat().st_size <= 100_000, "the write-ahead log starts from the beginning"
    assert len(open_log().read(START)) == 101


def test_a_very_large_write_ahead_log_is_emptied_unless_somebody_reads(
    folder: Path, open_log: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "CHECKPOINT_BYTES", 100_000)
    monkeypatch.setattr(upkeep, "TRUNCATE_BYTES", 200_000)
    log = open_log()
    wal = folder / "fleetgate.db-wal"
    fill(log, 100)
    reader = sqlite3.connect(folder / "fleetgate.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM log").fetchall()
    fill(log, 1)
    log.maintain(1_000_000)
    assert wal.stat().st_size > 200_000
    reader.execute("COMMIT")
    reader.close()
    log.maintain(1_000_000)
    assert wal.stat().st_size == 0
    assert log._db.conn.execute("PRAGMA busy_timeout").fetchall() == [(10_000,)]
    assert commit(log, []).commit == 102


def test_history_keeps_no_reader_open_between_its_events(folder: Path, open_log: Open) -> None:
    log = open_log()
    fill(log, 3)
    told = log.history()
    next(told)
    conn = sqlite3.connect(folder / "fleetgate.db")
    assert conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
    conn.close()
    assert len(list(told)) == 2


def test_a_long_history_is_told_in_pieces(open_log: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_log, "HISTORY_COMMITS", 3)
    log = open_log()
    fill(log, 10)
    for since in range(11):
        assert [seq for seq, _, _ in log.history(since)] == list(range(since + 1, 11))


# Time.


def offsets(folder: Path) -> dict[str, int]:
    conn = sqlite3.connect(folder / "fleetgate.db")
    rows = dict(conn.execute("SELECT key, value FROM meta WHERE key LIKE 'boot:%'").fetchall())
    conn.close()
    return rows


def test_the_clock_is_anchored_once_per_boot(folder: Path, open_log: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_log()
    assert abs(first.now() - clock.wall_ms()) < 1000
    anchored = offsets(folder)
    assert list(anchored) == [f"boot:{clock.boot_id()}"]
    monkeypatch.setattr(clock, "wall_ms", lambda: 1)
    second = open_log()
    assert abs(second.now() - first.now()) < 1000, "setting the wall clock changes nothing"
    assert offsets(folder) == anchored


def test_Q2_after_a_boot_with_the_clock_set_back_time_goes_on_from_the_last_commit(
    folder: Path, open_log: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = 4_000_000_000_000
    before = open_log(time=lambda: at)
    position = commit(before, [Returned(id="a")])
    monkeypatch.setattr(clock, "boot_id", lambda: "next")
    monkeypatch.setattr(clock, "wall_ms", lambda: 5_000)
    after = open_log()
    assert at <= after.now() < at + 10_000
    assert after.read(position) == []
    assert at <= commit(after, []).commit + at
    assert offsets(folder)["boot:next"] > 0


def test_where_boots_have_no_name_the_wall_clock_serves_and_never_goes_back(
    open_log: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall = 9_000
    monkeypatch.setattr(clock, "boot_id", lambda: "")
    monkeypatch.setattr(clock, "wall_ms", lambda: wall)
    log = open_log()
    assert log.now() == 9_000
    wall = 8_000
    assert log.now() == 9_000


def test_the_offsets_of_long_gone_boots_are_forgotten(
    folder: Path, open_log: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    for index in range(sqlite_log.BOOTS_KEPT + 5):
        monkeypatch.setattr(clock, "boot_id", lambda index=index: f"{index}")
        monkeypatch.setattr(clock, "wall_ms", lambda index=index: 10**12 + index * 10**9)
        open_log().close()
    kept = offsets(folder)
    assert len(kept) == sqlite_log.BOOTS_KEPT
    assert f"boot:{sqlite_log.BOOTS_KEPT + 4}" in kept


def test_a_replaced_store_brings_its_own_clock(folder: Path, open_log: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log()
    position = commit(log, [])
    other = open_log(folder.with_name("other"), time=lambda: 4_000_000_000_000)
    commit(other, [])
    other.close()
    folder.rename(folder.with_name("old"))
    folder.with_name("other").rename(folder)
    with pytest.raises(LogReplaced):
        log.read(position)
    assert log.now() >= 4_000_000_000_000


def test_large_commits_and_values_come_back(open_log: Open) -> None:
    log = open_log()
    log.lock()
    log.begin()
    big = b"x" * 3_000_000
    log.append(START, 1, [Returned(id="y" * 100)] * 20_000, None, [SideWrite("jobs", "1", big)])
    log.unlock()
    assert log.read(START)[0].seq == 20_000
    assert log.side_value("jobs", "1") == big


# Failing disks.


class Failing:
    """A connection on which some statements fail, as on a failing disk."""

    def __init__(self, conn: sqlite3.Connection, *words: str) -> None:
        self._conn = conn
        self._words = words

    def execute(self, sql: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        if sql.startswith(self._words):
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_WRITE
            raise error
        return self._conn.execute(sql, values)

    def __getattr__(self, name: str) -> object:
        return getattr(self._conn, name)


@pytest.mark.parametrize("words", [("COMMIT",), ("INSERT",), ("COMMIT", "ROLLBACK")])
def test_Q2_a_commit_that_fails_leaves_nothing_and_holds_up_nobody(open_log: Open, words: tuple[str, ...]) -> None:
    log, other = open_log(), open_log()
    position = fill(log, 2)[-1]
    log.lock()
    log.begin()
    log._db.conn = Failing(log._db.conn, *words)  # type: ignore[assignment]
    with pytest.raises(StoreError, match=r"the disk failed under .*: nothing was changed"):
        log.append(position, log.now(), [Returned(id="lost")], None, [SideWrite("jobs", "1", b"x")])
    log.rollback()
    log.unlock()
    assert other.read(position) == []
    assert other.side_value("jobs", "1") is None
    assert commit(other, [Returned(id="a")], position).commit == 3
    assert commit(log, [Returned(id="b")]).commit == 4, "what failed is opened anew"


def test_Q2_upkeep_that_fails_says_so_and_is_done_later(open_log: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "CHECKPOINT_BYTES", 1)
    log = open_log()
    position = fill(log, 2)[-1]
    for words, use in (("PRAGMA wal", lambda: log.maintain(0)), ("INSERT", lambda: log.save_snapshot(b"x", position))):
        log._db.conn = Failing(log._db.conn, words)  # type: ignore[assignment]
        with pytest.raises(StoreError, match="the disk failed"):
            use()
        use()
    assert log.snapshot() == (b"x", position)
    assert log.lock_owner() is None
