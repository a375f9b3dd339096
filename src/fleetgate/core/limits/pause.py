"""`pause`: nobody new enters for a while; the limit stays."""

from __future__ import annotations

from fleetgate.core.limits.policy import INCIDENT_PAUSE_MS, Plain, Verdict


class Pause(Plain):
    def verdict(self, ident: str, limit: int, now: int) -> Verdict:
        return Verdict("pause", limit, limit, INCIDENT_PAUSE_MS)
