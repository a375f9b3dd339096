"""The cache of long answers that many clients want at once, such as every open dashboard after every event.

An answer has at least what was committed when its request came. While nothing changes, one answer serves for a moment.
While much changes, requests wait a little and share the next answer, so that answers take a small part of the loop's
time. A long answer is made by a thread, from what was noted down on the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from fleetgate.core.state.state import State
from fleetgate.gate.serving.service_gate import ServiceGate
from fleetgate.present.log_time import LogTimes

FRESH_S = 0.25  # ages and the like are so old at most
MOST_INLINE = 500  # rows of an answer that is made on the loop; more, and it goes to a thread
_REST = 9  # times as long as making one took, before the next
_THREAD_REST = 1
_LONGEST_REST_S = 0.25
_MOST_KEPT = 16

T = TypeVar("T")


class Begun(NamedTuple):
    """An answer whose every part is noted down: `finish` needs the state no more."""

    rows: int
    finish: Callable[[], Any]


class _Made(NamedTuple):
    seq: int
    until: float
    answer: Any


class AnswerCache:
    """Answers by what was asked for."""

    def __init__(self, gate: ServiceGate) -> None:
        self._gate = gate
        self._loop = asyncio.get_running_loop()
        self._made: dict[object, _Made] = {}
        self._coming: dict[object, asyncio.Task[Any]] = {}
        self._thread = ThreadPoolExecutor(1, "fleetgate-answers")
        self._rests_until = 0.0

    async def answer(self, key: object, begin: Callable[[State, LogTimes], Begun]) -> Any:
        """What `begin` and then its `finish` make of the state; `key` is all that tells two answers apart."""
        state = await self._gate.read()
        made = self._made.get(key)
        if made is not None and made.seq == state.seq and self._loop.time() < made.until:
            return made.answer
        coming = self._coming.get(key)
        if coming is None:
            coming = self._coming[key] = self._loop.create_task(self._make(key, begin))
            coming.add_done_callback(_collect)
        return await asyncio.shield(coming)

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    async def _make(self, key: object, begin: Callable[[State, LogTimes], Begun]) -> Any:
        try:
            while (rest := self._rests_until - self._loop.time()) > 0:
                await asyncio.sleep(rest)
            state = await self._gate.read()
        finally:
            del self._coming[key]  # later requests may expect something newer
        began, seq = self._loop.time(), state.seq
        begun = begin(state, LogTimes(self._gate))
        if begun.rows <= MOST_INLINE:
            answer, times = begun.finish(), _REST
        else:
            answer, times = await self._loop.run_in_executor(self._thread, begun.finish), _THREAD_REST
        ended = self._loop.time()
        self._rests_until = ended + min(times * (ended - began), _LONGEST_REST_S)
        if len(self._made) >= _MOST_KEPT:
            self._made.clear()
        self._made[key] = _Made(seq, began + FRESH_S, answer)
        return answer


def _collect(made: asyncio.Task[Any]) -> None:
    """All clients may have left: then no one else looks at how it ended."""
    if not made.cancelled():
        made.exception()
