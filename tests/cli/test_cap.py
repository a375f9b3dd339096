"""`fleetgate cap`: setting, removing, resetting, listing and importing (rules C4, C5, A1, A12, P3, N3, N4)."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from fleetgate.core import events as ev
from fleetgate.core.pools.effective_caps import Cap
from fleetgate.log.sqlite.log import SqliteLog
from tests.cli.command_line import Cli, opened

OPUS = "anthropic/claude-opus-4-6"


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with opened(monkeypatch, capsys) as cli:
        yield cli


def caps(cli: Cli) -> dict[tuple[str, str], dict[str, Any]]:
    return {(line["kind"], line["selector"]): line for line in cli.json("cap", "ls")["caps"]}


# Setting.


def test_n4_cap_set_host_counts_agents(cli: Cli):
    assert cli.ok("cap", "set", "host", "5") == "host (agents): cap 5, was 3 (built-in)\n"
    assert cli.limit("agents", f"host:{cli.gate.host}") == 5


def test_a_cap_counts_agents_unless_it_says_otherwise_and_tells_of_the_other_kind(cli: Cli):
    other = "this counts agents (processes that `fleetgate run` starts); to count model calls, use --kind requests\n"
    assert cli.ok("cap", "set", "anthropic/claude-opus-*", "4") == f"anthropic/claude-opus-* (agents): cap 4\n{other}"
    assert cli.ok("cap", "set", "umans", "4") == f"umans (agents): cap 4\n{other}"
    assert cli.ok("cap", "set", "openai", "2", "--kind", "requests") == "openai (requests): cap 2\n"
    assert cli.ok("cap", "set", "openai", "5") == (
        "openai (requests): cap 5, was 2 (run time)\n"
        "this counts model calls; to count agents (processes that `fleetgate run` starts), use --kind agents\n"
    )
    assert "restored" not in cli.ok("cap", "set", "host", "5")


def test_an_automatic_cap_of_the_file_follows_memory_before_anything_has_run(cli: Cli, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fleetgate.gate.liveness.free_memory.room", lambda reserve, per_agent: 5)
    cli.config.write_text('[agents]\nhost = "auto"\n')
    (host,) = [pool for pool in cli.json("status")["pools"] if pool["selector"] == "host"]
    assert (host["cap"], host["limit"]) == (5, 5)
    assert cli.json("capacity")["free"] == 5


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("opus-4-6", "anthropic/claude-opus-4-6, or */opus-4-6"),
        ("claude-sonnet-4-6", "anthropic/claude-sonnet-4-6, or */claude-sonnet-4-6"),
        ("opus", "anthropic/claude-opus-*, or */claude-opus-*"),
        ("claude-opus-*", "anthropic/claude-opus-*, or */claude-opus-*"),
        ("gpt-5", "openai/gpt-5, or */gpt-5"),
        ("o3", "openai/o3, or */o3"),
        ("gemini-2.5-pro@work", "google@work/gemini-2.5-pro, or *@work/gemini-2.5-pro"),
        ("qwen3-coder", "PROVIDER/qwen3-coder, or */qwen3-coder"),
    ],
)
def test_a_model_in_the_place_of_a_provider_is_refused_with_what_may_be_meant(cli: Cli, typed: str, meant: str):
    name = typed.partition("@")[0]
    calls = (
        ("cap", "set", typed, "1"),
        ("cooldown", typed, "350ms"),
        ("backoff", "set", typed, "rate_limit", "600s"),
        ("pause", typed),
        ("explain", typed),
        ("report", typed, "--rate-limited"),
    )
    for call in calls:
        if call[0] == "backoff" and "*" in typed:
            continue
        assert f"{name} is not a provider: did you mean {meant}" in cli.refused(*call), call
    assert not cli.gate.read().rules.runtime
    assert not cli.gate.read().backoffs


@pytest.mark.parametrize("provider", ["umans", "deepseek", "mistral", "zai", "ai21", "my-llm", "claude", "openai-2"])
def test_a_provider_that_was_never_heard_of_is_capped(cli: Cli, provider: str):
    assert f"{provider} (agents): cap 4\n" in cli.ok("cap", "set", provider, "4")


def test_a_provider_with_the_name_of_a_model_is_capped_once_it_is_known(cli: Cli):
    cli.ok("cap", "set", "glm-4/*", "2")
    assert "glm-4 (agents): cap 4\n" in cli.ok("cap", "set", "glm-4", "4")


def test_a12_raising_a_cap_admits_who_fits_at_once_and_says_how_many(cli: Cli):
    cli.ok("cap", "set", "host", "1")
    cli.occupy()
    waiting = [cli.stand() for _ in range(3)]
    assert cli.ok("cap", "set", "host", "3") == "host (agents): cap 3, was 1 (run time); 2 waiting started\n"
    assert [ident in cli.state.leases for ident in waiting] == [True, True, False]
    assert cli.json("cap", "set", "host", "4")["entered"] == 1


def test_a1_a_cap_below_what_is_lent_lets_nobody_new_in_and_says_so(cli: Cli):
    for _ in range(3):
        cli.occupy()
    out = cli.ok("cap", "set", "host", "1")
    assert out.endswith(f"host:{cli.gate.host}: 3 running; no new ones start until the count is below the cap\n")
    assert len(cli.state.leases) == 3


def test_p3_setting_the_cap_forgets_what_rate_limits_did_and_says_so(cli: Cli):
    cli.ok("cap", "set", "umans", "4", "--kind", "requests", "--on-429", "step")
    cli.ok("report", "umans", "--rate-limited")
    assert cli.limit("requests", "umans") == 3
    assert "restored after rate limits: umans\n" in cli.ok("cap", "set", "umans", "4", "--kind", "requests")
    assert cli.limit("requests", "umans") == 4


def test_c2_options_are_set_with_the_cap_and_stay_when_only_the_cap_is_set_again(cli: Cli):
    options = ["--cooldown", "1s", "--on-429", "pause", "--max-hold", "2h", "--usage-gate", "--name", "coder"]
    told = cli.json("cap", "set", "umans", "4", "--kind", "requests", *options)
    assert told == {
        "selector": "umans",
        "kind": "requests",
        "cap": 4,
        "auto": False,
        "unlimited": False,
        "cooldown_ms": 1000,
        "on_429": "pause",
        "max_hold_ms": 7_200_000,
        "name": "coder",
        "usage_gate": True,
        "explore": False,
        "source": "run time",
        "variable": None,
        "hidden": [],
        "entered": 0,
        "reserve": None,
        "lendable": False,
        "refusals": None,
    }
    assert cli.json("cap", "set", "umans", "5", "--kind", "requests") == {**told, "cap": 5}


def test_p4_what_a_refusal_costs_is_set_with_the_cap_listed_and_kept(cli: Cli):
    assert cli.json("cap", "set", "umans", "4", "--kind", "requests")["refusals"] == "normal"
    assert "refusals" not in cli.ok("cap", "ls")
    assert cli.json("cap", "set", "umans", "4", "--refusals", "expensive")["refusals"] == "expensive"
    assert cli.json("cap", "set", "umans", "5")["refusals"] == "expensive", "other options stay unchanged"
    assert "adapt, refusals expensive" in cli.ok("cap", "ls")
    assert "cap 4, refusals expensive" in cli.ok("history", "--type", "rule_set")
    assert "Refusals are set to be expensive" in cli.ok("explain", "umans")
    assert cli.json("explain", "umans")["refusals"] == "expensive"
    cli.ok("cap", "set", "umans", "5", "--on-429", "step")
    assert caps(cli)["requests", "umans"]["refusals"] is None, "it says nothing where nothing is learned"


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (
            ("umans", "4", "--kind", "requests", "--refusals", "free"),
            "--refusals: found 'free'; valid is",
        ),
        (("umans", "4", "--kind", "requests", "--on-429", "step", "--refusals", "cheap"), 'on_429 = "adapt"'),
        (("host", "4", "--refusals", "cheap"), 'on_429 = "adapt"'),
    ],
)
def test_p4_what_a_refusal_costs_is_refused_where_it_means_nothing(cli: Cli, argv: tuple[str, ...], says: str):
    assert says in cli.refused("cap", "set", *argv)
    assert not cli.gate.state.rules.runtime


def test_w5_a_reserve_is_set_changed_and_removed_at_run_time(cli: Cli):
    said = cli.ok("cap", "set", "host", "6", "--reserve", "25%", "--lendable")
    assert said == "host (agents): cap 6, 25% of it kept for interactive work, was 3 (built-in)\n"

    def host() -> Cap:
        return cli.gate.replica.catch_up().rules.caps["agents", "host"]

    assert (host().held_back(6), host().lendable) == (2, True)
    assert "2 kept for interactive work, lendable" in cli.ok("status")
    assert "25%, lendable" in cli.ok("cap", "ls")
    assert cli.json("cap", "set", "host", "6", "--reserve", "1", "--not-lendable")["reserve"] == 1
    assert (host().held_back(6), host().lendable) == (1, False)
    assert cli.json("cap", "set", "host", "7")["reserve"] == 1, "other options stay unchanged"
    assert cli.json("cap", "set", "host", "7", "--reserve", "0")["reserve"] is None
    assert host().held_back(7) == 0
    assert "reserve 25%, reserve lendable" in cli.ok("history", "--type", "rule_set")


@pytest.mark.parametrize("text", ["-1", "x", "101%", "1.5", "6GiB", "", "99999999"])
def test_w5_a_reserve_that_cannot_be_is_refused_and_nothing_is_changed(cli: Cli, text: str):
    assert "slots, or a percentage" in cli.refused("cap", "set", "host", "6", "--reserve", text)
    assert ("agents", "host") not in cli.gate.state.rules.runtime


def test_c7_host_auto_starts_from_what_free_memory_allows(cli: Cli, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fleetgate.gate.liveness.free_memory.room", lambda reserve, per_agent: 5)
    cli.occupy()
    assert cli.ok("cap", "set", "host", "auto") == "host (agents): cap auto (now 6), was 3 (built-in)\n"
    assert cli.limit("agents", f"host:{cli.gate.host}") == 6
    assert caps(cli)["agents", "host"]["auto"] is True


def test_c2_an_own_environment_above_the_new_cap_is_pointed_out(cli: Cli):
    cli.env("FLEETGATE_AGENTS", "host=9")
    cli.env("AIDEVOPS_OPUS_CONCURRENCY_CAP", "6")
    assert "note: FLEETGATE_AGENTS in this environment sets 9" in cli.ok("cap", "set", "host", "5")
    assert "note: AIDEVOPS_OPUS_CONCURRENCY_CAP in this environment sets 6" in cli.ok(
        "cap", "set", "*/claude-opus-*", "2"
    )
    assert "note" not in cli.ok("cap", "set", "umans", "2", "--kind", "requests")


@pytest.mark.parametrize(
    "command",
    [
        ("cap", "set", "host", "5"),
        ("cap", "rm", "host"),
        ("cap", "reset", "umans"),
        ("cap", "import", "caps.conf"),
        ("cooldown", "umans", "1s"),
        ("pause", "umans"),
        ("resume", "umans"),
        ("config", "apply", "other.toml"),
    ],
)
def test_c2_what_a_person_was_promised_is_synced_to_disk(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
):
    (cli.folder / "caps.conf").write_text("opus-4-6=4\n")
    (cli.folder / "other.toml").write_text("[agents]\nhost = 7\n")
    cli.ok("cap", "set", "umans", "4", "--kind", "requests")
    if command[0] == "resume":
        cli.ok("pause", "umans")
    begun = []
    begin = SqliteLog.begin

    def noted(log: SqliteLog, *, durable: bool = False) -> None:
        begun.append(durable)
        begin(log, durable=durable)

    monkeypatch.setattr(SqliteLog, "begin", noted)
    cli.ok(*command)
    assert begun == [True]


# Removing and resetting.


def test_a12_removing_a_cap_admits_everybody_and_ends_its_pause(cli: Cli):
    cli.configure("[requests]\numans = 1\n")
    cli.occupy("umans/coder", kind="requests")
    waiting = [cli.stand("umans/coder", kind="requests") for _ in range(2)]
    cli.ok("pause", "umans")
    assert cli.ok("cap", "rm", "umans") == (
        "umans (requests): no cap, was 1 (file); 2 waiting started\n"
        "this hides 1 from the file; `fleetgate cap reset umans` restores it\n"
    )
    assert all(ident in cli.state.leases for ident in waiting)
    line = caps(cli)["requests", "umans"]
    assert (line["cap"], line["unlimited"], line["source"]) == (None, True, "run time")
    assert line["hidden"] == [{"source": "file", "cap": 1}]


def test_c4_a_built_in_cap_can_be_removed(cli: Cli):
    for _ in range(3):
        cli.occupy()
    waits = cli.stand()
    assert cli.ok("cap", "rm", "host") == "host (agents): no cap, was 3 (built-in); 1 waiting started\n"
    assert waits in cli.state.leases


def test_l1_removing_a_cap_twice_is_harmless(cli: Cli):
    cli.ok("cap", "rm", "host")
    before = cli.length()
    assert cli.ok("cap", "rm", "host") == "host (agents): has no cap (unchanged)\n"
    assert cli.length() == before


def test_c2_reset_returns_to_the_file_and_then_to_what_is_built_in(cli: Cli):
    cli.configure("[agents]\nhost = 7\n")
    cli.ok("cap", "set", "host", "9")
    assert cli.ok("cap", "reset", "host") == "host (agents): back to cap 7 (file)\n"
    cli.ok("cap", "rm", "host")
    told = cli.json("cap", "reset", "host")
    assert (told["cap"], told["source"], told["entered"]) == (7, "file", 0)
    cli.ok("cap", "set", "*/claude-opus-*", "1")
    assert cli.ok("cap", "reset", "*/claude-opus-*") == "*/claude-opus-* (agents): back to cap 4 (built-in)\n"


def test_c2_reset_forgets_a_cooldown_too_and_finds_the_kind_that_was_set(cli: Cli):
    cli.ok("cooldown", "openrouter", "1s", "--kind", "agents")
    assert cli.ok("cap", "reset", "openrouter") == "openrouter (agents): back to no cap\n"
    assert not cli.state.rules.runtime


def test_q1_reset_of_what_was_never_set_says_what_was(cli: Cli):
    assert "; there are no run-time values" in cli.refused("cap", "reset", "host")
    cli.ok("cap", "set", "umans", "4", "--kind", "requests")
    assert "nothing was set at run time for 'host' (agents); there are values for: umans (requests)" in cli.refused(
        "cap", "reset", "host"
    )


# Listing.


def test_c4_without_any_config_the_built_in_caps_are_listed(cli: Cli):
    assert cli.ok("cap", "ls").splitlines() == [
        "KIND    SELECTOR         CAP  COOLDOWN  ON 429  NAME  SOURCE",
        "agents  */claude-opus-*    4  0s        pause   opus  built-in",
        "agents  host               3  0s                      built-in",
    ]


def test_c2_the_list_says_where_each_cap_comes_from_and_what_it_hides(cli: Cli):
    cli.configure('[agents]\nhost = 3\n[requests]\numans = { cap = 4, cooldown = "350ms", name = "u" }\nother = 2\n')
    cli.ok("cap", "set", "host", "5")
    cli.ok("cap", "set", "umans", "4", "--kind", "requests", "--cooldown", "1s")
    cli.env("FLEETGATE_AGENTS", "host=9,mine/*=2")
    listed = caps(cli)
    assert {key: line["source"] for key, line in listed.items()} == {
        ("agents", "*/claude-opus-*"): "built-in",
        ("agents", "host"): "environment",
        ("agents", "mine/*"): "environment",
        ("requests", "other"): "file",
        ("requests", "umans"): "run time",
    }
    assert (listed["agents", "host"]["cap"], listed["agents", "host"]["variable"]) == (9, "FLEETGATE_AGENTS")
    assert listed["agents", "host"]["hidden"] == [{"source": "run time", "cap": 5}, {"source": "file", "cap": 3}]
    assert listed["requests", "umans"]["hidden"] == [{"source": "file", "cooldown_ms": 350}]
    assert listed["requests", "umans"]["name"] == "u"
    assert listed["requests", "other"]["hidden"] == []
    out = cli.ok("cap", "ls")
    assert "run time: 5; file: 3" in out
    assert "file: cooldown 350ms" in out


def test_c3_the_opus_variable_is_listed_over_every_agents_cap_on_opus(cli: Cli):
    cli.configure('[agents]\n"anthropic/claude-opus-*" = 4\n"anthropic/claude-sonnet-*" = 9\n')
    cli.env("AIDEVOPS_OPUS_CONCURRENCY_CAP", "6")
    listed = caps(cli)
    assert listed["agents", "anthropic/claude-opus-*"]["cap"] == 6
    assert listed["agents", "anthropic/claude-opus-*"]["variable"] == "AIDEVOPS_OPUS_CONCURRENCY_CAP"
    assert listed["agents", "*/claude-opus-*"]["cap"] == 6
    assert listed["agents", "anthropic/claude-sonnet-*"]["cap"] == 9


# Importing.

BOTH_FORMATS = """\
# dispatch-model-caps.conf
opus-4-6=4
export SONNET_CONCURRENCY_CAP="24"   # the other format
"""


def test_c5_both_formats_are_imported_and_what_was_set_is_printed(cli: Cli):
    (cli.folder / "caps.conf").write_text(BOTH_FORMATS)
    before = cli.length()
    assert cli.ok("cap", "import", "caps.conf") == (
        "*/claude-opus-4-6 (agents): cap 4\n*/claude-sonnet-* (agents): cap 24\n2 caps set from caps.conf\n"
    )
    assert [event.rule.cap for event in cli.events()[before:] if isinstance(event, ev.RuleSet)] == [4, 24]
    assert cli.json("cap", "import", "caps.conf")["caps"] == [
        {"selector": "*/claude-opus-4-6", "kind": "agents", "cap": 4},
        {"selector": "*/claude-sonnet-*", "kind": "agents", "cap": 24},
    ]


def test_c5_an_import_is_one_transaction(cli: Cli):
    (cli.folder / "caps.conf").write_text(BOTH_FORMATS)
    head = cli.gate.log.head()
    cli.ok("cap", "import", "caps.conf")
    after = cli.gate.log.head()
    assert head is not None and after is not None and after.commit == head.commit + 1  # noqa: PT018 - one thing


def test_c5_a_bad_line_is_named_with_its_number_and_nothing_is_imported(cli: Cli):
    (cli.folder / "caps.conf").write_text("opus-4-6=4\n\nsonnet-4-6=many\nhaiku=0\nwhat\n")
    told = cli.refused("cap", "import", "caps.conf", code=78)
    for line in ("caps.conf:3: ", "caps.conf:4: ", "caps.conf:5: "):
        assert line in told
    assert "valid is" in told


def test_c5_an_import_admits_who_fits(cli: Cli):
    cli.ok("cap", "set", "host", "50")
    for _ in range(4):
        cli.occupy(OPUS)
    cli.stand(OPUS)
    (cli.folder / "caps.conf").write_text("OPUS_CONCURRENCY_CAP=5\n")
    assert cli.ok("cap", "import", "caps.conf").endswith("1 cap set from caps.conf; 1 waiting started\n")


def test_c5_a_file_of_comments_sets_nothing(cli: Cli):
    (cli.folder / "caps.conf").write_text("# none yet\n")
    before = cli.length()
    assert cli.ok("cap", "import", "caps.conf") == "caps.conf sets no caps\n"
    assert cli.length() == before


def test_c5_a_dash_reads_standard_input(cli: Cli, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"opus=2\n")))
    assert cli.ok("cap", "import", "-").startswith("*/claude-opus-* (agents): cap 2\n")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"opus=\xff\xfe\n", "is not UTF-8"),
        (b"#" * (1 << 20) + b"#\n", "is larger than 1 MiB"),
    ],
)
def test_q1_a_file_that_cannot_be_read_imports_nothing(cli: Cli, content: bytes | None, sentence: str):
    if content is not None:
        (cli.folder / "caps.conf").write_bytes(content)
    assert sentence in cli.refused("cap", "import", "caps.conf", code=78)
    assert "Is a directory" in cli.refused("cap", "import", ".", code=78)
