"""The watch over all requests under way: clients that have left (rule X4), and waits that have become too long.

The client's connection reports its end (api/http/client.py). Waits are checked by one timer for all requests.
"""

from __future__ import annotations

import asyncio
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from fleetgate.proxy.errors import ClientGone
from fleetgate.proxy.exchange import Exchange

if TYPE_CHECKING:
    from fleetgate.proxy.response_relay import ClientConnection

LOOK_S = 0.5


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
        if exchange.stop_watch is not None:
            exchange.stop_watch()

    def client(
        self, exchange: Exchange, client: ClientConnection, handler: asyncio.Task[Any], *, in_one_piece: bool
    ) -> None:
        """From now on, when the body has come, end the request when its client leaves. ClientGone."""
        if client.has_left:
            raise ClientGone
        exchange.stop_watch = client.on_disconnect(partial(_left, exchange, handler), by_task=not in_one_piece)

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


def _left(exchange: Exchange, handler: asyncio.Task[Any]) -> None:
    if not exchange.done and not exchange.gone and not exchange.stalled:
        exchange.gone = True
        handler.cancel()
