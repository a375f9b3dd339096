"""`fleetgate run --session` (rule R9) and what else a run tells while it goes on (R3, R5, B2): real processes, made-up
agents that print what the real ones do."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.gate import agent_sessions
from tests.processes.fleet import FLEETGATE, Fleet, Run, Terminal, is_alive

pytestmark = pytest.mark.processes

OPUS, SONNET, GPT = "anthropic/claude-opus-4-6", "anthropic/claude-sonnet-4-6", "openai/gpt-5"
HOUR = 3_600_000

# Notes its arguments; goes on with the session it is told, unless there is a file "gone"; else begins a new one.
AGENT = """
import json, os, sys, time
name, args = os.path.basename(sys.argv[0]), sys.argv[1:]
flag = {"claude": "--resume", "opencode": "--session", "codex": "resume"}[name]
resumed = args[args.index(flag) + 1] if flag in args else ""
with open("calls", "a") as file: file.write(json.dumps([name, *args]) + "\\n")
number = len(open("calls").readlines())
stale = {
    "claude": f"No conversation found with session ID: {resumed}",
    "opencode": "\\x1b[91m\\x1b[1mError: \\x1b[0mSession not found",
    "codex": f"Error: thread/resume: thread/resume failed: no rollout found for thread id {resumed} (code -32600)",
}
if resumed and os.path.exists("gone"):
    print(stale[name], file=sys.stderr)
    sys.exit(1)
session = resumed or os.environ.get("SAY", f"ses-{number}")
records = {
    "claude": [
        {"type": "system", "subtype": "init", "session_id": session},
        {"type": "result", "subtype": "success", "is_error": False, "session_id": session},
    ],
    "opencode": [{"type": "text", "sessionID": session, "part": {"type": "text", "text": "done"}}],
    "codex": [{"type": "thread.started", "thread_id": session}, {"type": "turn.completed"}],
}
for record in records[name]: print(json.dumps(record, separators=(",", ":")), flush=True)
while os.path.exists("stay"): time.sleep(0.01)
sys.exit(int(os.environ.get("CODE", "0")))
"""
ARGUMENTS = {
    "claude": ["-p", "--output-format", "stream-json", "hi"],
    "opencode": ["run", "--format", "json", "hi"],
    "codex": ["exec", "--json", "hi"],
}
RESUMED = {
    "claude": ["--resume", "ses-1", "-p", "--output-format", "stream-json", "hi"],
    "opencode": ["run", "--session", "ses-1", "--continue", "--format", "json", "hi"],
    "codex": ["exec", "--json", "resume", "ses-1", "hi"],
}


class Agents:
    """Agents in a fleet that note how they were started."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        for name in ARGUMENTS:
            fleet.script(name, f"#!{sys.executable}\n{AGENT}")

    def command(self, name: str) -> list[str]:
        return [str(self.fleet.folder / name), *ARGUMENTS[name]]

    def run(self, *options: str, agent: str = "claude", model: str = OPUS, **env: str) -> Run:
        argv = ["--session", "issue-7", "-m", model, *options, "--", *self.command(agent)]
        return self.fleet.done(*argv, env=env)

    def calls(self) -> list[list[str]]:
        path = self.fleet.folder / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def remembered(self) -> dict[tuple[str, ...], str]:
        """By agent, provider, account and key."""
        return {where[1:]: found.session for where, found in agent_sessions.every(self.fleet.gate.log)}

    def file(self, name: str) -> Path:
        return self.fleet.folder / name


@pytest.fixture
def agents(fleet: Fleet) -> Agents:
    return Agents(fleet)


@pytest.mark.parametrize("name", sorted(ARGUMENTS))
def test_r9_the_next_run_with_the_same_key_resumes_the_session(agents: Agents, name: str) -> None:
    assert agents.run(agent=name).code == 0
    assert agents.remembered() == {(name, "anthropic", "default", "issue-7"): "ses-1"}
    assert agents.run(agent=name).code == 0
    assert agents.calls() == [[name, *ARGUMENTS[name]], [name, *RESUMED[name]]]
    assert agents.remembered() == {(name, "anthropic", "default", "issue-7"): "ses-1"}
    released = [event for _, event in agents.fleet.events_of(ev.Released)]
    assert [event.session for event in released] == ["issue-7", "issue-7"]


@pytest.mark.parametrize("name", sorted(ARGUMENTS))
def test_r9_a_stale_session_is_tried_once_more_fresh(agents: Agents, name: str) -> None:
    agents.run(agent=name)
    agents.file("gone").touch()
    run = agents.run("--status-file", "status.json", agent=name)
    assert run.code == 0, run
    assert agents.calls()[1:] == [[name, *RESUMED[name]], [name, *ARGUMENTS[name]]]
    assert "no session ses-1 any more" in run.err
    assert agents.remembered() == {(name, "anthropic", "default", "issue-7"): "ses-3"}
    assert json.loads(agents.file("status.json").read_text())["outcome"]["kind"] == "ok"
    assert not agents.fleet.state.backoffs
    granted = agents.fleet.events_of(ev.Granted)
    assert len(granted) == 3, "the retry passed the gate too"


def test_r9_a_stale_session_is_forgotten_even_if_the_fresh_run_fails(agents: Agents) -> None:
    agents.run()
    agents.file("gone").touch()
    run = agents.run(agent="claude", CODE="3", SAY="-rf")
    assert run.code == 3, run
    assert len(agents.calls()) == 3, "tried once more, and only once"
    assert agents.remembered() == {}


def test_r9_where_stdout_and_stderr_are_one_a_stale_session_is_seen_too(agents: Agents) -> None:
    agents.run()
    agents.file("gone").touch()
    argv = [*FLEETGATE, "run", "--session", "issue-7", "-m", OPUS, "--", *agents.command("claude")]
    run = agents.fleet.start(["sh", "-c", '"$@" 2>&1', "sh", *argv])
    assert run.wait() == 0, run
    assert len(agents.calls()) == 3


def test_r9_a_failed_run_that_was_not_stale_is_not_tried_again(agents: Agents) -> None:
    assert agents.run(CODE="4").code == 4
    assert agents.remembered(), "what it has done so far can be resumed"
    assert agents.run(CODE="4").code == 4
    assert len(agents.calls()) == 2


def test_r9_a_pulse_never_resumes_and_overwrites_nothing(agents: Agents) -> None:
    agents.run()
    assert agents.run("--role", "pulse").code == 0
    assert agents.calls()[1] == ["claude", *ARGUMENTS["claude"]]
    assert agents.remembered() == {("claude", "anthropic", "default", "issue-7"): "ses-1"}
    agents.run()
    assert agents.calls()[2] == ["claude", *RESUMED["claude"]]


def test_r9_sessions_are_kept_apart_by_agent_provider_account_and_key(agents: Agents) -> None:
    agents.run(model=OPUS)
    agents.run(model="anthropic@work/claude-opus-4-6")
    agents.run(model=GPT)
    agents.run(model=OPUS, agent="opencode")
    agents.fleet.done("--session", "other", "-m", OPUS, "--", *agents.command("claude"))
    assert all("ses-1" not in call for call in agents.calls())
    agents.run(model=SONNET)
    assert agents.calls()[-1] == ["claude", *RESUMED["claude"]], "another model of the same account goes on with it"
    assert len(agents.remembered()) == 5


def test_r9_the_session_is_that_of_the_candidate_that_was_chosen(agents: Agents) -> None:
    agents.run(model=OPUS)
    agents.run(model=GPT)
    agents.fleet.gate.decide([cmd.BackOff(OPUS, "overloaded")])
    agents.run(model=f"{OPUS},{GPT}")
    assert agents.calls()[-1][1:3] == ["--resume", "ses-2"]


@pytest.mark.parametrize("bad", ["-rf", "--dangerously", "a b", "x\x1b[2J", "é", "x" * 129, "$(id)"])
def test_r9_what_cannot_be_a_session_id_is_not_taken(agents: Agents, bad: str) -> None:
    assert agents.run(SAY=bad).code == 0
    assert agents.remembered() == {}


def test_r9_what_stands_in_the_store_is_checked_as_well(agents: Agents) -> None:
    where = agent_sessions.place(agents.fleet.gate.host, "claude", OPUS, "issue-7")
    agents.fleet.gate.decide([], side=[agent_sessions.remember(where, "--dangerously-skip-permissions")])
    assert agents.run().code == 0
    assert agents.calls() == [["claude", *ARGUMENTS["claude"]]]


def test_r9_a_command_that_says_itself_what_to_resume_is_left_alone(agents: Agents) -> None:
    agents.run()
    own = [*agents.command("claude"), "--resume", "mine"]
    assert agents.fleet.done("--session", "issue-7", "-m", OPUS, "--", *own).code == 0
    assert agents.calls()[1] == ["claude", *own[1:]]
    assert list(agents.remembered().values()) == ["mine"]


def test_r9_one_live_run_per_key_while_it_waits_and_while_it_runs(agents: Agents) -> None:
    fleet = agents.fleet
    fleet.configure("[agents]\nhost = 1\n")
    slot = fleet.occupy()
    agents.file("stay").touch()
    first = fleet.waiting("--session", "issue-7", "--", *agents.command("claude"))
    second = fleet.done("--session", "issue-7", "--json", "--", "touch", "ran")
    assert second.code == 75, second
    reason = json.loads(second.out)["reason"]
    assert reason["code"] == "session_taken"
    assert "'issue-7'" in reason["text"]
    assert str(first.pid) in reason["text"]
    fleet.free(slot)
    fleet.until(lambda: agents.calls())
    third = fleet.done("--session", "issue-7", "--", "touch", "ran")
    assert third.code == 75, third
    assert "the session 'issue-7' is running" in third.err
    assert not agents.file("ran").exists()
    agents.file("stay").unlink()
    assert first.wait() == 0
    assert fleet.done("--session", "issue-7", "--", "true").code == 0


def test_r9_a_session_whose_run_was_killed_is_free_at_once(agents: Agents) -> None:
    fleet = agents.fleet
    fleet.configure("[agents]\nhost = 10\n")
    first = fleet.run("--session", "issue-7", "--", *fleet.sleeper("first", 30))
    fleet.until(lambda: fleet.has_started("first"))
    first.signal(signal.SIGKILL)
    first.wait()
    (life,) = fleet.lives()
    assert fleet.done("--session", "issue-7", "--", "true").code == 75, "its agent still runs"
    fleet.kill_sleeper(life.pid)
    fleet.until(lambda: not is_alive(life.pid))
    assert fleet.done("--session", "issue-7", "--", "true").code == 0


def test_r9_a_terminal_is_not_read_so_nothing_is_remembered_but_what_is_known_is_resumed(agents: Agents) -> None:
    agents.run()
    where = agent_sessions.place(agents.fleet.gate.host, "claude", OPUS, "issue-8")
    agents.fleet.gate.decide([], side=[agent_sessions.remember(where, "known")])
    with Terminal(agents.fleet) as terminal:
        for key in ("issue-8", "new"):
            terminal.line(" ".join([*FLEETGATE, "run", "--session", key, "-m", OPUS, "--", *agents.command("claude")]))
            terminal.wait("a terminal is not read")
            terminal.wait(Terminal.PROMPT)
    assert [call[1:3] for call in agents.calls()[1:]] == [["--resume", "known"], ["-p", "--output-format"]]
    assert sorted(agents.remembered().values()) == ["known", "ses-1"]


def test_r9_a_sandbox_before_the_command_hides_neither_the_agent_nor_its_session(agents: Agents) -> None:
    agents.fleet.script("box", '#!/bin/sh\necho "$1" >>boxed\nexec "$@"\n')
    agents.fleet.configure(f'[run]\nwrap = ["{agents.fleet.folder}/box"]\n')
    agents.run()
    assert agents.run().code == 0
    assert agents.calls()[1] == ["claude", *RESUMED["claude"]]
    assert len(agents.file("boxed").read_text().splitlines()) == 2


def test_r9_a_command_whose_sessions_are_not_known_gets_a_message(agents: Agents) -> None:
    run = agents.fleet.done("--session", "issue-7", "--", "true")
    assert run.code == 0
    assert "nothing can be resumed" in run.err
    run = agents.fleet.done("--session", "a\nb", "--", "touch", "ran")
    assert run.code == 64, run
    assert not agents.file("ran").exists()


# --- B2: a probe


def test_b2_the_first_activity_of_a_probe_ends_the_backoff_while_it_still_runs(agents: Agents) -> None:
    fleet = agents.fleet
    _to_be_probed(fleet)
    agents.file("stay").touch()
    run = fleet.run("-m", OPUS, "--", *agents.command("opencode"))
    fleet.until(lambda: not fleet.state.backoffs, what="the verdict of the probe")
    assert run.code is None, run
    assert fleet.holds(run)
    ((_, ended),) = fleet.events_of(ev.BackoffEnded)
    assert ended.why == "probe"
    agents.file("stay").unlink()
    assert run.wait() == 0


def test_b2_the_output_of_a_probe_does_not_wait_for_the_store(agents: Agents) -> None:
    fleet = agents.fleet
    _to_be_probed(fleet)
    body = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
    body += 'print(\'{"type":"text","sessionID":"s","part":{}}\\n\' * 50, flush=True)\n'
    body += "while os.path.exists('stay'): time.sleep(0.01)\n"
    agents.file("stay").touch()
    program = fleet.script("opencode", f"#!{sys.executable}\n{body}")
    run = fleet.run("-m", OPUS, "--", program, "run", "--format", "json", "hi")
    fleet.until(lambda: any(lease.child for lease in fleet.state.leases.values()))
    fleet.gate.log.lock()
    try:
        agents.file("go").touch()
        fleet.until(lambda: run.out.count("\n") >= 50, what="its output")
    finally:
        fleet.gate.log.unlock()
    agents.file("stay").unlink()
    assert run.wait() == 0
    assert not fleet.state.backoffs, "it ended well"


def _to_be_probed(fleet: Fleet) -> None:
    """Write down a long backoff that is so old that one may try."""
    replica = fleet.gate.replica
    fleet.gate.read()
    now = fleet.gate.now()
    event = ev.BackedOff(OPUS, "model", "overloaded", now - 7 * HOUR, now + HOUR)
    replica.log.lock()
    try:
        replica.log.begin()
        replica.log.append(replica.position, now, [event], replica.due)
    finally:
        replica.log.unlock()
    assert fleet.state.backoffs[OPUS].lets_probe(now)


# --- R5: the group


def test_r5_the_slot_is_not_free_while_a_process_of_the_ended_group_lives(fleet: Fleet) -> None:
    """The agent's first process obeys TERM, one of its group does not; and the wrapper cannot speak."""
    fleet.configure("[agents]\nhost = 1\n")
    program = fleet.script(
        "opencode",
        "#!/bin/sh\n"
        """sh -c 'trap "" TERM; echo $$ >deaf; exec sleep 300' &\n"""
        "while [ ! -s deaf ]; do sleep 0.05; done\n"
        """echo '{"type":"text","sessionID":"ses_1","part":{}}'\n"""
        "exec sleep 300\n",
    )
    run = fleet.run("--silence", "4s", "-m", OPUS, "--", program, "run", "--format", "json", "hi")
    (lease,) = fleet.until(lambda: [lease for lease in fleet.state.leases.values() if lease.child])
    agent = int(lease.child.split("|")[3])
    fleet.until(lambda: not is_alive(agent), what="the end of the agent's first process")
    fleet.until(lambda: fleet.state.leases[lease.id].lives_with == lease.ticket.holder, what="the slot's new life")
    run.signal(signal.SIGSTOP)
    deaf = int((fleet.folder / "deaf").read_text())
    assert is_alive(deaf)
    assert fleet.done("--no-wait", "--", "touch", "ran").code == 75, "its group still lives"
    run.signal(signal.SIGCONT)
    assert run.wait(30) == 75, run
    assert not is_alive(deaf), "who ignores TERM is killed"
    assert fleet.is_empty()
    assert fleet.done("--no-wait", "--", "true").code == 0


def test_l2_a_deaf_agent_keeps_its_slot_when_the_wrapper_that_ends_it_is_killed(fleet: Fleet) -> None:
    fleet.configure("[agents]\nhost = 1\n")
    program = fleet.script(
        "opencode",
        "#!/bin/sh\n"
        "trap ': >told' TERM\n"
        """echo '{"type":"text","sessionID":"ses_1","part":{}}'\n"""
        "while :; do sleep 300; done\n",
    )
    run = fleet.run("--silence", "4s", "-m", OPUS, "--", program, "run", "--format", "json", "hi")
    fleet.until(lambda: (fleet.folder / "told").exists())
    (lease,) = fleet.state.leases.values()
    run.signal(signal.SIGKILL)
    run.wait()
    agent = int(lease.child.split("|")[3])
    assert is_alive(agent)
    assert fleet.done("--no-wait", "--", "touch", "ran").code == 75
    os.kill(agent, signal.SIGKILL)
    fleet.until(lambda: not is_alive(agent))
    assert fleet.done("--no-wait", "--", "true").code == 0


# --- R3: a usage window


def test_r3_a_usage_window_is_reported_with_its_reset_in_local_time_and_utc(fleet: Fleet) -> None:
    text = "You've hit your session limit · resets 4:20pm (Asia/Tbilisi)"
    record = {"type": "result", "subtype": "success", "is_error": True, "result": text, "session_id": "s"}
    program = fleet.script("claude", f"#!{sys.executable}\nimport sys\nprint({json.dumps(record)!r})\nsys.exit(1)\n")
    env = {"TZ": "Asia/Tokyo"}
    argv = ["-m", OPUS, "--", program, "-p", "--output-format", "stream-json", "hi"]
    run = fleet.done(*argv, env=env)
    assert run.code == 75, run
    assert "the usage window of anthropic resets at" in run.err
    assert "21:20 JST" in run.err
    assert "12:20 UTC)" in run.err
    again = fleet.done("--no-wait", *argv, env=env)
    assert again.code == 75
    assert "21:20 JST" in again.err
    waits = fleet.waiting(*argv, env=env)
    fleet.until(lambda: "until " in waits.err and " UTC)" in waits.err)
