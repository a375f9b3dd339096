"""The foreground of the terminal: which process group may read it.

A terminal has one process group in its foreground: that group reads, and gets what Ctrl-C, Ctrl-Z and a resize
send. The rule: we never read the terminal, never change its settings, and hand the foreground only from our own
group to the child's and back.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal


def has_terminal() -> bool:
    """Whether any of the child's standard files would be a terminal."""
    return any(os.isatty(fd) for fd in (0, 1, 2))


class Terminal:
    """The terminal that controls this session, if there is one."""

    __slots__ = ("_fd", "_opened")

    def __init__(self) -> None:
        self._fd = -1
        self._opened = False
        for fd in (0, 1, 2):
            if _foreground(fd):
                self._fd = fd
                return
        # Everything is redirected, and yet there may be a terminal: where ssh and git ask for a password.
        try:
            self._fd = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            return
        self._opened = True

    def foreground(self) -> int:
        """The group in the foreground; 0 when there is no terminal."""
        return _foreground(self._fd)

    def hand_to(self, group: int) -> None:
        """Put `group` in the foreground, from wherever we are."""
        # With SIGTTOU blocked the system lets a background process do this instead of stopping it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTTOU,))
        try:
            os.tcsetpgrp(self._fd, group)
        except OSError:
            pass  # hung up, or the group is gone: there is nothing left to hand over
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def close(self) -> None:
        if self._opened:
            os.close(self._fd)
        self._fd, self._opened = -1, False


def _foreground(fd: int) -> int:
    try:
        return os.tcgetpgrp(fd)
    except OSError:
        return 0
