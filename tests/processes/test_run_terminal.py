"""`fleetgate run` on a real terminal (rules R1, R2): one line while it waits, and then as if it were not there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import sys
from pathlib import Path

import pytest

from fleetgate.core import events as ev
from fleetgate.gate.liveness.process_identity import describe
from tests.processes.fleet import FLEETGATE, Fleet, Terminal, is_alive, state_of

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(shutil.which("bash") is None, reason="these tests type into an interactive bash"),
]

CTRL_C, CTRL_D, CTRL_Z = "\x03", "\x04", "\x1a"
RUN = f"{FLEETGATE[0]} run"

# Counts the SIGINTs that it gets.
COUNTER = """
import os, signal, sys, time
count = 0

def note(number, frame):
    global count
    count += 1

signal.signal(signal.SIGINT, note)
print("ready", flush=True)
end = time.monotonic() + 20
while not count and time.monotonic() < end:
    time.sleep(0.01)
time.sleep(0.3)
print(f"counted={count}", flush=True)
sys.exit(9)
"""


def full(fleet: Fleet) -> str:
    """One slot, and this process has it; the lease."""
    fleet.configure("[agents]\nhost = 1\n")
    return fleet.occupy()


def test_r1_waiting_is_one_line_that_is_updated_and_then_cleared(fleet: Fleet):
    slot = full(fleet)
    with Terminal(fleet) as terminal:
        terminal.line(f"{RUN} -- printf 'child\\n'")
        terminal.wait("waiting 1s: position 1 of 1 for ")
        terminal.wait("waiting 2s: position 1 of 1 for ")
        fleet.free(slot)
        seen = terminal.wait(r"child\r\n")
        # What was drawn is wiped before the child draws; nothing of it stays on its own line.
        assert seen.endswith("\r\x1b[Kchild\r\n"), seen
        drawn = terminal.all.decode().partition("child\\n'\r\n")[2].partition("child")[0]
        assert "\n" not in drawn, drawn
        assert all(part.startswith("\x1b[K") for part in drawn.split("\r")[1:]), drawn
        terminal.wait(terminal.PROMPT)


def test_r1_the_queue_fits_the_terminal_and_the_position_is_on_it_whatever_the_command_is(fleet: Fleet):
    full(fleet)
    (fleet.folder / "prompt").write_text("fix\nthe \x1b[2J\x07 tests " + "and so on " * 30)
    with Terminal(fleet, columns=80) as terminal:
        terminal.line(f'{RUN} -- echo "$(cat prompt)"')
        terminal.wait("position 1")
        terminal.wait("position 1")
        terminal.type(CTRL_C)
        terminal.wait(terminal.PROMPT)
        drawn = terminal.all.decode().partition('"\r\n')[2].partition("^C")[0]
        assert "\n" not in drawn
        assert "\x07" not in drawn
        lines = drawn.split("\r\x1b[K")[1:]
        assert all(len(line) < 80 and line.startswith("fleetgate: waiting ") for line in lines), lines


def test_r1_plain_lines_are_lines_whatever_the_command_is(fleet: Fleet):
    full(fleet)
    run = fleet.waiting("--", "echo", "fix\nthe \x1b[2J tests " + "and so on " * 30)
    fleet.until(lambda: "position 1" in run.err)
    assert run.err.count("\n") == 1
    assert "\x1b" not in run.err
    assert len(run.err) < 200


def test_r1_quiet_draws_nothing(fleet: Fleet):
    slot = full(fleet)
    with Terminal(fleet) as terminal:
        terminal.line(f"{RUN} --quiet -- printf 'child\\n'")
        fleet.until(lambda: fleet.in_queue() == 1)
        fleet.free(slot)
        seen = terminal.wait(r"child\\n'\r\n(?s:.*)child\r\n")
        assert seen.endswith("child\\n'\r\nchild\r\n"), seen


def test_r2_ctrl_c_in_the_queue_leaves_the_queue_and_the_terminal_as_it_was(fleet: Fleet):
    full(fleet)
    with Terminal(fleet) as terminal:
        terminal.line(f"{RUN} -- touch ran; echo code=$?")
        terminal.wait("position 1")
        terminal.type(CTRL_C)
        seen = terminal.wait(r"code=\d+\r\n")
        assert "code=130" in seen
        assert "Traceback" not in seen
        assert re.search(r"\r\x1b\[K(\^C)?(\r\n)?code=130", seen), "its line was not wiped"
        assert not fleet.state.tickets
        assert not (fleet.folder / "ran").exists()


def test_r2_ctrl_z_in_the_queue_and_fg_keeps_the_place(fleet: Fleet):
    slot = full(fleet)
    with Terminal(fleet) as terminal:
        terminal.line(f"{RUN} -- echo child")
        terminal.wait("position 1")
        (ticket,) = fleet.state.tickets
        terminal.type(CTRL_Z)
        terminal.wait("Stopped")
        terminal.wait(terminal.PROMPT)
        assert list(fleet.state.tickets) == [ticket]
        fleet.free(slot)
        fleet.until(lambda: ticket in fleet.state.leases)
        terminal.line("fg")
        terminal.wait(r"child\r\n")
        terminal.wait(terminal.PROMPT)
        fleet.until(fleet.is_empty)


def test_r2_ctrl_c_reaches_the_child_once_and_its_code_is_returned(fleet: Fleet):
    (fleet.folder / "counter.py").write_text(COUNTER)
    with Terminal(fleet) as terminal:
        terminal.line(f"{RUN} -- {sys.executable} counter.py; echo code=$?")
        terminal.wait("ready")
        terminal.type(CTRL_C)
        seen = terminal.wait(r"code=\d+\r\n")
        assert "counted=1" in seen
        assert "code=9" in seen
        fleet.until(fleet.is_empty)


def test_r2_ctrl_z_and_fg_stop_and_continue_the_child_which_keeps_its_slot(fleet: Fleet):
    fleet.configure("[agents]\nhost = 1\n")
    with Terminal(fleet) as terminal:
        go = fleet.folder / "go"
        terminal.line(f"{RUN} -- {shlex.join(fleet.sleeper('one', go, code=5))}; echo code=$?")
        fleet.until(lambda: fleet.has_started("one"))
        (life,) = fleet.lives()
        terminal.type(CTRL_Z)
        terminal.wait("Stopped")
        fleet.until(lambda: state_of(life.pid) == "T")
        assert fleet.done("--no-wait", "--", "true").code == 75, "a stopped agent lost its slot"
        terminal.line("fg")
        fleet.until(lambda: state_of(life.pid) not in ("T", ""))
        go.touch()
        terminal.wait(terminal.PROMPT)
        terminal.line("echo after=$?")
        assert "after=5" in terminal.wait(r"after=\d+\r\n")
        fleet.until(fleet.is_empty)


def test_r2_a_shell_under_fleetgate_has_the_terminal_and_job_control(fleet: Fleet):
    with Terminal(fleet) as terminal:
        terminal.line(f"PS1='inner''> ' {RUN} -- bash --norc --noprofile --noediting -i; echo code=$?")
        terminal.wait("inner> ")
        terminal.line("test -t 0 && test -t 1 && test -t 2 && echo terminal=$FLEETGATE_LEASE")
        (lease,) = fleet.state.leases
        assert f"terminal={lease}" in terminal.wait(r"terminal=\w+\r\n")
        terminal.line("sleep 30")
        fleet.until(lambda: "sleep 30" in [describe(pid) for pid in fleet.processes()])
        terminal.type(CTRL_Z)
        terminal.wait("Stopped")
        terminal.wait("inner> ")
        terminal.line('jobs; kill -KILL %1; while [ -n "$(jobs -sp)" ]; do sleep 0.1; done; echo done=$((1+1))')
        assert "sleep 30" in terminal.wait("done=2")
        terminal.wait("inner> ")
        terminal.line("exit 4")
        assert "code=4" in terminal.wait(r"code=\d+\r\n")
        terminal.wait(terminal.PROMPT)
        fleet.until(fleet.is_empty)


@pytest.mark.skipif(shutil.which("less") is None, reason="needs less")
def test_r2_less_pages_and_quits_by_its_own_keys(fleet: Fleet):
    slot = full(fleet)
    (fleet.folder / "text").write_text("".join(f"line {number}\n" for number in range(1, 201)))
    with Terminal(fleet) as terminal:
        terminal.line(f"{RUN} -- less text; echo code=$?")
        terminal.wait("position 1")
        fleet.free(slot)
        first = terminal.wait(r"line 10\r\n")
        assert "line 1\r\n" in first
        terminal.type(" ")
        terminal.wait(r"line 40\r\n")
        terminal.type("G")
        terminal.wait("line 200")
        terminal.type("q")
        assert "code=0" in terminal.wait(r"code=\d+\r\n")


def test_l2_a_terminal_that_is_closed_ends_the_agent_and_frees_its_slot(fleet: Fleet):
    """The hang-up reaches the agent; if it ignored it, it would keep its slot."""
    fleet.configure("[agents]\nhost = 1\n")
    with Terminal(fleet) as terminal:
        terminal.line(f"{RUN} -- {shlex.join(fleet.sleeper('one', 60))}")
        fleet.until(lambda: fleet.has_started("one"))
        (life,) = fleet.lives()
    fleet.until(lambda: not is_alive(life.pid))
    assert fleet.done("--wait", "5s", "--", "true").code == 0
    fleet.until(fleet.is_empty)


def test_r2_a_signal_to_the_wrapper_alone_is_passed_on_also_with_a_terminal(fleet: Fleet):
    with Terminal(fleet) as terminal:
        terminal.line(f"{RUN} -- {shlex.join(fleet.sleeper('one', 60))}; echo code=$?")
        fleet.until(lambda: fleet.has_started("one"))
        (life,) = fleet.lives()
        (lease,) = fleet.state.leases.values()
        wrapper = int(Path(f"/proc/{life.pid}/stat").read_text().rpartition(") ")[2].split()[1])
        assert f"|{wrapper}|" in lease.ticket.holder
        os.kill(wrapper, signal.SIGTERM)
        assert "code=143" in terminal.wait(r"code=\d+\r\n")
        ((_, released),) = fleet.events_of(ev.Released)
        assert released.signal == signal.SIGTERM


def test_w4_a_run_on_a_terminal_is_interactive_and_one_without_is_not(fleet: Fleet):
    full(fleet)
    fleet.waiting("--", "true")
    with Terminal(fleet) as terminal:
        terminal.line(f"{RUN} --quiet -- true")
        fleet.until(lambda: fleet.in_queue() == 2)
        classes = [ticket.spec.work_class for ticket in fleet.state.tickets.values()]
        assert sorted(classes) == ["interactive", "normal"]
