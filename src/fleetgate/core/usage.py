"""Usage: what a call or a run consumed, in tokens and money, and who said so.

All amounts are whole numbers, so that sums are exact however many calls they cover. Money is counted in millionths of
a dollar. A cost that is not known is None, which is not the same as a cost of nothing.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from fleetgate.core.budgets.amounts import amount_of

UNITS: Final = ("calls", "input", "output", "tokens", "usd")  # what a budget can count

# Where the numbers come from, the most reliable first.
RESPONSE = "response"  # the provider's response said so, to its end
PARTIAL = "partial"  # the response broke off: what it had said until then
RECORD = "record"  # the agent's own record said so
ESTIMATE = "estimate"  # no process lived to see the end: what was reserved


class Usage(Struct, frozen=True, omit_defaults=True, gc=False):
    """What was used. `input` counts the tokens that were not read from a cache."""

    calls: int = 0
    input: int = 0
    cache_read: int = 0
    cache_write: int = 0
    output: int = 0
    cost: int | None = None  # millionths of a dollar
    source: str = ""

    @property
    def tokens(self) -> int:
        """All tokens together, as providers with one limit for all of them count."""
        return self.input + self.cache_read + self.cache_write + self.output

    def amount(self, unit: str) -> int:
        """What a budget of this unit counts."""
        return amount_of(self, unit)

    def plus(self, other: Usage) -> Usage:
        """Both together. A cost that is not known adds nothing; two costs that are not known stay unknown."""
        cost = self.cost
        if other.cost is not None:
            cost = other.cost if cost is None else cost + other.cost
        return Usage(
            self.calls + other.calls,
            self.input + other.input,
            self.cache_read + other.cache_read,
            self.cache_write + other.cache_write,
            self.output + other.output,
            cost,
            self.source or other.source,
        )


class Size(Struct, frozen=True, omit_defaults=True, gc=False):
    """What is known about a call before it is sent, from which the engine estimates its usage (rule V2).

    Prices are millionths of a millionth of a dollar (10^-12) for one token; 0 is not known.
    """

    body_bytes: int = 0
    max_tokens: int = 0  # what the request allows for its output; 0: it does not say
    input_price: int = 0
    cache_read_price: int = 0
    cache_write_price: int = 0
    output_price: int = 0


class Reading(Struct, frozen=True, omit_defaults=True, gc=False):
    """One rate of a provider, as the headers of a response report it (rule V6)."""

    unit: str  # calls, input, output or tokens
    limit: int  # the most that the bucket can hold
    remaining: int
    reset_ms: int = 0  # until the bucket is full again; 0: not known
    per_ms: int = 0  # the period of the limit, where the provider says so; 0: not known
    age_ms: int = 0  # how long ago the provider said so
    expected: bool = False  # the provider does not reserve all the output that a call allows


class UsageRow(Struct, frozen=True, array_like=True):
    """What was used in one hour, for one combination of the others. Times are of the log."""

    project: str
    model: str  # with its account, as str(Model); "" where the request named none
    host: str
    key: str
    kind: str  # agents: from records of agents; requests: from calls through the proxy
    usage: Usage
