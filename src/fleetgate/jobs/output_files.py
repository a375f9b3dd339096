"""The output of a job: one series of files for each job, over all its attempts, in the state folder.

Each line of a file is `<wall time in ms> <mark><text>`. The mark is `o` for stdout, `e` for stderr, `h` for a note from
Fleetgate; a capital letter means that the job's own line continues in the next record of the same stream (it printed no
newline yet). So the output can be put together again byte for byte, whatever bytes it has.

A full file becomes `.1`, `.1` becomes `.2`, and the oldest is dropped: a job that prints without end does not fill the
disk. Writing never raises: a full disk costs output, not the job.

Each file begins with its number (mark `f`), one more than that of the file before it. So a place in the output is a
number and an offset, `3-8192`, and stays valid when files are renamed.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from time import time_ns
from typing import NamedTuple

from fleetgate.core.errors import BadRequest
from fleetgate.core.model_names import shown
from fleetgate.log.store_files import make_file, make_inner_folder

OUT, ERR, NOTE = b"o", b"e", b"h"
_FILE = b"f"
_MARKS = {1: OUT, 2: ERR}
FILES = 4  # the one that is written, and older ones
_LONGEST = 64 * 1024  # of one record: longer lines are cut into several
_PAGE = 1 << 20
_LEAST_PAGE = 2 * _LONGEST  # a record fits
_TRIES = 5


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


class OutputWriter:
    """Writes what one attempt prints behind what is there."""

    def __init__(self, folder: str, ident: str, most_bytes: int) -> None:
        self.lost = 0  # bytes that could not be written
        self._path = path_of(folder, ident)
        self._most = max(most_bytes // FILES, 4096)
        self._fd = -1
        self._size = 0
        self._number = 1
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
        if self._size:
            self._number = _number_of(self._fd)
        else:
            head = b"%d %s%d\n" % (time_ns() // 1_000_000, _FILE, self._number)
            self._size = os.write(self._fd, head)

    def _rotate(self) -> None:
        self.close()
        for number in range(FILES - 2, -1, -1):
            older = f"{self._path}.{number}" if number else self._path
            if os.path.exists(older):
                os.replace(older, f"{self._path}.{number + 1}")
        self._number += 1
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


class Page(NamedTuple):
    """A part of the output. `next` is the place behind it; `skipped`: what was asked for is no longer kept."""

    pieces: list[Piece]
    next: str
    more: bool
    skipped: bool


def page(folder: str, ident: str, after: str = "", *, most: int = _PAGE, tail: int | None = None) -> Page:
    """What is kept behind a place, "" being the beginning, up to about `most` bytes; or the last `tail` bytes."""
    with _opened(folder, ident) as found:
        number, offset = _place(after) if after else (0, 0)
        if tail is not None:
            number, offset = _before_end(found, tail)
        skipped = bool(after) and number not in found
        if number not in found:
            number, offset = min(found, default=0), 0
        pieces: list[Piece] = []
        room = max(most, _LEAST_PAGE)
        more = False
        while number in found:
            block = os.pread(found[number], room, offset)
            used = block.rfind(b"\n") + 1
            pieces += [piece for line in block[:used].split(b"\n") if (piece := _piece(line)) is not None]
            offset += used
            more = len(block) == room
            room -= used
            if more or number + 1 not in found:
                break
            number, offset = number + 1, 0  # what an interrupted write left at the end of a full file is no record
            more = room < _LEAST_PAGE
            if more:
                break
        return Page(pieces, f"{number}-{offset}" if found else after, more, skipped)


@contextmanager
def _opened(folder: str, ident: str) -> Iterator[dict[int, int]]:
    """The files, open, by number. Looked for again if they were renamed while we looked, so that none is missing."""
    found: dict[int, int] = {}
    try:
        for _ in range(_TRIES):
            for path in files(folder, ident):
                try:
                    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                except OSError as error:  # there is none, or a link, which another user may have made
                    if error.errno not in (errno.ENOENT, errno.ELOOP):
                        raise
                    continue
                number = _number_of(fd)
                if number in found:
                    os.close(fd)
                else:
                    found[number] = fd
            if not found or max(found) - min(found) == len(found) - 1:
                break
            _close(found)
        yield found
    finally:
        _close(found)


def _close(found: dict[int, int]) -> None:
    for fd in found.values():
        os.close(fd)
    found.clear()


def _number_of(fd: int) -> int:
    """A file's number; 0 of one that does not say it."""
    head = os.pread(fd, 64, 0).partition(b"\n")[0]
    _, _, rest = head.partition(b" ")
    return int(rest[1:]) if rest[:1] == _FILE and rest[1:].isdigit() else 0


def _place(text: str) -> tuple[int, int]:
    number, dash, offset = text.partition("-")
    if not (dash and number.isdecimal() and offset.isdecimal() and len(text) < 40):
        raise BadRequest(f"after {shown(text)}: valid is a place as `next` of an answer names it, such as 1-8192")
    return int(number), int(offset)


def _before_end(found: dict[int, int], tail: int) -> tuple[int, int]:
    """The first whole record among the last `tail` bytes."""
    for number in sorted(found, reverse=True):
        size = os.fstat(found[number]).st_size
        if tail < size:
            start = size - tail
            part = os.pread(found[number], _LEAST_PAGE, start - 1 if start else 0)
            return number, start + part.find(b"\n") if start else 0
        tail -= size
    return min(found, default=0), 0


class OutputReader:
    """Reads what is there, and what comes; goes on in the next file when one is full."""

    def __init__(self, folder: str, ident: str) -> None:
        self._folder, self._ident = folder, ident
        self._after = ""

    def read(self) -> Iterator[Piece]:
        """All that was written since the last call."""
        more = True
        while more:
            pieces, self._after, more, _ = page(self._folder, self._ident, self._after)
            yield from pieces


def _piece(line: bytes) -> Piece | None:
    at, blank, rest = line.partition(b" ")
    if not blank or not at.isdigit() or not rest or rest[:1] == _FILE:
        return None
    mark = rest[:1]
    whole = mark.islower()
    return Piece(int(at), mark.lower(), rest[1:] + (b"\n" if whole else b""), whole)
