"""What the tests of the runner share: a small wrapper program, children to put under it, and waiting for things.

The wrapper is `fleetgate run` without the gate. It is told what to do by its environment, so that its argv is the
child's. Its last words, `END code=… overstayed=… foreground=…`, go to the file WRAPPER_END.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

WRAPPER = """
import os, sys, time
from fleetgate.runner import signal_listener as heard, supervisor as supervising
from fleetgate.runner.child import CannotRun, Child
from fleetgate.runner.terminal_foreground import has_terminal

given = {name: os.environ.pop(name, "") for name in list(os.environ) if name.startswith("WRAPPER_")}

def say(name, text):
    if given.get(name):
        with open(given[name] + ".new", "w") as file:
            file.write(text)
        os.rename(given[name] + ".new", given[name])

def no_senders():
    raise OSError("as on macOS")

if given.get("WRAPPER_NO_SENDERS"):
    heard.WithSenders = no_senders
if given.get("WRAPPER_KILL_AFTER"):
    supervising.KILL_AFTER_S = float(given["WRAPPER_KILL_AFTER"])
ends_in = float(given["WRAPPER_ENDS_IN"]) if given.get("WRAPPER_ENDS_IN") else None
try:
    child = Child.prepare(sys.argv[1:], os.environ, own_group=not has_terminal())
    child.start()
except CannotRun as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
say("WRAPPER_PIDS", f"{os.getpid()} {child.pid}")
while given.get("WRAPPER_WAITS_FOR") and not os.path.exists(given["WRAPPER_WAITS_FOR"]):
    time.sleep(0.005)
end = supervising.supervise(child, ends_in_s=ends_in)
try:
    foreground = "mine" if os.tcgetpgrp(0) == os.getpgrp() else "not mine"
except OSError:
    foreground = "none"
say("WRAPPER_END", f"END code={end.code} overstayed={end.overstayed} foreground={foreground}")
sys.exit(end.code)
"""

# Writes down each signal it gets, and ends with code 7 at the one it is told to. At USR2 a child of its own sends INT
# to the whole group.
RECORDER = """
import os, signal, sys
out = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
last = sys.argv[2]

def note(number, frame):
    name = signal.Signals(number).name
    os.write(out, (name + "\\n").encode())
    if name == "SIGUSR2":
        if not os.fork():
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            os.kill(0, signal.SIGINT)
            os._exit(0)
    if name == last:
        os._exit(7)

for name in "HUP INT QUIT TERM USR1 USR2 WINCH".split():
    signal.signal(getattr(signal, "SIG" + name), note)
os.write(out, b"ready\\n")
while True:
    signal.pause()
"""


@contextmanager
def keys_not_ignored() -> Iterator[None]:
    """For the length of a test, what Ctrl-C and Ctrl-\\ send is not ignored, as it is in a script's background."""
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
        signal.SIGQUIT: signal.signal(signal.SIGQUIT, signal.SIG_DFL),
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def wrapped(*argv: str | bytes) -> list[str | bytes]:
    """The command line of the wrapper around a command."""
    return [sys.executable, "-c", WRAPPER, *argv]


def recorder(file: Path, last: str = "SIGTERM") -> list[str]:
    """The command line of a child that writes its signals to `file`."""
    return [sys.executable, "-c", RECORDER, str(file), last]


def noted(file: Path) -> list[str]:
    """What a recorder has written so far."""
    return file.read_text().split() if file.exists() else []


def wait_for(thing: Callable[[], T], within_s: float = 60) -> T:
    """Look until `thing()` is true, and return it."""
    deadline = time.monotonic() + within_s
    while not (found := thing()):
        assert time.monotonic() < deadline, f"did not happen within {within_s} s: {thing}"
        time.sleep(0.005)
    return found


def state_of(pid: int) -> str:
    """The state letter of a process (R, S, T…); "" when it is gone, or has ended and is not reaped yet."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    letter = stat.rpartition(") ")[2][0]
    return "" if letter in "ZX" else letter


def is_stopped(pid: int) -> bool:
    return state_of(pid) == "T"


def runs(pid: int) -> bool:
    return state_of(pid) not in ("", "T")


def kill_if_there(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


class Run:
    """A wrapper without a terminal, and what its files tell."""

    def __init__(self, folder: Path, argv: list[str | bytes], env: Mapping[str, str], stdin: int) -> None:
        self._pids = folder / "pids"
        self._end = folder / "end"
        files = {"WRAPPER_PIDS": str(self._pids), "WRAPPER_END": str(self._end)}
        self.process = subprocess.Popen(
            wrapped(*argv),
            env={**os.environ, **files, **env},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,  # or a Ctrl-Z test would find it in an orphaned group
        )
        self.pid = self.process.pid

    def child(self) -> int:
        wait_for(self._pids.exists)
        return int(self._pids.read_text().split()[1])

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def code(self) -> int:
        return self.process.wait(timeout=60)

    def end(self) -> str:
        return self._end.read_text() if self._end.exists() else ""


@contextmanager
def running(folder: Path, *argv: str | bytes, stdin: int = subprocess.DEVNULL, **env: str) -> Iterator[Run]:
    """A wrapper around a command, without a terminal; nothing is left of it afterwards."""
    run = Run(folder, list(argv), env, stdin)
    try:
        yield run
    finally:
        if run._pids.exists():
            child = run.child()
            for kill in (os.killpg, os.kill):
                try:
                    kill(child, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        run.process.kill()
        run.process.wait()
        for pipe in (run.process.stdin, run.process.stdout, run.process.stderr):
            if pipe is not None:
                pipe.close()
