"""Headgate: admission control for fleets of AI agents.

    async with headgate.open_gate() as gate:
        async with gate.lease("umans/coder") as lease:
            ...call the model named lease.model...

What is exported here is the public API. Everything is loaded on first use: `headgate run` needs little of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate import sync
    from headgate.config.errors import ConfigError
    from headgate.core.errors import BadName, BadRequest, HeadgateError, NotFound
    from headgate.core.records import Reason
    from headgate.core.views import PoolView, TicketView
    from headgate.gate.handles import Deferred, Leased, NotAdmitted, RateLimited
    from headgate.gate.opening import open_gate
    from headgate.gate.service import Gate
    from headgate.log.protocol import StoreError

__version__ = "0.1.0.dev0"

__all__ = [
    "BadName",
    "BadRequest",
    "ConfigError",
    "Deferred",
    "Gate",
    "HeadgateError",
    "Leased",
    "NotAdmitted",
    "NotFound",
    "PoolView",
    "RateLimited",
    "Reason",
    "StoreError",
    "TicketView",
    "open_gate",
    "sync",
]

_WHERE = {
    "BadName": "core.errors",
    "BadRequest": "core.errors",
    "ConfigError": "config.errors",
    "Deferred": "gate.handles",
    "Gate": "gate.service",
    "HeadgateError": "core.errors",
    "Leased": "gate.handles",
    "NotAdmitted": "gate.handles",
    "NotFound": "core.errors",
    "PoolView": "core.views",
    "RateLimited": "gate.handles",
    "Reason": "core.records",
    "StoreError": "log.protocol",
    "TicketView": "core.views",
    "open_gate": "gate.opening",
}


def __getattr__(name: str) -> object:
    module = _WHERE.get(name)
    if module is None:
        if name == "sync":  # `import headgate; headgate.sync.open_gate()` works without a further import
            from importlib import import_module

            return import_module("headgate.sync")
        raise AttributeError(f"module 'headgate' has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f"headgate.{module}"), name)
    globals()[name] = value
    return value
