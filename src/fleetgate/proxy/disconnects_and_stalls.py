"""Looks after all requests under way: notices clients that have left (SPEC X4), and waits that have become too long.

A task for each request that waits in `receive()` would notice a client's leaving at once, and cost a tenth of all that
a request costs. So where the client's connection itself tells of its end (`leavers`, see api/http/uvicorn_protocol.py),
that is heard; elsewhere, and after a large body, it is the task. Waits are looked at by one timer for all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from time import perf_counter
from typing import Any

from fleetgate.proxy.errors import ClientGone
from fleetgate.proxy.exchange import Exchange

LOOK_S = 0.5

Receive = Callable[[], Awaitable[Any]]


class DisconnectWatch:
    """All requests under way, with the tasks that handle them."""

    def __init__(self) -> None:
        self._all: dict[Exchange, asyncio.Task[Any]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._all)

    def begin(self, exchange: Exchange, handler: asyncio.Task[Any]) -> None:
        self._all[exchange] = handler
        if self._timer is None:
            self._timer = handler.get_loop().call_later(LOOK_S, self._look)

    def end(self, exchange: Exchange) -> None:
        del self._all[exchange]
        if exchange.leavers is not None:
            exchange.leavers.pop(exchange, None)

    def client(self, exchange: Exchange, receive: Receive, handler: asyncio.Task[Any], *, in_one_piece: bool) -> None:
        """From now on, when the body has come, end the request when its client is gone. ClientGone."""
        cycle = getattr(receive, "__self__", None)  # uvicorn's own view of the request
        leavers = getattr(getattr(cycle, "transport", None), "leavers", None)
        if cycle is not None and cycle.disconnected:
            raise ClientGone
        if in_one_piece and leavers is not None:
            exchange.leavers = leavers
            leavers[exchange] = partial(_left, exchange, handler)
        else:
            exchange.watcher = handler.get_loop().create_task(_watch(receive, exchange, handler))

    def _look(self) -> None:
        self._timer = None
        now = perf_counter()
        for exchange, handler in self._all.items():
            if exchange.gone or exchange.done or exchange.stalled:
                continue
            if exchange.waiting_since and now - exchange.waiting_since > exchange.upstream.stall_s:
                exchange.stalled = True
                handler.cancel()
        if self._all:
            loop = next(iter(self._all.values())).get_loop()
            self._timer = loop.call_later(LOOK_S, self._look)


async def _watch(receive: Receive, exchange: Exchange, handler: asyncio.Task[Any]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    _left(exchange, handler)


def _left(exchange: Exchange, handler: asyncio.Task[Any]) -> None:
    if not exchange.done and not exchange.gone and not exchange.stalled:
        exchange.gone = True
        handler.cancel()
