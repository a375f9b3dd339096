"""Real agents through the proxy: a rate limit that would have ended them is not seen by them (rule X3)."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetgate.testing.provider import FakeProvider
from fleetgate.testing.script import Fault
from tests.agents.calling import KEY, PROMPT, bare_environment
from tests.agents.installing import CannotInstall, installed
from tests.proxy.proxied import Proxied

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

ARGUMENTS = {
    "codex": ("openai/gpt-5", ["exec", "--skip-git-repo-check", "-m", "gpt-5", PROMPT]),
    "claude": ("anthropic/claude-sonnet-4-6", ["-p", "--model", "claude-sonnet-4-6", PROMPT]),
    "opencode": ("anthropic/claude-sonnet-4-6", ["run", "-m", "anthropic/claude-sonnet-4-6", PROMPT]),
}
QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
}


@pytest.mark.parametrize("agent", list(ARGUMENTS))
def test_x3_a_real_agent_does_not_see_the_rate_limit(agent: str, tmp_path: Path) -> None:
    try:
        program = installed(agent)
    except CannotInstall as error:
        pytest.skip(str(error))
    home = tmp_path / "home"
    home.mkdir()
    model, arguments = ARGUMENTS[agent]
    keys = {"OPENAI_API_KEY": KEY, "ANTHROPIC_API_KEY": KEY}
    with (
        FakeProvider(faults=[Fault(status=429, retry_after_s=0.5)]) as provider,
        Proxied(tmp_path, provider, **bare_environment(home), **keys, **QUIET) as gate,
    ):
        ran = gate.cli("run", "--proxied", "-m", model, "--", str(program), *arguments)
        assert ran.returncode == 0, ran.stderr
        assert "word0" in ran.stdout
        assert provider.stats.scripted == 1, "it was refused, and nobody saw it"
        gate.line()
        assert {line["status"] for line in gate.lines()} == {200}
