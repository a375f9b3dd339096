"""Helpers for tests of programs that use Fleetgate, and of Fleetgate itself: a fake clock and a fake provider.

No other package of Fleetgate imports this one. Each name is loaded on first use: a test that needs only the clock does
not load a server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fleetgate.simulate.provider_rates import ProviderRate
    from fleetgate.testing.clock import FakeClock
    from fleetgate.testing.provider import FakeProvider
    from fleetgate.testing.script import Fault

__all__ = ["FakeClock", "FakeProvider", "Fault", "ProviderRate"]

_HOMES = {
    "FakeClock": "fleetgate.testing.clock",
    "FakeProvider": "fleetgate.testing.provider",
    "Fault": "fleetgate.testing.script",
    "ProviderRate": "fleetgate.simulate.provider_rates",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
