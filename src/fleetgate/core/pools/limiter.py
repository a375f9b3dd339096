"""The limiter of a pool: the limit in force, from the cap, rate limits and what was learned."""

from __future__ import annotations

from fleetgate.core.limits import SIMPLE_POLICIES, AdaptiveLimit, Policy
from fleetgate.core.pools.effective_caps import UNLIMITED, Cap


class Limiter:
    """The limit of one pool. `limit` is always up to date after `configure` and `follow`."""

    __slots__ = ("adaptive", "auto_cap", "limit", "reduced")

    def __init__(self) -> None:
        self.limit = UNLIMITED
        self.auto_cap = 1  # what the host's memory allows, where the cap is automatic
        self.reduced = 0  # the limit after rate limits, with the policy `step`; 0: not reduced
        self.adaptive: AdaptiveLimit | None = None  # set where the limit is learned

    def configure(self, cap: Cap) -> None:
        """Work out the limit from the cap and the reduction, or from what was learned."""
        if cap.learns:
            if self.adaptive is None:
                self.adaptive = AdaptiveLimit()
            assert cap.cap is not None
            by_hand = cap.cooldown_ms if cap.cooldown_by_hand else None
            self.adaptive.configure(cap.cap, cap.explore, by_hand, cap.usage_gate, refusals=cap.refusals)
            self.limit = self.adaptive.limit
            return
        self.adaptive = None
        limit = self.auto_cap if cap.auto else UNLIMITED if cap.cap is None else cap.cap
        self.limit = min(limit, self.reduced) if self.reduced else limit

    def limit_for(self, own_limit: int) -> int:
        """The limit in force for a request whose environment sets `own_limit` (0: none)."""
        if not own_limit:
            return self.limit
        if self.adaptive is not None:
            return min(own_limit, self.limit) if self.adaptive.reduced and own_limit < UNLIMITED else own_limit
        return min(own_limit, self.reduced) if self.reduced and own_limit < UNLIMITED else own_limit

    def with_probe(self, now: int) -> int:
        """The limit, plus one when a probe is due."""
        if self.adaptive is None or self.limit >= UNLIMITED:
            return self.limit
        return self.limit + (0 < self.adaptive.probe_at() <= now)

    @property
    def may_probe(self) -> bool:
        """Whether a call above the limit may be tried some time."""
        return self.adaptive is not None and self.limit < self.adaptive.ceiling

    @property
    def is_reduced(self) -> bool:
        """Whether rate limits hold the limit below the cap."""
        return bool(self.reduced) if self.adaptive is None else self.adaptive.reduced

    def policy(self, cap: Cap) -> Policy:
        return SIMPLE_POLICIES[cap.on_429] if self.adaptive is None else self.adaptive

    def forgive(self) -> None:
        """A person set the cap: what rate limits did to the limit is over."""
        self.reduced = 0
        if self.adaptive is not None:
            self.adaptive.forgive()
