"""Waiting for a store that is unreachable: a restart of its server takes a few seconds.

A request waits only where the store will probably come back: it has been reached from this host before, or it reports
that it is starting. A wrong address, name or password fails at once (log/postgres/connection.py tells them apart).
"""

from __future__ import annotations

import select
from time import monotonic

from fleetgate.cli.run.wait_progress import say
from fleetgate.log.protocol import StoreAway, StoreError

_RESTART_S = 10.0
_STARTING_S = 6 * _RESTART_S  # for a server that reports it is starting: after a crash it first reads its own log
_AGAIN_S = 0.3


class Outage:
    """How long one request waits for the store: at most `most_s`; 0: not at all."""

    def __init__(self, most_s: float | None = None) -> None:
        self._most_s = _STARTING_S if most_s is None else min(most_s, _STARTING_S)
        self._began: float | None = None  # when it was noticed
        self._until = 0.0

    def retries_after(self, error: StoreError, *, known: bool, wakeup_fd: int = -1) -> bool:
        """Whether to try again, after a short pause that a signal ends: the store may come back, and there is time."""
        if self._most_s <= 0 or not isinstance(error, StoreAway) or not (known or error.is_starting):
            return False
        now = monotonic()
        first = self._began is None
        if self._began is None:
            self._began = self._until = now
        if first or error.is_starting:  # it answers, and will be ready
            self._until = min(now + _RESTART_S, self._began + self._most_s)
        if first:
            most_s = self._most_s if error.is_starting else self._until - now
            say(f"{error} (trying for {'up to ' if error.is_starting else ''}{most_s:g}s)")
        left_s = self._until - now
        if left_s <= 0:
            return False
        fds = [wakeup_fd] if wakeup_fd >= 0 else []
        select.select(fds, [], [], min(_AGAIN_S, left_s))
        return True
