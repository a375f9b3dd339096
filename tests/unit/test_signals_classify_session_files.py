"""What an agent on a terminal recorded about its end (rules R2, R4, S2): its real session files, moved in time."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fleetgate.signals.agents import agent_for
from fleetgate.signals.classify_session_files import judge_by_files
from fleetgate.signals.outcome import Outcome

SESSIONS = Path(__file__).parents[1] / "fixtures" / "agents" / "sessions"
MADE = 1_794_782_100_000  # just before all of them
RESET_MS = 1_794_789_401_000  # in claude_window
NOW = 1_794_782_300_000
OPUS = "anthropic/claude-opus-4-6"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder, and a working directory beside it."""
    (tmp_path / "my project.v2").mkdir()
    monkeypatch.chdir(tmp_path / "my project.v2")
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def text_of(case: str) -> str:
    return (SESSIONS / f"{case}.jsonl").read_text("utf-8").replace("/home/ada/project", os.getcwd())  # noqa: PTH109


def write(home: Path, case: str, name: str = "one", text: str | None = None) -> Path:
    """A session's file where the agent keeps it."""
    if case.startswith("claude"):
        folder = home / ".claude" / "projects" / re.sub(r"[^A-Za-z0-9]", "-", str(Path.cwd()))
    else:
        day = datetime.fromtimestamp(MADE / 1000, UTC).astimezone()
        folder = home / ".codex" / "sessions" / f"{day:%Y/%m/%d}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.jsonl"
    path.write_text(text_of(case) if text is None else text, "utf-8")
    os.utime(path, ns=(NOW * 1_000_000, NOW * 1_000_000))
    return path


def judged(home: Path, agent: str, since: int = MADE, now: int = NOW) -> Outcome | None:
    return judge_by_files(
        agent_for([agent]), {"HOME": str(home)}, since, now, OPUS if agent == "claude" else "openai/x"
    )


@pytest.mark.parametrize(
    ("case", "kind", "scope", "said"),
    [
        ("claude_401", "auth", "account", "401"),
        ("claude_529", "overloaded", "model", "529"),
        ("claude_window", "usage_window", "account", "5-hour limit"),
        ("codex_401", "auth", "account", "401 Unauthorized"),
        ("codex_429", "rate_limited", "model", "429 Too Many Requests"),
        ("codex_usage", "usage_window", "account", "hit your usage limit"),
    ],
)
def test_r4_the_refusal_that_ended_a_session_is_read_from_its_file(
    home: Path, case: str, kind: str, scope: str, said: str
):
    write(home, case)
    found = judged(home, case.partition("_")[0])
    assert found is not None
    assert (found.kind, found.scope) == (kind, scope)
    assert said in found.evidence


def test_s3_a_window_ends_when_the_file_says_whenever_it_is_read(home: Path):
    write(home, "claude_window")
    found = judged(home, "claude", now=RESET_MS - 60_000)
    assert found is not None
    assert found.wait_ms == pytest.approx(60_000, abs=1000)
    assert judged(home, "claude", now=RESET_MS + 1000) is None, "it is over"


@pytest.mark.parametrize("case", ["claude_ok", "codex_ok"])
def test_r4_a_session_that_ended_well_says_nothing(home: Path, case: str):
    write(home, case)
    assert judged(home, case.partition("_")[0]) is None


@pytest.mark.parametrize(("case", "well"), [("claude_401", "claude_ok"), ("codex_429", "codex_ok")])
def test_s2_a_refusal_after_which_the_agent_went_on_is_over(home: Path, case: str, well: str):
    agent = case.partition("_")[0]
    write(home, case, text=text_of(case) + text_of(well))
    assert judged(home, agent) is None
    write(home, case, text=text_of(well) + text_of(case))
    assert judged(home, agent) is not None


@pytest.mark.parametrize("case", ["claude_401", "codex_429"])
def test_s2_what_is_not_certain_does_not_count(home: Path, case: str):
    agent = case.partition("_")[0]
    assert judged(home, agent) is None, "there is no folder"
    path = write(home, case)
    assert judged(home, agent, since=NOW + 1) is None, "it was written before the start"
    assert judged(home, agent, now=NOW + 3_600_000) is None, "long ago"
    assert judged(home, agent, since=NOW - 1000) is None, "its records are older than the run: it was resumed"
    other = write(home, case, name="two")
    assert judged(home, agent) is None, "two sessions in one folder"
    other.unlink()
    elsewhere = home / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert judged(home, agent) is None, "a link"
    path.unlink()
    os.mkfifo(path)
    assert judged(home, agent) is None, "no file"
    path.unlink()
    write(home, case, text='{}\nnot json\n[1]\n{"timestamp": 7}\n{"timestamp": "soon"}\n\xff\n')
    assert judged(home, agent) is None
    assert judge_by_files(agent_for([agent]), {}, MADE, NOW) is None, "no home"


def test_s2_codex_a_session_in_another_folder_is_not_ours(home: Path):
    write(home, "codex_429", text=text_of("codex_429").replace(str(Path.cwd()), "/somewhere/else"))
    assert judged(home, "codex") is None


def test_s2_words_of_a_file_or_a_model_in_a_session_are_no_refusal(home: Path):
    words = "API Error: 429 rate limit; authentication failed; exceeded retry limit, last status: 429 Too Many Requests"
    write(home, "claude_ok", text=text_of("claude_ok").replace("word0", words))
    write(home, "codex_ok", text=text_of("codex_ok").replace("word0", words))
    assert judged(home, "claude") is None
    assert judged(home, "codex") is None


def test_s2_only_the_end_of_a_large_file_is_read(home: Path):
    filler = '{"timestamp":"2026-11-15T22:36:30.000Z","type":"user","message":"' + "x" * 1000 + '"}\n'
    write(home, "claude_401", text=text_of("claude_401") + filler * 400)
    assert judged(home, "claude") is None
    write(home, "claude_401", text=filler * 400 + text_of("claude_401"))
    assert judged(home, "claude") is not None


@pytest.mark.parametrize("agent", ["opencode", "gemini", "aider", "true"])
def test_r4_other_agents_keep_nothing_that_is_read(home: Path, agent: str):
    assert judged(home, agent) is None
