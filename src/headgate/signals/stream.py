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
_LARGE = 32_768
_BLOCK = 65_536


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
    """The first 4 KB of a stream, and its last part.

    Large pieces are kept as they are: nothing is copied. Small ones are copied into blocks, which are used again and
    again: a read that asked for 64 KB and got little would leave a hole in memory if its piece were kept.
    """

    __slots__ = ("_block", "_filled", "_held", "_held_bytes", "_size", "_spare", "_start", "seen")

    def __init__(self, size: int) -> None:
        self.seen = 0  # bytes in all
        self._size = size
        self._start = b""
        self._held: deque[bytes | memoryview] = deque()  # full blocks and large pieces, the oldest first
        self._held_bytes = 0
        self._block = memoryview(bytearray())
        self._filled = 0
        self._spare: list[memoryview] = []

    def feed(self, data: bytes) -> None:
        length = len(data)
        if self.seen < START_BYTES:
            self._start += data[: START_BYTES - len(self._start)]
        self.seen += length
        filled = self._filled
        if length >= _LARGE:
            if filled:
                self._close_block()
            self._keep(data if length <= self._size else data[-self._size :])
        else:
            end = filled + length
            if end > _BLOCK or not self._block:
                self._close_block()
                filled, end = 0, length
            self._block[filled:end] = data
            self._filled = end

    def _close_block(self) -> None:
        if self._filled:
            self._keep(self._block[: self._filled])
        self._block = self._spare.pop() if self._spare else memoryview(bytearray(_BLOCK))
        self._filled = 0

    def _keep(self, piece: bytes | memoryview) -> None:
        held = self._held
        held.append(piece)
        size = self._held_bytes + len(piece)
        while size - len(held[0]) >= self._size:
            gone = held.popleft()
            size -= len(gone)
            if isinstance(gone, memoryview):
                self._spare.append(memoryview(gone.obj))
        self._held_bytes = size

    def start(self) -> bytes:
        return self._start

    def end(self) -> bytes:
        """The last part, from the start of a line on."""
        return self.since(0)

    def since(self, offset: int) -> bytes:
        """What came after `offset`; if not all of it is there any more, from the start of a line on."""
        data = b"".join((*self._held, self._block[: self._filled]))[-self._size :]
        gone = self.seen - len(data)
        if gone <= offset:
            return data[offset - gone :]
        return data[data.find(b"\n") + 1 or len(data) :]
