"""Shims: an agent that is started by name runs under the gate, once, and it always runs."""

from __future__ import annotations

import os
import re
import shutil
import signal
from pathlib import Path
from shlex import join

import pytest

from fleetgate.core import events as ev
from tests.processes.fleet import FLEETGATE, Fleet, Run, Terminal, is_alive, state_of

pytestmark = pytest.mark.processes

CTRL_C, CTRL_Z = "\x03", "\x1a"
# Prints its arguments and its lease; with `inner` it becomes another command.
AGENT = """#!/bin/sh
echo "agent $(basename "$0") [$*] lease=${FLEETGATE_LEASE:-none} model=${FLEETGATE_MODEL-none}"
if [ "$1" = inner ]; then shift; exec "$@"; fi
exit 3
"""


class Shims:
    """A fleet with a home of its own, agents on PATH, and shims in front of them."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.home = fleet.folder / "home"
        self.real = self.home / "bin"
        self.real.mkdir(parents=True)
        self.folder = self.home / ".local/share/fleetgate/shims"
        self.agent("claude")

    def agent(self, name: str, folder: Path | None = None, text: str = AGENT) -> Path:
        path = (folder or self.real) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    @property
    def env(self) -> dict[str, str]:
        return {"HOME": str(self.home), "SHELL": "/bin/bash", "PATH": f"{self.folder}:{self.real}:/usr/bin:/bin"}

    def call(self, *argv: str, **env: str) -> Run:
        """A command of this home, to its end."""
        run = self.start(*argv, **env)
        run.wait()
        return run

    def start(self, *argv: str, **env: str) -> Run:
        env = {**self.env, **env}
        program = argv[0] if "/" in argv[0] else shutil.which(argv[0], path=env["PATH"])
        assert program, argv
        return self.fleet.start([program, *argv[1:]], env)

    def shim(self, *words: str) -> Run:
        return self.call(*FLEETGATE, "shim", *words)


@pytest.fixture
def shims(fleet: Fleet) -> Shims:
    fleet.configure("[agents]\nhost = 1\n")
    shims = Shims(fleet)
    assert shims.shim("install", "claude").code == 0
    return shims


def test_r10_an_agent_that_is_started_by_name_holds_a_slot_and_returns_as_it_would(shims: Shims):
    run = shims.call("claude", "-p", "a b", "*")
    assert run.code == 3
    assert "agent claude [-p a b *] lease=" in run.out
    assert "lease=none" not in run.out
    assert "model=anthropic/default" in run.out
    occupied = shims.fleet.occupy()
    second = shims.start("claude", "-p", "x")
    shims.fleet.until(lambda: shims.fleet.waits(second))
    (ticket,) = shims.fleet.state.tickets.values()
    assert ticket.command == "claude -p x"
    shims.fleet.free(occupied)
    assert second.wait() == 3


def test_r10_version_help_and_management_wait_for_no_slot(shims: Shims):
    shims.fleet.occupy()
    for words in (("--version",), ("-v",), ("--help",), ("mcp", "list"), ("-p", "--help")):
        run = shims.call("claude", *words)
        assert (run.code, run.err) == (3, ""), run
        assert "lease=none" in run.out


def test_r10_inside_a_run_nothing_happens_twice(shims: Shims):
    shims.agent("codex")
    assert shims.shim("install", "codex").code == 0
    outer = shims.call("claude", "inner", "codex", "exec", "x")
    assert outer.code == 3, outer
    first, second = outer.out.splitlines()
    assert first.split(" lease=")[1] == second.split(" lease=")[1], "the inner agent has the slot of the outer one"
    assert shims.call(*FLEETGATE, "run", "-m", "openai/gpt-5", "--", "codex", "exec", "x").code == 3
    assert len(shims.fleet.events_of(ev.Granted)) == 2
    # What a terminal multiplexer keeps of a run that ended long ago is no run.
    assert "lease=gone" not in shims.call("claude", "x", FLEETGATE_LEASE="gone").out


def test_r10_a_census_does_not_count_an_agent_of_a_shim_again(shims: Shims):
    ours = f"{shims.fleet.folder}.*claude"  # other tests start agents of this name, too
    shims.fleet.configure(f"[agents]\nhost = 2\n[[census]]\nmatch = '{ours}'\n")
    running = shims.start("claude", "inner", *shims.fleet.sleeper("one", 60))
    shims.fleet.until(lambda: shims.fleet.has_started("one"))
    assert re.search(ours, " ".join(running.argv)), "or it proves nothing"
    assert shims.fleet.done("--no-wait", "--", "true").code == 0
    waits = shims.fleet.occupy()
    second = shims.start("claude", "x")
    shims.fleet.until(lambda: shims.fleet.waits(second))
    shims.fleet.free(waits)
    assert second.wait() == 3, "one that waits does not count as the agent that it waits to start"
    running.signal(signal.SIGTERM)


def test_r10_without_fleetgate_the_agent_still_starts(shims: Shims):
    shim, start = shims.folder / "claude", shims.folder.parent / "start/fleetgate"
    good = shim.read_text()
    python = next(line for line in good.splitlines() if line.startswith("python="))
    broken = shims.agent("python3", shims.home / "broken", "#!/bin/sh\nexit 1\n")
    for gone in ("python=/nowhere/python", f"python={broken}"):
        shim.write_text(good.replace(python, gone))
        run = shims.call("claude", "x")
        assert (run.code, run.err.count("claude runs without a slot")) == (3, 1), run
        assert "[x] lease=none" in run.out
    # The one on PATH is used after Fleetgate has moved.
    moved = shims.call("claude", "x", PATH=f"{shims.env['PATH']}:{Path(FLEETGATE[0]).parent}")
    assert "lease=none" not in moved.out
    shim.write_text(good)
    start.write_text(start.read_text().replace("fleetgate.cli.main", "fleetgate.cli.nothing_of_this_name"))
    assert "cannot start (No module named" in (run := shims.call("claude", "x")).err
    assert (run.code, "lease=none" in run.out) == (3, True)
    start.unlink()
    assert shims.call("claude", "x").code == 3


def test_r10_a_broken_config_a_broken_store_and_variables_for_python_stop_no_agent(shims: Shims):
    hostile = shims.home / "python"
    hostile.mkdir()
    (hostile / "msgspec.py").write_text("raise SystemExit('imported')")
    assert "lease=none" not in shims.call("claude", "x", PYTHONPATH=str(hostile), PYTHONHOME="/nowhere").out
    run = shims.call("claude", "x", FLEETGATE_HOME="/proc/nowhere")
    assert (run.code, "running without a slot" in run.err) == (3, True), run
    shims.fleet.config.write_text("not toml")
    run = shims.call("claude", "x")
    assert run.code == 3
    assert "not valid TOML" in run.err
    assert "lease=none" in run.out


def test_r10_the_real_program_is_found_where_it_is_now(shims: Shims):
    (shims.real / "claude").unlink()
    newer = shims.agent("claude", shims.home / "node-v24")
    path = f"{shims.folder}:relative:{shims.home}/node-v24:{shims.env['PATH']}"
    assert "lease=none" not in shims.call(str(shims.folder / "claude"), "x", PATH=path).out
    newer.unlink()
    gone = shims.call(str(shims.folder / "claude"), "x")
    assert gone.code == 127
    assert "this is only its shim" in gone.err


def test_r10_two_shims_of_one_agent_do_not_start_each_other(shims: Shims):
    other = {"XDG_DATA_HOME": str(shims.home / "other")}
    assert shims.call(*FLEETGATE, "shim", "install", "claude", "--no-path", **other).code == 0
    second = shims.home / "other/fleetgate/shims"
    assert f"real={shims.real}/claude" in (second / "claude").read_text()
    for path in (f"{second}:{shims.env['PATH']}", f"{shims.folder}:{second}/:{shims.env['PATH']}"):
        run = shims.call("claude", "x", PATH=path)
        assert (run.code, run.out.count("agent claude")) == (3, 1), run
    assert len(shims.fleet.events_of(ev.Granted)) == 2


def test_what_is_not_safe_is_refused(shims: Shims):
    shared = shims.home / "shared"
    shims.agent("codex", shared)
    shared.chmod(0o777)
    refused = shims.call(*FLEETGATE, "shim", "install", "codex", PATH=f"{shared}:/usr/bin:/bin")
    assert refused.code == 64
    assert f"every user can write to {shared}" in refused.err
    shims.agent("codex", shims.home / "outer/inner")
    (shims.home / "outer").chmod(0o777)
    refused = shims.call(*FLEETGATE, "shim", "install", "codex", PATH=f"{shims.home}/outer/inner:/usr/bin:/bin")
    assert f"every user can write to {shims.home}/outer" in refused.err
    shims.agent("gemini")
    shims.folder.chmod(0o777)
    refused = shims.shim("install", "gemini")
    assert refused.code == 64
    assert "another user could replace a shim there" in refused.err
    assert not (shims.folder / "gemini").exists()
    for name in ("sh", "fleetgate", "python3", "../x", "nosuchagent", "-x"):
        assert shims.shim("install", "--", name).code == 64


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user's file: run as root")
def test_a_folder_of_another_user_is_refused(shims: Shims):
    os.chown(shims.folder.parent, 65534, 65534)
    shims.agent("codex")
    refused = shims.shim("install", "codex")
    assert refused.code == 64
    assert "belongs to user 65534" in refused.err


def test_shim_ls_says_which_are_used_and_uninstall_restores_everything(shims: Shims):
    rc = shims.home / ".bashrc"
    assert "fleetgate shims" in rc.read_text()
    listed = shims.call(*FLEETGATE, "shim", "ls")
    assert [line.split()[:3] for line in listed.out.splitlines()[1:]] == [["claude", "yes", f"{shims.real}/claude"]]
    unused = shims.call(*FLEETGATE, "shim", "ls", PATH=f"{shims.real}:{shims.env['PATH']}")
    assert f"on PATH, {shims.real}/claude comes first" in unused.out
    doctor = shims.call(*FLEETGATE, "doctor", PATH=f"{shims.real}:{shims.env['PATH']}")
    assert f"claude: not used in this shell: on PATH, {shims.real}/claude comes first" in doctor.out
    assert "do: open a new terminal; if that does not help: fleetgate shim install claude" in doctor.out
    # Another version of Node.js makes no shim out of date; another Fleetgate does.
    newer = shims.agent("claude", shims.home / "node-v24")
    moved = shims.call(*FLEETGATE, "shim", "ls", PATH=f"{shims.folder}:{newer.parent}:/usr/bin:/bin")
    assert f"claude  yes   {newer}" in moved.out
    assert "out of date" not in moved.out
    shim = shims.folder / "claude"
    shim.write_text(shim.read_text().replace("python=/", "python=/old/"))
    assert "out of date: `fleetgate shim install claude` renews it" in shims.shim("ls").out
    removed = shims.shim("uninstall", "claude")
    assert removed.code == 0
    assert not rc.exists(), "Fleetgate had made it"
    assert not shims.folder.parent.exists()
    assert shims.call("claude", "x").out.startswith("agent claude [x] lease=none")
    assert shims.shim("uninstall", "claude").code == 64


# On a terminal.

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="this test types into an interactive bash")


@needs_bash
def test_r10_ctrl_c_and_ctrl_z_work_through_a_shim(shims: Shims):
    fleet = shims.fleet
    with Terminal(fleet, more=shims.env) as terminal:
        terminal.line(f"claude inner {join(fleet.sleeper('one', 60))}")
        fleet.until(lambda: fleet.has_started("one"))
        (life,) = fleet.lives()
        terminal.type(CTRL_Z)
        terminal.wait("Stopped")
        fleet.until(lambda: state_of(life.pid) == "T")
        terminal.line("fg")
        fleet.until(lambda: state_of(life.pid) not in ("T", ""))
        terminal.type(CTRL_C)
        terminal.wait(terminal.PROMPT)
        terminal.line("echo code=$?")
        assert "code=130" in terminal.wait(r"code=\d+\r\n")
        fleet.until(fleet.is_empty)


def test_r10_a_signal_to_the_shim_reaches_the_agent(shims: Shims):
    fleet = shims.fleet
    run = shims.start("claude", "inner", *fleet.sleeper("one", 60))
    fleet.until(lambda: fleet.has_started("one"))
    (life,) = fleet.lives()
    run.signal(signal.SIGTERM)
    assert run.wait() == 143
    fleet.until(lambda: not is_alive(life.pid))
