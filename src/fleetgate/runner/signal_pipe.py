"""Signals as numbers in a pipe, so that a loop can wait for them together with other files.

The rule: after `close`, handlers and Python's wakeup descriptor are what they were before.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterable
    from types import FrameType
else:
    import _signal as signal


def do_nothing(number: int, frame: FrameType | None) -> None:
    """Replaces the default action, which would be to die or to ignore the signal."""


class SignalPipe:
    """Listens to `numbers` from its creation until `close`; `fd` can be read while a signal is unread.

    `handler` runs as well, as soon as a signal arrives. With `keep_ignored`, a signal that is ignored stays ignored:
    what was started with nohup outlives its terminal.
    """

    __slots__ = ("_before", "_numbers", "_previous_fd", "_write_fd", "fd")

    def __init__(
        self,
        numbers: Iterable[int],
        handler: Callable[[int, FrameType | None], None] = do_nothing,
        *,
        keep_ignored: bool = False,
    ) -> None:
        self._numbers = frozenset(int(number) for number in numbers)
        self.fd, self._write_fd = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write_fd, False)
        # A full pipe loses numbers and still wakes the loop, which is enough.
        self._previous_fd = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        self._before = {
            number: signal.signal(number, handler)
            for number in sorted(self._numbers)
            if not (keep_ignored and signal.getsignal(number) == signal.SIG_IGN)
        }

    def read(self) -> list[int]:
        """The numbers that arrived since the last call. Python also writes those of other handlers: left out."""
        try:
            return [number for number in os.read(self.fd, 4096) if number in self._numbers]
        except BlockingIOError:
            return []

    def close(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(self._previous_fd)
        os.close(self.fd)
        os.close(self._write_fd)
