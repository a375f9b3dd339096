"""`fleetgate accounts` (rule M4): the accounts of providers side by side."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core.plans.reading import HOUR_MS, PlanReading
from fleetgate.gate.providers.account_login import IDENTITIES
from tests.cli.command_line import Cli, opened

CONFIG = """
[agents]
"anthropic/claude-opus-*" = 4
[requests]
anthropic = 8
[budgets]
anthropic = { usd = 20, per = "day" }
[providers."anthropic@work"]
key_env = "WORK_KEY"
"""


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with opened(monkeypatch, capsys) as cli:
        cli.env("HOME", str(cli.folder))
        cli.env("CLAUDE_CONFIG_DIR", str(cli.folder / "none"))
        yield cli


def accounts(cli: Cli) -> dict[str, dict[str, object]]:
    return {each["account"]: each for each in cli.json("accounts")["accounts"]}


def test_m4_an_idle_account_is_listed_if_a_cap_names_it(cli: Cli):
    cli.configure("")
    cli.ok("cap", "set", "umans", "4", "--kind", "requests")
    cli.ok("cap", "set", "*/gpt-*", "2")
    assert list(accounts(cli)) == ["umans"]
    assert "0/4 requests" in cli.ok("accounts")
    cli.ok("cap", "rm", "umans", "--kind", "requests")
    assert list(accounts(cli)) == []


def test_m4_without_any_account_it_says_when_there_is_one(cli: Cli):
    cli.configure("")
    assert "no accounts: " in cli.ok("accounts")
    assert cli.json("accounts") == {"accounts": []}


def test_m4_an_account_has_its_login_slots_windows_budgets_and_backoffs(cli: Cli):
    cli.configure(CONFIG)
    cli.occupy("anthropic@work/claude-opus-4-6")
    cli.occupy("anthropic/claude-sonnet-4-6")
    cli.gate.one(cmd.ObservePlan("anthropic@work", (PlanReading("5h", 4_200, HOUR_MS, 5 * HOUR_MS),)))
    cli.ok("backoff", "set", "anthropic/claude-opus-4-6", "rate_limited", "10m")
    found = accounts(cli)
    assert list(found) == ["anthropic", "anthropic@work"]
    work, default = found["anthropic@work"], found["anthropic"]
    assert (work["provider"], work["name"], work["configured"], work["login"]) == ("anthropic", "work", True, "missing")
    assert (default["name"], default["configured"]) == ("default", False)
    assert (work["agents"], work["calls"], work["waiting"]) == (1, 0, 0)
    assert [pool["pool"] for pool in work["pools"]] == ["anthropic@work/claude-opus-*"]  # type: ignore[attr-defined]
    assert {pool["pool"] for pool in default["pools"]} >= {"anthropic", "anthropic/claude-opus-*"}  # type: ignore[attr-defined]
    assert [(each["window"], each["used_percent"]) for each in work["windows"]] == [("5h", 42.0)]  # type: ignore[attr-defined]
    assert [each["name"] for each in default["budgets"]] == ["anthropic usd/day"]  # type: ignore[attr-defined]
    assert work["backoffs"] == []
    assert [each["key"] for each in default["backoffs"]] == ["anthropic/claude-opus-4-6"]  # type: ignore[attr-defined]
    text = cli.ok("accounts")
    assert "anthropic@work  missing  -         1 agent        -  1/4 agents of claude-opus-*" in text
    assert "5h 42 %" in text
    assert "backed off: rate_limited" in text


def test_m4_the_accounts_of_a_set_are_listed_as_such_and_share_what_waits(cli: Cli):
    cli.configure(
        '[accounts]\nanthropic = { use = ["default", "work"], then = ["api"] }\n[requests]\nanthropic = 1\n'
        '[providers."openai@other"]\nkey_env = "NONE"\n'
    )
    found = accounts(cli)
    sets = {name: each["in_set"] for name, each in found.items()}
    assert sets == {"anthropic": "use", "anthropic@api": "then", "anthropic@work": "use", "openai@other": None}
    assert "anthropic@api   then  unknown" in cli.ok("accounts")


def test_m4_an_identity_is_known_or_not_and_never_shown(cli: Cli):
    cli.configure(CONFIG)
    for row, account in (("anthropic:5eb63bbbe01eeed093cb22bb8f5acdc3", b"work"), ("openai:77aa", b"default")):
        cli.gate.replica.set_side_value_once(IDENTITIES, row, account)
    found = accounts(cli)
    assert {name: each["identity_known"] for name, each in found.items()} == {"anthropic@work": True, "openai": True}
    for said in (cli.ok("accounts"), cli.ok("accounts", "--json")):
        assert "5eb63" not in said
    assert "known" in cli.ok("accounts")


def test_m4_a_key_is_never_shown(cli: Cli):
    cli.configure(CONFIG)
    cli.env("WORK_KEY", "sk-ant-api03-never-shown-anywhere")
    assert accounts(cli)["anthropic@work"]["login"] == "found"
    assert "never-shown" not in cli.ok("accounts") + cli.ok("accounts", "--json")
