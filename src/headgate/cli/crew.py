"""The worker of `headgate serve --workers N`: `headgate worker` in a process of its own, as long as the service lives.

A worker forks its hands, which a process with threads and an event loop must not do; and what a job does to its worker
it must not do to the service. The worker is started anew when it dies. If the service is killed the worker's stdin
ends, and it stops as if it had been told to: what runs is finished.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from threading import Event, Thread
from types import FrameType

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Crew:
    """Started and stopped by the main thread; a thread of its own waits for the worker."""

    def __init__(self, number: int, users: tuple[str, ...], say: Callable[[str], None]) -> None:
        self._number = number
        self._users = [f"--user={user}" for user in users]
        self._say = say
        self._stopping = Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = Thread(target=self._stay, name="headgate-crew", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Until the worker has left. A signal meanwhile is its second: it hands back what runs."""
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

    def _stay(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            # Its own session: a Ctrl-C at the service's terminal is for the service, which tells it.
            command = [
                sys.executable,
                "-m",
                "headgate",
                "worker",
                "-n",
                str(self._number),
                "--with-stdin",
                *self._users,
            ]
            with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as process:
                self._process = process
                if self._stopping.is_set():
                    process.terminate()  # whoever told us so did not see it yet
                code = process.wait()
            if self._stopping.is_set():
                return
            self._say(f"the worker ended by itself (code {code}): another is started")
            self._stopping.wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
