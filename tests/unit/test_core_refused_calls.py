"""Refused calls: what is held back by what the provider says, for how long, and who tries whether it is over."""

from __future__ import annotations

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core.entities import Rule, Spec
from fleetgate.core.pools.backoff import LINGER_MS
from fleetgate.core.views.wait_reasons import opens_at
from tests.unit.test_core_backoff import Gate

OPUS, OLD, SONNET = "anthropic/claude-opus-4-6", "anthropic/claude-opus-4-1", "anthropic/claude-sonnet-4-6"
FAMILY = "anthropic/claude-opus-*"


def refuse(gate: Gate, *models: str, outcome: str = "overloaded", **more: object) -> str:
    """A call of the first model that is open; returns the model that it was refused by."""
    ident = gate.ask(*models, kind="requests")
    model = gate.got(ident)
    assert model is not None
    gate(cmd.Release(ident, outcome, **more))  # type: ignore[arg-type]
    return model


def capped(*names: str) -> Gate:
    return Gate(*(Rule("requests", name, cap=8, on_429="pause") for name in names))


def paused(gate: Gate) -> list[str]:
    return sorted(pool.id for pool in gate.engine.state.pools.values() if pool.paused_until > gate.now)


@pytest.mark.parametrize("outcome", ["overloaded", "usage_window", "quota", "auth"])
def test_what_a_refusal_is_about_is_held_back_also_under_a_cap(outcome: str) -> None:
    gate = capped("anthropic")
    refuse(gate, OPUS, outcome=outcome)
    assert gate.keys == [OPUS if outcome == "overloaded" else "anthropic"]
    assert paused(gate) == []


def test_a_server_error_of_a_capped_call_holds_nobody_back_and_one_without_a_cap_as_long_as_it_says() -> None:
    gate = capped("anthropic")
    refuse(gate, OPUS, outcome="server_error")
    refuse(gate, "openai/gpt-5", outcome="server_error", retry_after_ms=0)
    assert gate.keys == []


def test_the_time_grows_with_each_refusal_in_a_row_and_a_success_ends_it() -> None:
    gate = Gate()
    waits = []
    for _ in range(9):
        refuse(gate, OPUS)
        (backoff,) = gate.engine.state.backoffs.values()
        waits.append(backoff.until - gate.now)
        gate.pass_ms(waits[-1])
    assert waits == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000]
    ident = gate.ask(OPUS, kind="requests")
    gate(cmd.Active(ident))
    assert gate.keys == []


def test_a_hint_is_believed_the_first_time_and_not_when_it_says_at_once_again_and_again() -> None:
    gate = Gate()
    refuse(gate, OPUS, retry_after_ms=300)
    assert gate.engine.state.backoffs[OPUS].until == gate.now + 300
    gate.pass_ms(300)
    refuse(gate, OPUS, retry_after_ms=0)
    assert gate.engine.state.backoffs[OPUS].until == gate.now + 2_000
    gate.pass_ms(2_000)
    refuse(gate, OPUS, retry_after_ms=50_000)
    assert gate.engine.state.backoffs[OPUS].until == gate.now + 50_000


def test_calls_that_were_under_way_are_the_same_incident() -> None:
    gate = Gate()
    calls = [gate.ask(OPUS, kind="requests") for _ in range(3)]
    for ident in calls:
        gate(cmd.Release(ident, "overloaded"))
        gate.pass_ms(10)
    backoff = gate.engine.state.backoffs[OPUS]
    assert (backoff.times, backoff.until) == (1, gate.now - 30 + 1_000)
    late = gate.ask(OPUS, kind="requests")
    assert gate.waits(late)


def test_one_call_tries_whether_it_is_over_and_the_others_wait_for_its_verdict() -> None:
    gate = Gate()
    refuse(gate, OPUS)
    waiting = [gate.ask(OPUS, kind="requests") for _ in range(5)]
    gate.pass_ms(1_000)
    assert [gate.got(ident) is not None for ident in waiting] == [True, False, False, False, False]
    gate(cmd.Release(waiting[0], "overloaded"))
    gate.pass_ms(2_000)
    assert [gate.got(ident) is not None for ident in waiting[1:]] == [True, False, False, False]
    gate(cmd.Active(waiting[1]))
    assert all(gate.got(ident) for ident in waiting[1:])


def test_agents_enter_when_its_time_is_over_and_try_nothing_out() -> None:
    gate = Gate()
    refuse(gate, OPUS)
    agent = gate.ask(OPUS)
    assert gate.waits(agent)
    gate.pass_ms(1_000)
    assert gate.got(agent) == OPUS
    assert gate.engine.state.backoffs[OPUS].probing == "", "a call does that"
    gate(cmd.Select((OPUS,), "worker"))
    assert gate.engine.state.chosen["worker"][OPUS]


def test_what_nobody_tries_out_is_forgotten_after_a_while() -> None:
    gate = Gate()
    refuse(gate, OPUS)
    gate.pass_ms(1_000 + LINGER_MS - 1)
    assert gate.keys == [OPUS]
    gate.pass_ms(1)
    assert gate.keys == []


def test_under_a_fixed_cap_the_model_is_held_back_and_its_pool_is_left_alone() -> None:
    gate = Gate(Rule("requests", "anthropic", cap=8, on_429="fixed"))
    refuse(gate, OPUS, outcome="rate_limited")
    gate(cmd.Report(kind="requests", target="anthropic"))
    assert (gate.keys, paused(gate)) == ([OPUS], [])
    assert gate.engine.state.pools["requests anthropic"].limit == 8


# Whom it is about.


@pytest.mark.parametrize(
    ("caps", "scope", "family", "held", "stopped"),
    [
        (("anthropic",), "family", "claude-opus-*", [FAMILY], []),
        (("anthropic", FAMILY), "family", "claude-opus-*", [], [FAMILY]),
        (("anthropic", OPUS), "family", "claude-opus-*", [], [OPUS]),
        (("anthropic",), "model", "", [OPUS], []),
        (("anthropic", FAMILY), "model", "", [OPUS], []),
        (("anthropic", OPUS), "model", "", [], [OPUS]),
        (("anthropic", FAMILY), "account", "", [], ["anthropic"]),
        ((FAMILY,), "account", "", ["anthropic"], []),
        (("anthropic",), "family", "other-*", [OPUS], []),
    ],
)
def test_a_rate_limit_acts_on_whom_the_provider_names_and_on_no_wider_pool(
    caps: tuple[str, ...], scope: str, family: str, held: list[str], stopped: list[str]
) -> None:
    gate = capped(*caps)
    refuse(gate, OPUS, outcome="rate_limited", scope=scope, family=family, named=True, retry_after_ms=9_000)
    assert (gate.keys, paused(gate)) == (held, stopped)
    if scope != "account":
        assert gate.got(gate.ask(SONNET, kind="requests")) == SONNET


@pytest.mark.parametrize("outcome", ["usage_window", "quota"])
def test_a_window_of_a_family_leaves_the_others_of_the_account_alone(outcome: str) -> None:
    gate = capped("anthropic")
    refuse(gate, OPUS, outcome=outcome, scope="family", family="claude-opus-*", retry_after_ms=7_200_000)
    assert gate.keys == [FAMILY]
    assert gate.got(gate.ask(SONNET, kind="requests")) == SONNET
    assert gate.got(gate.ask(OLD, kind="requests")) is None


def test_a_rate_limit_that_names_nobody_pauses_the_narrowest_pool() -> None:
    gate = capped("anthropic", FAMILY)
    refuse(gate, OPUS, outcome="rate_limited", scope="family", family="claude-opus-*")
    assert (gate.keys, paused(gate)) == ([], [FAMILY])


def test_a_request_with_another_candidate_is_not_kept_from_it_by_a_pool_of_both() -> None:
    gate = Gate(Rule("requests", "anthropic", cap=8, on_429="step"))
    refuse(gate, OPUS, SONNET, outcome="rate_limited")
    assert (gate.keys, paused(gate)) == ([OPUS], [])
    assert gate.engine.state.pools["requests anthropic"].limit == 7, "the pool has learned all the same"
    assert refuse(gate, OPUS, SONNET, outcome="rate_limited") == SONNET
    assert gate.waits(gate.ask(OPUS, SONNET, kind="requests"))


def test_headers_that_say_nothing_is_left_hold_back_whom_they_are_about() -> None:
    gate = capped("anthropic")
    ident = gate.ask(OPUS, kind="requests")
    gate(cmd.UseUp(ident, 5_000, "family", "claude-opus-*"))
    assert (gate.keys, paused(gate)) == ([FAMILY], [])
    gate(cmd.UseUp(ident, 5_000, "account"))
    assert paused(gate) == ["anthropic"]
    free = Gate()
    ident = free.ask(OPUS, kind="requests")
    free(cmd.UseUp(ident, 5_000, "model"))
    assert free.keys == [], "without a cap there is nothing to hold back"


# When it opens.


def _opens(gate: Gate, *models: str) -> int:
    state = gate.engine.state
    return opens_at(state, state.queue(Spec(models, "requests")), gate.now) - gate.now


def test_when_the_first_candidate_opens_is_known_where_a_provider_said_so() -> None:
    gate = capped("anthropic", "openai")
    assert _opens(gate, OPUS, "openai/gpt-5") == 0
    refuse(gate, OPUS, outcome="usage_window", retry_after_ms=9_000)
    assert _opens(gate, OPUS) == 9_000
    assert _opens(gate, OPUS, "openai/gpt-5") == 0
    refuse(gate, "openai/gpt-5", outcome="rate_limited", retry_after_ms=5_000)
    assert _opens(gate, OPUS, "openai/gpt-5") == 5_000
    assert _opens(gate, "openai/gpt-5", OPUS) == 5_000
    gate(cmd.Pause("requests", "openai", 50_000))
    assert _opens(gate, "openai/gpt-5") == 0, "a person may end a pause at any time"


def test_when_a_login_or_a_bill_is_seen_to_nobody_knows() -> None:
    gate = Gate()
    refuse(gate, OPUS, outcome="quota")
    assert _opens(gate, OPUS) == 0
