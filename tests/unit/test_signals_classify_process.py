"""The reader: activity, limits while a process runs, and its verdict at the end (rules R2, R4, R5, R9, S2)."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetgate.signals.agents import agent_for
from fleetgate.signals.classify_process import Reader, judge_by_exit_only
from fleetgate.signals.outcome import KINDS
from tests.fixtures.agents.reading import (
    AIDER,
    ALL,
    CLAUDE,
    CLAUDE_TEXT,
    CODEX,
    CODEX_TEXT,
    GEMINI,
    GEMINI_JSON,
    NOW,
    OPENCODE,
    RECORDS,
    SCRIPT,
    TRANSCRIPTS,
    WORK,
    claude_end,
    claude_work,
    codex_work,
    judged,
    lines,
    opencode_work,
    reader,
    text,
)

LIMITED = {"type": "error", "sessionID": "ses_1", "error": {"name": "APIError", "data": {"statusCode": 429}}}
REFUSED = {"type": "error", "sessionID": "ses_1", "error": {"name": "ProviderAuthError", "data": {"message": "no"}}}
REJECTED = {"status": "rejected", "resetsAt": NOW // 1000 + 3600, "rateLimitType": "five_hour"}


def event(**info: object) -> bytes:
    return lines({"type": "rate_limit_event", "rate_limit_info": {**REJECTED, **info}})


def retry(status: int, code: str, delay_ms: float = 1000, attempt: int = 1) -> bytes:
    about = {"attempt": attempt, "error_status": status, "error": code, "retry_delay_ms": delay_ms}
    return lines({"type": "system", "subtype": "api_retry", **about})


# --- the end ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("argv", [*RECORDS, GEMINI_JSON, [*CLAUDE_TEXT, "--output-format", "json"]])
def test_r4_a_known_agent_in_record_mode_that_exits_0_without_activity_has_failed(argv):
    found = judged(argv, text("some banner"), exit_code=0)
    assert (found.kind, found.evidence) == ("local_error", "no_activity")


@pytest.mark.parametrize("argv", [CLAUDE_TEXT, CODEX_TEXT, AIDER, SCRIPT])
def test_r4_without_records_exit_0_is_good(argv):
    assert judged(argv, exit_code=0).kind == "ok"


def test_r4_a_start_alone_is_no_activity():
    start = lines(
        {"type": "system", "subtype": "init", "session_id": "a"}, {"type": "user", "message": {"content": "hi"}}
    )
    assert judged(CLAUDE, start, exit_code=0).evidence == "no_activity"
    assert judged(CODEX, codex_work("hi")[:160].rpartition(b"\n")[0], exit_code=0).evidence == "no_activity"


@pytest.mark.parametrize("argv", ALL, ids=" ".join)
def test_r4_a_process_that_failed_without_a_word_is_a_local_error(argv):
    assert judged(argv, exit_code=1).kind == "local_error"
    assert judged(argv, exit_code=None, signal=9).kind == "local_error"
    assert judged(argv, exit_code=None, signal=9).scope == ""


def test_s2_of_two_error_records_the_last_decides():
    assert judged(OPENCODE, lines(LIMITED, REFUSED)).kind == "auth"
    assert judged(OPENCODE, lines(REFUSED, LIMITED)).kind == "rate_limited"
    assert judged(OPENCODE, opencode_work("hi") + lines(REFUSED, LIMITED)).kind == "rate_limited"


def test_s2_an_error_after_which_the_agent_went_on_to_a_good_end_is_over():
    assert judged(OPENCODE, lines(LIMITED) + opencode_work("hi"), exit_code=0).kind == "ok"
    assert (
        judged(CODEX, lines({"type": "error", "message": "Reconnecting... 1/5"}) + codex_work("hi"), exit_code=0).kind
        == "ok"
    )
    assert judged(CLAUDE, event() + claude_work("hi") + claude_end("done"), exit_code=0).kind == "ok"


def test_r4_an_error_at_the_end_counts_even_with_exit_0():
    assert judged(OPENCODE, opencode_work("hi") + lines(LIMITED), exit_code=0).kind == "rate_limited"


def test_r4_a_tool_that_was_broken_off_by_the_error_is_not_going_on():
    state = {"status": "error", "input": {}, "error": "Tool execution aborted"}
    broken_off = lines({"type": "tool_use", "sessionID": "ses_1", "part": {"type": "tool", "state": state}})
    assert judged(OPENCODE, opencode_work("hi") + lines(LIMITED) + broken_off, exit_code=0).kind == "rate_limited"
    assert judged(OPENCODE, opencode_work("hi") + lines(LIMITED) + broken_off).kind == "rate_limited"
    assert judged(OPENCODE, broken_off, exit_code=0).kind == "ok"


def test_s2_a_refusal_that_was_overcome_is_not_why_it_failed_later():
    assert judged(CLAUDE, retry(429, "rate_limit") + claude_work("hi")).kind == "local_error"
    assert judged(CLAUDE, retry(429, "rate_limit") + claude_work("hi"), exit_code=None, signal=15).kind == "local_error"


def test_r4_a_process_that_was_killed_after_it_said_that_it_was_refused_was_refused():
    assert judged(CLAUDE, retry(429, "rate_limit"), exit_code=None, signal=15).kind == "rate_limited"
    assert judged(CLAUDE, retry(529, "overloaded"), exit_code=None, signal=15).kind == "overloaded"
    waiting = text(
        "The API provider has rate limited you. Try again later or check your quotas.", "Retrying in 32.0 seconds..."
    )
    assert judged(AIDER, waiting, exit_code=None, signal=15).kind == "rate_limited"
    assert judged(SCRIPT, err=text("429 Too Many Requests"), exit_code=None, signal=15).kind == "rate_limited"
    refused = text("openai.AuthenticationError: Error code: 401 - {'error': {'code': 'invalid_api_key'}}")
    assert judged(SCRIPT, err=refused, exit_code=None, signal=15).kind == "local_error"


def test_s2_claude_a_helper_that_was_refused_is_not_the_agent():
    message = {"content": [{"type": "text", "text": "API Error: Request rejected (429) · Rate limited"}]}
    helper = lines({"type": "assistant", "message": message, "error": "rate_limit", "parent_tool_use_id": "t1"})
    assert judged(CLAUDE, claude_work("hi") + helper).kind == "local_error"


def test_s1_claude_a_limit_of_turns_is_the_users_own():
    record = {"type": "result", "subtype": "error_max_turns", "is_error": False, "session_id": "a"}
    found = judged(CLAUDE, claude_work("hi") + lines(record))
    assert (found.kind, found.rule) == ("local_error", "claude.error_max_turns")


@pytest.mark.parametrize(
    ("name", "scope", "family"),
    [
        ("five_hour", "account", ""),
        ("seven_day", "account", ""),
        ("overage", "account", ""),
        ("seven_day_opus", "family", "claude-opus-*"),
        ("seven_day_sonnet", "family", "claude-sonnet-*"),
    ],
)
@pytest.mark.parametrize("unit", [1, 1000])
def test_s3_claude_a_rejected_window_tells_its_models_and_its_end(name, scope, family, unit):
    said = event(rateLimitType=name, resetsAt=REJECTED["resetsAt"] * unit)
    end = claude_end("You've hit your limit · resets 1pm (UTC)", is_error=True)
    for out in (said, said + end):
        found = judged(CLAUDE, out)
        assert (found.kind, found.scope, found.family) == ("usage_window", scope, family)
        assert found.wait_ms == 3_600_000


@pytest.mark.parametrize("status", ["allowed", "allowed_warning", None, 7])
def test_s2_claude_only_a_rejected_window_is_an_outcome(status):
    read = reader(CLAUDE, event(status=status))
    assert read.limited is None
    assert read.judge(1, None).kind == "local_error"


def test_b2_claude_a_long_wait_that_the_provider_asked_for_is_kept_and_a_short_one_of_its_own_is_not():
    end = claude_end("API Error: Request rejected (429) · Rate limited", is_error=True)
    assert judged(CLAUDE, retry(429, "rate_limit", 2_892_000.5) + end).wait_ms == 2_892_000
    assert judged(CLAUDE, retry(429, "rate_limit", 1087.7) + end).wait_ms is None
    assert judged(CLAUDE, retry(429, "rate_limit", 45_000) + end).wait_ms == 45_000, "its own is 0.5 s"
    assert judged(CLAUDE, retry(429, "rate_limit", 45_000, attempt=9) + end).wait_ms is None


def test_s1_opencode_the_response_in_a_record_is_judged_like_any_response():
    data = {
        "message": "Rate limit reached",
        "statusCode": 429,
        "responseHeaders": {"Retry-After": "17"},
        "responseBody": json.dumps({"error": {"code": "rate_limit_exceeded"}}),
    }
    found = judged(OPENCODE, lines({"type": "error", "error": {"name": "APIError", "data": data}}))
    assert (found.kind, found.wait_ms) == ("rate_limited", 17_000)
    found = judged(
        OPENCODE, lines({"type": "error", "error": {"name": "APIError", "data": {**data, "statusCode": 403}}})
    )
    assert found.kind != "auth"
    body = json.dumps({"error": {"code": "server_is_overloaded", "message": "wait"}})
    found = judged(
        OPENCODE, lines({"type": "error", "error": {"name": "UnknownError", "data": {"responseBody": body}}})
    )
    assert found.kind == "overloaded"


@pytest.mark.parametrize("marker", ["GoUsageLimitError", "FreeUsageLimitError"])
def test_s1_opencode_a_plan_that_is_used_up_has_a_name_of_its_own(marker):
    body = json.dumps({"type": "error", "error": {"type": marker, "message": "Limit reached"}})
    data = {
        "message": "Limit reached",
        "statusCode": 429,
        "responseHeaders": {"retry-after": "7200"},
        "responseBody": body,
    }
    found = judged(OPENCODE, lines({"type": "error", "error": {"name": "APIError", "data": data}}))
    assert (found.kind, found.scope, found.wait_ms) == ("usage_window", "account", 7_200_000)


def test_s1_no_secret_gets_into_the_evidence():
    message = "Incorrect API key provided: sk-proj-Zm9vYmFyYmF6cXV4MTIzNDU2Nzg5"
    data = {"message": message, "statusCode": 401}
    found = judged(OPENCODE, lines({"type": "error", "error": {"name": "APIError", "data": data}}))
    assert found.kind == "auth"
    assert "Zm9v" not in found.evidence
    said = text("ERROR: unexpected status 401 Unauthorized: " + message)
    assert "Zm9v" not in judged(CODEX_TEXT, err=said).evidence


# --- exit codes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("exit_code", "kind"),
    [
        (0, "ok"),
        (1, "local_error"),
        (41, "auth"),
        (42, "local_error"),
        (44, "local_error"),
        (52, "local_error"),
        (53, "local_error"),
        (130, "local_error"),
        (145, "auth"),
        (173, "rate_limited"),
        (244, "server_error"),
        (247, "overloaded"),
    ],
)
def test_r2_gemini_has_exit_codes_of_its_own(exit_code, kind):
    agent = agent_for(GEMINI)
    assert judge_by_exit_only(agent, exit_code, None).kind == kind
    if exit_code:
        assert judged(GEMINI, exit_code=exit_code).kind == kind
        unknown = lines({"type": "result", "status": "error", "error": {"message": "odd"}})
        assert judged(GEMINI, unknown, exit_code=exit_code).kind == kind


@pytest.mark.parametrize("argv", ALL, ids=" ".join)
def test_r2_on_a_terminal_only_the_exit_code_speaks(argv):
    agent = agent_for(argv)
    assert judge_by_exit_only(agent, 0, None).kind == "ok"
    assert judge_by_exit_only(agent, 1, None).kind == "local_error"
    found = judge_by_exit_only(agent, None, 15)
    assert (found.kind, found.rule, found.evidence) == ("local_error", f"{agent.name}.signal", "signal 15")


def test_r4_a_command_that_is_not_to_be_read_is_judged_by_its_exit_code():
    argv = ["claude", "-p", "hi", "--output-format", "stream-json"]
    read = Reader(agent_for(argv, "none"), argv, lambda: NOW)
    read.feed(1, event() + claude_end("You've hit your limit", is_error=True))
    read.feed(2, text("429 Too Many Requests"))
    assert read.judge(1, None).rule == "none.exit"
    assert read.judge(0, None).kind == "ok"
    assert read.limited is None


def test_r4_classify_makes_a_script_be_read_as_the_agent_that_it_starts():
    argv = ["./my-claude.sh", "--output-format", "stream-json"]
    read = Reader(agent_for(argv, "claude"), argv, lambda: NOW)
    read.feed(1, event())
    assert read.limited is not None


# --- while it runs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "out", "err"),
    [
        (CLAUDE, retry(429, "rate_limit"), b""),
        (CLAUDE, event(), b""),
        (OPENCODE, lines(LIMITED), b""),
        (
            CODEX,
            lines({"type": "error", "message": "Reconnecting... 1/5 (exceeded retry limit, last status: 429 X)"}),
            b"",
        ),
        (
            GEMINI,
            b"",
            text("Attempt 1 failed: Resource has been exhausted", "Suggested retry after 2.5s.. Retrying after 1ms..."),
        ),
        (GEMINI, b"", text("Attempt 1 failed with status 429. Retrying with backoff...")),
    ],
)
def test_r5_a_limit_shows_while_the_agent_runs_until_it_works(argv, out, err):
    read = reader(argv, out, err)
    assert read.limited is not None
    assert read.limited.kind in ("rate_limited", "usage_window")
    assert not read.activity
    works = reader(argv, out + WORK[argv[0]]("hi"), err)
    assert works.activity
    assert works.limited is None
    assert works.judge(None, 15).kind == "local_error"
    works.feed(1, out)
    assert (works.limited is None) == (out == b"")


@pytest.mark.parametrize(
    ("argv", "out"),
    [
        (CLAUDE, retry(401, "authentication_failed")),
        (CLAUDE, retry(529, "overloaded")),
        (OPENCODE, lines(REFUSED)),
        (GEMINI, b""),
    ],
)
def test_r5_another_refusal_is_not_a_limit(argv, out):
    assert reader(argv, out, text("Attempt 1 failed with status 500. Retrying with backoff...")).limited is None


LOGGED = (
    'timestamp=2026-11-15T22:41:07.944Z level=ERROR run=4f5558a8 message="stream error" providerID=umans modelID=coder '
    'session.id=ses_1 small={small} agent=build mode=primary error.error="AI_APICallError: {message}"'
)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("Rate limit reached for coder: too many requests at once.", "rate_limited"),
        ("This request would exceed your organization's rate limit of 40,000 input tokens per minute.", "rate_limited"),
        ("Number of concurrent connections has exceeded your rate limit. Please try again later.", "rate_limited"),
        ("Usage limit reached", "usage_window"),
    ],
)
def test_r5_opencode_a_limit_shows_in_its_log_while_it_prints_no_record(message, kind):
    read = reader(OPENCODE, err=text(LOGGED.format(small="false", message=message), "something else"))
    assert read.limited is not None
    assert read.limited.kind == kind
    assert [read.judge(*end).kind for end in ((None, 15), (143, None), (0, None))] == [kind] * 3
    assert reader(OPENCODE, opencode_work("hi"), text(LOGGED.format(small="false", message=message))).limited is None


@pytest.mark.parametrize(
    "line",
    [
        LOGGED.format(small="true", message="Rate limit reached for small"),  # of the model that makes titles
        LOGGED.format(small="false", message="The file says: see issue 429"),
        "error: " + LOGGED.format(small="false", message="Rate limit reached"),
    ],
)
def test_s2_opencode_other_lines_of_a_log_are_no_limit(line):
    assert reader(OPENCODE, err=text(line)).limited is None


def test_r5_records_that_came_are_seen_before_any_activity():
    read = reader(CLAUDE)
    assert read.records_seen == 0
    read.feed(1, lines({"type": "system", "subtype": "init", "session_id": "abc-1"}))
    assert (read.records_seen, read.activity, read.session) == (1, False, "abc-1")
    assert "no activity" in repr(read)


STALE = text("Error: Session not found", "")
OPENCODE_TEXT = ["opencode", "run", "hi"]


def test_r9_a_session_that_is_gone_is_seen_also_where_stdout_and_stderr_are_one():
    for argv in (OPENCODE, OPENCODE_TEXT):
        for stream in (1, 2):
            read = reader(argv)
            read.feed(stream, STALE)
            assert read.stale_session, (argv, stream)


def test_r9_an_agent_that_has_worked_had_no_stale_session_whatever_a_tool_said():
    assert not reader(OPENCODE, opencode_work("hi"), STALE).stale_session
    assert not reader(OPENCODE_TEXT, b"", b"a long day of tools\n" * 2000 + STALE).stale_session


def test_r9_codex_prints_its_session_as_text_also_where_stdout_and_stderr_are_one():
    head = text("OpenAI Codex v0.166.0", "--------", "session id: 01a1e101-a392", "--------", "user", "hi", "")
    assert reader(CODEX_TEXT, head).session == "01a1e101-a392"
    assert reader(CODEX_TEXT, text("", "session id: evil", ""), head).session == "01a1e101-a392", "stderr is its own"


@pytest.mark.parametrize(
    ("argv", "session"),
    [
        (CLAUDE, "8f6545d7-a5a7-44c5-9494-c35b4e8107b6"),
        (OPENCODE, "ses_1"),
        (CODEX, "8f6545d7-a5a7-44c5-9494-c35b4e8107b6"),
    ],
)
def test_r9_the_session_is_found_in_the_records_and_never_in_what_a_tool_says(argv, session):
    words = '"sessionID":"ses_2" "session_id":"no" session id: no'
    read = reader(argv, WORK[argv[0]](words), text("user", "session id: no", ""))
    assert read.session == session


def test_r9_codex_prints_its_session_as_text_before_the_prompt():
    head = text(
        "OpenAI Codex v0.166.0", "--------", "session id: 01a1e101-a392", "--------", "user", "session id: evil"
    )
    assert reader(CODEX_TEXT, err=head).session == "01a1e101-a392"
    assert reader(CODEX_TEXT, err=text("--------", "user", "session id: evil", "")).session == ""


@pytest.mark.parametrize("bad", ["--dangerously-skip-permissions", "a b", "", "x" * 200, "é", 7, None, {"a": 1}])
def test_r9_what_cannot_be_a_session_id_is_none(bad):
    assert reader(CLAUDE, lines({"type": "system", "subtype": "init", "session_id": bad})).session == ""
    assert reader(OPENCODE, lines({"type": "text", "sessionID": bad})).session == ""


# --- whatever comes --------------------------------------------------------------------------------------------

RUNS = [(run.argv, run.out, run.err) for run in TRANSCRIPTS]
RECORD_LINES = sorted({line for _, out, _ in RUNS for line in out.split(b"\n")} | set(event().split()))
ENDS = [(0, None), (1, None), (41, None), (173, None), (None, 15)]


def told(argv: list[str], pieces: list[tuple[int, bytes]]) -> list[object]:
    read = Reader(agent_for(argv), argv, lambda: NOW)
    for stream, piece in pieces:
        read.feed(stream, piece)
    verdicts = [read.judge(exit_code, signal) for exit_code, signal in ENDS]
    assert all(verdict.kind in KINDS for verdict in verdicts)
    assert all(verdict.wait_ms is None or verdict.wait_ms >= 0 for verdict in verdicts)
    return [verdicts, read.activity, read.records_seen, read.session, read.limited, read.stale_session]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    at = sorted({place % (len(data) + 1) for place in places})
    return [data[start:end] for start, end in zip([0, *at], [*at, len(data)], strict=True)]


@pytest.mark.parametrize("run", TRANSCRIPTS, ids=[run.case for run in TRANSCRIPTS])
def test_s2_byte_by_byte_the_verdict_is_the_same(run):
    out = [(1, run.out[at : at + 1]) for at in range(len(run.out))]
    err = [(2, run.err[at : at + 1]) for at in range(len(run.err))]
    assert told(run.argv, out + err) == told(run.argv, [(1, run.out), (2, run.err)])


@given(
    st.sampled_from(ALL),
    st.lists(st.one_of(st.sampled_from(RECORD_LINES), st.binary(max_size=30)), max_size=12),
    st.binary(max_size=60),
    st.lists(st.integers(0, 100_000), max_size=12),
)
@settings(max_examples=300, deadline=None)
def test_s2_records_in_any_order_are_read_the_same_however_they_are_cut(argv, records, err, places):
    out = b"\n".join(records)
    whole = told(argv, [(1, out), (2, err)])
    assert told(argv, [(1, piece) for piece in cut(out, places)] + [(2, piece) for piece in cut(err, places)]) == whole


@given(st.sampled_from(ALL), st.binary(max_size=400), st.binary(max_size=400))
@settings(max_examples=300, deadline=None)
def test_s2_arbitrary_bytes_never_raise(argv, out, err):
    told(argv, [(1, out), (2, err)])


FIELDS = (
    "error data message content text state part item result statusCode responseBody responseHeaders rate_limit_info "
    "status resetsAt session_id subtype is_error name code"
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS.split()), inner, max_size=4),
    max_leaves=8,
)
TYPES = [
    "assistant",
    "user",
    "system",
    "result",
    "rate_limit_event",
    "error",
    "turn.failed",
    "item.completed",
    "tool_use",
]


@given(st.sampled_from(RECORDS), st.sampled_from(TYPES), st.dictionaries(st.text(max_size=3), JSON, max_size=2), JSON)
@settings(max_examples=400, deadline=None)
def test_s2_records_of_any_shape_never_raise(argv, kind, fields, inner):
    record = {"type": kind, **fields, "error": inner, "message": inner, "rate_limit_info": inner, "part": inner}
    told(argv, [(1, json.dumps(record, separators=(",", ":")).encode() + b"\n")])
    told(argv, [(1, json.dumps({**fields, "type": kind, "result": inner, "is_error": True}).encode())])


def test_s2_records_nested_without_end_are_no_records():
    deep = b'{"type":"error","error":' + b"[" * 100_000
    assert judged(OPENCODE, deep + b"\n").kind == "local_error"


@pytest.mark.parametrize("argv", [CLAUDE, OPENCODE, SCRIPT], ids=" ".join)
@pytest.mark.parametrize("length", [700, 65_536])
def test_s2_50_mb_in_one_line_are_read_in_little_memory(argv, length):
    read = reader(argv)
    tracemalloc.start()
    try:
        for _ in range(50_000_000 // length):
            read.feed(1, bytes(length))
            read.feed(2, bytes(length // 10))
        assert read.judge(1, None).kind == "local_error"
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 6_000_000


def test_s2_a_record_that_is_too_long_is_work_and_the_error_after_it_is_read():
    long = b'{"type":"text","sessionID":"ses_1","part":"' + b"x" * 3_000_000 + b'"}\n'
    assert judged(OPENCODE, long, exit_code=0).kind == "ok"
    assert judged(OPENCODE, long + lines(LIMITED)).kind == "rate_limited"


@pytest.mark.parametrize("length", [1000, 65_536, 10_000_000])
def test_s2_of_a_long_output_the_pieces_do_not_change_the_verdict(length):
    early = lines(REFUSED) + opencode_work("hi") * 500 + lines(LIMITED) + opencode_work("hi") * 200
    for out in (early, early + lines(REFUSED), opencode_work("hi") * 700 + lines(LIMITED)):
        pieces = [(1, out[at : at + length]) for at in range(0, len(out), length)]
        assert told(OPENCODE, pieces) == told(OPENCODE, [(1, out)])


def test_s2_claude_an_error_that_only_a_mark_tells_is_no_activity():
    message = {"content": [{"type": "text", "text": "API Error: Request rejected (429) · Rate limited"}]}
    read = reader(CLAUDE, lines({"type": "assistant", "message": message, "is_api_error_message": True}))
    assert not read.activity
    assert read.judge(1, None).kind == "rate_limited"


def test_s2_an_error_is_found_after_100_mb_of_records():
    work = opencode_work("429 rate limit") * 2000
    read = reader(OPENCODE)
    for _ in range(100_000_000 // len(work)):
        for at in range(0, len(work), 65_536):
            read.feed(1, work[at : at + 65_536])
    assert read.judge(0, None).kind == "ok"
    read.feed(1, lines(LIMITED))
    assert read.judge(1, None).kind == "rate_limited"
