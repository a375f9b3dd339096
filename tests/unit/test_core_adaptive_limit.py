"""`adapt` finds the provider's limit and follows it (rule P4; docs/adaptive-limits.md): what each refusal means."""

from __future__ import annotations

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.engine import Engine
from fleetgate.core.entities import Rule, Spec
from fleetgate.core.invariants import check_invariants, check_settled
from fleetgate.core.limits import AdaptiveLimit
from fleetgate.core.limits.adaptive_state import Belief
from fleetgate.core.limits.adaptive_tuning import (
    CLEAN,
    DROP,
    MOST_LAG_MS,
    PATIENCE_MS,
    PROOF_MS,
    SPACING_MS,
    USUAL_LAG_MS,
)
from fleetgate.core.pools.pool import Pool
from fleetgate.core.state.snapshot import belief_record
from fleetgate.core.state.state import State
from fleetgate.core.views.limit_explanation import explain, span
from fleetgate.core.views.pool_and_lease_views import pool_views

START = 1_000_000
AFTER_A_DROP = 8 * DROP[0] // DROP[1]  # the limit when level 8 had worked and is refused
SPEC = Spec(models=("umans/coder",), kind="requests")


class Calls:
    """Calls through a pool whose limit is learned. `now` moves by hand; every step is checked and replayed.

    They are taken for long ones, however soon they end here, unless they are said to be `short`.
    """

    def __init__(self, cap: int = 8, *, short: bool = False, **said: object) -> None:
        self.now = START
        self.engine = Engine(me="p")
        self.replica = Engine()
        self.ids = 0
        self.do(cmd.SetRule(Rule("requests", "umans", cap=cap, max_hold_ms=0, **said)))  # type: ignore[arg-type]
        if not short and self.pool.limiter.adaptive is not None:
            self.believe(hold_ms=60_000)

    def do(self, command: cmd.Command) -> list[ev.Event]:
        events = [*self.engine.handle(cmd.Tick(), self.now), *self.engine.handle(command, self.now)]
        check_invariants(self.engine.state)
        check_settled(self.engine.state, self.now)
        self.replica.replay(events, self.now)
        exported = self.engine.state.export(self.now)
        assert self.replica.state.export(self.now) == exported
        assert State.restore(exported).export(self.now) == exported
        return events

    def wait(self, ms: int) -> None:
        """Let time pass; what is due on the way is done when it is due."""
        end = self.now + ms
        while (due := self.engine.next_deadline()) is not None and due <= end:
            self.now = max(due, self.now)
            self.do(cmd.Tick())
        self.now = end
        self.do(cmd.Tick())

    @property
    def pool(self) -> Pool:
        pool = self.engine.state.named("requests", "umans")
        assert pool is not None
        return pool

    @property
    def adapt(self) -> AdaptiveLimit:
        assert self.pool.limiter.adaptive is not None
        return self.pool.limiter.adaptive

    @property
    def belief(self) -> Belief:
        return self.adapt.belief

    def let_in(self, ident: str) -> None:
        """Wait until a call enters, and no longer."""
        while not self.admitted(ident):
            due = self.engine.next_deadline()
            assert due is not None
            self.wait(max(due - self.now, 0))

    def believe(self, name: str = "umans", **said: int) -> None:
        """As if this had been learned."""
        for engine in (self.engine, self.replica):
            pool = engine.state.named("requests", name)
            assert pool is not None
            assert pool.limiter.adaptive is not None
            for field, value in said.items():
                setattr(pool.limiter.adaptive.belief, field, value)
            pool.refresh()

    def ask(self, **said: object) -> str:
        self.ids += 1
        ident = f"c{self.ids}"
        self.do(cmd.Acquire(ident, SPEC, "p", **said))  # type: ignore[arg-type]
        return ident

    def admitted(self, ident: str) -> bool:
        return ident in self.engine.state.leases

    def call(self) -> str:
        """A call that enters, and that nothing is known of yet."""
        ident = self.ask()
        for _ in range(40):
            if self.admitted(ident):
                return ident
            self.wait(500)
        raise AssertionError(f"{ident} does not enter: {belief_record(self.belief)}")

    def prove(self, level: int) -> list[str]:
        """So many calls in flight, all accepted."""
        calls = []
        while self.pool.used < level:
            ident = self.call()
            self.wait(100)
            self.do(cmd.Active(ident))
            calls.append(ident)
        assert self.belief.proven >= level
        return calls

    def end(self, ident: str, outcome: str = "ok", retry_after_ms: int | None = None) -> list[ev.Event]:
        return self.do(cmd.Release(ident, outcome, retry_after_ms))

    def refuse(self, ident: str, retry_after_ms: int | None = None) -> ev.Refused:
        events = self.end(ident, "rate_limited", retry_after_ms)
        return next(event for event in events if isinstance(event, ev.Refused))

    def recycle(self, calls: list[str], times: int) -> None:
        """Slots are released and granted again at the edge, and nothing is refused."""
        for _ in range(times):
            self.wait(3_000)
            self.end(calls.pop(0))
            calls.append(self.call())
            self.wait(2_100)

    def dropped(self, level: int = 8) -> list[str]:
        """A level that held for long is refused."""
        calls = self.prove(level)
        self.recycle(calls, CLEAN + level)
        self.wait(60_000)
        self.end(calls.pop(0))
        assert self.refuse(self.call()).why == "drop"
        return calls


# Climbing.


def _believing(**said: object) -> AdaptiveLimit:
    belief = Belief()
    for name, value in said.items():
        setattr(belief, name, value)
    return AdaptiveLimit(belief)


def test_p4_at_first_calls_climb_one_proven_level_at_a_time() -> None:
    calls = Calls(cap=3)
    first, second, third = calls.ask(), calls.ask(), calls.ask()
    assert [calls.admitted(each) for each in (first, second, third)] == [True, False, False]
    calls.do(cmd.Active(first))
    calls.wait(300)  # calls sent closer together may arrive in another order
    assert [calls.admitted(each) for each in (first, second, third)] == [True, True, False]
    calls.wait(2_300)  # no refusal for 2 s: accepted
    assert calls.admitted(third)
    calls.end(third)
    assert calls.belief.proven == 3


def test_p4_one_call_alone_never_waits_for_a_proof() -> None:
    calls = Calls()
    for _ in range(5):
        ident = calls.ask()
        assert calls.admitted(ident)
        calls.end(ident)
        calls.wait(USUAL_LAG_MS)


def test_p4_up_to_the_proven_level_everybody_enters_at_once() -> None:
    calls = Calls()
    for ident in calls.prove(4):
        calls.end(ident)
    calls.wait(5_000)
    assert all(calls.admitted(calls.ask()) for _ in range(4))
    assert not calls.admitted(calls.ask())


def test_p4_whoever_waits_for_a_proof_is_told_so() -> None:
    calls = Calls()
    calls.ask()
    events = calls.do(cmd.Acquire("no", SPEC, "p", wait=False))
    (deferred,) = [event for event in events if isinstance(event, ev.Deferred)]
    assert deferred.reason.code == "proving"
    assert deferred.reason.text == "umans: 0 of 8 at once are proven; one call at a time tries one more"


def test_p4_where_calls_come_seldom_those_at_the_edge_are_apart_and_nobody_is_woken_for_nothing() -> None:
    calls = Calls(cap=3)
    one, two, _ = calls.prove(3)
    calls.wait(60_000)
    calls.end(one)
    first, second = calls.ask(), calls.ask()
    calls.end(two)
    freed = calls.now
    assert calls.engine.next_deadline() == freed + 500  # when the slots have cooled
    calls.wait(500)
    assert (calls.admitted(first), calls.admitted(second)) == (True, False)
    assert calls.engine.next_deadline() == freed + 500 + SPACING_MS
    calls.wait(SPACING_MS)
    assert calls.admitted(second)
    third = calls.ask()  # nothing but a release can let it in: until then it is woken to see whether it is overtaken
    due = calls.engine.next_deadline()
    assert due is not None
    assert due >= calls.now + 29_000
    assert not calls.admitted(third)


def test_p4_a_try_waits_for_a_moment_at_which_nothing_cools_and_for_ten_seconds_at_most() -> None:
    adapt = _believing(proven=3, proven_at=START, tried_at=START, sent_at=START)
    adapt.configure(8, explore=False, fixed_lag_ms=None)
    due = adapt.admits_at(4, 8, START + 5_000, live=2, cooling=1)
    assert due == START + 10_000
    assert not adapt.admits(4, 8, due - 1, live=2, cooling=1)
    assert adapt.admits(4, 8, due, live=2, cooling=1)
    assert adapt.admits_at(4, 8, due, live=2, cooling=1) == due


@pytest.mark.parametrize(
    ("ago", "ghosts"), [(USUAL_LAG_MS - 1, 0), (USUAL_LAG_MS, 2), (MOST_LAG_MS - 1, 2), (MOST_LAG_MS, 0)]
)
def test_p4_a_release_is_a_ghost_from_the_lag_in_force_until_the_longest_that_is_believed(
    ago: int, ghosts: int
) -> None:
    adapt = _believing(freed=[(START - MOST_LAG_MS - 900, 1), (START - ago, 2)], hold_ms=60_000)
    adapt.configure(8, explore=False, fixed_lag_ms=None)
    adapt.admitted("a", 1, START)
    call = adapt.belief.calls["a"]
    assert (call.ghosts, call.ghost_age) == (ghosts, ago if ghosts else 0)


def test_p4_an_old_proof_is_worth_what_is_in_flight() -> None:
    calls = Calls()
    held = calls.prove(4)
    for ident in held[2:]:
        calls.end(ident)
    calls.wait(PROOF_MS)
    assert calls.admitted(calls.ask())
    assert not calls.admitted(calls.ask())
    assert calls.belief.proven == 2


def test_p4_a_call_that_is_lost_or_fails_proves_nothing_and_frees_the_try() -> None:
    calls = Calls()
    calls.prove(1)
    ident = calls.call()
    calls.end(ident, "overloaded")
    assert (calls.belief.proven, calls.belief.unproven, calls.pool.limit) == (1, "", 8)
    lost = calls.call()
    calls.do(cmd.Reclaim(lost, "me"))
    assert calls.belief.unproven == ""


def test_p4_a_grant_that_nobody_takes_proves_nothing() -> None:
    calls = Calls(cap=1)
    first = calls.call()
    calls.do(cmd.Acquire("other", SPEC, "q", wake="elsewhere"))
    calls.end(first)
    calls.wait(USUAL_LAG_MS)
    assert not calls.engine.state.leases["other"].claimed
    calls.wait(10_000)
    assert "other" not in calls.belief.calls


# What a refusal means.


def test_p4_exact_a_refused_try_tells_the_limit() -> None:
    calls = Calls()
    calls.prove(4)
    refused = calls.refuse(calls.call())
    assert (refused.why, refused.level, refused.limit, refused.cap) == ("exact", 5, 4, 8)
    assert calls.pool.limit == 4
    assert calls.belief.next_probe > calls.pool.paused_until
    assert calls.pool.paused_until > calls.now


def test_p4_exact_the_boldest_call_of_the_last_second_is_blamed() -> None:
    calls = Calls()
    held = calls.prove(4)
    calls.wait(5_000)
    calls.end(held[0])
    calls.wait(1_000)
    again = calls.call()
    calls.wait(300)
    calls.call()  # tries 5; arrived before the other
    refused = calls.refuse(again)
    assert (refused.why, refused.level, refused.limit) == ("exact", 5, 4)


def test_p2_refusals_of_calls_sent_before_are_the_same_incident_and_only_fit() -> None:
    calls = Calls()
    held = calls.dropped()
    assert calls.pool.limit == AFTER_A_DROP
    epoch, until = calls.belief.epoch, calls.pool.paused_until
    fit = calls.refuse(held[-1])
    assert (fit.why, calls.belief.epoch, calls.pool.paused_until) == ("fit", epoch, until)
    assert calls.pool.limit == AFTER_A_DROP
    for engine in (calls.engine, calls.replica):
        engine.state.pools["requests umans"].limiter.adaptive.belief.calls[held[0]].level = AFTER_A_DROP  # type: ignore[union-attr]
    assert calls.refuse(held[0]).limit == AFTER_A_DROP - 1


def test_p2_a_call_reported_twice_counts_once() -> None:
    calls = Calls()
    calls.prove(4)
    ident = calls.call()
    calls.do(cmd.Report(ident))
    limit, epoch = calls.pool.limit, calls.belief.epoch
    calls.do(cmd.Report(ident))
    assert calls.refuse(ident).why == "fit"
    assert (calls.pool.limit, calls.belief.epoch) == (limit, epoch)


def test_p4_drop_a_level_that_had_worked_is_refused() -> None:
    calls = Calls()
    calls.dropped()
    assert (calls.pool.limit, calls.belief.proven, calls.belief.failed) == (AFTER_A_DROP, 0, 8)
    (view,) = [view for view in pool_views(calls.engine.state, calls.now) if view.pool == "umans"]
    assert (view.auto_reduced, view.auto_reduced_from) == (True, 8)
    assert view.notice == (
        f"auto-reduced to {AFTER_A_DROP} after a rate limit (cap 8): "
        "it recovers automatically (`fleetgate explain umans`)"
    )


def climbed_after_a_drop() -> Calls:
    """The limit fell from 8, and all that is below the refused level works."""
    calls = Calls()
    for ident in calls.dropped():
        calls.end(ident)
    calls.wait(3_000)
    calls.prove(7)
    return calls


def test_p4_after_a_drop_it_climbs_to_just_below_the_refused_level_and_probes_from_there() -> None:
    calls = climbed_after_a_drop()
    assert (calls.pool.limit, calls.belief.stride, calls.belief.settled) == (7, 0, 7)
    waiting = calls.ask()
    assert not calls.admitted(waiting)
    due = calls.belief.next_probe
    calls.let_in(waiting)
    assert due <= calls.now <= due + PATIENCE_MS
    assert calls.belief.probing
    calls.do(cmd.Active(waiting))
    assert calls.pool.limit == 8
    assert not calls.pool.limiter.is_reduced


def test_p4_a_try_that_is_refused_in_the_climb_after_a_drop_ends_it() -> None:
    calls = Calls()
    for ident in calls.dropped():
        calls.end(ident)
    calls.wait(3_000)
    held = calls.prove(3)
    assert calls.refuse(calls.call()).why == "exact"
    assert (calls.pool.limit, calls.belief.failed, calls.belief.stride) == (3, 4, 0)
    calls.wait(5_000)
    assert not calls.admitted(calls.ask())
    assert held


def test_p4_a_failed_probe_leaves_the_limit_and_makes_the_next_one_later() -> None:
    calls = climbed_after_a_drop()
    first = calls.belief.next_probe - calls.now
    probe = calls.ask()
    calls.let_in(probe)
    refused = calls.refuse(probe)
    assert (refused.why, refused.level, calls.pool.limit) == ("probe", 8, 7)
    assert calls.belief.next_probe - calls.now > first


def test_p4_a_probe_waits_for_a_quiet_moment_but_not_for_ever() -> None:
    calls = Calls(cap=2)
    held = calls.prove(1)
    calls.refuse(calls.call())
    assert calls.pool.limit == 1
    due = calls.belief.next_probe
    calls.wait(due - calls.now - 1_000)
    waiting = [calls.ask() for _ in range(60)]
    for _ in range(40):  # each ends a second after it was let in
        for current in list(calls.engine.state.leases):
            calls.end(current)
        calls.wait(900)
        if calls.belief.probing:
            break
    assert calls.belief.probing
    assert due <= calls.now <= due + PATIENCE_MS + 1_000
    assert held
    assert waiting


def test_p4_lag_a_call_that_is_over_may_still_be_counted() -> None:
    calls = Calls()
    held = calls.prove(8)
    calls.wait(3_000)
    calls.end(held[0])
    refused = calls.refuse(calls.call())
    assert (refused.why, calls.pool.limit, calls.pool.cooldown_ms) == ("lag", 8, MOST_LAG_MS)
    assert calls.pool.paused_until == calls.now + MOST_LAG_MS
    calls.wait(MOST_LAG_MS)
    calls.recycle([*held[1:], calls.call()], CLEAN + 8)
    assert USUAL_LAG_MS < calls.pool.cooldown_ms < MOST_LAG_MS
    assert explain(calls.pool, calls.now).lag_source == "learned"


def test_p4_a_lag_that_the_next_refusal_refutes_is_forgotten_as_a_bound_of_the_search() -> None:
    calls = Calls()
    calls.believe(lag_ms=USUAL_LAG_MS, lag_at=START)
    held = calls.prove(8)
    calls.wait(3_000)
    calls.end(held[0])
    assert calls.refuse(calls.call()).why == "lag"
    assert calls.belief.lag_low == USUAL_LAG_MS
    calls.wait(MOST_LAG_MS)
    refused = calls.refuse(calls.call())
    assert (refused.why, calls.belief.lag_low, calls.pool.limit) == ("drop", 0, AFTER_A_DROP)


def test_k1_a_cooldown_set_by_hand_is_kept_and_nothing_is_taken_for_lag() -> None:
    calls = Calls(cooldown_ms=0)
    held = calls.prove(8)
    calls.wait(3_000)
    calls.end(held[0])
    assert calls.pool.cooldown.slots == 0
    assert calls.refuse(calls.call()).why == "drop"
    assert calls.pool.cooldown_ms == 0


def test_k1_a_learned_lag_is_the_cooldown_and_a_refused_call_does_not_cool() -> None:
    calls = Calls()
    held = calls.prove(2)
    calls.end(held[0])
    assert (calls.pool.cooldown.slots, calls.pool.cooldown_ms) == (1, USUAL_LAG_MS)
    calls.wait(USUAL_LAG_MS)
    refused = calls.call()
    calls.refuse(refused)
    assert calls.pool.cooldown.slots == 0


@pytest.mark.parametrize("outcome", ["usage_window", "quota"])
def test_k1_a_call_that_was_refused_for_another_reason_than_how_many_at_once_does_not_cool_either(outcome: str) -> None:
    calls = Calls(short=True)
    calls.end(calls.call(), outcome)
    assert (calls.pool.cooldown.slots, calls.belief.freed_at, calls.pool.limit) == (0, 0, 8)
    failed = Calls(short=True)
    failed.end(failed.call(), "server_error")  # that one may have been counted
    assert failed.pool.cooldown.slots == 1


def test_p4_alone_a_refusal_with_nothing_else_in_flight_is_not_about_how_many() -> None:
    calls = Calls()
    refused = calls.refuse(calls.call())
    assert (refused.why, calls.pool.limit) == ("alone", 8)
    first = calls.pool.paused_until - calls.now
    assert 1_000 <= first <= 2_000
    calls.wait(first)
    calls.refuse(calls.call())
    assert 2_000 <= calls.pool.paused_until - calls.now <= 4_000


def test_k1_with_a_cap_of_one_the_next_call_goes_at_once_until_a_refusal_asks_for_a_lag() -> None:
    calls = Calls(cap=1)
    for _ in range(5):
        calls.end(calls.call())
        assert (calls.pool.cooldown.slots, calls.pool.cooldown_ms) == (0, 0)
    refused = calls.refuse(calls.call())
    assert (refused.why, calls.pool.limit, calls.pool.cooldown_ms) == ("lag", 1, MOST_LAG_MS)
    calls.wait(MOST_LAG_MS)
    calls.end(calls.call())
    assert calls.pool.cooldown.slots == 1


def test_p4_a_refused_call_that_follows_a_release_and_is_alone_means_a_longer_lag_and_never_a_lower_limit() -> None:
    calls = Calls(cap=1)
    calls.end(calls.call())
    seen = []
    for _ in range(3):
        refused = calls.refuse(calls.call())
        seen.append((refused.why, calls.belief.lag_ms, calls.pool.limit))
        calls.wait(MOST_LAG_MS)
        calls.end(calls.call())
    assert seen[0] == ("lag", MOST_LAG_MS, 1)
    assert all(why != "lag" and limit == 1 for why, _, limit in seen[1:])  # no provider counts a call for longer


def test_p1_without_a_hint_pauses_double_with_each_incident_in_a_row() -> None:
    calls = Calls(cooldown_ms=0)
    held = calls.prove(4)
    calls.refuse(calls.call())
    assert 500 <= calls.pool.paused_until - calls.now <= 1_000
    calls.end(held[0], "server_error")
    calls.refuse(calls.call())
    assert 1_000 <= calls.pool.paused_until - calls.now <= 2_000


def test_p1_a_hint_is_kept_and_a_later_one_never_shortens_the_pause() -> None:
    calls = Calls()
    held = calls.prove(4)
    calls.refuse(calls.call(), 30_000)
    until = calls.pool.paused_until
    assert until == calls.now + 30_000
    calls.refuse(held[0], 1_000)
    assert calls.pool.paused_until == until
    calls.refuse(held[1], 60_000)
    assert calls.pool.paused_until == calls.now + 60_000


def test_p4_a_script_that_names_no_lease_is_heard_too() -> None:
    calls = Calls()
    calls.prove(4)
    (refused,) = [
        event
        for event in calls.do(cmd.Report(kind="requests", target="umans", retry_after_ms=5))
        if isinstance(event, ev.Refused)
    ]
    assert (refused.id, refused.why, refused.limit) == ("", "drop", 4 * DROP[0] // DROP[1])


def test_p4_a_busy_pool_climbs_while_slots_cool() -> None:
    calls = Calls()
    held = calls.prove(3)
    calls.believe(gap_ms=50 * 16)
    calls.end(held[0])
    assert calls.admitted(calls.ask())
    assert calls.belief.unproven


# The cap.


def test_p4_setting_the_cap_forgets_what_refusals_did_and_keeps_what_was_proven() -> None:
    calls = Calls()
    calls.prove(4)
    calls.refuse(calls.call())
    calls.do(cmd.SetRule(Rule("requests", "umans", cap=8)))
    assert (calls.pool.limit, calls.belief.proven, calls.belief.failed, calls.belief.next_probe) == (8, 4, 0, 0)


def test_p4_a_lower_cap_is_a_lower_ceiling() -> None:
    calls = Calls()
    calls.prove(4)
    calls.do(cmd.LoadFile("f", "d", 1, ()))
    calls.do(cmd.SetRule(Rule("requests", "umans", cap=2)))
    assert calls.pool.limit == 2


def test_p4_explore_grows_above_the_cap_one_probe_at_a_time() -> None:
    calls = Calls(cap=2, explore=True)
    calls.prove(2)
    calls.wait(1_000)
    third = calls.call()
    assert calls.belief.probing
    calls.do(cmd.Active(third))
    assert calls.pool.limit == 3
    fourth = calls.ask()
    calls.wait(59_000)
    assert not calls.admitted(fourth)
    calls.wait(2_000)
    assert calls.admitted(fourth)
    assert "above the cap of 2" in " ".join(explain(calls.pool, calls.now).sentences)
    assert calls.refuse(fourth).why == "probe"


def test_p4_a_probe_that_ends_well_raises_the_limit_though_nobody_said_that_it_was_taken() -> None:
    calls = Calls(cap=2, explore=True)
    calls.prove(2)
    calls.wait(1_000)
    probe = calls.call()
    assert calls.belief.probing
    calls.wait(500)
    calls.end(probe)
    assert (calls.pool.limit, calls.belief.probing) == (3, False)


def test_p4_what_is_said_twice_or_of_nobody_is_heard_once() -> None:
    calls = Calls(cap=2)
    (first,) = calls.prove(1)
    before = calls.engine.state.export()
    calls.adapt.accepted(first, calls.now + 1)
    calls.adapt.accepted("unknown", calls.now + 1)
    assert calls.engine.state.export() == before


def test_p4_a_lot_that_nobody_stands_in_sets_no_timer() -> None:
    """The request for two slots has left: only the request for one is waited for."""
    calls = Calls(cap=2)
    one, other = calls.prove(2)
    calls.do(cmd.Acquire("two", Spec(models=("umans/coder",), kind="requests", slots=2), "p"))
    waits = calls.ask()
    calls.do(cmd.Cancel("two"))
    calls.end(one)
    calls.end(other)
    calls.wait(USUAL_LAG_MS)
    assert calls.admitted(waits)
    calls.call()
    last = calls.ask()
    assert not calls.admitted(last)
    calls.end(waits)
    calls.wait(USUAL_LAG_MS)
    assert calls.admitted(last)


@pytest.mark.parametrize("proven", [3, 5])
def test_p4_explore_grows_again_after_a_person_lowered_the_cap_under_what_is_proven(proven: int) -> None:
    calls = Calls(cap=proven, explore=True)
    idents = calls.prove(proven)
    calls.wait(3_000)
    for ident in idents:
        calls.end(ident)
    calls.wait(3_000)
    calls.do(cmd.SetRule(Rule("requests", "umans", cap=2)))
    calls.call()
    calls.call()
    above = calls.call()
    assert (calls.belief.unproven, calls.belief.probing) == (above, True)
    calls.do(cmd.Active(above))
    assert (calls.pool.limit, calls.belief.proven) == (3, proven)


def test_p4_a_request_whose_environment_allows_less_or_more_is_held_to_it() -> None:
    calls = Calls(cap=4)
    calls.prove(1)
    calls.do(cmd.Acquire("less", Spec(("umans/coder",), "requests", caps=(("umans", 1),)), "p"))
    calls.wait(5_000)
    assert not calls.admitted("less")
    calls.do(cmd.Acquire("more", Spec(("umans/coder",), "requests", caps=(("umans", 9),)), "p"))
    calls.wait(5_000)
    assert calls.admitted("more")


def test_p4_leases_from_before_it_learned_are_known_and_those_of_a_gone_cap_forgotten() -> None:
    calls = Calls(on_429="step")
    old = [calls.ask(), calls.ask()]
    calls.do(cmd.SetRule(Rule("requests", "umans", on_429="adapt")))
    assert set(calls.belief.calls) == set(old)
    calls.end(old[0])
    calls.prove(2)
    calls.do(cmd.SetRule(Rule("requests", "umans", on_429="step")))
    assert calls.pool.limiter.adaptive is None


def test_p4_calls_that_no_longer_need_the_pool_are_forgotten() -> None:
    calls = Calls()
    ident = calls.call()
    calls.do(cmd.SetRule(Rule("requests", "umans@default", cap=3)))
    assert ident in calls.belief.calls
    calls.adapt.sync_calls({}, calls.now)
    assert (calls.belief.calls, calls.belief.unproven) == ({}, "")


def test_p4_the_only_pool_above_its_proven_level_is_blamed() -> None:
    calls = Calls()
    calls.do(cmd.SetRule(Rule("requests", "umans/coder", cap=8)))
    calls.prove(3)
    calls.believe("umans/coder", proven=5)
    refused = calls.refuse(calls.call())
    assert (refused.pool, refused.why) == ("umans", "exact")


def two_models() -> tuple[Calls, dict[str, str]]:
    """A cap on the account and one on each of its models, and a call of each that was accepted."""
    calls = Calls()
    for name in ("coder", "small"):
        calls.do(cmd.SetRule(Rule("requests", f"umans/{name}", cap=4)))
    idents = {}
    for name in ("coder", "small"):
        calls.do(cmd.Acquire(name, Spec(models=(f"umans/{name}",), kind="requests"), "p"))
        calls.let_in(name)
        calls.wait(3_000)
        idents[name] = name
    return calls, idents


def test_p4_a_second_model_that_is_refused_within_the_pause_of_the_first_tells_of_the_account() -> None:
    calls, idents = two_models()
    assert calls.refuse(idents["coder"], 5_000).pool == "umans/coder"
    calls.wait(4_999)
    assert calls.refuse(idents["small"]).pool == "umans"


def test_p4_a_second_call_of_the_same_model_tells_nothing_of_the_account() -> None:
    calls, idents = two_models()
    calls.do(cmd.SetRule(Rule("requests", "umans/c*", cap=9)))
    calls.do(cmd.Acquire("more", SPEC, "p"))
    calls.let_in("more")
    calls.wait(3_000)
    assert calls.refuse(idents["coder"], 5_000).pool == "umans/coder"
    assert calls.refuse("more").pool == "umans/coder"


def test_p4_a_second_model_that_is_refused_after_the_pause_is_an_incident_of_its_own() -> None:
    calls, idents = two_models()
    calls.refuse(idents["coder"], 5_000)
    calls.wait(5_000)
    assert calls.refuse(idents["small"]).pool == "umans/small"


def test_p4_a_pause_by_hand_or_of_another_account_says_nothing_of_the_account() -> None:
    calls, idents = two_models()
    calls.do(cmd.SetRule(Rule("requests", "other/coder", cap=4)))
    calls.do(cmd.Acquire("else", Spec(models=("other/coder",), kind="requests"), "p"))
    calls.do(cmd.Report("else", retry_after_ms=60_000))
    calls.do(cmd.Pause("requests", "umans/coder", 60_000))
    assert calls.refuse(idents["small"]).pool == "umans/small"


def test_p4_the_model_that_tries_an_unproven_level_is_blamed_for_it_whatever_else_is_refused() -> None:
    calls, idents = two_models()
    calls.believe(proven=8, proven_at=START + 3_600_000)
    calls.do(cmd.Report(idents["coder"], retry_after_ms=60_000))
    calls.do(cmd.Acquire("bold", Spec(models=("umans/small",), kind="requests"), "p"))
    calls.let_in("bold")
    assert calls.refuse("bold").pool == "umans/small"


def test_p4_fixed_leaves_everything_as_it_is() -> None:
    calls = Calls(on_429="fixed")
    ident = calls.ask()
    events = calls.end(ident, "rate_limited", 30_000)
    assert not [event for event in events if isinstance(event, ev.Paused | ev.Reduced | ev.Refused)]
    policy = calls.pool.policy
    assert policy.admits(8, 8, calls.now)
    assert not policy.admits(9, 8, calls.now)
    assert policy.verdict("", 8, calls.now).limit == 8


def test_p4_caps_of_our_own_never_learn() -> None:
    calls = Calls()
    calls.do(cmd.SetRule(Rule("requests", "project", cap=4)))
    calls.call()
    project = calls.engine.state.named("requests", "project:default")
    assert project is not None
    assert project.limiter.adaptive is None
    assert "our own cap" in explain(project, calls.now).sentences[0]


def test_b2_a_word_of_an_answer_that_begins_is_wanted_only_where_it_tells_something() -> None:
    calls = Calls()
    first = calls.call()
    assert calls.engine.awaits_acceptance(first)
    calls.do(cmd.Active(first))
    assert not calls.engine.awaits_acceptance(first)
    assert not calls.engine.awaits_acceptance("gone")
    assert calls.do(cmd.Active("gone")) == []
    calls.do(cmd.BackOff("other/model", "overloaded", 40_000_000))
    calls.wait(30_000_000)
    calls.do(cmd.Acquire("probe", Spec(("other/model",), "requests"), "p"))
    assert calls.engine.awaits_acceptance("probe")


def test_g1_a_usage_answer_changes_nothing_that_was_learned() -> None:
    calls = Calls(usage_gate=True)
    calls.prove(1)
    calls.do(cmd.Acquire("waits", SPEC, "p", asks=("umans",)))
    before = calls.belief.proven
    calls.wait(1_000)
    calls.do(cmd.AskUsage("requests", "umans", "p"))
    calls.do(cmd.AnswerUsage("requests", "umans", "p", 1))
    assert calls.belief.proven == before


def test_g1_after_a_drop_the_providers_own_count_tells_of_a_neighbour_and_nothing_is_cut() -> None:
    calls = Calls(usage_gate=True)
    calls.dropped()
    assert calls.pool.limit == AFTER_A_DROP
    for count, limit in ((None, AFTER_A_DROP), (8, AFTER_A_DROP)):  # only the first answer tells
        calls.do(cmd.Acquire(f"waits{count}", SPEC, "p", asks=("umans",)))
        calls.wait(1_000)
        calls.do(cmd.AskUsage("requests", "umans", "p"))
        calls.do(cmd.AnswerUsage("requests", "umans", "p", count))
        assert calls.pool.limit == limit
    calls = Calls(usage_gate=True)
    calls.dropped()
    calls.do(cmd.Acquire("waits", SPEC, "p", asks=("umans",)))
    calls.do(cmd.AskUsage("requests", "umans", "p"))
    calls.do(cmd.AnswerUsage("requests", "umans", "p", 9))
    assert (calls.pool.limit, calls.belief.proven, calls.belief.failed) == (8, 8, 0)
    assert "others on the account had taken the slot" in " ".join(explain(calls.pool, calls.now).sentences)


# Explaining.


def test_explain_tells_what_is_believed_and_why() -> None:
    calls = Calls()
    text = " ".join(explain(calls.pool, calls.now).sentences)
    assert "the cap: there is no sign that the provider allows less" in text
    assert "Nothing is proven yet." in text
    assert "refused nothing" in text
    assert "nothing to probe for" in text
    trying = calls.call()
    assert f"{trying} is trying 1" in " ".join(explain(calls.pool, calls.now).sentences)
    calls.do(cmd.Active(trying))
    calls.prove(4)
    calls.refuse(calls.call())
    said = explain(calls.pool, calls.now)
    assert (said.proven, said.refused_level, said.last_refusal_why, said.lag_source) == (4, 5, "exact", "assumed")
    text = " ".join(said.sentences)
    assert "It is paused after a rate limit" in text
    assert "The limit is 4, below the cap of 8" in text
    assert "That is the whole limit" in text
    assert "5 were one more than it allows" in text
    wait_ms = calls.belief.next_probe - calls.now
    assert f"one call at 5, is tried in {span(wait_ms)}" in text
    calls.wait(wait_ms)
    assert "as soon as a call waits" in " ".join(explain(calls.pool, calls.now).sentences)
    calls.call()
    assert "A probe of 5 is under way." in " ".join(explain(calls.pool, calls.now).sentences)


def test_explain_tells_of_lag_and_drops() -> None:
    calls = Calls()
    calls.dropped()
    calls.wait(180_000)
    text = " ".join(explain(calls.pool, calls.now).sentences)
    assert "The last refusal, 3 min ago, was taken to mean: 8 at once had worked before" in text
    assert "as far as we have learned" in text
    by_hand = Calls(cooldown_ms=100)
    assert "cools down for 0.1 s, as configured" in " ".join(explain(by_hand.pool, by_hand.now).sentences)


@pytest.mark.parametrize("policy", ["step", "pause", "fixed"])
def test_explain_tells_where_nothing_is_learned(policy: str) -> None:
    calls = Calls(on_429=policy)
    (sentence,) = explain(calls.pool, calls.now).sentences
    assert f"Nothing is learned here (on_429 = {policy}): the limit is 8" in sentence
    calls.do(cmd.Pause("requests", "umans"))
    assert explain(calls.pool, calls.now).sentences[0] == "It is paused by a person: nothing new starts."


def test_p4_a_call_under_the_proven_level_refreshes_nothing() -> None:
    calls = Calls()
    held = calls.prove(4)
    proven_at = calls.belief.proven_at
    for ident in held[:3]:
        calls.end(ident)
    calls.wait(5_000)
    calls.end(calls.call())  # at level 2 of 4
    assert (calls.belief.proven, calls.belief.proven_at) == (4, proven_at)


def test_p4_the_call_that_is_tried_stays_so_when_others_leave_the_pool() -> None:
    calls = Calls()
    calls.prove(1)
    trying = calls.call()
    calls.adapt.sync_calls({trying: 1}, calls.now)
    assert (set(calls.belief.calls), calls.belief.unproven) == ({trying}, trying)


def test_p4_a_call_that_tries_a_level_counts_as_accepted_after_a_restart_too() -> None:
    calls = Calls(cap=8)
    calls.call()
    calls.call()
    assert calls.belief.unproven
    engine = Engine(State.restore(calls.engine.state.export(calls.now)))
    assert engine.next_deadline() == calls.engine.next_deadline()
