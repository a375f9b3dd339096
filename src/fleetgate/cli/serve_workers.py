"""The worker of `fleetgate serve --workers N`: `fleetgate worker` in a process of its own, while the service runs.

A worker forks, which a process with threads and an event loop must not do; and a job that harms its worker must not
harm the service. The worker is started again when it dies or cannot start, after a growing pause. If the service is
killed, the worker's stdin ends, and it finishes its running jobs and exits. On its stdout it prints how many worker
processes it has.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from threading import Event, Thread
from time import monotonic
from types import FrameType

from fleetgate.gate.python_command import python_command

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0
_GRACE_S = 5.0  # in which a worker starts, and puts another hand in the place of one that died
_LOOK_S = 0.5
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Crew:
    """The worker process. The main thread starts and stops it; a second thread waits for it."""

    def __init__(self, number: int, options: tuple[str, ...], say: Callable[[str], None]) -> None:
        self._number = number
        self._options = options  # of `fleetgate worker`
        self._say = say
        self._stopping = Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._open_files = resource.getrlimit(resource.RLIMIT_NOFILE)  # before the service raises it for itself
        self._running = 0  # that work
        self._short_since = monotonic()  # there are fewer than there should be
        self._failed = ""  # why the worker ended, or could not be started; "" once it runs again
        self._thread = Thread(target=self._stay, name="fleetgate-crew", daemon=True)

    def start(self) -> None:
        self._short_since = monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Stop the worker and wait for it. A signal while waiting is its second: it requeues its running jobs."""
        before = {number: signal.signal(number, self._heard) for number in _SIGNALS}
        try:
            self._tell()
            while self._thread.is_alive():
                self._thread.join(0.2)  # a signal is heard between two of these
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        self._tell()

    def _tell(self) -> None:
        self._stopping.set()
        process = self._process
        if process is not None and process.poll() is None:
            process.terminate()

    def trouble(self) -> str:
        """Why the workers that should run do not; "" when they do. From any thread."""
        if self._stopping.is_set() or self._running >= self._number:
            return ""
        if self._failed:
            return self._failed
        if monotonic() - self._short_since < _GRACE_S:
            return ""  # it is starting, or a worker process has just died
        return f"{self._running} of {self._number} worker processes are running"

    def _stay(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            began = monotonic()
            ended = self._run_worker()
            self._note_count(0)
            if self._stopping.is_set():
                return
            if monotonic() - began > _LONGEST_PAUSE_S:
                pause_s = _FIRST_PAUSE_S
            if not self._failed:  # else it was said
                self._say(f"{ended}: it is restarted until it runs")
            self._failed = ended
            self._stopping.wait(pause_s)
            if self._stopping.is_set():
                return
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _run_worker(self) -> str:
        """Start the worker, and stay until it has ended: why it has."""
        command = python_command("fleetgate", "worker", "-n", str(self._number), "--with-stdin", *self._options)
        pipe = subprocess.PIPE
        try:
            # Its own session: a Ctrl-C at the terminal goes to the service, which stops the worker.
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True)
        except (OSError, subprocess.SubprocessError) as error:
            return f"the worker cannot be started ({error})"
        with process:
            self._process = process
            if sys.platform == "linux":
                resource.prlimit(process.pid, resource.RLIMIT_NOFILE, self._open_files)
            if self._stopping.is_set():
                process.terminate()  # `stop` ran before the process was known to it
            assert process.stdout is not None
            while process.poll() is None:
                # Not to the end of the file: what the worker has started may keep it open for longer.
                if select.select([process.stdout], [], [], _LOOK_S)[0]:
                    lines = os.read(process.stdout.fileno(), 4096).split()
                    if lines:
                        self._note_count(int(lines[-1]))
                    else:
                        process.wait()
        return f"the worker exited unexpectedly (code {process.returncode})"

    def _note_count(self, number: int) -> None:
        if number < self._number <= self._running:
            self._short_since = monotonic()
        self._running = number
        if number >= self._number and self._failed:
            self._failed = ""
            self._say("the worker is running again")
