"""Ten real agents at once against a provider that lets in three calls and does not say so: bare, wrapped, proxied."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fleetgate.testing.provider import FakeProvider
from tests.agents.calling import KEY, PROMPT, bare_environment
from tests.agents.installing import CannotInstall, installed, version_of
from tests.agents.running import FLEETGATE
from tests.agents.table import COMPARED, Compared
from tests.proxy.proxied import Proxied

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]

RUNS = 10
LIMIT = 3
WITHIN_S = 420
MODEL = "anthropic/claude-sonnet-4-6"
ARGUMENTS = {
    "claude": ["-p", PROMPT, "--model", "claude-sonnet-4-6", "--output-format", "stream-json", "--verbose"],
    "opencode": ["run", "-m", MODEL, "--format", "json", "--print-logs", "--log-level", "ERROR", PROMPT],
}
QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
}
WAYS = {"bare": [], "wrapped": [FLEETGATE, "run", "-m", MODEL, "--"]}
WAYS["proxied"] = [FLEETGATE, "run", "--proxied", "-m", MODEL, "--"]


def environment(agent: str, folder: Path, url: str) -> dict[str, str]:
    """A home of its own for each run, and the provider's address where the proxy does not give another one."""
    home = folder / "home"
    home.mkdir(parents=True)
    env = {**bare_environment(home), **QUIET, "ANTHROPIC_API_KEY": KEY}
    if agent == "claude":
        return {**env, "ANTHROPIC_BASE_URL": url}
    options = {"baseURL": f"{url}/v1"}
    config = {"autoupdate": False, "share": "disabled", "provider": {"anthropic": {"options": options}}}
    return {**env, "OPENCODE_CONFIG_CONTENT": json.dumps(config)}


def ten_at_once(agent: str, program: Path, way: str, folder: Path, url: str, more: dict[str, str]) -> list[int | None]:
    """The exit codes of ten runs; None for one that had to be ended."""
    running = []
    for number in range(RUNS):
        place = folder / str(number)
        env = {**environment(agent, place, url), **more}
        with (place / "out").open("wb") as out, (place / "err").open("wb") as err:
            argv = [*WAYS[way], str(program), *ARGUMENTS[agent]]
            running.append(subprocess.Popen(argv, env=env, cwd=place, stdin=subprocess.DEVNULL, stdout=out, stderr=err))
    until = time.monotonic() + WITHIN_S
    codes: list[int | None] = []
    for process in running:
        try:
            codes.append(process.wait(max(until - time.monotonic(), 0.1)))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            codes.append(None)
    return codes


@contextmanager
def gate_for(way: str, folder: Path, provider: FakeProvider) -> Iterator[dict[str, str]]:
    """The variables by which the runs find their gate; for those who need it, with the proxy."""
    config = "[agents]\nhost = 20\n"
    if way == "proxied":
        with Proxied(folder, provider, requests=f"anthropic = {RUNS}", more=config) as gate:
            yield {name: gate.environ[name] for name in ("FLEETGATE_HOME", "FLEETGATE_CONFIG")}
        return
    (folder / "config.toml").write_text(config)
    yield {"FLEETGATE_HOME": str(folder / "state"), "FLEETGATE_CONFIG": str(folder / "config.toml")}


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("agent", list(ARGUMENTS))
def test_ten_agents_at_once_finish_against_a_hidden_limit_of_three(agent: str, way: str, tmp_path: Path) -> None:
    try:
        program = installed(agent)
    except CannotInstall as error:
        pytest.skip(str(error))
    with (
        FakeProvider(limit=LIMIT, latency_s=2.0, chunk_delay_s=0.25) as provider,
        gate_for(way, tmp_path, provider) as gate,
    ):
        began = time.monotonic()
        codes = ten_at_once(agent, program, way, tmp_path / "runs", provider.url, gate)
        took_s = time.monotonic() - began
        stats = provider.stats
    finished = codes.count(0)
    COMPARED.append(Compared(agent, version_of(agent), way, finished, RUNS, took_s, stats.refused, stats.calls))
    for number, code in enumerate(codes):
        if code != 0:
            print(number, code, (tmp_path / "runs" / str(number) / "err").read_text()[-1500:])
    if way == "bare":
        return  # how the agent does without Fleetgate is its own business, and is only shown
    assert finished == RUNS, codes
    if way == "proxied":
        assert stats.refused <= RUNS, "the gate learns of the limit, and the agents do not"
