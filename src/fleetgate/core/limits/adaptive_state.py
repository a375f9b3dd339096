"""What the adaptive limit believes about a provider. Changed by limits/adaptive.py only.

These are working copies: a decision reads them dozens of times, so they are classes that can be compiled. What is
written down is a record with the same fields (core/state/snapshot_format.py). Its size does not depend on the limit.
"""

from __future__ import annotations

from fleetgate.core.limits.adaptive_tuning import BINS, ECHO_MS, FIRST_LAG, LAGS, MOVE_MS, SIZE


class Belief:
    """All that was learned about one pool. Levels are slots, times are log times in milliseconds."""

    limit: int = 0  # 0: as far as the cap goes
    lag: int = FIRST_LAG  # index of the lag that is believed
    proven: int = 0  # the highest level that was sent and not refused
    proven_at: int = 0  # when a level as high was last sent
    firm: int = 0  # the most calls that were accepted at the same time, finished ones not counted
    failed: int = 0  # the lowest level that was refused; 0: none
    lag_known: bool = False  # it was seen that finished calls are counted
    lag_fails: int = 0  # so often a shorter one was too short
    lag_before: int = 0  # index of the lag before a guess that is not confirmed; 0: no guess
    good: int = 0  # the limit before the last drop; 0: none
    move_ms: int = MOVE_MS  # how long the limit stays, as far as was seen
    size: int = SIZE  # how far it moves, in thousandths
    moved_at: int = 0  # the last time it moved
    moved_from: int = 0  # a move is under way, from this limit; 0: none
    blurred: bool = False  # the last cut was of a limit that was not confirmed
    cuts: int = 0  # drops in a row with nothing accepted between
    next_probe: int = 0  # 0: none is planned
    patience_ms: int = 0  # how long it waits for a good moment
    probing: bool = False  # the unproven call tries a level above the limit
    unproven: str = ""  # the last call that was sent above what was reached, until it is accepted or refused
    tried: int = 0  # its level
    tried_at: int = 0
    test: bool = False  # it is the first after a drop
    sent_at: int = 0
    echo_ms: int = ECHO_MS  # how soon a refusal is known
    pause_ms: int = 0  # what a refusal costs at least: the pause that providers ask for
    freed_at: int = 0  # the last release
    release_ms: int = 0  # mean time between releases; 0: unknown
    incident: int = 0  # number of the last one
    in_a_row: int = 0  # incidents with nothing accepted between
    rejected_calls: int = 0  # refusals of this incident
    last_why: str = ""  # the last refusal: what it meant, where, when
    last_level: int = 0
    last_at: int = 0
    shown: int = -1  # slots of others, by the last usage answer that tells; -1: none
    base: int = 0  # the limit when others took `base_others` slots; 0: unknown
    base_others: int = 0
    base_more: int = 0  # so many more they take now
    bin_at: int = 0  # number of the newest bin

    def __init__(self) -> None:
        self.bins = [0] * BINS  # slots released in each of the last bins, the newest first
        self.clean = [0] * len(LAGS)  # for each lag: accepted calls that it would have had refused
        self.recent: list[
            list[int]
        ] = []  # of the last calls: when it was sent, whether it tried one more, its level for each lag
