"""A pid that the system gives to another process: that process gets no signal that was meant for an agent."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from time import sleep

import pytest

from fleetgate.gate.liveness.process_group import AgentProcesses

LAST_PID = Path("/proc/sys/kernel/ns_last_pid")  # the next process gets the next pid; root may set it


def started(*, leads: bool) -> subprocess.Popen[bytes]:
    """An agent that leads a group of its own, as it does without a terminal; or one in our group."""
    return subprocess.Popen(["sleep", "60"], start_new_session=leads)


def started_with_pid(pid: int, *, leads: bool) -> subprocess.Popen[bytes]:
    sleep(0.05)  # the clock of starts has ticks of 10 ms; no system gives out all pids in one of them
    for _ in range(200):  # other programs start processes meanwhile
        try:
            LAST_PID.write_text(str(pid - 1))
        except OSError:
            pytest.skip("only root can choose the next pid")
        process = started(leads=leads)
        if process.pid == pid:
            return process
        process.kill()
        process.wait()
    pytest.skip("other processes are always faster")


def until_gone(pid: int) -> None:
    """Wait until a process has ended; it may still have to be reaped."""
    stat = Path(f"/proc/{pid}/stat")
    while stat.exists() and b") Z " not in stat.read_bytes():
        sleep(0.01)


@pytest.mark.parametrize("leads", [True, False])
def test_l6_a_process_with_the_pid_of_an_agent_that_has_ended_gets_no_signal(leads: bool) -> None:
    agent = started(leads=leads)
    processes = AgentProcesses(agent.pid)
    assert processes.live()
    processes.signal(signal.SIGTERM)
    assert agent.wait(30) == -signal.SIGTERM
    assert not processes.live()
    other = started_with_pid(agent.pid, leads=leads)
    try:
        assert not processes.live()
        processes.signal(signal.SIGKILL)
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(0.3)
    finally:
        other.kill()
        other.wait()


def test_l6_a_descendant_is_signalled_even_if_the_agents_pid_is_another_process_by_now() -> None:
    """On a terminal: the agent is in a group that it shares."""
    agent = subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE)
    processes = AgentProcesses(agent.pid)
    assert agent.stdout is not None
    child = int(agent.stdout.readline())
    assert processes.live()  # it looks for descendants
    agent.kill()
    agent.wait()
    agent.stdout.close()
    other = started_with_pid(agent.pid, leads=False)
    try:
        assert processes.live()
        processes.signal(signal.SIGKILL)
        until_gone(child)
        assert not processes.live()
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_l6_a_group_whose_leader_has_ended_is_still_the_agents() -> None:
    agent = subprocess.Popen(["sh", "-c", "sleep 60 & echo $!"], start_new_session=True, stdout=subprocess.PIPE)
    processes = AgentProcesses(agent.pid)
    assert agent.stdout is not None
    child = int(agent.stdout.readline())
    agent.wait(30)
    agent.stdout.close()
    assert processes.live()
    processes.signal(signal.SIGKILL)
    until_gone(child)
    assert not processes.live()
