"""What a policy is asked and told. Times are log times in milliseconds, levels are slots."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

INCIDENT_PAUSE_MS = 30_000  # without a hint from the provider


class Verdict(Struct, frozen=True):
    """What a refusal means."""

    why: str
    level: int  # the level that is blamed
    limit: int  # the limit from now on
    wait_ms: int  # how long to pause when the provider gives no hint


class Policy(Protocol):
    """What a pool's limit follows."""

    def admits(self, level: int, limit: int, now: int) -> bool:
        """Whether an admission that brings the pool to `level` may be made now. Changes nothing."""

    def admitted(self, ident: str, level: int, now: int) -> None:
        """Slots were lent; with them the pool is at `level`."""

    def accepted(self, ident: str, now: int) -> None:
        """The provider took the call."""

    def verdict(self, ident: str, limit: int, now: int) -> Verdict:
        """What it means that the provider refused this call ("" for a call that is not known). Changes nothing."""

    def refused(self, ident: str, verdict: Verdict, now: int) -> None:
        """The provider refused the call, and this is what it means."""

    def released(self, ident: str, slots: int, outcome: str, now: int) -> None:
        """A call is over."""

    def answered(self, count: int | None, now: int, asked_at: int) -> None:
        """The provider's own count of what is in flight; None: unknown."""


class Plain:
    """A policy that learns nothing: every admission within the limit is fine."""

    def admits(self, level: int, limit: int, now: int) -> bool:
        return level <= limit

    def admitted(self, ident: str, level: int, now: int) -> None:
        """Nothing to learn."""

    def accepted(self, ident: str, now: int) -> None:
        """Nothing to learn."""

    def refused(self, ident: str, verdict: Verdict, now: int) -> None:
        """Nothing to learn: a lower limit is the pool's."""

    def released(self, ident: str, slots: int, outcome: str, now: int) -> None:
        """Nothing to learn."""

    def answered(self, count: int | None, now: int, asked_at: int) -> None:
        """Nothing to learn."""
