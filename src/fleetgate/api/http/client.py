"""The client of a request: its name for the history, and word of its leaving.

Where the connection itself reports its end (api/http/uvicorn_protocol.py), a callback is registered there. Elsewhere a
task waits for the disconnect message: it notices the same, and costs a tenth of all that a request costs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from fleetgate.api.router.route import ApiRequest

Receive = Callable[[], Awaitable[Any]]
Stop = Callable[[], object]


def client_of(request: ApiRequest) -> str:
    """The client that made a change, for the history."""
    client = request.scope.get("client")
    return f"HTTP client {client[0]}" if client else "HTTP client"


def cycle_of(receive: Receive) -> Any:
    """The server's own view of a request; None where another server runs the application."""
    cycle = getattr(receive, "__self__", None)
    return cycle if hasattr(cycle, "disconnected") else None


def has_left(receive: Receive) -> bool:
    """Whether the client of a request is known to have left."""
    cycle = cycle_of(receive)
    return cycle is not None and bool(cycle.disconnected)


def on_disconnect(receive: Receive, call: Callable[[], None], *, by_task: bool = False) -> Stop:
    """Call a function once when the client of a request leaves; returns how to stop that.

    To be used after the body was read. `by_task`: the server may have stopped reading, after a large body, and then it
    sees a client leave only while the application waits for a message.
    """
    leavers = getattr(getattr(cycle_of(receive), "transport", None), "leavers", None)
    if leavers is None or by_task:
        return asyncio.ensure_future(_wait(receive, call)).cancel
    return watch_connection(cycle_of(receive), call)


def watch_connection(cycle: Any, call: Callable[[], None]) -> Stop:
    """The same for a request whose connection reports its end."""
    leavers = cycle.transport.leavers
    if cycle.disconnected:
        call()
    leavers[call] = call
    return partial(leavers.pop, call, None)


async def _wait(receive: Receive, call: Callable[[], None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    call()
