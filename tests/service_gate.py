"""The gate of a service, open for as long as a test needs it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fleetgate.gate.library.gate_core import GateCore
from fleetgate.gate.serving.service_gate import ServiceGate


@asynccontextmanager
async def opened_service(core: GateCore) -> AsyncIterator[ServiceGate]:
    async with core:
        yield ServiceGate(core)
