"""An agent that was refused calls again by itself: it keeps its slot for a while, and others are held back."""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

import pytest

from tests.processes.fleet import Fleet, Run
from tests.processes.job_fleet import Jobs

pytestmark = pytest.mark.processes

OPUS, SONNET = "anthropic/claude-opus-4-6", "anthropic/claude-sonnet-4-6"
DONE = {"type": "result", "subtype": "success", "is_error": False, "result": "done"}
ANSWER = {"type": "assistant", "message": {"content": [{"type": "text", "text": "hello"}]}}
# Prints records, one a line, with waits between them: a number is seconds, a text a file that must be there.
CLAUDE = """
import json, os, signal, sys, time
if {ignores}: signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
open("ready", "w").close()
for step in {steps}:
    if isinstance(step, dict):
        print(json.dumps(step), flush=True)
    elif isinstance(step, str):
        while not os.path.exists(step): time.sleep(0.05)
    else:
        time.sleep(step)
"""


def retry(attempt: int, status: int = 429, error: str = "rate_limit") -> dict[str, Any]:
    about = {"attempt": attempt, "max_retries": 10, "retry_delay_ms": 600, "error_status": status, "error": error}
    return {"type": "system", "subtype": "api_retry", **about}


def claude(fleet: Fleet, *steps: object, ignores: bool = False) -> list[str]:
    body = CLAUDE.format(steps=repr(list(steps)), ignores=ignores)
    return [fleet.script("claude", f"#!{sys.executable}\n{body}\n"), "-p", "--output-format", "stream-json", "hi"]


def told(fleet: Fleet) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((fleet.folder / "status.json").read_text())
    return found


def started(fleet: Fleet, *arguments: str) -> Run:
    return fleet.run("--status-file", "status.json", "-m", OPUS, *arguments)


def test_an_agent_that_heals_holds_others_back_at_once_and_ends_well(fleet: Fleet) -> None:
    go = fleet.folder / "go"
    run = started(fleet, "--", *claude(fleet, retry(1), retry(2), str(go), ANSWER, DONE))
    fleet.until(lambda: OPUS in fleet.state.backoffs, what="others are held back while it runs")
    assert fleet.holds(run)
    assert fleet.done("-m", OPUS, "--no-wait", "--", "true").code == 75
    assert fleet.done("-m", SONNET, "--no-wait", "--", "true").code == 0
    go.touch()
    assert run.wait() == 0, run
    assert told(fleet)["outcome"]["kind"] == "ok"
    assert "The agent retries" in run.err


def test_an_agent_that_does_not_get_on_is_ended_when_its_patience_is_over(fleet: Fleet) -> None:
    run = started(fleet, "--patience", "2s", "--", *claude(fleet, retry(1), 300))
    assert run.wait() == 75, run
    assert told(fleet)["outcome"]["kind"] == "rate_limited"
    assert list(fleet.state.backoffs) == [OPUS]
    assert fleet.is_empty()


def test_an_agent_that_worked_and_is_refused_later_is_ended_when_its_patience_is_over(fleet: Fleet) -> None:
    fleet.configure('[run]\npatience = "3s"\n')
    run = started(fleet, "--", *claude(fleet, ANSWER, retry(1), 300))
    fleet.until(lambda: OPUS in fleet.state.backoffs, what="others are held back")
    assert run.wait() == 75, run
    assert told(fleet)["outcome"]["kind"] == "rate_limited"


@pytest.mark.parametrize("arguments", [("--patience", "0"), ("-m", f"{OPUS},{SONNET}", "--no-wait")])
def test_without_patience_or_with_another_candidate_a_refused_agent_is_ended_at_once(
    fleet: Fleet, arguments: tuple[str, ...]
) -> None:
    body = claude(fleet, retry(1), 300)
    run = started(fleet, *arguments, "--", *body)
    if "-m" in arguments:  # refused on both: the second run of it has no candidate left, and waits out its patience
        fleet.until(lambda: {OPUS, SONNET} <= set(fleet.state.backoffs), what="it was tried on the next one at once")
        run.signal(signal.SIGTERM)
        run.wait()
    else:
        assert run.wait() == 75, run
        assert told(fleet)["outcome"]["kind"] == "rate_limited"


@pytest.mark.parametrize(
    ("record", "kind"),
    [
        (retry(1, 401, "authentication_failed"), "auth"),
        (
            {"type": "rate_limit_event", "rate_limit_info": {"status": "rejected", "rateLimitType": "five_hour"}},
            "usage_window",
        ),
    ],
)
def test_a_limit_that_does_not_pass_soon_ends_the_agent_though_it_calls_again(
    fleet: Fleet, record: dict[str, Any], kind: str
) -> None:
    run = started(fleet, "--", *claude(fleet, record, 300))
    assert run.wait() == 75, run
    assert told(fleet)["outcome"]["kind"] == kind
    assert list(fleet.state.backoffs) == ["anthropic"]


GAVE_UP = {"type": "result", "subtype": "error_during_execution", "is_error": True, "errors": ["interrupted"]}


@pytest.mark.parametrize("steps", [(), (ANSWER,), (retry(1),), (retry(1), GAVE_UP)])
def test_an_agent_that_a_person_interrupts_is_reported_as_interrupted(fleet: Fleet, steps: tuple[object, ...]) -> None:
    ready = {"type": "system", "subtype": "init", "session_id": "s1"}
    run = started(fleet, "--", *claude(fleet, ready, *steps, 300, ignores=True))
    fleet.until(lambda: '"init"' in run.out and run.out.count("\n") == 1 + len(steps), what="it runs")
    run.signal(signal.SIGINT)
    assert run.wait() == 130, run
    assert "no_activity" not in run.err
    outcome = told(fleet)["outcome"]
    if steps == (retry(1),):
        assert outcome["kind"] == "rate_limited", "what it said of its provider counts all the same"
    else:
        assert (outcome["kind"], outcome["evidence"]) == ("local_error", "interrupted by signal 2")


def test_an_agent_that_prints_text_and_is_interrupted_before_its_answer_is_reported_as_interrupted(
    fleet: Fleet,
) -> None:
    program = claude(fleet, str(fleet.folder / "never"), ignores=True)[0]
    run = started(fleet, "--", program, "-p", "hi")
    fleet.until((fleet.folder / "ready").exists, what="it runs")
    run.signal(signal.SIGINT)
    assert run.wait() == 130, run
    assert told(fleet)["outcome"]["evidence"] == "interrupted by signal 2"


def test_an_agent_that_finishes_in_spite_of_a_signal_has_finished(fleet: Fleet) -> None:
    body = claude(fleet, ANSWER, str(fleet.folder / "go"), DONE)
    program = fleet.folder / "claude"
    program.write_text(
        program.read_text().replace("import json", "import json, signal as s; s.signal(2, s.SIG_IGN)\nimport json", 1)
    )
    run = started(fleet, "--", *body)
    fleet.until(lambda: "assistant" in run.out, what="it runs")
    run.signal(signal.SIGINT)
    (fleet.folder / "go").touch()
    assert run.wait() == 0, run
    assert told(fleet)["outcome"]["kind"] == "ok"


def test_a_patience_that_is_not_a_duration_is_refused_before_anything_waits(fleet: Fleet) -> None:
    run = fleet.done("--patience", "soon", "--", "touch", "ran")
    assert run.code == 64, run
    assert "--patience" in run.err
    assert not (fleet.folder / "ran").exists()


def test_a_job_whose_agent_heals_keeps_its_slot_too_and_one_that_does_not_waits_for_the_backoff(fleet: Fleet) -> None:
    fleet.configure('[run]\npatience = "2s"\n')
    jobs, go = Jobs(fleet), fleet.folder / "go"
    heals = jobs.quickly(*claude(fleet, retry(1), ANSWER, retry(1), str(go), ANSWER, DONE), models=(OPUS,))
    worker = jobs.worker(1)
    fleet.until(lambda: OPUS in fleet.state.backoffs, what="others are held back")
    go.touch()
    assert jobs.ended(heals).state == "succeeded"
    stays = jobs.quickly(*claude(fleet, retry(1), 300), models=(SONNET,))
    fleet.until(lambda: SONNET in fleet.state.backoffs and not fleet.state.leases, what="it was ended")
    assert jobs.state(stays) == "queued"
    worker.signal(signal.SIGTERM)
    worker.wait()
