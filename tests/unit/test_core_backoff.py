"""Backoff and choosing a model (rules B1-B6, A8) in the engine."""

from __future__ import annotations

import msgspec
import pytest

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.engine import Engine
from fleetgate.core.entities import Rule, Spec
from fleetgate.core.errors import BadName, BadRequest, FleetgateError, NotFound
from fleetgate.core.invariants import check_invariants, check_settled
from fleetgate.core.pools.backoff import PROBE_AFTER_MS, VERDICT_MS, parse_key
from fleetgate.core.state.snapshot_format import Snapshot
from fleetgate.core.state.state import State

OPUS, SONNET, OTHER = "anthropic/claude-opus-4-6", "anthropic/claude-sonnet-4-6", "openai/gpt-5"
HOUR = 3_600_000


class Gate:
    """An engine with a clock; every step is checked, and replayed into a second state."""

    def __init__(self, *rules: Rule) -> None:
        self.engine = Engine(me="me")
        self.twin = State()
        self.now = 1_000_000
        self.count = 0
        if rules:
            self(cmd.LoadFile("f", "d", 1, rules))

    def __call__(self, command: cmd.Command) -> list[ev.Event]:
        events = self.engine.handle(cmd.Tick(), self.now)
        before = self.engine.state.export(self.now)
        try:
            events = events + self.engine.handle(command, self.now)
        except FleetgateError:
            assert self.engine.state.export(self.now) == before
            self._check(events)
            raise
        self._check(events)
        return events

    def _check(self, events: list[ev.Event]) -> None:
        check_invariants(self.engine.state)
        check_settled(self.engine.state, self.now)
        for event in events:
            self.twin.apply(event, self.now)
        exported = self.engine.state.export(self.now)
        assert self.twin.export(self.now) == exported
        again = msgspec.json.decode(msgspec.json.encode(exported), type=Snapshot)
        assert State.restore(again).export(self.now) == exported

    def pass_ms(self, ms: int) -> list[ev.Event]:
        self.now += ms
        return self(cmd.Tick())

    def ask(self, *models: str, wait: bool = True, kind: str = "agents", any_of: bool = False, **more: object) -> str:
        self.count += 1
        ident = f"r{self.count}"
        spec = Spec(models, kind, any_candidate=any_of)
        self(cmd.Acquire(ident, spec, "me", wait=wait, **more))  # type: ignore[arg-type]
        return ident

    def got(self, ident: str) -> str | None:
        lease = self.engine.state.leases.get(ident)
        return None if lease is None else lease.model

    def waits(self, ident: str) -> bool:
        return ident in self.engine.state.tickets

    def fail(self, model: str, outcome: str, **more: object) -> list[ev.Event]:
        ident = self.ask(model)
        assert self.got(ident) == model
        return self(cmd.Release(ident, outcome, **more))  # type: ignore[arg-type]

    @property
    def keys(self) -> list[str]:
        return sorted(self.engine.state.backoffs)


def refused(events: list[ev.Event]) -> ev.Deferred:
    (event,) = [event for event in events if isinstance(event, ev.Deferred)]
    return event


@pytest.mark.parametrize("outcome", ["rate_limited", "overloaded", "server_error"])
def test_b1_these_outcomes_back_off_the_model_alone(outcome: str) -> None:
    gate = Gate()
    gate.fail(OPUS, outcome)
    assert gate.keys == [OPUS]
    assert gate.got(gate.ask(SONNET)) == SONNET
    assert gate.waits(gate.ask(OPUS))


@pytest.mark.parametrize("outcome", ["auth", "quota"])
def test_b1_a_refused_login_or_bill_benches_every_model_of_the_account(outcome: str) -> None:
    gate = Gate()
    gate.fail("anthropic@work/claude-opus-4-6", outcome)
    assert gate.keys == ["anthropic@work"]
    refusal = gate(cmd.Acquire("x", Spec(("anthropic@work/claude-haiku-4-5",)), "me"))
    assert refused(refusal).reason.cause == outcome
    assert gate.got(gate.ask(OPUS)) == OPUS, "another account is another matter"


def test_b1_a_usage_window_backs_off_what_the_message_names() -> None:
    gate = Gate()
    gate.fail(OPUS, "usage_window", scope="family", family="claude-opus-*", retry_after_ms=2 * HOUR)
    assert gate.keys == ["anthropic/claude-opus-*"]
    assert gate.got(gate.ask(SONNET)) == SONNET
    assert gate.waits(gate.ask("anthropic/claude-opus-4-1"))
    gate.fail(SONNET, "usage_window")
    assert "anthropic" in gate.keys


def test_b1_a_local_error_backs_off_nothing() -> None:
    gate = Gate()
    gate.fail(OPUS, "local_error")
    assert gate.keys == []


def test_b1_a_rate_limit_of_a_capped_request_acts_on_its_pool_and_backs_off_nothing() -> None:
    gate = Gate(Rule("requests", "umans", cap=4))
    ident = gate.ask("umans/coder", kind="requests")
    other = gate.ask("umans/coder", kind="requests")
    gate(cmd.Release(ident, "rate_limited", retry_after_ms=5_000))
    gate(cmd.Release(other, "overloaded"))
    assert gate.keys == []
    free = gate.ask("else/coder", kind="requests")
    gate(cmd.Release(free, "rate_limited"))
    assert gate.keys == ["else/coder"], "without a cap it is the model that is backed off"


@pytest.mark.parametrize(
    ("outcome", "ms"),
    [("rate_limited", 60_000), ("auth", HOUR), ("quota", HOUR), ("overloaded", 300_000), ("server_error", 300_000)],
)
def test_b2_defaults_without_a_hint(outcome: str, ms: int) -> None:
    gate = Gate()
    gate.fail(OPUS, outcome)
    (backoff,) = gate.engine.state.backoffs.values()
    assert backoff.until == gate.now + ms


def test_b2_a_hint_wins_and_what_is_observed_never_shortens() -> None:
    gate = Gate()
    first, second, third = gate.ask(OPUS), gate.ask(OPUS), gate.ask(OPUS)
    gate(cmd.Release(first, "rate_limited", retry_after_ms=200_000))
    until = gate.now + 200_000
    gate.pass_ms(1_000)
    assert not [e for e in gate(cmd.Release(second, "rate_limited")) if isinstance(e, ev.BackedOff)]
    assert gate.engine.state.backoffs[OPUS].until == until
    gate(cmd.Release(third, "rate_limited", retry_after_ms=400_000))
    assert gate.engine.state.backoffs[OPUS].until == gate.now + 400_000


def test_b2_timed_backoffs_are_waited_out_and_the_queue_goes_on_by_itself() -> None:
    gate = Gate()
    gate.fail(OPUS, "rate_limited", retry_after_ms=30_000)
    waiting = gate.ask(OPUS)
    assert gate.engine.next_deadline() == gate.now + 30_000
    gate.pass_ms(29_999)
    assert gate.waits(waiting)
    events = gate.pass_ms(1)
    assert ev.BackoffEnded(OPUS, "time") in events
    assert gate.got(waiting) == OPUS


def test_b2_after_six_hours_of_a_longer_backoff_one_probe_is_let_through() -> None:
    gate = Gate()
    gate.fail(OPUS, "usage_window", scope="model", retry_after_ms=100 * HOUR)
    one, two = gate.ask(OPUS, expires_ms=200 * HOUR), gate.ask(OPUS, expires_ms=200 * HOUR)
    gate.pass_ms(PROBE_AFTER_MS)
    assert gate.got(one) == OPUS
    assert gate.waits(two)
    assert gate.waits(gate.ask(OPUS)), "others wait for its verdict"
    gate(cmd.Release(one, "usage_window", scope="model", retry_after_ms=94 * HOUR))
    assert gate.waits(two), "it failed: six hours more"
    gate.pass_ms(PROBE_AFTER_MS - 1)
    assert gate.waits(two)
    gate.pass_ms(1)
    assert gate.got(two) == OPUS


@pytest.mark.parametrize("verdict", ["activity", "a minute", "its end"])
def test_b2_a_probe_that_succeeds_ends_the_backoff(verdict: str) -> None:
    gate = Gate()
    gate(cmd.BackOff(OPUS, "usage_window", 100 * HOUR))
    one, two = gate.ask(OPUS), gate.ask(OPUS)
    gate.pass_ms(PROBE_AFTER_MS)
    if verdict == "activity":
        events = gate(cmd.Active(one))
    elif verdict == "a minute":
        assert not [e for e in gate.pass_ms(VERDICT_MS - 1) if isinstance(e, ev.BackoffEnded)]
        events = gate.pass_ms(1)
    else:
        events = gate(cmd.Release(one, "ok"))
    assert ev.BackoffEnded(OPUS, "probe") in events
    assert gate.got(two) == OPUS


def test_b2_a_probe_that_dies_or_fails_by_itself_lets_the_next_one_try() -> None:
    gate = Gate()
    gate(cmd.BackOff(OPUS, "usage_window", 100 * HOUR))
    one, two, three = gate.ask(OPUS), gate.ask(OPUS), gate.ask(OPUS)
    gate.pass_ms(PROBE_AFTER_MS)
    gate(cmd.Reclaim(one, "me"))
    assert gate.got(two) == OPUS
    assert gate.waits(three)
    gate(cmd.Release(two, "local_error"))
    assert gate.got(three) == OPUS


def test_b2_a_quota_ends_by_a_probe_and_not_by_time_alone() -> None:
    gate = Gate()
    gate.fail(OPUS, "quota")
    gate.pass_ms(2 * HOUR)
    one = gate.ask(OPUS)
    assert gate.got(one) == OPUS, "an hour has passed: one may try"
    two = gate.ask(SONNET)
    assert not gate.waits(two)
    assert gate.got(two) is None, "and the others are told that a person is needed"
    gate(cmd.Active(one))
    assert gate.got(gate.ask(SONNET)) == SONNET


def test_b3_an_auth_backoff_ends_when_the_credential_changes_and_not_when_it_is_the_same() -> None:
    gate = Gate()
    gate.fail(OPUS, "auth", credential="h1")
    assert gate(cmd.Credential("anthropic", "h1")) == []
    assert gate(cmd.Credential("anthropic", "")) == [], "an unknown credential is not another one"
    assert gate(cmd.Credential("anthropic", "h2")) == [ev.BackoffEnded("anthropic", "credential")]


def test_b3_a_rate_limit_does_not_end_because_a_token_was_refreshed() -> None:
    gate = Gate()
    gate.fail(OPUS, "rate_limited", scope="account", credential="h1")
    assert gate.keys == [OPUS], "whatever scope was named, a rate limit is of the model"
    gate.fail(SONNET, "usage_window", credential="h1")
    assert gate(cmd.Credential("anthropic", "h2")) == []


def test_who_is_refused_and_calls_again_keeps_its_slot_and_others_are_held_back() -> None:
    gate = Gate()
    ident = gate.ask(OPUS)
    gate(cmd.Release(ident, "rate_limited", 45_000, evidence="429", keeps=True))
    state = gate.engine.state
    assert ident in state.leases
    assert state.backoffs[OPUS].until == state.backoffs[OPUS].since + 45_000
    gate(cmd.Release(ident))
    assert not state.leases


def test_of_several_credentials_a_new_one_ends_an_auth_backoff_and_one_that_went_away_does_not() -> None:
    gate = Gate()
    gate.fail(OPUS, "auth", credential="h1,h2")
    assert gate(cmd.Credential("anthropic", "h2")) == []
    assert gate(cmd.Credential("anthropic", "none")) == []
    assert gate(cmd.Credential("anthropic", "h2,h3")) == [ev.BackoffEnded("anthropic", "credential")]
    gate.fail(OPUS, "auth", credential="none")
    assert gate(cmd.Credential("anthropic", "none")) == []
    assert gate(cmd.Credential("anthropic", "h3")) == [ev.BackoffEnded("anthropic", "credential")]


def test_b3_all_backoffs_of_an_account_end_when_the_credential_names_another_account() -> None:
    gate = Gate()
    running = [gate.ask(model) for model in (OPUS, SONNET, "anthropic/claude-haiku-4-5", "anthropic@work/x", OTHER)]
    ended = {"credential": "h1", "identity": "email:a"}
    gate(cmd.Release(running[0], "rate_limited", **ended))  # type: ignore[arg-type]
    gate(cmd.Release(running[1], "usage_window", scope="family", family="claude-sonnet-*", **ended))  # type: ignore[arg-type]
    gate(cmd.Release(running[2], "quota", **ended))  # type: ignore[arg-type]
    gate(cmd.Release(running[3], "auth", **ended))  # type: ignore[arg-type]
    gate(cmd.Release(running[4], "overloaded"))
    gate(cmd.BackOff("anthropic/claude-haiku-4-5", "overloaded"))
    before = gate.keys
    for same in ("email:a", "", "sub:b"):
        assert gate(cmd.Credential("anthropic", "h2", same)) == [], "refreshed, or told in another way"
    assert gate(cmd.Credential("openai", "h2", "email:b")) == [], "nobody knew whose it was"
    freed = gate(cmd.Credential("anthropic", "h2", "email:b"))
    account = [event for event in freed if isinstance(event, ev.BackoffEnded) and event.why == "account"]
    assert {each.key for each in account} == {
        OPUS,
        "anthropic/claude-sonnet-*",
        "anthropic",
    }
    assert gate.keys == ["anthropic/claude-haiku-4-5", "anthropic@work", OTHER], "a person's wish, and other accounts"
    assert len(before) == len(gate.keys) + len(freed)


def test_b3_what_a_person_set_for_auth_ends_with_the_credential_and_not_with_the_account() -> None:
    gate = Gate()
    gate(cmd.BackOff("anthropic", "auth", credential="h1"))
    assert gate(cmd.Credential("anthropic", "h1", "email:b")) == []
    assert gate(cmd.Credential("anthropic", "h2")) == [ev.BackoffEnded("anthropic", "credential")]
    gate(cmd.BackOff("anthropic", "quota", credential="h1"))
    assert gate(cmd.Credential("anthropic", "h2")) == []


def test_b2_a_request_that_probes_in_a_capped_pool_and_ends_well_ends_the_backoff() -> None:
    gate = Gate(Rule("requests", "umans", cap=4))
    gate(cmd.BackOff("umans", "usage_window", 100 * HOUR))
    gate.pass_ms(PROBE_AFTER_MS)
    probe = gate.ask("umans/coder", kind="requests")
    assert ev.BackoffEnded("umans", "probe") in gate(cmd.Release(probe, "ok"))


def test_b4_rotation_takes_the_least_recently_chosen_that_is_not_backed_off() -> None:
    gate = Gate()
    models = (OPUS, SONNET, OTHER)

    def choose() -> str | None:
        return next((e.model for e in gate(cmd.Select(models, "pulse")) if isinstance(e, ev.Chosen)), None)

    assert [choose(), choose(), choose(), choose()] == [OPUS, SONNET, OTHER, OPUS]
    gate(cmd.BackOff("anthropic", "auth"))
    assert [choose(), choose()] == [OTHER, OTHER]
    gate(cmd.BackOff("openai", "auth"))
    assert choose() is None
    assert [e.model for e in gate(cmd.Select(models[2:], "other")) if isinstance(e, ev.Chosen)] == []


def test_b5_the_first_candidate_that_is_not_backed_off_is_taken() -> None:
    gate = Gate(Rule("agents", OPUS, cap=1), Rule("agents", SONNET, cap=1))
    assert gate.got(gate.ask(OPUS, SONNET)) == OPUS
    full = gate.ask(OPUS, SONNET)
    assert gate.waits(full), "a full pool is waited for"
    assert gate.got(gate.ask(OPUS, SONNET, any_of=True)) == SONNET
    gate(cmd.BackOff(OPUS, "overloaded"))
    assert gate.waits(full), "now it waits for the other one"
    for ident in list(gate.engine.state.leases):
        gate(cmd.Release(ident))
    assert gate.got(full) == SONNET
    gate(cmd.EndBackoff(OPUS))
    assert gate.got(gate.ask(OPUS, SONNET)) == OPUS


def test_b5_when_all_are_backed_off_the_reason_says_so_and_clearing_admits_at_once() -> None:
    gate = Gate()
    gate(cmd.BackOff(OPUS, "rate_limited", 60_000))
    gate(cmd.BackOff(SONNET, "overloaded", 90_000))
    events = gate(cmd.Acquire("x", Spec((OPUS, SONNET)), "me", wait=False))
    reason = refused(events).reason
    assert (reason.code, reason.cause, reason.until) == ("backoff", "rate_limited", gate.now + 60_000)
    waiting = gate.ask(OPUS, SONNET)
    gate(cmd.EndBackoff(SONNET))
    assert gate.got(waiting) == SONNET, "rule A12"


def test_b6_keys_are_models_families_or_accounts_and_nonsense_changes_nothing() -> None:
    assert parse_key("anthropic@default/x") == ("anthropic/x", "model")
    assert parse_key("anthropic@work/claude-*") == ("anthropic@work/claude-*", "family")
    assert parse_key("anthropic@work") == ("anthropic@work", "account")
    for bad in ("host", "project", "*/x", "a@*", "", "10;rm -rf /"):
        with pytest.raises(BadName):
            parse_key(bad)
    gate = Gate()
    for command in (
        cmd.BackOff(OPUS, "boredom"),
        cmd.BackOff(OPUS, "auth", 0),
        cmd.BackOff(OPUS, "auth", 36 * 24 * HOUR),
        cmd.Credential(OPUS, "h"),
    ):
        with pytest.raises(BadRequest):
            gate(command)
    with pytest.raises(NotFound):
        gate(cmd.EndBackoff(OPUS))
    assert gate.keys == []


def test_b6_a_manual_set_replaces_what_was_observed() -> None:
    gate = Gate()
    gate.fail(OPUS, "rate_limited", retry_after_ms=HOUR)
    gate(cmd.BackOff(OPUS, "overloaded", 1_000))
    (backoff,) = gate.engine.state.backoffs.values()
    assert (backoff.reason, backoff.until, backoff.manual) == ("overloaded", gate.now + 1_000, True)


def test_a8_time_in_backoff_does_not_count_towards_expiry() -> None:
    gate = Gate(Rule("agents", OPUS, cap=1))
    holder = gate.ask(OPUS)
    waiting = gate.ask(OPUS, expires_ms=10_000)
    gate.pass_ms(4_000)
    gate(cmd.BackOff(OPUS, "overloaded", 60_000))
    gate.pass_ms(60_000)
    assert gate.waits(waiting)
    gate.pass_ms(5_999)
    assert gate.waits(waiting)
    assert [type(event) for event in gate.pass_ms(1)] == [ev.Expired]
    assert gate.got(holder) == OPUS


def test_r3_a_cause_that_needs_a_person_is_not_waited_for_and_another_candidate_is() -> None:
    gate = Gate(Rule("agents", SONNET, cap=1))
    gate.ask(SONNET)
    gate(cmd.BackOff("openai", "quota"))
    assert refused(gate(cmd.Acquire("x", Spec((OTHER,)), "me"))).reason.cause == "quota"
    assert gate.waits(gate.ask(OTHER, SONNET))
    state = gate.engine.state
    assert gate.engine.needs_a_person(state.queue(Spec((OTHER,))), gate.now)
    assert not gate.engine.needs_a_person(state.queue(Spec((SONNET,))), gate.now)


def test_while_the_first_candidate_is_paused_the_next_one_is_taken() -> None:
    gate = Gate(Rule("agents", OPUS, cap=1), Rule("agents", SONNET, cap=1))
    gate(cmd.Pause("agents", OPUS, 10_000))
    first = gate.ask(OPUS, SONNET, wait=False)
    assert gate.got(first) == SONNET
    both_shut = gate.ask(OPUS, SONNET)
    assert gate.waits(both_shut)
    gate(cmd.Release(first))
    assert gate.got(both_shut) == SONNET, "it waited for whichever opens first"
    gate.pass_ms(10_000)
    assert gate.got(gate.ask(OPUS, SONNET)) == OPUS


def test_who_waits_for_a_full_candidate_takes_the_next_one_when_that_is_paused() -> None:
    gate = Gate(Rule("agents", OPUS, cap=1), Rule("agents", SONNET, cap=1))
    gate.ask(OPUS)
    waiting = gate.ask(OPUS, SONNET)
    assert gate.waits(waiting)
    gate(cmd.Report(kind="agents", target=OPUS))
    assert gate.got(waiting) == SONNET


def test_candidates_that_are_all_paused_are_waited_for_and_one_that_is_backed_off_is_passed_over() -> None:
    gate = Gate(Rule("agents", OPUS, cap=1), Rule("agents", SONNET, cap=1), Rule("agents", OTHER, cap=1))
    gate(cmd.Pause("agents", OPUS, 20_000))
    gate(cmd.Pause("agents", OTHER, 10_000))
    gate(cmd.BackOff(SONNET, "overloaded", 60_000))
    waiting = gate.ask(OPUS, SONNET, OTHER)
    assert gate.waits(waiting)
    gate.pass_ms(10_000)
    assert gate.got(waiting) == OTHER


def test_a_model_is_chosen_that_is_neither_paused_nor_backed_off() -> None:
    gate = Gate(Rule("requests", OPUS, cap=1))

    def choose() -> list[str]:
        return [e.model for e in gate(cmd.Select((OPUS, SONNET), "pulse")) if isinstance(e, ev.Chosen)]

    gate(cmd.Pause("requests", OPUS, 10_000))
    assert [choose(), choose()] == [[SONNET], [SONNET]]
    gate.pass_ms(10_000)
    assert choose() == [OPUS]
    gate(cmd.BackOff(SONNET, "overloaded", 60_000))
    gate.now += 60_000
    assert gate.engine.state.backoffs
    events = gate.engine.handle(cmd.Select((SONNET,), "other"), gate.now)
    assert [event.model for event in events if isinstance(event, ev.Chosen)] == [SONNET]
