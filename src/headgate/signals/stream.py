"""Output as it comes, in pieces of any size: cut into lines, or only its two ends kept. Bounded in memory, always.

What a run says about its own failure is at its end, and whether it has begun to work is told near its start. So a
stream is read line by line only as long as somebody needs every line (`Lines`), and after that its last part is kept as
it came, by reference, and read when somebody asks (`Ends`). Passing 100 MB through costs next to nothing.

The rule: how the output was cut into pieces never changes what is read from it.
"""

from __future__ import annotations

from collections import deque

LINE_BYTES = 1 << 20  # a line that is longer is passed over
START_BYTES = 4096
_SMALL = 4096


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


class Ends:
    """The first 4 KB of a stream, and its last part."""

    __slots__ = ("_held", "_size", "_size_held", "_start", "seen")

    def __init__(self, size: int) -> None:
        self.seen = 0  # bytes in all
        self._size = size
        self._start = b""
        self._held: deque[bytes] = deque()
        self._size_held = 0

    def feed(self, data: bytes) -> None:
        self.seen += len(data)
        if len(self._start) < START_BYTES:
            self._start += data[: START_BYTES - len(self._start)]
        if len(data) > self._size:
            data = data[-self._size :]
        held = self._held
        if len(data) < _SMALL and held and len(held[-1]) < _SMALL:
            held[-1] += data
        else:
            held.append(data)
        self._size_held += len(data)
        while self._size_held - len(held[0]) >= self._size:
            self._size_held -= len(held.popleft())

    def start(self) -> bytes:
        return self._start

    def end(self) -> bytes:
        """The last part, from the start of a line on."""
        return self.since(0)

    def since(self, offset: int) -> bytes:
        """What came after `offset`; if not all of it is there any more, from the start of a line on."""
        data = b"".join(self._held)[-self._size :]
        gone = self.seen - len(data)
        if gone <= offset:
            return data[offset - gone :]
        return data[data.find(b"\n") + 1 or len(data) :]
