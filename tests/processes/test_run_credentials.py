"""`fleetgate run` and credentials that change or are missing (rules B3, B4): real processes, made-up agents."""

from __future__ import annotations

import json
import os
import sys

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from tests.processes.fleet import Fleet

pytestmark = pytest.mark.processes

OPUS, GPT = "anthropic/claude-opus-4-6", "openai/gpt-5"
REFUSED = {"type": "error", "error": {"name": "ProviderAuthError", "data": {"message": "no"}}}
SECRET = "sk-ant-oat01-verysecretindeed"


def configured(fleet: Fleet) -> None:
    fleet.configure(
        f'[providers.anthropic]\ncredential_file = "{fleet.folder}/auth.json"\n[providers.openai]\nkey_env = "MY_KEY"\n'
    )
    login(fleet, SECRET)


def login(fleet: Fleet, token: str) -> None:
    (fleet.folder / "auth.json").write_text(json.dumps({"access_token": token}))


def refused_agent(fleet: Fleet, before: str = "") -> list[str]:
    """An agent whose login is refused, after it has done something."""
    text = f"#!{sys.executable}\nimport json, sys\n{before}\nprint(json.dumps({REFUSED!r}))\nsys.exit(1)\n"
    return [fleet.script("opencode", text), "run", "--format", "json", "hi"]


def last_look(fleet: Fleet) -> list[int]:
    """When a process in the queue last looked for new credentials."""
    return [path.stat().st_mtime_ns for path in fleet.home.glob("looked.*")]


def test_b3_a_refused_login_is_over_when_the_file_has_another_content_and_not_when_it_was_touched(fleet: Fleet) -> None:
    configured(fleet)
    assert fleet.done("-m", OPUS, "--", *refused_agent(fleet)).code == 75
    assert list(fleet.state.backoffs) == ["anthropic"]
    os.utime(fleet.folder / "auth.json")
    again = fleet.done("-m", OPUS, "--", "true")
    assert again.code == 75, again
    assert "log in again" in again.err
    login(fleet, "another")
    assert fleet.done("-m", OPUS, "--", "true").code == 0
    assert [event for _, event in fleet.events_of(ev.BackoffEnded)] == [ev.BackoffEnded("anthropic", "credential")]
    fleet.close_gate()
    stored = b"".join(path.read_bytes() for path in fleet.home.rglob("*") if path.is_file())
    assert b"ProviderAuthError" in stored
    assert SECRET.encode() not in stored


def test_b3_an_agent_that_logs_in_while_it_runs_does_not_make_the_old_refusal_stick(fleet: Fleet) -> None:
    configured(fleet)
    relogin = f"open({str(fleet.folder / 'auth.json')!r}, 'w').write('{{\"access_token\": \"new\"}}')"
    assert fleet.done("-m", OPUS, "--", *refused_agent(fleet, relogin)).code == 75
    assert list(fleet.state.backoffs) == ["anthropic"]
    assert fleet.done("-m", OPUS, "--", "true").code == 0


def test_b3_a_waiting_run_enters_without_help_after_a_new_login(fleet: Fleet) -> None:
    configured(fleet)
    assert fleet.done("-m", OPUS, "--", *refused_agent(fleet)).code == 75
    fleet.gate.decide([cmd.BackOff(GPT, "overloaded", 3_600_000)])
    run = fleet.waiting("-m", f"{OPUS},{GPT}", "--", "sh", "-c", "echo $FLEETGATE_MODEL", env={"MY_KEY": "k"})
    os.utime(fleet.folder / "auth.json")
    for _ in range(3):
        before = last_look(fleet)
        fleet.until(lambda seen=before: last_look(fleet) != seen, what="another look")  # type: ignore[misc]
    assert fleet.waits(run), "a touched file is the same login"
    login(fleet, "another")
    assert run.wait() == 0, run
    assert run.out == f"{OPUS}\n"


def test_r3_a_run_that_waits_for_one_candidate_is_not_refused_for_the_others_login(fleet: Fleet) -> None:
    configured(fleet)
    assert fleet.done("-m", OPUS, "--", *refused_agent(fleet)).code == 75
    fleet.gate.decide([cmd.BackOff(GPT, "overloaded", 7_200_000)])  # later than the other one ends
    run = fleet.waiting("-m", f"{OPUS},{GPT}", "--", "sh", "-c", "echo $FLEETGATE_MODEL", env={"MY_KEY": "k"})
    for _ in range(3):
        before = last_look(fleet)
        fleet.until(lambda seen=before: last_look(fleet) != seen, what="another look")  # type: ignore[misc]
    assert fleet.waits(run)
    fleet.gate.decide([cmd.BackOff(GPT, "quota", 7_200_000)])
    assert run.wait() == 75, "now both need a person"


def test_b4_candidates_without_credentials_are_passed_over_and_it_is_said(fleet: Fleet) -> None:
    configured(fleet)
    echo = ("--", "sh", "-c", "echo $FLEETGATE_MODEL")
    run = fleet.done("-m", f"{GPT},{OPUS}", *echo)
    assert (run.code, run.out) == (0, f"{OPUS}\n")
    assert f"skipped {GPT}: the variable MY_KEY is not set: export it" in run.err
    assert fleet.done("-q", "-m", f"{GPT},{OPUS}", *echo).err == ""
    assert fleet.done("-m", f"{GPT},{OPUS}", *echo, env={"MY_KEY": "k"}).out == f"{GPT}\n"
    alone = fleet.done("-m", GPT, *echo)
    assert (alone.out, alone.err) == (f"{GPT}\n", ""), "its agent may find a credential elsewhere"
    assert not fleet.state.backoffs


def test_b4_none_with_credentials_exits_75_and_runs_nothing(fleet: Fleet) -> None:
    configured(fleet)
    (fleet.folder / "auth.json").unlink()
    run = fleet.done("--status-file", "status.json", "-m", f"{GPT},{OPUS}", "--", "touch", "ran")
    assert run.code == 75, run
    assert "the variable MY_KEY is not set" in run.err
    assert "auth.json: log in" in run.err
    told = json.loads((fleet.folder / "status.json").read_text())
    assert (told["admitted"], told["reason"]["code"]) == (False, "no_credentials")
    assert not (fleet.folder / "ran").exists()
    assert not fleet.state.backoffs
