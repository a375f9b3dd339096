"""What all calls through the proxy share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from fleetgate.gate.serving.model_calls import ModelCalls
from fleetgate.proxy.access_log import AccessLog
from fleetgate.proxy.callers import STORED_S, Callers
from fleetgate.proxy.calls.exchange import Exchange
from fleetgate.proxy.calls.slots import CallSlots
from fleetgate.proxy.calls.stalls import StallWatch
from fleetgate.proxy.returning_clients import ReturningClients


class CallParts(NamedTuple):
    """What all calls share, by one config."""

    loop: asyncio.AbstractEventLoop
    calls: ModelCalls
    slots: CallSlots
    callers: Callers
    places: ReturningClients
    watch: StallWatch
    log: AccessLog
    on_end: Callable[[Exchange, float], None] | None  # called with each call that has ended, and the seconds it took


async def until_stored(task: asyncio.Task[None]) -> None:
    """Wait for a task that goes on even if this call ends. A store that does not answer is not waited for."""
    await asyncio.wait((task,), timeout=STORED_S)
