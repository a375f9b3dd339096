"""The log in a SQLite database: the embedded default, shared by all processes of a machine without a server.

A commit is one row. Whoever decides holds the file lock and SQLite's write lock from before it reads the last
row until its own is in (see database.py); readers take no lock. A commit is safe from the death of any process
when `append` returns, and from a power cut if the transaction was begun as durable.

Nothing slow happens under the lock: checkpoints and snapshot files are upkeep, done outside of it.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from headgate.core.errors import InternalError
from headgate.core.events import Event
from headgate.log import beats as beating
from headgate.log import clock as clocks
from headgate.log.codec import decode, encode, new_id
from headgate.log.database import Database
from headgate.log.mark import Mark
from headgate.log.protocol import START, Commit, Head, LogReplaced, Position, SideWrite, Stored, StoreError

CHECKPOINT_BYTES = 4 << 20
TRUNCATE_BYTES = 32 << 20  # writers outpace the checkpoints: make one while they wait
PRUNE_COMMITS = 2_000  # at once, so that nobody waits long for the lock
HISTORY_COMMITS = 500  # read at once, so that no reader keeps the write-ahead log from starting anew
BOOTS_KEPT = 20

READ = "SELECT number, id, at, seq, due, events FROM log WHERE number >= ? ORDER BY number LIMIT ?"
LAST = "SELECT number, id, seq, at, due FROM log ORDER BY number DESC LIMIT 1"
FIRST = "SELECT number, at FROM log ORDER BY number LIMIT 1"
KNOWN = "SELECT 1 FROM log WHERE number = ? AND id = ? AND seq = ?"
ADD = "INSERT INTO log (number, id, at, seq, due, events) VALUES (?, ?, ?, ?, ?, ?)"
SEQ_OF = "SELECT seq FROM log WHERE number = ?"
KEPT_SINCE = "SELECT number FROM log WHERE number >= ? AND number < ? AND at >= ? ORDER BY number LIMIT 1"
PRUNE = "DELETE FROM log WHERE number < ?"

SIDE = "SELECT value FROM side WHERE tbl = ? AND key = ?"
SIDE_ITEMS = "SELECT key, value FROM side WHERE tbl = ? ORDER BY key"
SET_SIDE = "INSERT OR REPLACE INTO side (tbl, key, value) VALUES (?, ?, ?)"
DELETE_SIDE = "DELETE FROM side WHERE tbl = ? AND key = ?"

# A pointer counts only if the log still has its commit.
SNAPSHOTS = "SELECT number, id, seq, checksum FROM snapshots JOIN log USING (number, id, seq) ORDER BY number DESC"
ADD_SNAPSHOT = "INSERT OR REPLACE INTO snapshots (number, id, seq, checksum) VALUES (?, ?, ?, ?)"
KEEP_TWO = "DELETE FROM snapshots WHERE number NOT IN (SELECT number FROM snapshots ORDER BY number DESC LIMIT 2)"
OLDER_SNAPSHOT = "SELECT number FROM snapshots ORDER BY number DESC LIMIT 1 OFFSET 1"

META = "SELECT value FROM meta WHERE key = ?"
SET_META = "INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)"
FORGET_BOOTS = """DELETE FROM meta WHERE key != ? AND key IN
    (SELECT key FROM meta WHERE key LIKE 'boot:%' ORDER BY value DESC LIMIT -1 OFFSET ?)"""


class SqliteLog:
    """The log in a folder, which is made if need be. `clock` is for tests: the log's time in ms."""

    remote = False
    tended = False

    def __init__(self, path: str, clock: clocks.Clock | None = None) -> None:
        self._clock = clock or clocks.wall_ms
        self._anchors = clock is None
        self._floor = 0  # time that was already seen, here or in the log
        self._full = False  # whether SQLite is set to sync every commit
        self._last: Position | None = None  # the last commit, as far as this transaction has read
        folder = os.path.abspath(path)
        self._mark = Mark(folder)
        self._db = Database(folder, self._opened)
        try:
            self._db.open()
        except BaseException:
            self._db.close()
            raise

    def __repr__(self) -> str:
        return f"SqliteLog({self._db.folder!r}{', holding the write lock' if self._db.holds else ''})"

    def connect(self) -> SqliteLog:
        """Another log on the same store."""
        return SqliteLog(self._db.folder, None if self._anchors else self._clock)

    # Reading.

    def read(self, after: Position, limit: int = 10_000) -> list[Commit]:
        rows = self._rows(READ, (after.commit, limit + (after.commit > 0)))
        new = len(rows)
        if after.commit:
            if not rows or rows[0][0] != after.commit or rows[0][1] != after.id or rows[0][3] != after.seq:
                raise LogReplaced(f"the log does not have commit {after.commit} with id {after.id}")
            new -= 1
        elif rows and rows[0][0] != 1:
            raise LogReplaced(f"the log begins with commit {rows[0][0]}: load its snapshot")
        if rows:
            number, id, at, seq, _, _ = rows[-1]
            if at > self._floor:
                self._floor = at
        if new < limit and self._db.conn.in_transaction:
            self._last = Position(number, id, seq) if new else after
        if not new:
            return []
        return [
            Commit(number, id, at, seq, due, decode(number, events))
            for number, id, at, seq, due, events in (rows[1:] if after.commit else rows)
        ]

    def head(self) -> Head | None:
        for number, _, _, at, due in self._rows(LAST):
            return Head(number, at, due)
        return None

    def history(self, since_seq: int = 0) -> Iterator[tuple[int, int, Event]]:
        number = self._commit_after(since_seq)
        while rows := self._rows(READ, (number, HISTORY_COMMITS)):
            for number, _, at, last_seq, _, text in rows:
                events = decode(number, text)
                first_seq = last_seq - len(events) + 1
                for seq, event in enumerate(events, first_seq):
                    if seq > since_seq:
                        yield seq, at, event
            number += 1

    def side(self, table: str, key: str) -> bytes | None:
        for (value,) in self._rows(SIDE, (table, key)):
            return bytes(value)
        return None

    def side_items(self, table: str) -> list[tuple[str, bytes]]:
        return [(key, bytes(value)) for key, value in self._rows(SIDE_ITEMS, (table,))]

    def replaced(self) -> bool:
        return self._mark.contradicts(self._knows)

    def _knows(self, position: Position) -> bool:
        return bool(self._rows(KNOWN, position))

    def _commit_after(self, since_seq: int) -> int:
        """The number of the first commit that reaches beyond a sequence number: commits are dense and sorted."""
        first, last = self._rows(FIRST), self._rows(LAST)
        if not first or not last:
            return 1
        low, high = first[0][0], last[0][0] + 1
        while low < high:
            middle = (low + high) // 2
            row = self._rows(SEQ_OF, (middle,))
            if row and row[0][0] > since_seq:
                high = middle
            else:
                low = middle + 1
        return int(low)

    # Writing.

    def try_lock(self) -> bool:
        return self._db.take(wait=False)

    def lock(self) -> None:
        self._db.take(wait=True)

    def unlock(self) -> None:
        self.rollback()
        self._db.drop()

    def lock_owner(self) -> int | None:
        return self._db.owner()

    def begin(self, *, durable: bool = False) -> None:
        db = self._db
        if not db.holds or db.conn.in_transaction:
            raise InternalError("a transaction needs the write lock, and is not begun twice")
        try:
            if durable is not self._full:
                db.conn.execute("PRAGMA synchronous=FULL" if durable else "PRAGMA synchronous=NORMAL")
                self._full = durable
            db.conn.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise db.failed(error) from error
        self._last = None

    def now(self) -> int:
        now = self._clock()
        if now < self._floor:
            return self._floor
        self._floor = now
        return now

    def append(
        self, after: Position, at: int, events: Sequence[Event], due: int | None, side: Sequence[SideWrite] = ()
    ) -> Position:
        conn = self._db.conn
        if not self._db.holds or not conn.in_transaction:
            raise InternalError("append needs a transaction")
        try:
            if self._last != after:
                self._check_last(after)
            position = Position(after.commit + 1, new_id(), after.seq + len(events))
            conn.execute(ADD, (position.commit, position.id, at, position.seq, due, encode(events).decode()))
            for write in side:
                if write.value is None:
                    conn.execute(DELETE_SIDE, (write.table, write.key))
                else:
                    conn.execute(SET_SIDE, (write.table, write.key, write.value))
            conn.execute("COMMIT")
        except sqlite3.Error as error:
            self.rollback()
            raise self._db.failed(error) from error
        except BaseException:
            self.rollback()
            raise
        if at > self._floor:
            self._floor = at
        self._mark.set(position)
        return position

    def rollback(self) -> None:
        if self._db.holds and self._db.conn.in_transaction:
            try:
                self._db.conn.execute("ROLLBACK")
            except sqlite3.Error:
                self._db.abandon()  # which ends the transaction as well

    def _check_last(self, after: Position) -> None:
        last = START
        for number, id, seq, _, _ in self._db.conn.execute(LAST).fetchall():
            last = Position(number, id, seq)
        if last != after:
            raise LogReplaced(f"commit {after.commit} with id {after.id} is not the last of the log")

    # Beats.

    def beat(self, site: str, gap_ms: int = beating.GAP_MS) -> None:
        now, known = self.now(), self._beats()
        for row, at in beating.rows_to_write(known, site, now, gap_ms).items():
            self._rows(SET_SIDE, (beating.TABLE, row, str(at).encode()))
        for old in beating.rows_to_forget(known, now):
            self._rows(DELETE_SIDE, (beating.TABLE, old))

    def beats(self, gap_ms: int = beating.GAP_MS) -> dict[str, int]:
        known = self._beats()
        return beating.silences(known, self.now(), gap_ms)

    def _beats(self) -> dict[str, int]:
        return {site: beating.read(value) for site, value in self.side_items(beating.TABLE)}

    # Upkeep.

    def snapshot(self) -> Stored | None:
        rows = self._rows(SNAPSHOTS)
        for number, id, seq, checksum in rows:
            from headgate.log import snapshots

            data = snapshots.load(self._snapshots, number, id, checksum)
            if data is not None:
                return Stored(data, Position(number, id, seq))
        first = self._rows(FIRST)
        if first and first[0][0] > 1:
            raise StoreError(
                f"no snapshot in {self._snapshots} can be read, and the log before commit {first[0][0]} was pruned: "
                f"restore a backup of {self._db.folder}, or move that folder away to start with an empty store"
            )
        return None

    def save_snapshot(self, data: bytes, position: Position) -> None:
        from headgate.log import snapshots

        try:
            checksum = snapshots.write(self._snapshots, data, position)
            try:
                oldest = self._point_to_snapshot(position, checksum)
            except LogReplaced:
                snapshots.remove(self._snapshots, position, checksum)
                raise
            if oldest:
                snapshots.discard(self._snapshots, before=oldest)
        except (sqlite3.Error, OSError) as error:
            raise self._db.failed(error) from error

    def maintain(self, keep_ms: int) -> None:
        try:
            self._checkpoint()
            self._prune(self.now() - keep_ms)
        except (sqlite3.Error, OSError) as error:
            raise self._db.failed(error) from error

    def close(self) -> None:
        self.rollback()
        self._mark.close()
        self._db.close()

    @property
    def _snapshots(self) -> str:
        return os.path.join(self._db.folder, "snapshots")

    def _point_to_snapshot(self, position: Position, checksum: int) -> int | None:
        """Commit a pointer to a snapshot's file; the number of the older one that is kept, once there are two."""
        self.lock()
        try:
            self.begin()
            conn = self._db.conn
            if not conn.execute(KNOWN, position).fetchall():
                raise LogReplaced(f"a snapshot of commit {position.commit} with id {position.id} is not of this log")
            conn.execute(ADD_SNAPSHOT, (*position, checksum))
            conn.execute(KEEP_TWO)
            conn.execute("COMMIT")
        finally:
            self.unlock()
        for (oldest,) in self._rows(OLDER_SNAPSHOT):
            return int(oldest)
        return None

    def _checkpoint(self) -> None:
        if not self._db.in_place():
            self._db.reopen()
        size = os.stat(self._db.wal_path).st_size
        if size < CHECKPOINT_BYTES:
            return
        self._rows("PRAGMA wal_checkpoint(PASSIVE)")
        if size < TRUNCATE_BYTES:
            return
        self.lock()
        try:
            conn = self._db.conn
            (patience,) = conn.execute("PRAGMA busy_timeout").fetchone()
            conn.execute("PRAGMA busy_timeout=0")  # while somebody reads, next time will do
            conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            conn.execute(f"PRAGMA busy_timeout={patience}")
        finally:
            self.unlock()

    def _prune(self, horizon: int) -> None:
        if self._prunable(horizon) is None:
            return
        self.lock()
        try:
            self.begin()
            if end := self._prunable(horizon):
                self._db.conn.execute(PRUNE, (end,))
                self._db.conn.execute("COMMIT")
        finally:
            self.unlock()

    def _prunable(self, horizon: int) -> int | None:
        """The commit before which all may go now: the older snapshot's, or the first that is young enough."""
        first = self._rows(FIRST)
        if not first or first[0][1] >= horizon:
            return None
        number = first[0][0]
        older = self._rows(OLDER_SNAPSHOT)
        if not older or older[0][0] <= number:
            return None
        end = min(older[0][0], number + PRUNE_COMMITS)
        kept = self._rows(KEPT_SINCE, (number, end, horizon))
        return int(kept[0][0] if kept else end)

    # The database.

    def _rows(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        db = self._db
        try:
            if not db.holds and not db.in_place():
                db.reopen()
            db.reads = True
            return db.conn.execute(sql, values).fetchall()
        except (sqlite3.Error, OSError) as error:
            raise db.failed(error) from error
        finally:
            db.reads = False

    def _opened(self) -> None:
        self._full = False
        self._mark.opened()
        if self._anchors:
            boot = clocks.boot_id()
            self._clock = clocks.anchored(self._offset(f"boot:{boot}")) if boot else clocks.wall_ms

    def _offset(self, boot: str) -> int:
        """The offset of this boot's clock: what the first process that asked chose for all."""
        if known := self._rows(META, (boot,)):
            return int(known[0][0])
        self.lock()
        try:
            self.begin()
            if known := self._rows(META, (boot,)):
                return int(known[0][0])
            last = self._rows(LAST)
            offset = clocks.choose_offset(last[0][3] if last else 0, clocks.wall_ms(), clocks.boot_ms())
            conn = self._db.conn
            conn.execute(SET_META, (boot, offset))
            conn.execute(FORGET_BOOTS, (boot, BOOTS_KEPT))
            conn.execute("COMMIT")
            return offset
        except sqlite3.Error as error:
            raise self._db.failed(error) from error
        finally:
            self.unlock()
