"""Mistakes of a caller, as typed exceptions that change nothing; mapped once, at the edge, to exit codes."""

from __future__ import annotations


class FleetgateError(Exception):
    """The base of everything Fleetgate raises on purpose. `str(error)` is a sentence for a person."""


class BadName(FleetgateError, ValueError):
    """A model's or selector's name that cannot be one."""


class BadRequest(FleetgateError, ValueError):
    """A command that asks for something that cannot be; nothing was changed."""


class NotNow(BadRequest):
    """A command that would be valid at another time, but not in the present state. Over HTTP it is a 409."""


class NotFound(FleetgateError, LookupError):
    """No ticket, lease or pool of that name."""


class InternalError(FleetgateError):
    """A broken invariant: a bug in Fleetgate. The writer stops rather than go on with a wrong count."""
