"""The belief about a provider's limit, as plain data: what the screens show of an adaptive limit.

`read_belief` is the only place outside core/limits and core/state that reads what the controller keeps. A controller
with other internals needs another `read_belief`; the explanation and the screens stay as they are.
"""

from __future__ import annotations

from msgspec import Struct

from fleetgate.core.limits import AdaptiveLimit


class LimitBelief(Struct):
    """What is believed now. Times are log times, levels are slots; what is not known is None."""

    limit: int
    cap: int
    ceiling: int  # the limit never goes above it
    proven: int  # the highest level that was accepted, as far as it still counts
    proven_at: int | None
    refused: int | None  # the lowest level that was refused, as far as it still counts
    refused_at: int | None
    last_why: str | None  # the last refusal: its meaning, level and time
    last_level: int
    last_at: int | None
    lag_ms: int
    lag_source: str  # assumed, learned, set
    trying: str | None  # the lease whose call tries a level that is not proven, and that level
    trying_level: int
    probing: bool  # that level is above the limit
    next_try_at: int | None  # when a level above the limit is tried; None: never, or the limit is at its ceiling

    @property
    def low(self) -> int:
        """The provider allows at least this many."""
        return self.proven

    @property
    def high(self) -> int | None:
        """The provider allows at most this many; None: no refusal says so."""
        return None if self.refused is None else max(self.refused - 1, self.proven)


def read_belief(adapt: AdaptiveLimit, live: int, now: int) -> LimitBelief:
    """The belief of a pool that has so many slots in use."""
    belief = adapt.belief
    trying = belief.unproven or None
    call = belief.calls.get(belief.unproven)
    failed = belief.failed or None
    return LimitBelief(
        limit=adapt.limit,
        cap=adapt.cap,
        ceiling=adapt.ceiling,
        proven=adapt.proven(live, now),
        proven_at=belief.proven_at or None,
        refused=failed,
        refused_at=belief.last_at if failed is not None and belief.last_level == failed else None,
        last_why=belief.last_why or None,
        last_level=belief.last_level,
        last_at=belief.last_at or None,
        lag_ms=adapt.lag_ms,
        lag_source="set" if adapt.fixed_lag_ms is not None else "learned" if adapt.lag_is_learned else "assumed",
        trying=trying,
        trying_level=0 if call is None else call.level,
        probing=belief.probing,
        next_try_at=(belief.next_probe or now) if adapt.limit < adapt.ceiling else None,
    )
