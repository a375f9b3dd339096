"""`step`: each incident lowers the limit by one, never below one, until a person sets the cap again (SPEC P3)."""

from __future__ import annotations

from fleetgate.core.limits.policy import INCIDENT_PAUSE_MS, Plain, Verdict


class Step(Plain):
    def verdict(self, ident: str, limit: int, now: int) -> Verdict:
        return Verdict("step", limit, max(limit - 1, 1), INCIDENT_PAUSE_MS)
