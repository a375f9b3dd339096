"""A mistake that only the moment makes one."""

from __future__ import annotations

from fleetgate.core.errors import BadRequest


class NotNow(BadRequest):
    """Not as things are now: what is asked for can be, at another time. Over HTTP it is a 409."""
