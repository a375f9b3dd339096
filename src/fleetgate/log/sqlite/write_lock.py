"""The write lock of a SQLite store: a file lock in its folder, which processes wait for in turn.

SQLite's own lock is taken as well and alone keeps the data right. But waiting for that one means sleeping and trying
again, which starves writers for seconds; a process that waits for a file lock is woken.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, LOCK_UN, flock
from time import sleep

from fleetgate.log.protocol import StoreError

HAND_OVER_S = 0.000_05  # what a waiting process needs to wake up and take a lock that was released
MOST_REOPENS = 20  # in a row, before we conclude that another program keeps removing the files


class WriteLock:
    """The lock file of one folder, as one connection has it open."""

    def __init__(self, folder: str) -> None:
        self.held = False
        self._folder = folder
        self._path = os.path.join(folder, "fleetgate.lock")
        self._pid = os.getpid()
        self._mark = b"%-12d\n" % self._pid
        self._fd = -1
        self._folder_fd = -1

    def open(self) -> None:
        """Open the lock file, which is created with its folder if need be."""
        try:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            from fleetgate.log.store_files import make_file, make_folder

            make_folder(self._folder)
            self._fd = make_file(self._path, exclusive=False)
        self._folder_fd = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)

    def is_unlinked(self) -> bool:
        """Whether the file that is open has no name any more."""
        return not os.fstat(self._fd).st_nlink

    def take(self, *, wait: bool, check: Callable[[], bool]) -> bool:
        """Take the lock. `check` says whether the files are in place, and opens them again if they are not."""
        if self._others_wait():
            sleep(HAND_OVER_S)
        taken = self._lock(LOCK_EX | LOCK_NB, check) or (wait and self._wait(check))
        if taken:
            try:
                os.pwrite(self._fd, self._mark, 0)
            except OSError:
                pass  # it is only for messages, and the disk may be full
        return taken

    def _lock(self, how: int, check: Callable[[], bool]) -> bool:
        try:
            for _ in range(MOST_REOPENS):
                flock(self._fd, how)
                self.held = True
                if check():
                    return True
            raise StoreError(
                f"the files of the store in {self._folder} are removed or replaced all the time: find out by what, "
                "then run `fleetgate doctor`"
            )
        except BlockingIOError:
            return False

    # Releasing a file lock wakes the next waiting process, but does not hand the lock to it: a process that decides in
    # a loop has it again before the other one is awake. So waiting processes share a lock on the folder, and a newcomer
    # that sees it gives them a moment. It is only a hint: a waiting process that was stopped costs others that moment,
    # and nothing else.

    def _others_wait(self) -> bool:
        try:
            flock(self._folder_fd, LOCK_EX | LOCK_NB)
            flock(self._folder_fd, LOCK_UN)
        except OSError as error:
            return isinstance(error, BlockingIOError)
        return False

    def _wait(self, check: Callable[[], bool]) -> bool:
        try:
            flock(self._folder_fd, LOCK_SH | LOCK_NB)
        except OSError:
            pass
        try:
            return self._lock(LOCK_EX, check)
        finally:
            if self._folder_fd >= 0:
                flock(self._folder_fd, LOCK_UN)

    @contextmanager
    def taken_for_setup(self) -> Iterator[None]:
        """Hold the lock while the database is created or changed, before it is in use here."""
        flock(self._fd, LOCK_EX)
        try:
            yield
        finally:
            flock(self._fd, LOCK_UN)

    def release(self) -> None:
        """Release the lock, if it is held."""
        if self.held:
            self.held = False
            flock(self._fd, LOCK_UN)

    def owner(self) -> int | None:
        """The pid that seems to hold the lock."""
        if self.held:
            return self._pid
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
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

    def close(self) -> None:
        """Release the lock and close its files."""
        self.release()  # closing the file would do, if no other process could have a copy of it
        self.leave()

    def leave(self) -> None:
        """Close the files without releasing the lock: in a forked child it is the parent's."""
        self.held = False
        for fd in (self._fd, self._folder_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._folder_fd = -1
