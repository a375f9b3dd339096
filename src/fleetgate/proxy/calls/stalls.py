"""The watch over all calls under way for waits that have become too long, with one timer for all."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Protocol

from fleetgate.proxy.calls.exchange import Exchange

LOOK_S = 0.5


class WatchedCall(Protocol):
    """A call under way."""

    @property
    def exchange(self) -> Exchange: ...
    def stall(self) -> None: ...


class StallWatch:
    """All calls under way."""

    def __init__(self) -> None:
        self._all: set[WatchedCall] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._all)

    def begin(self, call: WatchedCall) -> None:
        self._all.add(call)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def end(self, call: WatchedCall) -> None:
        self._all.discard(call)

    def _look(self) -> None:
        self._timer = None
        now = perf_counter()
        for call in list(self._all):
            exchange = call.exchange
            if exchange.waiting_since and now - exchange.waiting_since > exchange.upstream.stall_s:
                call.stall()
        if self._all:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)
