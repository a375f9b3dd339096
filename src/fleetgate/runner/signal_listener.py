"""The signals that arrived, with their senders, as a file that a loop can wait for together with others.

A terminal sends Ctrl-C to everyone in its foreground, a person's `kill -INT` reaches the wrapper alone; the
first must not be passed on to a child in the same group and the second must. Only the sender tells them apart.

Two implementations, one interface (`fd` to wait on, `read()`, `close()`), so that one poll() serves Linux and macOS:

- `WithSenders`, a signalfd: each signal with its sender. Linux only. Python has no signalfd, so ctypes is
  imported, 3 ms; the child runs by then, and it is used only where the sender matters, with a terminal.
- `Numbers`, Python's wakeup descriptor: the numbers alone. Any Unix.

(sigtimedwait tells senders too, but cannot wait for a file as well; a thread would make the next fork unsafe.)

The rule: signals are held back (blocked) from before the child is let go until one of these listens, and none
that came for the child is left over for the wrapper afterwards.
"""

from __future__ import annotations

import os
import sys

from fleetgate.runner.signal_pipe import SignalPipe

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Iterable
else:
    import _signal as signal

# What a person or a program may send to the wrapper and mean for the child.
FORWARDED = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTSTP,
    signal.SIGCONT,
    signal.SIGWINCH,
)
LISTENED = (*FORWARDED, signal.SIGCHLD)
# Sent to a whole group when a member uses the terminal out of turn. Blocked and never handled: with a handler the
# system would repeat the write, and with it the signal, for ever.
OUT_OF_TURN = (signal.SIGTTIN, signal.SIGTTOU)
# Blocked and forgotten. SIGPIPE: the reader of the wrapper's output may leave before the child does.
_DISCARDED = (*OUT_OF_TURN, signal.SIGPIPE)
_HELD = (*LISTENED, *_DISCARDED)


class Signal:
    """One signal that came. `by_kernel` is None where the system does not tell."""

    __slots__ = ("by_kernel", "number", "sender")

    def __init__(self, number: int, by_kernel: bool | None = None, sender: int = 0) -> None:
        self.number = number
        self.by_kernel = by_kernel
        self.sender = sender


def hold() -> set[int]:
    """Hold signals back; returns the mask from before, which `let_go` restores."""
    return {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)}


def let_go(mask: Iterable[int]) -> None:
    """Let signals through again as before `hold`."""
    # Ignoring a signal for a moment discards one that is pending.
    for number in _DISCARDED:
        before = signal.signal(number, signal.SIG_IGN)
        signal.signal(number, signal.SIG_DFL if before is None else before)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def listen(*, senders: bool) -> WithSenders | Numbers:
    """Listen to the signals that `hold` holds back; with their senders, if asked and the system tells."""
    if senders and sys.platform == "linux":
        try:
            return WithSenders()
        except (ImportError, OSError, AttributeError):
            pass  # no ctypes, or no signalfd under this kernel
    return Numbers()


class WithSenders:
    """A signalfd. The signals stay blocked; reading takes them."""

    __slots__ = ("fd",)

    _RECORD = 128  # bytes of struct signalfd_siginfo

    def __init__(self) -> None:
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        bits = sum(1 << (number - 1) for number in LISTENED)
        # A sigset_t is an array of longs; all our numbers are in the first.
        mask = bits.to_bytes(ctypes.sizeof(ctypes.c_ulong), sys.byteorder) + bytes(128)
        self.fd: int = libc.signalfd(-1, mask, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "signalfd")

    def read(self) -> list[Signal]:
        try:
            data = os.read(self.fd, self._RECORD * 16)
        except BlockingIOError:
            return []
        return [self._signal(data[at : at + self._RECORD]) for at in range(0, len(data), self._RECORD)]

    def _signal(self, record: bytes) -> Signal:
        # struct signalfd_siginfo: u32 number, i32 errno, i32 code, u32 pid, … A code above 0 is the kernel's.
        number = int.from_bytes(record[0:4], sys.byteorder)
        code = int.from_bytes(record[8:12], sys.byteorder, signed=True)
        return Signal(number, code > 0, int.from_bytes(record[12:16], sys.byteorder))

    def close(self) -> None:
        while self.read():
            pass
        os.close(self.fd)


class Numbers:
    """The numbers of signals alone, through Python's wakeup descriptor."""

    __slots__ = ("_pipe", "fd")

    def __init__(self) -> None:
        self._pipe = SignalPipe(LISTENED)
        self.fd = self._pipe.fd
        signal.pthread_sigmask(signal.SIG_UNBLOCK, LISTENED)

    def read(self) -> list[Signal]:
        return [Signal(number) for number in self._pipe.read()]

    def close(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, LISTENED)
        self._pipe.close()
