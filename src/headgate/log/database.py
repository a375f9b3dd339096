"""The files of a SQLite store: its database connection and its write lock, and whether they are still in place.

The rule: what this process has open is what other processes see under the same name. A backup put in its place,
a folder moved away, a write-ahead log removed: each leaves an open connection writing where nobody looks. So
the names are compared with what is open before every transaction and every read, and opened anew if they
differ; the log then finds out from the commit's id whether it is still the log that it knew.

The write lock is a blocking file lock. SQLite's own lock is taken as well and alone keeps the data right; but
waiting for it means sleeping and trying again, which starves writers for seconds.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Callable
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, LOCK_UN, flock
from time import time_ns

from headgate.core.errors import HeadgateError, InternalError
from headgate.log.filesystems import refuse_network
from headgate.log.protocol import StoreError

FORMAT = 1  # as in schema.py, which is imported only to make a store
BUSY_S = 10.0  # how long to wait for other programs' locks; Headgate's own processes queue at the file lock
WAL_KEPT_BYTES = 3 << 20  # below what makes a checkpoint, so that the size of the file tells when one is due
CTIME_SETTLES_NS = 100_000_000


class Database:
    """What one log object has open. `opened` is called after each opening, also after a replacement."""

    conn: sqlite3.Connection

    def __init__(self, folder: str, opened: Callable[[], None]) -> None:
        self.folder = folder
        self.path = os.path.join(folder, "headgate.db")
        self.wal_path = self.path + "-wal"
        self.lock_path = os.path.join(folder, "headgate.lock")
        self.holds = False
        self._opened = opened
        self._pid = os.getpid()
        self._mark = b"%-12d\n" % self._pid
        self._lock_fd = -1
        self._closed = False
        self._stale = False
        self._inodes: tuple[int, ...] = (0,)
        self._settled = 0  # the folder's ctime, when all was found in place some time after it

    # The write lock.

    def take(self, *, wait: bool) -> bool:
        """Take the write lock on what is in place now."""
        if self.holds or self._pid != os.getpid():
            raise InternalError("the write lock is already held here, or the log was opened before a fork")
        how = LOCK_EX if wait else LOCK_EX | LOCK_NB
        try:
            while True:
                if self._stale:
                    self.reopen()
                flock(self._lock_fd, how)
                self.holds = True
                if self.in_place():
                    break
                self.reopen()
        except BlockingIOError:
            return False
        except OSError as error:
            self.drop()
            raise self.failed(error) from error
        try:
            os.pwrite(self._lock_fd, self._mark, 0)
        except OSError:
            pass  # it is only for messages, and the disk may be full
        return True

    def drop(self) -> None:
        """Let go of the write lock."""
        if self.holds:
            self.holds = False
            flock(self._lock_fd, LOCK_UN)

    def owner(self) -> int | None:
        """The pid that seems to hold the write lock."""
        if self.holds:
            return self._pid
        try:
            fd = os.open(self.lock_path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            flock(fd, LOCK_SH | LOCK_NB)
            return None
        except BlockingIOError:
            mark = os.pread(fd, 32, 0).strip()
            return int(mark) if mark.isdigit() else None
        finally:
            os.close(fd)

    # What is open.

    def open(self) -> None:
        """Open the store in the folder, made if need be."""
        refuse_network(self.folder)
        fd = -1
        try:
            fd = self._open_lock_file()
            self.conn = self._connect(fd)
        except (sqlite3.Error, OSError) as error:
            self._close_quietly(fd)
            raise self.failed(error) from error
        except BaseException:
            self._close_quietly(fd)
            raise
        self._lock_fd = fd
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
            if self._look() != self._inodes or not os.fstat(self._lock_fd).st_nlink:
                return False
        except (FileNotFoundError, NotADirectoryError):
            return False
        # A name that is removed or replaced changes the folder's ctime, which nobody can set. Once it is older than
        # the coarsest clock that makes it, looking at the folder is enough.
        self._settled = folder.st_ctime_ns if time_ns() - folder.st_ctime_ns > CTIME_SETTLES_NS else 0
        return True

    def _look(self) -> tuple[int, ...]:
        database = os.stat(self.path)
        return os.stat(self.folder).st_ino, database.st_dev, database.st_ino, os.stat(self.wal_path).st_ino

    def reopen(self) -> None:
        """Open what is in place now; drops the lock, whose file may be another."""
        if self._closed:
            raise InternalError(f"the store in {self.folder} was closed")
        self._let_go()
        self.open()

    def failed(self, error: Exception) -> HeadgateError:
        """The error to raise for one of SQLite or of the system; what is open is not relied on again."""
        from headgate.log.explain import explain

        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        self._stale = self._stale or code not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL)
        return explain(error, self.folder)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._let_go()

    def _let_go(self) -> None:
        self.holds = False
        if self._lock_fd < 0:
            return
        try:
            same = self.in_place()
        except OSError:
            same = False
        if not same:
            _skip_checkpoint(self.conn)
        self.conn.close()
        os.close(self._lock_fd)
        self._lock_fd = -1

    def _close_quietly(self, fd: int) -> None:
        self._stale = True
        if fd >= 0:
            os.close(fd)

    def _open_lock_file(self) -> int:
        try:
            return os.open(self.lock_path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            from headgate.log.files import make_file, make_folder

            make_folder(self.folder)
            return make_file(self.lock_path, exclusive=False)

    def _connect(self, lock_fd: int) -> sqlite3.Connection:
        if not os.path.exists(self.path):
            self._create(lock_fd)
        # As a URI, since a plain name would make an empty database where there is none.
        name = self.path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
        conn = sqlite3.connect(
            f"file:{name}?mode=rw", uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )
        try:
            (format,) = conn.execute("PRAGMA user_version").fetchone()
            if format != FORMAT:
                raise self._of_another_format(format)
            if not os.path.exists(self.wal_path):
                conn.execute("PRAGMA journal_mode=WAL").fetchall()  # backup tools leave another mode
                conn.execute("SELECT 1 FROM meta").fetchall()
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

    def _create(self, lock_fd: int) -> None:
        from headgate.log.schema import create

        flock(lock_fd, LOCK_EX)
        try:
            if not os.path.exists(self.path):
                create(self.path)
        finally:
            flock(lock_fd, LOCK_UN)

    def _of_another_format(self, format: int) -> StoreError:
        if format > FORMAT:
            return StoreError(
                f"the store's database {self.path} has format {format}, written by a newer headgate (this one knows "
                f"up to {FORMAT}): upgrade headgate"
            )
        from headgate.log.explain import damaged

        return damaged(self.folder, "it is not a headgate store")


def _skip_checkpoint(conn: sqlite3.Connection) -> None:
    """Keep the end of a connection whose files were replaced from writing its old pages into the new ones."""
    if sys.version_info >= (3, 12):
        conn.setconfig(sqlite3.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, True)
    else:
        conn.interrupt()  # the checkpoint looks for this before its first page
