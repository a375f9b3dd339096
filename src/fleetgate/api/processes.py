"""Several processes of the service behind one port, and the process that starts them.

All are alike: each has the same store and the same routes, and the kernel divides new connections among them
(SO_REUSEPORT). What a client began at one process, it can continue at any other, since leases and tickets are in the
log. What is not in the log and has to be known to all, one-time codes and ended sessions, is in a folder that they
share (api/security/one_time_marks.py).

The first process to be started, this one, serves nothing. It keeps the address, starts the others, and starts one again
that has died. If it is killed itself, the stdin of the others ends, and they stop as at a signal.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic, sleep, time
from types import FrameType

from fleetgate.api.http.listen import bind, is_loopback, tls_settings
from fleetgate.api.server import GRACEFUL_S, READY, Options, access_of, announce, say
from fleetgate.config.file import Loaded
from fleetgate.config.paths import state_folder
from fleetgate.gate.liveness import process_identity
from fleetgate.gate.serving.service_address import remove_address
from fleetgate.present.wall_time import utc

_LOOK_S = 0.1
_TOUCH_S = 3600.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0  # before a process that died is started again
_CUT_S = GRACEFUL_S + 10.0  # how long a process may take to stop

# The command of one process: the port, and the folder that all share.
Command = Callable[[int, str], Sequence[str]]


class ServiceProcess:
    """One of the processes, started again whenever it dies."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._start_again_at = 0.0
        self._pause_s = _FIRST_PAUSE_S

    def start(self) -> None:
        self._started_at = monotonic()
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def wait_until_ready(self) -> int | None:
        """Returns its exit code if it has ended instead."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        return None if process.stdout.readline() == READY else process.wait()

    def keep_alive(self, say: Callable[[str], None]) -> None:
        """Start it again if it has died, after a pause that grows when it dies soon."""
        process, now = self._process, monotonic()
        if process is None:
            if now >= self._start_again_at:
                self.start()
        elif process.poll() is not None:
            self._forget()
            if now - self._started_at > _LONGEST_PAUSE_S:
                self._pause_s = _FIRST_PAUSE_S
            say(f"a process of the service ended (exit code {process.returncode}): starting it again")
            self._start_again_at = now + self._pause_s
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def signal(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def wait(self, until: float) -> None:
        """Wait for its end; kill it if that takes too long."""
        if self._process is None:
            return
        try:
            self._process.wait(max(until - monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._forget()

    def _forget(self) -> None:
        process, self._process = self._process, None
        assert process is not None
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


class SharedTrouble:
    """Why the workers are not running, in a file: the workers belong to the first process, and any may be asked."""

    def __init__(self, folder: str, trouble: Callable[[], str]) -> None:
        self._path = f"{folder}/workers.trouble"
        self._trouble = trouble
        self._written = ""

    def write(self) -> None:
        """Write it, if it has changed."""
        text = self._trouble()
        if text != self._written:
            try:
                with open(f"{self._path}.new", "w", encoding="utf-8") as file:
                    file.write(text)
                os.replace(file.name, self._path)
            except OSError:
                return  # a full disk: the service goes on without this
            self._written = text


def read_trouble(folder: str) -> str:
    """What `SharedTrouble` has written."""
    try:
        with open(f"{folder}/workers.trouble", encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""


class SharedFolder:
    """The folder that the processes share, which only this user can enter.

    Many systems remove temporary files that were not touched for some days: this folder is touched.
    """

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix="fleetgate-serve-")
        self._touched_at = time()  # the wall clock, which goes on while the machine sleeps

    def keep(self) -> None:
        """Touch it, if it is time. Called often."""
        if abs(time() - self._touched_at) < _TOUCH_S:
            return
        self._touched_at = time()
        with suppress(OSError):
            os.utime(self.path)
            for entry in os.scandir(self.path):
                os.utime(entry.path)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


class Supervisor:
    """Starts the processes, watches them, and stops them."""

    def __init__(self, processes: list[ServiceProcess], say: Callable[[str], None]) -> None:
        self._processes = processes
        self._say = say
        self._signals = 0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        for each in self._processes:
            each.signal(signal.SIGTERM)  # at the second one, they cut their connections

    def start(self) -> int | None:
        """Wait until all answer requests. Returns the exit code of one that cannot."""
        for each in self._processes:
            each.start()
        for each in self._processes:
            code = each.wait_until_ready()
            if code is not None and not self._signals:
                return code
        return None

    def watch(self, look: Callable[[], None]) -> None:
        """Call `look` from time to time, and return at a signal."""
        while not self._signals:
            look()
            for each in self._processes:
                each.keep_alive(self._say)
            sleep(_LOOK_S)

    def stop(self) -> None:
        if not self._signals:
            self._on_signal(signal.SIGTERM, None)
        until = monotonic() + _CUT_S
        for each in self._processes:
            each.wait(until)


def serve_with_processes(number: int, command: Command, options: Options, loaded: Loaded | None) -> int:
    """Run until a signal says stop; the exit code."""
    folder = state_folder()
    tls = tls_settings(loaded)
    with bind(options.host, options.port) as probe:  # another service of this user might share the port, too
        port = probe.getsockname()[1]
    with bind(options.host, port, shared=True) as sock:  # it does not listen: it keeps the address
        access_of(options, loaded, folder, is_loopback(sock))  # or each process would make a token of its own

        def tell(me: str, started_at: str) -> None:
            announce(options, folder, sock, tls, me, started_at)

        return _serve(number, command, options, port, folder, tell)


def _serve(
    number: int,
    command: Command,
    options: Options,
    port: int,
    folder: str,
    tell: Callable[[str, str], None],
) -> int:
    me = process_identity.this_process()
    shared = SharedFolder()
    trouble = SharedTrouble(shared.path, options.workers_trouble)
    supervisor = Supervisor(
        [ServiceProcess(command(port, shared.path)) for _ in range(number)], options.announce or say
    )

    def look() -> None:
        trouble.write()
        shared.keep()

    try:
        code = supervisor.start()
        if code is not None:
            return code
        tell(me, utc(int(time() * 1000)) or "")
        if options.on_ready is not None:
            options.on_ready()
        supervisor.watch(look)
        return 0
    finally:
        remove_address(folder, me)
        supervisor.stop()
        shared.remove()
