"""A child with a terminal: everything works as without the wrapper (rule R2).

Each test types into a real interactive bash on a real pseudo-terminal, which runs the wrapper as a person would.
Each runs twice where it matters: with senders known, as on Linux, and unknown, as on macOS.
"""

import fcntl
import os
import pty
import re
import select
import shlex
import shutil
import signal
import struct
import sys
import termios
import time
from functools import partial
from pathlib import Path

import pytest

from tests.processes.runner_wrapper import (
    RECORDER,
    is_stopped,
    keys_not_ignored,
    kill_if_there,
    noted,
    recorder,
    runs,
    state_of,
    wait_for,
    wrapped,
)

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="these tests look at processes through /proc"),
    pytest.mark.skipif(shutil.which("bash") is None, reason="these tests type into an interactive bash"),
]


@pytest.fixture(autouse=True)
def _keys():
    with keys_not_ignored():
        yield


CTRL_C, CTRL_D, CTRL_Z, CTRL_BACKSLASH = "\x03", "\x04", "\x1a", "\x1c"
BASH = ["bash", "--norc", "--noprofile", "--noediting", "-i"]


class Screen:
    """A pseudo-terminal with a program on it as its session's leader; what is typed and what is seen."""

    def __init__(self, folder: Path, argv: list[str], env: dict[str, str]) -> None:
        self.folder = folder
        self.seen = b""
        base = {name: value for name, value in os.environ.items() if name not in ("PROMPT_COMMAND", "BASH_ENV")}
        environ = {**base, "PS1": "outer> ", "TERM": "xterm", "LC_ALL": "C.UTF-8", "HISTFILE": "/dev/null", **env}
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            try:
                os.chdir(folder)
                os.execvpe(argv[0], argv, environ)
            finally:
                os._exit(99)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def line(self, text: str) -> None:
        self.type(text + "\n")

    def wait(self, pattern: str, within_s: float = 60) -> bytes:
        """Read on until `pattern` is seen; what was seen up to its end is done with."""
        deadline = time.monotonic() + within_s
        while not (match := re.search(pattern.encode(), self.seen)):
            ready, _, _ = select.select([self.fd], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"{pattern!r} was not seen, but {self.seen!r}"
            try:
                self.seen += os.read(self.fd, 65536)
            except OSError:
                raise AssertionError(f"the terminal was closed before {pattern!r}: {self.seen!r}") from None
        self.seen = self.seen[match.end() :]
        return match.group()

    def run(self, *argv: str, after: str = "") -> None:
        """Type a command line that runs `argv` under the wrapper."""
        # Typed lines are short: a terminal takes no more than 4096 bytes of one.
        script = self.folder / "run"
        script.write_text(f"exec {shlex.join(map(str, wrapped(*argv)))}\n")
        self.wait("outer> ")
        self.line(f"bash ./run {after}")

    def pids(self) -> tuple[int, int]:
        """The wrapper's pid and the child's."""
        wait_for((self.folder / "pids").exists)
        wrapper, child = (self.folder / "pids").read_text().split()
        return int(wrapper), int(child)

    def end(self) -> str:
        wait_for((self.folder / "end").exists)
        return (self.folder / "end").read_text()

    def answer(self, text: str, pattern: str) -> bytes:
        """Type a command at bash's prompt, and wait for its output."""
        self.wait("outer> ")
        self.line(text)
        return self.wait(pattern)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        for pid in self.session():
            kill_if_there(pid)
        kill_if_there(self.pid)
        os.waitpid(self.pid, 0)

    def session(self) -> list[int]:
        """Every process that was started on this terminal."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text().rpartition(") ")[2].split()
                except OSError:
                    continue
                if int(fields[3]) == self.pid:
                    found.append(int(entry.name))
        return found


@pytest.fixture
def open_screen(tmp_path):
    screens = []

    def open_it(argv=BASH, **env):
        files = {"WRAPPER_PIDS": str(tmp_path / "pids"), "WRAPPER_END": str(tmp_path / "end")}
        screens.append(Screen(tmp_path, argv, {**files, **env}))
        return screens[-1]

    yield open_it
    for screen in screens:
        screen.close()


@pytest.fixture
def screen(open_screen):
    return open_screen()


@pytest.fixture(params=["senders known", "senders unknown"])
def any_screen(request, open_screen):
    return open_screen(WRAPPER_NO_SENDERS="1" if request.param == "senders unknown" else "")


def are_stopped(wrapper: int, child: int) -> bool:
    """Both. A shell may tell of the first a moment before the other has stopped."""
    return is_stopped(wrapper) and is_stopped(child)


def noted_all(file: Path, names: list[str]) -> bool:
    return noted(file) == names


def python(body: str) -> list[str]:
    return [sys.executable, "-c", body]


# --- programs that use the terminal


def test_R2_an_interactive_shell_keeps_its_terminal_and_its_job_control(any_screen):
    screen = any_screen
    screen.resize(33, 101)
    screen.run("env", "PS1=inner> ", *BASH)
    for command, pattern in [
        ("test -t 0 && test -t 1 && test -t 2 && echo all' 'ttys", "all ttys"),
        ("stty size", "33 101"),
        ("sleep 1000 & jobs", "Running +sleep 1000"),
    ]:
        screen.wait("inner> ")
        screen.line(command)
        screen.wait(pattern)
    screen.wait("inner> ")
    screen.line("fg; echo back")
    screen.wait("sleep 1000\r\n")
    wait_for(lambda: any("sleep" in name_of(pid) and in_foreground(pid) for pid in screen.session()))
    screen.type(CTRL_Z)
    screen.wait("Stopped +sleep 1000")
    screen.wait("inner> ")
    screen.line("kill -9 %1; cat")
    screen.wait("cat\r\n")
    screen.line("typed")
    screen.wait("typed\r\ntyped\r\n")
    screen.type(CTRL_C)
    screen.wait("inner> ")
    screen.resize(20, 70)
    screen.line("stty size")
    screen.wait("20 70")
    screen.wait("inner> ")
    screen.line("exit 5")
    screen.answer("echo code=$?", "code=5\r")
    assert screen.end() == "END code=5 overstayed=False foreground=mine"


def test_R2_an_interactive_shell_under_a_wrapper_that_leads_the_session_has_job_control(open_screen):
    screen = open_screen(wrapped(*BASH))  # as in `ssh -t host fleetgate run -- bash`
    screen.answer("sleep 1000", "sleep 1000\r\n")
    wait_for(lambda: any("sleep" in name_of(pid) and in_foreground(pid) for pid in screen.session()))
    screen.type(CTRL_Z)
    screen.wait("Stopped +sleep 1000")
    screen.answer("kill -9 %1; disown -a; exit 6", "exit")
    assert screen.end() == "END code=6 overstayed=False foreground=mine"


def test_R2_less_draws_and_quits(screen):
    if shutil.which("less") is None:
        pytest.skip("less is not installed")
    (screen.folder / "text").write_text("".join(f"this is line {n}\n" for n in range(1000)))
    screen.resize(24, 80)
    screen.run("less", "text")
    screen.wait("this is line 20")
    screen.type(" ")
    screen.wait("this is line 40")
    screen.type("q")
    screen.answer("echo code=$?", "code=0\r")


def test_R2_vim_draws_is_suspended_and_resumed_and_quits(any_screen):
    screen = any_screen
    if shutil.which("vim") is None:
        pytest.skip("vim is not installed")
    (screen.folder / "text").write_text("some text in a file\n")
    screen.resize(24, 80)
    screen.run("vim", "-u", "NONE", "text")
    screen.wait("some text in a file")
    wrapper, child = screen.pids()
    screen.type(CTRL_Z)
    screen.wait("Stopped")
    wait_for(partial(are_stopped, wrapper, child))
    screen.answer("fg", "some text in a file")
    screen.type(":cquit 3\n")
    screen.answer("echo code=$?", "code=3\r")


def test_R2_cat_reads_from_the_terminal(screen):
    screen.run("cat")
    screen.pids()
    screen.line("hello")
    screen.wait("hello\r\nhello\r\n")
    screen.type(CTRL_D)
    screen.answer("echo code=$?", "code=0\r")


def test_R2_a_pipeline_shares_the_terminal(screen):
    screen.run("cat", after="| sed -u s/^/x:/")
    screen.pids()
    screen.line("hello")
    screen.wait("x:hello\r\n")
    screen.type(CTRL_C)
    screen.answer("echo codes=${PIPESTATUS[*]}", "codes=130 130\r")


# --- Ctrl-C, and kill -INT


@pytest.mark.parametrize(("key", "name"), [(CTRL_C, "SIGINT"), (CTRL_BACKSLASH, "SIGQUIT")])
def test_R2_a_key_reaches_the_child_once(any_screen, key, name):
    screen, file = any_screen, any_screen.folder / "signals"
    screen.run(*recorder(file))
    wait_for(lambda: noted(file))
    wrapper, _ = screen.pids()
    for count in (1, 2):
        screen.type(key)
        wait_for(lambda: noted(file).count(name) >= count)  # noqa: B023 (called at once)
        # The wrapper passes on USR1 after anything that came before it.
        os.kill(wrapper, signal.SIGUSR1)
        wait_for(lambda: noted(file).count("SIGUSR1") == count)  # noqa: B023 (called at once)
        assert noted(file) == ["ready", *[name, "SIGUSR1"] * count]
    os.kill(wrapper, signal.SIGTERM)
    screen.answer("echo code=$?", "code=7\r")


@pytest.mark.parametrize("name", ["SIGINT", "SIGQUIT", "SIGHUP", "SIGWINCH", "SIGUSR1"])
def test_R2_a_signal_to_the_wrapper_alone_reaches_the_child_once(screen, name):
    file = screen.folder / "signals"
    screen.run(*recorder(file))
    wait_for(lambda: noted(file))
    wrapper, _ = screen.pids()
    os.kill(wrapper, getattr(signal, name))
    wait_for(lambda: name in noted(file))
    os.kill(wrapper, signal.SIGTERM)
    screen.answer("echo code=$?", "code=7\r")
    assert noted(file) == ["ready", name, "SIGTERM"]


def test_R2_a_new_size_reaches_the_child_once(any_screen):
    screen, file = any_screen, any_screen.folder / "signals"
    screen.run(*recorder(file))
    wait_for(lambda: noted(file))
    wrapper, _ = screen.pids()
    screen.resize(30, 90)
    wait_for(lambda: "SIGWINCH" in noted(file))
    os.kill(wrapper, signal.SIGTERM)
    screen.answer("echo code=$?", "code=7\r")
    assert noted(file) == ["ready", "SIGWINCH", "SIGTERM"]


def test_R2_what_the_childs_family_sends_to_the_group_does_not_come_back_to_it(any_screen):
    screen, file = any_screen, any_screen.folder / "signals"
    screen.run(*recorder(file))
    wait_for(lambda: noted(file))
    wrapper, child = screen.pids()
    os.kill(child, signal.SIGUSR2)
    wait_for(lambda: "SIGINT" in noted(file))
    os.kill(wrapper, signal.SIGTERM)
    screen.answer("echo code=$?", "code=7\r")
    assert noted(file) == ["ready", "SIGUSR2", "SIGINT", "SIGTERM"]


def test_R3_ctrl_c_ends_the_child_and_the_exit_is_130(any_screen):
    any_screen.run("sleep", "1000")
    any_screen.pids()
    any_screen.type(CTRL_C)
    any_screen.answer("echo code=$?", "code=130\r")


def test_R2_a_hangup_reaches_the_child_of_a_wrapper_that_leads_the_session(open_screen, tmp_path):
    file = tmp_path / "signals"
    screen = open_screen(wrapped(*recorder(file, last="SIGHUP")))
    wait_for(lambda: noted(file))
    os.close(screen.fd)
    screen.fd = -1
    assert screen.end().startswith("END code=7 ")
    assert noted(file) == ["ready", "SIGHUP"]


# --- Ctrl-Z, fg and bg


def test_R2_ctrl_z_stops_both_and_fg_continues_both(any_screen):
    screen = any_screen
    screen.run("cat")
    wrapper, child = screen.pids()
    assert os.getpgid(child) == os.getpgid(wrapper)
    for word in ("first", "second", "third"):
        screen.type(CTRL_Z)
        screen.wait("Stopped")
        wait_for(partial(are_stopped, wrapper, child))
        screen.answer("fg", "bash ./run")
        screen.line(word)
        screen.wait(f"{word}\r\n{word}\r\n")
        assert runs(wrapper)
    screen.type(CTRL_D)
    screen.answer("echo code=$?", "code=0\r")


def test_R2_bg_continues_both_and_ctrl_c_after_fg_ends_them(any_screen):
    screen = any_screen
    screen.run("sleep", "1000")
    wrapper, child = screen.pids()
    screen.type(CTRL_Z)
    screen.wait("Stopped")
    screen.answer("bg", "bash ./run")
    wait_for(lambda: runs(wrapper) and runs(child))
    screen.answer("fg", "bash ./run")
    wait_for(lambda: in_foreground(child))
    screen.type(CTRL_C)
    screen.answer("echo code=$?", "code=130\r")


def test_R2_a_ctrl_z_from_before_the_wrapper_listened_stops_both_once(open_screen, tmp_path):
    # With senders unknown the wrapper judges by who has the terminal: by then it is the shell.
    for senders in ("", "1"):
        file, go = tmp_path / f"signals{senders}", tmp_path / f"go{senders}"
        screen = open_screen(WRAPPER_NO_SENDERS=senders, WRAPPER_WAITS_FOR=str(go))
        screen.run(*recorder(file))
        wait_for(partial(noted, file))
        wrapper, child = screen.pids()
        screen.type(CTRL_Z)
        wait_for(partial(is_stopped, child))
        go.touch()
        screen.wait("Stopped")
        screen.answer("bg", "bash ./run")
        wait_for(partial(runs, wrapper))
        os.kill(wrapper, signal.SIGUSR1)
        wait_for(partial(noted_all, file, ["ready", "SIGUSR1"]))
        os.kill(wrapper, signal.SIGTERM)
        wait_for(lambda: not state_of(child))  # noqa: B023 (called at once)
        (tmp_path / "pids").unlink()


@pytest.mark.parametrize("name", ["SIGTSTP", "SIGSTOP"])
def test_R2_a_child_that_stops_itself_gives_the_user_the_prompt(any_screen, name):
    screen = any_screen
    screen.run(*python(f"import os, signal; os.kill(os.getpid(), signal.{name}); print('went on')"))
    screen.wait("Stopped")
    wrapper, child = screen.pids()
    wait_for(partial(are_stopped, wrapper, child))
    screen.answer("fg", "went on")
    screen.answer("echo code=$?", "code=0\r")


def test_R2_a_stop_sent_to_the_wrapper_alone_stops_both(screen):
    screen.run("sleep", "1000")
    wrapper, child = screen.pids()
    os.kill(wrapper, signal.SIGTSTP)
    screen.wait("Stopped")
    wait_for(partial(are_stopped, wrapper, child))
    screen.answer("fg", "bash ./run")
    wait_for(lambda: runs(wrapper) and runs(child))
    screen.type(CTRL_C)
    screen.answer("echo code=$?", "code=130\r")


def test_R2_ctrl_z_to_a_child_that_ignores_it_does_not_leave_it_alone(any_screen):
    screen = any_screen
    screen.run("sh", "-c", "trap '' TSTP; cat")
    wrapper, _ = screen.pids()
    screen.line("before")
    screen.wait("before\r\nbefore\r\n")
    screen.type(CTRL_Z)
    screen.line("after")
    screen.wait("after\r\n(\r)?after\r\n|after\r\nafter\r\n")
    assert runs(wrapper)
    screen.type(CTRL_D)
    screen.answer("echo code=$?", "code=0\r")


def test_R2_a_child_in_the_background_that_reads_is_stopped_until_fg(any_screen):
    screen = any_screen
    screen.run("cat", after="&")
    wrapper, child = screen.pids()
    wait_for(partial(are_stopped, wrapper, child))
    screen.answer("jobs -l", r"Stopped \(tty input\)")
    screen.answer("fg", "bash ./run")
    screen.line("hello")
    screen.wait("hello\r\nhello\r\n")
    screen.type(CTRL_D)
    screen.answer("echo code=$?", "code=0\r")


def test_R2_a_wrapper_stopped_by_sigstop_goes_on_with_fg(any_screen):
    screen = any_screen
    screen.run("sleep", "1000")
    wrapper, child = screen.pids()
    os.kill(wrapper, signal.SIGSTOP)
    screen.wait("Stopped")
    assert runs(child)
    screen.answer("fg", "bash ./run")
    wait_for(lambda: runs(wrapper))
    screen.type(CTRL_C)
    screen.answer("echo code=$?", "code=130\r")


# --- children in a group of their own

LEAVE_GROUP = """
import os, signal, sys
os.setpgid(0, 0)
if sys.argv[-1] == "takes":
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    os.tcsetpgrp(0, os.getpgrp())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
"""
READER = """
print("ready", flush=True)
while line := sys.stdin.readline():
    print("got " + line, end="", flush=True)
"""


@pytest.mark.parametrize("how", ["takes", "waits for"])
def test_R2_a_child_in_its_own_group_has_the_terminal_also_after_fg(any_screen, how):
    screen = any_screen
    screen.run(*python(LEAVE_GROUP + READER), how)
    screen.wait("ready")
    wrapper, child = screen.pids()
    screen.line("one")
    screen.wait("got one")
    assert in_foreground(child)
    assert not in_foreground(wrapper)
    for word in ("two", "three"):
        screen.type(CTRL_Z)
        screen.wait("Stopped")
        assert is_stopped(wrapper)
        screen.answer("fg", "bash ./run")
        screen.line(word)
        screen.wait(f"got {word}")
    screen.type(CTRL_D)
    screen.answer("echo code=$?", "code=0\r")
    assert "foreground=mine" in screen.end()


@pytest.mark.parametrize("how", ["takes", "leaves"])
def test_R2_keys_reach_a_child_in_its_own_group_once_also_after_fg(any_screen, how):
    screen, file = any_screen, any_screen.folder / "signals"
    screen.run(*python(LEAVE_GROUP + RECORDER), file, "SIGTERM", how)  # `timeout` leaves the group, and takes nothing
    wait_for(lambda: noted(file))
    wrapper, child = screen.pids()
    in_front = child if how == "takes" else wrapper
    expected = ["ready"]
    for _ in range(2):
        screen.type(CTRL_C)
        wait_for(lambda: noted(file)[len(expected) :])  # noqa: B023 (called at once)
        os.kill(wrapper, signal.SIGUSR1)
        expected += ["SIGINT", "SIGUSR1"]
        wait_for(partial(noted_all, file, expected))
        screen.type(CTRL_Z)
        screen.wait("Stopped")
        wait_for(partial(are_stopped, wrapper, child))
        screen.answer("fg", "bash ./run")
        wait_for(lambda: in_foreground(in_front) and runs(child) and runs(wrapper))
    os.kill(wrapper, signal.SIGTERM)
    screen.answer("echo code=$?", "code=7\r")


def test_R2_the_terminal_is_taken_back_from_an_interactive_shell_that_was_killed(screen):
    screen.run("env", "PS1=inner> ", *BASH)
    screen.wait("inner> ")
    wrapper, child = screen.pids()
    assert in_foreground(child)
    assert not in_foreground(wrapper)
    os.kill(child, signal.SIGKILL)
    assert screen.end() == "END code=137 overstayed=False foreground=mine"
    screen.answer("echo code=$?", "code=137\r")


def test_R2_a_child_without_terminal_files_may_still_ask_at_the_terminal(screen):
    ask = "printf 'password: ' >/dev/tty; read word </dev/tty; echo $word >answer"
    screen.run("sh", "-c", ask, after="</dev/null >out 2>&1")
    screen.wait("password: ")
    _, child = screen.pids()
    assert os.getpgid(child) == child
    screen.line("secret")
    screen.answer("cat answer; echo code=$?", "secret\r\ncode=0\r")


def test_R2_without_terminal_files_ctrl_c_and_ctrl_z_reach_the_child_through_the_wrapper(screen):
    file = screen.folder / "signals"
    screen.run(*recorder(file), after="</dev/null >out 2>&1")
    wait_for(lambda: noted(file))
    wrapper, child = screen.pids()
    screen.type(CTRL_Z)
    screen.wait("Stopped")
    wait_for(partial(are_stopped, wrapper, child))
    screen.answer("fg", "bash ./run")
    wait_for(lambda: in_foreground(wrapper) and runs(wrapper))
    screen.type(CTRL_C)
    wait_for(lambda: "SIGINT" in noted(file))
    os.kill(wrapper, signal.SIGTERM)
    screen.answer("echo code=$?", "code=7\r")
    assert noted(file) == ["ready", "SIGINT", "SIGTERM"]


def test_L2_a_wrapper_killed_on_a_terminal_leaves_the_child_running(screen):
    file = screen.folder / "signals"
    screen.run(*recorder(file))
    wait_for(lambda: noted(file))
    wrapper, child = screen.pids()
    os.kill(wrapper, signal.SIGKILL)
    screen.answer("echo code=$?", "code=137\r")
    assert runs(child)
    os.kill(child, signal.SIGTERM)
    wait_for(lambda: not state_of(child))
    assert noted(file) == ["ready", "SIGTERM"]


def test_R2_nothing_is_polled_while_a_child_runs(any_screen):
    any_screen.run("sleep", "1000")
    wrapper, _ = any_screen.pids()
    wait_for(partial(slept_through, wrapper, 0.5))
    any_screen.type(CTRL_C)
    any_screen.answer("echo code=$?", "code=130\r")


def slept_through(pid: int, for_s: float) -> bool:
    """Whether a process did not run at all for a while."""

    def switches() -> list[str]:
        return [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "ctxt_switches" in line]

    before = switches()
    time.sleep(for_s)
    return bool(before) and switches() == before


def name_of(pid: int) -> str:
    """The command line of a process."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def in_foreground(pid: int) -> bool:
    """Whether the process is in the foreground group of its terminal."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return False
    return fields[2] == fields[5]
