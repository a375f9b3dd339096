"""`make demo` as a user runs it: the numbers it shows, the time it takes, and that it leaves no process behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from demo.fleet import Fleet, FleetError, ProviderProcess
from tests.timed import within

pytestmark = [pytest.mark.processes, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
DEMO = [sys.executable, "-m", "demo"]
PROVIDER = [sys.executable, "-m", "fleetgate.testing.provider"]
AGENT = [sys.executable, str(ROOT / "demo" / "agent.py")]


def environment(folder: Path) -> dict[str, str]:
    # TMPDIR also marks whatever the demo starts: it is inherited, and no other process has this one.
    return {**os.environ, "TMPDIR": str(folder), "COLUMNS": "80", "PYTHONUTF8": "1"}


def processes_of(folder: Path) -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TMPDIR") == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {process.cmdline()}")
        except psutil.Error:
            pass  # gone meanwhile, or another user's
    return found


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [*DEMO, *options]
    return subprocess.run(command, env=environment(folder), cwd=ROOT, capture_output=True, text=True, timeout=100)


def rows_of(text: str) -> dict[str, list[str]]:
    """The comparison at the end: its labels, and what stands beside them."""
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if line[:1] == "│"]
    return {label: values for label, *values in cells}


def test_without_fleetgate_agents_are_refused_and_fail(tmp_path: Path):
    done = run(tmp_path, "--only", "without")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = rows_of(done.stdout)
    assert int(rows["429s from the provider"][0]) > 0
    assert int(rows["agents that failed"][0].removesuffix(" of 12")) > 0
    assert "last status: 429 Too Many Requests" in done.stdout
    assert max(len(line.rstrip()) for line in done.stdout.splitlines()) <= 80
    assert processes_of(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_with_fleetgate_nothing_is_refused_nothing_fails_and_three_run_at_once(tmp_path: Path):
    began = time.monotonic()
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    took_s = time.monotonic() - began
    rows = rows_of(done.stdout)
    assert rows["429s from the provider"][1] == "0"
    assert rows["agents that failed"][1] == "0 of 12"
    assert rows["most at once"][1] == "3 agents"
    assert processes_of(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
    within(took_s, 40, "s that it took")


@pytest.mark.parametrize("half", ["without", "with"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["INT", "TERM"])
def test_a_signal_in_the_middle_leaves_no_process_and_no_file(half: str, number: signal.Signals, tmp_path: Path):
    command = [*DEMO, "--only", half]
    with subprocess.Popen(command, env=environment(tmp_path), cwd=ROOT, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        try:
            for line in demo.stdout:
                if re.search(r"[1-9]\d* running", line):
                    break
            assert len(processes_of(tmp_path)) > 3  # the demo, the provider, and agents
            demo.send_signal(number)
            assert "every process of the demo has ended" in demo.stdout.read()
            assert demo.wait(30) == 128 + number
        finally:
            demo.kill()
    assert processes_of(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_an_agent_that_was_never_run_has_failed_whatever_its_wrapper_says(tmp_path: Path):
    with ProviderProcess() as provider, Fleet(tmp_path, provider, dict(os.environ)) as fleet:
        fleet.start("agent-01", ["true"])
        while not (progress := fleet.progress()).over:
            time.sleep(0.01)
        assert progress.states == ("failed",)
        assert fleet.first_failure() == "agent-01 said nothing (exit 0)"


def test_a_fleet_that_ends_takes_agents_with_it_that_outlived_their_wrapper(tmp_path: Path):
    with ProviderProcess("--latency", "3600") as provider:
        with Fleet(tmp_path, provider, environment(tmp_path)) as fleet:
            agent = [*AGENT, "--url", provider.url, "--record", str(fleet.record)]
            fleet.start("agent-01", ["sh", "-c", 'trap "" TERM; setsid "$@" & wait', "sh", *agent])
            while not provider.stats()["active"]:
                time.sleep(0.01)
        assert processes_of(tmp_path) == []


def test_a_provider_whose_parent_is_killed_ends_too(tmp_path: Path):
    code = (
        "from demo.fleet import ProviderProcess\n"
        "with ProviderProcess() as provider:\n"
        "    print(provider.url, flush=True)\n"
        "    input()"
    )
    command, pipe = [sys.executable, "-c", code], subprocess.PIPE
    with subprocess.Popen(command, env=environment(tmp_path), cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline().startswith("http://127.0.0.1:")
        children = psutil.Process(parent.pid).children()
        assert len(children) == 1
        parent.kill()
        assert psutil.wait_procs(children, timeout=30)[1] == []


def test_a_provider_as_a_process_serves_until_it_gets_a_signal():
    with subprocess.Popen(
        [*PROVIDER, "--limit", "2", "--lag", "0.1-0.2"], stdout=subprocess.PIPE, text=True
    ) as provider:
        try:
            assert provider.stdout is not None
            assert provider.stdout.readline().startswith("http://127.0.0.1:")
            provider.terminate()
            assert provider.wait(30) == 0
        finally:
            provider.kill()


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--port", "70000"], 2),
        (["--limit", "-1"], 2),
        (["--lag", "2-1"], 2),
        (["--latency", "soon"], 2),
        (["--host", "192.0.2.1"], 69),
    ],
)
def test_a_provider_with_nonsense_options_says_so(options: list[str], code: int):
    done = subprocess.run([*PROVIDER, *options], capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert done.stderr
    assert "Traceback" not in done.stderr


def test_a_provider_that_does_not_start_is_a_sentence():
    with pytest.raises(FleetError, match="did not start"), ProviderProcess("--port", "nonsense"):
        pass
