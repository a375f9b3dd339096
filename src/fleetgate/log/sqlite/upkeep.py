"""Upkeep of a SQLite store: snapshots and the pointers to them, checkpoints, pruning, and unused space.

The rule: nothing slow happens under the write lock. Snapshot files are written before it is taken, checkpoints are made
without it, and commits are pruned and pages given back a few at a time.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fleetgate.log.protocol import ROW_BYTES, SAMPLES, LogReplaced, Position, Stored, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fleetgate.log.sqlite.connection import StoreConnection
    from fleetgate.log.sqlite.log import SqliteLog

CHECKPOINT_BYTES = 4 << 20
TRUNCATE_BYTES = 32 << 20  # writers outpace the checkpoints: make one while they wait
PRUNE_COMMITS = 500  # at once, so that no process waits long for the lock
FREE_PAGES = 1_000  # unused, before they are given back; and a quarter of all
VACUUM_PAGES = 500  # given back at once
VACUUM_BYTES = 32 << 20  # used of a database of an older release that is rewritten, so that it can give space back

FIRST = "SELECT number, at FROM log ORDER BY number LIMIT 1"
KNOWN = "SELECT 1 FROM log WHERE number = ? AND id = ? AND seq = ?"
KEPT_SINCE = "SELECT number FROM log WHERE number >= ? AND number < ? AND at >= ? ORDER BY number LIMIT 1"
PRUNE = "DELETE FROM log WHERE number < ?"
OLD_SIDE_ITEMS = "SELECT key FROM side WHERE tbl = ? AND key < ? ORDER BY key LIMIT ?"
FORGET_SIDE_ITEMS = "DELETE FROM side WHERE tbl = ? AND key <= ?"

# A pointer counts only if the log still has its commit.
SNAPSHOTS = "SELECT number, id, seq, checksum FROM snapshots JOIN log USING (number, id, seq) ORDER BY number DESC"
ADD_SNAPSHOT = "INSERT OR REPLACE INTO snapshots (number, id, seq, checksum) VALUES (?, ?, ?, ?)"
KEEP_TWO = "DELETE FROM snapshots WHERE number NOT IN (SELECT number FROM snapshots ORDER BY number DESC LIMIT 2)"
OLDER_SNAPSHOT = "SELECT number FROM snapshots ORDER BY number DESC LIMIT 1 OFFSET 1"


def first_commit(db: StoreConnection) -> tuple[int, int] | None:
    """Number and time of the first commit that is kept."""
    for number, at in db.rows(FIRST):
        if type(number) is not int or type(at) is not int:
            raise db.damaged("the first commit is not as it was written")
        return number, at
    return None


class Upkeep:
    """The upkeep of the store that a log has open."""

    def __init__(self, log: SqliteLog, db: StoreConnection) -> None:
        self._log = log
        self._db = db

    # Snapshots.

    @property
    def _folder(self) -> str:
        return os.path.join(self._db.folder, "snapshots")

    def snapshot(self) -> Stored | None:
        """The newest snapshot that is whole."""
        for number, id, seq, checksum in self._db.rows(SNAPSHOTS):
            from fleetgate.log.sqlite import snapshot_files

            data = snapshot_files.load(self._folder, number, id, checksum)
            if data is not None:
                return Stored(data, Position(number, id, seq))
        first = first_commit(self._db)
        if first is not None and first[0] > 1:
            raise StoreError(
                f"no snapshot in {self._folder} can be read, and the log before commit {first[0]} was pruned: "
                f"restore a backup of {self._db.folder}, or move that folder away to start with an empty store"
            )
        return None

    def save_snapshot(self, data: bytes, position: Position) -> None:
        """Write a snapshot's file, then the pointer to it; keep the newest two."""
        from fleetgate.log.sqlite import snapshot_files

        try:
            checksum = snapshot_files.write(self._folder, data, position)
            try:
                oldest = self.point_to_snapshot(position, checksum)
            except LogReplaced:
                snapshot_files.remove(self._folder, position, checksum)
                raise
            if oldest:
                snapshot_files.discard(self._folder, before=oldest)
        except (sqlite3.Error, OSError) as error:
            raise self._db.failed(error) from error

    def point_to_snapshot(self, position: Position, checksum: int) -> int | None:
        """Commit a pointer to a snapshot's file; the number of the older one that is kept, once there are two."""
        with self._locked():
            self._log.begin()
            conn = self._db.conn
            if not conn.execute(KNOWN, position).fetchall():
                raise LogReplaced(f"a snapshot of commit {position.commit} with id {position.id} is not of this log")
            conn.execute(ADD_SNAPSHOT, (*position, checksum))
            conn.execute(KEEP_TWO)
            conn.execute("COMMIT")
        for (oldest,) in self._db.rows(OLDER_SNAPSHOT):
            return int(oldest)
        return None

    # Space.

    def maintain(self, horizon: int, most_bytes: int) -> bool:
        """Checkpoint, prune what is older than `horizon` or too much, and give space back; whether there is more."""
        try:
            self._checkpoint()
            return self._prune(horizon, most_bytes) or self._give_back()
        except (sqlite3.Error, OSError) as error:
            raise self._db.failed(error) from error

    def _checkpoint(self) -> None:
        db = self._db
        if not db.in_place():
            db.reopen()
        try:
            size = os.stat(db.wal_path).st_size
        except FileNotFoundError:
            return  # the files were replaced since: the next use opens the new ones
        if size < CHECKPOINT_BYTES:
            return
        db.rows("PRAGMA wal_checkpoint(PASSIVE)")
        if size < TRUNCATE_BYTES:
            return
        with self._locked():
            (patience,) = db.conn.execute("PRAGMA busy_timeout").fetchone()
            db.conn.execute("PRAGMA busy_timeout=0")  # if another process is reading, the next time will do
            db.conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            db.conn.execute(f"PRAGMA busy_timeout={patience}")

    def _prune(self, horizon: int, most_bytes: int) -> bool:
        """Prune a few commits; whether there were any."""
        if self._prunable(horizon, most_bytes) is None:
            return False
        with self._locked():
            self._log.begin()
            end = self._prunable(horizon, most_bytes)
            if end is not None:
                self._db.conn.execute(PRUNE, (end,))
                self._db.conn.execute("COMMIT")
        return end is not None

    def forget_side_items(self, table: str, before: str) -> bool:
        """Delete some values beside the log whose keys are before this one; whether there are more."""
        old = self._db.rows(OLD_SIDE_ITEMS, (table, before, PRUNE_COMMITS))
        if old:
            with self._locked():
                self._db.rows(FORGET_SIDE_ITEMS, (table, old[-1][0]))
        return len(old) == PRUNE_COMMITS

    def _prunable(self, horizon: int, most_bytes: int) -> int | None:
        """The commit before which all may go now: the older snapshot's, or the first that is young and fits."""
        first, older = first_commit(self._db), self._db.rows(OLDER_SNAPSHOT)
        if first is None or not older or older[0][0] <= first[0]:
            return None
        number, at = first
        end = min(int(older[0][0]), number + PRUNE_COMMITS)
        old = number
        if at < horizon:
            kept = self._db.rows(KEPT_SINCE, (number, end, horizon))
            old = int(kept[0][0]) if kept else end
        old = max(old, min(number + self._surplus(number, most_bytes), end))
        return old if old > number else None

    def _surplus(self, first: int, most_bytes: int) -> int:
        """How many commits must go for the others to take no more than this, by a sample of them."""
        last = self._db.rows("SELECT max(number) FROM log")[0][0]
        commits = int(last) - first + 1
        numbers = [first + commits * n // SAMPLES for n in range(SAMPLES)]
        marks = ", ".join("?" * SAMPLES)
        mean = self._db.rows(f"SELECT avg(length(events)) FROM log WHERE number IN ({marks})", numbers)[0][0]
        return max(commits - int(most_bytes / ((mean or 0) + ROW_BYTES)), 0)

    def _give_back(self) -> bool:
        """Give some of the unused space to the file system; whether there is more of it."""
        db = self._db
        free, pages, page, mode = (
            db.rows(f"PRAGMA {name}")[0][0] for name in ("freelist_count", "page_count", "page_size", "auto_vacuum")
        )
        if free < FREE_PAGES or free < pages // 4 or (not mode and (pages - free) * page > VACUUM_BYTES):
            return False
        with self._locked():
            if mode:
                db.conn.executescript(f"PRAGMA incremental_vacuum({VACUUM_PAGES})")  # `execute` does a single page
            else:
                db.conn.execute("PRAGMA auto_vacuum=INCREMENTAL")
                db.conn.execute("VACUUM")
        if mode and free > VACUUM_PAGES + FREE_PAGES:
            return True
        db.conn.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()  # which shortens the file
        return False

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._log.lock()
        try:
            yield
        finally:
            self._log.unlock()
