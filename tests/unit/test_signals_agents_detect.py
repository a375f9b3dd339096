"""Which agent a command starts, which model it asks for, how it prints, and how it resumes (rules R1, R9)."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fleetgate.core.errors import BadRequest
from fleetgate.signals.agents import NAMES, agent_for, model_of
from fleetgate.signals.agents.detect import find_program

COMMANDS = [
    ("claude -p hi", "claude"),
    ("/opt/bin/claude -p hi", "claude"),
    ("npx @anthropic-ai/claude-code -p hi", "claude"),
    ("npx -y @anthropic-ai/claude-code@2.1.197 -p hi", "claude"),
    ("node /usr/lib/node_modules/@anthropic-ai/claude-code/cli.js -p hi", "claude"),
    ("env -u FOO A=b claude -p hi", "claude"),
    ("timeout -k 5 600 nice -n 10 claude -p hi", "claude"),
    ("sudo -u ada claude", "claude"),
    ("opencode run hi", "opencode"),
    ("bunx opencode-ai run hi", "opencode"),
    ("bun x opencode-ai@latest run hi", "opencode"),
    ("node /home/ada/.npm-global/bin/opencode run hi", "opencode"),
    ("codex exec hi", "codex"),
    ("npx @openai/codex exec hi", "codex"),
    ("npm exec -- @openai/codex exec hi", "codex"),
    ("pnpm dlx @openai/codex exec hi", "codex"),
    ("node /usr/lib/node_modules/@openai/codex/bin/codex.js exec hi", "codex"),
    ("aider --message hi", "aider"),
    ("uvx aider --message hi", "aider"),
    ("uvx --from aider-chat aider --message hi", "aider"),
    ("uv tool run --python 3.12 aider --message hi", "aider"),
    ("pipx run aider-chat --message hi", "aider"),
    ("python3.12 -m aider --message hi", "aider"),
    ("python -X utf8 -m aider --message hi", "aider"),
    ("gemini -p hi", "gemini"),
    ("npx @google/gemini-cli -p hi", "gemini"),
    ("node --no-warnings /usr/lib/node_modules/@google/gemini-cli/bundle/gemini.js -p hi", "gemini"),
    ("./claude.sh", "generic"),
    ("claudette -p hi", "generic"),
    ("python train.py claude", "generic"),
    ("echo claude", "generic"),
    ("cat notes-about-codex", "generic"),
    ("npx", "generic"),
    ("env", "generic"),
    ("timeout 5", "generic"),
    ("sh -c claude", "generic"),
]


@pytest.mark.parametrize(("command", "name"), COMMANDS, ids=[command for command, _ in COMMANDS])
def test_r4_an_agent_is_known_by_its_program_also_behind_wrappers(command, name):
    assert agent_for(command.split()).name == name


def test_r4_where_the_program_is_its_own_arguments_start():
    argv = ["timeout", "600", "npx", "-y", "@openai/codex@latest", "exec", "--json", "hi"]
    assert find_program(argv) == ("codex", 4)
    assert find_program([]) == ("", 0)


@pytest.mark.parametrize("name", NAMES)
def test_r4_classify_overrides_the_guess(name):
    assert agent_for(["./run.sh"], name).name == name
    assert agent_for(["claude", "-p"], name).name == name


def test_q1_a_name_that_classify_does_not_know_is_refused_with_those_it_does():
    with pytest.raises(BadRequest, match=r"--classify 'cladue': valid is one of claude, .*generic, none"):
        agent_for(["claude"], "cladue")


MODELS = [
    ("opencode run -m umans/coder hi", "umans/coder"),
    ("opencode run --model=openrouter/meta/llama-4 hi", "openrouter/meta/llama-4"),
    ("claude -p hi --model claude-opus-4-6", "anthropic/claude-opus-4-6"),
    ("claude --model opus -p hi", "anthropic/claude-opus-latest"),
    ("npx @anthropic-ai/claude-code --model sonnet", "anthropic/claude-sonnet-latest"),
    ("codex exec -m gpt-5 hi", "openai/gpt-5"),
    ("gemini -m gemini-2.5-pro -p hi", "google/gemini-2.5-pro"),
    ("aider --model gpt-5 --message hi", "openai/gpt-5"),
    ("uvx aider --model anthropic/claude-sonnet-4-6", "anthropic/claude-sonnet-4-6"),
    ("aider --message hi", None),
    ("aider --model unheard-of", None),
    ("opencode run -- -m umans/coder", None),
    ("opencode run -m", None),
    ("python train.py -m umans/coder", None),
]


@pytest.mark.parametrize(("command", "model"), MODELS, ids=[command for command, _ in MODELS])
def test_r1_the_model_is_read_from_a_known_agents_own_flag(command, model):
    assert model_of(command.split()) == model


MODES = [
    ("claude -p hi --output-format stream-json", "stream"),
    ("claude -p hi --output-format=stream-json", "stream"),
    ("claude -p hi --output-format json", "single"),
    ("claude -p hi --output-format text", ""),
    ("claude -p hi", ""),
    ("claude -p -- --output-format json", ""),
    ("opencode run --format json hi", "stream"),
    ("opencode run hi", ""),
    ("opencode", ""),
    ("codex exec --json hi", "stream"),
    ("codex --json", ""),
    ("codex exec hi", ""),
    ("gemini -p hi -o stream-json", "stream"),
    ("gemini -p hi --output-format json", "single"),
    ("gemini -p hi", ""),
    ("aider --message hi", ""),
    ("./run.sh --output-format json", ""),
]


@pytest.mark.parametrize(("command", "mode"), MODES, ids=[command for command, _ in MODES])
def test_r4_record_mode_is_read_from_the_agents_arguments(command, mode):
    argv = command.split()
    assert agent_for(argv).mode(argv[1:]) == mode


RESUMED = [
    ("claude -p hi", "claude --resume ID -p hi"),
    ("claude -p hi --resume OTHER", None),
    ("claude -c -p hi", None),
    ("opencode run -m umans/coder hi", "opencode run --session ID --continue -m umans/coder hi"),
    ("opencode run --session=OTHER hi", None),
    ("opencode serve", None),
    ("codex exec hi", "codex exec resume ID hi"),
    ("codex exec", "codex exec resume ID"),
    ("codex exec -", "codex exec resume ID -"),
    ("codex exec -m gpt-5 --json -s read-only hi", "codex exec -m gpt-5 --json -s read-only resume ID hi"),
    ("codex exec --sandbox=read-only hi", "codex exec --sandbox=read-only resume ID hi"),
    ("codex exec -- hi", "codex exec resume ID -- hi"),
    ("codex exec resume OTHER hi", None),
    ("codex login", None),
    ("gemini -p hi", None),
    ("aider --message hi", None),
    ("./run.sh", None),
]


@pytest.mark.parametrize(("command", "resumed"), RESUMED, ids=[command for command, _ in RESUMED])
def test_r9_the_arguments_that_resume_a_session(command, resumed):
    program, *args = command.split()
    found = agent_for([program]).resumed(args, "ID")
    assert found == (None if resumed is None else resumed.split()[1:])


def test_r6_asking_for_an_agents_model_imports_nothing_that_judges_output():
    code = """
import sys
import msgspec, fleetgate.core.model_names
from fleetgate.signals.agents import agent_for, model_of
argv = ["npx", "@openai/codex", "exec", "--json", "-m", "gpt-5", "hi"]
assert model_of(argv) == "openai/gpt-5" and agent_for(argv).mode(argv[2:]) == "stream"
print(" ".join(name for name in sys.modules if name.startswith("fleetgate.signals.")))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = {name.removeprefix("fleetgate.signals.") for name in ran.stdout.split()}
    assert found == {
        "agents",
        "agents.detect",
        "agents.model_aliases",
        "agents.settings_files",
        "agents.agent",
        "agents.codex",
    }
