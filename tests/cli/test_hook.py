"""`fleetgate hook`: what the plugins of agents report, and that it never disturbs an agent."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cli.command_line import Cli, Said, opened

OPUS = "claude-opus-4-6"


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with opened(monkeypatch, capsys) as cli:
        yield cli


@pytest.fixture(autouse=True)
def nothing_of_a_real_agent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ANTHROPIC_MODEL", "ANTHROPIC_BASE_URL", "CLAUDE_PID", "CLAUDE_CONFIG_DIR", "FLEETGATE_LEASE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def hook(cli: Cli, agent: str, said: object) -> Said:
    """The command with this on stdin; whatever happens, it must neither fail nor print anything on stdout."""
    data = said if isinstance(said, bytes) else json.dumps(said).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
        answer = cli("hook", agent)
    assert (answer.code, answer.out) == (0, ""), answer
    return answer


def failure(text: str, error: str = "rate_limit", **more: str) -> dict[str, str]:
    return {"hook_event_name": "StopFailure", "error": error, "last_assistant_message": text, **more}


def transcript(path: Path, *records: dict[str, Any]) -> str:
    now = datetime.now(UTC).isoformat()
    path.write_text("".join(json.dumps({"type": "assistant", "timestamp": now, **record}) + "\n" for record in records))
    return str(path)


def answered(model: str) -> dict[str, Any]:
    return {"message": {"model": model, "content": [{"text": "Hello."}]}}


def backoffs(cli: Cli) -> dict[str, str]:
    return {backoff["key"]: backoff["reason"] for backoff in cli.json("backoff", "ls")["backoffs"]}


def test_the_model_that_answered_last_is_held_back(cli: Cli, tmp_path: Path):
    path = transcript(tmp_path / "s.jsonl", answered("claude-haiku-4-5"), answered(OPUS), answered("<synthetic>"))
    said = hook(cli, "claude", failure("API Error: 529 Overloaded", "server_error", transcript_path=path))
    assert said.err == f"fleetgate: anthropic/{OPUS} is held back: overloaded\n"
    assert backoffs(cli) == {f"anthropic/{OPUS}": "overloaded"}


def test_a_rate_limit_pauses_the_pool_that_the_model_is_in(cli: Cli, tmp_path: Path):
    cli.configure(f'[requests]\n"anthropic/{OPUS}" = 3\n')
    path = transcript(tmp_path / "s.jsonl", answered(OPUS))
    hook(cli, "claude", failure("API Error: Request rejected (429) · slow down", transcript_path=path))
    (paused,) = [pool for pool in cli.json("status")["pools"] if pool["paused"]]
    assert paused["pool"] == f"anthropic/{OPUS}"


def test_a_window_that_is_used_up_holds_back_its_family_until_it_opens(cli: Cli, tmp_path: Path):
    error = {"isApiErrorMessage": True, "error": "rate_limit", "apiErrorStatus": 429}
    words = {
        "message": {"model": "<synthetic>", "content": [{"text": "You've hit your Opus limit · resets 3pm (UTC)"}]}
    }
    path = transcript(tmp_path / "s.jsonl", answered(OPUS), {**error, **words})
    hook(cli, "claude", failure("You've hit your Opus limit", transcript_path=path))
    assert backoffs(cli) == {"anthropic/claude-opus-*": "usage_window"}


def test_the_account_is_the_one_whose_login_the_session_uses(cli: Cli, tmp_path: Path):
    cli.configure(f'[providers."anthropic@work"]\ncredential_file = "{tmp_path}/login/.credentials.json"\n')
    cli.env("CLAUDE_CONFIG_DIR", f"{tmp_path}/login")
    hook(cli, "claude", failure("You've hit your spend limit", "billing_error"))
    assert backoffs(cli) == {"anthropic@work": "quota"}


def test_a_longer_backoff_is_not_shortened(cli: Cli):
    cli.env("ANTHROPIC_MODEL", OPUS)
    cli.ok("backoff", "set", f"anthropic/{OPUS}", "overloaded", "2h")
    before = cli.length()
    said = hook(cli, "claude", failure("API Error: 529 Overloaded", "overloaded"))
    assert "held back already" in said.err
    assert cli.length() == before


@pytest.mark.parametrize(
    "said",
    [
        failure("API Error: 401 bad key", "authentication_failed"),  # the key may be another account's
        failure("API Error: 400 no", "invalid_request"),
        {"hook_event_name": "Stop"},
        {},
        b"",
        b"not JSON",
        b"[1]",
        failure("x" * 2_000_000),
    ],
)
def test_what_is_no_limit_reports_nothing(cli: Cli, said: object):
    before = cli.length()
    hook(cli, "claude", said)
    assert cli.length() == before


def test_under_fleetgate_run_nothing_is_reported_twice(cli: Cli):
    cli.env("FLEETGATE_LEASE", "k3v7q2mx9a")
    before = cli.length()
    assert hook(cli, "claude", failure("API Error: 529 Overloaded", "overloaded")).err == ""
    assert cli.length() == before


def test_a_store_that_cannot_be_used_does_not_disturb_the_agent(cli: Cli, tmp_path: Path):
    (tmp_path / "file").write_text("")
    cli.env("FLEETGATE_HOME", str(tmp_path / "file" / "s"))
    assert "not reported" in hook(cli, "claude", failure("API Error: 529 Overloaded", "overloaded")).err


def test_opencode_reports_the_response_that_it_got(cli: Cli):
    body = {"error": {"message": "Rate limit reached", "code": "rate_limit_exceeded"}}
    said = {"model": "umans/coder", "status": 429, "headers": {"Retry-After": "120"}, "body": json.dumps(body)}
    hook(cli, "opencode", said)
    assert backoffs(cli) == {"umans/coder": "rate_limited"}
    hook(cli, "opencode", {**said, "status": 401, "model": "groq/m"})
    hook(cli, "opencode", {**said, "model": "no model"})
    assert backoffs(cli) == {"umans/coder": "rate_limited"}
