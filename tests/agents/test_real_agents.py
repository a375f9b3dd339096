"""Real agents, each refused in every way by a provider that speaks its language (rules R4, R5, S1, S2, B1)."""

from __future__ import annotations

import json
from datetime import datetime

import pytest

from fleetgate.testing.provider import FakeProvider
from fleetgate.testing.script import Fault
from tests.agents.calling import CALLERS, KEY, PROMPT
from tests.agents.cases import Case, as_of_now, cases
from tests.agents.installing import CannotInstall, installed, version_of
from tests.agents.running import Place, Ran
from tests.agents.table import ROWS, Row

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(1200)]

CASES = cases()
KEEPS_FILES = ("claude", "codex")
BY_ANSWER = pytest.mark.parametrize("case", [case for case in CASES if case.fault], ids=lambda case: case.name)
GOOD = pytest.mark.parametrize("case", [case for case in CASES if not case.fault], ids=lambda case: case.name)


def ran(case: Case, place: Place, provider: FakeProvider, prompt: str = PROMPT, *, on_terminal: bool = False) -> Ran:
    """The case's agent to its end; skipped with a sentence where it cannot be installed."""
    try:
        program = installed(case.agent)
    except CannotInstall as error:
        pytest.skip(str(error))
    call = CALLERS[case.agent](str(program), provider.url, place.home, prompt)
    if case.login == "plan":
        del call.env["ANTHROPIC_API_KEY"]
        call.env["CLAUDE_CODE_OAUTH_TOKEN"] = KEY.replace("sk-dummy", "sk-ant-oat01")
    found = place.run(call, case.patience_s, on_terminal=on_terminal)
    print(found.out[-4000:], found.err[-4000:], found.status, found.released, f"{found.took_s:.1f} s", sep="\n")
    keys = ", ".join(backoff["key"] for backoff in found.backoffs)
    evidence = found.outcome["evidence"] or ""
    answer = f"{case.answer}, on a terminal" if on_terminal else case.answer
    ROWS.append(Row(case.agent, version_of(case.agent), answer, evidence, found.outcome["kind"], keys, found.exit_code))
    return found


@GOOD
def test_r4_a_real_agent_that_did_its_work_is_ok_and_backs_off_nothing(case: Case, place: Place) -> None:
    with FakeProvider() as provider:
        found = ran(case, place, provider)
    assert provider.stats.calls > 0, "it never asked the provider"
    assert (found.exit_code, found.outcome["kind"]) == (0, "ok")
    assert found.released["activity"] is (None if case.agent == "aider" else True)
    assert (found.leases, found.backoffs) == ([], [])


@BY_ANSWER
def test_r4_a_real_agent_that_is_refused_exits_75_and_backs_off_what_was_refused(case: Case, place: Place) -> None:
    case = as_of_now(case)
    assert case.fault is not None
    with FakeProvider(faults=[case.fault]) as provider:
        found = ran(case, place, provider)
    assert provider.stats.scripted > 0, "it never asked the provider"
    assert found.exit_code == found.status["exit_code"] == 75
    assert (found.outcome["kind"], found.outcome["scope"]) == (case.kind, case.scope)
    assert case.said.lower() in found.outcome["evidence"].lower()
    assert found.leases == []
    assert [backoff["key"] for backoff in found.backoffs] == [case.backs_off]
    assert found.backoffs[0]["reason"] == case.kind
    if case.wait_s is not None:
        low, high = case.wait_s
        assert low <= seconds_between(found.released["at"], found.backoffs[0]["until"]) <= high
    assert KEY not in json.dumps([found.status, found.backoffs, found.released])


@pytest.mark.parametrize("case", [case for case in CASES if case.agent in KEEPS_FILES], ids=lambda case: case.name)
def test_r4_a_real_agent_on_a_terminal_is_judged_by_what_it_wrote_down(case: Case, place: Place) -> None:
    case = as_of_now(case)
    with FakeProvider(faults=[case.fault] if case.fault else []) as provider:
        found = ran(case, place, provider, on_terminal=True)
    assert found.exit_code == (75 if case.fault else 0)
    assert found.outcome["kind"] == case.kind
    assert found.released["activity"] is None, "the terminal was not read"
    assert found.leases == []
    assert [backoff["key"] for backoff in found.backoffs] == ([case.backs_off] if case.fault else [])


def test_s2_real_opencode_a_file_that_it_reads_backs_off_nothing_whatever_it_says(place: Place) -> None:
    notes = place.work / "notes.txt"
    notes.write_text("HTTP 429 rate limit exceeded\nauthentication failed: invalid API key\n529 overloaded\n")
    reads = tool_call("read", {"filePath": str(notes)})
    with FakeProvider(
        faults=[Fault(body=reads, headers={"Content-Type": "text/event-stream"}, model="coder")]
    ) as provider:
        found = ran(Case("opencode", "200, and it reads a file that says 429"), place, provider, "Read notes.txt.")
    assert '"tool_use"' in found.out
    assert "429 rate limit exceeded" in found.out, "the words went through the agent's records"
    assert (found.exit_code, found.outcome["kind"]) == (0, "ok")
    assert (found.leases, found.backoffs) == ([], [])


def tool_call(name: str, arguments: dict[str, str]) -> str:
    """A streamed answer of OpenAI's chat API that calls a tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    called = {"index": 0, "id": "call_1", "type": "function", "function": function}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "coder"}
    choices = [
        {"index": 0, "delta": {"role": "assistant", "tool_calls": [called]}, "finish_reason": None},
        {"index": 0, "delta": {}, "finish_reason": "tool_calls"},
    ]
    return "".join(f"data: {json.dumps({**head, 'choices': [one]})}\n\n" for one in choices) + "data: [DONE]\n\n"


def seconds_between(start: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()
