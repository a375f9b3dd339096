"""The first minutes: `fleetgate init` on a terminal, and then an agent by its name."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from pathlib import Path

import pytest

from fleetgate.core import events as ev
from tests.processes.fleet import FLEETGATE, Fleet, Terminal
from tests.timed import within

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(shutil.which("bash") is None, reason="these tests type into an interactive bash"),
]
CTRL_C = "\x03"
AGENT = '#!/bin/sh\necho "agent has ${FLEETGATE_LEASE:-no lease}"\n'


@pytest.fixture
def home(fleet: Fleet) -> Path:
    home = fleet.folder / "home"
    for name in ("claude", "codex"):
        path = home / "bin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(AGENT)
        path.chmod(0o755)
    fleet.config.unlink()
    return home


def environment(home: Path) -> dict[str, str]:
    path = f"{home}/bin:{Path(FLEETGATE[0]).parent}:/usr/bin:/bin"
    return {"HOME": str(home), "SHELL": "/bin/bash", "PATH": path, "XDG_CONFIG_HOME": "", "XDG_DATA_HOME": ""}


def test_three_answers_lead_to_an_agent_that_is_counted_in_a_new_shell(fleet: Fleet, home: Path):
    began = time.monotonic()
    with Terminal(fleet, more=environment(home)) as terminal:
        terminal.line("fleetgate init")
        terminal.wait("1. How many agents may run here at the same time")
        terminal.line("many")
        terminal.wait("valid is a whole number from 1 to 10000, or auto")
        terminal.line("5")
        terminal.wait("2. Count these whenever you start them by name: claude")
        terminal.line("")
        terminal.wait("3. Set up more")
        terminal.line("none")
        terminal.wait("fleetgate init --undo")
        terminal.wait(terminal.PROMPT)
        terminal.line('bash --rcfile "$HOME/.bashrc" --noediting -i')
        terminal.wait(r"\$ |# |> ")
        terminal.line("claude")
        terminal.wait(r"agent has \w+\r\n")
        took_s = time.monotonic() - began
        assert "no lease" not in terminal.all.decode()
    ((_, granted),) = fleet.events_of(ev.Granted)
    assert granted.ticket is not None
    assert granted.ticket.command == "claude"
    assert "host = 5 " in fleet.config.read_text()
    within(took_s, 15, "from `fleetgate init` to the first counted agent")


def test_ctrl_c_at_a_question_changes_nothing(fleet: Fleet, home: Path):
    before = sorted(home.rglob("*"))
    with Terminal(fleet, more=environment(home)) as terminal:
        terminal.line("fleetgate init")
        terminal.wait("1. How many agents")
        # Python misses a signal that comes in the milliseconds before it waits for a key: no person types as fast.
        for patience_s in (0.5, 5, 60):
            terminal.type(CTRL_C)
            with suppress(AssertionError):
                terminal.wait(terminal.PROMPT, patience_s)
                break
        terminal.line("echo code=$?")
        assert "code=130" in terminal.wait(r"code=\d+\r\n")
    assert sorted(home.rglob("*")) == before
    assert not fleet.config.exists()
