"""`fleetgate backoff` and `fleetgate select` (rules B4-B6), as a person uses them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core.entities import Spec
from tests.cli.command_line import Cli, opened

OPUS, SONNET = "anthropic/claude-opus-4-6", "anthropic/claude-sonnet-4-6"


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with opened(monkeypatch, capsys) as cli:
        yield cli


def test_b4_the_first_that_is_not_backed_off_is_printed_and_clearing_brings_it_back(cli: Cli) -> None:
    both = ("select", "-m", f"{OPUS},{SONNET}")
    assert cli.ok(*both) == f"{OPUS}\n"
    cli.ok("backoff", "set", OPUS, "rate_limited", "10m")
    assert cli.ok(*both) == f"{SONNET}\n"
    cli.ok("backoff", "set", SONNET, "overloaded")
    said = cli(*both)
    assert (said.code, said.out) == (75, "")
    assert f"{OPUS}: rate_limited" in said.err
    assert f"{SONNET}: overloaded" in said.err
    cli.ok("backoff", "clear", OPUS)
    assert cli.json(*both) == {"model": OPUS}


def test_o5_none_usable_as_json_names_each_with_its_reason(cli: Cli) -> None:
    cli.ok("backoff", "set", "anthropic", "auth")
    said = cli("select", "-m", f"{OPUS},{SONNET}", "--json")
    assert said.code == 75
    assert said.json["model"] is None
    assert [each["model"] for each in said.json["unusable"]] == [OPUS, SONNET]
    assert {each["reason"]["cause"] for each in said.json["unusable"]} == {"auth"}


def test_b4_rotation_is_kept_in_the_log_by_role(cli: Cli) -> None:
    rotate = ("select", "-m", f"{OPUS},{SONNET}", "--rotate=pulse")
    assert [cli.ok(*rotate) for _ in range(3)] == [f"{OPUS}\n", f"{SONNET}\n", f"{OPUS}\n"]
    assert cli.ok("select", "-m", f"{OPUS},{SONNET}", "--rotate") == f"{OPUS}\n"


def test_b4_candidates_come_from_the_config_where_none_are_named(cli: Cli) -> None:
    assert "no candidates" in cli.refused("select")
    cli.configure(f'models = ["{SONNET}"]')
    assert cli.ok("select") == f"{SONNET}\n"


def test_b6_auth_of_a_model_applies_to_the_account_and_says_so(cli: Cli) -> None:
    assert "every model of anthropic" in cli.ok("backoff", "set", OPUS, "auth_error")
    (listed,) = cli.json("backoff", "ls")["backoffs"]
    assert (listed["key"], listed["scope"], listed["reason"]) == ("anthropic", "account", "auth")
    assert cli.json("status")["backoffs"] == [listed]
    assert "anthropic" in cli.ok("status")


@pytest.mark.parametrize(("said", "meant"), [("rate_limit", "rate_limited"), ("provider_error", "server_error")])
def test_b6_other_names_of_reasons_are_understood_and_bare_numbers_are_seconds(cli: Cli, said: str, meant: str) -> None:
    made = cli.json("backoff", "set", OPUS, said, "90")
    assert made["reason"] == meant
    backoff = cli.gate.replica.catch_up().backoffs[OPUS]
    assert backoff.until - backoff.since == 90_000


@pytest.mark.parametrize(
    "argv",
    [
        ("set", OPUS, "rate_limited", "10;rm -rf /"),
        ("set", OPUS, "rate_limited", "0"),
        ("set", OPUS, "rate_limited", "-5"),
        ("set", OPUS, "rate_limited", "99999d"),
        ("set", OPUS, "boredom"),
        ("set", "10;rm -rf /", "auth"),
        ("set", "host", "auth"),
        ("set", OPUS),
        ("clear", OPUS),
        ("clear",),
        ("clear", OPUS, "--all"),
        ("ls", "more"),
        ("frobnicate",),
    ],
)
def test_b6_nonsense_is_refused_and_changes_nothing(cli: Cli, argv: tuple[str, ...]) -> None:
    cli.refused("backoff", *argv)


def test_a12_clearing_admits_whoever_waits_at_once_and_says_how_many(cli: Cli) -> None:
    cli.ok("backoff", "set", OPUS, "overloaded", "1h")
    gate = cli.gate
    gate.one(cmd.Acquire("waits", Spec((OPUS,)), gate.me))
    assert "1 waiting started" in cli.ok("backoff", "clear", "--all")
    assert "waits" in cli.gate.replica.catch_up().leases
    assert cli.ok("backoff", "clear", "--all") == "no backoffs\n"
    assert cli.ok("backoff", "ls") == "no backoffs\n"


def test_b1_a_lease_released_with_an_outcome_backs_off_and_history_tells(cli: Cli) -> None:
    ident = cli.ok("acquire", "-m", OPUS, "--pid", str(os.getpid())).strip()
    cli.ok("release", ident, "--outcome", "overloaded")
    assert [each["key"] for each in cli.json("backoff", "ls")["backoffs"]] == [OPUS]
    history = cli.ok("history")
    assert f"{OPUS} is backed off for 5m, overloaded" in history
    cli.ok("backoff", "clear", OPUS)
    assert f"{OPUS} may be used again (cleared)" in cli.ok("history")


def test_r3_a_run_whose_candidates_all_need_a_person_exits_75_and_says_why(cli: Cli) -> None:
    cli.ok("backoff", "set", "anthropic", "quota", "1h")
    said = cli("acquire", "-m", OPUS, "--json", "--pid", str(os.getpid()))
    assert said.code == 75
    assert (said.json["reason"]["code"], said.json["reason"]["cause"]) == ("backoff", "quota")


def test_a_model_whose_pool_is_paused_is_not_selected(cli: Cli) -> None:
    cli.ok("cap", "set", OPUS, "1")
    cli.ok("report", OPUS, "--rate-limited", "--retry-after", "60")
    assert cli.ok("select", "-m", f"{OPUS},{SONNET}") == f"{SONNET}\n"
    assert cli.ok("select", "-m", f"{OPUS},{SONNET}", "--rotate") == f"{SONNET}\n"
    said = cli("select", "-m", OPUS, "--json")
    assert said.code == 75
    (unusable,) = said.json["unusable"]
    assert (unusable["reason"]["code"], unusable["reason"]["pool"]) == ("paused", OPUS)
    assert f"{OPUS} is paused (rate_limited), 60s left" in said.err or "59s left" in said.err
    cli.ok("pause", OPUS)
    assert "until it is resumed" in cli("select", "-m", OPUS).err


def test_a_backoff_whose_time_is_over_holds_nothing_back_before_it_is_written_down(cli: Cli) -> None:
    cli.gate.one(cmd.BackOff(OPUS, "overloaded", 1))
    assert cli.ok("select", "-m", OPUS) == f"{OPUS}\n"
