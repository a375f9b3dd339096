"""A fleet of real agent processes and the fake provider they call: start, progress and end.

The rule: the numbers come from the agents' own records and from the provider's statistics, not from the commands that
were started; and no process is left behind after a `with` block, however it ends.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Self

from msgspec import Struct

from demo import records
from fleetgate.gate.python_command import python_command

START_S = 15.0
GRACE_S = 3.0


class FleetError(Exception):
    """Something that the fleet needs is missing; the text is a sentence for the user."""


class Progress(Struct, frozen=True):
    """A moment in the life of a fleet. `states` has one word for each agent, in the order they were started."""

    states: tuple[str, ...]
    refused: int
    most_at_once: int
    elapsed_s: float

    def number(self, state: str) -> int:
        return self.states.count(state)

    @property
    def over(self) -> bool:
        return not self.number("running") and not self.number("waiting")


class ProviderProcess:
    """`python -m fleetgate.testing.provider` while the block lasts; it ends when this process is killed."""

    def __init__(self, *options: str) -> None:
        self._argv = python_command("fleetgate.testing.provider", "--with-parent", *options)
        self.url = ""

    def __enter__(self) -> Self:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(self._argv, stdin=pipe, stdout=pipe, start_new_session=True)
        try:
            self.url = self._first_line()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def stats(self) -> dict[str, Any]:
        # Not urllib: it would follow http_proxy, and this never leaves the machine.
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=START_S)
        try:
            connection.request("GET", "/_stats")
            found: dict[str, Any] = json.loads(connection.getresponse().read())
            return found
        except (OSError, http.client.HTTPException) as error:
            raise FleetError(f"the fake provider at {self.url} does not answer: {error}") from None
        finally:
            connection.close()

    def _first_line(self) -> str:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], START_S)
        line = self._process.stdout.readline().decode().strip() if ready else ""
        if not line:
            raise FleetError("the fake provider did not start")
        return line


class Fleet:
    """The agents. Each is a session of its own, so Ctrl-C reaches only this process, which ends them in order."""

    def __init__(self, folder: Path, provider: ProviderProcess, env: dict[str, str]) -> None:
        self.record = folder / "records.jsonl"
        self._folder = folder
        self._provider = provider
        self._env = env
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._began_s = time.monotonic()
        self._ended_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(self, name: str, argv: list[str]) -> None:
        files = self._folder / f"{name}.out", self._folder / f"{name}.err"
        with files[0].open("wb") as out, files[1].open("wb") as err:
            self._processes[name] = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=self._env, start_new_session=True
            )

    def progress(self) -> Progress:
        seen = records.read(self.record)
        states = tuple(self._state(name, process, seen) for name, process in self._processes.items())
        refused = int(self._provider.stats()["refused"])
        now_s = time.monotonic()
        progress = Progress(states, refused, records.most_at_once(seen), (self._ended_s or now_s) - self._began_s)
        if progress.over and not self._ended_s:
            self._ended_s = now_s
        return progress

    def first_failure(self) -> str:
        """Name and last words of the first agent that failed, or nothing."""
        seen = records.read(self.record)
        for name, process in self._processes.items():
            if self._state(name, process, seen) == "failed":
                words = (self._folder / f"{name}.err").read_text("utf-8", "replace").strip().splitlines()
                return f"{name} said: {words[-1]}" if words else f"{name} said nothing (exit {process.returncode})"
        return ""

    def end(self) -> None:
        """Terminate what is still running, then kill it, with its groups and agents that outlived a wrapper."""
        alive = [process for process in self._processes.values() if process.poll() is None]
        for process in alive:
            process.terminate()
        deadline_s = time.monotonic() + GRACE_S
        for process in alive:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline_s - time.monotonic()))
        for process in alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for pid in records.running(records.read(self.record)).values():
            self._kill_agent(pid)

    def _kill_agent(self, pid: int) -> None:
        """Kill an agent that has lost its wrapper, and wait until it is gone."""
        deadline_s = time.monotonic() + GRACE_S
        while self._is_agent(pid) and time.monotonic() < deadline_s:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    def _is_agent(self, pid: int) -> bool:
        """Whether that pid is still an agent of this fleet, and not another process that got its number."""
        try:
            return os.fsencode(self.record) in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False  # gone; or no /proc here: then it ends after the provider has

    def _state(self, name: str, process: subprocess.Popen[bytes], seen: list[records.Record]) -> str:
        own = [record for record in seen if record["agent"] == name]
        code = process.poll()
        if code is None:
            return "running" if own else "waiting"
        # A wrapper that exits 0 without having run the agent has failed as well.
        return "done" if code == 0 and own and own[-1].get("outcome") == "ok" else "failed"
