"""Output as it comes, in pieces of any size: cut into lines, or only its end kept. Bounded in memory, always.

A run reports its failure at its end, and its first activity near its start. So a stream is read line by line only
while every line is needed (`Lines`); after that its last part is kept and read on request (`OutputEnd`). Of the rest,
only lines with a certain word in them are looked at (`MarkedLines`). Passing 100 MB through costs next to nothing.

The rule: how the output was cut into pieces never changes what is read from it.
"""

from __future__ import annotations

from collections import deque

LINE_BYTES = 1 << 20  # a line that is longer is passed over
_SMALL = 4096
_LARGE = 4096


class Lines:
    """Cuts a stream into its lines, without their ends. A line that is too long comes as None."""

    __slots__ = ("_held", "_kept", "_longest")

    def __init__(self, longest: int = LINE_BYTES) -> None:
        self._longest = longest
        self._held: list[bytes] = []  # the line that has not ended yet
        self._kept = 0  # its length so far, also of what is no longer held

    def feed(self, data: bytes) -> list[bytes | None]:
        """The lines that end in this piece."""
        end = data.find(b"\n")
        if end < 0:
            self._hold(data)
            return []
        self._hold(data[:end])
        lines = [self._take()]
        last = data.rfind(b"\n")
        if last > end:
            longest = self._longest
            lines += [line if len(line) <= longest else None for line in data[end + 1 : last].split(b"\n")]
        self._hold(data[last + 1 :])
        return lines

    def unfinished(self) -> bytes | None:
        """The line that has not ended yet, which may be empty."""
        return b"".join(self._held) if self._kept <= self._longest else None

    def _hold(self, part: bytes) -> None:
        self._kept += len(part)
        if self._kept > self._longest:
            self._held = []
        elif len(part) < _SMALL and self._held and len(self._held[-1]) < _SMALL:
            self._held[-1] += part  # many small pieces would cost more than what is in them
        elif part:
            self._held.append(part)

    def _take(self) -> bytes | None:
        line = self.unfinished()
        self._held, self._kept = [], 0
        return line


class MarkedLines:
    """The lines of a stream that have one of these marks in them. A line that is too long is passed over."""

    __slots__ = ("_held", "_longest", "_marks")

    def __init__(self, marks: tuple[bytes, ...], longest: int = LINE_BYTES) -> None:
        self._marks = marks
        self._longest = longest
        self._held: bytearray | None = bytearray()  # the line that has not ended yet; None: it is too long

    def feed(self, data: bytes) -> list[bytes]:
        """The marked lines that end in this piece."""
        end = data.rfind(b"\n") + 1
        if not end:
            self._hold(data)
            return []
        found = []
        start = 0
        if self._held is None or self._held:
            start = data.find(b"\n") + 1
            self._hold(data[: start - 1])
            found = self.finish()
        if start < end and any(data.find(mark, start, end) >= 0 for mark in self._marks):
            found += [line for line in data[start : end - 1].split(b"\n") if self._is_marked(line)]
        self._hold(data[end:])
        return found

    def finish(self) -> list[bytes]:
        """The line that has not ended, if it is marked; after that, a new one begins."""
        line = b"" if self._held is None else bytes(self._held)
        self._held = bytearray()
        return [line] if self._is_marked(line) else []

    def _hold(self, part: bytes) -> None:
        if self._held is not None:
            self._held += part
            if len(self._held) > self._longest:
                self._held = None

    def _is_marked(self, line: bytes) -> bool:
        return len(line) <= self._longest and any(mark in line for mark in self._marks)


class OutputEnd:
    """The last part of a stream.

    Large pieces are kept as they are: nothing is copied. Small ones are copied together, since a read that asked for
    64 KB and got little would leave a hole in memory if its piece were kept.
    """

    __slots__ = ("_large", "_large_bytes", "_size", "_small", "seen")

    def __init__(self, size: int) -> None:
        self.seen = 0  # bytes in all
        self._size = size
        self._large: deque[bytes] = deque()  # the oldest first
        self._large_bytes = 0
        self._small = bytearray()  # came after all of them

    def feed(self, data: bytes) -> None:
        length = len(data)
        self.seen += length
        small = self._small
        if length < _LARGE:
            small += data
            if len(small) > 2 * self._size:
                del small[: -self._size]
                self._large.clear()
                self._large_bytes = 0
        else:
            if small:
                self._keep(bytes(small))
                small.clear()
            self._keep(data if length <= self._size else data[-self._size :])

    def _keep(self, piece: bytes) -> None:
        large = self._large
        large.append(piece)
        kept = self._large_bytes + len(piece)
        while kept - len(large[0]) >= self._size:
            kept -= len(large.popleft())
        self._large_bytes = kept

    def whole_lines(self, offset: int = 0) -> bytes:
        """What came after `offset`; if not all of it is there any more, from the start of a line on."""
        data = b"".join((*self._large, self._small))[-self._size :]
        gone = self.seen - len(data)
        if gone <= offset:
            return data[offset - gone :]
        return data[data.find(b"\n") + 1 or len(data) :]
