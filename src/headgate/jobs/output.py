"""What a job printed: one series of files for each job, over all its attempts, in the state folder.

Each line of a file is `<wall time in ms> <mark><text>`. The mark tells what it is: `o` stdout, `e` stderr, `h` a note
of ours; a capital letter means that the job's own line goes on in the next record of the same stream (it printed no
newline yet). So what was printed can be put together again byte for byte, whatever bytes they were.

A file that is full becomes `.1`, `.1` becomes `.2`, and the oldest is dropped: a job that prints without end fills no
disk. Writing never raises: a disk that is full costs output, not the job.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from time import time_ns
from typing import NamedTuple

from headgate.log.files import make_file, make_inner_folder

OUT, ERR, NOTE = b"o", b"e", b"h"
_MARKS = {1: OUT, 2: ERR}
FILES = 4  # the one that is written, and older ones
_LONGEST = 64 * 1024  # of one record: longer lines are cut into several


class Piece(NamedTuple):
    """A record that was read: when, which stream, the bytes, and whether a line ends with it."""

    at: int
    mark: bytes
    data: bytes
    whole: bool


def folder_of(folder: str, ident: str) -> str:
    return f"{folder}/jobs/{ident}"


def path_of(folder: str, ident: str) -> str:
    return f"{folder_of(folder, ident)}/output"


def remove(folder: str, ident: str) -> None:
    if folder:
        shutil.rmtree(folder_of(folder, ident), ignore_errors=True)


class Writer:
    """Writes what one attempt prints behind what is there."""

    def __init__(self, folder: str, ident: str, most_bytes: int) -> None:
        self.lost = 0  # bytes that could not be written
        self._path = path_of(folder, ident)
        self._most = max(most_bytes // FILES, 4096)
        self._fd = -1
        self._size = 0
        try:
            make_inner_folder(f"{folder}/jobs")
            make_inner_folder(folder_of(folder, ident))
            self._open()
        except OSError:
            self._fd = -1

    def write(self, stream: int, data: bytes) -> None:
        """A piece of what the job printed on stdout (1) or stderr (2)."""
        self._put(_MARKS.get(stream, OUT), data)

    def note(self, text: str) -> None:
        """A line of ours among the job's."""
        self._put(NOTE, text.replace("\n", " ").encode() + b"\n")

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _put(self, mark: bytes, data: bytes) -> None:
        now = b"%d " % (time_ns() // 1_000_000)
        records = []
        for line in _lines(data):
            for at in range(0, len(line), _LONGEST):
                part = line[at : at + _LONGEST]
                ended = part.endswith(b"\n")
                records.append(now + (mark if ended else mark.upper()) + (part if ended else part + b"\n"))
        self._add(b"".join(records))

    def _add(self, block: bytes) -> None:
        try:
            if self._fd < 0:
                raise OSError
            if self._size and self._size + len(block) > self._most:
                self._rotate()
            view = memoryview(block)
            while view:
                done = os.write(self._fd, view)
                self._size += done
                view = view[done:]
        except OSError:
            self.lost += len(block)

    def _open(self) -> None:
        self._fd = make_file(self._path, exclusive=False)
        self._size = os.lseek(self._fd, 0, os.SEEK_END)

    def _rotate(self) -> None:
        self.close()
        for number in range(FILES - 2, -1, -1):
            older = f"{self._path}.{number}" if number else self._path
            if os.path.exists(older):
                os.replace(older, f"{self._path}.{number + 1}")
        self._open()


def _lines(data: bytes) -> list[bytes]:
    """Split at newlines and at nothing else, as `splitlines` would."""
    parts = data.split(b"\n")
    lines = [part + b"\n" for part in parts[:-1]]
    return [*lines, parts[-1]] if parts[-1] else lines


def files(folder: str, ident: str) -> list[str]:
    """The files that there are, the oldest first."""
    path = path_of(folder, ident)
    older = [f"{path}.{number}" for number in range(FILES - 1, 0, -1)]
    return [each for each in [*older, path] if os.path.exists(each)]


class Reader:
    """Reads what is there, and what comes; goes on in the next file when one is full."""

    def __init__(self, folder: str, ident: str) -> None:
        self._folder, self._ident = folder, ident
        self._file = -1
        self._inode = 0
        self._rest = b""

    def read(self) -> Iterator[Piece]:
        """All that was written since the last call."""
        while True:
            if self._file < 0 and not self._open_next():
                return
            while block := os.read(self._file, 1 << 20):
                lines = (self._rest + block).split(b"\n")
                self._rest = lines.pop()
                for line in lines:
                    piece = _piece(line)
                    if piece is not None:
                        yield piece
            if not self._has_newer():
                return
            os.close(self._file)
            self._file, self._rest = -1, b""

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open_next(self) -> bool:
        """The file after the one that was read; the oldest at first, or when that one is gone by now."""
        found = [(path, os.stat(path).st_ino) for path in files(self._folder, self._ident)]
        inodes = [inode for _, inode in found]
        at = inodes.index(self._inode) + 1 if self._inode in inodes else 0
        if at >= len(found):
            return False
        self._file = os.open(found[at][0], os.O_RDONLY | os.O_CLOEXEC)
        self._inode = os.fstat(self._file).st_ino
        return True

    def _has_newer(self) -> bool:
        paths = files(self._folder, self._ident)
        return bool(paths) and os.stat(paths[-1]).st_ino != self._inode


def _piece(line: bytes) -> Piece | None:
    at, blank, rest = line.partition(b" ")
    if not blank or not at.isdigit() or not rest:
        return None
    mark = rest[:1]
    whole = mark.islower()
    return Piece(int(at), mark.lower(), rest[1:] + (b"\n" if whole else b""), whole)
