"""What the adaptive limit believes about a provider. Changed by limits/adaptive.py only.

These are working copies: a decision reads them dozens of times, so they are classes that can be compiled. What is
written down is a record with the same fields (core/state/snapshot_format.py).
"""

from __future__ import annotations

from fleetgate.core.limits.adaptive_tuning import MOST_LAG_MS


class Call:
    """An admission whose lease is still there."""

    __slots__ = ("at", "bold", "decided", "epoch", "ghost_age", "ghosts", "level", "live", "refused")

    def __init__(
        self,
        epoch: int,
        level: int,
        at: int,
        bold: bool,
        ghosts: int = 0,
        ghost_age: int = 0,
        decided: bool = False,
        refused: bool = False,
        live: int = 0,
    ) -> None:
        self.epoch = epoch
        self.level = level  # slots in flight or cooling with it
        self.at = at
        self.bold = bold  # above what was proven then
        self.ghosts = ghosts  # slots of the last release a little longer ago than the lag; 0: none
        self.ghost_age = ghost_age
        self.decided = decided  # known to be accepted or refused
        self.refused = refused
        self.live = live  # slots in flight with it, without those that cool down


class Belief:
    """All that was learned about one pool."""

    limit: int = 0  # 0: as far as the cap goes
    proven: int = 0  # the highest level seen accepted
    firm: int = 0  # of an accepted level, the highest number of slots really in flight, without cooling ones
    ahead: int = 0  # so many of the proven levels were not tried yet; 0 unless the limit is large
    since: int = 0  # the highest level accepted since the last refusal
    since_at: int = 0  # when a call above it was sent
    proven_at: int = 0  # when it was last seen
    failed: int = 0  # the lowest level seen refused; 0: none
    stride: int = 0  # how far above the last accepted level the limit is set; 0: it is not being raised
    again: int = 0  # how often it was met again at nearly the same level
    settled: int = 0  # the limit that was found last; 0: none yet
    began_at: int = 0  # when the pool began to learn
    changes: int = 0  # of the limit, seen since then
    lag_ms: int = MOST_LAG_MS
    lag_low: int = 0  # a lag that was refused; 0: none was
    lag_was: int = 0  # the lag before it was shortened last
    lag_at: int = 0  # when it was changed last
    clean: int = 0  # slots granted again at the limit without a refusal
    epoch: int = 1
    in_a_row: int = 0  # incidents with nothing accepted between
    next_probe: int = 0  # 0: none is planned
    probing: bool = False  # the unproven call tries a level above the limit
    unproven: str = ""  # the one call in flight whose level is not proven yet
    sent_at: int = 0
    tried_at: int = 0  # the last call above the proven level
    tried: int = 0  # and its level
    freed_at: int = 0  # the last release
    hold_ms: int = 1_800  # how long calls take, on average
    gap_ms: int = 64_000  # mean time between releases, times 16
    failed_before: int = 0
    probe_before: int = 0
    last_why: str = ""  # the last refusal: what it meant, where, when
    last_level: int = 0
    last_at: int = 0

    def __init__(self) -> None:
        self.before = (0, 0)  # limit and proven level before the last cut, until the provider's count is seen
        self.freed: list[tuple[int, int]] = []  # (when, slots) of the last seconds
        self.rejected: list[int] = []  # when the calls were sent that this incident refused
        self.calls: dict[str, Call] = {}
