"""`fleetgate config`: what is in force, where it comes from, what may surprise (rules C2, C3, C6)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fleetgate.core import events as ev
from tests.cli.command_line import Cli, opened

NOW_MS = 1_700_000_000_000
SECRET = "s3cr3t-do-not-show"

FULL = """
models = ["umans/coder"]
seniority = "10m"

[agents]
host = { cap = "auto", reserve = "2GiB" }

[requests]
umans = { cap = 4, usage_gate = true }

[providers.umans]
base_url = "https://api.umans.ai/v1"
key_env = "UMANS_API_KEY"
usage_path = "/usage"
usage_field = "usage.sessions"

[[census]]
match = "opencode.*"

[run]
wrap = ["bwrap", "--ro"]

[history]
keep = "30d"
"""


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with opened(monkeypatch, capsys) as cli:
        yield cli


def shown(cli: Cli) -> dict[str, tuple[Any, str, str | None]]:
    values = cli.json("config", "show")["values"]
    return {each["name"]: (each["value"], each["source"], each["variable"]) for each in values}


def warnings(cli: Cli) -> list[str]:
    told: list[str] = cli.json("config", "show")["warnings"]
    return told


# show


def test_c2_without_settings_everything_but_the_places_is_built_in(cli: Cli):
    found = shown(cli)
    assert found["config_path"] == (str(cli.config), "environment", "FLEETGATE_CONFIG")
    assert found["state_folder"] == (str(cli.folder / "s"), "environment", "FLEETGATE_HOME")
    assert found["store"] == (f"sqlite://{cli.folder}/s", "built-in", None)
    assert found["file_in_force"] == (str(cli.config), "file", None)
    for name, value in (
        ("models", []),
        ("providers_allowed", []),
        ("project", "default"),
        ("seniority_ms", None),
        ("census", []),
        ("wrap", []),
        ("keep_ms", 30 * 86_400_000),
        ("host_auto.max", 8),
    ):
        assert found[name] == (value, "built-in", None)
    assert warnings(cli) == []


def test_c2_every_value_of_the_file_is_shown_as_the_files_also_where_it_is_the_default(cli: Cli):
    cli.configure(FULL)
    found = shown(cli)
    for name, value in (
        ("models", ["umans/coder"]),
        ("seniority_ms", 600_000),
        ("census", ["opencode.*"]),
        ("wrap", ["bwrap", "--ro"]),
        ("keep_ms", 30 * 86_400_000),
        ("host_auto.reserve_bytes", 2 << 30),
        ("providers.umans.base_url", "https://api.umans.ai/v1"),
        ("providers.umans.key_env", "UMANS_API_KEY"),
        ("usage_gate.requests.umans", True),
    ):
        assert found[name] == (value, "file", None)
    assert found["host_auto.max"] == (8, "built-in", None)
    assert found["providers.umans.api"] == ("openai", "built-in", None)
    out = cli.ok("config", "show")
    assert "UMANS_API_KEY (not set)" in out
    assert "host_auto.reserve" in out
    assert "2GiB" in out


def test_c3_what_the_environment_says_is_shown_with_its_variable(cli: Cli):
    cli.configure(FULL)
    for name, value in (
        ("FLEETGATE_MODELS", "openai/gpt-5"),
        ("AIDEVOPS_HEADLESS_PROVIDER_ALLOWLIST", "openai,umans"),
        ("FLEETGATE_PROJECT", "site"),
        ("FLEETGATE_SANDBOX_DISABLED", "1"),
        ("FLEETGATE_BYPASS", "1"),
        ("AIDEVOPS_OPUS_CONCURRENCY_CAP", "6"),
        ("FLEETGATE_STORE", f"sqlite://{cli.folder}/s"),
    ):
        cli.env(name, value)
    found = shown(cli)
    assert found["models"] == (["openai/gpt-5"], "environment", "FLEETGATE_MODELS")
    assert found["providers_allowed"] == (
        ["openai", "umans"],
        "environment",
        "AIDEVOPS_HEADLESS_PROVIDER_ALLOWLIST",
    )
    assert found["project"] == ("site", "environment", "FLEETGATE_PROJECT")
    assert found["wrap"] == ([], "environment", "FLEETGATE_SANDBOX_DISABLED")
    assert found["bypass"] == (True, "environment", "FLEETGATE_BYPASS")
    assert found["opus_cap"] == (6, "environment", "AIDEVOPS_OPUS_CONCURRENCY_CAP")
    assert found["store"] == (f"sqlite://{cli.folder}/s", "environment", "FLEETGATE_STORE")


def test_x5_no_secret_is_shown(cli: Cli, monkeypatch: pytest.MonkeyPatch):
    cli.configure(FULL)
    for name in ("FLEETGATE_TOKEN", "UMANS_API_KEY"):
        cli.env(name, SECRET)
    assert shown(cli)["token"] == ("set", "environment", "FLEETGATE_TOKEN")
    for said in (cli("config", "show"), cli("config", "show", "--json")):
        assert SECRET not in said.out + said.err
    assert "UMANS_API_KEY (set)" in cli.ok("config", "show")
    cli.env("FLEETGATE_STORE", f"postgresql://me:{SECRET}@db/fleetgate")
    monkeypatch.setattr("fleetgate.log.postgres.connection.PATIENCE_S", 0.0)
    said = cli("config", "show")
    assert said.code == 69
    assert SECRET not in said.out + said.err


def test_c2_an_edited_file_that_is_hidden_is_warned_about_and_one_that_agrees_is_not(cli: Cli):
    cli.configure("[agents]\nhost = 4\n")
    cli.ok("cap", "set", "host", "4")
    assert warnings(cli) == []
    cli.configure("[agents]\nhost = 6\n")
    (warning,) = warnings(cli)
    assert warning.startswith("host (agents): what the file says is hidden by what was set at run time (file: 6)")
    assert "`fleetgate cap reset host` returns to the file" in warning
    assert f"warning: {warning}" in cli.ok("config", "show")
    cli.env("FLEETGATE_AGENTS", "host=9")  # hides both: the column says so, and nothing is to be reset
    assert warnings(cli) == []
    cli.unset("FLEETGATE_AGENTS")
    cli.ok("cap", "reset", "host")
    assert warnings(cli) == []


def test_c2_an_older_content_of_the_file_is_warned_about(cli: Cli):
    cli.write("[agents]\nhost = 6\n", NOW_MS)
    cli.write("[agents]\nhost = 2\n", NOW_MS - 1)
    assert warnings(cli) == [
        f"{cli.config} is older than its content in force; `fleetgate config apply` forces it",
    ]


def test_c2_another_file_in_force_is_warned_about(cli: Cli):
    cli.write("[agents]\nhost = 6\n", NOW_MS)
    other = cli.folder / "other.toml"
    other.write_text("[agents]\nhost = 2\n")
    cli.ok("config", "apply", str(other))
    (warning,) = warnings(cli)
    assert warning.startswith(f"the caps in force are those of {other}; {cli.config} is older and did not enter;")
    assert warning.endswith("`fleetgate config apply` forces it")
    other.unlink()
    assert f"the caps of {other}, which is gone, are still in force" in warnings(cli)[0]


def test_c2_a_file_that_is_gone_is_still_in_force_and_warned_about(cli: Cli):
    cli.configure("[agents]\nhost = 6\n")
    cli.config.unlink()
    cli.unset("FLEETGATE_CONFIG")
    cli.env("XDG_CONFIG_HOME", str(cli.folder))
    (warning,) = warnings(cli)
    assert f"the caps of {cli.config}, which is gone, are still in force" in warning
    assert shown(cli)["config_path"] == (f"{cli.folder}/fleetgate/config.toml", "built-in", None)
    assert "(there is none)" in cli.ok("config", "show")
    cli.ok("config", "apply", "/dev/null")
    assert "host" not in [line["selector"] for line in cli.json("cap", "ls")["caps"] if line["source"] == "file"]


# check and path


def test_c1_a_valid_file_is_said_to_be_valid_and_changes_nothing(cli: Cli):
    (cli.folder / "new.toml").write_text(FULL)
    before = cli.length()
    assert cli.ok("config", "check", "new.toml") == f"{cli.folder}/new.toml: valid (2 caps, 1 provider)\n"
    assert cli.json("config", "check")["path"] == str(cli.config)
    assert cli.length() == before
    (cli.folder / "new.toml").write_text('[budgets]\nproject = { usd = 20, per = "day" }\n')
    assert cli.ok("config", "check", "new.toml").endswith(": valid (0 caps, 1 budget, 0 providers)\n")


def test_c6_every_mistake_is_named_with_line_key_and_what_is_valid(cli: Cli):
    (cli.folder / "bad.toml").write_text('[agents]\nhost = 0\n[request]\numans = 4\n[run]\nwrap = "x"\n')
    told = cli.refused("config", "check", "bad.toml", code=78)
    assert "bad.toml:2: agents.host: found 0; valid is" in told
    assert "bad.toml:3: request: unknown key; did you mean requests?" in told
    assert "bad.toml:6: run.wrap: " in told
    said = cli("config", "check", "bad.toml", "--json")
    assert (said.code, said.json["valid"]) == (78, False)
    assert [problem["line"] for problem in said.json["problems"]] == [2, 3, 6]


def test_c6_a_bad_file_in_use_stops_a_command_and_leaves_path_and_check_to_mend_it(cli: Cli):
    cli.config.write_text("[agents\n")
    before = cli.state.seq
    for command in (
        ["cap", "set", "host", "5"],
        ["pause", "host"],
        ["config", "check"],
    ):
        said = cli(*command)
        assert said.code == 78
        assert f"{cli.config}:1: not valid TOML" in said.err
    assert cli.state.seq == before
    assert cli.ok("config", "path") == f"{cli.config}\n"
    assert cli.json("config", "path") == {"path": str(cli.config), "exists": True}


# apply


def test_c2_apply_brings_in_an_older_file_and_says_what_changed(cli: Cli):
    cli.configure("[agents]\nhost = 1\n[requests]\numans = 4\n")
    cli.occupy()
    cli.stand()
    old = cli.folder / "old.toml"
    old.write_text("[agents]\nhost = 2\nproject = 3\n")
    assert cli.ok("config", "apply", "old.toml") == (
        f"{old} is now in force; 1 waiting started\n"
        "  host (agents): 1 -> 2\n"
        "  project (agents): none -> 3\n"
        "  umans (requests): 4 -> none\n"
    )
    assert cli.ok("config", "apply", "old.toml") == f"{old}: already in force\n"
    assert cli.json("config", "apply", "old.toml")["applied"] is False


def test_c2_what_was_applied_stays_in_force_until_the_config_file_is_edited(cli: Cli):
    cli.write("[agents]\nhost = 1\n", NOW_MS)
    (cli.folder / "other.toml").write_text("[agents]\nhost = 2\n")
    cli.ok("config", "apply", "other.toml")
    for _ in range(2):  # the config file is not newer than that
        cli.ok("cap", "ls")
    cli.close()
    cli.gate.read()
    assert cli.limit("agents", f"host:{cli.gate.host}") == 2
    loaded = [event for event in cli.events() if isinstance(event, ev.FileLoaded)][-1]
    cli.write("[agents]\nhost = 9\n", loaded.modified + 1)
    assert cli.limit("agents", f"host:{cli.gate.host}") == 9


def test_c2_what_was_set_at_run_time_stays_above_what_is_applied(cli: Cli):
    cli.ok("cap", "set", "host", "7")
    (cli.folder / "other.toml").write_text("[agents]\nhost = 2\n")
    cli.ok("config", "apply", "other.toml")
    assert cli.limit("agents", f"host:{cli.gate.host}") == 7


def test_c6_a_bad_file_is_not_applied(cli: Cli):
    (cli.folder / "bad.toml").write_text("[agents]\nhots = 2\n")
    assert "did you mean host" in cli.refused("config", "apply", "bad.toml", code=78)
    assert "there is no such file" in cli.refused("config", "apply", "none.toml", code=78)


def test_a_model_in_the_place_of_a_provider_is_a_mistake_in_the_file(cli: Cli):
    file = cli.folder / "other.toml"
    file.write_text('[agents]\n"opus-4-6" = 1\n')
    said = cli("config", "check", str(file))
    assert said.code == 78
    assert "opus-4-6 is not a provider: did you mean anthropic/claude-opus-4-6" in said.err
    file.write_text('[agents]\n"opus-4-6/*" = 1\numans = 2\n"anthropic/claude-opus-*" = 3\n')
    assert cli("config", "check", str(file)).code == 0
