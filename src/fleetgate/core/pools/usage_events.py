"""The events about the usage gate. `core/events.py` has all events; readers take them from there."""

from msgspec import Struct


class UsageAsked(Struct, tag="usage_asked"):
    """A process asks a pool's provider how much is in flight; no other process does until the answer, or for 6 s."""

    kind: str
    pool: str
    by: str


class UsageAnswered(Struct, tag="usage_answered", omit_defaults=True):
    """How much the provider says is in flight: below the limit, one ticket enters. None: unknown, and why."""

    kind: str
    pool: str
    limit: int
    count: int | None = None
    error: str = ""
