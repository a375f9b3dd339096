"""Environment over run time over file over built-in, as requests and people meet it (rules C2-C4)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from fleetgate.core import events as ev
from tests.cli.command_line import Cli, opened

OPUS = "anthropic/claude-opus-4-6"
NOW_MS = 1_700_000_000_000
FILE = """
[agents]
host = 50
"anthropic/claude-opus-*" = {}
"""


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with opened(monkeypatch, capsys) as cli:
        yield cli


def enter(cli: Cli) -> int:
    """How many opus agents are let in, one after another."""
    entered = 0
    while (said := cli("acquire", "-m", OPUS, "--no-wait", "--json", "--pid", str(os.getpid()))).code == 0:
        entered += 1
    assert said.code == 75
    assert said.json["reason"]["code"] == "opus_concurrency_cap"
    return entered


def release_all(cli: Cli) -> None:
    for ident in list(cli.state.leases):
        cli.ok("release", ident)


def opus(cli: Cli) -> dict[str, Any]:
    listed = cli.json("config", "show")["caps"]
    return next(line for line in listed if line["selector"] == "anthropic/claude-opus-*")


def test_c2_environment_over_run_time_over_file_over_built_in(cli: Cli):
    cli.ok("cap", "set", "host", "50")
    assert enter(cli) == 4  # built in
    release_all(cli)
    cli.configure(FILE.format(2))
    assert enter(cli) == 2
    assert (opus(cli)["cap"], opus(cli)["source"]) == (2, "file")
    cli.ok("cap", "set", "anthropic/claude-opus-*", "3")
    assert enter(cli) == 1
    assert (opus(cli)["cap"], opus(cli)["source"]) == (3, "run time")
    cli.env("FLEETGATE_AGENTS", "anthropic/claude-opus-*=5")
    assert enter(cli) == 2
    assert (opus(cli)["cap"], opus(cli)["source"]) == (5, "environment")
    assert opus(cli)["hidden"] == [{"source": "run time", "cap": 3}, {"source": "file", "cap": 2}]


def test_c2_an_override_from_the_environment_belongs_to_the_requests_that_have_it(cli: Cli):
    cli.configure(FILE.format(2))
    assert enter(cli) == 2
    cli.env("FLEETGATE_AGENTS", "anthropic/claude-opus-*=3")
    assert enter(cli) == 1
    cli.unset("FLEETGATE_AGENTS")
    assert enter(cli) == 0
    assert opus(cli)["cap"] == 2


def test_c3_the_opus_variable_lets_the_fifth_and_sixth_in_over_a_file_that_says_four(cli: Cli):
    cli.configure(FILE.format(4))
    assert enter(cli) == 4
    cli.env("AIDEVOPS_OPUS_CONCURRENCY_CAP", "6")
    assert enter(cli) == 2


def test_c2_an_edited_file_enters_once(cli: Cli):
    cli.configure(FILE.format(2))
    cli.configure(FILE.format(5))
    loaded = [event for event in cli.events() if isinstance(event, ev.FileLoaded)]
    for _ in range(3):
        cli.ok("cap", "ls")
    os.utime(cli.config, ns=(NOW_MS * 1_000_000, NOW_MS * 1_000_000))  # touched: the same content
    cli.ok("cap", "ls")
    assert [event for event in cli.events() if isinstance(event, ev.FileLoaded)] == loaded
    assert opus(cli)["cap"] == 5


def test_c2_reading_the_file_again_is_not_a_person_who_set_the_cap(cli: Cli):
    step = '[requests]\numans = {{ cap = {}, on_429 = "step" }}\n'
    cli.configure(step.format(4))
    cli.ok("report", "umans", "--rate-limited")
    assert cli.limit("requests", "umans") == 3
    cli.ok("cap", "ls")
    cli.configure("# a comment more\n" + step.format(4))
    assert cli.limit("requests", "umans") == 3
    cli.configure(step.format(5))  # this is
    assert cli.limit("requests", "umans") == 5


def test_c2_an_older_file_does_not_enter_until_somebody_applies_it(cli: Cli):
    cli.write(FILE.format(5), NOW_MS)
    cli.write(FILE.format(2), NOW_MS - 1)
    assert opus(cli)["cap"] == 5
    assert enter(cli) == 5
    release_all(cli)
    cli.ok("config", "apply")
    assert opus(cli)["cap"] == 2
    assert enter(cli) == 2


def test_c2_an_edited_file_stays_hidden_by_what_was_set_until_that_is_reset(cli: Cli):
    cli.configure(FILE.format(2))
    cli.ok("cap", "set", "anthropic/claude-opus-*", "3")
    cli.configure(FILE.format(7))
    assert opus(cli)["cap"] == 3
    (warning,) = cli.json("config", "show")["warnings"]
    assert "hidden by what was set at run time (file: 7)" in warning
    assert "`fleetgate cap reset 'anthropic/claude-opus-*' --kind agents` returns to the file" in warning
    cli.ok("cap", "reset", "anthropic/claude-opus-*")
    assert (opus(cli)["cap"], opus(cli)["source"]) == (7, "file")
    assert enter(cli) == 7


def test_c2_a_removed_cap_is_above_the_file_and_reset_brings_it_back(cli: Cli):
    cli.configure(FILE.format(1))
    cli.ok("cap", "rm", "anthropic/claude-opus-*")
    for _ in range(6):
        cli.occupy(OPUS)
    release_all(cli)
    cli.ok("cap", "reset", "anthropic/claude-opus-*")
    assert enter(cli) == 1


def test_c4_a_built_in_cap_applies_only_where_no_configured_selector_matches(cli: Cli):
    cli.configure('[agents]\nhost = 50\n"anthropic/claude-opus-*" = 6\n')
    assert enter(cli) == 6
    for _ in range(4):
        cli.occupy("bedrock/claude-opus-4-6")
    said = cli("acquire", "-m", "bedrock/claude-opus-4-6", "--no-wait")
    assert said.code == 75
    assert "this cap is built in: raise it with `fleetgate cap set '*/claude-opus-*' N`" in said.err
