"""`fleetgate run` in the queue: how it leaves, what it says, what it exits with (rules R1-R3, A8-A10, O5, O6)."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from typing import Any

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.gate.liveness import process_identity
from tests.processes.fleet import FLEETGATE, Fleet, children_of, is_alive, kill_if_there
from tests.timed import within

pytestmark = pytest.mark.processes

ONE = "[agents]\nhost = 1\n"
STATUS_KEYS = {"admitted", "model", "lease", "waited_s", "exit_code", "signal", "outcome", "reason"}


@pytest.fixture
def full(fleet: Fleet) -> Fleet:
    """One slot, and this process has it."""
    fleet.configure(ONE)
    fleet.occupy()
    return fleet


def status(fleet: Fleet) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((fleet.folder / "status.json").read_text())
    assert told.keys() >= STATUS_KEYS
    return told


# --- leaving the queue


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP"])
def test_r2_a_signal_in_the_queue_leaves_the_queue_with_128_plus_its_number(full: Fleet, name: str):
    number = getattr(signal, f"SIG{name}")
    run = full.waiting("--status-file", "status.json", "--", "touch", "ran")
    run.signal(number)
    assert run.wait() == 128 + number
    assert not full.state.tickets, full.dump()
    assert "Traceback" not in run.err
    assert not (full.folder / "ran").exists()
    told = status(full)
    assert (told["admitted"], told["exit_code"], told["signal"]) == (False, 128 + number, number)
    assert not list((full.home / "run").iterdir()), "its socket was left behind"


def test_r2_a_signal_at_any_moment_before_the_agent_starts_leaves_no_ticket(full: Fleet):
    """Also before there is a ticket, and while it is being taken: the code is the signal's, nothing is left."""
    for tenth in range(10):
        run = full.run("--", "touch", "ran")
        time.sleep(0.012 * tenth)
        run.signal(signal.SIGTERM)
        assert run.wait() in (143, -signal.SIGTERM), run
        assert "Traceback" not in run.err
    # One that died of the signal before it listened is found gone by the next process.
    assert full.done("--no-wait", "--", "true").code == 75
    assert not full.state.tickets
    assert not (full.folder / "ran").exists()


def test_r2_an_impatient_person_leaves_the_queue_just_once(full: Fleet):
    run = full.waiting("--", "true")
    for _ in range(5):
        kill_if_there(run.pid, signal.SIGINT)
        time.sleep(0.005)
    assert run.wait() == 130, run
    assert "Traceback" not in run.err
    assert not full.state.tickets


def test_r2_nohup_stays_nohup_in_the_queue(full: Fleet):
    run = full.start(["nohup", *FLEETGATE, "run", "--", "true"])
    full.until(lambda: full.waits(run))
    run.signal(signal.SIGHUP)
    full.free(*full.state.leases)
    assert run.wait() == 0, run


def test_a9_a_cancelled_ticket_ends_the_run_with_75_and_a_sentence(full: Fleet):
    run = full.waiting("--json", "--status-file", "status.json", "--", "true")
    (ident,) = full.state.tickets
    began = time.monotonic()
    full.gate.one(cmd.Cancel(ident, "the test"))
    assert run.wait() == 75, run
    took_s = time.monotonic() - began
    told = json.loads(run.out)
    assert told["deferred"] is True
    assert told["reason"]["code"] == "cancelled"
    assert "cancelled" in told["reason"]["text"]
    assert status(full)["reason"]["code"] == "cancelled"
    assert full.gate.log.side_items("told") == [], "what it was told is kept for ever"
    within(took_s, 0.9, "it was not woken, but polled")


def test_a9_without_json_the_sentence_is_on_stderr(full: Fleet):
    run = full.waiting("--", "true")
    full.gate.one(cmd.Cancel(next(iter(full.state.tickets)), "the test"))
    assert run.wait() == 75, run
    assert run.out == ""
    assert "cancelled" in run.err


# --- not admitted


def test_r3_no_wait_exits_75_at_once_and_says_why_in_json(full: Fleet):
    run = full.done("--no-wait", "--json", "--status-file", "status.json", "-m", "x/y", "--", "touch", "ran")
    assert run.code == 75, run
    told = json.loads(run.out)
    assert told.keys() >= {"deferred", "reason", "position", "estimate_s"}
    assert told["deferred"] is True
    host = f"host:{full.gate.host}"
    reason = told["reason"]
    assert reason.keys() >= {"code", "text", "pool", "pools", "until"}
    assert (reason["code"], reason["pool"], reason["pools"]) == ("concurrency_cap", host, [host])
    assert f"1 of 1 slots of {host} are taken" in reason["text"]
    facts = status(full)
    assert (facts["admitted"], facts["exit_code"], facts["lease"], facts["outcome"]) == (False, 75, None, None)
    assert facts["reason"] == reason
    assert not (full.folder / "ran").exists()
    assert not full.state.tickets
    assert len(full.events_of(ev.Deferred)) == 1


def test_r3_no_wait_without_json_is_a_sentence_on_stderr_and_nothing_on_stdout(full: Fleet):
    run = full.done("--no-wait", "--", "true")
    assert (run.code, run.out) == (75, "")
    assert re.fullmatch(r"fleetgate: not admitted: .* are taken\n", run.err), run.err


def test_r3_a_wait_that_is_over_exits_75_and_leaves_the_queue(full: Fleet):
    began = time.monotonic()
    run = full.done("--wait", "1s", "--json", "--status-file", "status.json", "--", "touch", "ran")
    took_s = time.monotonic() - began
    assert run.code == 75, run
    told = json.loads(run.out)
    assert told["reason"]["code"] == "concurrency_cap"
    assert told["reason"]["text"].startswith("no slot within 1s: ")
    assert told["position"] == 1
    assert 1 <= status(full)["waited_s"] <= took_s
    assert not full.state.tickets
    assert not (full.folder / "ran").exists()
    within(took_s, 4, "s until it gave up")


def test_a8_a_ticket_expires_and_its_owner_is_told(full: Fleet):
    began = time.monotonic()
    run = full.done("--expires", "1s", "--json", "--status-file", "status.json", "--", "touch", "ran")
    took_s = time.monotonic() - began
    assert run.code == 75, run
    assert took_s >= 1
    reason = json.loads(run.out)["reason"]
    assert reason["code"] == "expired"
    assert "expired after 1s" in reason["text"], reason
    assert status(full)["reason"] == reason
    assert not full.state.tickets
    (expired,) = full.events_of(ev.Expired)
    assert expired[1].after_ms >= 1000
    assert full.gate.log.side_items("told") == []
    within(took_s, 4, "s until it gave up")
    within(expired[1].after_ms, 3000, "ms until it expired")


def test_a10_a_second_run_with_the_same_key_exits_75_and_names_the_first(full: Fleet):
    """While the first waits, and while it runs."""
    first = full.waiting("--key", "nightly", "--", *full.sleeper("first", 30))
    second = full.done("--key", "nightly", "--json", "--", "touch", "ran")
    assert second.code == 75, second
    reason = json.loads(second.out)["reason"]
    assert reason["code"] == "key_taken"
    assert "'nightly'" in reason["text"]
    assert str(first.pid) in reason["text"]
    full.free(*full.state.leases)
    full.until(lambda: full.has_started("first"))
    third = full.done("--key", "nightly", "--", "touch", "ran")
    assert third.code == 75, third
    (life,) = full.lives()
    assert str(life.pid) in third.err, "the agent that runs under the key is not named"
    assert not (full.folder / "ran").exists()
    full.kill_sleeper(life.pid)
    assert first.wait() == 137
    assert full.done("--key", "nightly", "--", "true").code == 0


def test_a10_a_key_whose_owner_was_killed_is_free_at_once(fleet: Fleet):
    """The dead are looked for before any refusal, also where there is room."""
    fleet.configure("[agents]\nhost = 10\n")
    first = fleet.run("--key", "nightly", "--", *fleet.sleeper("first", 30))
    fleet.until(lambda: fleet.has_started("first"))
    first.signal(signal.SIGKILL)
    first.wait()
    (life,) = fleet.lives()
    assert fleet.done("--key", "nightly", "--", "true").code == 75, "its agent still runs"
    fleet.kill_sleeper(life.pid)
    fleet.until(lambda: not is_alive(life.pid))
    assert fleet.done("--key", "nightly", "--", "true").code == 0


# --- running


def test_r2_a_signal_to_the_wrapper_reaches_the_agent_which_decides_what_to_do(fleet: Fleet):
    script = fleet.script("agent", '#!/bin/sh\ntrap "exit 7" TERM\ntouch ready\nwhile :; do sleep 0.05; done\n')
    run = fleet.run("--status-file", "status.json", "--", script)
    fleet.until((fleet.folder / "ready").exists)
    run.signal(signal.SIGTERM)
    assert run.wait() == 7
    told = status(fleet)
    assert (told["admitted"], told["exit_code"], told["signal"]) == (True, 7, None)
    assert told["outcome"]["kind"] == "local_error"
    assert fleet.is_empty()


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "USR1"])
def test_r3_an_agent_that_dies_of_a_forwarded_signal_is_128_plus_it(fleet: Fleet, name: str):
    number = getattr(signal, f"SIG{name}")
    run = fleet.run("--status-file", "status.json", "--", *fleet.sleeper("one", 30))
    fleet.until(lambda: fleet.has_started("one"))
    run.signal(number)
    assert run.wait() == 128 + number
    told = status(fleet)
    assert (told["admitted"], told["exit_code"], told["signal"]) == (True, 128 + number, number)
    assert fleet.is_empty()
    ((_, released),) = fleet.events_of(ev.Released)
    assert (released.exit_code, released.signal) == (None, number)


@pytest.mark.parametrize("code", [0, 3, 75])
def test_o6_the_status_file_tells_what_really_happened(fleet: Fleet, code: int):
    run = fleet.done("-m", "anthropic/claude-x", "--status-file", "status.json", "--", "sh", "-c", f"exit {code}")
    assert run.code == code
    told = status(fleet)
    assert told.keys() == STATUS_KEYS | {"usage"}
    assert (told["admitted"], told["exit_code"], told["signal"], told["reason"]) == (True, code, None, None)
    assert told["model"] == "anthropic/claude-x"
    assert told["outcome"].keys() >= {"kind", "scope", "retry_at", "evidence"}
    assert told["outcome"]["kind"] == ("ok" if code == 0 else "local_error")
    assert 0 <= told["waited_s"] < 5
    ((_, released),) = fleet.events_of(ev.Released)
    assert told["lease"] == released.id
    assert (released.exit_code, released.model) == (code, "anthropic/claude-x")


def test_o6_the_status_file_counts_the_time_in_the_queue(full: Fleet):
    run = full.waiting("--status-file", "status.json", "--", "true")
    began = time.monotonic()
    time.sleep(0.6)  # the thing measured
    full.free(*full.state.leases)
    assert run.wait() == 0
    assert time.monotonic() - began - 0.1 > 0.5
    assert 0.6 <= status(full)["waited_s"] < 5


@pytest.mark.parametrize(("command", "code"), [("no-such-program", 127), ("/etc/passwd", 126)])
def test_r3_what_cannot_run_gives_its_slot_back(fleet: Fleet, command: str, code: int):
    fleet.configure(ONE)
    run = fleet.done("--status-file", "status.json", "--", command)
    assert run.code == code
    assert run.err.startswith("fleetgate: cannot run "), run.err
    assert run.err.count("\n") == 1
    assert fleet.is_empty()
    told = status(fleet)
    assert (told["admitted"], told["exit_code"]) == (True, code), told
    assert fleet.done("--no-wait", "--", "true").code == 0


def test_o6_a_status_file_that_cannot_be_written_is_reported_before_the_agent_starts(fleet: Fleet):
    run = fleet.done("--status-file", "/no/such/folder/status.json", "--", "touch", "ran")
    assert run.code == 64
    assert "/no/such/folder/status.json" in run.err
    assert not (fleet.folder / "ran").exists()


def test_r2_pipes_pass_byte_for_byte(fleet: Fleet):
    data = bytes(range(256)) * 4096
    source = fleet.folder / "data"
    source.write_bytes(data)
    run = fleet.start(["sh", "-c", f"{FLEETGATE[0]} run -- cat < data > copy"])
    assert run.wait() == 0
    assert (fleet.folder / "copy").read_bytes() == data


def test_r2_the_wrapper_has_one_child_and_no_file_of_ours_is_open_in_it(fleet: Fleet):
    run = fleet.run("--", *fleet.sleeper("one", 30))
    fleet.until(lambda: fleet.has_started("one"))
    (child,) = children_of(run.pid)
    others = [fd for fd in os.listdir(f"/proc/{child}/fd") if fd not in ("1", "2")]  # noqa: PTH208 - those are read
    open_files = [os.readlink(f"/proc/{child}/fd/{fd}") for fd in others]  # noqa: PTH115
    assert not [name for name in open_files if str(fleet.home) in name or "socket:" in name or "pipe:" in name]
    (lease,) = fleet.state.leases.values()
    assert process_identity.pid_of(lease.child) == child
    run.signal(signal.SIGTERM)
    assert run.wait() == 143


# --- what it says while it waits, without a terminal


def test_r1_without_a_terminal_waiting_is_reported_in_plain_lines(full: Fleet):
    run = full.waiting("--", "sh", "-c", "echo out; echo err >&2")
    full.until(lambda: "position 1" in run.err)
    full.free(*full.state.leases)
    assert run.wait() == 0
    assert run.out == "out\n"
    lines = run.err.splitlines()
    assert lines[-1] == "err"
    assert all(line.startswith("fleetgate: waiting: position 1 of 1 for ") for line in lines[:-1]), lines
    assert len(lines) == 2, "the same is told over and over"
    assert "\x1b" not in run.err
    assert "\r" not in run.err


def test_r1_quiet_says_nothing(full: Fleet):
    run = full.waiting("--quiet", "--", "true")
    began = time.monotonic()
    full.until(lambda: time.monotonic() - began > 1.5)  # long enough for another look at the line
    full.free(*full.state.leases)
    assert run.wait() == 0
    assert (run.out, run.err) == ("", "")


# --- unfriendly surroundings


def test_r6_many_first_runs_at_once_make_one_store_and_each_is_in_its_history(fleet: Fleet):
    """No process reclaims the slot of an agent that has just ended before its wrapper could report how."""
    runs = [fleet.run("--", "sh", "-c", f"exit {number}") for number in range(16)]
    assert [run.wait(30) for run in runs] == list(range(16)), fleet.dump()
    assert sorted(event.exit_code or 0 for _, event in fleet.events_of(ev.Released)) == list(range(16))
    assert not fleet.events_of(ev.Reclaimed)
    fleet.check_log()


def test_l2_the_slot_of_an_agent_that_ended_is_free_also_when_its_wrapper_is_stopped(fleet: Fleet):
    fleet.configure(ONE)
    run = fleet.run("--", *fleet.sleeper("one", 60))
    fleet.until(lambda: fleet.has_started("one"))
    run.signal(signal.SIGSTOP)
    fleet.kill_sleeper(fleet.lives()[0].pid)
    assert fleet.done("--wait", "3s", "--", "true").code == 0
    run.signal(signal.SIGCONT)
    assert run.wait() == 137


@pytest.mark.parametrize("how", ["a long path", "no place for sockets"])
def test_r6_where_it_cannot_be_woken_as_usual_a_run_enters_all_the_same(fleet: Fleet, how: str):
    if how == "a long path":
        fleet.home = fleet.folder / ("long" * 30)
    else:
        fleet.home.mkdir()
        (fleet.home / "run").write_text("not a folder")
    fleet.configure(ONE)
    slot = fleet.occupy()
    run = fleet.waiting("--", "true")
    fleet.free(slot)
    assert run.wait() == 0
    assert fleet.is_empty()


def closed(run: str, files: str) -> list[str]:
    """A shell that runs something with files of its own closed, and writes down its exit code."""
    return ["sh", "-c", f"{run} {files}; echo $? > code"]


@pytest.mark.parametrize("files", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_r3_with_closed_files_the_code_is_still_the_agents(fleet: Fleet, files: str):
    run = fleet.start(closed(f"{FLEETGATE[0]} run -- sh -c 'exit 5'", files))
    run.wait()
    assert (fleet.folder / "code").read_text() == "5\n", run
    assert fleet.done("--no-wait", "--", "true").code == 0
    fleet.check_log()


def test_r3_with_closed_files_waiting_is_waiting(full: Fleet):
    run = full.start(closed(f"{FLEETGATE[0]} run -- sh -c 'exit 5'", "<&- >&- 2>&-"))
    full.until(lambda: full.in_queue() == 1)
    full.free(*full.state.leases)
    run.wait()
    assert (full.folder / "code").read_text() == "5\n", run


@pytest.mark.parametrize("code", [0, 5])
def test_r1_a_run_whose_reader_has_left_waits_and_runs_all_the_same(full: Fleet, code: int):
    """`fleetgate run … 2>&1 | head -1`: no process reads its words, and the agent must run all the same."""
    reader, writer = os.pipe()
    argv = [*FLEETGATE, "run", "--status-file", "status.json", "--", *full.sleeper("one", 0, code)]
    process = subprocess.Popen(argv, env=full.env(), cwd=full.folder, stdout=subprocess.DEVNULL, stderr=writer)
    os.close(reader)
    os.close(writer)
    with process:
        full.until(lambda: full.in_queue() == 1 or process.poll() is not None)
        began = time.monotonic()
        full.until(lambda: time.monotonic() - began > 1.2)  # it has spoken by now
        full.free(*full.state.leases)
        assert process.wait(60) == code
    assert full.has_started("one")
