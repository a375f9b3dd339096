"""Warnings about a store that fails: one line when an outage begins and one when it is over.

Background work continues after an error and tries again, so the error would never be shown. Each kind of background
work reports its failures and successes under its own name; an outage lasts while any of them fails. The lines go to the
logger `fleetgate`, which a program shows or hides like any other. `logging` is imported with the first line, because
`fleetgate run` must start fast.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging


def logger() -> logging.Logger:
    """The logger `fleetgate`, which prints nothing unless the program asks for it."""
    import logging

    found = logging.getLogger("fleetgate")
    if not found.handlers:
        found.addHandler(logging.NullHandler())
    return found


class Trouble:
    """A problem of a loop that tries again: each message is said once, until the loop works again."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._said: set[str] = set()

    def failed(self, error: BaseException) -> None:
        if str(error) not in self._said:
            self._said.add(str(error))
            self._say(f"{error} (still trying)")

    def worked(self) -> None:
        self._said.clear()


class OutageLog:
    """The outages that one gate sees."""

    def __init__(self) -> None:
        self._failing: set[str] = set()
        self._since = 0.0
        self._stopped = False

    def stop(self) -> None:
        """The gate is closed: what fails from now on is no outage."""
        self._stopped = True

    def failed(self, work: str, error: BaseException) -> None:
        """Some background work failed, and will be tried again."""
        if self._stopped:
            return
        if not self._failing:
            self._since = monotonic()
            logger().warning("the store cannot be used: %s", str(error) or type(error).__name__)
        self._failing.add(work)

    def worked(self, work: str) -> None:
        """Some background work succeeded."""
        if work in self._failing:
            self._failing.discard(work)
            if not self._failing:
                logger().warning("the store works again, after %.0f s", monotonic() - self._since)
