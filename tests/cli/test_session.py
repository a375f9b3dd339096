"""`fleetgate session` (rule R9), as a person uses it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleetgate.gate import agent_sessions
from tests.cli.command_line import Cli, opened

OPUS = "anthropic/claude-opus-4-6"


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with opened(monkeypatch, capsys) as cli:
        yield cli


def remember(cli: Cli, key: str, session: str, *, agent: str = "claude", model: str = OPUS) -> None:
    where = agent_sessions.place("h1", agent, model, key)
    cli.gate.decide([], side=[agent_sessions.remember(where, session)])


def test_r9_sessions_are_listed_by_what_they_are_remembered_by(cli: Cli) -> None:
    assert cli.ok("session", "ls") == "no sessions\n"
    assert cli.json("session", "ls") == {"sessions": []}
    remember(cli, "issue-7", "ses_1", model="anthropic@work/claude-opus-4-6")
    remember(cli, "issue-8", "ses_2", agent="codex", model="")
    listed = {each["key"]: each for each in cli.json("session", "ls")["sessions"]}
    used_at = listed["issue-7"].pop("used_at")
    assert used_at.endswith("Z")
    assert listed["issue-7"] == {
        "key": "issue-7",
        "agent": "claude",
        "provider": "anthropic",
        "account": "work",
        "host": "h1",
        "session": "ses_1",
    }
    assert (listed["issue-8"]["provider"], listed["issue-8"]["account"]) == (None, None)
    shown = cli.ok("session", "ls")
    assert "anthropic@work" in shown
    assert "ses_2" in shown


def test_r9_clearing_a_key_forgets_it_of_every_agent_and_nothing_else(cli: Cli) -> None:
    remember(cli, "issue-7", "ses_1")
    remember(cli, "issue-7", "ses_2", agent="codex")
    remember(cli, "issue-8", "ses_3")
    assert cli.json("session", "clear", "issue-7") == {"cleared": ["issue-7"]}
    assert [each["session"] for each in cli.json("session", "ls")["sessions"]] == ["ses_3"]
    assert cli.ok("session", "clear", "--all") == "cleared: issue-8\n"
    assert cli.ok("session", "clear", "--all") == "no sessions\n"


def test_r9_clearing_says_what_is_valid_and_changes_nothing(cli: Cli) -> None:
    remember(cli, "issue-7", "ses_1")
    assert "or --all" in cli.refused("session", "clear")
    assert "or --all" in cli.refused("session", "clear", "issue-7", "--all")
    assert "keys: issue-7" in cli.refused("session", "clear", "issue-9")
    assert len(cli.json("session", "ls")["sessions"]) == 1
