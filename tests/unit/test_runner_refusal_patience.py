"""How long an agent that was refused may call again by itself, and what its output says about that."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from fleetgate.runner import early_stop as subject
from fleetgate.runner.early_stop import EarlyStop
from fleetgate.runner.refusal_patience import Patience
from fleetgate.signals.agents import agent_for
from fleetgate.signals.classify_process import AgentRefusal, Reader
from fleetgate.signals.outcome import outcome

INF = float("inf")


class Told:
    """What an agent's records told up to now."""

    limited = None

    def __init__(self) -> None:
        self.records_seen = 1
        self.activity = False
        self.refusal: AgentRefusal | None = None

    def refused(self, kind: str, wait_ms: int | None = None, *, again: bool = True, mark: int = 0) -> None:
        self.refusal = AgentRefusal(outcome(kind, "x", "refused", wait_ms=wait_ms), again, mark)


def ends_at(told: Told, at: float = 1_000, *, other: bool = False, patience_s: float = 120) -> float:
    return Patience(told, patience_s, lambda: other).deadline(at) - at


@pytest.mark.parametrize(
    ("kind", "wait_ms", "again", "allowed_ms"),
    [
        ("rate_limited", None, True, 120_000),
        ("rate_limited", 120_000, True, 120_000),
        ("rate_limited", 120_001, True, 0),
        ("rate_limited", None, False, 0),
        ("overloaded", None, True, 120_000),
        ("overloaded", 3_600_000, True, 0),
        ("overloaded", None, False, INF),
        ("usage_window", None, True, 0),
        ("usage_window", 7_200_000, True, 0),
        ("usage_window", 60_000, True, 120_000),
        ("quota", None, True, 0),
        ("auth", None, True, 3_000),
        ("auth", None, False, 0),
        ("server_error", None, True, INF),
        ("local_error", None, True, INF),
    ],
)
def test_an_agent_that_has_done_nothing_yet_may_wait_as_long_as_its_limit_may_be_over_soon(
    kind: str, wait_ms: int | None, again: bool, allowed_ms: float
) -> None:
    told = Told()
    assert ends_at(told) == INF
    told.refused(kind, wait_ms, again=again)
    assert ends_at(told) == allowed_ms


def test_an_agent_that_has_worked_is_never_ended_at_once() -> None:
    told = Told()
    told.activity = True
    told.refused("usage_window", 7_200_000)
    assert ends_at(told) == 120_000
    told.refused("rate_limited", again=False)
    assert ends_at(told) == INF, "it gives up by itself"


def test_an_agent_that_could_run_on_another_model_at_once_does_not_wait() -> None:
    told = Told()
    told.refused("rate_limited")
    assert ends_at(told, other=True) == 0
    told.refused("overloaded")
    assert ends_at(told, other=True) == 120_000, "an overload does not lead to the next candidate"


def test_refusals_in_a_row_share_one_patience_and_progress_begins_another() -> None:
    told = Told()
    patience = Patience(told, 120, lambda: False)
    told.refused("rate_limited")
    assert patience.deadline(10_000) == 130_000
    told.refused("overloaded")
    assert patience.deadline(60_000) == 130_000, "another refusal, and still no progress"
    told.refusal = None
    assert patience.deadline(61_000) == INF
    told.refused("rate_limited", mark=700)
    assert patience.deadline(70_000) == 190_000
    told.refused("rate_limited", mark=900)
    assert patience.deadline(80_000) == 200_000, "there was progress between two looks"
    patience.stood_still(5_000)
    assert patience.deadline(81_000) == 205_000


def test_patience_ends_an_agent_that_says_nothing_more_and_spares_one_that_gets_on() -> None:
    told = Told()
    ending = EarlyStop(told, record_s=None, patience=Patience(told, 120, lambda: False))
    ending.begin(0)
    told.refused("rate_limited")
    ending.wrote(40_000)
    look = ending.next_deadline()
    assert look < 41_000
    assert ending.verdict(look) == ""
    assert ending.next_deadline() == look + 120_000
    assert ending.verdict(look + 119_999) == ""
    told.activity, told.refusal = True, None
    assert ending.verdict(look + 120_000) == "", "it has got on"
    told.refused("rate_limited", mark=5)
    ending.wrote(300_000)
    look = ending.next_deadline()
    assert ending.verdict(look) == ""
    ending.stood_still(1_000)
    assert ending.verdict(look + 120_999) == ""
    assert ending.verdict(look + 121_000) == "rate_limited"


def test_an_agent_whose_records_cannot_be_read_is_not_ended_for_want_of_patience() -> None:
    class Broken(Told):
        @property
        def refusal(self) -> AgentRefusal | None:
            raise ValueError("cannot tell")

        @refusal.setter
        def refusal(self, value: AgentRefusal | None) -> None:
            pass

    told = Broken()
    ending = EarlyStop(told, patience=Patience(told, 120, lambda: False))
    ending.begin(0)
    ending.wrote(1_000)
    assert ending.verdict(2_000) == ""
    assert isinstance(ending.failed, ValueError)
    ending.wrote(3_000)
    assert ending.next_deadline() == 3_000 + 1_200_000, "only silence counts from here on"


# What the agents say.

CLAUDE = ["claude", "-p", "--output-format", "stream-json", "--model", "claude-opus-4-6"]
CODEX = ["codex", "exec", "--json", "-m", "gpt-5", "hi"]
OPENCODE = ["opencode", "run", "--format", "json", "-m", "umans/coder", "hi"]
GEMINI = ["gemini", "-p", "hi", "-o", "stream-json"]
AIDER = ["aider", "--model", "anthropic/claude-opus-4-6", "--message", "hi"]


def reader(argv: list[str]) -> Reader:
    return Reader(agent_for(argv, ""), argv, lambda: 1_794_776_400_000)


def says(argv: list[str], *records: dict[str, Any]) -> Reader:
    read = reader(argv)
    for record in records:
        read.feed(1, json.dumps(record, separators=(",", ":")).encode() + b"\n")
    return read


def api_retry(attempt: int, status: int = 429, error: str = "rate_limit", delay_ms: float = 600.5) -> dict[str, Any]:
    about = {"attempt": attempt, "max_retries": 10, "retry_delay_ms": delay_ms, "error_status": status, "error": error}
    return {"type": "system", "subtype": "api_retry", **about}


ANSWER = {"type": "assistant", "message": {"content": [{"type": "text", "text": "hello"}]}}


@pytest.mark.parametrize(
    ("argv", "record", "kind"),
    [
        (CLAUDE, api_retry(1), "rate_limited"),
        (CLAUDE, api_retry(1, 529, "overloaded"), "overloaded"),
        (CLAUDE, api_retry(1, 401, "authentication_failed"), "auth"),
        (
            CODEX,
            {"type": "error", "message": "Reconnecting... 1/5 (We're currently experiencing high demand)"},
            "overloaded",
        ),
        (
            CODEX,
            {
                "type": "error",
                "message": "stream error: unexpected status 429 Too Many Requests; retrying 1/5 in 206ms…",
            },
            "rate_limited",
        ),
        (
            OPENCODE,
            {"type": "session.status", "sessionID": "s", "status": {"type": "retry", "message": "Too Many Requests"}},
            "rate_limited",
        ),
        (
            OPENCODE,
            {
                "type": "session.status",
                "properties": {"status": {"type": "retry", "message": "Provider is overloaded"}},
            },
            "overloaded",
        ),
    ],
)
def test_each_agents_records_tell_that_it_calls_again(argv: list[str], record: dict[str, Any], kind: str) -> None:
    refusal = says(argv, record).refusal
    assert refusal is not None
    assert (refusal.outcome.kind, refusal.again, refusal.outcome.wait_ms) == (kind, True, None)


def test_a_wait_of_an_hour_before_the_next_call_is_told_with_it() -> None:
    refusal = says(CLAUDE, api_retry(1, delay_ms=2_892_000)).refusal
    assert refusal is not None
    assert refusal.outcome.wait_ms == 2_892_000
    status = {"type": "retry", "message": "Too Many Requests", "next": 1_794_776_400_000 + 3_600_000}
    refusal = says(OPENCODE, {"type": "session.status", "status": status}).refusal
    assert refusal is not None
    assert refusal.outcome.wait_ms == 3_600_000
    assert says(OPENCODE, {"type": "session.status", "status": {"type": "busy"}}).refusal is None


def refusal_of(read: Reader) -> AgentRefusal | None:
    return read.refusal


def standing(read: Reader) -> AgentRefusal:
    found = refusal_of(read)
    assert found is not None
    return found


def test_text_tells_of_calls_that_are_made_again_too() -> None:
    read = reader(GEMINI)
    read.feed(
        2, b"Attempt 1 failed: Resource has been exhausted\nSuggested retry after 2.5s.. Retrying after 5078ms...\n"
    )
    assert standing(read).outcome.kind == "rate_limited"
    read = reader(AIDER)
    sentence = "The API provider has rate limited you. Try again later or check your quotas."
    error = f"litellm.RateLimitError: AnthropicException - b'{{}}'\n{sentence}\n"
    read.feed(1, error.encode())
    assert refusal_of(read) is None, "it may have given up"
    read.feed(1, b"Retrying in 0.2 seconds...\n")
    assert (standing(read).outcome.kind, standing(read).outcome.wait_ms) == ("rate_limited", None)
    before = standing(read).mark
    read.feed(1, b"Hello!\nTokens: 2.1k sent, 12 received.\n")
    assert refusal_of(read) is None
    read.feed(1, error.encode() + b"Retrying in 0.2 seconds...\n")
    assert standing(read).mark != before, "it has got on meanwhile"
    for argv, line in (
        (CLAUDE[:2], 'API Error (429 {"error":{}}) · Retrying in 3 seconds… (attempt 2/10)'),
        (["codex", "exec", "hi"], "ERROR: stream error: exceeded retry limit, last status: 429; retrying 2/5 in 1s"),
    ):
        read = reader(argv)
        read.feed(2, f"{line}\n".encode())
        assert (standing(read).outcome.kind, standing(read).outcome.wait_ms) == ("rate_limited", None)
        read.feed(2, b"something else\n")
        assert refusal_of(read) is None


def test_a_refusal_is_over_when_the_agent_gets_on_and_the_next_one_has_another_mark() -> None:
    read = says(CLAUDE, api_retry(1), api_retry(2))
    first = read.refusal
    assert first is not None
    read = says(CLAUDE, api_retry(1), ANSWER)
    assert read.refusal is None
    read = says(CLAUDE, api_retry(1), ANSWER, api_retry(1))
    second = read.refusal
    assert second is not None
    assert second.mark != first.mark
    read.feed(1, json.dumps(api_retry(2)).encode() + b"\n")
    assert read.refusal is not None
    assert read.refusal.mark == second.mark, "the same row"
    read.feed(1, b"".join(json.dumps(each).encode() + b"\n" for each in (ANSWER, api_retry(1))))
    assert read.refusal.mark != second.mark
    assert read.judge(0, None).kind == "rate_limited", "it stands at the end"
    read.feed(1, json.dumps({"type": "result", "subtype": "success", "is_error": False}).encode() + b"\n")
    assert read.judge(0, None).kind == "ok", "one that healed has not failed"


def test_time_that_an_agent_waits_for_a_processor_is_not_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    waited_ms = 150_000.0
    monkeypatch.setattr(subject, "waited_for_processor_ms", lambda group: waited_ms if group == 7 else 0.0)
    told = Told()
    told.records_seen = 0
    ending = EarlyStop(told)
    ending.begin(0, 7)
    assert ending.verdict(180_000) == "", "most of the time it stood in the system's own queue"
    assert ending.next_deadline() == 330_000
    waited_ms = 150_500.0
    assert ending.verdict(330_000) == "no_record", "it had a processor, and said nothing"
    other = EarlyStop(told)
    other.begin(0, 8)
    assert other.verdict(180_000) == "no_record"


def test_how_long_a_group_waited_for_a_processor_is_read_from_the_system() -> None:
    group = os.getpgrp()
    assert subject.waited_for_processor_ms(group) >= 0
    assert subject.waited_for_processor_ms(1 << 22) == 0
