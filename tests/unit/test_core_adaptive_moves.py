"""`adapt` by itself (rule P4; docs/adaptive-limits.md): what refusals and successes teach, and when it probes."""

from __future__ import annotations

import msgspec
import pytest

from fleetgate.core.limits import NEVER, AdaptiveLimit
from fleetgate.core.limits.adaptive_tuning import (
    BIN_MS,
    CLEAN,
    FIRST_LAG,
    GRACE_MS,
    LAGS,
    LEAST_PROOF_MS,
    MOST_ECHO_MS,
    MOVE_MS,
    RECENT,
    SIZE,
)
from fleetgate.core.limits.policy import Verdict
from fleetgate.core.state.snapshot import belief_record

LAG_MS = LAGS[FIRST_LAG] * BIN_MS


class Provider:
    """A provider that refuses above `room` calls at once, and a pool without a queue that uses all it is given.

    A refusal is known after 100 ms. `lag_ms` is how long the provider counts a finished call.
    """

    def __init__(self, cap: int, room: int, *, lag_ms: int = 0, refusals: str = "normal") -> None:
        self.adapt = AdaptiveLimit()
        self.adapt.configure(cap, explore=False, fixed_lag_ms=None, refusals=refusals)
        self.room, self.lag_ms = room, lag_ms
        self.now = 1_000_000
        self.live: dict[str, int] = {}
        self.over: list[int] = []  # when finished calls ended
        self.arriving: list[tuple[int, str, int]] = []  # refusals on their way: when, which, sent
        self.paused_until = 0
        self.refused: list[str] = []
        self.ids = 0

    @property
    def cooling(self) -> int:
        return sum(at > self.now - self.adapt.lag_ms for at in self.over)

    def step(self) -> None:
        """Twenty milliseconds: refusals arrive, and as many calls start as may."""
        self.now += 20
        self.over = [at for at in self.over if at > self.now - 4_000]
        belief = self.adapt.belief
        for at, ident, sent in [each for each in self.arriving if each[0] <= self.now]:
            self.arriving.remove((at, ident, sent))
            verdict = self.adapt.verdict(ident, self.adapt.limit, self.now, sent, len(self.live))
            self.refused.append(verdict.why)
            self.paused_until = max(self.paused_until, self.now + verdict.wait_ms)
            self.adapt.refused(ident, verdict, self.now, sent, len(self.live), verdict.wait_ms)
            del self.live[ident]
            self.adapt.released(ident, 1, "rate_limited", self.now)
        if belief.unproven and self.now >= belief.tried_at + GRACE_MS:
            self.adapt.accepted(belief.unproven, self.now)
        while self.now >= self.paused_until:
            level = len(self.live) + self.cooling + 1
            if not self.adapt.admits(level, self.adapt.limit, self.now, len(self.live)):
                break
            self.ids += 1
            ident = f"c{self.ids}"
            self.adapt.admitted(ident, level, self.now, len(self.live))
            counted = len(self.live) - len(self.arriving) + sum(at > self.now - self.lag_ms for at in self.over)
            self.live[ident] = self.now
            if counted >= self.room:
                self.arriving.append((self.now + 100, ident, self.now))

    def run(self, ms: int, hold_ms: int = 60_000) -> None:
        for _ in range(ms // 20):
            self.step()
            waiting = {ident for _, ident, _ in self.arriving}
            done = [ident for ident, at in self.live.items() if self.now - at >= hold_ms and ident not in waiting]
            for ident in done[:1]:
                del self.live[ident]
                self.over.append(self.now)
                self.adapt.released(ident, 1, "ok", self.now)


def test_p4_a_limit_of_400_is_in_use_within_a_minute_of_a_cold_start() -> None:
    provider = Provider(1_000, 400)
    provider.run(60_000, hold_ms=600_000)
    assert len(provider.live) >= 360


def test_p4_a_small_limit_is_found_with_one_refusal() -> None:
    provider = Provider(16, 8)
    provider.run(20_000)
    assert (provider.adapt.limit, provider.refused) == (8, ["exact"])


def test_p4_expensive_refusals_are_tried_one_after_the_other() -> None:
    provider = Provider(100, 50, refusals="expensive")
    provider.run(10_000)
    assert len(provider.live) <= 7
    normal, cheap = Provider(100, 50), Provider(100, 50, refusals="cheap")
    for each in (normal, cheap):
        each.run(60_000, hold_ms=600_000)
    assert cheap.adapt.belief.next_probe < normal.adapt.belief.next_probe


def test_p4_after_a_drop_the_new_limit_is_found_and_the_old_one_tried_again() -> None:
    provider = Provider(8, 8)
    provider.run(300_000, hold_ms=10_000)
    provider.room = 4
    provider.run(60_000, hold_ms=10_000)
    assert provider.adapt.limit == 4
    assert provider.refused[0] == "drop"
    assert provider.adapt.belief.good == 8
    provider.room = 8
    provider.run(15 * 60_000, hold_ms=10_000)
    assert provider.adapt.limit == 8
    assert provider.adapt.belief.move_ms < MOVE_MS


def test_p4_a_limit_that_moves_often_is_probed_often_and_one_that_never_moves_less_and_less() -> None:
    still = Provider(16, 8)
    still.run(3 * 60_000)
    early = still.adapt.belief.next_probe - still.now
    still.run(60 * 60_000)
    assert still.adapt.belief.next_probe - still.adapt.belief.last_at > early
    assert len(still.refused) < 12
    moving = Provider(16, 8)
    for room in (4, 8, 4, 8, 4, 8, 4):
        moving.run(120_000)
        moving.room = room
    assert moving.adapt.belief.move_ms < MOVE_MS // 2


def test_p4_a_provider_that_counts_finished_calls_for_long_teaches_its_lag() -> None:
    provider = Provider(4, 4, lag_ms=1_400)
    provider.run(60_000, hold_ms=5_000)
    assert provider.refused
    assert set(provider.refused) <= {"lag", "fit"}
    assert provider.adapt.lag_ms >= 1_400


def test_k1_with_a_cap_of_one_the_next_call_goes_at_once_until_a_refusal_asks_for_a_lag() -> None:
    provider = Provider(1, 1, lag_ms=300)
    assert provider.adapt.lag_ms == 0
    provider.run(30_000, hold_ms=2_000)
    assert provider.refused[0] == "lag"
    assert provider.adapt.lag_ms == LAG_MS


def test_p4_a_lag_that_was_too_long_is_shortened_when_it_costs_much() -> None:
    provider = Provider(4, 4, lag_ms=100)
    provider.adapt.belief.lag, provider.adapt.belief.lag_known = len(LAGS) - 1, True
    provider.adapt.configure(4, explore=False, fixed_lag_ms=None)
    provider.run(300_000, hold_ms=1_000)
    assert provider.adapt.lag_ms == LAG_MS


def test_p4_the_belief_is_small_however_large_the_limit() -> None:
    provider = Provider(4_000, 1_900)
    provider.run(150_000, hold_ms=600_000)
    assert len(provider.live) > 1_000
    record = belief_record(provider.adapt.belief)
    assert len(msgspec.json.encode(record)) < 1_000


# What one event teaches.


def _adapt(cap: int = 8, **said: object) -> AdaptiveLimit:
    adapt = AdaptiveLimit()
    adapt.configure(cap, explore=False, fixed_lag_ms=None)
    for name, value in said.items():
        setattr(adapt.belief, name, value)
    adapt.configure(cap, explore=False, fixed_lag_ms=None)
    return adapt


def _sent(adapt: AdaptiveLimit, number: int, now: int, live: int = 0) -> int:
    """So many calls, one at a time, each of which tries one level more."""
    for level in range(live + 1, live + number + 1):
        now += 1_000
        adapt.admitted(f"c{level}", level, now, level - 1)
    return now


def test_p4_nothing_is_learned_from_a_call_twice_or_from_an_unknown_one() -> None:
    adapt = _adapt()
    now = _sent(adapt, 3, 1_000_000)
    before = belief_record(adapt.belief)
    adapt.accepted("other", now)
    adapt.accepted("", now)
    assert belief_record(adapt.belief) == before
    adapt.accepted("c3", now)
    assert (adapt.belief.unproven, adapt.belief.proven) == ("", 3)


def test_p4_a_level_is_believed_for_a_while_and_then_no_more_than_what_is_live() -> None:
    adapt = _adapt()
    now = _sent(adapt, 6, 1_000_000)
    assert adapt.proven(2, now) == 6
    later = now + adapt.proof_ms
    assert adapt.proven(2, later) == 2
    adapt.admitted("late", 3, later, 2)
    assert adapt.belief.proven == 3
    adapt.belief.move_ms = 1_000
    assert adapt.proof_ms == LEAST_PROOF_MS


def test_p4_after_a_drop_one_call_tests_and_the_others_wait() -> None:
    adapt = _adapt(cuts=1, limit=4, failed=8)
    adapt.admitted("test", 2, 1_000_000, 1)
    assert adapt.admits_at(3, 4, 1_000_100, 2) == NEVER
    verdict = adapt.verdict("test", 4, 1_000_200, 1_000_000, 3)
    assert verdict.why == "drop"
    adapt.released("test", 1, "server_error", 1_000_300)
    assert adapt.admits_at(3, 4, 1_000_100, 2) < NEVER


def test_p4_the_climb_after_a_drop_stops_where_a_refusal_costs_more_than_it_wins() -> None:
    for pause_ms, limit in ((0, 7), (3_600_000, 4)):
        adapt = _adapt(cuts=1, limit=4, failed=8, pause_ms=pause_ms, moved_at=1_000_000)
        adapt.admitted("test", 4, 1_000_000, 3)
        adapt.accepted("test", 1_000_500)
        assert adapt.limit == limit


def test_p4_a_probe_that_is_accepted_with_fewer_calls_than_ever_raises_the_limit_by_one() -> None:
    adapt = _adapt(cap=16, limit=8, failed=9, firm=8, proven=8, proven_at=1_000_000, release_ms=100)
    adapt.admitted("probe", 9, 1_000_000, 4)
    adapt.accepted("probe", 1_001_000)
    assert adapt.limit == 9


def test_p4_a_probe_waits_for_a_moment_with_as_many_calls_as_ever_but_not_for_long() -> None:
    adapt = _adapt(cap=16, limit=8, failed=9, firm=8, proven=8, next_probe=1_000_000, patience_ms=5_000)
    assert adapt.admits_at(9, 8, 1_000_000, 8) == 1_000_000
    assert adapt.admits_at(9, 8, 1_000_000, 6) == 1_005_000
    assert adapt.admits_at(10, 8, 1_000_000, 8) == NEVER


def test_p4_explore_raises_the_limit_above_the_cap() -> None:
    adapt = _adapt(cap=4)
    adapt.configure(4, explore=True, fixed_lag_ms=None)
    now = _sent(adapt, 4, 1_000_000)
    adapt.accepted("c4", now)
    adapt.admitted("more", 5, now + 60_000, 4)
    adapt.accepted("more", now + 61_000)
    assert (adapt.limit, adapt.reduced) == (5, False)


def test_p4_a_refusal_of_an_incident_that_was_judged_fits_the_limit_and_cuts_no_more() -> None:
    adapt = _adapt(cap=40)
    now = 1_000_000
    for level in range(1, 21):
        now += 10
        adapt.admitted(f"c{level}", level, now, level - 1)
    first = adapt.verdict("c20", 40, now + 100, now, 20)
    adapt.refused("c20", first, now + 100, now, 20)
    assert (first.why, adapt.limit) == ("exact", 19)
    fit = adapt.verdict("c19", 19, now + 120, now - 10, 19)
    adapt.refused("c19", fit, now + 120, now - 10, 19)
    assert (fit.why, adapt.limit) == ("fit", 17)
    unknown = adapt.verdict("old", 17, now + 120, now - 100_000, 19)
    adapt.refused("old", unknown, now + 120, now - 100_000, 19)
    assert adapt.limit == 17
    adapt.belief.unproven, adapt.belief.probing = "c18", True
    adapt.refused("c18", Verdict("fit", 18, 17, 0), now + 130, now - 20, 19)
    assert (adapt.belief.unproven, adapt.belief.probing) == ("", False)


def test_p4_a_call_too_old_to_be_remembered_is_judged_by_those_after_it() -> None:
    adapt = _adapt(cap=80)
    now = 1_000_000
    for level in range(1, RECENT + 9):
        now += 60
        adapt.admitted(f"c{level}", level, now, level - 1)
    verdict = adapt.verdict("c2", 80, now + 100, 1_000_120, RECENT + 8)
    assert verdict.why == "exact"
    assert verdict.limit == adapt.belief.recent[0][FIRST_LAG + 2] - 1


def test_p4_how_soon_refusals_are_known_is_learned() -> None:
    adapt = _adapt()
    now = _sent(adapt, 3, 1_000_000)
    adapt.refused("c3", Verdict("exact", 3, 2, 0), now + 9_000, now, 3)
    assert adapt.belief.echo_ms == MOST_ECHO_MS
    adapt.refused("", Verdict("fit", 3, 2, 0), now + 9_000, now + 8_900, 3)
    assert adapt.belief.echo_ms < MOST_ECHO_MS
    echo_ms = adapt.belief.echo_ms
    adapt.refused("", Verdict("fit", 3, 2, 0), now + 9_000, now + 9_000, 3)
    assert adapt.belief.echo_ms == echo_ms


def test_p4_a_guess_of_a_longer_lag_is_taken_back_when_the_next_refusal_disproves_it() -> None:
    adapt = _adapt(lag=FIRST_LAG + 2, lag_before=FIRST_LAG, lag_known=True, firm=8, proven=8)
    adapt.refused("c", Verdict("drop", 8, 6, 0), 1_000_100, 1_000_000, 8)
    assert adapt.belief.lag == FIRST_LAG
    adapt = _adapt(lag=FIRST_LAG + 1, lag_before=FIRST_LAG + 2, lag_known=True, firm=8, proven=8)
    adapt.refused("c", Verdict("drop", 8, 6, 0), 1_000_100, 1_000_000, 8)
    assert (adapt.belief.lag, adapt.belief.lag_fails) == (FIRST_LAG + 2, 3)
    adapt = _adapt(lag=FIRST_LAG + 1, lag_before=FIRST_LAG + 2, lag_known=True, firm=8, proven=8)
    adapt.refused("c", Verdict("lag", 8, 8, 0), 1_000_100, 1_000_000, 8)
    assert (adapt.belief.lag, adapt.belief.lag_before) == (FIRST_LAG + 2, 0)
    adapt = _adapt(lag=FIRST_LAG, lag_before=FIRST_LAG + 1, clean=[CLEAN] * len(LAGS))
    adapt.refused("c", Verdict("drop", 8, 6, 0), 1_000_100, 1_000_000, 8)
    assert (adapt.belief.lag, adapt.belief.lag_before) == (FIRST_LAG, 0)


def test_p4_a_limit_that_was_found_in_a_blur_is_lowered_a_little() -> None:
    adapt = _adapt(cap=100, limit=60, failed=61, proven=60, firm=50, proven_at=1_000_000)
    adapt.admitted("c", 60, 1_000_000, 40)
    adapt.accepted("c", 1_000_000)
    verdict = adapt.verdict("c", 60, 1_000_100, 1_000_000, 41)
    assert (verdict.why, verdict.limit) == ("drop", 58)
    adapt.refused("c", verdict, 1_000_100, 1_000_000, 41)
    assert (adapt.belief.blurred, adapt.belief.good) == (True, 0)
    assert adapt.verdict("d", 58, 1_000_900, 1_000_800, 41).limit == 57


def test_p4_a_small_difference_is_noise_and_no_move() -> None:
    adapt = _adapt(cap=1_000, moved_from=500, limit=495, moved_at=1)
    adapt.refused("c", Verdict("exact", 496, 495, 0), 1_000_100, 1_000_000, 490)
    assert (adapt.belief.move_ms, adapt.belief.size) == (MOVE_MS, SIZE)


def test_p4_releases_are_counted_in_bins() -> None:
    adapt = _adapt()
    adapt.released("a", 2, "ok", 1_000_000)
    adapt.released("b", 1, "ok", 1_000_000 + BIN_MS)
    assert adapt.belief.bins[:2] == [1, 2]
    adapt.released("c", 1, "ok", 1_010_000)
    assert sum(adapt.belief.bins) == 1


def test_p4_a_person_who_sets_the_cap_undoes_what_refusals_did() -> None:
    adapt = _adapt(limit=3, failed=4, good=8, cuts=2, next_probe=5, last_why="drop", proven=3)
    adapt.forgive()
    assert (adapt.limit, adapt.belief.failed, adapt.belief.proven) == (8, 0, 3)


def test_p4_a_call_that_no_longer_needs_the_pool_tries_nothing() -> None:
    adapt = _adapt()
    _sent(adapt, 2, 1_000_000)
    adapt.sync_calls({"c2": 1}, 1_000_000)
    assert adapt.belief.unproven == "c2"
    adapt.sync_calls({}, 1_000_000)
    assert adapt.belief.unproven == ""


# The provider's own count.


def _found(limit: int = 6) -> AdaptiveLimit:
    return _adapt(limit=limit, failed=limit + 1, proven=limit, firm=limit, proven_at=1_000_000, last_why="drop")


def _answers(adapt: AdaptiveLimit, count: int | None, now: int, ours: int = 5) -> None:
    for _ in range(2):
        adapt.answered(count, now, ours, now - 50)


def test_g1_what_others_take_more_or_less_moves_the_limit_without_a_refusal() -> None:
    adapt = _found()
    _answers(adapt, 7, 1_010_000)
    assert adapt.belief.base_others == 2
    _answers(adapt, 8, 1_020_000)
    assert (adapt.limit, adapt.belief.last_why) == (5, "neighbour")
    _answers(adapt, 5, 1_030_000)
    assert adapt.limit == 8
    _answers(adapt, 7, 1_040_000)
    assert adapt.limit == 6


@pytest.mark.parametrize("why", ["unknown", "just released", "just sent", "once", "no limit"])
def test_g1_an_answer_that_does_not_tell_changes_nothing(why: str) -> None:
    adapt = _found(0 if why == "no limit" else 6)
    _answers(adapt, 7, 1_010_000)
    now = 1_020_000
    if why == "just released":
        adapt.released("c", 1, "ok", now - 1_500)
    elif why == "just sent":
        adapt.belief.sent_at = now - 100
    limit = adapt.limit
    adapt.answered(None if why == "unknown" else 9, now, 5, now - 50)
    if why != "once":
        adapt.answered(None if why == "unknown" else 9, now, 5, now - 50)
    assert adapt.limit == limit


def test_g1_where_the_lag_is_sure_a_release_before_it_does_no_harm() -> None:
    adapt = _found()
    adapt.belief.clean = [CLEAN] * len(LAGS)
    _answers(adapt, 7, 1_010_000)
    adapt.released("c", 1, "ok", 1_018_500)
    _answers(adapt, 8, 1_020_000)
    assert adapt.limit == 5
