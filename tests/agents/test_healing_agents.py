"""Real agents that are refused and call again by themselves, that are interrupted, or whose login is refused."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fleetgate.testing.provider import FakeProvider
from tests.agents.calling import CALLERS, PROMPT, Call, bare_environment
from tests.agents.cases import cases
from tests.agents.installing import CannotInstall, installed
from tests.agents.running import FLEETGATE

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

REFUSALS = {case.agent: case.fault for case in cases() if case.answer == "429"}
WITHIN_S = 180.0


class Wrapped:
    """A real agent under `fleetgate run` that is still running, with the retries that it has by default."""

    def __init__(self, agent: str, provider: FakeProvider, folder: Path, *options: str) -> None:
        try:
            program = installed(agent)
        except CannotInstall as error:
            pytest.skip(str(error))
        home = folder / "home"
        home.mkdir()
        call: Call = CALLERS[agent](str(program), provider.url, home, PROMPT)
        call.env.pop("CLAUDE_CODE_MAX_RETRIES", None)
        (folder / "config.toml").write_text("")
        self._status = folder / "status.json"
        ours = {"FLEETGATE_HOME": str(folder / "state"), "FLEETGATE_CONFIG": str(folder / "config.toml")}
        self.env = {**bare_environment(home), **call.env, **ours}
        argv = [FLEETGATE, "run", "-m", call.model, "--status-file", str(self._status), *options, "--", *call.argv]
        self.process = subprocess.Popen(
            argv,
            env=self.env,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def ended(self) -> tuple[int, dict[str, Any]]:
        """Its exit code and its outcome."""
        out, err = self.process.communicate(timeout=WITHIN_S)
        print(out[-3000:], err[-2000:], sep="\n")
        outcome: dict[str, Any] = json.loads(self._status.read_text())["outcome"]
        return self.process.returncode, outcome

    def backoffs(self) -> list[dict[str, Any]]:
        done = subprocess.run(
            [FLEETGATE, "backoff", "ls", "--json"], env=self.env, capture_output=True, text=True, check=True
        )
        found: list[dict[str, Any]] = json.loads(done.stdout)["backoffs"]
        return found


@pytest.mark.parametrize("agent", ["claude", "opencode"])
def test_a_real_agent_that_heals_itself_ends_well_and_others_were_held_back(agent: str, tmp_path: Path) -> None:
    fault = REFUSALS[agent]
    assert fault is not None
    model = "coder" if agent == "opencode" else ""  # not the small one that makes a title
    with FakeProvider(faults=[replace(fault, times=3, model=model)]) as provider:
        run = Wrapped(agent, provider, tmp_path)
        code, outcome = run.ended()
        assert provider.stats.scripted == 3
    assert (code, outcome["kind"]) == (0, "ok")
    assert [backoff["reason"] for backoff in run.backoffs()] == ["rate_limited"]


def test_a_real_agent_whose_login_is_refused_is_ended_long_before_its_own_retries(tmp_path: Path) -> None:
    refused = next(case.fault for case in cases() if (case.agent, case.answer) == ("claude", "401"))
    assert refused is not None
    with FakeProvider(faults=[refused]) as provider:
        run = Wrapped("claude", provider, tmp_path)
        code, outcome = run.ended()
        assert provider.stats.scripted < 8
    assert (code, outcome["kind"]) == (75, "auth")


@pytest.mark.parametrize("refused", [False, True])
def test_a_real_agent_that_is_interrupted_gives_130(refused: bool, tmp_path: Path) -> None:
    fault = REFUSALS["claude"]
    assert fault is not None
    with FakeProvider(latency_s=60, faults=[fault] if refused else []) as provider:
        run = Wrapped("claude", provider, tmp_path)
        until = time.monotonic() + WITHIN_S
        while provider.stats.calls == 0 and time.monotonic() < until:
            time.sleep(0.1)
        time.sleep(1)  # the agent waits, for the answer or for its next try: neither can be seen
        run.process.send_signal(signal.SIGINT)
        code, outcome = run.ended()
    assert code == 130
    assert outcome["kind"] in ("local_error", "rate_limited")
    assert outcome["evidence"] != "no_activity"
