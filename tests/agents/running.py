"""One real agent under `fleetgate run`, on a store and in a home of its own, against a fake provider."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.agents.calling import Call, bare_environment

FLEETGATE = str(Path(sys.executable).with_name("fleetgate"))
WITHIN_S = 280
AGENTS_PATIENCE = "5s"  # of those that would go on for long: what is read from them is the same
# Runs a command on a terminal of its own, and returns as it returns.
_SPAWN = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
ON_TERMINAL = [sys.executable, "-c", _SPAWN]


class Ran(NamedTuple):
    """What was seen of a run."""

    exit_code: int
    out: str
    err: str
    status: dict[str, Any]
    leases: list[dict[str, Any]]
    backoffs: list[dict[str, Any]]
    released: dict[str, Any]  # its last event in the history
    took_s: float

    @property
    def outcome(self) -> dict[str, Any]:
        found: dict[str, Any] = self.status["outcome"]
        return found


class Place:
    """Folders for one run: the home, where the store and the agent's own files are, and where it works."""

    def __init__(self, folder: Path) -> None:
        self.home, self.work = folder / "home", folder / "work"
        self.home.mkdir()
        self.work.mkdir()
        self._status = folder / "status.json"
        self._config = folder / "config.toml"
        self._config.write_text("")

    def configure(self, text: str) -> None:
        self._config.write_text(text)

    def run(self, call: Call, patience_s: int = 0, *, on_terminal: bool = False) -> Ran:
        began = time.monotonic()
        command = ["timeout", str(patience_s), *call.argv] if patience_s else call.argv
        before = ON_TERMINAL if on_terminal else []
        options = ["-m", call.model, "--patience", AGENTS_PATIENCE, "--status-file", str(self._status)]
        done = self._do(["run", *options, "--", *command], call.env, before)
        took_s = time.monotonic() - began
        return Ran(
            done.returncode,
            done.stdout,
            done.stderr,
            json.loads(self._status.read_text()),
            self._listed("ps")["leases"],
            self._listed("backoff", "ls")["backoffs"],
            json.loads(self._do(["history", "--json", "--type", "released"]).stdout.splitlines()[-1]),
            took_s,
        )

    def begin(self, call: Call) -> subprocess.Popen[bytes]:
        """The same, without waiting for its end."""
        argv = [FLEETGATE, "run", "-m", call.model, "--", *call.argv]
        quiet = subprocess.DEVNULL
        return subprocess.Popen(
            argv, env=self._env(call.env), cwd=self.work, stdin=quiet, stdout=subprocess.PIPE, stderr=quiet
        )

    def plans(self) -> list[dict[str, Any]]:
        """The plan windows that are known."""
        found: list[dict[str, Any]] = self._listed("status")["plans"]
        return found

    def _listed(self, *command: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._do([*command, "--json"]).stdout)
        return found

    def _do(
        self, arguments: list[str], env: Mapping[str, str] | None = None, before: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*before, FLEETGATE, *arguments],
            env=self._env(env or {}),
            cwd=self.work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=WITHIN_S,
            check=False,
        )

    def _env(self, more: Mapping[str, str]) -> dict[str, str]:
        ours = {"FLEETGATE_HOME": str(self.home / "fleetgate"), "FLEETGATE_CONFIG": str(self._config)}
        return {**bare_environment(self.home), **ours, **more}
