"""Process identity: which processes are gone, which are alive, and which cannot be judged from here (rule L2)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fleetgate.gate.liveness import process_identity

ECHO = "while True: print(input(), flush=True)"
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def doctored(process: str, **changed: str) -> str:
    fields = dict(zip(("host", "boot", "pidns", "pid", "start"), process.split("|"), strict=True))
    return "|".join((fields | changed).values())


@contextmanager
def running(*argv: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program that echoes its input, once it has done so: only then is its exec over and its name in /proc."""
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin
        assert child.stdout
        try:
            child.stdin.write(b"!\n")
            child.stdin.flush()
            assert child.stdout.readline() == b"!\n"
            yield child
        finally:
            child.kill()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with running("cat", "-u") as child:
        yield child


def test_this_process_lives_and_names_its_parts() -> None:
    me = process_identity.this_process()
    host, boot, pidns, pid, start = me.split("|")
    assert host == process_identity.host_name() == process_identity.host_of(me)
    assert int(pid) == os.getpid() == process_identity.pid_of(me) == process_identity.local_pid(me)
    assert len(boot) == 12
    assert "-" not in boot
    assert int(start) > 0
    assert int(pidns) >= 0
    assert process_identity.identify(os.getpid()) == me
    assert process_identity.is_gone(me) is False


@linux
def test_the_parts_are_those_of_the_kernel() -> None:
    _, boot, pidns, _, start = process_identity.this_process().split("|")
    assert Path("/proc/sys/kernel/random/boot_id").read_text().replace("-", "").startswith(boot)
    assert str(Path("/proc/self/ns/pid").readlink()) == f"pid:[{pidns}]"
    assert Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19] == start


def test_a_forked_child_has_an_identity_of_its_own() -> None:
    me = process_identity.this_process()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, process_identity.this_process().encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        theirs = pipe.read()
    os.waitpid(child, 0)
    assert process_identity.pid_of(theirs) == child
    assert theirs != me
    assert process_identity.this_process() == me


def test_l2_a_process_that_was_killed_is_gone(sleeper: subprocess.Popen[bytes]) -> None:
    process = process_identity.identify(sleeper.pid)
    assert process is not None
    assert process_identity.is_gone(process) is False
    sleeper.kill()
    sleeper.wait()
    assert process_identity.is_gone(process) is True
    assert process_identity.identify(sleeper.pid) is None


def test_l2_a_zombie_is_gone_before_anybody_reaps_it(sleeper: subprocess.Popen[bytes]) -> None:
    process = process_identity.identify(sleeper.pid)
    assert process is not None
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie now, and stays one
    assert process_identity.is_gone(process) is True
    assert process_identity.identify(sleeper.pid) is None


def test_l2_a_stopped_process_is_not_gone(sleeper: subprocess.Popen[bytes]) -> None:
    process = process_identity.identify(sleeper.pid)
    assert process is not None
    os.kill(sleeper.pid, signal.SIGSTOP)
    _, status = os.waitpid(sleeper.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    assert process_identity.is_gone(process) is False
    assert process_identity.identify(sleeper.pid) == process


def test_l2_a_pid_that_another_process_has_by_now_does_not_keep_the_first_alive() -> None:
    me = process_identity.this_process()
    start = me.rsplit("|", 1)[1]
    assert process_identity.is_gone(doctored(me, start=str(int(start) - 1))) is True


@linux
def test_a_program_name_with_parentheses_and_blanks_is_read_right(tmp_path: Path) -> None:
    program = tmp_path / "a) b (c"
    shutil.copy(shutil.which("cat") or "/bin/cat", program)
    with running(str(program)) as child:
        assert Path(f"/proc/{child.pid}/comm").read_text() == "a) b (c\n"
        process = process_identity.identify(child.pid)
        assert process is not None
        start = Path(f"/proc/{child.pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
        assert process.endswith(f"|{child.pid}|{start}")
        assert process_identity.is_gone(process) is False
        assert process_identity.parent_of(child.pid) == os.getpid()


@linux
def test_l2_a_process_whose_first_thread_has_exited_lives_while_another_runs() -> None:
    # The other thread says so once the first is a zombie in the kernel's eyes, and runs until its input ends.
    script = """
import ctypes, os, sys, threading
def other():
    while open(f"/proc/self/task/{os.getpid()}/stat").read().rsplit(")", 1)[1].split()[0] != "Z":
        pass
    print("alone", flush=True)
    sys.stdin.read()
    os._exit(0)
threading.Thread(target=other).start()
ctypes.CDLL(None).pthread_exit(None)
"""
    if os.uname().machine == "x86_64":
        # pthread_exit unwinds the stack through the interpreter, which some builds abort on; the bare call does not.
        script = script.replace("pthread_exit(None)", "syscall(60, 0)")
    child = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin
    assert child.stdout
    try:
        assert child.stdout.readline() == b"alone\n"
        state = Path(f"/proc/{child.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        assert state == "Z"
        process = process_identity.identify(child.pid)
        assert process is not None
        assert process_identity.is_gone(process) is False
        child.stdin.close()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert process_identity.is_gone(process) is True
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def test_all_processes_of_an_earlier_boot_of_this_machine_are_gone() -> None:
    me = process_identity.this_process()
    assert process_identity.is_gone(doctored(me, boot="0123456789ab")) is True
    assert process_identity.local_pid(doctored(me, boot="0123456789ab")) is None


def test_another_machine_is_not_judged_from_here() -> None:
    me = process_identity.this_process()
    assert process_identity.is_gone(doctored(me, host="elsewhere", boot="0123456789ab")) is None


def test_a_machine_that_was_renamed_while_it_runs_is_the_same_machine() -> None:
    me = process_identity.this_process()
    assert process_identity.is_gone(doctored(me, host="old-name")) is False
    assert process_identity.is_gone(doctored(me, host="old-name", start="1")) is True


def test_another_pid_namespace_is_not_judged_from_here() -> None:
    me = process_identity.this_process()
    assert process_identity.is_gone(doctored(me, pidns="1")) is None
    assert process_identity.local_pid(doctored(me, pidns="1")) is None


@pytest.mark.parametrize("text", ["", "x", "a|b|c|d", "a|b|c|d|e|f", "|||||", "http client 7"])
def test_what_is_not_a_process_is_not_judged(text: str) -> None:
    assert process_identity.is_gone(text) is None
    assert process_identity.pid_of(text) is None


@pytest.mark.parametrize("pid", ["0", "-1", "x", "", "1.5", "²", "٣", "9" * 5000])
def test_a_pid_that_cannot_be_one_is_none_and_never_signalled(pid: str) -> None:
    process = doctored(process_identity.this_process(), pid=pid)
    assert process_identity.pid_of(process) is None
    assert process_identity.is_gone(process) is None


@pytest.mark.parametrize("pid", [2**22 + 1, 2**31, 2**70])
def test_a_pid_beyond_what_the_system_has_is_gone(pid: int) -> None:
    assert process_identity.identify(pid) is None
    assert process_identity.is_gone(doctored(process_identity.this_process(), pid=str(pid))) is True


@pytest.mark.parametrize("pid", [0, -1, -(2**40)])
def test_no_process_has_a_pid_below_one(pid: int) -> None:
    assert process_identity.identify(pid) is None


@linux
@pytest.mark.parametrize("error", [FileNotFoundError, PermissionError, ValueError])
def test_l2_a_living_process_that_proc_hides_is_not_taken_for_gone(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    me = process_identity.this_process()

    def hidden(pid: int) -> list[bytes]:
        raise error

    monkeypatch.setattr(process_identity, "_stat", hidden)
    assert process_identity.is_gone(me) is None


@linux
def test_l2_a_child_in_a_pid_namespace_without_its_own_proc_takes_nobody_for_gone() -> None:
    script = (
        "from fleetgate.gate.liveness import process_identity as p; me = p.this_process()\n"
        "print(p.is_gone(me), p.pid_of(me))"
    )
    ran = subprocess.run(
        ["unshare", "--pid", "--fork", sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    if ran.returncode:
        pytest.skip(f"no pid namespaces here: {ran.stderr.strip()}")
    assert ran.stdout.split() == ["None", "1"]


@linux
def test_a_process_in_another_container_is_unknown_here_and_we_are_unknown_there() -> None:
    script = (
        "import sys; from fleetgate.gate.liveness import process_identity as p\n"
        "me = p.this_process(); print(me, p.is_gone(me), p.is_gone(sys.argv[1]))"
    )
    ran = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", script, process_identity.this_process()],
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        pytest.skip(f"no pid namespaces here: {ran.stderr.strip()}")
    theirs, to_them, of_us = ran.stdout.split()
    assert (to_them, of_us) == ("False", "None")
    assert process_identity.is_gone(theirs) is None


def test_psutil_tells_the_same_where_there_is_no_proc(
    monkeypatch: pytest.MonkeyPatch, sleeper: subprocess.Popen[bytes]
) -> None:
    monkeypatch.setattr(process_identity, "_LINUX", False)
    process = process_identity.identify(sleeper.pid)
    assert process is not None
    assert process_identity.is_gone(process) is False
    assert process_identity.parent_of(sleeper.pid) == os.getpid()
    assert process_identity.command_line(sleeper.pid) == ["cat", "-u"]
    assert process_identity.is_gone(doctored(process, start="1")) is True
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert process_identity.is_gone(process) is True
    sleeper.wait()
    assert process_identity.is_gone(process) is True
    assert process_identity.parent_of(sleeper.pid) == 0
    assert process_identity.command_line(sleeper.pid) == []


def test_without_proc_and_psutil_only_a_missing_pid_is_gone(
    monkeypatch: pytest.MonkeyPatch, sleeper: subprocess.Popen[bytes]
) -> None:
    monkeypatch.setattr(process_identity, "_LINUX", False)
    monkeypatch.setitem(sys.modules, "psutil", None)
    process = process_identity.identify(sleeper.pid)
    assert process is not None
    assert process.endswith("|")
    assert process_identity.is_gone(process) is None
    assert process_identity.parent_of(sleeper.pid) == 0
    sleeper.kill()
    sleeper.wait()
    assert process_identity.is_gone(process) is True


def test_a_description_is_one_short_printable_line() -> None:
    with running(sys.executable, "-c", ECHO, "one\ntwo\x1b[31m", "x" * 500) as child:
        text = process_identity.describe(child.pid)
        assert text.startswith(sys.executable[:20])
        assert text.isprintable()
        assert len(text) <= 80
        assert text.endswith("...")
    assert process_identity.describe(child.pid) == "unknown process"


@linux
def test_a_zombie_is_described_by_its_name(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert process_identity.describe(sleeper.pid) == "[cat]"


@linux
def test_a_long_command_line_is_read_to_its_end() -> None:
    prompt = "word " * 20_000
    with running(sys.executable, "-c", ECHO, prompt, "-m", "x/y") as child:
        assert process_identity.command_line(child.pid)[-3:] == [prompt, "-m", "x/y"]


def test_these_modules_add_nothing_to_a_start_that_it_would_feel() -> None:
    script = (
        "import sys, fleetgate.log; before = set(sys.modules)\n"
        "from fleetgate.gate import request_ids\n"
        "from fleetgate.gate.liveness import free_memory, process_identity\n"
        "from fleetgate.gate.wakeup import mailbox\n"
        "process_identity.this_process(); mailbox.send('/nowhere.wake', b''); free_memory.room(0, 1)\n"
        "request_ids.new_id()\n"
        "print(*set(sys.modules) - before)"
    )
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    costly = {
        "asyncio",
        "ctypes",
        "dataclasses",
        "hashlib",
        "json",
        "pathlib",
        "psutil",
        "selectors",
        "socket",
        "shlex",
    }
    assert not costly & set(loaded)
    assert len(loaded) < 14  # two of them are folders
