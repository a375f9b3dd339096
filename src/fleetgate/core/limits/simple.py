"""The policies that learn nothing: `fixed`, `pause` and `step` (rule P3).

Every admission within the limit is fine. They differ only in what a rate limit does to the pool.
"""

from __future__ import annotations

from fleetgate.core.limits.policy import INCIDENT_PAUSE_MS, Policy, Verdict


class SimplePolicy:
    """What the three have in common: there is nothing to learn from calls."""

    def admits(self, level: int, limit: int, now: int) -> bool:
        return level <= limit

    def admitted(self, ident: str, level: int, now: int) -> None:
        """Nothing to learn."""

    def accepted(self, ident: str, now: int) -> None:
        """Nothing to learn."""

    def refused(self, ident: str, verdict: Verdict, now: int) -> None:
        """Nothing to learn: the pool itself keeps the lower limit."""

    def released(self, ident: str, slots: int, outcome: str, now: int) -> None:
        """Nothing to learn."""

    def answered(self, count: int | None, now: int, asked_at: int) -> None:
        """Nothing to learn."""


class FixedPolicy(SimplePolicy):
    """A rate limit changes nothing: for comparison, and for callers that handle rate limits themselves."""

    def verdict(self, ident: str, limit: int, now: int) -> Verdict:
        return Verdict("fixed", limit, limit, 0)


class PausePolicy(SimplePolicy):
    """A rate limit pauses the pool; the limit stays."""

    def verdict(self, ident: str, limit: int, now: int) -> Verdict:
        return Verdict("pause", limit, limit, INCIDENT_PAUSE_MS)


class StepPolicy(SimplePolicy):
    """Each incident also lowers the limit by one, never below one, until a person sets the cap again."""

    def verdict(self, ident: str, limit: int, now: int) -> Verdict:
        return Verdict("step", limit, max(limit - 1, 1), INCIDENT_PAUSE_MS)


SIMPLE_POLICIES: dict[str, Policy] = {"fixed": FixedPolicy(), "pause": PausePolicy(), "step": StepPolicy()}
