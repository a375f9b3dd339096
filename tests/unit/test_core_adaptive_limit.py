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
from fleetgate.core.limits.adaptive_tuning import BIN_MS, CLEAN, FIRST_LAG, GRACE_MS, LAGS
from fleetgate.core.pools.pool import Pool
from fleetgate.core.state.snapshot import belief_record
from fleetgate.core.state.state import State
from fleetgate.core.views.limit_explanation import explain

START = 1_000_000
LAG_MS = LAGS[FIRST_LAG] * BIN_MS
SPEC = Spec(models=("umans/coder",), kind="requests")


class Calls:
    """Calls through a pool whose limit is learned. `now` moves by hand; every step is checked and replayed."""

    def __init__(self, cap: int = 8, **said: object) -> None:
        self.now = START
        self.engine = Engine(me="p")
        self.replica = Engine()
        self.ids = 0
        self.do(cmd.SetRule(Rule("requests", "umans", cap=cap, max_hold_ms=0, **said)))  # type: ignore[arg-type]

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
        while not self.lent(ident):
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

    def lent(self, ident: str) -> bool:
        return ident in self.engine.state.leases

    def call(self) -> str:
        """A call that enters, and that nothing is known of yet."""
        ident = self.ask()
        for _ in range(40):
            if self.lent(ident):
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
        self.end(calls.pop(0))
        assert self.refuse(self.call()).why == "drop"
        return calls


def test_p4_one_call_alone_never_waits_for_a_proof() -> None:
    calls = Calls()
    for _ in range(5):
        ident = calls.ask()
        assert calls.lent(ident)
        calls.end(ident)
        calls.wait(LAG_MS)


def test_p4_up_to_the_proven_level_everybody_enters_at_once() -> None:
    calls = Calls()
    for ident in calls.prove(4):
        calls.end(ident)
    calls.wait(5_000)
    assert all(calls.lent(calls.ask()) for _ in range(4))
    last = calls.ask()
    calls.let_in(last)  # it tries one more
    assert calls.belief.unproven == last


def test_p4_a_grant_that_nobody_takes_proves_nothing() -> None:
    calls = Calls(cap=1)
    first = calls.call()
    calls.do(cmd.Acquire("other", SPEC, "q", wake="elsewhere"))
    calls.end(first)
    calls.wait(LAG_MS)
    assert not calls.engine.state.leases["other"].claimed
    calls.wait(10_000)
    assert calls.belief.unproven != "other"


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
    assert (calls.pool.cooldown.slots, calls.pool.cooldown_ms) == (1, LAG_MS)
    calls.wait(LAG_MS)
    refused = calls.call()
    calls.refuse(refused)
    assert calls.pool.cooldown.slots == 0


def test_p4_alone_a_refusal_with_nothing_else_in_flight_is_not_about_how_many() -> None:
    calls = Calls()
    refused = calls.refuse(calls.call())
    assert (refused.why, calls.pool.limit) == ("alone", 8)
    first = calls.pool.paused_until - calls.now
    assert 500 <= first <= 1_000
    calls.wait(first)
    calls.refuse(calls.call())
    assert 1_000 <= calls.pool.paused_until - calls.now <= 2_000


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
    assert (refused.id, refused.why, refused.limit) == ("", "drop", 3)


def test_p4_a_lower_cap_is_a_lower_ceiling() -> None:
    calls = Calls()
    calls.prove(4)
    calls.do(cmd.LoadFile("f", "d", 1, ()))
    calls.do(cmd.SetRule(Rule("requests", "umans", cap=2)))
    assert calls.pool.limit == 2


def test_p4_a_lot_that_nobody_stands_in_sets_no_timer() -> None:
    """The request for two slots has left: only the request for one is waited for."""
    calls = Calls(cap=2)
    one, other = calls.prove(2)
    calls.do(cmd.Acquire("two", Spec(models=("umans/coder",), kind="requests", slots=2), "p"))
    waits = calls.ask()
    calls.do(cmd.Cancel("two"))
    calls.end(one)
    calls.end(other)
    calls.wait(LAG_MS)
    assert calls.lent(waits)
    calls.call()
    last = calls.ask()
    assert not calls.lent(last)
    calls.end(waits)
    calls.wait(LAG_MS)
    assert calls.lent(last)


def test_p4_a_request_whose_environment_allows_less_or_more_is_held_to_it() -> None:
    calls = Calls(cap=4)
    calls.prove(1)
    calls.do(cmd.Acquire("less", Spec(("umans/coder",), "requests", caps=(("umans", 1),)), "p"))
    calls.wait(5_000)
    assert not calls.lent("less")
    calls.do(cmd.Acquire("more", Spec(("umans/coder",), "requests", caps=(("umans", 9),)), "p"))
    calls.wait(5_000)
    assert calls.lent("more")


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


@pytest.mark.parametrize("policy", ["step", "pause", "fixed"])
def test_explain_tells_where_nothing_is_learned(policy: str) -> None:
    calls = Calls(on_429=policy)
    (sentence,) = explain(calls.pool, calls.now).sentences
    assert f"Nothing is learned here (on_429 = {policy}): the limit is 8" in sentence
    calls.do(cmd.Pause("requests", "umans"))
    assert explain(calls.pool, calls.now).sentences[0] == "It is paused by a person: nothing new starts."


def test_p4_a_call_that_tries_a_level_counts_as_accepted_after_a_restart_too() -> None:
    calls = Calls(cap=8)
    calls.call()
    calls.call()
    assert calls.belief.unproven
    engine = Engine(State.restore(calls.engine.state.export(calls.now)))
    due = calls.belief.tried_at + GRACE_MS
    calls.wait(due - calls.now - 1)
    assert calls.belief.unproven
    assert engine.next_deadline() == calls.engine.next_deadline() == due
