"""How an agent ended is judged, reported and acted on (rules R4, R5, B1, B5, S2): real processes, made-up agents."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.processes.fleet import Fleet, Run

pytestmark = pytest.mark.processes

OPUS, SONNET = "anthropic/claude-opus-4-6", "anthropic/claude-sonnet-4-6"
WORK = {"type": "text", "sessionID": "ses_1", "part": {"type": "text", "text": "done"}}


def api_error(status: int, message: str, **headers: str) -> dict[str, Any]:
    data = {"message": message, "statusCode": status, "isRetryable": True, "responseHeaders": headers}
    return {"type": "error", "sessionID": "ses_1", "error": {"name": "APIError", "data": data}}


def agent(fleet: Fleet, name: str, body: str) -> str:
    """A program called like a real agent."""
    return fleet.script(name, f"#!{sys.executable}\nimport json, os, sys, time\n{body}\n")


def says(*records: object, code: int = 0) -> str:
    return f"for record in {list(records)!r}: print(json.dumps(record), flush=True)\nsys.exit({code})"


def judged(fleet: Fleet, *argv: str) -> tuple[Run, dict[str, Any]]:
    run = fleet.done("--status-file", "status.json", *argv)
    assert fleet.is_empty(), fleet.dump()
    told: dict[str, Any] = json.loads((fleet.folder / "status.json").read_text())
    return run, told


def opencode(fleet: Fleet, *records: object, code: int = 0) -> list[str]:
    return [agent(fleet, "opencode", says(*records, code=code)), "run", "--format", "json", "hi"]


def test_r4_a_rate_limit_in_an_agents_record_exits_75_and_backs_off_its_model_alone(fleet: Fleet) -> None:
    limited = api_error(429, "Too Many Requests", **{"retry-after": "45"})
    run, told = judged(fleet, "-m", OPUS, "--", *opencode(fleet, limited, code=1))
    assert run.code == 75, run
    assert told["outcome"]["kind"] == "rate_limited"
    assert told["outcome"]["retry_at"]
    assert f"fleetgate: {OPUS} hit a rate limit; held back until 20" in run.err
    assert "The agent said: " in run.err
    assert list(fleet.state.backoffs) == [OPUS]
    backoff = fleet.state.backoffs[OPUS]
    assert backoff.until - backoff.since == 45_000, "the provider's hint wins"
    assert fleet.done("-m", SONNET, "--no-wait", "--", "true").code == 0
    assert fleet.done("-m", OPUS, "--no-wait", "--", "true").code == 75


@pytest.mark.parametrize(
    ("message", "scope", "key"),
    [
        ("exceed the rate limit of 40,000 input tokens per minute.", "family", "anthropic/claude-opus-*"),
        ("exceed your organization's rate limit.", "model", OPUS),
    ],
)
def test_p1_a_rate_limit_holds_back_what_the_provider_names_and_the_status_file_says_so(
    fleet: Fleet, message: str, scope: str, key: str
) -> None:
    text = f"API Error: Request rejected (429) · This request would {message}"
    end = {"type": "result", "subtype": "success", "is_error": True, "result": text, "api_error_status": 429}
    claude = agent(fleet, "claude", says(end, code=1))
    options = ["--model", "claude-opus-4-6", "--output-format", "stream-json", "--verbose"]
    run, told = judged(fleet, "-m", OPUS, "--", claude, "-p", "x", *options)
    assert run.code == 75, run
    assert (told["outcome"]["kind"], told["outcome"]["scope"]) == ("rate_limited", scope)
    assert list(fleet.state.backoffs) == [key]


def test_s2_words_in_a_tool_result_back_off_nothing(fleet: Fleet) -> None:
    output = "HTTP 429 rate limit exceeded; authentication failed; 529 overloaded"
    tool = {"type": "tool", "sessionID": "ses_1", "part": {"type": "tool", "state": {"output": output}}}
    run, told = judged(fleet, "-m", OPUS, "--", *opencode(fleet, tool, WORK))
    assert (run.code, told["outcome"]["kind"]) == (0, "ok")
    assert not fleet.state.backoffs


def test_r4_a_known_agent_that_exits_0_without_any_activity_has_failed(fleet: Fleet) -> None:
    run, told = judged(fleet, "-m", OPUS, "--", *opencode(fleet))
    assert run.code == 75
    assert (told["outcome"]["kind"], told["outcome"]["evidence"]) == ("local_error", "no_activity")
    assert not fleet.state.backoffs


def test_b1_a_refused_login_benches_the_account(fleet: Fleet) -> None:
    refused = {"type": "error", "error": {"name": "ProviderAuthError", "data": {"message": "no"}}}
    run, told = judged(fleet, "-m", OPUS, "--", *opencode(fleet, refused, code=1))
    assert (run.code, told["outcome"]["kind"]) == (75, "auth")
    assert list(fleet.state.backoffs) == ["anthropic"]


def test_b5_an_agent_refused_before_any_activity_is_tried_on_the_next_candidate(fleet: Fleet) -> None:
    limited = api_error(429, "Too Many Requests")
    body = (
        f"refused = os.environ['FLEETGATE_MODEL'] == {OPUS!r}\n"
        f"print(json.dumps({limited!r} if refused else {WORK!r}))\nsys.exit(refused)"
    )
    program = agent(fleet, "opencode", body)
    run, told = judged(fleet, "-m", f"{OPUS},{SONNET}", "--", program, "run", "--format", "json", "-m", "{model}")
    assert run.code == 0, run
    assert (told["model"], told["outcome"]["kind"]) == (SONNET, "ok")
    assert list(fleet.state.backoffs) == [OPUS]


def test_r4_any_other_command_is_judged_by_the_last_lines_of_its_stderr(fleet: Fleet) -> None:
    run, told = judged(fleet, "-m", OPUS, "--", "sh", "-c", "echo '429 Too Many Requests' >&2; exit 1")
    assert (run.code, told["outcome"]["kind"]) == (75, "rate_limited")
    run, told = judged(fleet, "-m", SONNET, "--", "sh", "-c", "echo 'see issue 429' >&2; exit 3")
    assert (run.code, told["outcome"]["kind"]) == (3, "local_error")


def test_r1_classify_none_reads_nothing_and_nonsense_is_refused_before_the_run_waits(fleet: Fleet) -> None:
    words = ["sh", "-c", "echo '429 Too Many Requests' >&2; exit 1"]
    run, told = judged(fleet, "-m", OPUS, "--classify", "none", "--", *words)
    assert (run.code, told["outcome"]["kind"]) == (1, "local_error")
    for bad in (("--classify", "frob"), ("--silence", "0"), ("--silence", "soon")):
        run = fleet.done(*bad, "--", "touch", "ran")
        assert run.code == 64, run
    assert not (fleet.folder / "ran").exists()


def test_r2_output_passes_byte_for_byte_and_in_order(fleet: Fleet) -> None:
    body = "data = bytes(range(256)) * 4000\nos.write(1, data)\nos.write(2, b'E' * 70000)\nos.write(1, b'end')"
    program = agent(fleet, "chatty", body)
    run = fleet.start([sys.executable, "-c", _COPY, program])
    assert run.wait() == 0, run


_COPY = """
import subprocess, sys
argv = [sys.executable, "-m", "fleetgate", "run", "-q", "--", sys.argv[1]]
done = subprocess.run(argv, capture_output=True)
assert done.returncode == 0, done
assert done.stdout == bytes(range(256)) * 4000 + b"end", len(done.stdout)
assert done.stderr == b"E" * 70000, len(done.stderr)
"""


def test_r5_a_known_agent_that_falls_silent_is_ended_with_its_group(fleet: Fleet) -> None:
    body = f"print(json.dumps({WORK!r}), flush=True)\nif os.fork() == 0: time.sleep(300)\ntime.sleep(300)"
    program = agent(fleet, "opencode", body)
    argv = ["--silence", "4s", "-m", OPUS, "--", program, "run", "--format", "json", "hi"]
    run, told = judged(fleet, *argv)
    assert run.code == 75, run
    assert told["outcome"]["evidence"] == "silent"
    assert not fleet.state.backoffs
    assert not fleet.processes(), "its whole group is gone"
