"""Exit codes (SPEC R3), and which mistake leads to which."""

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
    """The exit code for what was wrong. What a child cannot be run for brings its own."""
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
