"""Signals while a process waits in the queue: the first one makes it leave.

The rule: a signal never interrupts a transaction of this process. It interrupts the wait for the store's lock at once
if another process has the lock, and otherwise with the second signal.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from fleetgate.gate.slots.slot_gate import SlotGate
from fleetgate.runner.signal_pipe import SignalPipe

_LEAVING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(Exception):
    """A signal arrived while this process waited for the store's lock."""


class LeaveOnSignal:
    """From entry to exit of the `with` block, `caught` is the first signal (0: none) and `fd` can be read after one."""

    def __init__(self, gate: SlotGate) -> None:
        self.caught = 0
        self.fd = -1
        self._gate = gate
        self._waits_for_lock = False

    def __enter__(self) -> LeaveOnSignal:
        self._pipe = SignalPipe(_LEAVING, self._catch, keep_ignored=True)
        self.fd = self._pipe.fd
        self._hook()
        return self

    def __exit__(self, *_: object) -> None:
        self._unhook()
        self._pipe.close()

    def switch_to(self, gate: SlotGate) -> None:
        """The process waits at another gate from now on."""
        self._unhook()
        self._gate = gate
        self._hook()

    def _hook(self) -> None:
        self._lock_wait = own = self._gate.lock_wait

        @contextmanager
        def lock_wait() -> Iterator[None]:
            self._waits_for_lock = True
            try:
                with own():
                    yield
            finally:
                self._waits_for_lock = False

        self._gate.lock_wait = lock_wait

    def _unhook(self) -> None:
        self._gate.lock_wait = self._lock_wait

    def _catch(self, number: int, frame: FrameType | None) -> None:
        first = not self.caught
        self.caught = self.caught or number
        if self._waits_for_lock and (self._gate.lock_owner() not in (None, os.getpid()) or not first):
            raise Stopped
