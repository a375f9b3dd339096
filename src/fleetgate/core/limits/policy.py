"""The interface of a limit policy: what the engine asks it and which events it follows.

Times are log times in milliseconds, levels are slots.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

LOWERING = ("drop", "exact", "again")  # verdicts that lower the limit
INCIDENT_PAUSE_MS = 30_000  # without a hint from the provider
REFUSED = ("rate_limited", "usage_window", "quota")  # outcomes of calls that the provider refused and never counted


class Verdict(Struct, frozen=True):
    """What a refusal means."""

    why: str
    level: int  # the level that is blamed
    limit: int  # the limit from now on
    wait_ms: int  # how long to pause when the provider gives no hint


class Policy(Protocol):
    """Decides a pool's limit."""

    def admits(self, level: int, limit: int, now: int) -> bool:
        """Whether an admission that brings the pool to `level` may be made now. Changes nothing."""

    def admitted(self, ident: str, level: int, now: int) -> None:
        """Slots were granted; with them the pool is at `level`."""

    def accepted(self, ident: str, now: int) -> None:
        """The provider accepted the call."""

    def verdict(self, ident: str, limit: int, now: int) -> Verdict:
        """What it means that the provider refused this call ("" for an unknown call). Changes nothing."""

    def refused(self, ident: str, verdict: Verdict, now: int) -> None:
        """The provider refused the call, with this meaning."""

    def released(self, ident: str, slots: int, outcome: str, now: int) -> None:
        """A call ended."""

    def answered(self, count: int | None, now: int, asked_at: int) -> None:
        """The provider's own count of calls in flight; None: unknown."""
