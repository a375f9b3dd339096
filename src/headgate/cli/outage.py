"""A store that is away when somebody asks: a restart of its server takes a few seconds, and is borne with.

Only where there is reason to think that it comes back: it has been reached from this host before, or says itself that
it is just starting. A wrong address, name or password is said at once (log/postgres/link.py tells them apart).
"""

from __future__ import annotations

import os
import select
from time import monotonic

from headgate.cli.progress import say
from headgate.log.protocol import StoreAway, StoreError

RESTART_S = float(os.environ.get("HEADGATE_TEST_AWAY_S") or 10)  # less only in tests
_AGAIN_S = 0.3


class Outage:
    """How long one request bears with it; not at all with `most_s` of 0."""

    def __init__(self, most_s: float | None = None) -> None:
        self._most_s = RESTART_S if most_s is None else min(most_s, RESTART_S)
        self._until: float | None = None  # once it was noticed

    def bears(self, error: StoreError, *, known: bool, wakeup_fd: int = -1) -> bool:
        """Whether to try again, after a moment: is it worth it, and is there time? A signal ends the moment."""
        if self._most_s <= 0 or not isinstance(error, StoreAway) or not (known or error.is_starting):
            return False
        if self._until is None:
            self._until = monotonic() + self._most_s
            say(f"{error} (trying for {self._most_s:g} s)")
        left_s = self._until - monotonic()
        if left_s <= 0:
            return False
        fds = [wakeup_fd] if wakeup_fd >= 0 else []
        select.select(fds, [], [], min(_AGAIN_S, left_s))
        return True
