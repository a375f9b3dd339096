"""The first minutes of a newcomer with a clean home: clone, install, init, three agents, stop, dashboard.

The rule: no step that is not in the README. Every command that is typed here is looked for there first. Given are
Python, git, pipx, a browser, and the programs of three agents.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.dashboard.browser import find_chromium, launched
from tests.processes.fleet import PseudoTerminal, kill_if_there, processes_with
from tests.timed import within

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
]

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PICTURE = ROOT / "build" / "newcomer.png"
AGENTS = ("claude", "codex", "opencode")
AGENT = '#!/bin/sh\necho "$(basename "$0") is running"\nexec sleep 600\n'
PROMPT = PseudoTerminal.PROMPT
BASHRC = f"PS1='{PROMPT}'"
INSTALL = "pipx install '.[serve]'"
INSTALL_S = 900


def in_readme(command: str) -> str:
    """A command, if a line of a block in the README has it."""
    lines = [line for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) for line in block.splitlines()]
    assert any(line.partition(" #")[0].strip() == command for line in lines), f"the README lacks {command!r}"
    return command


def _pip_settings() -> dict[str, str]:
    """The user's own settings of pip, if there are any: this home has none. Those of the machine apply anyway."""
    paths = [Path(os.environ.get("PIP_CONFIG_FILE", "")), Path("~/.config/pip/pip.conf").expanduser()]
    found = [str(path) for path in paths if path.is_file()]
    return {"PIP_CONFIG_FILE": found[-1]} if found else {}


class Newcomer:
    """A person with a clean home, who opens terminals and types."""

    def __init__(self, folder: Path, pipx: Path) -> None:
        self.folder, self.home = folder, folder / "home"
        programs = self.home / "bin"
        programs.mkdir(parents=True)
        for name in AGENTS:
            (programs / name).write_text(AGENT)
            (programs / name).chmod(0o755)
        (self.home / ".bashrc").write_text(BASHRC)
        kept = ("PIP_", "SSL_", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY")  # how this machine reaches the package index
        self.env = (
            {name: value for name, value in os.environ.items() if name.startswith(kept)}
            | _pip_settings()
            | {
                "HOME": str(self.home),
                "PATH": f"{self.home}/.local/bin:{programs}:{pipx.parent}:/usr/local/bin:/usr/bin:/bin",
                "SHELL": "/bin/bash",
                "TERM": "xterm",
                "LC_ALL": "C.UTF-8",
                "PIPX_DEFAULT_PYTHON": sys.executable,
            }
        )

    def terminal(self) -> PseudoTerminal:
        """A new terminal, with the start-up file of its shell."""
        return PseudoTerminal(["bash", "--noediting", "-i"], self.env, self.folder, columns=140)

    def read(self, *argv: str) -> str:
        """What a command prints."""
        done = subprocess.run(argv, env=self.env, capture_output=True, text=True, timeout=60, check=True)
        return done.stdout

    def running(self) -> dict[str, str]:
        """The command of each running agent, and its id."""
        program = f"{self.home}/.local/bin/fleetgate"
        leases = json.loads(self.read(program, "ps", "--json"))["leases"]
        return {lease["command"]: lease["id"] for lease in leases}


@pytest.fixture
def newcomer(tmp_path: Path) -> Iterator[Newcomer]:
    tools = tmp_path / "tools"
    subprocess.run([sys.executable, "-m", "venv", str(tools)], check=True)
    subprocess.run([f"{tools}/bin/python", "-m", "pip", "install", "--quiet", "pipx"], check=True, timeout=INSTALL_S)
    newcomer = Newcomer(tmp_path, tools / "bin" / "pipx")
    yield newcomer
    for pid in processes_with(f"HOME={newcomer.home}"):  # what a failed test left running
        kill_if_there(pid)


def test_from_a_clone_to_three_agents_and_the_dashboard(newcomer: Newcomer):
    began = time.monotonic()
    times: dict[str, float] = {}

    def done(what: str) -> None:
        times[what] = round(time.monotonic() - began, 1)
        print(f"{times[what]:6.1f} s  {what}", flush=True)

    with ExitStack() as stack:
        first = stack.enter_context(newcomer.terminal())
        # The README is read in a clone.
        first.line(f"git clone --quiet {ROOT} fleetgate && cd fleetgate && echo cloned=$?")
        first.wait("cloned=0\r\n")
        done("clone")
        first.line(f"TIMEFORMAT='processor=%U+%S'; time {in_readme(INSTALL)}; echo installed=$?")
        said = first.wait(r"installed=\d+\r\n", INSTALL_S)
        assert "installed=0" in said
        took = re.findall(r"processor=([\d.]+)\+([\d.]+)", said)
        processor_s = sum(map(float, took[-1]))
        print(f"{processor_s:6.1f} s  of processor time for the installation")
        done("install")
        first.line(in_readme("fleetgate init"))
        for question in ("1. How many", "2. Count these", "3. Set up more"):
            first.wait(question)
            first.line("")
        first.wait("fleetgate init --undo")
        first.wait(PROMPT)
        done("init")
        assert "Then open a new terminal" in README
        agents = [stack.enter_context(newcomer.terminal()) for _ in AGENTS]
        for name, terminal in zip(AGENTS, agents, strict=True):
            terminal.line(in_readme("claude") if name == "claude" else name)
            terminal.wait(f"{name} is running")
            done(name)
        first.line(in_readme("fleetgate ps"))
        for name in AGENTS:
            first.wait(rf"interactive +{name}\b")
        first.line(f"{in_readme('fleetgate stop ID').removesuffix('ID')}{newcomer.running()['codex']}; echo stopped=$?")
        first.wait("stopped=0\r\n")
        agents[1].wait(PROMPT)
        assert sorted(newcomer.running()) == ["claude", "opencode"]
        done("stop")
        # The usual port may be taken on a machine that many people share.
        first.line(in_readme("fleetgate serve &").replace("&", "--port 0 &"))
        first.wait(r"http://127\.0\.0\.1:\d+")
        first.line("fleetgate open --print; echo opened=$?")
        assert "--print" in README
        said = first.wait(r"opened=0\r\n")
        _photograph(re.findall(r"http://\S+", said)[-1])
        done("dashboard")
        first.line("kill %1; wait; fleetgate init --undo; echo undone=$?")
        first.wait("undone=0\r\n")
    assert not list(newcomer.home.glob(".local/share/fleetgate"))
    assert not list(newcomer.home.glob(".config/fleetgate/*"))
    assert (newcomer.home / ".bashrc").read_text() == BASHRC
    waited_s = times["install"] - times["clone"] - processor_s
    if os.getloadavg()[1] > (os.cpu_count() or 1):  # others use this machine: their time is not the installation's
        print(f"the installation waited {waited_s:.1f} s for the processors or the network")
        times["claude"] -= waited_s
    within(times["claude"], 120, f"from the clone to the first counted agent: {times}")


def _photograph(url: str) -> None:
    """A picture of the dashboard with the two agents that are left."""
    if find_chromium() is None:
        pytest.skip("no browser is installed, so there is no picture of the dashboard")
    with launched() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(url)
        for name in ("opencode", "claude"):
            expect(page.locator("#lease-list")).to_contain_text(name, timeout=30_000)
        PICTURE.parent.mkdir(exist_ok=True)
        page.screenshot(path=str(PICTURE))
