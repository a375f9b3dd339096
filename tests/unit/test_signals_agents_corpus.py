"""The corpus: every message of every agent, where the agent says it itself, and where somebody else does (S1, S2)."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.fixtures.agents.reading import (
    AIDER,
    ALL_WORDS,
    CLAUDE,
    CLAUDE_TEXT,
    CODEX,
    CODEX_TEXT,
    GEMINI,
    GEMINI_JSON,
    GEMINI_TEXT,
    MESSAGES,
    OPENCODE,
    OPENCODE_TEXT,
    RECORDS,
    SCRIPT,
    TRANSCRIPTS,
    WORK,
    Transcript,
    check,
    claude_end,
    judged,
    lines,
    reader,
    said_by,
    text,
)

RECORDED = 1_794_775_800_000  # when the transcripts were made
WORDS = pytest.mark.parametrize("words", ALL_WORDS)


@pytest.fixture(autouse=True)
def _in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Some agents name times in the local zone."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def each(agent: str):
    said = said_by(agent)
    return pytest.mark.parametrize("want", said, ids=[message["message"][:60] for message in said])


# --- what agents say themselves --------------------------------------------------------------------------------


@pytest.mark.parametrize("run", TRANSCRIPTS, ids=[run.case for run in TRANSCRIPTS])
def test_s1_a_run_of_a_real_agent_has_the_outcome_of_how_it_ended(run: Transcript):
    read = reader(run.argv, run.out, run.err, RECORDED)
    found = read.judge(run.exit_code, run.signal)
    assert (found.kind, found.scope, found.family) == (run.kind, run.scope, run.family), found
    assert found.wait_ms == (None if run.wait_s is None else run.wait_s * 1000)
    assert read.activity == run.activity
    assert read.stale_session == run.case.endswith("_stale")


def test_s1_the_corpus_has_all_agents_and_all_outcomes_that_they_can_have():
    assert {message["agent"] for message in MESSAGES} == {"claude", "opencode", "codex", "aider", "gemini", "generic"}
    kinds = {message["kind"] for message in MESSAGES}
    assert kinds == {"rate_limited", "usage_window", "quota", "overloaded", "auth", "server_error", "local_error"}


@each("claude")
def test_s1_claude_says_it_in_its_result_record(want):
    check(judged(CLAUDE, claude_end(want["message"], is_error=True)), want)


@each("claude")
def test_s1_claude_says_it_in_an_assistant_record_with_an_error(want):
    message = {"model": "<synthetic>", "content": [{"type": "text", "text": want["message"]}]}
    record = {"type": "assistant", "message": message, "error": "unknown", "is_api_error_message": True}
    check(judged(CLAUDE, lines(record)), want)


@each("claude")
@pytest.mark.parametrize("stream", [1, 2])
def test_s1_claude_says_it_as_text_on_either_stream(want, stream):
    said = text(want["message"])
    check(judged(CLAUDE_TEXT, said if stream == 1 else b"", said if stream == 2 else b""), want)


@each("opencode")
def test_s1_opencode_says_it_in_an_error_record(want):
    error = {"name": "UnknownError", "data": {"message": want["message"]}}
    check(judged(OPENCODE, lines({"type": "error", "sessionID": "ses_1", "error": error})), want)


@each("opencode")
def test_s1_opencode_says_it_as_its_last_line(want):
    said = text("> build · coder", "\x1b[91m\x1b[1mError: \x1b[0m" + want["message"], "")
    check(judged(OPENCODE_TEXT, err=said), want)


@each("codex")
def test_s1_codex_says_it_in_an_error_record_and_when_its_turn_failed(want):
    check(judged(CODEX, lines({"type": "error", "message": want["message"]})), want)
    check(judged(CODEX, lines({"type": "turn.failed", "error": {"message": want["message"]}})), want)


@each("codex")
def test_s1_codex_says_it_as_its_last_line(want):
    said = text("exec", "cat log", "ERROR: You've hit your usage limit.", "", "ERROR: " + want["message"])
    check(judged(CODEX_TEXT, err=said), want)
    check(judged(CODEX_TEXT, err=said + text("tokens used", "1,234")), want)


@each("aider")
@pytest.mark.parametrize("exit_code", [0, 1])
def test_s1_aider_says_it_and_exits_0(want, exit_code):
    said = text("Aider v0.86.2", "", want["message"], "")
    check(judged(AIDER, said, exit_code=exit_code), want)


@each("gemini")
def test_s1_gemini_says_it_in_its_result_record(want):
    record = {"type": "result", "status": "error", "error": {"type": "unknown", "message": want["message"]}}
    check(judged(GEMINI, lines(record)), want)


@each("gemini")
def test_s1_gemini_says_it_in_the_one_object_on_stderr(want):
    message = want["message"].replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    said = (
        f'Some warning\n{{\n  "session_id": "1",\n  "error": {{\n    "message": "{message}",\n    "code": 1\n  }}\n}}\n'
    )
    check(judged(GEMINI_JSON, err=said.encode()), want)


@each("generic")
def test_s1_any_other_command_says_it_as_one_of_its_last_lines(want):
    check(judged(SCRIPT, err=text("Traceback (most recent call last):", want["message"], "giving up", "bye")), want)


# --- what others say -------------------------------------------------------------------------------------------


@WORDS
@pytest.mark.parametrize("argv", RECORDS, ids=lambda argv: str(argv[0]))
def test_s2_words_in_a_tool_result_a_tool_input_or_prose_are_not_an_outcome(argv, words):
    work = WORK[argv[0]](words)
    read = reader(argv, work, text(""))
    assert read.judge(0, None).kind == "ok"
    assert read.limited is None
    assert read.judge(1, None).kind == "local_error"
    assert read.judge(None, 9).kind == "local_error"


@WORDS
def test_s2_words_in_the_result_of_a_good_run_are_not_an_outcome(words):
    assert judged(CLAUDE, claude_end(words), exit_code=0).kind == "ok"
    assert judged(CLAUDE_TEXT, text(words), exit_code=0).kind == "ok"


@WORDS
def test_s2_words_that_a_tool_prints_between_the_lines_of_a_text_are_not_an_outcome(words):
    printed = ("cat log", words, "ERROR: " + words)
    said = text("user", "hi", "exec", *printed, "", "codex", words, "That is all.", "tokens used", "12")
    assert judged(CODEX_TEXT, text(words), said, exit_code=0).kind == "ok"
    assert judged(CODEX_TEXT, text(words), said, exit_code=1).kind == "local_error"
    assert judged(CODEX_TEXT, text(words), said[:-10], exit_code=None, signal=9).kind == "local_error"
    said = text("$ cat log", words, "Error: " + words, "", "\x1b[91m\x1b[1mError: \x1b[0mModel not found")
    assert judged(OPENCODE_TEXT, text(words), said, exit_code=0).kind == "ok"
    assert judged(OPENCODE_TEXT, text(words), said, exit_code=1).kind == "local_error"


@WORDS
def test_s2_words_in_the_prose_of_aider_come_before_its_count_of_tokens(words):
    said = text(words, "litellm.RateLimitError: AnthropicException - slow", "", "Tokens: 2.4k sent, 16 received.", "")
    assert judged(AIDER, said, exit_code=0).kind == "ok"
    cached = text(words, "Tokens: 11k sent, 10k cache write, 1.2k cache hit, 16 received. Cost: $0.1 message.")
    assert judged(AIDER, cached, exit_code=0).kind == "ok"


@WORDS
def test_s2_words_in_the_answer_of_gemini_are_not_an_outcome(words):
    answer = lines(words).decode().strip()
    said = f'{{\n  "session_id": "1",\n  "response": {answer},\n  "stats": {{\n    "models": {{}}\n  }}\n}}'
    assert judged(GEMINI_JSON, said.encode(), exit_code=0).kind == "ok"
    assert judged(GEMINI_TEXT, text(words), text(f"Error executing tool read_file: {words}"), exit_code=0).kind == "ok"


@WORDS
def test_s2_words_of_any_other_command_count_only_as_an_error_on_stderr_and_at_the_end(words):
    assert judged(SCRIPT, text(words), text(words), exit_code=0).kind == "ok"
    assert judged(SCRIPT, text(words), exit_code=1).kind == "local_error"
    assert judged(SCRIPT, err=text(words, *(f"step {number}" for number in range(20)))).kind == "local_error"
    assert (
        judged(SCRIPT, err=text(f"+    {words}", f'  say("{words}")', f"found {words} in a.py")).kind == "local_error"
    )


@pytest.mark.parametrize("words", [words for words in ALL_WORDS if words not in {m["message"] for m in MESSAGES}])
def test_s2_what_is_no_message_of_an_agent_is_a_local_error_in_its_own_error_too(words):
    error = {"name": "UnknownError", "data": {"message": words}}
    for argv, out, err in (
        (CLAUDE, claude_end(words, is_error=True), b""),
        (CLAUDE_TEXT, text(words), text(words)),
        (OPENCODE, lines({"type": "error", "sessionID": "ses_1", "error": error}), b""),
        (OPENCODE_TEXT, b"", text("Error: " + words)),
        (CODEX, lines({"type": "turn.failed", "error": {"message": words}}), b""),
        (CODEX_TEXT, b"", text("ERROR: " + words)),
        (GEMINI, lines({"type": "result", "status": "error", "error": {"message": words}}), b""),
        (AIDER, text(words), text(words)),
        (SCRIPT, text(words), text(words)),
    ):
        assert judged(argv, out, err).kind == "local_error", argv
