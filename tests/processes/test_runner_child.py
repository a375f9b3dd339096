"""A child without a terminal: how it is started, what it finds, what it is told, how its end is told."""

import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from tests.processes.runner_wrapper import (
    is_stopped,
    keys_not_ignored,
    kill_if_there,
    noted,
    recorder,
    running,
    runs,
    state_of,
    wait_for,
    wrapped,
)

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="these tests look at processes through /proc"),
]


@pytest.fixture(autouse=True)
def _keys():
    with keys_not_ignored():
        yield


def run(*argv, stdin=b"", **options):
    """Run a command under the wrapper to its end."""
    return subprocess.run(wrapped(*argv), input=stdin, capture_output=True, timeout=60, **options)


def noted_times(file, name, count):
    return noted(file).count(name) == count


def all_gone(pids):
    return not any(map(state_of, pids))


def gone_or_there(pid, file):
    return not state_of(pid) or file.exists()


# --- how the end is told


@pytest.mark.parametrize("code", [0, 1, 75, 255])
def test_R3_exit_is_the_childs_code(code):
    assert run("sh", "-c", f"exit {code}").returncode == code


@pytest.mark.parametrize("name", ["KILL", "TERM", "SEGV", "INT"])
def test_R3_exit_is_128_plus_the_signal_that_ended_the_child(name):
    done = run("sh", "-c", f"kill -{name} $$")
    assert done.returncode == 128 + getattr(signal, f"SIG{name}")


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("no-such-program", 127, "no such program in PATH"),
        ("{folder}/nothing", 127, "no such file"),
        ("{folder}/plain/under", 127, "no such file"),
        ("", 127, "no such program"),
        ("subfolder", 127, "no such program in PATH"),
        ("plain", 126, "no permission"),
        ("{folder}/plain", 126, "no permission"),
        ("{folder}/subfolder", 126, "is a folder"),
        ("no-first-line", 126, "#! line"),
        ("{folder}/no-first-line", 126, "#! line"),
        ("no-interpreter", 126, "interpreter"),
        ("{folder}/no-interpreter", 126, "interpreter"),
    ],
)
def test_R3_what_cannot_run_exits_126_or_127_with_a_sentence(tmp_path, command, code, words):
    (tmp_path / "subfolder").mkdir()
    (tmp_path / "plain").write_text("#!/bin/sh\n")
    for name, text in (("no-first-line", "echo hello\n"), ("no-interpreter", "#!/no/such/interpreter\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    env = {**os.environ, "PATH": f"/nowhere:{tmp_path}:/usr/bin:/bin"}
    done = run(command.format(folder=tmp_path), env=env)
    assert (done.returncode, done.stdout) == (code, b"")
    assert words in done.stderr.decode()
    assert done.stderr.startswith(b"cannot run ")
    assert done.stderr.count(b"\n") == 1


def test_R3_arguments_that_are_too_long_exit_126():
    body = """
import os, sys
from fleetgate.runner.child import CannotRun, Child
child = Child.prepare(["true", "x" * 10_000_000], os.environ, own_group=True)
try:
    child.start()
except CannotRun as error:
    print(error.exit_code, error)
    os.kill(os.getpid(), 0)
    try:
        os.waitpid(-1, 0)
    except ChildProcessError:
        print("reaped")
"""
    done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["126 cannot run 'true': Argument list too long", "reaped"]


def test_R3_the_program_is_looked_up_in_the_childs_path_in_order(tmp_path):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tool").write_text(f"#!/bin/sh\necho {name}\n")
        (tmp_path / name / "tool").chmod(0o755)
    path = f"{tmp_path}/absent:{tmp_path}/first:{tmp_path}/second"
    assert run("tool", env={**os.environ, "PATH": path}).stdout == b"first\n"
    (tmp_path / "first" / "tool").chmod(0o644)
    assert run("tool", env={**os.environ, "PATH": path}).stdout == b"second\n"


def test_R3_the_end_is_noticed_even_when_the_wrapper_was_started_ignoring_its_children():
    def ignore():
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    assert run("sh", "-c", "exit 9", preexec_fn=ignore).returncode == 9
    ignored = int(run("grep", "SigIgn", "/proc/self/status", preexec_fn=ignore).stdout.split()[1], 16)
    assert ignored & 1 << (signal.SIGCHLD - 1), "and the child finds them ignored, as it would have"


# --- what the child finds


def test_R1_argv_passes_as_it_is():
    words = [b"", b" a  b ", b"'\"`$(id)", b"line\nline", b"\\", b"*", b"-c", b"--", b"\xff\xfe", "é☃".encode(), b""]
    show = "import os, sys; sys.stdout.buffer.write(b'\\0'.join(map(os.fsencode, sys.argv[1:])))"
    assert run(sys.executable, "-c", show, *words).stdout.split(b"\0") == words


def test_R7_the_environment_passes_as_it_is():
    env = {
        b"PATH": b"/usr/bin:/bin",
        b"LC_ALL": b"C.UTF-8",
        b"EMPTY": b"",
        b"SPACES": b" a  b ",
        b"LINES": b"a\nb\n",
        b"BYTES": b"\xff\xfe=\x80",
        b"n\xffme": b"=",
        b"with space": b"'\"$HOME",
    }
    entries = run("cat", "/proc/self/environ", env=env).stdout.split(b"\0")
    assert dict(entry.split(b"=", 1) for entry in entries if entry) == env


def test_R2_standard_input_and_output_pass_byte_for_byte():
    data = random.Random(1).randbytes(3_000_000)
    assert run("cat", stdin=data).stdout == data


def test_R2_other_files_that_are_inherited_pass_too(tmp_path):
    with (tmp_path / "out").open("wb") as file:
        run(sys.executable, "-c", f"import os; os.write({file.fileno()}, b'hello\\n')", pass_fds=[file.fileno()])
    assert (tmp_path / "out").read_text() == "hello\n"


def test_R2_the_child_has_no_file_of_the_wrappers_own():
    listed = run("ls", "/proc/self/fd").stdout.split()
    assert listed == [b"0", b"1", b"2", b"3"], "3 is the folder that ls reads"


def test_R2_the_child_finds_signals_blocked_and_ignored_as_without_the_wrapper():
    def some_of_each():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGCHLD])

    show = ["grep", "^Sig[BIC]", "/proc/self/status"]
    direct = subprocess.run(show, capture_output=True, preexec_fn=some_of_each, timeout=60)
    assert b"SigBlk" in direct.stdout
    assert run(*show, preexec_fn=some_of_each).stdout == direct.stdout


# --- what the child is told


@pytest.mark.parametrize("name", ["HUP", "INT", "QUIT", "TERM", "USR1", "WINCH"])
def test_R2_a_signal_to_the_wrapper_reaches_the_child_once(tmp_path, name):
    file = tmp_path / "signals"
    with running(tmp_path, *recorder(file, last="none")) as wrapper:
        wait_for(lambda: noted(file))
        assert os.getpgid(wrapper.child()) == wrapper.child(), "in a group of its own"
        wrapper.send(getattr(signal, f"SIG{name}"))
        wait_for(lambda: f"SIG{name}" in noted(file))
        wrapper.send(signal.SIGUSR2)  # which the child tells its group, and the wrapper is not in it
        wait_for(lambda: "SIGINT" in noted(file)[2:])
        assert noted(file) == ["ready", f"SIG{name}", "SIGUSR2", "SIGINT"]
        assert runs(wrapper.pid)


def test_R2_sigterm_is_passed_on_and_the_exit_is_143(tmp_path):
    with running(tmp_path, "sleep", "1000") as wrapper:
        wrapper.child()
        wrapper.send(signal.SIGTERM)
        assert wrapper.code() == 143


def test_R2_the_whole_group_of_the_child_is_told(tmp_path):
    file = tmp_path / "signals"
    with running(tmp_path, "sh", "-c", '"$@" & wait; wait', "sh", *recorder(file)) as wrapper:
        wait_for(lambda: noted(file))
        wrapper.send(signal.SIGTERM)
        wait_for(lambda: "SIGTERM" in noted(file))
        assert wrapper.code() == 143


def test_R2_every_further_sigterm_is_passed_on_and_the_wrapper_lives_on(tmp_path):
    file = tmp_path / "signals"
    with running(tmp_path, *recorder(file, last="SIGUSR1")) as wrapper:
        wait_for(lambda: noted(file))
        for count in (1, 2, 3):
            wrapper.send(signal.SIGTERM)
            wait_for(partial(noted_times, file, "SIGTERM", count))
        wrapper.send(signal.SIGUSR1)
        assert wrapper.code() == 7


def test_R2_sigtstp_stops_the_group_and_the_wrapper_and_sigcont_continues_both(tmp_path):
    with running(tmp_path, "sleep", "1000") as wrapper:
        child = wrapper.child()
        for _ in range(3):
            wrapper.send(signal.SIGTSTP)
            wait_for(lambda: is_stopped(child) and is_stopped(wrapper.pid))
            wrapper.send(signal.SIGCONT)
            wait_for(lambda: runs(child) and runs(wrapper.pid))
        wrapper.send(signal.SIGTERM)
        assert wrapper.code() == 143


def test_R2_a_wrapper_that_was_stopped_for_a_while_tells_the_end_when_it_goes_on(tmp_path):
    with running(tmp_path, "sh", "-c", "read line; exit 5", stdin=subprocess.PIPE) as wrapper:
        child = wrapper.child()
        wrapper.send(signal.SIGSTOP)
        wait_for(lambda: is_stopped(wrapper.pid))
        assert runs(child)
        assert wrapper.process.stdin is not None
        wrapper.process.stdin.write(b"go\n")
        wrapper.process.stdin.flush()
        wait_for(lambda: not state_of(child))
        assert is_stopped(wrapper.pid)
        wrapper.send(signal.SIGCONT)
        assert wrapper.code() == 5


def test_R2_a_child_that_another_process_stopped_does_not_stop_the_wrapper(tmp_path):
    file = tmp_path / "signals"
    with running(tmp_path, *recorder(file, last="SIGTERM")) as wrapper:
        wait_for(lambda: noted(file))
        os.kill(wrapper.child(), signal.SIGSTOP)
        wait_for(lambda: is_stopped(wrapper.child()))
        wrapper.send(signal.SIGTERM)  # it answers this only after the stop, which came first
        wrapper.send(signal.SIGCONT)
        assert wrapper.code() == 7
        assert noted(file) == ["ready", "SIGTERM"]


# --- L5: the longest hold


def test_L5_a_child_that_overstays_is_asked_to_end(tmp_path):
    with running(tmp_path, "sleep", "1000", WRAPPER_ENDS_IN="0.1") as wrapper:
        assert wrapper.code() == 143
        assert "overstayed=True" in wrapper.end()


def test_L5_a_child_that_does_not_listen_is_killed(tmp_path):
    file = tmp_path / "signals"
    deaf = f"trap 'echo SIGTERM >>{file}' TERM; echo ready >>{file}; while :; do sleep 100; done"
    with running(tmp_path, "sh", "-c", deaf, WRAPPER_ENDS_IN="2", WRAPPER_KILL_AFTER="1") as wrapper:
        assert wrapper.code() == 137
        assert noted(file) == ["ready", "SIGTERM"]
        assert "overstayed=True" in wrapper.end()


def test_L5_a_frozen_child_can_obey(tmp_path):
    with running(tmp_path, "sh", "-c", "kill -STOP $$", WRAPPER_ENDS_IN="0.3") as wrapper:
        assert wrapper.code() == 143


def test_L5_a_child_that_ends_in_time_has_not_overstayed(tmp_path):
    with running(tmp_path, "true", WRAPPER_ENDS_IN="1000") as wrapper:
        assert wrapper.code() == 0
        assert "overstayed=False" in wrapper.end()


# --- files and ticks while the child runs


def test_supervise_calls_back_on_ticks_and_readable_files_and_survives_a_closed_one():
    body = """
import os
from fleetgate.runner.child import Child
from fleetgate.runner.supervisor import supervise
mail, post = os.pipe()
ticks, letters = [], []

def on_tick():
    ticks.append(1)
    if len(ticks) <= 3:
        os.write(post, b"letter")
    elif len(ticks) == 4:
        os.close(post)
    elif len(ticks) == 6:
        os.kill(child.pid, 15)

child = Child.prepare(["sleep", "1000"], os.environ, own_group=True)
child.start()
end = supervise(child, every_s=0.02, on_tick=on_tick, fd=mail, on_readable=lambda: letters.append(os.read(mail, 100)))
print(end.code, len(ticks) >= 6, letters)
"""
    done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, timeout=60)
    letters = [b"letter", b"letter", b"letter", b""]
    assert (done.stdout, done.stderr) == (f"143 True {letters}\n", "")


def test_supervise_leaves_handlers_mask_and_wakeup_as_they_were():
    body = """
import os, signal
from fleetgate.runner.child import Child
from fleetgate.runner.supervisor import supervise
from fleetgate.runner import signal_listener as heard

def facts():
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    return mask, wakeup, [signal.getsignal(n) for n in sorted(signal.valid_signals())], os.listdir("/proc/self/fd")

def mine(number, frame): pass
signal.signal(signal.SIGTERM, mine)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
before = facts()
for own_group in (True, False):
    for argv in (["true"], ["no-such-program"], ["sh", "-c", "kill -INT $PPID; kill -TTIN $PPID; exit 3"]):
        child = Child.prepare(argv, os.environ, own_group=own_group)
        try:
            child.start()
            supervise(child)
        except Exception as error:
            assert error.exit_code == 127, error
        assert facts() == before, (own_group, argv, facts(), before)
    child = Child.prepare(["true"], os.environ, own_group=own_group)
    child.abandon()
    child.abandon()
    assert facts() == before
print("same")
"""
    done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("same\n", "")


@pytest.mark.parametrize("own_group", [True, False])
def test_R2_a_signal_that_comes_before_the_wrapper_listens_is_passed_on(own_group):
    body = f"""
import os
from fleetgate.runner.child import Child
from fleetgate.runner.supervisor import supervise
child = Child.prepare(["sleep", "1000"], os.environ, own_group={own_group})
child.start()
os.kill(os.getpid(), 15)
print(supervise(child).code)
"""
    done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("143\n", "")


def test_supervise_notices_a_child_that_was_killed_while_it_waited():
    body = """
import os, time
from fleetgate.runner.child import Child
from fleetgate.runner.supervisor import supervise
child = Child.prepare(["true"], os.environ, own_group=True)
os.kill(child.pid, 9)
os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
child.start()
print(supervise(child).code)
"""
    done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("137\n", "")


# --- L2: kill -9 of the wrapper at any instant

STEPS = """
import os, signal, sys
from fleetgate.runner import child as module

me, die_at, folder = os.getpid(), int(sys.argv[1]), sys.argv[2]
ledger = os.open(folder + "/ledger", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
write, done = os.write, 0

def step(what):
    global done
    if os.getpid() == me:
        done += 1
        write(ledger, (what + "\\n").encode())
        if done == die_at:
            os.kill(me, signal.SIGKILL)

class Steps:
    # A module whose every call is a step before it and a step after it.
    def __init__(self, module):
        self._module = module

    def __getattr__(self, name):
        real = getattr(self._module, name)
        if not callable(real) or name in ("getsignal", "fsencode"):  # many, and nothing happens in them
            return real

        def call(*words):
            step("before " + name)
            answer = real(*words)
            step(f"after {name} {answer if name == 'fork' else ''}")
            return answer

        return call

module.os = Steps(os)
module.signal = Steps(module.signal)
child = module.Child.prepare(["sh", "-c", "echo > ran; exec sleep 1000"], os.environ, own_group=True)
step("committed")
child.start()
step("end")
"""


def test_L2_a_wrapper_killed_at_any_step_leaves_a_child_that_runs_or_one_that_never_did(tmp_path):
    ran_after, left_after = set(), set()
    for die_at in range(1, 1000):
        folder = tmp_path / str(die_at)
        folder.mkdir()
        wrapper = subprocess.run([sys.executable, "-c", STEPS, str(die_at), str(folder)], cwd=folder, timeout=60)
        steps = (folder / "ledger").read_text().splitlines()
        forked = [int(step.split()[2]) for step in steps if step.startswith("after fork")]
        try:
            if "after write " in steps:
                wait_for((folder / "ran").exists)
                assert runs(forked[0]), "a child that was let go runs on without its wrapper"
                assert "committed" in steps
                ran_after.add(steps[-1])
            else:
                wait_for(partial(all_gone, forked))
                assert not (folder / "ran").exists(), f"it ran though its wrapper died {steps[-1]}"
                left_after.add(steps[-1])
        finally:
            for pid in forked:
                kill_if_there(pid)
        if wrapper.returncode == 0:
            break
        assert wrapper.returncode == -signal.SIGKILL
    assert {"after fork", "committed", "before write"} <= {" ".join(step.split()[:2]) for step in left_after}
    assert {"after write ", "before read", "end"} <= ran_after


MOMENTS = """
import os, sys
from fleetgate.runner.child import Child
child = Child.prepare(["sh", "-c", "echo > ran; exec sleep 1000"], os.environ, own_group=True)
os.write(1, b"%d\\n" % child.pid)
os.close(os.open("committed", os.O_CREAT))
child.start()
os.read(0, 1)
"""


def test_L2_a_wrapper_killed_at_any_moment_leaves_no_child_that_runs_uncommitted(tmp_path):
    chance = random.Random(2)
    ran = 0
    for turn in range(60):
        folder = tmp_path / str(turn)
        folder.mkdir()
        with subprocess.Popen(
            [sys.executable, "-c", MOMENTS], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as wrapper:
            assert wrapper.stdout is not None
            child = int(wrapper.stdout.readline())
            moment = time.perf_counter() + chance.random() * 0.0008
            while time.perf_counter() < moment:
                pass
            wrapper.kill()
        try:
            wait_for(partial(gone_or_there, child, folder / "ran"))
            if (folder / "ran").exists():
                ran += 1
                assert (folder / "committed").exists()
                assert runs(child)
        finally:
            kill_if_there(child)
    print(f"{ran} of 60 ran")


def test_L2_a_wrapper_killed_while_the_child_runs_leaves_it_running(tmp_path):
    file = tmp_path / "signals"
    with running(tmp_path, *recorder(file)) as wrapper:
        wait_for(lambda: noted(file))
        wrapper.send(signal.SIGKILL)
        assert wrapper.code() == -signal.SIGKILL
        assert runs(wrapper.child())
        os.kill(wrapper.child(), signal.SIGTERM)
        wait_for(lambda: noted(file) == ["ready", "SIGTERM"])
        wait_for(lambda: not state_of(wrapper.child()))


def test_L2_an_abandoned_child_never_runs_and_is_reaped_even_if_it_is_stopped(tmp_path):
    body = """
import os, signal
from fleetgate.runner.child import Child
child = Child.prepare(["touch", "ran"], os.environ, own_group=True)
os.kill(child.pid, signal.SIGSTOP)
child.abandon()
try:
    os.kill(child.pid, 0)
except ProcessLookupError:
    print("gone")
"""
    done = subprocess.run([sys.executable, "-c", body], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("gone\n", "")
    assert not (tmp_path / "ran").exists()
