"""Notices a client that has left, whatever we wait for on its behalf (SPEC X4), and ends that."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from headgate.proxy.exchange import Exchange


async def watch(receive: Callable[[], Awaitable[Any]], exchange: Exchange, handler: asyncio.Task[Any]) -> None:
    """To be run beside the handler once the body has come: until the client's connection is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
    if not exchange.done:
        exchange.gone = True
        handler.cancel()
