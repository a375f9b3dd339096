"""What agents report about their own usage (rule U2): real output and real session files, moved where they belong."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetgate.core.usage import RECORD, Usage
from fleetgate.signals.agents import agent_for
from fleetgate.signals.agents.usage import records_of
from fleetgate.signals.agents.usage.records import AgentStart
from fleetgate.signals.agents.usage.reports import ModelUsage, RecordedUsage, RecordSum, total_of, usage_of
from fleetgate.signals.agents.usage.session_files import usage_since
from fleetgate.signals.output_buffers import MarkedLines
from tests.fixtures.agents.reading import (
    AIDER,
    ALL,
    CLAUDE,
    CLAUDE_TEXT,
    CODEX,
    FOLDER,
    GEMINI,
    GEMINI_JSON,
    OPENCODE,
    OPENCODE_TEXT,
    lines,
    reader,
    text,
)

MADE = 1_794_980_000_000  # before all session files but one
FIRST_ENDED = 1_794_985_040_000  # in those called `resumed`, the second run began after this
CODEX_FIRST_ENDED = 1_794_985_063_000
NOW = 1_794_990_000_000


def used(argv: list[str], out: bytes) -> list[ModelUsage] | None:
    return reader(argv, out).used()


def recorded(case: str) -> bytes:
    return (FOLDER / f"{case}.out").read_bytes()


# --- output


@pytest.mark.parametrize(
    ("argv", "case", "model", "want"),
    [
        (CLAUDE, "claude_ok", "claude-opus-4-8", Usage(2, 20, 0, 0, 18, 550, RECORD)),
        (
            [*CLAUDE[:3], "--output-format", "json"],
            "claude_json_ok",
            "claude-sonnet-5",
            Usage(2, 20, 0, 0, 18, 330, RECORD),
        ),
        (
            [*CLAUDE[:3], "--output-format", "json", "--verbose"],
            "claude_json_verbose_ok",
            "claude-sonnet-5",
            Usage(2, 20, 0, 0, 18, 330, RECORD),
        ),
        (CODEX, "codex_ok", "", Usage(1, 2, 0, 0, 2, None, RECORD)),
        (GEMINI, "gemini_ok", "gemini-2.5-pro", Usage(1, 2, 0, 0, 2, None, RECORD)),
        (GEMINI_JSON, "gemini_json_ok", "gemini-2.5-pro", Usage(2, 2, 0, 0, 2, None, RECORD)),
        (AIDER, "aider_ok", "", Usage(1, 2400, 0, 0, 16, 6100, RECORD)),
    ],
)
def test_u2_the_output_of_a_real_agent_tells_what_it_used(argv: list[str], case: str, model: str, want: Usage):
    assert used(argv, recorded(case)) == [ModelUsage(model, want)]


def test_u2_a_refused_run_used_nothing_which_is_known():
    assert used(CLAUDE, recorded("claude_529")) == [ModelUsage("", Usage(source=RECORD))]


def test_u2_of_a_resumed_session_the_result_tells_only_the_new_part():
    resumed = [CLAUDE[0], "--resume", "4bda3044", *CLAUDE[1:]]
    want = [ModelUsage("claude-opus-4-6", Usage(1, 12, 0, 0, 4, 160, RECORD))]
    assert used(resumed, recorded("usage_claude_resumed")) == want
    old = {**json.loads(recorded("usage_claude_resumed"))}
    del old["model_usage_since_last_result"]
    want = [ModelUsage("claude-opus-4-6", Usage(1, 12, 0, 0, 4, None, RECORD))]
    assert used(resumed, lines(old)) == want, "an older version tells the new part without its cost"


def test_u2_of_several_results_in_one_run_each_adds_what_is_new():
    first = json.loads(recorded("usage_claude_resumed"))
    second = {**first, "uuid": "another"}
    assert used(CLAUDE, lines(first, first, second)) == [
        ModelUsage("claude-opus-4-6", Usage(2, 24, 0, 0, 8, 320, RECORD))
    ], "the same result twice counts once"


def test_u2_codex_that_resumes_reports_the_whole_session_in_its_output_which_is_not_believed():
    assert used([*CODEX[:2], "resume", "some-id", *CODEX[2:]], recorded("codex_ok")) is None


def step(ident: str, cost: float = 0.25, **tokens: object) -> dict[str, object]:
    part = {"id": ident, "type": "step-finish", "tokens": tokens, "cost": cost}
    return {"type": "step_finish", "timestamp": 1, "sessionID": "ses_1", "part": part}


def test_u2_every_step_of_opencode_counts_once_however_much_it_prints_between_them():
    cache = {"read": 7, "write": 3}
    noise = lines({"type": "text", "sessionID": "ses_1", "part": {"text": "x" * 1000}}) * 500
    out = lines(step("a", input=10, output=5, reasoning=2, cache=cache)) + noise
    out += lines(step("b", total=22, input=10, output=5, reasoning=2, cache=cache))
    out += lines(step("b", total=22, input=10, output=5, reasoning=2, cache=cache))
    (part,) = used(OPENCODE, out) or []
    assert part.usage == Usage(2, 20, 14, 6, 12, 500_000, RECORD), (
        "reasoning is output; of `b` the total has none beside"
    )


def test_u2_a_cost_of_nothing_for_some_tokens_is_not_known():
    (part,) = used(OPENCODE, lines(step("a", cost=0, input=10, output=5))) or []
    assert part.usage.cost is None
    (free,) = used(OPENCODE, lines(step("a", cost=0, input=0, output=0))) or []
    assert free.usage.cost == 0


def test_u2_aider_tells_tokens_of_a_cache_and_a_cost_only_where_it_knows_one():
    out = text(
        "Tokens: 12k sent, 2.0k cache write, 8.5k cache hit, 1.2k received. Cost: $0.02 message, $0.05 session.",
        "Tokens: 593 sent, 9 received.",
        "she said: Tokens: 5 sent, 5 received.",
    )
    (part,) = used(AIDER, out) or []
    assert part.usage == Usage(2, 1500 + 593, 8500, 2000, 1209, 20_000, RECORD)


@pytest.mark.parametrize("argv", ALL, ids=lambda argv: " ".join(argv))
def test_u2_an_agent_that_reports_nothing_used_nothing_that_is_known(argv: list[str]):
    assert used(argv, text("hello", "world")) is None


@pytest.mark.parametrize("argv", [CLAUDE_TEXT, OPENCODE_TEXT], ids=lambda argv: argv[0])
def test_u2_records_in_the_text_of_an_agent_are_not_its_own(argv: list[str]):
    assert used(argv, recorded("claude_ok") + lines(step("a", input=10, output=5))) is None


def test_u2_what_a_tool_prints_inside_of_a_record_is_no_record():
    inner = recorded("claude_ok").decode().splitlines()[-1]
    said = {"type": "user", "message": {"content": [{"type": "tool_result", "content": inner}]}}
    assert (
        used(CLAUDE, lines(said, {"type": "assistant", "text": {"type": "result", "usage": {"input_tokens": 5}}}))
        is None
    )


HOSTILE = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["usage", "modelUsage", "stats", "models", "tokens", "cost", "costUSD", "input_tokens", "input"]
            )
            | st.text(max_size=3),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@given(
    st.sampled_from([CLAUDE, CODEX, OPENCODE, GEMINI, GEMINI_JSON, AIDER]),
    st.sampled_from(["result", "turn.completed", "step_finish", "cost-state", "assistant", "event_msg"]),
    st.dictionaries(
        st.sampled_from(
            ["usage", "modelUsage", "model_usage_since_last_result", "stats", "part", "num_turns", "message", "payload"]
        ),
        HOSTILE,
        max_size=4,
    ),
)
def test_u2_whatever_a_record_says_no_count_is_wrong_and_nothing_raises(argv, kind, fields):
    line = json.dumps({"type": kind, **fields}, separators=(",", ":")).encode()
    for part in used(argv, line + b"\n" + line) or []:
        assert all(0 <= value <= 1 << 50 for value in (part.usage.calls, part.usage.tokens // 4, part.usage.cost or 0))
    records_of(agent_for(argv)).recorded(line)


def test_u2_sums_stay_bounded_however_often_a_hostile_agent_reports():
    total = RecordSum()
    for number in range(3000):
        part = ModelUsage(f"model-{number}", usage_of(1 << 40, output=1 << 41))
        total.add(RecordedUsage((part,)))
    found = total.by_model() or []
    assert len(found) <= 33
    assert total_of(found).input <= 1 << 50
    assert total_of(found).output == 0, "more than a count can be"


PIECES = st.lists(st.sampled_from([b"ab", b"MARK", b"MA", b"RK", b"\n", b"x\ny", b"MARK\n", b""]), max_size=14)


@given(PIECES, st.integers(3, 12))
def test_u2_marked_lines_are_the_same_however_the_output_was_cut(pieces, longest):
    whole = b"".join(pieces)
    want = [line for line in whole.split(b"\n") if b"MARK" in line and len(line) <= longest]
    for cuts in (pieces, [whole], [whole[at : at + 1] for at in range(len(whole))]):
        marked = MarkedLines((b"MARK",), longest)
        found = [line for piece in cuts for line in marked.feed(piece)]
        assert [*found, *marked.finish()] == want


# --- session files


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "my project.v2").mkdir()
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def start(home: Path, agent: str, since: int = MADE, *sessions: str, args: tuple[str, ...] = ()) -> AgentStart:
    return AgentStart(args, {"HOME": str(home)}, str(home.parent / "my project.v2"), since, sessions)


def since(home: Path, agent: str, since: int = MADE, *sessions: str, args: tuple[str, ...] = ()) -> Usage | None:
    found = usage_since(records_of(agent_for([agent])), start(home, agent, since, *sessions, args=args)).by_model()
    return None if found is None else total_of(found)


def kept(home: Path, case: str, name: str = "one", text: str | None = None) -> Path:
    """A session's file where its agent keeps it."""
    folder = home.parent / "my project.v2"
    if case.startswith("claude"):
        place = home / ".claude" / "projects" / re.sub(r"[^A-Za-z0-9]", "-", str(folder))
    elif case.startswith("codex"):
        day = datetime.fromtimestamp(MADE / 1000, UTC).astimezone()
        place = home / ".codex" / "sessions" / f"{day:%Y/%m/%d}"
    else:
        place = home / ".gemini" / "tmp" / "my-project" / "chats"
        (home / ".gemini").mkdir(exist_ok=True)
        (home / ".gemini" / "projects.json").write_text(json.dumps({"projects": {str(folder): "my-project"}}))
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"{name}.jsonl"
    told = (FOLDER / "sessions" / f"{case}.jsonl").read_text("utf-8") if text is None else text
    path.write_text(told.replace("/home/ada/project", str(folder)), "utf-8")
    os.utime(path, ns=(NOW * 1_000_000, NOW * 1_000_000))
    return path


def test_u2_of_a_claude_session_all_counts_and_of_a_resumed_one_the_new_part(home: Path):
    kept(home, "claude_resumed")
    assert since(home, "claude") == Usage(2, 24, 0, 0, 8, 320, RECORD)
    assert since(home, "claude", FIRST_ENDED) == Usage(1, 12, 0, 0, 4, 160, RECORD)
    assert since(home, "claude", NOW - 1) is None


def test_u2_a_claude_that_was_killed_has_no_total_and_its_answers_count_once_each(home: Path):
    rows = (FOLDER / "sessions" / "claude_resumed.jsonl").read_text().splitlines(keepends=True)
    answers = [row for row in rows if '"type":"assistant"' in row]
    early = answers[1].replace('"output_tokens":4', '"output_tokens":1')
    kept(home, "claude_resumed", text="".join([*rows[:4], early, answers[1], early]))
    assert since(home, "claude", FIRST_ENDED) == Usage(1, 12, 0, 0, 4, None, RECORD)


def test_u2_answers_of_claudes_helpers_count_and_those_that_are_in_two_files_count_once(home: Path):
    rows = (FOLDER / "sessions" / "claude_resumed.jsonl").read_text().splitlines(keepends=True)
    answers = [row for row in rows if '"type":"assistant"' in row]
    main = kept(home, "claude_resumed", text=answers[0])
    helpers = main.with_suffix("") / "subagents"
    helpers.mkdir(parents=True)
    (helpers / "agent-1.jsonl").write_text("".join(answers))
    assert since(home, "claude") == Usage(2, 24, 0, 0, 8, None, RECORD)


def test_u2_where_two_sessions_were_written_only_one_that_is_known_counts(home: Path):
    kept(home, "claude_resumed", "one")
    kept(home, "claude_resumed", "two")
    assert since(home, "claude") is None
    assert since(home, "claude", MADE, "two") == Usage(2, 24, 0, 0, 8, 320, RECORD)


def test_u2_claude_writes_down_the_session_of_a_process(home: Path):
    (home / ".claude" / "sessions").mkdir(parents=True)
    (home / ".claude" / "sessions" / "4711.json").write_text('{"pid":4711,"sessionId":"5a120225-b82b"}')
    agent, environ = records_of(agent_for(["claude"])), {"HOME": str(home)}
    assert agent.session_of(environ, 4711) == "5a120225-b82b"
    assert agent.session_of(environ, 4712) == ""
    (home / ".claude" / "sessions" / "4712.json").write_text('{"sessionId":"../../etc"}')
    assert agent.session_of(environ, 4712) == "", "it becomes part of a path"


def test_u2_of_a_codex_session_each_call_counts_once_and_of_a_resumed_one_the_new_part(home: Path):
    path = kept(home, "codex_resumed", "rollout-x-01a1ed72")
    assert since(home, "codex") == Usage(2, 24, 0, 0, 8, None, RECORD)
    assert since(home, "codex", CODEX_FIRST_ENDED) == Usage(1, 12, 0, 0, 4, None, RECORD)
    rows = path.read_text().splitlines(keepends=True)
    counts = [row for row in rows if '"token_count"' in row]
    again = counts[0].replace("06:57:42", "06:57:43")  # what stood before is told again after the resume
    kept(home, "codex_resumed", "rollout-x-01a1ed72", "".join([*rows[:4], again, *rows[4:], counts[1]]))
    assert since(home, "codex", CODEX_FIRST_ENDED) == Usage(1, 12, 0, 0, 4, None, RECORD)
    found = usage_since(records_of(agent_for(["codex"])), start(home, "codex")).by_model() or []
    assert [part.model for part in found] == ["gpt-5"]


def test_u2_a_codex_session_of_another_day_is_found_by_its_id(home: Path):
    path = kept(home, "codex_resumed", "rollout-x-01a1ed72")
    old = home / ".codex" / "sessions" / "2025" / "01" / "02"
    old.mkdir(parents=True)
    path.rename(old / path.name)
    assert since(home, "codex", CODEX_FIRST_ENDED) is None
    assert since(home, "codex", CODEX_FIRST_ENDED, "01a1ed72") == Usage(1, 12, 0, 0, 4, None, RECORD)


def test_u2_of_a_gemini_session_each_answer_counts(home: Path):
    kept(home, "gemini_ok", "session-2026-11-18T06-58-a00a1be8")
    assert since(home, "gemini") == Usage(1, 12, 0, 0, 4, None, RECORD)
    assert since(home, "gemini", MADE, "a00a1be8-db91-44af-99ee-d67d9ba08d28") == Usage(1, 12, 0, 0, 4, None, RECORD)
    assert since(home, "gemini", MADE, "ffffffff-db91") is None


def test_u2_of_aiders_history_the_last_chat_counts_and_its_analytics_log_is_exact(
    home: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TZ", "UTC")
    folder = home.parent / "my project.v2"
    (folder / ".aider.chat.history.md").write_bytes((FOLDER / "sessions" / "aider_history.md").read_bytes())
    (folder / "log.jsonl").write_bytes((FOLDER / "sessions" / "aider_analytics.jsonl").read_bytes())
    began = datetime(2026, 11, 18, 7, 3, 19).astimezone()  # aider writes the local time
    second = int(began.timestamp() * 1000) + 500
    for name in (".aider.chat.history.md", "log.jsonl"):
        os.utime(folder / name, ns=(NOW * 1_000_000, NOW * 1_000_000))
    assert since(home, "aider", second) == Usage(1, 593, 0, 0, 9, None, RECORD)
    assert since(home, "aider", second, args=("--analytics-log", "log.jsonl")) == Usage(1, 593, 0, 0, 9, None, RECORD)


def opencode_database(home: Path, folder: str, *roots: str) -> None:
    place = home / ".local" / "share" / "opencode"
    place.mkdir(parents=True)
    with sqlite3.connect(place / "opencode.db") as database:
        database.executescript(
            "CREATE TABLE session (id, parent_id, directory, time_updated);"
            "CREATE TABLE message (id, session_id, data);"
            "CREATE TABLE part (id, message_id, session_id, time_created, data);"
        )
        for root in roots:
            database.execute("INSERT INTO session VALUES (?, NULL, ?, ?)", (root, folder, NOW))
            database.execute("INSERT INTO session VALUES (?, ?, ?, ?)", (f"{root}-child", root, folder, NOW))
            for session in (root, f"{root}-child"):
                message = json.dumps({"role": "assistant", "providerID": "umans", "modelID": "coder"})
                database.execute("INSERT INTO message VALUES (?, ?, ?)", (f"msg-{session}", session, message))
                for at in (MADE - 5, NOW):
                    data = '{"type":"step-finish","tokens":{"input":12,"output":4},"cost":0.5}'
                    row = (f"{session}-{at}", f"msg-{session}", session, at, data)
                    database.execute("INSERT INTO part VALUES (?, ?, ?, ?, ?)", row)
    database.close()


def test_u2_of_opencodes_database_the_steps_of_a_session_and_of_its_helpers_count(home: Path):
    opencode_database(home, str(home.parent / "my project.v2"), "ses_1")
    assert since(home, "opencode") == Usage(2, 24, 0, 0, 8, 1_000_000, RECORD)
    found = usage_since(records_of(agent_for(["opencode"])), start(home, "opencode")).by_model() or []
    assert [part.model for part in found] == ["umans/coder"]


def test_u2_of_two_opencode_sessions_only_one_that_is_known_counts(home: Path):
    opencode_database(home, str(home.parent / "my project.v2"), "ses_1", "ses_2")
    assert since(home, "opencode") is None
    assert since(home, "opencode", MADE, "ses_2") == Usage(2, 24, 0, 0, 8, 1_000_000, RECORD)


def test_u2_a_broken_database_tells_nothing(home: Path):
    place = home / ".local" / "share" / "opencode"
    place.mkdir(parents=True)
    (place / "opencode.db").write_text("no database")
    assert since(home, "opencode") is None


@pytest.mark.parametrize("agent", ["claude", "codex", "gemini", "aider", "opencode", "sh"])
def test_u2_without_a_home_nothing_is_known(agent: str, tmp_path: Path):
    assert usage_since(records_of(agent_for([agent])), AgentStart((), {}, str(tmp_path), MADE)).by_model() is None


def test_u2_a_link_or_a_pipe_in_place_of_a_session_file_is_not_read(home: Path, tmp_path: Path):
    path = kept(home, "claude_resumed")
    path.rename(tmp_path / "elsewhere.jsonl")
    path.symlink_to(tmp_path / "elsewhere.jsonl")
    assert since(home, "claude", MADE, "one") is None
    path.unlink()
    os.mkfifo(path)
    assert since(home, "claude", MADE, "one") is None
