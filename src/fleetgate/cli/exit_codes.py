"""Exit codes, and which error leads to which (rule R3)."""

from __future__ import annotations

from fleetgate.config.errors import ConfigError
from fleetgate.core.errors import FleetgateError, InternalError
from fleetgate.log.protocol import StoreError

OK = 0
USAGE = 64
UNAVAILABLE = 69
SOFTWARE = 70
DEFERRED = 75
CONFIG = 78
INTERRUPTED = 130


def exit_code(error: FleetgateError) -> int:
    """The exit code for an error. An error that keeps a child from running has its own."""
    own = getattr(error, "exit_code", None)
    if isinstance(own, int):
        return own
    if isinstance(error, ConfigError):
        return CONFIG
    if isinstance(error, StoreError):
        return UNAVAILABLE
    if isinstance(error, InternalError):
        return SOFTWARE
    return USAGE
