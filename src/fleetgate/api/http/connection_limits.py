"""What one connection may cost: memory, time, and a place among the others.

- What a client sends behind an unanswered request is kept as it came, and little of it: then nothing more is read.
- A head has to come within seconds, a body at a moderate pace, and answers have to be read.
- When there are as many connections as there may be, the one that has been idle for longest gives way to a new one.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Collection
from heapq import nsmallest
from typing import Protocol, TypeVar

from uvicorn.protocols.http.flow_control import FlowControl

HEAD_S = 10.0  # from its first byte, or from a new connection on, to the end of a head
BODY_S = 30.0  # for a body, and more for each byte of it:
BODY_BYTES_PER_S = 1024
UNREAD_S = 120.0  # how long a client may leave an answer unread
LOOK_S = 1.0

SLICE_BYTES = 4096  # read at once: one slice may hold several requests
KEPT_BYTES = 16 * 1024  # of what follows an unanswered request

MOST_CONNECTIONS = 4_000
_OTHER_FILES = 64  # of the process itself


def most_connections() -> int:
    """How many clients there is room for: each may need a connection to a provider as well."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return max(8, min(MOST_CONNECTIONS, (soft - _OTHER_FILES) // 2))


class LimitedConnection(Protocol):
    """A connection as the others see it."""

    since: float  # by the loop's clock: idle or in this state

    @property
    def idle(self) -> bool: ...

    def give_way(self) -> None: ...


P = TypeVar("P", bound=LimitedConnection)


def make_room(connections: Collection[P], newest: P) -> bool:
    """Close those that have been idle for longest, for a new one; whether there were any."""
    idle = (each for each in connections if each is not newest and each.idle)
    oldest = nsmallest(1 + len(connections) // 64, idle, key=lambda each: each.since)
    for connection in oldest:
        connection.give_way()
    return bool(oldest)


class ReadControl(FlowControl):
    """Reads neither what an application does not take, nor what is too much to keep."""

    def __init__(self, transport: object, go_on: Callable[[], None]) -> None:
        super().__init__(transport)  # type: ignore[arg-type]
        self._go_on = go_on
        self._full = self._stopped = False

    def pause_reading(self) -> None:
        self.read_paused = True
        self._settle()

    def resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            self._settle()
            self._go_on()

    def fill(self, full: bool) -> None:
        """Whether enough is kept."""
        self._full = full
        self._settle()

    def _settle(self) -> None:
        stop = self.read_paused or self._full
        if stop is not self._stopped:
            self._stopped = stop
            if stop:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()
