"""The connection to the database of a SQLite store, and the check that its files are still in place.

The rule: what this process has open is what other processes see under the same name. A backup put in its place, a
folder moved away, a write-ahead log removed: each leaves an open connection that writes where no other process looks.
So the names are compared with what is open before every transaction and every read, and opened again if they differ;
the log then finds out from the commit's id whether it is still the log that it knew.

A forked child has no part in any of this: its copies of the lock's files are closed at once, and its copy of the
connection before it opens a store of its own. (SQLite keeps a list of a process's locks, which a child does not have.)
"""

from __future__ import annotations

import os
import sqlite3
import sys
from _weakref import ref
from collections.abc import Callable, Sequence
from time import sleep, time_ns
from typing import Any

from fleetgate.core.errors import FleetgateError, InternalError
from fleetgate.log import fork_safety
from fleetgate.log.protocol import StoreError
from fleetgate.log.sqlite.filesystems import refuse_network
from fleetgate.log.sqlite.write_lock import MOST_REOPENS, WriteLock

FORMAT = 1  # of the tables in schema.py, kept as the database's user_version
MOVED = 1_000_000  # the user_version of what is left in the place of a store that was moved (log/sqlite/moved_store.py)
BUSY_S = 10.0  # how long to wait for other programs' locks; Fleetgate's own processes queue at the file lock
WAL_KEPT_BYTES = 3 << 20  # below what makes a checkpoint, so that the size of the file tells when one is due
REPLACING_S = 0.05  # between two looks at files that are being replaced
CTIME_SETTLES_NS = 100_000_000  # several ticks of the slowest kernel clock


class StoreConnection:
    """What one log object has open. `opened` is called after each opening, also after a replacement."""

    conn: sqlite3.Connection

    def __init__(self, folder: str, opened: Callable[[], None]) -> None:
        self.folder = folder
        self.path = os.path.join(folder, "fleetgate.db")
        self.wal_path = self.path + "-wal"
        self.shm_path = self.path + "-shm"
        self.write_lock = WriteLock(folder)
        self._opened = opened
        self._is_open = False
        self._closed = False
        self._stale = False
        self._inodes: tuple[int, ...] = (0,)
        self._settled = 0  # the folder's ctime, when all was found in place some time after it
        self._forked = False
        self.reads = False  # a thread is in SQLite, without the write lock
        fork_safety.on_fork(self, StoreConnection._leave)
        _opened[ref(self, _forget)] = None

    def take(self, *, wait: bool) -> bool:
        """Take the write lock on the files that are in place now."""
        if self.write_lock.held:
            raise InternalError("the write lock is already held here")
        try:
            if self._stale:
                self.reopen()
            return self.write_lock.take(wait=wait, check=self._check_place)
        except OSError as error:
            self.write_lock.release()
            raise self.failed(error) from error
        except BaseException:
            self.write_lock.release()
            raise

    def _check_place(self) -> bool:
        if self.in_place():
            return True
        self.reopen()
        return False

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """What a statement finds, in the files that are in place now."""
        try:
            self.reads = True
            if not self.write_lock.held and not self.in_place():
                self.reopen()
            return self.conn.execute(sql, values).fetchall()
        except (sqlite3.Error, OSError) as error:
            raise self.failed(error) from error
        finally:
            self.reads = False

    # What is open.

    def open(self) -> None:
        """Open the store in the folder, made if need be."""
        refuse_network(self.folder)
        _close_inherited(self.path)
        try:
            self.write_lock.open()
            self.conn = self._connect_in_place()
        except BaseException as error:
            self._stale = True
            self.write_lock.close()
            if isinstance(error, sqlite3.Error | OSError):
                raise self.failed(error) from error
            raise
        self._is_open = True
        self._settled = 0
        self._stale = False
        self._opened()

    def in_place(self) -> bool:
        """Whether the files that are open are still those of that name."""
        if self._stale:
            return False
        try:
            folder = os.stat(self.folder)
            if folder.st_ctime_ns == self._settled and folder.st_ino == self._inodes[0]:
                return True
            if self._look() != self._inodes or self.write_lock.is_unlinked():
                return False
        except (FileNotFoundError, NotADirectoryError):
            return False
        # Removing or replacing a name changes the folder's ctime, which cannot be set. Once it is older than a
        # tick of the clock that it is taken from, looking at the folder is enough.
        self._settled = folder.st_ctime_ns if time_ns() - folder.st_ctime_ns > CTIME_SETTLES_NS else 0
        return True

    def _look(self) -> tuple[int, ...]:
        database = os.stat(self.path)
        beside = [os.stat(path).st_ino for path in (self.wal_path, self.shm_path)]
        return os.stat(self.folder).st_ino, database.st_dev, database.st_ino, *beside

    def reopen(self) -> None:
        """Open what is in place now; drops the lock, whose file may be another."""
        if self._forked:
            raise FleetgateError(fork_safety.BEFORE_FORK)
        if self._closed:
            raise InternalError(f"the store in {self.folder} was closed")
        self._let_go()
        # SQLite shares what it knows of these files among all connections of a process: none must keep the old ones.
        for other in [each() for each in list(_opened)]:
            if other is not None and other is not self and other.path == self.path:
                other._leave_connection()
        self.open()

    def _leave_connection(self) -> None:
        """Of files that are no longer in place, unless another thread is at work with them: it opens them again."""
        self._stale = True
        if not self.write_lock.held and not self.reads and self._is_open:
            _skip_checkpoint(self.conn)
            self.conn.close()

    def abandon(self) -> None:
        """Let go of what is open, transaction and lock included; the next use opens it again."""
        self._stale = True
        self._let_go()

    def failed(self, error: Exception) -> FleetgateError:
        """The error to raise for one of SQLite or of the system; what is open is not relied on again."""
        from fleetgate.log.sqlite.error_messages import explain

        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        self._stale = self._stale or code not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL)
        return explain(error, self.folder)

    def damaged(self, what: str) -> StoreError:
        """The error to raise when the store's contents are not as they were written."""
        from fleetgate.log.sqlite.error_messages import damaged

        return damaged(self.folder, what)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._let_go()
            self._stale = True

    def _leave(self) -> None:
        """In a forked child: let go of the copies. The parent's lock and transaction are not touched."""
        self._forked = self._stale = True
        was_idle = not self.write_lock.held and not self.reads
        self.write_lock.leave()
        if self._is_open:
            self._is_open = False
            _inherited.append((self.conn, self._inodes[1:3], was_idle))

    def _let_go(self) -> None:
        if not self._is_open:
            return
        try:
            same = self.in_place()
        except OSError:
            same = False
        if not same:
            _skip_checkpoint(self.conn)
        self.conn.close()
        self.write_lock.close()
        self._is_open = False

    def _connect_in_place(self) -> sqlite3.Connection:
        """Connect; again if files went away in between, as they do when a store is moved or restored."""
        for _ in range(MOST_REOPENS - 1):
            try:
                return self._connect()
            except FileNotFoundError:
                sleep(REPLACING_S)
        return self._connect()

    def _connect(self) -> sqlite3.Connection:
        if not os.path.exists(self.path):
            self._create()
        # As a URI, since a plain name would make an empty database where there is none.
        name = self.path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
        conn = sqlite3.connect(
            f"file:{name}?mode=rw", uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )
        try:
            (format,) = conn.execute("PRAGMA user_version").fetchone()
            if format != FORMAT:
                raise self._of_another_format(format, conn)
            if not os.path.exists(self.wal_path):
                self._enter_wal_mode(conn)
            self._add_columns(conn)
            conn.execute("PRAGMA synchronous=NORMAL")
            conn.execute("PRAGMA wal_autocheckpoint=0")
            conn.execute(f"PRAGMA journal_size_limit={WAL_KEPT_BYTES}")
            if sys.platform == "darwin":
                conn.execute("PRAGMA fullfsync=1")  # there a plain fsync does not reach the disk
            self._inodes = self._look()
        except BaseException:
            conn.close()
            raise
        return conn

    def _enter_wal_mode(self, conn: sqlite3.Connection) -> None:
        """Backup tools leave databases in another mode."""
        (mode,) = conn.execute("PRAGMA journal_mode=WAL").fetchone()
        if mode != "wal":
            raise StoreError(
                f"the file system of {self.folder} cannot hold the store (no shared memory for SQLite's write-ahead "
                "log): set FLEETGATE_STORE to a folder on a local disk"
            )
        conn.execute("SELECT 1 FROM meta").fetchall()  # makes its files

    def _add_columns(self, conn: sqlite3.Connection) -> None:
        """Stores of older releases lack some."""
        try:
            conn.execute("SELECT checksum FROM side LIMIT 0")
            return
        except sqlite3.OperationalError as error:
            if "no such column" not in str(error):
                raise
        from fleetgate.log.sqlite.schema import add_columns

        with self.write_lock.taken_for_setup():
            add_columns(conn)

    def _create(self) -> None:
        from fleetgate.log.sqlite.schema import create

        with self.write_lock.taken_for_setup():
            if not os.path.exists(self.path):
                create(self.path)

    def _of_another_format(self, format: int, conn: sqlite3.Connection) -> StoreError:
        if format == MOVED:
            from fleetgate.log.sqlite.moved_store import moved

            return moved(self.folder, conn)
        if format > FORMAT:
            return StoreError(
                f"the store's database {self.path} has format {format}, written by a newer fleetgate (this one knows "
                f"up to {FORMAT}): upgrade fleetgate"
            )
        return self.damaged("it is not a fleetgate store")


_opened: dict[ref[StoreConnection], None] = {}  # all of this process


def _forget(gone: ref[StoreConnection]) -> None:
    _opened.pop(gone, None)


# The connections of the process that this one was forked from, their files, and whether they were idle at that moment.
_inherited: list[tuple[sqlite3.Connection, tuple[int, ...], bool]] = []


def _close_inherited(path: str) -> None:
    """Close the copies of a parent's connections: with them SQLite would take the parent's locks for ours."""
    while _inherited:
        conn, file, idle = _inherited[-1]
        if idle:
            _skip_checkpoint(conn)
            conn.close()
        elif _identity(path) == file:
            raise StoreError(
                f"this process was forked while another thread of its parent was at work on {path}: fork before a "
                "gate is opened, or start processes by `spawn`"
            )
        else:
            fork_safety.keep(conn)
        _inherited.pop()


def _identity(path: str) -> tuple[int, ...]:
    try:
        facts = os.stat(path)
    except OSError:
        return ()
    return facts.st_dev, facts.st_ino


def _skip_checkpoint(conn: sqlite3.Connection) -> None:
    """Keep the end of a connection whose files were replaced from writing its old pages into the new ones."""
    try:
        if sys.version_info >= (3, 12):
            conn.setconfig(sqlite3.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, True)
        else:
            conn.interrupt()  # the checkpoint looks for this before its first page
    except sqlite3.ProgrammingError:
        return  # it is closed already
