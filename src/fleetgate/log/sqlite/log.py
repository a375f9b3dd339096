"""The log in a SQLite database: the default, shared by all processes of a machine without a server.

A commit is one row. A process that decides holds the file lock and SQLite's write lock from before it reads the last
row until its own is in (connection.py, write_lock.py); readers take no lock. When `append` returns, the commit is safe
from the death of any process, and also from a power cut if the transaction was begun as durable.

Nothing slow happens under the lock: checkpoints and snapshot files are upkeep (upkeep.py).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence

from fleetgate.core.errors import InternalError
from fleetgate.core.events import Event
from fleetgate.log import clock as clocks
from fleetgate.log import host_beats as beating
from fleetgate.log.checksum import new_id, of_value
from fleetgate.log.continuity import Row, check_last, check_rows, commits_of, head_of, history, position_of, rows_after
from fleetgate.log.event_codec import encode
from fleetgate.log.protocol import KEEP_BYTES, START, Commit, Head, Position, SideWrite, Stored
from fleetgate.log.sqlite.connection import StoreConnection
from fleetgate.log.sqlite.replacement_mark import ReplacementMark
from fleetgate.log.sqlite.upkeep import KNOWN, Upkeep, first_commit

HISTORY_COMMITS = 500  # read at once, so that no reader keeps the write-ahead log from being reused
BOOTS_KEPT = 20

READ = "SELECT number, id, at, seq, due, events FROM log WHERE number >= ? ORDER BY number LIMIT ?"
LAST = "SELECT number, id, at, seq, due, events FROM log ORDER BY number DESC LIMIT 1"
ADD = "INSERT INTO log (number, id, at, seq, due, events) VALUES (?, ?, ?, ?, ?, ?)"
SEQ_OF = "SELECT seq FROM log WHERE number = ?"

SIDE = "SELECT key, value, checksum FROM side WHERE tbl = ? AND key = ?"
SIDE_ITEMS = "SELECT key, value, checksum FROM side WHERE tbl = ? AND key >= ? ORDER BY key"
SIDE_RANGE = "SELECT key, value, checksum FROM side WHERE tbl = ? AND key >= ? AND key < ? ORDER BY key"
SET_SIDE = "INSERT OR REPLACE INTO side (tbl, key, value, checksum) VALUES (?, ?, ?, ?)"
DELETE_SIDE = "DELETE FROM side WHERE tbl = ? AND key = ?"

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
        self._upkeep = Upkeep(self, self._db)
        try:
            self._db.open()
        except BaseException:
            self._db.close()
            raise

    def __repr__(self) -> str:
        return f"SqliteLog({self._db.folder!r}{', holding the write lock' if self._db.write_lock.held else ''})"

    def connect(self) -> SqliteLog:
        """Another log on the same store."""
        return SqliteLog(self._db.folder, None if self._anchors else self._clock)

    # Reading.

    def read(self, after: Position, limit: int = 10_000) -> list[Commit]:
        rows = self._log_rows(READ, (after.commit, limit + (after.commit > 0)))
        new = rows_after(rows, after)
        if rows and rows[-1][2] > self._floor:
            self._floor = rows[-1][2]
        if len(new) < limit and self._db.conn.in_transaction:
            self._last = position_of(rows[-1]) if rows else after
        return commits_of(new) if new else []

    def head(self) -> Head | None:
        return head_of(self._log_rows(LAST))

    def history(self, since_seq: int = 0) -> Iterator[tuple[int, int, Event]]:
        first = self._commit_after(since_seq)
        yield from history(lambda number: self._log_rows(READ, (number, HISTORY_COMMITS)), first, since_seq)

    def side_value(self, table: str, key: str) -> bytes | None:
        for _, value in self._values(table, SIDE, (table, key)):
            return value
        return None

    def side_items(self, table: str, low: str = "", high: str = "") -> list[tuple[str, bytes]]:
        if high:
            return self._values(table, SIDE_RANGE, (table, low, high))
        return self._values(table, SIDE_ITEMS, (table, low))

    def _values(self, table: str, sql: str, values: Sequence[object]) -> list[tuple[str, bytes]]:
        """Values beside the log; those that an older release wrote have no checksum."""
        found = []
        for key, value, checksum in self._db.rows(sql, values):
            known = type(key) is str and type(value) is bytes
            if not known or (checksum is not None and checksum != of_value(table, key, value)):
                raise self._db.damaged(f"the value of {key!r} in {table!r} is not as it was written")
            found.append((key, value))
        return found

    def seems_replaced(self) -> bool:
        return self._mark.contradicts(self._knows)

    def _knows(self, position: Position) -> bool:
        return bool(self._db.rows(KNOWN, position))

    def _commit_after(self, since_seq: int) -> int:
        """The number of the first commit that reaches beyond a sequence number: commits are dense and sorted."""
        first, last = first_commit(self._db), self._log_rows(LAST)
        if first is None or not last:
            return 1
        low, high = first[0], last[0][0] + 1
        while low < high:
            middle = (low + high) // 2
            row = self._db.rows(SEQ_OF, (middle,))
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
        self._db.write_lock.release()

    def lock_owner(self) -> int | None:
        return self._db.write_lock.owner()

    def begin(self, *, durable: bool = False) -> None:
        db = self._db
        if not db.write_lock.held or db.conn.in_transaction:
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
        if not self._db.write_lock.held or not conn.in_transaction:
            raise InternalError("append needs a transaction")
        try:
            if self._last != after:
                last = self._log_rows(LAST)
                check_last(position_of(last[0]) if last else START, after)
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
        if self._db.write_lock.held and self._db.conn.in_transaction:
            try:
                self._db.conn.execute("ROLLBACK")
            except sqlite3.Error:
                self._db.abandon()  # which ends the transaction as well

    # Beats.

    def beat(self, site: str, gap_ms: int = beating.GAP_MS) -> None:
        now, known = self.now(), self._beats()
        for row, at in beating.rows_to_write(known, site, now, gap_ms).items():
            value = str(at).encode()
            self._db.rows(SET_SIDE, (beating.TABLE, row, value, of_value(beating.TABLE, row, value)))
        for old in beating.rows_to_forget(known, now):
            self._db.rows(DELETE_SIDE, (beating.TABLE, old))

    def beats(self, gap_ms: int = beating.GAP_MS) -> dict[str, int]:
        known = self._beats()
        return beating.silences(known, self.now(), gap_ms)

    def _beats(self) -> dict[str, int]:
        return {site: beating.read(value) for site, value in self.side_items(beating.TABLE)}

    # Upkeep.

    def snapshot(self) -> Stored | None:
        return self._upkeep.snapshot()

    def save_snapshot(self, data: bytes, position: Position) -> None:
        self._upkeep.save_snapshot(data, position)

    def maintain(self, keep_ms: int, most_bytes: int = KEEP_BYTES) -> bool:
        return self._upkeep.maintain(self.now() - keep_ms, most_bytes)

    def forget_side_items(self, table: str, before: str) -> bool:
        return self._upkeep.forget_side_items(table, before)

    def close(self) -> None:
        self.rollback()
        self._mark.close()
        self._db.close()

    # The database.

    def rows_behind(self, number: int, limit: int) -> list[Row]:
        """Commits after a number, as they are stored: for a copy of the store."""
        return self._db.rows(READ, (number + 1, limit))

    def side_rows(self) -> list[tuple[str, str, bytes]]:
        """All values beside the log, as (table, key, value): for a copy of the store."""
        return [(table, key, bytes(value)) for table, key, value in self._db.rows("SELECT tbl, key, value FROM side")]

    def _log_rows(self, sql: str, values: Sequence[object] = ()) -> list[Row]:
        """Commits that follow one another, all as they were written; StoreError if they are not."""
        return check_rows(self._db.rows(sql, values), self._db.damaged)

    def _known_offset(self, boot: str) -> int | None:
        for (value,) in self._db.rows(META, (boot,)):
            if type(value) is not int:
                raise self._db.damaged("the clock of this boot is not as it was written")
            return value
        return None

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
            last = self._log_rows(LAST)
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
