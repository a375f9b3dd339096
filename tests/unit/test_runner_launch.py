"""What an agent is started with, the same for `fleetgate run` and for jobs."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from fleetgate.config.environment import Environment
from fleetgate.config.settings import Provider, Settings
from fleetgate.core.entities import Lease, Spec, Ticket
from fleetgate.runner.launch import environment_for, in_sandbox, limit_subagents

LEASE = Lease(Ticket("t1", Spec(), "me", 0, 1, 0, 0, 0), "anthropic/claude-opus-4-6", 0, 1)
WRAPPED = Settings(wrap=("bwrap", "--setenv", "M", "{name}"))


def test_the_sandbox_of_the_config_comes_before_the_command_and_knows_the_model() -> None:
    argv = in_sandbox(["claude", "-p"], LEASE, WRAPPED, Environment())
    assert argv == ["bwrap", "--setenv", "M", "claude-opus-4-6", "claude", "-p"]
    assert in_sandbox(["claude"], LEASE, Settings(), Environment()) == ["claude"]


@pytest.mark.parametrize("value", ["1", "true"])
def test_whatever_says_yes_skips_the_sandbox(value: str) -> None:
    environment = Environment.read({"FLEETGATE_SANDBOX_DISABLED": value})
    assert in_sandbox(["claude"], LEASE, WRAPPED, environment) == ["claude"]


def test_what_the_agent_should_know_of_its_lease_wins_over_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERE", "1")
    env = environment_for(LEASE, Settings(), {"MORE": "2", "FLEETGATE_LEASE": "another"})
    assert (env["HERE"], env["MORE"]) == ("1", "2")
    assert (env["FLEETGATE_LEASE"], env["FLEETGATE_MODEL"]) == ("t1", "anthropic/claude-opus-4-6")


def test_m3_an_agent_with_the_login_of_its_account_gets_no_key_of_another_account(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Claude Code prefers a key in its environment to its login, and would use the wrong account."""
    settings = Settings(
        providers={
            "anthropic": Provider(key_env="OWN_KEY"),
            "anthropic@work": Provider(env={"CLAUDE_CONFIG_DIR": "/logins/work"}),
            "anthropic@both": Provider(env={"CLAUDE_CONFIG_DIR": "/logins/both"}, key_env="BOTH_KEY"),
            "anthropic@api": Provider(key_env="API_KEY"),
            "openai@api": Provider(key_env="OTHER_PROVIDERS_KEY"),
        }
    )
    names = ("OWN_KEY", "BOTH_KEY", "API_KEY", "OTHER_PROVIDERS_KEY")
    for name in names:
        monkeypatch.setenv(name, "sk-x")

    def keys(account: str) -> set[str]:
        lease = replace(LEASE, model=f"anthropic{account}/claude-opus-4-6")
        return {name for name in names if name in environment_for(lease, settings, {"API_KEY": "sk-inherited"})}

    assert keys("@work") == {"OTHER_PROVIDERS_KEY"}
    assert keys("@both") == {"OTHER_PROVIDERS_KEY", "BOTH_KEY"}
    assert keys("@api") == keys("") == set(names), "without a login of its own, it has what its caller has"


def test_m3_an_agent_of_an_account_with_a_key_gets_it_in_the_variable_that_it_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would use the login of the default account otherwise."""
    settings = Settings(
        providers={
            "anthropic": Provider(key_env="DEFAULT_KEY"),
            "anthropic@work": Provider(key_env="WORK_KEY"),
            "anthropic@unset": Provider(key_env="UNSET_KEY"),
            "anthropic@both": Provider(env={"CLAUDE_CONFIG_DIR": "/logins/both"}, key_env="WORK_KEY"),
            "umans@work": Provider(key_env="WORK_KEY"),
        }
    )
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-of-the-shell")
    monkeypatch.setenv("WORK_KEY", "sk-of-work")
    monkeypatch.setenv("DEFAULT_KEY", "sk-default")

    def key(account: str) -> str | None:
        return environment_for(replace(LEASE, model=f"{account}/m"), settings).get("ANTHROPIC_API_KEY")

    assert key("anthropic@work") == "sk-of-work"
    assert [
        key(each) for each in ("anthropic", "anthropic@unset", "anthropic@both", "umans@work", "anthropic@new")
    ] == ["sk-of-the-shell"] * 5


def test_w6_an_agent_is_told_how_many_helpers_it_may_run_at_once() -> None:
    four = Settings(subagents=4)
    env: dict[str, str] = {}
    assert limit_subagents(["claude", "-p", "x"], env, four) == ["claude", "-p", "x"]
    assert env == {"CLAUDE_CODE_MAX_CONCURRENT_SUBAGENTS": "4"}
    assert limit_subagents(["codex", "exec", "x"], {}, four) == ["codex", "-c", "agents.max_threads=4", "exec", "x"]
    assert limit_subagents(["make", "test"], env := {}, four) == ["make", "test"]
    assert env == {}


def test_w6_what_the_user_says_of_helpers_stays() -> None:
    four = Settings(subagents=4)
    env = {"CLAUDE_CODE_MAX_CONCURRENT_SUBAGENTS": "9"}
    limit_subagents(["claude"], env, four)
    assert env == {"CLAUDE_CODE_MAX_CONCURRENT_SUBAGENTS": "9"}
    own = ["codex", "-c", "agents.max_threads=2", "exec", "x"]
    assert limit_subagents(own, {}, four) == own
    newer = ["codex", "exec", "-c", "agents.max_concurrent_threads_per_session=2", "x"]
    assert limit_subagents(newer, {}, four) == newer, "codex knows both names, and refuses to be given both"
    assert limit_subagents(["codex", "exec", "x"], {}, Settings()) == ["codex", "exec", "x"]


@pytest.mark.parametrize("name", ["max_threads", "max_concurrent_threads_per_session"])
def test_w7_what_codexs_own_config_says_about_its_helpers_stays(tmp_path: Path, name: str):
    (tmp_path / "config.toml").write_text(f"[agents]\n{name} = 2\n")
    command = ["codex", "exec", "x"]
    assert limit_subagents(command, {"CODEX_HOME": str(tmp_path)}, Settings(subagents=4)) == command
    (tmp_path / "config.toml").write_text("[agents]\nmax_depth = 2\n")
    assert "agents.max_threads=4" in limit_subagents(command, {"CODEX_HOME": str(tmp_path)}, Settings(subagents=4))
