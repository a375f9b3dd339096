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

from fleetgate.core.errors import InternalError
from fleetgate.core.events import Event
from fleetgate.log import clock as clocks
from fleetgate.log import host_beats as beating
from fleetgate.log.checksum import is_whole, new_id, of_value
from fleetgate.log.event_codec import decode, encode
from fleetgate.log.protocol import (
    KEEP_BYTES,
    ROW_BYTES,
    SAMPLES,
    START,
    Commit,
    Head,
    LogReplaced,
    Position,
    SideWrite,
    Stored,
    StoreError,
)
from fleetgate.log.sqlite.connection import StoreConnection
from fleetgate.log.sqlite.replacement_mark import ReplacementMark

CHECKPOINT_BYTES = 4 << 20
TRUNCATE_BYTES = 32 << 20  # writers outpace the checkpoints: make one while they wait
PRUNE_COMMITS = 500  # at once, so that no process waits long for the lock
FREE_PAGES = 1_000  # unused, before they are given back; and a quarter of all
VACUUM_PAGES = 500  # given back at once
VACUUM_BYTES = 32 << 20  # used of a database of an older release that is rewritten, so that it can give space back
HISTORY_COMMITS = 500  # read at once, so that no reader keeps the write-ahead log from starting anew
BOOTS_KEPT = 20

READ = "SELECT number, id, at, seq, due, events FROM log WHERE number >= ? ORDER BY number LIMIT ?"
LAST = "SELECT number, id, at, seq, due, events FROM log ORDER BY number DESC LIMIT 1"
FIRST = "SELECT number, at FROM log ORDER BY number LIMIT 1"
KNOWN = "SELECT 1 FROM log WHERE number = ? AND id = ? AND seq = ?"
ADD = "INSERT INTO log (number, id, at, seq, due, events) VALUES (?, ?, ?, ?, ?, ?)"
SEQ_OF = "SELECT seq FROM log WHERE number = ?"
KEPT_SINCE = "SELECT number FROM log WHERE number >= ? AND number < ? AND at >= ? ORDER BY number LIMIT 1"
PRUNE = "DELETE FROM log WHERE number < ?"

SIDE = "SELECT key, value, checksum FROM side WHERE tbl = ? AND key = ?"
SIDE_ITEMS = "SELECT key, value, checksum FROM side WHERE tbl = ? ORDER BY key"
SET_SIDE = "INSERT OR REPLACE INTO side (tbl, key, value, checksum) VALUES (?, ?, ?, ?)"
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

    is_shared = False
    upkept_by_node = False

    def __init__(self, path: str, clock: clocks.Clock | None = None) -> None:
        self._clock = clock or clocks.wall_ms
        self._anchors = clock is None
        self._floor = 0  # time that was already seen, here or in the log
        self._full = False  # whether SQLite is set to sync every commit
        self._last: Position | None = None  # the last commit, as far as this transaction has read
        folder = os.path.abspath(path)
        self._mark = ReplacementMark(folder)
        self._db = StoreConnection(folder, self._opened)
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
        rows = self._whole(self._rows(READ, (after.commit, limit + (after.commit > 0))))
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
        for number, _, at, _, due, _ in self._whole(self._rows(LAST)):
            return Head(number, at, due)
        return None

    def history(self, since_seq: int = 0) -> Iterator[tuple[int, int, Event]]:
        number = self._commit_after(since_seq)
        while rows := self._whole(self._rows(READ, (number, HISTORY_COMMITS))):
            for number, _, at, last_seq, _, text in rows:
                events = decode(number, text)
                first_seq = last_seq - len(events) + 1
                for seq, event in enumerate(events, first_seq):
                    if seq > since_seq:
                        yield seq, at, event
            number += 1

    def side_value(self, table: str, key: str) -> bytes | None:
        for _, value in self._values(table, SIDE, (table, key)):
            return value
        return None

    def side_items(self, table: str) -> list[tuple[str, bytes]]:
        return self._values(table, SIDE_ITEMS, (table,))

    def _values(self, table: str, sql: str, values: Sequence[object]) -> list[tuple[str, bytes]]:
        """Values beside the log; those that an older release wrote have no checksum."""
        found = []
        for key, value, checksum in self._rows(sql, values):
            known = type(key) is str and type(value) is bytes
            if not known or (checksum is not None and checksum != of_value(table, key, value)):
                raise self._damaged(f"the value of {key!r} in {table!r} is not as it was written")
            found.append((key, value))
        return found

    def seems_replaced(self) -> bool:
        return self._mark.contradicts(self._knows)

    def _knows(self, position: Position) -> bool:
        return bool(self._rows(KNOWN, position))

    def _commit_after(self, since_seq: int) -> int:
        """The number of the first commit that reaches beyond a sequence number: commits are dense and sorted."""
        first, last = self._first(), self._whole(self._rows(LAST))
        if first is None or not last:
            return 1
        low, high = first[0], last[0][0] + 1
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
            number, seq, encoded = after.commit + 1, after.seq + len(events), encode(events)
            position = Position(number, new_id(number, at, seq, due, encoded), seq)
            conn.execute(ADD, (number, position.id, at, seq, due, encoded.decode()))
            for write in side:
                if write.value is None:
                    conn.execute(DELETE_SIDE, (write.table, write.key))
                else:
                    checksum = of_value(write.table, write.key, write.value)
                    conn.execute(SET_SIDE, (write.table, write.key, write.value, checksum))
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
        for number, id, _, seq, _, _ in self._whole(self._db.conn.execute(LAST).fetchall()):
            last = Position(number, id, seq)
        if last != after:
            raise LogReplaced(f"commit {after.commit} with id {after.id} is not the last of the log")

    # Beats.

    def beat(self, site: str, gap_ms: int = beating.GAP_MS) -> None:
        now, known = self.now(), self._beats()
        for row, at in beating.rows_to_write(known, site, now, gap_ms).items():
            value = str(at).encode()
            self._rows(SET_SIDE, (beating.TABLE, row, value, of_value(beating.TABLE, row, value)))
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
            from fleetgate.log.sqlite import snapshot_files

            data = snapshot_files.load(self._snapshots, number, id, checksum)
            if data is not None:
                return Stored(data, Position(number, id, seq))
        first = self._first()
        if first is not None and first[0] > 1:
            raise StoreError(
                f"no snapshot in {self._snapshots} can be read, and the log before commit {first[0]} was pruned: "
                f"restore a backup of {self._db.folder}, or move that folder away to start with an empty store"
            )
        return None

    def save_snapshot(self, data: bytes, position: Position) -> None:
        from fleetgate.log.sqlite import snapshot_files

        try:
            checksum = snapshot_files.write(self._snapshots, data, position)
            try:
                oldest = self._point_to_snapshot(position, checksum)
            except LogReplaced:
                snapshot_files.remove(self._snapshots, position, checksum)
                raise
            if oldest:
                snapshot_files.discard(self._snapshots, before=oldest)
        except (sqlite3.Error, OSError) as error:
            raise self._db.failed(error) from error

    def maintain(self, keep_ms: int, most_bytes: int = KEEP_BYTES) -> bool:
        try:
            self._checkpoint()
            return self._prune(self.now() - keep_ms, most_bytes) or self._give_back()
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
        try:
            size = os.stat(self._db.wal_path).st_size
        except FileNotFoundError:
            return  # the files were replaced since: the next use opens the new ones
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

    def _prune(self, horizon: int, most_bytes: int) -> bool:
        """Prune a few commits; whether there were any."""
        if self._prunable(horizon, most_bytes) is None:
            return False
        self.lock()
        try:
            self.begin()
            end = self._prunable(horizon, most_bytes)
            if end is not None:
                self._db.conn.execute(PRUNE, (end,))
                self._db.conn.execute("COMMIT")
        finally:
            self.unlock()
        return end is not None

    def _prunable(self, horizon: int, most_bytes: int) -> int | None:
        """The commit before which all may go now: the older snapshot's, or the first that is young and fits."""
        first, older = self._first(), self._rows(OLDER_SNAPSHOT)
        if first is None or not older or older[0][0] <= first[0]:
            return None
        number, at = first
        end = min(int(older[0][0]), number + PRUNE_COMMITS)
        old = number
        if at < horizon:
            kept = self._rows(KEPT_SINCE, (number, end, horizon))
            old = int(kept[0][0]) if kept else end
        old = max(old, min(number + self._surplus(number, most_bytes), end))
        return old if old > number else None

    def _surplus(self, first: int, most_bytes: int) -> int:
        """How many commits must go for the others to take no more than this, by a sample of them."""
        last = self._rows("SELECT max(number) FROM log")[0][0]
        commits = int(last) - first + 1
        numbers = [first + commits * n // SAMPLES for n in range(SAMPLES)]
        marks = ", ".join("?" * SAMPLES)
        mean = self._rows(f"SELECT avg(length(events)) FROM log WHERE number IN ({marks})", numbers)[0][0]
        return max(commits - int(most_bytes / ((mean or 0) + ROW_BYTES)), 0)

    def _give_back(self) -> bool:
        """Give some of the space that is not used to the file system; whether there is more of it."""
        free, pages, page, mode = (
            self._rows(f"PRAGMA {name}")[0][0] for name in ("freelist_count", "page_count", "page_size", "auto_vacuum")
        )
        if free < FREE_PAGES or free < pages // 4 or (not mode and (pages - free) * page > VACUUM_BYTES):
            return False
        self.lock()
        try:
            conn = self._db.conn
            if mode:
                conn.executescript(f"PRAGMA incremental_vacuum({VACUUM_PAGES})")  # `execute` does a single page
            else:
                conn.execute("PRAGMA auto_vacuum=INCREMENTAL")
                conn.execute("VACUUM")
        finally:
            self.unlock()
        if mode and free > VACUUM_PAGES + FREE_PAGES:
            return True
        self._db.conn.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()  # which shortens the file
        return False

    # The database.

    def _whole(self, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Commits that follow one another, all as they were written; StoreError if they are not."""
        number = rows[0][0] if rows else 0
        for row in rows:
            if not is_whole(*row):
                raise self._damaged(f"commit {row[0]!r} is not as it was written")
            if row[0] != number:
                raise self._damaged(f"commit {number} is missing")
            number += 1
        return rows

    def _damaged(self, what: str) -> StoreError:
        from fleetgate.log.sqlite.error_messages import damaged

        return damaged(self._db.folder, what)

    def _first(self) -> tuple[int, int] | None:
        """Number and time of the first commit that is kept."""
        for number, at in self._rows(FIRST):
            if type(number) is not int or type(at) is not int:
                raise self._damaged("the first commit is not as it was written")
            return number, at
        return None

    def _known_offset(self, boot: str) -> int | None:
        for (value,) in self._rows(META, (boot,)):
            if type(value) is not int:
                raise self._damaged("the clock of this boot is not as it was written")
            return value
        return None

    def _rows(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        db = self._db
        try:
            db.reads = True
            if not db.holds and not db.in_place():
                db.reopen()
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
        known = self._known_offset(boot)
        if known is not None:
            return known
        self.lock()
        try:
            self.begin()
            known = self._known_offset(boot)
            if known is not None:
                return known
            last = self._whole(self._rows(LAST))
            offset = clocks.choose_offset(last[0][2] if last else 0, clocks.wall_ms(), clocks.boot_ms())
            conn = self._db.conn
            conn.execute(SET_META, (boot, offset))
            conn.execute(FORGET_BOOTS, (boot, BOOTS_KEPT))
            conn.execute("COMMIT")
            return offset
        except sqlite3.Error as error:
            raise self._db.failed(error) from error
        finally:
            self.unlock()
