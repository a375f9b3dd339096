"""A child whose output is read on the way: no reader can tell, and an agent that hangs is ended (rules R2, R5).

The wrapper is `fleetgate run` without the gate. Its argv is the child's; its last words go to a file, as JSON.
"""

import errno
import hashlib
import json
import os
import pty
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import tty
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.processes.runner_wrapper import is_stopped, kill_if_there, noted, recorder, runs, state_of, wait_for
from tests.processes.test_runner_child import STEPS, all_gone
from tests.processes.test_runner_terminal import slept_through

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="these tests look at processes through /proc"),
]

WRAPPER = """
import hashlib, json, os, sys
from fleetgate.runner import supervisor as supervising
from fleetgate.runner.child import Child, tappable
from fleetgate.runner.early_stop import EarlyStop
from fleetgate.runner.terminal_foreground import has_terminal

given = json.loads(os.environ.pop("WRAPPER"))
supervising.KILL_AFTER_S = given.get("kill_after_s", 10)
shown = {1: hashlib.sha256(), 2: hashlib.sha256()}

class Told:
    records_seen, activity, limited = 0, False, None

def on_bytes(stream, data):
    if given.get("cannot_read"):
        raise ValueError("cannot read this")
    shown[stream].update(data)
    Told.records_seen += data.count(b"RECORD")
    Told.activity |= b"ACTIVE" in data
    Told.limited = Told.limited or (b"LIMITED" in data or None)

def say(name, **facts):
    with open(given["folder"] + "/new", "w") as file:
        json.dump(facts, file)
    os.rename(given["folder"] + "/new", given["folder"] + "/" + name)

def on_end(end):
    say("on_end", code=end.code)

child = Child.prepare(sys.argv[1:], os.environ, own_group=not has_terminal(), taps=tappable())
child.start()
say("pids", wrapper=os.getpid(), child=child.pid)
ends = EarlyStop(Told, **given["ends"]) if "ends" in given else None
end = supervising.supervise(
    child, on_bytes=on_bytes, ends=ends, on_ending=lambda why: say("on_ending", why=why), on_end=on_end
)
files = sorted(os.listdir("/proc/self/fd"))
say(
    "end", code=end.code, because=end.ended_because, shown=[shown[1].hexdigest(), shown[2].hexdigest()],
    not_passed=end.not_passed and end.not_passed.errno, not_read=repr(end.not_read), files=len(files),
)
sys.exit(end.code)
"""


class Run:
    """A wrapper, and what its files tell."""

    def __init__(self, folder, argv, given, popen):
        self.folder = folder
        env = {**os.environ, "WRAPPER": json.dumps({"folder": str(folder), **given})}
        files = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **popen}
        self.process = subprocess.Popen([sys.executable, "-c", WRAPPER, *argv], env=env, process_group=0, **files)
        self.pid = self.process.pid
        self.stdout = self.process.stdout
        self.stderr = self.process.stderr

    def told(self, name):
        wait_for((self.folder / name).exists)
        return json.loads((self.folder / name).read_text())

    def child(self):
        return self.told("pids")["child"]

    def send(self, number):
        os.kill(self.pid, number)

    def code(self):
        return self.process.wait(timeout=60)

    def output(self):
        out, _ = self.process.communicate(timeout=60)
        return out

    def close(self):
        if (self.folder / "pids").exists():
            try:
                os.killpg(self.child(), signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.stdout, self.stderr):
            if pipe is not None:
                pipe.close()


@contextmanager
def tapped(folder, *argv, given=None, **popen):
    """A wrapper around a command, whose output it reads on the way; nothing is left of it afterwards."""
    run = Run(folder, argv, given or {}, popen)
    try:
        yield run
    finally:
        run.close()


def python(body):
    return [sys.executable, "-c", "import os, signal, sys, time\n" + body]


def sha(data):
    return hashlib.sha256(data).hexdigest()


FLOOD = "block = b'x' * 99 + b'\\n'\nwhile True: os.write(1, block * 100)"


# --- byte for byte


@pytest.fixture(scope="module")
def noise(tmp_path_factory):
    """50 MB of random bytes in a file."""
    file = tmp_path_factory.mktemp("noise") / "noise"
    chance = random.Random(5)
    with file.open("wb") as out:
        for _ in range(50):
            out.write(chance.randbytes(1_000_000))
    return file


def test_R2_50_mb_reach_a_slow_reader_byte_for_byte(tmp_path, noise):
    chance = random.Random(6)
    digest = hashlib.sha256()
    with tapped(tmp_path, "cat", str(noise), stderr=subprocess.DEVNULL) as run:
        while data := os.read(run.stdout.fileno(), chance.randrange(1, 200_000)):
            digest.update(data)
            if chance.random() < 0.2:
                time.sleep(0.002)
        assert run.code() == 0
        end = run.told("end")
    assert digest.hexdigest() == sha(noise.read_bytes()) == end["shown"][0]
    assert (end["not_passed"], end["not_read"]) == (None, "None")


def test_R2_50_mb_reach_a_file_byte_for_byte(tmp_path, noise):
    with (tmp_path / "out").open("wb") as out, tapped(tmp_path, "cat", str(noise), stdout=out, stderr=out) as run:
        assert run.code() == 0
        assert run.told("end")["shown"][0] == sha(noise.read_bytes())
    assert sha((tmp_path / "out").read_bytes()) == sha(noise.read_bytes())


def test_R2_stdout_and_stderr_pass_at_the_same_time_each_in_order(tmp_path):
    body = "for n in range(60_000):\n os.write(1, b'out %d\\n' % n); os.write(2, b'err %d\\n' % n)"
    with tapped(tmp_path, *python(body)) as run:
        out, err = run.process.communicate(timeout=60)
    assert out == b"".join(b"out %d\n" % n for n in range(60_000))
    assert err == b"".join(b"err %d\n" % n for n in range(60_000))


@pytest.mark.parametrize("where", ["pipe", "file", "socket"])
def test_R2_stdout_and_stderr_that_are_one_keep_their_common_order(tmp_path, where):
    body = "for n in range(30_000): os.write(1 + n * 7 % 3 % 2, b'line %d\\n' % n)"
    expected = b"".join(b"line %d\n" % n for n in range(30_000))
    if where == "pipe":
        with tapped(tmp_path, *python(body), stderr=subprocess.STDOUT) as run:
            assert run.output() == expected
    elif where == "file":
        with (tmp_path / "out").open("wb") as out, tapped(tmp_path, *python(body), stdout=out, stderr=out) as run:
            assert run.code() == 0
        assert (tmp_path / "out").read_bytes() == expected
    else:
        ours, theirs = socket.socketpair()
        with ours, tapped(tmp_path, *python(body), stdout=theirs, stderr=theirs) as run:
            theirs.close()
            assert b"".join(iter(partial(ours.recv, 65_536), b"")) == expected
            assert run.code() == 0


def test_R2_a_line_of_20_mb_and_zero_bytes_pass(tmp_path):
    with tapped(tmp_path, *python("os.write(1, b'a' * 20_000_000 + b'\\0\\n\\xff')")) as run:
        assert run.output() == b"a" * 20_000_000 + b"\0\n\xff"
        assert run.code() == 0


def test_R2_a_piece_without_a_line_end_passes_at_once(tmp_path):
    with tapped(tmp_path, *python("os.write(1, b'? '); sys.stdin.read()"), stdin=subprocess.PIPE) as run:
        assert run.stdout.read(2) == b"? "
        assert runs(run.child())


def test_R2_lines_of_several_agents_in_one_pipe_stay_whole(tmp_path):
    count = 3_000
    body = "import random\nfor n in range({count}): os.write(1, b'%d %s\\n' % ({who}, b'x' * random.randrange(400)))"
    read_fd, write_fd = os.pipe()
    folders = [tmp_path / str(who) for who in range(4)]
    for folder in folders:
        folder.mkdir()
    with (
        tapped(folders[0], *python(body.format(count=count, who=0)), stdout=write_fd) as a,
        tapped(folders[1], *python(body.format(count=count, who=1)), stdout=write_fd) as b,
        tapped(folders[2], *python(body.format(count=count, who=2)), stdout=write_fd) as c,
        tapped(folders[3], *python(body.format(count=count, who=3)), stdout=write_fd) as d,
    ):
        os.close(write_fd)
        data = b""
        while part := os.read(read_fd, 5_000):
            data += part
            time.sleep(0.0002)
        assert [run.code() for run in (a, b, c, d)] == [0, 0, 0, 0]
    os.close(read_fd)
    lines = data.splitlines()
    assert len(lines) == 4 * count
    assert all(line[:2] in (b"0 ", b"1 ", b"2 ", b"3 ") and not line[2:].strip(b"x") for line in lines)


def test_R2_an_exception_of_the_reader_on_the_way_loses_no_output(tmp_path):
    body = "os.write(1, b'x' * 3_000_000); os.write(2, b'bye')"
    with tapped(tmp_path, *python(body), given={"cannot_read": True}) as run:
        assert run.process.communicate(timeout=60) == (b"x" * 3_000_000, b"bye")
        assert run.told("end")["not_read"] == "ValueError('cannot read this')"


@pytest.mark.parametrize("terminal", [1, 2])
def test_R2_a_terminal_on_one_side_is_left_alone(tmp_path, terminal):
    body = "os.write(1, b'out %d' % os.isatty(1)); os.write(2, b'err %d' % os.isatty(2)); sys.exit(3)"
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    files = {"stdout": theirs} if terminal == 1 else {"stderr": theirs}
    with tapped(tmp_path, *python(body), **files) as run:
        assert run.code() == 3
        assert os.read(ours, 100) == (b"out 1" if terminal == 1 else b"err 1")
        piped = run.stderr if terminal == 1 else run.stdout
        assert piped.read() == (b"err 0" if terminal == 1 else b"out 0")
        expected = [sha(b""), sha(b"err 0")] if terminal == 1 else [sha(b"out 0"), sha(b"")]
        assert run.told("end")["shown"] == expected, "a terminal is never read"
    os.close(ours)
    os.close(theirs)


def test_R2_nothing_is_left_open_afterwards_and_nothing_polled_meanwhile(tmp_path):
    with tapped(tmp_path, "cat", stdin=subprocess.PIPE) as run:
        run.child()
        wait_for(partial(slept_through, run.pid, 0.5))
        run.process.stdin.close()
        run.process.stdin = None
        assert run.code() == 0
        assert run.told("end")["files"] == 4, "three, and the folder that was listed"


# --- readers that leave, stop or do not read


def test_R2_when_the_reader_leaves_a_child_that_writes_on_gets_sigpipe(tmp_path):
    with tapped(tmp_path, "yes") as run:
        assert run.stdout.read(4) == b"y\ny\n"
        run.stdout.close()
        assert run.code() == 128 + signal.SIGPIPE
        assert run.told("end")["not_passed"] == errno.EPIPE


def open_files(pid):
    found = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(fd.readlink())
        except OSError:
            pass  # closed meanwhile
    return found


def test_R2_when_the_reader_has_left_already_the_first_write_fails(tmp_path):
    body = """
signal.signal(signal.SIGPIPE, signal.SIG_IGN)
sys.stdin.read()
try:
    os.write(1, b"x")
except BrokenPipeError:
    sys.exit(9)
"""
    with tapped(tmp_path, *python(body), stdin=subprocess.PIPE) as run:
        child = run.child()
        run.stdout.close()
        pipe = Path(f"/proc/{child}/fd/1").readlink()
        wait_for(lambda: pipe not in open_files(run.pid))
        run.process.stdin.close()
        run.process.stdin = None
        assert run.code() == 9


def test_R2_a_child_that_is_killed_while_it_writes_leaves_what_it_wrote(tmp_path):
    body = "n = 0\nwhile True: os.write(1, b'%07d\\n' % n); n += 1"
    with tapped(tmp_path, *python(body)) as run:
        run.stdout.read(8 * 10)
        os.kill(run.child(), signal.SIGKILL)
        rest = run.stdout.read()
        assert run.code() == 137
    lines = rest.splitlines()
    assert lines == [b"%07d" % n for n in range(10, 10 + len(lines))]


def test_R2_a_child_that_is_killed_before_a_reader_that_reads_nothing_is_not_waited_for_long(tmp_path):
    with tapped(tmp_path, *python(FLOOD)) as run:
        child = run.child()
        wait_for(lambda: state_of(child) == "S" and slept_through(child, 0.1))
        began = time.monotonic()
        run.send(signal.SIGTERM)
        assert run.code() == 143
        assert time.monotonic() - began < 10
        assert run.told("end")["not_passed"] == errno.ETIMEDOUT


def test_R2_a_reader_that_is_stopped_stops_the_child_and_signals_still_pass(tmp_path, noise):
    file = tmp_path / "signals"
    body = f"""
os.write(os.open({str(file)!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT), b"ready\\n")
def note(number, frame):
    os.write(os.open({str(file)!r}, os.O_WRONLY | os.O_APPEND), b"USR1\\n")
signal.signal(signal.SIGUSR1, note)
with open({str(noise)!r}, "rb", 0) as source:
    while data := source.read(65_536):
        while data:
            data = data[os.write(1, data):]
"""
    read_fd, write_fd = os.pipe()
    reader = subprocess.Popen(["sha256sum"], stdin=read_fd, stdout=subprocess.PIPE)
    os.close(read_fd)
    with reader, tapped(tmp_path, *python(body), stdout=write_fd) as run:
        os.close(write_fd)
        os.kill(reader.pid, signal.SIGSTOP)
        wait_for(lambda: noted(file))
        child = run.child()
        wait_for(lambda: slept_through(child, 0.2) and slept_through(run.pid, 0.2))
        run.send(signal.SIGUSR1)
        wait_for(lambda: noted(file) == ["ready", "USR1"])
        os.kill(reader.pid, signal.SIGCONT)
        assert run.code() == 0
        assert reader.stdout is not None
        assert reader.stdout.read().split()[0].decode() == sha(noise.read_bytes())


def test_R2_signals_pass_while_output_floods(tmp_path):
    body = "signal.signal(signal.SIGTERM, lambda number, frame: os._exit(7))\n" + FLOOD
    with tapped(tmp_path, *python(body)) as run:
        run.stdout.read(1_000_000)
        drain = threading.Thread(target=run.stdout.read)
        drain.start()
        run.send(signal.SIGTERM)
        assert run.code() == 7
        drain.join(60)


def test_R2_ctrl_z_and_continue_pass_while_output_is_read(tmp_path):
    with tapped(tmp_path, "cat", stdin=subprocess.PIPE) as run:
        child = run.child()
        run.send(signal.SIGTSTP)
        wait_for(lambda: is_stopped(child) and is_stopped(run.pid))
        run.process.stdin.write(b"hello")
        run.process.stdin.flush()
        run.send(signal.SIGCONT)
        assert run.stdout.read(5) == b"hello"


def test_R3_the_end_is_reported_before_a_slow_reader_has_taken_everything(tmp_path):
    with tapped(tmp_path, *python("os.write(1, b'z' * 150_000); sys.exit(5)")) as run:
        assert run.told("on_end") == {"code": 5}
        assert runs(run.pid)
        assert run.process.poll() is None
        assert run.stdout.read() == b"z" * 150_000
        assert run.code() == 5


def test_R2_a_wrapper_that_waits_for_a_reader_can_be_ended(tmp_path):
    with tapped(tmp_path, *python("os.write(1, b'z' * 150_000)")) as run:
        run.told("on_end")
        run.send(signal.SIGTERM)
        assert run.code() == -signal.SIGTERM


# --- descendants that hold the pipe


def test_R2_a_descendant_that_holds_the_output_does_not_hold_up_the_wrapper(tmp_path):
    with tapped(tmp_path, "sh", "-c", "sleep 1000 & echo $!; exit 4") as run:
        began = time.monotonic()
        assert run.code() == 4
        assert time.monotonic() - began < 10
        sleeper = int(run.stdout.readline())
        assert runs(sleeper)
        kill_if_there(sleeper)


def test_R2_what_a_descendant_writes_shortly_after_is_passed_on(tmp_path):
    with tapped(tmp_path, "sh", "-c", "(sleep 0.05; echo late) & echo early") as run:
        assert run.output() == b"early\nlate\n"


def test_R2_a_descendant_that_floods_does_not_hold_up_the_wrapper(tmp_path):
    with tapped(tmp_path, "sh", "-c", "yes & exit 4") as run:
        drain = threading.Thread(target=run.stdout.read)
        drain.start()
        assert run.code() == 4
        drain.join(60)
        assert not drain.is_alive(), "the flood has ended by SIGPIPE, and no other process has the pipe"


# --- R5: agents that hang are ended

# Shells, which are there at once: the time counts from the start.


@pytest.mark.parametrize(
    ("word", "ends", "because"),
    [
        ("RECORD LIMITED", {"early_s": 1000}, "rate_limited"),
        ("hello", {"record_s": 2}, "no_record"),
        ("RECORD ACTIVE", {"silence_s": 2}, "silent"),
    ],
)
def test_R5_an_agent_that_hangs_is_ended_and_it_is_said_why(tmp_path, word, ends, because):
    with tapped(tmp_path, "sh", "-c", f"echo {word}; exec sleep 1000", given={"ends": ends}) as run:
        assert run.output() == word.encode() + b"\n"
        assert run.code() == 143
        assert run.told("end")["because"] == because
        assert run.told("on_ending") == {"why": because}


def test_R5_an_agent_that_works_is_not_ended(tmp_path):
    body = "for n in 1 2 3 4 5 6 7 8 9 10 11 12; do echo RECORD ACTIVE LIMITED; sleep 0.2; done"
    given = {"ends": {"early_s": 2, "record_s": 2, "silence_s": 2}}
    with tapped(tmp_path, "sh", "-c", body, given=given) as run:
        run.output()
        assert run.code() == 0
        assert run.told("end")["because"] == ""


def test_R5_an_agent_that_ignores_term_is_killed(tmp_path):
    body = "trap '' TERM; echo RECORD; exec sleep 1000"
    with tapped(tmp_path, "sh", "-c", body, given={"ends": {"silence_s": 2}, "kill_after_s": 0.3}) as run:
        assert run.code() == 137
        assert run.told("end")["because"] == "silent"


def test_R5_the_whole_group_is_gone_when_the_end_is_told(tmp_path):
    line = "trap 'exit 6' TERM; sh -c 'trap \"\" TERM; exec sleep 1000' & echo $!; wait; wait"
    given = {"ends": {"silence_s": 2}, "kill_after_s": 0.5}
    with tapped(tmp_path, "sh", "-c", line, given=given) as run:
        grandchild = int(run.stdout.readline())
        assert run.told("on_end") == {"code": 6}, "the child obeyed"
        assert all_gone([grandchild]), "and who did not was killed before its slot is free"
        assert run.code() == 6
        assert run.told("end")["because"] == "silent"


def test_R5_orphans_of_a_child_that_ended_on_its_own_are_left_alone(tmp_path):
    with tapped(tmp_path, "sh", "-c", "sleep 1000 & echo $!", given={"ends": {"silence_s": 1000}}) as run:
        assert run.code() == 0
        sleeper = int(run.stdout.readline())
        assert runs(sleeper)
        kill_if_there(sleeper)


def test_R5_while_an_agent_is_stopped_its_time_stands_still(tmp_path):
    with tapped(tmp_path, *recorder(tmp_path / "signals"), given={"ends": {"record_s": None, "silence_s": 5}}) as run:
        child = run.child()
        wait_for(lambda: noted(tmp_path / "signals"))
        os.kill(child, signal.SIGSTOP)
        wait_for(lambda: is_stopped(child))
        time.sleep(5.2)  # longer than it may be silent
        assert is_stopped(child)
        assert noted(tmp_path / "signals") == ["ready"]
        os.kill(child, signal.SIGCONT)
        time.sleep(0.2)  # in which it could be ended
        assert runs(child), "it has as much time left as before"
        assert run.code() == 7
        assert run.told("end")["because"] == "silent"


def test_R5_an_agent_whose_reader_does_not_read_is_not_silent(tmp_path):
    body = "yes RECORD | head -c 350000; exit 5"
    with tapped(tmp_path, "sh", "-c", body, given={"ends": {"silence_s": 2}}) as run:
        child = run.child()
        time.sleep(3)  # longer than it may be silent
        assert runs(child)
        assert run.stdout.read() == b"RECORD\n" * 50_000
        assert run.code() == 5
        assert run.told("end")["because"] == ""


def test_R5_where_the_output_cannot_be_read_silence_ends_no_agent(tmp_path):
    given = {"ends": {"record_s": 2}, "cannot_read": True}
    with tapped(tmp_path, "sh", "-c", "echo hello; sleep 3; exit 5", given=given) as run:
        assert run.code() == 5


# --- L2


def test_L2_with_taps_too_a_wrapper_killed_at_any_step_leaves_a_child_that_runs_or_one_that_never_did(tmp_path):
    steps = STEPS.replace("own_group=True)", "own_group=True, taps=[(1,), (2,)])")
    for die_at in range(1, 1000):
        folder = tmp_path / str(die_at)
        folder.mkdir()
        done = subprocess.run([sys.executable, "-c", steps, str(die_at), str(folder)], cwd=folder, timeout=60)
        ledger = (folder / "ledger").read_text().splitlines()
        forked = [int(step.split()[2]) for step in ledger if step.startswith("after fork")]
        try:
            if "after write " in ledger:
                wait_for((folder / "ran").exists)
                assert runs(forked[0])
            else:
                wait_for(partial(all_gone, forked))
                assert not (folder / "ran").exists()
        finally:
            for pid in forked:
                kill_if_there(pid)
        if done.returncode == 0:
            return
    pytest.fail("it never came to its end")
