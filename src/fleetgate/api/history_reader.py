"""The reader of the log's history: a thread with its own connection, so that a long history delays no other request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter, sleep
from typing import TypeVar

from fleetgate.gate.serving.service_gate import ServiceGate
from fleetgate.log.protocol import Log

T = TypeVar("T")

_SPELL = 200  # events, or rows of usage
_LONGEST_REST_S = 0.01


class HistoryReader:
    """Reads the gate's log, for one request after another."""

    def __init__(self, gate: ServiceGate) -> None:
        self._gate = gate
        self._thread = ThreadPoolExecutor(1, "fleetgate-archive")
        self._log: Log | None = None

    async def read(self, look: Callable[[Log], T]) -> T:
        """What `look` makes of the log."""
        if not self._gate.folder:
            return await self._gate.core.read_log(look)  # in memory, and only there
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._read, look)

    def _read(self, look: Callable[[Log], T]) -> T:
        if self._log is None:
            self._log = self._gate.core.log.connect()
        return look(self._log)

    def close(self) -> None:
        """After all readers; one at work ends first."""
        self._thread.submit(self._close).result()
        self._thread.shutdown()

    def _close(self) -> None:
        if self._log is not None:
            self._log.close()


def unhurried(history: Iterator[T]) -> Iterator[T]:
    """The same, resting as long as it works: a thread that only computes would slow down all others."""
    began = perf_counter()
    for number, one in enumerate(history, 1):
        yield one
        if number % _SPELL == 0:
            sleep(min(perf_counter() - began, _LONGEST_REST_S))
            began = perf_counter()
