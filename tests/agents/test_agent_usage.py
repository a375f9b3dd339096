"""Real agents through `run` and through the proxy: what they use counts, and counts once (rule U2)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleetgate.core.usage import Usage
from fleetgate.testing.provider import FakeProvider
from tests.agents.calling import CALLERS, KEY, PROMPT, bare_environment
from tests.agents.installing import CannotInstall, installed
from tests.agents.running import Place
from tests.proxy.proxied import Proxied

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

SERVED = Usage(input=1000, cache_read=400, output=4)
OWN_COUNT = "aider"  # it counts tokens itself where a stream does not report them
NOT_REPORTED = ("small",)  # opencode's model for titles: its output and its database leave these calls out
MODELS = {
    "codex": "openai/gpt-5",
    "claude": "anthropic/claude-sonnet-4-6",
    "opencode": "anthropic/claude-sonnet-4-6",
    "gemini": "gemini/gemini-2.5-pro",
    "aider": "openai/gpt-4o",
}
ARGUMENTS = {
    "codex": ["exec", "--json", "--skip-git-repo-check", "-m", "gpt-5", PROMPT],
    "claude": ["-p", PROMPT, "--model", "claude-sonnet-4-6", "--output-format", "stream-json", "--verbose"],
    "opencode": ["run", "-m", "anthropic/claude-sonnet-4-6", "--format", "json", PROMPT],
}
QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
}


def program_of(agent: str) -> str:
    try:
        return str(installed(agent))
    except CannotInstall as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("on_terminal", [False, True], ids=["piped", "on a terminal"])
@pytest.mark.parametrize("agent", list(CALLERS))
def test_u2_a_run_of_a_real_agent_ends_with_what_the_provider_served(
    agent: str, on_terminal: bool, place: Place
) -> None:
    with FakeProvider(usage=SERVED) as provider:
        call = CALLERS[agent](program_of(agent), provider.url, place.home, PROMPT)
        found = place.run(call, on_terminal=on_terminal)
        served = [usage for model, usage in provider.served.by("model").items() if model not in NOT_REPORTED]
    assert found.exit_code == 0, found
    used = found.released["usage"]
    assert used is not None, found
    assert used["source"] == "record"
    assert found.status["usage"] == used
    if agent == OWN_COUNT:
        assert used["calls"] == 1
        assert used["input"] > 0
        return
    total = Usage()
    for each in served:
        total = total.plus(each)
    told = Usage(used["calls"], used["input"], used["cache_read"], used["cache_write"], used["output"])
    assert (told.input, told.cache_read, told.cache_write, told.output) == (
        total.input,
        total.cache_read,
        total.cache_write,
        total.output,
    )


@pytest.mark.parametrize("agent", list(MODELS))
def test_u2_a_proxied_run_of_a_real_agent_counts_once_as_the_proxy_saw_it(agent: str, tmp_path: Path) -> None:
    program = program_of(agent)
    home = tmp_path / "home"
    home.mkdir()
    keys = {"OPENAI_API_KEY": KEY, "ANTHROPIC_API_KEY": KEY, "GEMINI_API_KEY": KEY}
    with FakeProvider(usage=SERVED) as provider:
        call = CALLERS[agent](program, provider.url, home, PROMPT)  # Gemini CLI wants a settings file
        arguments = ARGUMENTS.get(agent) or call.argv[1:]
        if agent == "aider":
            arguments = [MODELS[agent] if word == "openai/coder" else word for word in arguments]
        more = {"GEMINI_CLI_TRUST_WORKSPACE": "true"}
        with Proxied(tmp_path, provider, **bare_environment(home), **keys, **QUIET, **more) as gate:
            ran = gate.cli("run", "--proxied", "-m", MODELS[agent], "--", program, *arguments)
            assert ran.returncode == 0, ran.stderr
            total = json.loads(gate.cli("usage", "--json").stdout)["total"]
            lines = gate.cli("history", "--json", "--type", "released").stdout.splitlines()
        served = provider.served.total
    (run,) = [event for event in map(json.loads, lines) if event["kind"] == "agents"]
    assert run["total"] is not None, "its calls were seen"
    assert run["total"]["calls"] == served.calls == total["calls"]
    if agent != OWN_COUNT:  # whose streams do not ask for usage
        assert run["total"]["tokens"] == served.tokens == total["tokens"]
