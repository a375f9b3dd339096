"""Usage: what a call or a run consumed, in tokens and money, and who said so.

All amounts are whole numbers, so that sums are exact however many calls they cover. Money is counted in millionths of
a dollar. A cost that is not known is None, which is not the same as a cost of nothing.
"""

from __future__ import annotations

from msgspec import Struct

# Where the numbers come from, the most reliable first.
RESPONSE = "response"  # the provider's response said so, to its end
PARTIAL = "partial"  # the response broke off: what it had said until then
RECORD = "record"  # the agent's own record said so
ESTIMATE = "estimate"  # no process lived to see the end: what was reserved


class Usage(Struct, frozen=True, omit_defaults=True):
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
