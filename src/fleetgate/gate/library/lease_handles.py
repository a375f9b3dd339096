"""The values of the public API: leases, refusals and reports; and the checks of what a program passes in.

Arguments are checked before they go into a batch with other requests: a value that cannot be written and read back
would fail the whole batch, or damage the store.
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
from fleetgate.core.usage import Usage
from fleetgate.gate.library.usage_arguments import REFUSED, UNUSED, checked_usage, of_one_call, with_cost
from fleetgate.signals.outcome import KINDS as OUTCOMES

if TYPE_CHECKING:
    from fleetgate.gate.library.gate_core import GateCore

T = TypeVar("T", bound=Struct)
Since = float | datetime | None

_MAX_S = 1e11  # three thousand years; a NaN compares as out of bounds


class RateLimited(Struct, frozen=True):
    """The provider refused a call because of a rate limit. For `lease.report(…)`.

    `retry_after_s` is the time that the provider asked for, in seconds, if it did.
    """

    retry_after_s: float | None = None


class Deferred(Struct, frozen=True):
    """The answer of `try_lease` when there is no slot now. `reason` says why. False in a condition."""

    reason: Reason

    def __bool__(self) -> bool:
        return False


class NotAdmitted(FleetgateError):
    """The request left the queue without a slot: timed out, expired or cancelled. `reason` says why it waited."""

    def __init__(self, sentence: str, reason: Reason) -> None:
        super().__init__(sentence)
        self.reason = reason


class Leased:
    """A lease: slots that are held while its block lasts. Made by `Gate.lease` and `Gate.try_lease`.

        async with gate.lease("umans/coder") as lease:
            try:
                answer = await call(lease.model)
            except TooManyRequests as error:
                await lease.report(fleetgate.RateLimited(error.retry_after_s))
                raise

    A lease is used once. One that is held longer than its pool's `max_hold` is reclaimed.
    """

    def __init__(self, core: GateCore, command: cmd.Acquire, timeout_s: float | None) -> None:
        self._core = core
        self._command = command
        self._timeout_s = timeout_s
        self._lease: Lease | None = None
        self._asked = self._entered = False
        self._usage: Usage | None = None  # for the release; None: not known

    def __repr__(self) -> str:
        return f"<Leased {self.id} {self._lease.model if self._lease else 'not held'}>"

    @property
    def id(self) -> str:
        """The id of the request, as `fleetgate ps` shows it."""
        return self._command.id

    @property
    def model(self) -> str:
        """The candidate that was chosen. FleetgateError when the lease is not held yet."""
        if self._lease is None:
            raise FleetgateError("the lease is not held")
        return self._lease.model

    async def acquire(self) -> Self | Deferred:
        """Acquire the slots without a block: this lease once it is held, or a Deferred. `release` it afterwards."""
        if self._asked:
            raise _used()
        self._asked = True
        got = await self._core.acquisition.acquire(self._command, self._timeout_s)
        if isinstance(got, Deferred):
            return got
        self._lease = got
        return self

    async def settle(self, usage: Usage) -> None:
        """Report what the call used; its rates and budgets then count this instead of what was reserved.

            async with gate.lease("anthropic/claude-opus-4-6", estimate=fleetgate.Usage(input=20_000)) as lease:
                answer = await call(lease.model)
                await lease.settle(fleetgate.Usage(input=answer.input_tokens, output=answer.output_tokens))

        What was settled in the block is all that the lease has used. A long run may settle several times: each report
        is added to those before it. Without any, what was reserved counts as used when the block ends.

        Args:
          usage: The tokens, and the cost in millionths of a dollar. A cost that is left out is computed from the
              prices of the model, if they are known.
        """
        used = checked_usage("usage", usage)
        if self._usage is None:
            used = of_one_call(used)
        used = await with_cost(used, [self.model], self._core.settings.prices)
        await self._core.send(cmd.Settle(self.id, used))
        self._usage = UNUSED  # nothing more

    async def release(self, outcome: str = "ok") -> None:
        """Release the slots. Releasing twice is harmless.

        Args:
          outcome: How the call ended: `ok`, `rate_limited`, `usage_window`, `quota`, `overloaded`, `auth`,
              `server_error` or `local_error`. A call that the provider refused has used nothing.
        """
        if outcome not in OUTCOMES:
            raise BadRequest(f"outcome {shown(str(outcome))}: valid are {', '.join(OUTCOMES)}")
        self._entered = True
        if self._lease is not None:
            usage = UNUSED if outcome in REFUSED else self._usage
            await self._core.acquisition.release(cmd.Release(self.id, outcome, usage=usage))

    async def report(self, outcome: RateLimited) -> None:
        """Report that the provider refused this call because of a rate limit."""
        await self._core.send(rate_limit_report(outcome, lease=self.id))
        self._usage = UNUSED

    async def accepted(self) -> None:
        """Report that the provider has begun to answer, so that an adaptive limit is learned sooner."""
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
            # The error of the block matters more. The gate releases the slots as soon as the store works.


def _used() -> FleetgateError:
    return FleetgateError("a lease is used once: make another with `gate.lease(…)`")


def rate_limit_report(outcome: RateLimited, *, lease: str = "", kind: str = "requests", pool: str = "") -> cmd.Report:
    """The command that reports a rate limit."""
    after = outcome.retry_after_s
    if after is not None:
        after = max(number("retry_after_s", after), 0)  # a moment that has passed is now
    return cmd.Report(lease, kind, pool, milliseconds("retry_after_s", after))


def checked(struct: T) -> T:
    """The same, as it will be read from the log; BadRequest for a value that cannot be written there."""
    try:
        return msgspec.json.decode(msgspec.json.encode(struct), type=type(struct))
    except (ValueError, TypeError, OverflowError) as error:  # msgspec's own are ValueErrors
        raise BadRequest(f"not a valid request: {error}") from None


def milliseconds(what: str, seconds: float | None) -> int | None:
    """A time in seconds, in milliseconds; None stays None."""
    return None if seconds is None else int(number(what, seconds, 0) * 1000)


def number(what: str, given: float, least: float = -_MAX_S) -> float:
    """A number from a program, checked to be in bounds that every store can keep."""
    if isinstance(given, bool) or not isinstance(given, int | float) or not least <= given <= _MAX_S:
        raise BadRequest(f"{what} {shown(str(given))}: valid are numbers from {least:g} to {_MAX_S:g}")
    return given


def epoch_ms(since: float | datetime) -> int:
    """Wall time in milliseconds."""
    if isinstance(since, datetime):
        if since.tzinfo is None:
            raise BadRequest(f"since {since.isoformat()}: a time without a zone means nothing; add one, e.g. UTC")
        since = since.timestamp()
    return round(number("since", since) * 1000)
