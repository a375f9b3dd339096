"""`fleetgate top` on a real terminal: what it shows, what keys do, and the terminal afterwards (rules A9, Q1)."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import struct
import termios
from collections.abc import Iterator
from typing import Any

import pytest

from fleetgate.cli.read_only_gate import opened
from fleetgate.cli.top import loop
from fleetgate.cli.top.terminal import Display
from fleetgate.core import commands as cmd
from fleetgate.core.entities import Spec
from fleetgate.gate.liveness import process_identity
from tests.processes.fleet import FLEETGATE, Fleet, Terminal, state_of

pytestmark = pytest.mark.processes

TOP = f"{FLEETGATE[0]} top"
ENTER, LEAVE = r"\x1b\[\?1049h", r"\x1b\[\?1049l"
CTRL_C, CTRL_Z = "\x03", "\x1a"


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with Fleet("[agents]\nhost = 1\n") as fleet:
        yield fleet


def ticket(fleet: Fleet, ident: str, command: str = "an agent") -> None:
    spec = Spec(host=fleet.gate.host)
    fleet.gate.one(cmd.Acquire(ident, spec, fleet.gate.me, command=command))


def mode(terminal: Terminal) -> list[Any]:
    return termios.tcgetattr(terminal.fd)


def is_back(terminal: Terminal, before: list[Any]) -> None:
    """The shell answers, with the cursor, wrapping and the modes that it had."""
    seen = terminal.all.decode("utf-8", "replace")
    for number in ("1049", "25", "7"):
        switches = re.findall(rf"\x1b\[\?{number}([hl])", seen)
        assert switches[-1] == ("l" if number == "1049" else "h"), number
    terminal.line("echo 'still' here")
    terminal.wait(rf"still' here\r\nstill here\r\n{terminal.PROMPT}")
    # Some shells set the mode again for each prompt: what counts is what programs get.
    terminal.line("stty -a | grep -c -e -icanon -e '-echo '")
    terminal.wait(r"\r\n0\r\n")
    terminal.wait(terminal.PROMPT)
    assert mode(terminal)[3] == before[3]


def size(terminal: Terminal, columns: int, lines: int) -> None:
    fcntl.ioctl(terminal.fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


def pid_of_top(fleet: Fleet) -> int:
    (pid,) = [pid for pid in fleet.processes() if process_identity.command_line(pid)[-1:] == ["top"]]
    return pid


def test_a9_a_new_ticket_appears_and_is_cancelled_with_the_keys(fleet: Fleet):
    fleet.occupy()
    with Terminal(fleet) as terminal:
        before = mode(terminal)
        terminal.line(TOP)
        terminal.wait(ENTER)
        terminal.wait("nothing is waiting")
        ticket(fleet, "firstinline", "fix \x1b[2Jthe \x07tests")
        terminal.wait("firstinline.*fix  ?.2Jthe  tests")
        terminal.type("\t")
        terminal.wait("> +1/1  firstinline")
        terminal.type("c")
        terminal.wait(r"cancel firstinline .*\? y/n")
        assert fleet.in_queue() == 1
        terminal.type("y")
        terminal.wait("nothing is waiting")
        terminal.wait("cancelled firstinline")
        assert fleet.in_queue() == 0
        terminal.type("q")
        terminal.wait(LEAVE)
        terminal.wait(terminal.PROMPT)
        assert b"\x07" not in terminal.all
        is_back(terminal, before)


def test_a_resize_is_drawn_at_once(fleet: Fleet):
    with Terminal(fleet, columns=100) as terminal:
        terminal.line(TOP)
        terminal.wait(r"RUNNING 0 \S*-{80,}")
        size(terminal, 60, 20)
        drawn = terminal.wait(r"\x1b\[2J(?s:.*)RUNNING 0 \S*-{50}\x1b\[0m")
        assert "-" * 60 not in drawn.rpartition("\x1b[2J")[2]
        terminal.type("q")
        terminal.wait(LEAVE)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_whatever_ends_it_gives_the_terminal_back(fleet: Fleet, number: signal.Signals, code: int):
    with Terminal(fleet) as terminal:
        before = mode(terminal)
        terminal.line(f"{TOP}; echo code=$?")
        terminal.wait("nothing is waiting")
        if number == signal.SIGINT:
            terminal.type(CTRL_C)
        else:
            os.kill(pid_of_top(fleet), number)
        terminal.wait(f"{LEAVE}(?s:.*)code={code}\r\n")
        terminal.wait(terminal.PROMPT)
        is_back(terminal, before)


def test_ctrl_z_gives_the_terminal_back_and_fg_draws_everything_again(fleet: Fleet):
    with Terminal(fleet) as terminal:
        before = mode(terminal)
        terminal.line(TOP)
        terminal.wait("nothing is waiting")
        terminal.type(CTRL_Z)
        terminal.wait(f"{LEAVE}(?s:.*)Stopped")
        terminal.wait(terminal.PROMPT)
        is_back(terminal, before)
        ticket_while_away = fleet.occupy()
        terminal.line("fg")
        terminal.wait(f"{ENTER}(?s:.*){ticket_while_away}")
        terminal.type("q")
        terminal.wait(LEAVE)
        terminal.wait(terminal.PROMPT)
        is_back(terminal, before)


def test_a_process_that_was_stopped_from_elsewhere_takes_the_terminal_again(fleet: Fleet):
    with Terminal(fleet) as terminal:
        before = mode(terminal)
        terminal.line(TOP)
        terminal.wait("nothing is waiting")
        pid = pid_of_top(fleet)
        os.kill(pid, signal.SIGSTOP)
        terminal.wait("Stopped")
        terminal.wait(terminal.PROMPT)
        fleet.until(lambda: state_of(pid) == "T")
        terminal.line("fg")
        terminal.wait(f"{ENTER}(?s:.*)nothing is waiting")
        terminal.type("q")
        terminal.wait(LEAVE)
        terminal.wait(terminal.PROMPT)
        is_back(terminal, before)


def test_an_error_of_ours_gives_the_terminal_back(fleet: Fleet, monkeypatch: pytest.MonkeyPatch):
    """In this process, where something can be broken: half-way through, drawing fails."""
    monkeypatch.setenv("FLEETGATE_HOME", str(fleet.home))
    monkeypatch.setenv("FLEETGATE_CONFIG", str(fleet.config))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("fleetgate.cli.open_gate._explain_waits", lambda gate: None)

    def broken(*_: object) -> None:
        raise RuntimeError("drawing is broken")

    ours, theirs = os.openpty()
    handlers = [signal.getsignal(number) for number in loop._SIGNALS]
    try:
        before = termios.tcgetattr(theirs)
        monkeypatch.setattr(loop, "frame", broken)
        with opened() as gate, pytest.raises(RuntimeError, match="drawing is broken"):
            loop.Live(gate, Display(theirs, theirs)).run()
        assert termios.tcgetattr(theirs) == before
        assert os.read(ours, 4096).endswith(b"\x1b[?25h\x1b[?1049l")
    finally:
        os.close(ours)
        os.close(theirs)
    assert [signal.getsignal(number) for number in loop._SIGNALS] == handlers


def test_without_a_terminal_nothing_is_drawn(fleet: Fleet):
    run = fleet.start([*FLEETGATE, "top"])
    assert run.wait() == 64
    assert run.out == ""
    assert "fleetgate top --once" in run.err
    with Terminal(fleet) as terminal:
        terminal.line(f"TERM=dumb {TOP}; echo code=$?")
        assert "\x1b[?1049h" not in terminal.wait("code=64")


def test_when_nothing_happens_hardly_anything_is_drawn(fleet: Fleet):
    """Counted in what is written, which does not depend on how busy the machine is."""
    fleet.occupy()
    with Terminal(fleet) as terminal:
        terminal.line(TOP)
        terminal.wait("nothing is waiting")
        first = len(terminal.all)
        for _ in range(3):
            terminal.wait(r"\d\d:\d\d:\d\d")  # the clock, once a second
        assert len(terminal.all) - first < first
        terminal.type("q")
        terminal.wait(LEAVE)
