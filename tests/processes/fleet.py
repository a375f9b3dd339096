"""A gate for one test, the processes that the test starts on it, and the record that its agents keep of themselves.

Everything here is a real process on a real store. Sleepers, the agents of these tests, write their own start and end
into one file. Each takes one file lock, and there are as many locks as slots. The system drops a lock at the moment
its process dies, so a sleeper that finds no free lock proves that one agent too many ran. All times are of the boot
clock, as the log's are.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import msgspec

from fleetgate.config.file import load
from fleetgate.core import commands as cmd
from fleetgate.core.engine import Engine
from fleetgate.core.entities import Lease, Spec
from fleetgate.core.events import Event
from fleetgate.core.invariants import check_invariants
from fleetgate.core.state.state import State
from fleetgate.gate.liveness import process_identity
from fleetgate.gate.request_ids import new_id
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.log import open_log
from fleetgate.log.clock import boot_ms
from fleetgate.log.protocol import START

T = TypeVar("T")

SHORT_TIMES = ("FLEETGATE_TEST_BEAT_S", "FLEETGATE_TEST_AWAY_S", "FLEETGATE_TEST_KILL_S")
SHORT_TIMES_FOLDER = Path(__file__).parents[1] / "short_times"
PATIENCE_S = 60.0  # for what happens at once on a quiet machine

FLEETGATE = [str(Path(sys.executable).with_name("fleetgate"))]
PYTHON = [sys.executable, "-ISE"]  # without site packages: a sleeper should cost little

SLEEPER = """
import fcntl, os, sys, time
record, slots, name, seconds, code = sys.argv[1:]
out = os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

def note(what):
    ms = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    os.write(out, f"{what} {name} {os.getpid()} {ms}\\n".encode())

for number in range(int(slots)):
    slot = os.open(f"{record}.slot{number}", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(slot, fcntl.LOCK_EX | fcntl.LOCK_NB)
        break
    except BlockingIOError:
        os.close(slot)
else:
    note("over")
note("start")
if seconds.startswith("/"):
    while not os.path.exists(seconds):
        time.sleep(0.02)
else:
    time.sleep(float(seconds))
note("end")
os._exit(int(code))
"""


class Life(NamedTuple):
    """A sleeper by its own record. `ended` is None if it still sleeps or was killed."""

    name: str
    pid: int
    started: int
    ended: int | None


class Run:
    """One process that a test started. Its output goes to files, so it never waits for a reader."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], files: Path, cwd: Path) -> None:
        self.argv = list(argv)
        self._out, self._err = files.with_suffix(".out"), files.with_suffix(".err")
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                self.argv, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    @property
    def code(self) -> int | None:
        return self.process.poll()

    def wait(self, within_s: float = PATIENCE_S) -> int:
        """Its exit code; fails if it has not ended within that time."""
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still there after {within_s} s: {self}") from None

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def __repr__(self) -> str:
        return f"<{self.pid} {' '.join(self.argv)} code={self.code} out={self.out[-300:]!r} err={self.err[-1500:]!r}>"


class Fleet:
    """A folder with a store, a config file and the records. All processes that it started are killed at the end."""

    def __init__(self, config: str = "", home: str = "s", store: str = "") -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fg-", dir="/tmp"))
        self.home = self.folder / home
        self._stored = {"FLEETGATE_STORE": store} if store else {}
        self.config = self.folder / "config.toml"
        self.record = self.folder / "record"
        (self.folder / "sleeper.py").write_text(SLEEPER)
        self.slots = 1000
        self.runs: list[Run] = []
        self.killed_at: dict[int, int] = {}  # of sleepers, by pid
        self._gate: DirectGate | None = None
        self.configure(config)

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        print(self.dump())  # shown when the test fails
        self.close()

    # The gate, as this process sees it.

    def configure(self, text: str) -> None:
        """Write the config file, newer than the one before."""
        before = self.config.stat().st_mtime_ns if self.config.exists() else 0
        self.config.write_text(text)
        while self.config.stat().st_mtime_ns // 1_000_000 <= before // 1_000_000:
            self.config.touch()
        self.close_gate()

    @property
    def store(self) -> str:
        return self._stored.get("FLEETGATE_STORE", f"sqlite://{self.home}")

    @property
    def gate(self) -> DirectGate:
        if self._gate is None:
            if self._stored:
                self.home.mkdir(exist_ok=True)
            self._gate = DirectGate(open_log(self.store), load(str(self.config)), str(self.home))
        return self._gate

    def close_gate(self) -> None:
        if self._gate is not None:
            self._gate.close()
            self._gate = None

    @property
    def state(self) -> State:
        return self.gate.replica.catch_up()

    def log_offset_ms(self) -> int:
        """The difference of the log's clock to the boot clock."""
        return self.gate.log.now() - boot_ms()

    def events(self) -> list[tuple[int, Event]]:
        """Every event of the log, with its time."""
        return [(at, event) for _, at, event in self.gate.log.history()]

    def events_of(self, kind: type[T]) -> list[tuple[int, T]]:
        return [(at, event) for at, event in self.events() if isinstance(event, kind)]

    def occupy(self, model: str = "", *, kind: str = "agents") -> str:
        """Take a slot in the name of this process, as a run would; the lease's id."""
        host = self.gate.host if kind == "agents" else ""
        spec = Spec(models=(model,) if model else (), kind=kind, host=host)
        lease = self.gate.acquire(cmd.Acquire(new_id(), spec, self.gate.me, wait=False, command="the test itself"))
        assert isinstance(lease, Lease), lease
        return lease.id

    def free(self, *idents: str) -> None:
        self.gate.decide([cmd.Release(ident) for ident in idents])

    def in_queue(self) -> int:
        return len(self.state.tickets)

    def waits(self, run: Run) -> bool:
        """Whether this run waits in the queue."""
        return any(process_identity.pid_of(ticket.holder) == run.pid for ticket in self.state.tickets.values())

    def holds(self, run: Run) -> bool:
        """Whether this run has a lease."""
        return any(process_identity.pid_of(lease.ticket.holder) == run.pid for lease in self.state.leases.values())

    def is_empty(self) -> bool:
        state = self.state
        return not state.leases and not state.tickets

    def check_log(self) -> None:
        """The log can be read from its start, and every count in it is right."""
        log = open_log(self.store)
        try:
            engine = Engine()
            for commit in log.read(START, 1_000_000):
                engine.replay(commit.events, commit.at)
            check_invariants(engine.state)
        finally:
            log.close()

    # Processes.

    def env(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        ours = ("FLEETGATE_", "AIDEVOPS_", "PYTHONDONTWRITEBYTECODE")
        base = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        own = {"FLEETGATE_HOME": str(self.home), "FLEETGATE_CONFIG": str(self.config)}
        env = base | own | self._stored | dict(more or {})
        if any(name in env for name in SHORT_TIMES):
            env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SHORT_TIMES_FOLDER), env.get("PYTHONPATH")]))
        return env

    def start(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> Run:
        """Start any program in this fleet's environment."""
        run = Run(argv, self.env(env), self.folder / f"run{len(self.runs)}", self.folder)
        self.runs.append(run)
        return run

    def run(self, *arguments: str, env: Mapping[str, str] | None = None) -> Run:
        """Start `fleetgate run` with these arguments."""
        return self.start([*FLEETGATE, "run", *arguments], env)

    def done(self, *arguments: str, env: Mapping[str, str] | None = None, within_s: float = PATIENCE_S) -> Run:
        """`fleetgate run` to its end."""
        run = self.run(*arguments, env=env)
        run.wait(within_s)
        return run

    def json(self, *arguments: str) -> Any:
        """The output of a listing command with --json."""
        run = self.start([*FLEETGATE, *arguments, "--json"])
        assert run.wait() == 0, run
        return msgspec.json.decode(run.out)

    def waiting(self, *arguments: str, env: Mapping[str, str] | None = None) -> Run:
        """`fleetgate run`, once it waits in the queue."""
        run = self.run(*arguments, env=env)
        self.until(lambda: self.waits(run) or run.code is not None, what=f"a place in the queue of {run.pid}")
        assert run.code is None, run
        return run

    def sleeper(self, name: str, seconds: float | Path, code: int = 0) -> list[str]:
        """The command line of a sleeper, which sleeps for that many seconds or until that file exists."""
        script = str(self.folder / "sleeper.py")
        return [*PYTHON, script, str(self.record), str(self.slots), name, str(seconds), str(code)]

    def script(self, name: str, text: str) -> str:
        """Write an executable; return its path."""
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)
        return str(path)

    def kill_sleeper(self, pid: int) -> None:
        self.killed_at.setdefault(pid, boot_ms())
        kill_if_there(pid)

    # The record of the sleepers.

    def notes(self, what: str) -> list[tuple[str, int, int]]:
        """(name, pid, ms) of each line that begins with `what`."""
        if not self.record.exists():
            return []
        whole = self.record.read_text().rpartition("\n")[0]  # the last line may be half written
        lines = [line.split() for line in whole.splitlines()]
        return [(line[1], int(line[2]), int(line[3])) for line in lines if line[0] == what]

    def lives(self) -> list[Life]:
        ends = {pid: ms for _, pid, ms in self.notes("end")}
        return [Life(name, pid, ms, ends.get(pid, self.killed_at.get(pid))) for name, pid, ms in self.notes("start")]

    def has_started(self, name: str) -> bool:
        return any(noted == name for noted, _, _ in self.notes("start"))

    def most_at_once(self) -> int:
        """The most sleepers that were alive at the same time, by their own record and by their file locks."""
        changes = []
        for life in self.lives():
            changes.append((life.started, 1))
            if life.ended is not None:
                changes.append((life.ended, -1))
        now = most = 0
        for _, change in sorted(changes):
            now += change
            most = max(most, now)
        return most if not self.notes("over") else max(most, self.slots + 1)

    # Waiting, and what a failed test shows.

    def until(self, thing: Callable[[], T], within_s: float = PATIENCE_S, what: str = "") -> T:
        """Look until `thing()` is true, and return it."""
        began = time.monotonic()
        while not (found := thing()):
            waited_s = time.monotonic() - began
            if waited_s > within_s:
                raise AssertionError(f"not within {within_s} s: {what or thing}\n{self.dump()}")
            time.sleep(0.01 if waited_s < 1 else 0.03)  # a look costs processor time, which the others need
        return found

    def dump(self) -> str:
        """The end of the log, the state and the output of the runs, for a failed test."""
        lines = [f"--- {self.folder}"]
        try:
            state = self.state
            lines.append(repr(state))
            lines += [f"ticket {ticket}" for ticket in list(state.tickets.values())[:20]]
            lines += [f"lease {lease}" for lease in state.leases.values()]
            lines += [f"{at} {msgspec.json.encode(event).decode()[:300]}" for at, event in self.events()[-40:]]
        except Exception as error:
            lines.append(f"the log cannot be read: {error!r}")
        lines += [repr(run) for run in self.runs if run.code or run.code is None or run.err][-20:]
        return "\n".join(lines)

    def processes(self) -> list[int]:
        """Every living process that was started in this fleet's environment."""
        return processes_with(f"FLEETGATE_CONFIG={self.config}")

    def close(self) -> None:
        self.close_gate()
        deadline = time.monotonic() + PATIENCE_S
        while (alive := self.processes()) and time.monotonic() < deadline:
            for pid in alive:
                kill_if_there(pid)
            for run in self.runs:
                run.process.poll()
            time.sleep(0.002)
        for run in self.runs:
            run.process.wait(PATIENCE_S)
        shutil.rmtree(self.folder, ignore_errors=True)


def processes_with(variable: str) -> list[int]:
    """Every living process that was started with this variable, `NAME=value`, in its environment."""
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208 - names of processes, not of files
        try:
            if name.isdecimal() and variable.encode() in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                found.append(int(name))
        except OSError:
            continue
    return found


def kill_if_there(pid: int, number: int = signal.SIGKILL) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def state_of(pid: int) -> str:
    """The state letter of a process (R, S, T, Z, …); "" if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return ""


def is_alive(pid: int) -> bool:
    return state_of(pid) not in ("", "Z", "X")


def children_of(pid: int, thread: int = 0) -> list[int]:
    """The children of its first thread, or of another thread; none if the process is gone."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{thread or pid}/children").read_text().split()]
    except OSError:
        return []


def cpu_s(pid: int) -> float:
    """The processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"no memory of {pid} is known")


class PseudoTerminal:
    """A pseudo-terminal with a program on it, mostly a shell: a test types on it and reads from it."""

    PROMPT = "outer> "

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], folder: Path, columns: int = 100) -> None:
        self.seen = b""
        self.all = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            try:
                os.chdir(folder)
                os.execvpe(argv[0], list(argv), dict(env))
            finally:
                os._exit(99)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def __enter__(self) -> Self:
        self.wait(self.PROMPT)
        return self

    def __exit__(self, *_: object) -> None:
        print(f"seen on the terminal: {self.all[-8000:]!r}")
        kill_if_there(self.pid)
        os.close(self.fd)
        os.waitpid(self.pid, 0)

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def line(self, text: str) -> None:
        self.type(text + "\n")

    def read(self, within_s: float) -> bool:
        """Read what is there; return whether there was anything."""
        ready, _, _ = select.select([self.fd], [], [], max(within_s, 0))
        if ready:
            got = os.read(self.fd, 65536)
            self.seen += got
            self.all += got
        return bool(ready)

    def wait(self, pattern: str, within_s: float = PATIENCE_S) -> str:
        """Read until `pattern` is seen; return everything up to its end, and forget that."""
        deadline = time.monotonic() + within_s
        while not (match := re.search(pattern.encode(), self.seen)):
            if not self.read(deadline - time.monotonic()):
                raise AssertionError(f"{pattern!r} was not seen, but {self.seen!r}")
        before, self.seen = self.seen[: match.end()], self.seen[match.end() :]
        return before.decode("utf-8", "replace")


class Terminal(PseudoTerminal):
    """A pseudo-terminal with an interactive bash in a fleet's environment."""

    def __init__(self, fleet: Fleet, columns: int = 100, more: Mapping[str, str] | None = None) -> None:
        own = {"PS1": self.PROMPT, "TERM": "xterm", "LC_ALL": "C.UTF-8", "HISTFILE": "/dev/null"}
        env = fleet.env(own | dict(more or {}))
        env.pop("PROMPT_COMMAND", None)
        super().__init__(["bash", "--norc", "--noprofile", "--noediting", "-i"], env, fleet.folder, columns)
