"""Real agents behind their shims (rule R10), set up by `fleetgate init`, against a fake provider."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from fleetgate.testing.provider import FakeProvider
from tests.agents.calling import CALLERS, PROMPT, bare_environment
from tests.agents.installing import CannotInstall, installed, version_of
from tests.agents.running import FLEETGATE, ON_TERMINAL, WITHIN_S

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]
# What each is told to use by its own arguments; those of Codex name a provider of their own.
MODELS = {"claude": "anthropic/claude-opus-4-6", "codex": "fake/gpt-5", "gemini": "google/gemini-2.5-pro"}
MODELS |= {"opencode": "umans/coder", "aider": "openai/coder"}


class ShimmedHome:
    """A home in which `fleetgate init` has put a shim before one real agent."""

    def __init__(self, agent: str, folder: Path) -> None:
        try:
            program = installed(agent)
        except CannotInstall as error:
            pytest.skip(str(error))
        self.home, self.work = folder / "home", folder / "work"
        (self.home / ".local/bin").mkdir(parents=True)
        self.work.mkdir()
        (self.home / ".local/bin" / agent).symlink_to(program)
        base = bare_environment(self.home)
        shims, real = self.home / ".local/share/fleetgate/shims", self.home / ".local/bin"
        self.env = {**base, "SHELL": "/bin/bash", "PATH": f"{shims}:{real}:{base['PATH']}"}
        assert self.do(FLEETGATE, "init", "--yes", "--host", "2").returncode == 0

    def do(self, *argv: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv,
            env={**self.env, **(env or {})},
            cwd=self.work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=WITHIN_S,
            check=False,
        )

    def granted(self) -> list[dict[str, object]]:
        said = self.do(FLEETGATE, "history", "--json", "--type", "granted").stdout
        return [json.loads(line) for line in said.splitlines()]


@pytest.mark.parametrize("agent", CALLERS)
def test_r10_a_real_agent_works_behind_its_shim_and_is_counted_once(agent: str, tmp_path: Path) -> None:
    place = ShimmedHome(agent, tmp_path)
    version = place.do(agent, "--version")
    assert version.returncode == 0, version
    assert version_of(agent) in version.stdout + version.stderr
    assert not place.granted()
    with FakeProvider() as provider:
        call = CALLERS[agent](agent, provider.url, place.home, PROMPT)
        ran = place.do(*call.argv, env=call.env)
        again = place.do(FLEETGATE, "run", "-m", call.model, "--", *call.argv, env=call.env)
    assert (ran.returncode, again.returncode) == (0, 0), (ran, again)
    assert provider.stats.calls >= 2
    first, second = place.granted()
    assert (first["model"], second["model"]) == (MODELS[agent], call.model)


def test_r10_claude_code_works_behind_its_shim_on_a_terminal(tmp_path: Path) -> None:
    place = ShimmedHome("claude", tmp_path)
    with FakeProvider() as provider:
        call = CALLERS["claude"]("claude", provider.url, place.home, PROMPT)
        argv = [word for word in call.argv if word not in ("--output-format", "stream-json", "--verbose")]
        ran = place.do(*ON_TERMINAL, *argv, env=call.env)
    assert ran.returncode == 0, ran
    assert len(place.granted()) == 1
    left = place.do(FLEETGATE, "init", "--undo")
    assert left.returncode == 0, left
    assert not os.path.lexists(place.home / ".local/share/fleetgate/shims")
