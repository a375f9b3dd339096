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
    from headgate.core.entities import Reason
    from headgate.core.errors import BadName, BadRequest, HeadgateError, NotFound
    from headgate.core.views.pool_and_lease_views import PoolView, TicketView
    from headgate.gate.library.gate import Gate
    from headgate.gate.library.lease_handles import Deferred, Leased, NotAdmitted, RateLimited
    from headgate.gate.library.open_gate import open_gate
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
    "Deferred": "gate.library.lease_handles",
    "Gate": "gate.library.gate",
    "HeadgateError": "core.errors",
    "Leased": "gate.library.lease_handles",
    "NotAdmitted": "gate.library.lease_handles",
    "NotFound": "core.errors",
    "PoolView": "core.views.pool_and_lease_views",
    "RateLimited": "gate.library.lease_handles",
    "Reason": "core.entities",
    "StoreError": "log.protocol",
    "TicketView": "core.views.pool_and_lease_views",
    "open_gate": "gate.library.open_gate",
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
