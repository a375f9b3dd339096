"""What `adapt` believes of a provider: plain integers, part of the pool's snapshot. Changed by limits/adapt.py only."""

from __future__ import annotations

from msgspec import Struct, field
from msgspec.structs import replace

LAG_MS = 500  # a finished call is counted by the provider for so long, until we know better


class Call(Struct, array_like=True, gc=False):
    """An admission whose lease is still there."""

    epoch: int
    level: int  # seats in flight or cooling with it
    at: int
    bold: bool  # above what was proven then
    ghosts: int  # seats of the last release a little longer ago than the lag; 0: none
    ghost_age: int
    decided: bool = False  # known to be accepted or refused
    refused: bool = False
    live: int = 0  # seats in flight with it, without those that cool down


class Belief(Struct, omit_defaults=True):
    """All that was learned about one pool."""

    limit: int = 0  # 0: as far as the cap goes
    proven: int = 0  # the highest level seen accepted
    firm: int = 0  # the most seats in flight of them, without those that cooled down
    proven_at: int = 0  # when it was last seen
    held_at: int = 0  # since when the limit is what is proven
    failed: int = 0  # the lowest level seen refused; 0: none
    good: int = 0  # the level that held before the last drop; 0: none
    lag_ms: int = LAG_MS
    lag_was: int = 0  # the lag before a guess that is not confirmed yet; 0: no guess
    clean: int = 0  # seats lent again at the edge without a refusal
    epoch: int = 1
    in_a_row: int = 0  # incidents with nothing accepted between
    next_probe: int = 0  # 0: none is planned
    interval_ms: int = 0  # between probes
    probing: bool = False  # the unproven call tries a level above the limit
    unproven: str = ""  # the one call whose level nobody has proven yet
    sent_at: int = 0
    tried_at: int = 0  # the last call above the proven level
    tried: int = 0  # and its level
    freed_at: int = 0  # the last release
    hold_ms: int = 1_800  # how long calls take, on average
    gap_ms: int = 4_000 * 16  # mean time between releases, times 16
    freed: list[tuple[int, int]] = field(default_factory=list)  # (when, seats) of the last seconds
    rejected: list[int] = field(default_factory=list)  # when the calls were sent that this incident refused
    ghost_age: int = 0  # of the last drop: perhaps it was lag; 0: no
    drops: int = 0
    before: tuple[int, int] = (0, 0)  # limit and proven level before the last cut, until the provider's count is seen
    failed_before: int = 0
    probe_before: int = 0
    last_why: str = ""  # the last refusal: what it meant, where, when
    last_level: int = 0
    last_at: int = 0
    calls: dict[str, Call] = field(default_factory=dict)


def copied(belief: Belief) -> Belief:
    """The same, sharing nothing that changes."""
    calls = {ident: replace(call) for ident, call in belief.calls.items()}
    return replace(belief, freed=list(belief.freed), rejected=list(belief.rejected), calls=calls)
