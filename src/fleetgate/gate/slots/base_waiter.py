"""The loop of a process that waits for its ticket, without asyncio: a step, then sleep until something may be new."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterable
from time import monotonic
from typing import TYPE_CHECKING

from fleetgate.gate.slots.slot_gate import Left, QueuedTicket
from fleetgate.log.protocol import StoreError, StoreMoved

if TYPE_CHECKING:
    from fleetgate.core.entities import Lease


class BaseWaiter:
    """One ticket of this process."""

    def __init__(self, ticket: QueuedTicket) -> None:
        self._ticket = ticket
        self._id, self._mailbox, self._on_view, self._on_trouble = ticket
        self._next_look = 0.0

    def wait(self, until: float | None, wakeup_fd: int, stopped: Callable[[], bool]) -> Lease | Left | None:
        """Wait for the lease, or for the ticket to leave; None if `stopped()` is true or `until` has come."""
        while not stopped():
            ended: Lease | Left | None = None
            try:
                ended = self._step()
            except StoreMoved:
                raise  # it does not come back
            except StoreError as error:
                self._on_trouble(str(error))
            if ended is not None:
                return ended
            if until is not None and monotonic() >= until:
                return None
            self._sleep(until, wakeup_fd)
        return None

    def _step(self) -> Lease | Left | None:
        """Check for news: the lease, or why the ticket has left, once it is decided."""
        raise NotImplementedError

    def _moments(self) -> Iterable[float]:
        """When to look again at the latest."""
        return (self._next_look,)

    def _descriptors(self) -> Iterable[int]:
        """The descriptors that may wake this process."""
        return () if self._mailbox is None else (self._mailbox.fileno(),)

    def _sleep(self, until: float | None, wakeup_fd: int) -> None:
        moment = min([*self._moments(), *(() if until is None else (until,))])
        ready, _, _ = select.select([wakeup_fd, *self._descriptors()], [], [], max(0.0, moment - monotonic()))
        if wakeup_fd in ready:
            os.read(wakeup_fd, 512)  # a signal came; unread, it would wake this process again and again
