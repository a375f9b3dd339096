"""Stdin, stdout and stderr of all commands, even if some were closed at the start.

The rule: output that cannot be printed on stdout is an error (exit 74); stderr never changes what a command does.
"""

from __future__ import annotations

import io
import os
import sys

from fleetgate.core.errors import FleetgateError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class CannotPrint(FleetgateError, OSError):
    """Stdout does not accept the output of the command."""

    exit_code = 74  # EX_IOERR

    def __init__(self, why: str) -> None:
        super().__init__(f"cannot print everything: {why}")
        self.strerror = why


def prepare() -> None:
    """Replace stdout and stderr, before anything is opened or printed."""
    # If one of them is closed, no other file may get its number. A child finds it closed again.
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(fd)
    sys.stdout = _text(_Output(1, is_open=sys.stdout is not None), sys.stdout)
    sys.stderr = _text(_Notes(2), sys.stderr)


def flush() -> None:
    """Print what is left. CannotPrint."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        pass
    sys.stderr.flush()


def _text(raw: io.RawIOBase, before: object) -> io.TextIOWrapper:
    """A file for text, encoded as it was before; characters that it cannot have are written as their numbers."""
    if not isinstance(before, io.TextIOWrapper):
        return io.TextIOWrapper(io.BufferedWriter(raw), errors="backslashreplace")
    errors = "backslashreplace" if before.errors == "strict" else before.errors
    return io.TextIOWrapper(
        raw if before.write_through else io.BufferedWriter(raw),  # type: ignore[arg-type]
        before.encoding,
        errors,
        line_buffering=before.line_buffering,
        write_through=before.write_through,
    )


class _File(io.RawIOBase):
    """One of the standard files, to write to."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def writable(self) -> bool:
        return True

    def _write(self, data: ReadableBuffer) -> int:
        """All of it."""
        left = memoryview(data).cast("B")
        size = len(left)
        while left:
            try:
                left = left[os.write(self._fd, left) :]
            except BlockingIOError:  # another process that shares it made it non-blocking
                from select import select

                select([], [self._fd], [])
        return size


class _Output(_File):
    """Stdout."""

    def __init__(self, fd: int, *, is_open: bool) -> None:
        super().__init__(fd)
        self._is_open = is_open

    def write(self, data: ReadableBuffer) -> int:
        if not self._is_open:
            raise CannotPrint("stdout is closed")
        try:
            return self._write(data)
        except BrokenPipeError:
            raise  # its reader has left, which is not worth a word
        except OSError as error:
            raise CannotPrint(error.strerror or str(error)) from error


class _Notes(_File):
    """Stderr. What it does not take is dropped."""

    def write(self, data: ReadableBuffer) -> int:
        try:
            return self._write(data)
        except OSError:
            return memoryview(data).nbytes
