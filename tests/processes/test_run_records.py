"""Runs and jobs end with the usage of their agents' own records (rule U2): real processes, and made-up agents that
print and keep what the real ones do."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.usage import ESTIMATE, RECORD, Usage
from tests.processes.fleet import FLEETGATE, Fleet, Run, Terminal, kill_if_there
from tests.processes.job_fleet import Jobs

pytestmark = pytest.mark.processes

OPUS, GPT = "anthropic/claude-opus-4-6", "openai/gpt-5"
PRICES = '[prices]\n"openai/gpt-5" = { input = 2, output = 10 }\n'
CLAUDE = ["-p", "--output-format", "stream-json", "--verbose", "hi"]

# Prints and keeps what the real one does. Each run is one call: 1000 tokens in, 100 out, a cent.
# The file "say" has more for its output; a file "stay" holds it up before its result.
AGENT = r"""
import datetime, json, os, re, sys, time
name, args = os.path.basename(sys.argv[0]), sys.argv[1:]
def now(): return datetime.datetime.now(datetime.UTC).isoformat()
def told(records): print("\n".join(json.dumps(each, separators=(",", ":")) for each in records), flush=True)
def kept(path, records):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "a") as file:
        for each in records: file.write(json.dumps(each, separators=(",", ":")) + "\n")
with open("calls", "a") as file: file.write(".")
with open("arguments", "a") as file: file.write(" ".join(args) + "\n")
number = os.path.getsize("calls")
home = os.environ["HOME"]
if name == "claude":
    session = args[args.index("--resume") + 1] if "--resume" in args else f"ses-{number}"
    folder = os.path.join(home, ".claude", "projects", re.sub(r"[^A-Za-z0-9]", "-", os.getcwd()))
    usage = {"input_tokens": 1000, "output_tokens": 100}
    message = {"id": f"msg-{number}", "model": "claude-opus-4-6", "usage": usage, "content": []}
    told([{"type": "system", "subtype": "init", "session_id": session}] if "stream-json" in args else [])
    told([{"type": "assistant", "message": message, "session_id": session}] if "stream-json" in args else [])
    record = {"type": "assistant", "timestamp": now(), "message": message}
    kept(os.path.join(folder, f"{session}.jsonl"), [record, record])
    while os.path.exists("stay") and not os.environ.get("ONCE"): time.sleep(0.02)
    since = {"claude-opus-4-6": {"inputTokens": 1000, "outputTokens": 100, "costUSD": 0.01}}
    before = os.path.exists("before") and "--resume" in args
    total = {"claude-opus-4-6": {"inputTokens": 2000, "outputTokens": 200, "costUSD": 0.02}} if before else since
    result = {"type": "result", "subtype": "success", "is_error": False, "session_id": session, "uuid": str(number),
              "num_turns": 1, "usage": usage, "modelUsage": total, "model_usage_since_last_result": since}
    if os.path.exists("limit"):
        os.unlink("limit")
        result |= {"is_error": True, "result": "You've hit your session limit", "api_error_status": 429}
        told([result])
        sys.exit(1)
    told([result] if "stream-json" in args else [])
if name == "codex":
    session = args[args.index("resume") + 1] if "resume" in args else f"ses-{number}"
    usage = {"input_tokens": 1000, "cached_input_tokens": 400, "output_tokens": 100}
    total = {key: value * number for key, value in usage.items()}
    path = os.path.join(home, ".codex", "sessions", f"{datetime.datetime.now():%Y/%m/%d}", f"rollout-{session}.jsonl")
    count = {"type": "token_count", "info": {"total_token_usage": total, "last_token_usage": usage}}
    kept(path, [{"timestamp": now(), "type": "turn_context", "payload": {"cwd": os.getcwd(), "model": "gpt-5"}}])
    kept(path, [{"timestamp": now(), "type": "event_msg", "payload": count}] * 2)
    told([{"type": "thread.started", "thread_id": session}, {"type": "turn.completed", "usage": total}])
if os.path.exists("say"): print(open("say").read(), flush=True)
sys.exit(int(os.environ.get("CODE", "0")))
"""
ONE = Usage(1, 1000, 0, 0, 100, 10_000, RECORD)


@pytest.fixture
def agents(fleet: Fleet) -> Agents:
    return Agents(fleet)


class Agents:
    """Agents in a fleet, with a home of their own."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        for name in ("claude", "codex"):
            fleet.script(name, f"#!{sys.executable}\n{AGENT}")
        self.claude = [self.path("claude"), *CLAUDE]
        self.env = {"HOME": str(fleet.folder)}
        # The same, which never stays.
        fleet.script("once", f'#!/bin/sh\nONCE=1 exec {self.path("claude")} "$@"\n')

    def path(self, name: str) -> str:
        return str(self.fleet.folder / name)

    def run(self, name: str, *arguments: str, options: tuple[str, ...] = ()) -> Run:
        model = OPUS if name == "claude" else GPT
        return self.fleet.done("-m", model, *options, "--", self.path(name), *arguments, env=self.env)

    @property
    def released(self) -> list[ev.Released]:
        return [event for _, event in self.fleet.events_of(ev.Released)]

    def status(self) -> Any:
        return json.loads((self.fleet.folder / "status.json").read_text())


def test_u2_a_run_ends_with_the_usage_of_its_agents_result_in_the_log_and_in_the_status_file(agents: Agents):
    run = agents.run("claude", *CLAUDE, options=("--status-file", "status.json"))
    assert run.code == 0, run
    assert [event.usage for event in agents.released] == [ONE]
    assert agents.status()["usage"] == {
        "calls": 1,
        "input": 1000,
        "cache_read": 0,
        "cache_write": 0,
        "output": 100,
        "tokens": 1100,
        "cost_usd": 0.01,
        "source": "record",
    }
    assert run.err == "", "nothing is printed where nothing else would be"


def test_u2_of_a_resumed_session_only_the_new_part_counts(agents: Agents):
    (agents.fleet.folder / "before").touch()
    for _ in range(2):
        assert agents.run("claude", *CLAUDE, options=("--session", "one")).code == 0
    assert [event.usage for event in agents.released] == [ONE, ONE]


def test_u2_text_has_no_records_and_the_session_file_tells(agents: Agents):
    agents.fleet.configure("[prices]\nanthropic = { input = 5, output = 50 }\n")
    for _ in range(2):
        assert agents.run("claude", "--resume", "same", "-p", "hi").code == 0
    used = Usage(1, 1000, 0, 0, 100, 10_000, RECORD)
    assert [event.usage for event in agents.released] == [used, used], "each its own part, at the price of its model"


def test_u2_u3_codex_is_read_from_its_rollout_and_costs_what_the_prices_say(agents: Agents):
    agents.fleet.configure(PRICES)
    assert agents.run("codex", "exec", "--json", "hi").code == 0
    assert agents.run("codex", "exec", "--json", "resume", "ses-1", "hi").code == 0
    (first, second) = [event.usage for event in agents.released]
    assert first is not None
    assert (first.calls, first.input, first.cache_read, first.output) == (1, 600, 400, 100)
    assert first.cost is not None
    assert second == first


def test_u2_an_agent_that_prints_nonsense_as_its_record_ends_as_it_would(agents: Agents):
    nonsense = {"type": "result", "uuid": [], "num_turns": -1, "usage": 7, "modelUsage": {"x": {"inputTokens": 10**40}}}
    (agents.fleet.folder / "say").write_text(json.dumps(nonsense, separators=(",", ":")))
    run = agents.run("claude", *CLAUDE)
    assert run.code == 0, run
    (event,) = agents.released
    assert event.usage is not None
    assert event.usage.tokens <= 1100


def test_u2_of_a_command_that_is_no_agent_nothing_is_known(agents: Agents):
    assert agents.fleet.done("--", "true").code == 0
    (event,) = agents.released
    assert event.usage is None or event.usage.source == ESTIMATE


def test_v3_an_agent_that_cannot_be_started_used_nothing_which_is_known(agents: Agents):
    assert agents.fleet.done("-m", OPUS, "--", "./there-is-no-such-agent").code == 127
    assert [event.usage for event in agents.released] == [Usage(source=RECORD)]


def test_u2_an_agent_that_is_killed_counts_what_its_session_file_had_by_then(agents: Agents):
    fleet = agents.fleet
    (fleet.folder / "stay").touch()
    run = fleet.run("-m", OPUS, "--", agents.path("claude"), *CLAUDE, env=agents.env)
    fleet.until(lambda: "assistant" in run.out)
    (lease,) = fleet.state.leases.values()
    kill_if_there(int(lease.child.split("|")[3]))
    run.wait()
    (event,) = agents.released
    assert event.usage is not None
    assert (event.usage.calls, event.usage.input, event.usage.output) == (1, 1000, 100)


def test_u2_v3_when_the_run_itself_is_killed_nothing_counts_twice(agents: Agents):
    fleet = agents.fleet
    (fleet.folder / "stay").touch()
    run = fleet.run("-m", OPUS, "--", agents.path("claude"), *CLAUDE, env=agents.env)
    fleet.until(lambda: "assistant" in run.out)
    (lease,) = fleet.state.leases.values()
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    (fleet.folder / "stay").unlink()
    fleet.until(lambda: not Path(f"/proc/{lease.child.split('|')[3]}").exists())
    assert agents.run("claude", *CLAUDE).code == 0
    (mine,) = agents.released
    assert mine.usage == ONE
    fleet.gate.run_checks()
    lost = [event for _, event in fleet.events_of(ev.Reclaimed)]
    assert [event.id for event in lost] == [lease.id]
    assert all(event.usage is None or event.usage.source == ESTIMATE for event in lost), "what was reserved stands"


# The last line.


def test_u2_on_a_terminal_the_last_line_tells_what_the_run_used(agents: Agents):
    fleet = agents.fleet
    fleet.configure("")
    with Terminal(fleet) as terminal:
        terminal.line(f"export HOME={fleet.folder}; cd {fleet.folder}")
        terminal.line(f"{FLEETGATE[0]} run -m {OPUS} -- ./claude --resume same -p hi; echo code=$?")
        seen = terminal.wait(r"code=\d+\r\n")
        assert "fleetgate: 1k in, 100 out" in seen
        terminal.line(f"{FLEETGATE[0]} run -q -m {OPUS} -- ./claude --resume same -p hi; echo again=$?")
        seen = terminal.wait(r"again=\d+\r\n")
        assert "1k in" not in seen.rpartition("run -q")[2], "--quiet silences it"


def test_u2_a_run_that_says_why_it_ended_also_says_what_it_used(agents: Agents):
    (agents.fleet.folder / "limit").touch()
    run = agents.run("claude", *CLAUDE)
    assert run.code == 75, run
    assert "1k in, 100 out, $0.01, " in run.err.splitlines()[-1]
    assert "1k in" not in run.out


# A budget that stops agents (rule V7).

STOPS = """
[agents]
host = 5

[budgets]
"project:web" = { usd = "0.01", per = "day", when_empty = "stop" }
"""
BUDGET = "project:web usd/day"


@pytest.mark.parametrize("with_node", [False, True], ids=["direct", "node"])
def test_v7_when_a_budget_with_stop_is_used_up_a_running_agent_of_it_is_stopped_as_by_a_limit(
    agents: Agents, with_node: bool
):
    fleet = agents.fleet
    fleet.configure(STOPS)
    if with_node:
        node = fleet.start([*FLEETGATE, "node"])
        fleet.until(lambda: "listens" in node.err)
    stay = fleet.folder / "stay"
    stay.touch()
    concerned = [
        fleet.run("-m", OPUS, "--project", "web", "--status-file", "status.json", "--", *agents.claude, env=agents.env)
    ]
    other = fleet.run("-m", OPUS, "--project", "docs", "--", *agents.claude, env=agents.env)
    fleet.until(lambda: all("assistant" in run.out for run in (*concerned, other)))
    done = fleet.done(
        "-m", OPUS, "--project", "web", "--classify", "claude", "--", agents.path("once"), *CLAUDE, env=agents.env
    )
    assert done.code == 0, done
    (run,) = concerned
    assert run.wait() == 75, run
    assert f'stopped the agent: budget {BUDGET} is used up (when_empty = "stop")' in run.err
    assert agents.status()["outcome"]["evidence"] == f"budget {BUDGET} is used up"
    assert other.code is None, "another project goes on"
    assert not fleet.state.backoffs
    stay.unlink()
    assert other.wait() == 0, other


def test_v7_a_job_that_a_budget_stops_returns_to_the_queue_with_its_session_and_spends_no_retry(agents: Agents):
    fleet, jobs = agents.fleet, Jobs(agents.fleet)
    fleet.configure(STOPS)
    stay = fleet.folder / "stay"
    stay.touch()
    ident = jobs.quickly(*agents.claude, models=(OPUS,), env=agents.env, project="web", session="work", retries=0)
    jobs.worker(1)
    jobs.until(ident, "running")
    fleet.until(lambda: (fleet.folder / "calls").exists())
    fleet.until(lambda: "assistant" in jobs.cli("logs", ident).out)
    done = fleet.done(
        "-m", OPUS, "--project", "web", "--classify", "claude", "--", agents.path("once"), *CLAUDE, env=agents.env
    )
    assert done.code == 0, done
    view = jobs.until(ident, "queued")
    fleet.until(lambda: getattr(jobs.view(ident).reason, "code", "") == "budget")
    assert (view.job.failures, view.job.limits, view.job.why) == (0, 1, f"stopped: budget {BUDGET} is used up")
    stay.unlink()
    fleet.gate.one(cmd.ResetBudget(BUDGET))
    job = jobs.ended(ident).job
    assert (job.state, job.attempt) == ("succeeded", 2)
    assert "--resume ses-1" in (fleet.folder / "arguments").read_text()


# Jobs.


def test_u2_each_attempt_of_a_job_has_its_usage_and_the_job_has_them_all(agents: Agents):
    fleet, jobs = agents.fleet, Jobs(agents.fleet)
    fleet.configure("[agents]\nhost = 3\n")
    script = fleet.folder / "twice"
    script.write_text(
        f'#!/bin/sh\n[ -e failed ] || {{ touch failed; export CODE=3; }}\nexec {agents.path("claude")} "$@"\n'
    )
    script.chmod(0o755)
    ident = jobs.quickly(
        str(script), *CLAUDE, models=(OPUS,), env=agents.env, classify="claude", retries=1, session="work"
    )
    jobs.worker(1)
    job = jobs.ended(ident).job
    assert (job.state, job.attempt) == ("succeeded", 2)
    assert job.spent == Usage(2, 2000, 0, 0, 200, 20_000, RECORD)
    assert [(each.attempt, each.model, each.usage) for each in job.attempts_spent] == [(1, OPUS, ONE), (2, OPUS, ONE)]
    told = fleet.json("show", ident)
    assert told["usage"]["tokens"] == 2200
    assert [each["usage"]["cost_usd"] for each in told["attempts"]] == [0.01, 0.01]
    assert "2k in, 200 out, $0.02" in jobs.cli("show", ident).out
    assert "$0.02" in jobs.cli("jobs").out
