"""Fleetgate: admission control for fleets of AI agents.

    async with fleetgate.open_gate() as gate:
        async with gate.lease("umans/coder") as lease:
            ...call the model named lease.model...

What is exported here is the public API. Everything is loaded on first use: `fleetgate run` needs little of it.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing has it, which takes long to load
if TYPE_CHECKING:
    from fleetgate import sync
    from fleetgate.config.errors import ConfigError
    from fleetgate.core.entities import Reason
    from fleetgate.core.errors import BadName, BadRequest, FleetgateError, NotFound
    from fleetgate.core.usage import Usage
    from fleetgate.core.views.budget_views import BudgetView
    from fleetgate.core.views.pool_and_lease_views import PoolView, TicketView
    from fleetgate.gate.library.gate import Gate
    from fleetgate.gate.library.lease_handles import Deferred, Leased, NotAdmitted, RateLimited
    from fleetgate.gate.library.open_gate import open_gate
    from fleetgate.log.protocol import StoreError

    __version__: str

__all__ = [
    "BadName",
    "BadRequest",
    "BudgetView",
    "ConfigError",
    "Deferred",
    "FleetgateError",
    "Gate",
    "Leased",
    "NotAdmitted",
    "NotFound",
    "PoolView",
    "RateLimited",
    "Reason",
    "StoreError",
    "TicketView",
    "Usage",
    "open_gate",
    "sync",
]

_WHERE = {
    "BadName": "core.errors",
    "BadRequest": "core.errors",
    "BudgetView": "core.views.budget_views",
    "ConfigError": "config.errors",
    "Deferred": "gate.library.lease_handles",
    "Gate": "gate.library.gate",
    "FleetgateError": "core.errors",
    "Leased": "gate.library.lease_handles",
    "NotAdmitted": "gate.library.lease_handles",
    "NotFound": "core.errors",
    "PoolView": "core.views.pool_and_lease_views",
    "RateLimited": "gate.library.lease_handles",
    "Reason": "core.entities",
    "StoreError": "log.protocol",
    "TicketView": "core.views.pool_and_lease_views",
    "Usage": "core.usage",
    "open_gate": "gate.library.open_gate",
}


def __getattr__(name: str) -> object:
    if name == "__version__":  # setup.py says where it comes from
        return _version()
    module = _WHERE.get(name)
    if module is None:
        if name == "sync":  # `import fleetgate; fleetgate.sync.open_gate()` works without a further import
            from importlib import import_module

            return import_module("fleetgate.sync")
        raise AttributeError(f"module 'fleetgate' has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f"fleetgate.{module}"), name)
    globals()[name] = value
    return value


def _version() -> str:
    """The installed version. Its folder has it in its name; Python's own search would load 2 MB for it."""
    import os
    import sys

    for folder in sys.path:
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            if name.startswith("fleetgate-") and name.endswith(".dist-info"):
                return name.removeprefix("fleetgate-").removesuffix(".dist-info")
    from importlib.metadata import version

    return version("fleetgate")
