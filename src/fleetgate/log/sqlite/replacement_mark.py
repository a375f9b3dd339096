"""A mark beside a SQLite store: the last commit that was made, and the file it was made in.

A backup that is put in place of the database has forgotten commits, and a process that was not there before cannot
tell. The mark can: it is not in the database. Where it names a commit that the log does not have, or another file than
the one that is there, the log was replaced.

It is a hint, written without waiting for the disk, and read without a lock. What cannot be read says nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from fleetgate.log.protocol import Position
from fleetgate.log.store_files import make_file

NAME = "fleetgate.mark"
_SIZE = 96


class ReplacementMark:
    """The mark in a store's folder."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, NAME)
        self._database = os.path.join(folder, "fleetgate.db")
        self._fd = -1
        self._inode = 0
        self._found: tuple[Position, int] | None = None

    def opened(self) -> None:
        """The database was opened, perhaps again: from now on the mark counts for this one."""
        try:
            if self._fd < 0 or not os.fstat(self._fd).st_nlink:
                self.close()
                self._fd = make_file(self._path, exclusive=False)
            self._inode = os.stat(self._database).st_ino
            self._found = _read(os.pread(self._fd, _SIZE, 0))
        except OSError:
            self._found = None

    def contradicts(self, knows: Callable[[Position], bool]) -> bool:
        """Whether the log is another one than the mark was set for. `knows` asks the log."""
        if self._found is None:
            return False
        position, inode = self._found
        return inode != self._inode or not knows(position)

    def set(self, position: Position) -> None:
        """A commit was made, under the write lock."""
        self._found = None
        text = f"{position.commit} {position.id} {position.seq} {self._inode}"
        try:
            os.pwrite(self._fd, f"{text:<{_SIZE - 1}}\n".encode(), 0)
        except OSError:
            pass  # the disk may be full, and no other process waits for it

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _read(data: bytes) -> tuple[Position, int] | None:
    parts = data.split()
    if len(data) != _SIZE or len(parts) != 4 or not all(parts[at].isdigit() for at in (0, 2, 3)):
        return None
    return Position(int(parts[0]), parts[1].decode("ascii", "replace"), int(parts[2])), int(parts[3])
