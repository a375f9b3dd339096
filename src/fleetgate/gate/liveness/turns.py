"""Turns among the processes of a host: work that one of them does every second or so.

The turn goes to the first process that finds that no other has taken it for that long. It is not bound to the head of
the queue: that process may be stopped, and does not know that it is the head while the queue moves fast.
"""

from __future__ import annotations

import os
from time import time

_EVERY_S = 0.9  # a little less than the waiters' poll, or one that waits alone would look at every second poll


class Turns:
    """One kind of turn. The age of a file says when it was last taken; without a path there are no other processes."""

    def __init__(self, path: str, every_s: float = _EVERY_S) -> None:
        self._path = path
        self._every_s = every_s

    def take(self) -> bool:
        """Whether the turn is ours; then no other process gets it for `every_s`."""
        if not self._path:
            return True
        try:
            if 0 <= time() - os.stat(self._path).st_mtime < self._every_s:
                return False
            os.utime(self._path)
        except FileNotFoundError:
            self._create()
        except OSError:
            pass  # another user's file: better two processes that look than none
        return True

    def give_back(self) -> None:
        """The work failed: another process may try."""
        try:
            os.utime(self._path, (0, 0))
        except OSError:
            pass

    def _create(self) -> None:
        from fleetgate.log.store_files import make_file

        try:
            os.close(make_file(self._path, exclusive=False))
        except OSError:
            pass
