"""What the library hands out: leases, refusals and reports, independent of how the gate is reached."""

from __future__ import annotations

from msgspec import Struct

from headgate.core.errors import HeadgateError
from headgate.core.records import Reason


class RateLimited(Struct, frozen=True):
    """What the provider said to a call: too many now. For `lease.report(…)`."""

    retry_after_s: float | None = None


class Deferred(Struct, frozen=True):
    """There is no seat now. It costs nothing to ask again (SPEC A7). False in a condition."""

    reason: Reason

    def __bool__(self) -> bool:
        return False


class NotAdmitted(HeadgateError):
    """The ticket left the line without a seat: timed out, expired or cancelled. `reason` says why it waited."""

    def __init__(self, sentence: str, reason: Reason) -> None:
        super().__init__(sentence)
        self.reason = reason
