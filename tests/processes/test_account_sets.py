"""Runs and jobs on a set of accounts (rules Z1 to Z4): each has the login of the account that its slot is of."""

from __future__ import annotations

import json

import pytest

from fleetgate.core import events as ev
from tests.processes.fleet import FLEETGATE, Fleet
from tests.processes.job_fleet import Jobs

pytestmark = pytest.mark.processes

SHOW = ["sh", "-c", 'echo "$FLEETGATE_MODEL|$CLAUDE_CONFIG_DIR|$0"', "{account}"]
MODEL = "anthropic/claude-x"
SETS = """
[accounts]
anthropic = { use = ["work", "spare"], then = ["api"] }
[agents]
host = 9
"anthropic@work" = 1
"anthropic@spare" = 1
"anthropic@api" = 1
[providers."anthropic@work"]
env = { CLAUDE_CONFIG_DIR = "~/work" }
[providers."anthropic@spare"]
env = { CLAUDE_CONFIG_DIR = "~/spare" }
"""


def home(fleet: Fleet, *logins: str) -> dict[str, str]:
    folder = fleet.folder / "home"
    folder.mkdir(exist_ok=True)
    for name in logins:
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / ".credentials.json").write_text(json.dumps({"claudeAiOauth": {"accessToken": "t" * 30}}))
    return {"HOME": str(folder)}


def listed(fleet: Fleet, *words: str) -> str:
    """What a command prints, in one line."""
    run = fleet.start([*FLEETGATE, *words])
    assert run.wait() == 0
    return " ".join(run.out.split())


def test_z1_runs_use_the_accounts_of_a_set_with_their_logins(fleet: Fleet):
    fleet.configure(SETS)
    env = home(fleet, "work", "spare")
    assert fleet.done("-m", MODEL, "--", *SHOW, env=env).out == f"anthropic@work/claude-x|{env['HOME']}/work|work\n"
    go = fleet.folder / "go"
    runs = [fleet.run("-m", MODEL, "--", *fleet.sleeper(name, go), env=env) for name in ("a", "b", "c")]
    fleet.until(lambda: len(fleet.state.leases) == 3)
    assert sorted(lease.model.partition("/")[0] for lease in fleet.state.leases.values()) == [
        "anthropic@api",
        "anthropic@spare",
        "anthropic@work",
    ]
    fourth = fleet.waiting("-m", MODEL, "--", *SHOW, env=env)
    (ticket,) = fleet.json("queue")["tickets"]
    assert ticket["reason"]["text"] == "no account has room: work, spare and api are full"
    go.touch()
    assert [run.wait() for run in [*runs, fourth]] == [0, 0, 0, 0]
    spilled = [event.why for _, event in fleet.events_of(ev.Granted) if event.why]
    assert spilled[0] == "spilled to api: work and spare are full"  # the fourth may have been spilled, too
    fleet.check_log()


def test_z4_the_queue_says_which_accounts_a_request_may_use_and_why_none_has_room(fleet: Fleet):
    fleet.configure(SETS)
    env = home(fleet, "spare")
    go = fleet.folder / "go"
    runs = [fleet.run("-m", MODEL, "--", *fleet.sleeper(name, go), env=env) for name in ("a", "b")]
    fleet.until(lambda: len(fleet.state.leases) == 2)
    third = fleet.waiting("-m", MODEL, "--", *SHOW, env=env)
    (ticket,) = fleet.json("queue")["tickets"]
    assert ticket["accounts"] == ["spare", "api"]
    closed = "no account has room: spare and api are full, work is without a credential for this request"
    assert ticket["reason"]["text"] == closed
    for words in (("queue",), ("top", "--once")):
        shown = listed(fleet, *words)
        assert "anthropic without an account uses work, spare, then api" in shown
    assert closed in listed(fleet, "queue")
    go.touch()
    assert [run.wait() for run in [*runs, third]] == [0, 0, 0]
    reasons = [event.why for _, event in fleet.events_of(ev.Granted) if event.why]
    assert reasons[0] == "spilled to api: spare is full, work is without a credential for this request"


def test_z1_an_account_whose_login_is_missing_is_left_out(fleet: Fleet):
    fleet.configure(SETS)
    env = home(fleet, "spare")
    assert fleet.done("-m", MODEL, "--", *SHOW, env=env).out == f"anthropic@spare/claude-x|{env['HOME']}/spare|spare\n"


def test_z1_an_agent_that_an_account_refuses_is_started_on_another(fleet: Fleet):
    fleet.configure(SETS)
    agent = fleet.script(
        "claude",
        "#!/bin/sh\n"
        f'echo "$CLAUDE_CONFIG_DIR" >> {fleet.folder}/seen\n'
        'case "$FLEETGATE_MODEL" in anthropic@work/*)\n'
        """echo '{"type":"result","subtype":"success","is_error":true,"api_error_status":429,"""
        """"result":"API Error: 429 rate_limit_error","session_id":"s"}'; exit 1;; esac\n"""
        """echo '{"type":"assistant","message":{"content":[]}}'\n"""
        """echo '{"type":"result","subtype":"success","is_error":false,"result":"done","session_id":"s"}'\n""",
    )
    env = home(fleet, "work", "spare")
    claude = [str(agent), "-p", "hi", "--output-format", "stream-json"]
    run = fleet.start([*FLEETGATE, "run", "-m", MODEL, "--", *claude], env)
    assert run.wait() == 0, run
    seen = (fleet.folder / "seen").read_text().splitlines()
    assert seen == [f"{env['HOME']}/work", f"{env['HOME']}/spare"]


def test_z3_a_session_is_resumed_on_the_account_that_has_it(fleet: Fleet):
    fleet.configure(SETS)
    env = home(fleet, "work", "spare")
    first = fleet.done("--session", "nightly", "-m", MODEL, "--", *SHOW, env=env).out
    fleet.done("-m", MODEL, "--", *SHOW, env=env)
    assert fleet.done("--session", "nightly", "-m", MODEL, "--", *SHOW, env=env).out == first


def test_z1_jobs_use_the_accounts_of_a_set(fleet: Fleet):
    fleet.configure(SETS)
    jobs, env = Jobs(fleet), home(fleet, "work", "spare")
    script = 'echo "$CLAUDE_CONFIG_DIR"; sleep 1'
    submitted = [fleet.start([*FLEETGATE, "submit", "-m", MODEL, "--", "sh", "-c", script], env) for _ in range(2)]
    assert [each.wait() for each in submitted] == [0, 0]
    fleet.start([*FLEETGATE, "worker", "-n", "2"], env)
    idents = [each.out.strip() for each in submitted]
    assert [jobs.ended(ident).state for ident in idents] == ["succeeded", "succeeded"]
    outputs = sorted(jobs.cli("logs", ident).out for ident in idents)
    assert outputs == [f"{env['HOME']}/spare\n", f"{env['HOME']}/work\n"]
