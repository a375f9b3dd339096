"""The output of a child: passed on byte for byte to its destination, and shown to a reader (rule R2).

The child writes to a pipe of ours. We read what is there, pass it on at once, show it, and only then read again: no
more than one piece is ever kept, so a slow reader behind us slows the child down as it would without us.

Rules:
- Nothing is lost, added, changed or put in another order. stdout and stderr that are one file (`2>&1`) share one
  pipe: two would mix up what the child wrote first.
- Nothing here waits, except `finish`. O_NONBLOCK belongs to an open file, and stdout's is shared with other processes
  that do not expect it; so a pipe is opened again through /proc, for a flag of our own, and a socket is told with each
  message. Where neither can be done we ask before each write whether there is room, and write no more than that
  promises; there another process that fills the pipe in between can still hold us up. Files never block.
- Lines of up to PIPE_BUF (4 KB) stay whole where several agents write to one pipe, as a pipe promises to each of them.
- When no process takes the output any more, our end is closed, and the child's next write fails as it would without us.
  An error that a pipe cannot tell (a full disk) ends the same way, and is remembered.
- The reader cannot spoil the output: an exception of the reader ends the reading, and is remembered.

After the child's end everything it wrote is in the pipe, and is read. Descendants that it leaves behind may hold the
pipe open: what they write is passed on until they have been silent for 0.2 s, for 1 s at most; after that their output
has nowhere to go, and writing gives them SIGPIPE. A program that is to outlive its agent needs an output of its own.
"""

from __future__ import annotations

import errno
import os
import stat
from select import PIPE_BUF, POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, poll
from time import monotonic

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable

# As much as a pipe holds. Wider pipes and longer reads were measured: no quicker, and longer reads take twice the
# processor time. All pipes of a user also share an allowance of 64 MB, which wide ones in a fleet would use up.
IN_HAND_BYTES = 64 * 1024

# For descendants that hold the pipe after the child's end.
_SILENCE_S = 0.2
_AFTERWARDS_S = 1.0
_AFTERWARDS_BYTES = 1024 * 1024  # more than a pipe holds, so all of the child's own is among them

_OVER = POLLERR | POLLHUP | POLLNVAL


class OutputTap:
    """One pipe from the child to one file of ours. `stream` is 1 or 2; with `2>&1` both are one, told as 1."""

    __slots__ = ("_at", "_hand", "_on_bytes", "_outlet", "in_fd", "not_passed", "not_read", "stream")

    def __init__(
        self, stream: int, in_fd: int, on_bytes: Callable[[int, bytes], None] | None, out_fd: int | None = None
    ) -> None:
        self.stream = stream
        self.in_fd = in_fd  # -1 when there is nothing more to read
        self.not_passed: OSError | None = None  # why the output could not be passed on, if so
        self.not_read: Exception | None = None  # what `on_bytes` raised, if it did
        self._on_bytes = on_bytes
        self._outlet = _outlet(stream if out_fd is None else out_fd)
        self._hand = b""
        self._at = 0  # how much of what is in hand was passed on
        os.set_blocking(in_fd, False)  # the reading end is ours alone

    def __repr__(self) -> str:
        state = "closed" if self.in_fd < 0 else "open"
        return f"<OutputTap of {self.stream}, {state}, {len(self._hand) - self._at} bytes in hand>"

    @property
    def holds(self) -> bool:
        """Whether something waits for the reader behind us."""
        return bool(self._hand)

    def awaits(self) -> tuple[tuple[int, int], ...]:
        """What to wait for: room behind us, or more from the child, or that the reader behind us leaves."""
        if self._hand:
            return ((self._outlet.fd, POLLOUT),)
        if self.in_fd < 0:
            return ()
        if self._outlet.tells_when_over:
            return ((self.in_fd, POLLIN), (self._outlet.fd, 0))
        return ((self.in_fd, POLLIN),)

    def serve(self, fd: int, event: int) -> int:
        """Something that was awaited happened. Returns how much was read."""
        if fd == self.in_fd:
            return self.take()
        if self._hand:
            error = self._pass_on()
        else:
            error = BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) if event & _OVER else None
        if error is not None:
            self._give_up(error)
        return 0

    def take(self) -> int:
        """Read what is there, pass it on and show it. Returns how much that was."""
        try:
            data = os.read(self.in_fd, IN_HAND_BYTES)
        except BlockingIOError:
            return 0
        if not data:
            self.stop_reading()
            return 0
        self._hand, self._at = self._hand[self._at :] + data, 0
        error = self._pass_on()
        self._show(data)
        if error is not None:
            self._give_up(error)
        return len(data)

    def take_the_rest(self, until_s: float) -> None:
        """The child has ended: read what it left, whether or not it can be passed on by now."""
        room = _AFTERWARDS_BYTES
        more = poll()
        more.register(self.in_fd, POLLIN)
        while room > 0 and more.poll(max(min(_SILENCE_S, until_s - monotonic()), 0) * 1000):
            room -= self.take()
            if self.in_fd < 0:
                return
        self.stop_reading()

    def stop_reading(self) -> None:
        if self.in_fd >= 0:
            os.close(self.in_fd)
            self.in_fd = -1

    def close(self) -> None:
        self.stop_reading()
        if self._hand:
            self.not_passed = TimeoutError(errno.ETIMEDOUT, "the reader of the output has stopped reading")
            self._hand = b""
        self._outlet.close()

    def _pass_on(self) -> OSError | None:
        """Write as much as there is room for; returns what forbids to write any more, if something does."""
        try:
            while self._at < len(self._hand):
                passed = self._outlet.write(self._hand, self._at)
                if not passed:
                    return None
                self._at += passed
        except OSError as error:
            return error
        self._hand, self._at = b"", 0
        return None

    def _show(self, data: bytes) -> None:
        if self._on_bytes is None:
            return
        try:
            self._on_bytes(self.stream, data)
        except Exception as error:
            self._on_bytes, self.not_read = None, error

    def _give_up(self, error: OSError) -> None:
        """Pass nothing on any more, and let the child find its output closed."""
        self._hand, self._at = b"", 0
        self.not_passed = error
        if self.in_fd < 0:
            return
        try:
            data = os.read(self.in_fd, IN_HAND_BYTES)  # it may hold the child's last words
        except BlockingIOError:
            data = b""
        self.stop_reading()
        if data:
            self._show(data)


class Taps:
    """All taps of a child, waited for in one poll together with whatever else its owner waits for."""

    __slots__ = ("_awaited", "_by_fd", "_poll", "taps")

    def __init__(self, taps: Iterable[OutputTap], shared_poll: poll) -> None:
        self.taps = list(taps)
        self._wait_in(shared_poll)

    @property
    def hold(self) -> bool:
        """Whether the child may be waiting for a slow reader behind us."""
        return any(tap.holds for tap in self.taps)

    @property
    def not_passed(self) -> OSError | None:
        return next((tap.not_passed for tap in self.taps if tap.not_passed is not None), None)

    @property
    def not_read(self) -> Exception | None:
        return next((tap.not_read for tap in self.taps if tap.not_read is not None), None)

    def serve(self, fd: int, event: int) -> int:
        """Something happened to a file. Returns how much the child has written, if it is one of ours."""
        tap = self._by_fd.get(fd)
        if tap is None:
            return 0
        took = tap.serve(fd, event)
        self._await(tap)
        return took

    def take_the_rest(self) -> None:
        """The child has ended: read everything it wrote, and then nothing more."""
        until_s = monotonic() + _AFTERWARDS_S
        for tap in self.taps:
            if tap.in_fd >= 0:
                tap.take_the_rest(until_s)

    def finish(self, patience_s: float | None) -> None:
        """Wait until everything is passed on; with a patience, only as long as the reader goes on taking it."""
        self._wait_in(poll())
        while self.hold:
            ready = self._poll.poll(None if patience_s is None else patience_s * 1000)
            if not ready:
                return
            for fd, event in ready:
                self.serve(fd, event)

    def close(self) -> None:
        for tap in self.taps:
            tap.close()

    def _wait_in(self, shared_poll: poll) -> None:
        self._poll = shared_poll
        self._by_fd: dict[int, OutputTap] = {}
        self._awaited: dict[int, tuple[tuple[int, int], ...]] = {}
        for tap in self.taps:
            self._await(tap)

    def _await(self, tap: OutputTap) -> None:
        """Wait for what the tap awaits now, and for nothing else of it, which would keep us awake."""
        before, now = self._awaited.get(tap.stream, ()), tap.awaits()
        if now == before:
            return
        for fd, _ in before:
            self._poll.unregister(fd)
            del self._by_fd[fd]
        for fd, events in now:
            self._poll.register(fd, events)
            self._by_fd[fd] = tap
        self._awaited[tap.stream] = now


# --- where the output goes


class _Destination:
    """A file: takes everything at once."""

    __slots__ = ("fd",)

    tells_when_over = False

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def write(self, data: bytes, at: int) -> int:
        """Write some of `data` from `at` on. Returns how much; 0 when there is no room."""
        return os.write(self.fd, memoryview(data)[at:])

    def close(self) -> None:
        pass  # it is the wrapper's own stdout or stderr


class _Asked(_Destination):
    """Anything else: asked whether it has room, before each write of as much as the answer promises."""

    __slots__ = ("_room",)

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self._room = poll()
        self._room.register(fd, POLLOUT)

    def write(self, data: bytes, at: int) -> int:
        try:
            return os.write(self.fd, _piece(data, at)) if self._room.poll(0) else 0
        except BlockingIOError:  # a stranger who shares it made it so
            return 0


class _Pipe(_Destination):
    """A pipe, opened again. It takes pieces whole or not at all, so that other writers do not split our lines."""

    __slots__ = ("tells_when_over",)

    def __init__(self, fd: int) -> None:
        path = f"/proc/self/fd/{fd}"
        # A named pipe may lose its reader and get another one; only a write tells.
        self.tells_when_over = os.readlink(path).startswith("pipe:")
        super().__init__(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))

    def write(self, data: bytes, at: int) -> int:
        try:
            return os.write(self.fd, _piece(data, at))
        except BlockingIOError:
            return 0

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class _Socket(_Destination):
    """A stream socket, which can be told with each message not to wait."""

    __slots__ = ("_flags", "_socket")

    tells_when_over = True

    def __init__(self, fd: int) -> None:
        import socket

        self._socket: socket.socket = socket.socket(fileno=os.dup(fd))
        self._flags = socket.MSG_DONTWAIT
        super().__init__(self._socket.fileno())

    def write(self, data: bytes, at: int) -> int:
        try:
            return self._socket.send(memoryview(data)[at:], self._flags)
        except BlockingIOError:
            return 0

    def close(self) -> None:
        self._socket.close()


def _outlet(fd: int) -> _Destination:
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return _Destination(fd)
    try:
        if stat.S_ISFIFO(mode):
            return _Pipe(fd)
        if stat.S_ISSOCK(mode):
            return _Socket(fd)
    except OSError:
        pass  # no /proc; or another user's pipe; or its reader has left, as a write will tell
    return _Asked(fd)


def _piece(data: bytes, at: int) -> memoryview:
    """As much as a pipe takes in one piece: whole lines, or a part of one that is longer."""
    end = at + PIPE_BUF
    if end < len(data):
        end = data.rfind(b"\n", at, end) + 1 or end
    return memoryview(data)[at:end]
