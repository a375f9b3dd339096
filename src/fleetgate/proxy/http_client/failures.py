"""Why there is no response of a provider."""

from __future__ import annotations


class UpstreamFailed(OSError):
    """There is no answer."""


class CannotConnect(UpstreamFailed):
    """The provider cannot be reached."""


class Disconnected(UpstreamFailed):
    """It hung up."""


class ClosedWithoutAnswer(Disconnected):
    """It hung up without a word: on a connection that was used before, it may have done so before it was asked."""


class NotHttp(UpstreamFailed):
    """What it says is no answer."""
