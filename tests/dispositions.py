"""What signals do, as in a terminal, however the tests were started.

Processes that a test starts inherit which signals are ignored and which are blocked; `nohup`, a shell's `&` and some
service managers leave SIGHUP, SIGINT or more of them ignored.
"""

from __future__ import annotations

import signal
from types import FrameType

_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def reset() -> None:
    """Nothing that is started from here on finds a signal ignored or blocked that is not so in a terminal."""
    for number in signal.valid_signals():
        if signal.getsignal(number) is signal.SIG_IGN and number not in _IGNORED_BY_PYTHON:
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, _live_on)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _live_on(number: int, frame: FrameType | None) -> None:
    """`nohup` is for the tests themselves all the same: a handler, unlike ignoring, is not inherited by programs."""
