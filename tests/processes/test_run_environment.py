"""What the environment and the config file say to `fleetgate run` (rules C2-C4, R1, R7, R8)."""

from __future__ import annotations

import json
import signal
from functools import partial

import pytest

from fleetgate.core import events as ev
from tests.processes.fleet import Fleet, Run
from tests.timed import within

pytestmark = pytest.mark.processes

OPUS = "anthropic/claude-opus-4-6"
SONNET = "anthropic/claude-sonnet-4-6"
OPUS_4 = '[agents]\nhost = 50\n"anthropic/claude-opus-*" = 4\n'


def sleepers(fleet: Fleet, count: int, *options: str, env: dict[str, str] | None = None) -> list[Run]:
    """Runs that sleep, started one after the other."""
    runs = []
    for _ in range(count):
        name = f"s{len(fleet.runs)}"
        runs.append(fleet.run(*options, "--", *fleet.sleeper(name, 60), env=env))
        fleet.until(partial(fleet.has_started, name), what=f"the start of {name}")
    return runs


# --- caps of the environment


def test_c3_the_opus_cap_of_the_environment_replaces_that_of_the_file(fleet: Fleet):
    """A file that says 4, and 6 for those who have it: the fifth and the sixth enter, the seventh waits."""
    fleet.configure(OPUS_4)
    env = {"AIDEVOPS_OPUS_CONCURRENCY_CAP": "6"}
    sleepers(fleet, 4, "-m", OPUS)
    refused = fleet.done("--no-wait", "-m", OPUS, "--", "true")
    assert refused.code == 75, "the file's own cap holds for those without the variable"
    sleepers(fleet, 2, "-m", OPUS, env=env)
    seventh = fleet.waiting("-m", OPUS, "--", *fleet.sleeper("seventh", 0), env=env)
    told = fleet.done("--no-wait", "--json", "-m", OPUS, "--", "true", env=env)
    reason = json.loads(told.out)["reason"]
    assert reason["code"] == "opus_concurrency_cap"
    assert "6 of 6 slots" in reason["text"]
    fleet.runs[0].signal(signal.SIGTERM)
    assert seventh.wait() == 0
    assert fleet.done("--no-wait", "-m", OPUS, "--", "true").code == 75, "five run, and the file says four"


def test_c3_the_opus_cap_of_the_environment_may_also_be_lower(fleet: Fleet):
    fleet.configure(OPUS_4)
    env = {"AIDEVOPS_OPUS_CONCURRENCY_CAP": "1"}
    sleepers(fleet, 1, "-m", OPUS, env=env)
    assert fleet.done("--no-wait", "-m", OPUS, "--", "true", env=env).code == 75
    assert fleet.done("--no-wait", "-m", OPUS, "--", "true").code == 0
    assert fleet.done("--no-wait", "-m", "anthropic/claude-sonnet-4-6", "--", "true", env=env).code == 0


def test_c3_fleetgate_agents_sets_caps_for_those_who_have_it(fleet: Fleet):
    """Over the built-in three; and a selector that nothing else caps."""
    env = {"FLEETGATE_AGENTS": "host=5, openai/*=1"}
    sleepers(fleet, 3)
    refused = fleet.done("--no-wait", "--json", "--", "true")
    assert refused.code == 75
    assert "built in" in json.loads(refused.out)["reason"]["text"]
    assert fleet.done("--no-wait", "--", "true", env=env).code == 0
    sleepers(fleet, 1, "-m", "openai/gpt-5", env=env)
    told = fleet.done("--no-wait", "--json", "-m", "openai/gpt-5", "--", "true", env=env)
    assert told.code == 75
    assert json.loads(told.out)["reason"]["pool"] == "openai/*"
    sleepers(fleet, 1, env=env)
    assert fleet.done("--no-wait", "--", "true", env=env).code == 75


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FLEETGATE_AGENTS", "host"),
        ("FLEETGATE_AGENTS", "host=0"),
        ("FLEETGATE_AGENTS", "host=5,host=6"),
        ("AIDEVOPS_OPUS_CONCURRENCY_CAP", "many"),
        ("FLEETGATE_BYPASS", "perhaps"),
        ("FLEETGATE_MODELS", "opus"),
    ],
)
def test_q1_a_bad_variable_is_named_and_nothing_is_run(fleet: Fleet, name: str, value: str):
    run = fleet.done("--", "touch", "ran", env={name: value})
    assert run.code == 78, run
    assert name in run.err
    assert "Traceback" not in run.err
    assert not (fleet.folder / "ran").exists()


# --- running without asking


def test_c3_a_bypass_runs_at_once_and_is_recorded(fleet: Fleet):
    fleet.configure("[agents]\nhost = 1\n")
    fleet.occupy()
    command = ["sh", "-c", "echo model=$FLEETGATE_MODEL; sleep 0.4; exit 6", "{model}"]
    run = fleet.done("-m", OPUS, "--status-file", "status.json", "--", *command, env={"FLEETGATE_BYPASS": "1"})
    assert run.code == 6, run
    assert run.out == f"model={OPUS}\n"
    ((_, bypassed),) = fleet.events_of(ev.Bypassed)
    assert bypassed.models == (OPUS,)
    assert bypassed.command.startswith("sh -c echo")
    assert f"|{run.pid}|" in bypassed.holder
    told = json.loads((fleet.folder / "status.json").read_text())
    assert (told["admitted"], told["exit_code"], told["lease"]) == (True, 6, None)
    assert len(fleet.state.leases) == 1
    within(told["waited_s"], 0.4, "s that it waited: the time it ran was counted, too")


def test_c3_a_bypass_runs_also_where_there_is_no_store(fleet: Fleet):
    env = {"FLEETGATE_BYPASS": "1", "FLEETGATE_HOME": "/proc/nowhere"}
    run = fleet.done("--", "sh", "-c", "exit 6", env=env)
    assert run.code == 6
    assert "bypass not recorded" in run.err


# --- which model


def agent(fleet: Fleet, name: str) -> str:
    """An agent of that name, which says what it was started with."""
    return fleet.script(name, '#!/bin/sh\necho "$FLEETGATE_MODEL|$FLEETGATE_LEASE|$*"\n')


@pytest.mark.parametrize(
    ("name", "arguments", "model"),
    [
        ("claude", "-p --model opus", "anthropic/claude-opus-latest"),
        ("claude", "--model=claude-sonnet-4-6 -p", "anthropic/claude-sonnet-4-6"),
        ("opencode", "run -m anthropic/claude-opus-4-6", OPUS),
        ("opencode", "run --model openrouter/meta/llama-4", "openrouter/meta/llama-4"),
        ("codex", "exec -m gpt-5", "openai/gpt-5"),
        ("gemini", "-m gemini-2.5-pro", "google/gemini-2.5-pro"),
        ("aider", "--model claude-opus-4-6", OPUS),
        ("claude", "-p", ""),
        ("claude", "-p -- --model opus", ""),
        ("unknown", "-m anthropic/claude-opus-4-6", ""),
    ],
)
def test_r1_without_m_the_model_is_that_of_a_known_agents_own_flag(fleet: Fleet, name: str, arguments: str, model: str):
    run = fleet.done("--", agent(fleet, name), *arguments.split())
    assert run.code == 0, run
    ((_, released),) = fleet.events_of(ev.Released)
    assert run.out == f"{model}|{released.id}|{arguments}\n"
    assert released.model == model


def test_r1_an_agents_own_flag_is_held_to_the_caps_of_its_model(fleet: Fleet):
    fleet.configure('[agents]\nhost = 50\n"anthropic/claude-opus-*" = 1\n')
    sleepers(fleet, 1, "-m", OPUS)
    refused = fleet.done("--no-wait", "--json", "--", agent(fleet, "claude"), "--model", "opus")
    assert refused.code == 75
    assert json.loads(refused.out)["reason"]["code"] == "opus_concurrency_cap"
    assert fleet.done("--no-wait", "--", agent(fleet, "claude"), "--model", "sonnet").code == 0


def test_r1_else_the_model_comes_from_the_environment_and_then_from_the_file(fleet: Fleet):
    fleet.configure('models = ["anthropic/claude-sonnet-4-6", "openai/gpt-5"]\n')
    script = agent(fleet, "opencode")
    first = fleet.done("--", script, "run", "hi").out
    assert first.startswith("anthropic/claude-sonnet-4-6|")
    assert first.endswith("|run --model anthropic/claude-sonnet-4-6 hi\n"), "the agent was not told"
    assert fleet.done("--", script, env={"FLEETGATE_MODELS": "google/gemini-2.5-pro"}).out.startswith("google/gemini")
    assert fleet.done("--", script, env={"AIDEVOPS_HEADLESS_MODELS": "openai/o3"}).out.startswith("openai/o3|")
    assert fleet.done("--", script, env={"FLEETGATE_PROVIDERS": "openai"}).out.startswith("openai/gpt-5|")
    barred = fleet.done("-m", "x/y", "--", script, env={"AIDEVOPS_HEADLESS_PROVIDER_ALLOWLIST": "openai"})
    assert barred.code == 64
    assert "AIDEVOPS_HEADLESS_PROVIDER_ALLOWLIST" in barred.err


def test_a_command_that_is_no_agent_takes_no_model_unless_it_has_a_place_for_one(fleet: Fleet):
    fleet.configure('models = ["anthropic/claude-sonnet-4-6"]\n')
    script = agent(fleet, "unknown")
    assert fleet.done("--", script).out.startswith("|")
    assert fleet.done("--", "echo", "{model}").out == "anthropic/claude-sonnet-4-6\n"
    assert fleet.done("-m", "none", "--", agent(fleet, "opencode")).out.startswith("|")


def test_the_command_runs_with_the_model_of_its_slot(fleet: Fleet):
    script = agent(fleet, "opencode")
    run = fleet.done("-m", "anthropic/claude-sonnet-4-6", "--", script, "run", "-m", OPUS, "hi")
    assert run.out.endswith("|run -m anthropic/claude-sonnet-4-6 hi\n")
    assert "opencode runs with claude-sonnet-4-6, the model of its slot; its command says anthropic/claude" in run.err
    refused = fleet.done("-m", "openai/gpt-5", "--", agent(fleet, "claude"), "--model", "opus")
    assert refused.code == 64
    assert "claude is told to use opus, and the slot is for openai/gpt-5" in refused.err


def test_after_a_refusal_the_next_candidate_is_really_used(fleet: Fleet):
    """The agent says what refused it in a way that is understood; the second run must be told the second model."""
    script = fleet.folder / "opencode"
    script.write_text(
        "#!/bin/sh\n"
        'printf "%s\\n" "$*" >> "$0.calls"\n'
        'case "$*" in *sonnet*) echo "Error: Too Many Requests" >&2; exit 1;; esac\n'
    )
    script.chmod(0o755)
    run = fleet.done("-m", f"anthropic/claude-sonnet-4-6,{OPUS}", "--", str(script), "run", "-m", SONNET, "hi")
    assert run.code == 0, run
    calls = (fleet.folder / "opencode.calls").read_text().splitlines()
    assert calls == [f"run -m {SONNET} hi", f"run -m {OPUS} hi"]
    assert [event.key for _, event in fleet.events_of(ev.BackedOff)] == [SONNET]


def test_a_model_that_is_unknown_is_reported_once(fleet: Fleet):
    run = fleet.done("--", agent(fleet, "claude"), "-p")
    assert run.err.count("cannot tell which model claude will use") == 1
    assert "cannot tell" not in fleet.done("-q", "--", agent(fleet, "claude"), "-p").err
    assert "cannot tell" not in fleet.done("-m", "none", "--", agent(fleet, "claude"), "-p").err


@pytest.mark.parametrize("named", ["opus[1m]", "claude-opus-4-6[1m]", "opusplan", "us.anthropic.claude-opus-4-6-v1:0"])
def test_every_name_of_opus_is_held_to_the_opus_cap(fleet: Fleet, named: str):
    fleet.configure('[agents]\nhost = 50\n"anthropic/claude-opus-*" = 1\n')
    sleepers(fleet, 1, "-m", OPUS)
    claude = agent(fleet, "claude")
    assert fleet.done("--no-wait", "--", claude, f"--model={named}").code == 75
    assert fleet.done("--no-wait", "--", claude, "-p", env={"ANTHROPIC_MODEL": named}).code == 75
    assert fleet.done("--no-wait", "--", "sh", "-c", f"{claude} --model '{named}'").code == 75


def test_r1_placeholders_are_replaced_in_the_arguments(fleet: Fleet):
    run = fleet.done("-m", "openai@work/gpt-5", "--", "echo", "{model}", "x{provider}-{account}/{name}", "{other}", "{")
    assert run.out == "openai@work/gpt-5 xopenai-work/gpt-5 {other} {\n"
    plain = fleet.done("-m", "openai/gpt-5", "--", "echo", "{account}", "$HOME", "a b", "*")
    assert plain.out == "default $HOME a b *\n", "arguments went through a shell"
    assert fleet.done("--", "echo", "{model}").out == "{model}\n"


def test_r1_with_any_the_next_candidate_is_taken_where_the_first_is_full(fleet: Fleet):
    fleet.configure('[agents]\nhost = 50\n"anthropic/claude-opus-*" = 1\n')
    sleepers(fleet, 1, "-m", OPUS)
    both = f"{OPUS},openai/gpt-5"
    assert fleet.done("--no-wait", "-m", both, "--", "true").code == 75
    run = fleet.done("--no-wait", "--any", "-m", both, "--", "echo", "{model}")
    assert run.out == "openai/gpt-5\n"


# --- a sandbox of the user's own


def test_r7_wrap_goes_before_the_command_unless_it_is_disabled(fleet: Fleet):
    box = fleet.script("box", "#!/bin/sh\necho boxed; exec $*\n")
    fleet.configure(f'[run]\nwrap = ["{box}"]\n')
    assert fleet.done("--", "echo", "out").out == "boxed\nout\n"
    assert fleet.done("--", "echo", "out", env={"FLEETGATE_SANDBOX_DISABLED": "1"}).out == "out\n"


def test_r7_the_child_inherits_the_environment_and_the_folder(fleet: Fleet):
    run = fleet.done("--", "sh", "-c", "echo $MINE; pwd", env={"MINE": "yes"})
    assert run.out.split() == ["yes", str(fleet.folder)]


def test_r8_a_supervisor_takes_no_host_slot_but_one_of_its_model(fleet: Fleet):
    fleet.configure('[agents]\nhost = 1\n"anthropic/claude-opus-*" = 1\n')
    sleepers(fleet, 1)
    sleepers(fleet, 1, "--supervisor", "-m", OPUS)
    assert fleet.done("--no-wait", "--", "true").code == 75
    assert fleet.done("--no-wait", "--supervisor", "-m", OPUS, "--", "true").code == 75
    assert fleet.done("--no-wait", "--supervisor", "--", "true").code == 0


# --- the config file


def test_c2_an_edited_file_is_in_force_for_the_next_run_and_admits_waiting_ones(fleet: Fleet):
    fleet.configure("[agents]\nhost = 1\n")
    sleepers(fleet, 1)
    waiting = fleet.waiting("--", *fleet.sleeper("second", 0))
    fleet.configure("[agents]\nhost = 2\n")
    assert fleet.done("-m", "x/y", "--supervisor", "--", "true").code == 0  # any run brings the new file
    assert waiting.wait() == 0


def test_c6_a_bad_file_stops_the_command_with_78_and_names_the_queue(fleet: Fleet):
    fleet.configure("[agents]\nhots = 3\n")
    run = fleet.done("--status-file", "status.json", "--", "touch", "ran")
    assert run.code == 78
    assert "config.toml" in run.err
    assert "hots" in run.err
    assert not (fleet.folder / "ran").exists()
    assert json.loads((fleet.folder / "status.json").read_text())["exit_code"] == 78
