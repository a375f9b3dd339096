"""Mistakes of a caller, as typed exceptions that change nothing; mapped once, at the edge, to exit codes."""

from __future__ import annotations


class HeadgateError(Exception):
    """The base of everything Headgate raises on purpose. `str(error)` is a sentence for a person."""


class BadName(HeadgateError, ValueError):
    """A model's or selector's name that cannot be one."""


class BadRequest(HeadgateError, ValueError):
    """A command that asks for something that cannot be; nothing was changed."""


class NotFound(HeadgateError, LookupError):
    """No ticket, lease or pool of that name."""


class InternalError(HeadgateError):
    """A broken invariant: a bug in Headgate. The writer stops rather than go on with a wrong count."""
