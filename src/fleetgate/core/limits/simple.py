"""`fixed`: a rate limit changes nothing. For comparison, and for those who see to it themselves."""

from __future__ import annotations

from fleetgate.core.limits.policy import Plain, Verdict


class Fixed(Plain):
    def verdict(self, ident: str, limit: int, now: int) -> Verdict:
        return Verdict("fixed", limit, limit, 0)
