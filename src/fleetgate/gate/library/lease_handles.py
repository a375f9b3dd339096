"""What the library takes and hands out: leases, refusals and reports, independent of how the gate is reached.

What a program gives is checked here, before it goes into a batch with what others ask for: whatever cannot be written
down and read back would fail the batch of all, or spoil the store.
"""

from __future__ import annotations

from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

import msgspec
from msgspec import Struct

from fleetgate.core import commands as cmd
from fleetgate.core.entities import Lease, Reason
from fleetgate.core.errors import BadRequest, FleetgateError
from fleetgate.core.model_names import shown
from fleetgate.signals.outcome import KINDS as OUTCOMES

if TYPE_CHECKING:
    from fleetgate.gate.library.gate_core import GateCore

T = TypeVar("T", bound=Struct)
Since = float | datetime | None

_MOST_S = 1e11  # three thousand years; a NaN compares as out of bounds


class RateLimited(Struct, frozen=True):
    """What the provider said to a call: too many now. For `lease.report(…)`."""

    retry_after_s: float | None = None


class Deferred(Struct, frozen=True):
    """There is no slot now. It costs nothing to ask again (SPEC A7). False in a condition."""

    reason: Reason

    def __bool__(self) -> bool:
        return False


class NotAdmitted(FleetgateError):
    """The ticket left the queue without a slot: timed out, expired or cancelled. `reason` says why it waited."""

    def __init__(self, sentence: str, reason: Reason) -> None:
        super().__init__(sentence)
        self.reason = reason


class Leased:
    """Slots of a gate while the block lasts. `model` is the candidate that was chosen."""

    def __init__(self, core: GateCore, command: cmd.Acquire, timeout_s: float | None) -> None:
        self._core = core
        self._command = command
        self._timeout_s = timeout_s
        self._lease: Lease | None = None
        self._asked = self._entered = False

    def __repr__(self) -> str:
        return f"<Leased {self.id} {self._lease.model if self._lease else 'not held'}>"

    @property
    def id(self) -> str:
        return self._command.id

    @property
    def model(self) -> str:
        if self._lease is None:
            raise FleetgateError("the lease is not held")
        return self._lease.model

    async def acquire(self) -> Self | Deferred:
        """Wait for the slots; a Deferred when there are none to wait for."""
        if self._asked:
            raise _used()
        self._asked = True
        got = await self._core.acquisition.acquire(self._command, self._timeout_s)
        if isinstance(got, Deferred):
            return got
        self._lease = got
        return self

    async def release(self, outcome: str = "ok") -> None:
        """Give the slots back. Harmless when done twice."""
        if outcome not in OUTCOMES:
            raise BadRequest(f"outcome {shown(str(outcome))}: valid are {', '.join(OUTCOMES)}")
        self._entered = True
        if self._lease is not None:
            await self._core.acquisition.release(cmd.Release(self.id, outcome))

    async def report(self, outcome: RateLimited) -> None:
        """Tell the gate what the provider said to this call."""
        await self._core.send(rate_limit_report(outcome, lease=self.id))

    async def accepted(self) -> None:
        """Tell the gate that the provider has begun to answer: a limit that is learned is learned sooner."""
        await self._core.acquisition.report_accepted(self.id)

    async def __aenter__(self) -> Self:
        if self._entered:
            raise _used()
        self._entered = True
        if self._lease is None:
            got = await self.acquire()
            if isinstance(got, Deferred):
                raise NotAdmitted(got.reason.text, got.reason)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.release("ok" if error is None else "local_error")
        except FleetgateError:
            if error is None:
                raise
            # What left the block is what matters; the gate gives the slots back as soon as the store works.


def _used() -> FleetgateError:
    return FleetgateError("a lease is used once: ask for another with `gate.lease(…)`")


def rate_limit_report(outcome: RateLimited, *, lease: str = "", kind: str = "requests", pool: str = "") -> cmd.Report:
    """The command that reports a rate limit."""
    after = outcome.retry_after_s
    if after is not None:
        after = max(number("retry_after_s", after), 0)  # a moment that has passed is now
    return cmd.Report(lease, kind, pool, milliseconds("retry_after_s", after))


def checked(struct: T) -> T:
    """The same, as it will be read from the log; BadRequest for what could not be."""
    try:
        return msgspec.json.decode(msgspec.json.encode(struct), type=type(struct))
    except (ValueError, TypeError, OverflowError) as error:  # msgspec's own are ValueErrors
        raise BadRequest(f"this cannot be asked for: {error}") from None


def milliseconds(what: str, seconds: float | None) -> int | None:
    """A time that a program gives in seconds; None stays None."""
    return None if seconds is None else int(number(what, seconds, 0) * 1000)


def number(what: str, given: float, least: float = -_MOST_S) -> float:
    """A number that a program gave, in bounds that every store can keep."""
    if isinstance(given, bool) or not isinstance(given, int | float) or not least <= given <= _MOST_S:
        raise BadRequest(f"{what} {shown(str(given))}: valid are numbers from {least:g} to {_MOST_S:g}")
    return given


def epoch_ms(since: float | datetime) -> int:
    """A moment of wall time."""
    if isinstance(since, datetime):
        if since.tzinfo is None:
            raise BadRequest(f"since {since.isoformat()}: a time without a zone means nothing; add one, e.g. UTC")
        since = since.timestamp()
    return round(number("since", since) * 1000)
