"""`fleetgate digest`, and `fleetgate history --since` with a time (rule O7)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core.entities import Rule, Spec
from fleetgate.core.usage import RESPONSE, Usage
from tests.cli.command_line import Cli, opened

SONNET = "anthropic/claude-sonnet-4-6"


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with opened(monkeypatch, capsys) as cli:
        yield cli


def run(cli: Cli, ident: str, *ends: cmd.Command, model: str = SONNET, **more: Any) -> None:
    spec = Spec(models=(model,), host=cli.gate.host)
    begin = cmd.Acquire(ident, spec, cli.gate.me, command="opencode run -m {model} hi", **more)
    cli.gate.decide([begin, *ends])


def busy_day(cli: Cli) -> None:
    """Two runs that end well, one that fails, one that is stopped, one whose process is lost; limits and changes."""
    used = Usage(3, 1_000, 0, 0, 500, 310_000, RESPONSE)
    run(cli, "good-1", cmd.Release("good-1", usage=used))
    run(cli, "good-2", cmd.Release("good-2"))
    failed = cmd.Release("bad", "local_error", exit_code=3, evidence="generic.exit: exit 3")
    run(cli, "bad", failed, name="review")
    stopped = cmd.Release("stopped", "local_error", signal=15, evidence="stopped by alice@vm pid 7")
    run(cli, "stopped", cmd.Stop("stopped", "alice@vm pid 7"), stopped)
    run(cli, "lost", cmd.Claim("lost", "h|b|n|1|2"), cmd.Lost(("h|b|n|1|2",)))
    cli.gate.one(cmd.SetRule(Rule("requests", "umans", 4, on_429="step")))
    cli.gate.one(cmd.Report(kind="requests", target="umans", retry_after_ms=1000))
    run(cli, "limited", cmd.Release("limited", "rate_limited", evidence="claude.error: 429"), model="openai/gpt-5")


def test_o7_the_digest_tells_runs_failures_limits_cost_and_changes_on_one_screen(cli: Cli) -> None:
    busy_day(cli)
    out = cli.ok("digest")
    assert len(out.splitlines()) <= 24
    for said in (
        "6 runs: 2 ok, 1 local_error, 1 rate_limited, 1 stopped by alice@vm, 1 whose process was gone",
        "$0.31, 1.5k tokens in 3 calls",
        "failures 3",
        f"review: opencode run -m {SONNET} hi",
        "exit 3",
        "umans was rate-limited once, its limit lowered once",
        "openai/gpt-5 was backed off once (rate_limited)",
        "set at run time: umans (requests) cap 4",
    ):
        assert said in out, (said, out)


def test_o7_the_digest_as_json_has_every_failure_limit_and_change(cli: Cli) -> None:
    busy_day(cli)
    found = cli.json("digest", "--since", "1h")
    assert (found["runs"]["ended"], found["runs"]["ok"], found["runs"]["stopped"]) == (6, 2, {"alice@vm": 1})
    assert [(each["id"], each["name"], each["outcome"]) for each in found["failures"]] == [
        ("bad", "review", "local_error"),
        ("lost", None, "lost"),
        ("limited", None, "rate_limited"),
    ]
    assert {(each["what"], each["kind"], each["times"]) for each in found["limits"]} == {
        ("umans", "rate_limit", 1),
        ("openai/gpt-5", "backoff", 1),
    }
    assert [each["type"] for each in found["changes"]] == ["file_loaded", "rule_set"]
    assert found["usage"]["total"]["cost_usd"] == 0.31
    assert (found["complete"], found["running"], found["waiting"]) == (True, 0, 0)


def test_o7_a_digest_of_nothing_and_with_a_broken_config_says_so(cli: Cli) -> None:
    assert "no runs ended" in cli.ok("digest", "--since", "10m")
    assert "valid is RFC 3339" in cli.refused("digest", "--since", "soon")
    cli.config.write_text("[agents\n")
    said = cli("digest")
    assert said.code == 0
    assert "the config file is not valid" in said.err


def test_o7_history_since_a_time_begins_there_and_a_bare_number_is_a_sequence_number(cli: Cli) -> None:
    run(cli, "first", cmd.Release("first"))
    assert len(cli.ok("history", "--since", "10m").splitlines()) == 3
    assert len(cli.ok("history", "--since", "yesterday").splitlines()) == 3
    assert len(cli.ok("history", "--since", "1").splitlines()) == 2
    later = cli("history", "--since", "2999-01-01")
    assert (later.code, later.out) == (0, "")
    assert "no events since 2999-01-01" in later.err
    assert "today or yesterday" in cli.refused("history", "--since", "soon")
