"""A gate in a folder of its own, and fleetgate's commands called on it in this process."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple

import pytest

from fleetgate.cli.main import invoke
from fleetgate.config.file import load
from fleetgate.core import commands as cmd
from fleetgate.core.entities import Lease, Spec
from fleetgate.core.events import Event
from fleetgate.core.state.state import State
from fleetgate.gate.request_ids import new_id
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.log import open_log


class Said(NamedTuple):
    """What a command answered."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Cli:
    """`cli("cap", "set", "host", "5")` calls the command; the rest looks at the gate, or acts as others would."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.config = folder / "config.toml"
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        self._gate: DirectGate | None = None
        for name in os.environ:
            if name.startswith(("FLEETGATE_", "AIDEVOPS_")):
                monkeypatch.delenv(name)
        monkeypatch.delenv("COLUMNS", raising=False)
        monkeypatch.setenv("FLEETGATE_HOME", str(folder / "s"))
        monkeypatch.setenv("FLEETGATE_CONFIG", str(self.config))
        monkeypatch.chdir(folder)
        # The timer that explains long waits is the one that pytest-timeout counts with.
        monkeypatch.setattr("fleetgate.cli.open_gate._explain_waits", lambda gate: None)
        self.configure("")

    def __call__(self, *argv: str) -> Said:
        self._capsys.readouterr()
        code = invoke(list(argv))
        out, err = self._capsys.readouterr()
        assert "Traceback" not in err
        return Said(code, out, err)

    def ok(self, *argv: str) -> str:
        """The output of a command that must succeed."""
        said = self(*argv)
        assert said.code == 0, said
        return said.out

    def json(self, *argv: str) -> Any:
        return json.loads(self.ok(*argv, "--json"))

    def refused(self, *argv: str, code: int = 64) -> str:
        """The sentence about a mistake, which must have changed nothing."""
        before = self.length()
        said = self(*argv)
        assert (said.code, said.out) == (code, ""), said
        assert said.err.startswith("fleetgate: "), said
        assert self.length() == before, self.events()[before:]
        return said.err

    def env(self, name: str, value: str) -> None:
        self._monkeypatch.setenv(name, value)

    def unset(self, name: str) -> None:
        self._monkeypatch.delenv(name)

    # The file.

    def configure(self, text: str) -> None:
        """Write the config file, newer than before; it is in force when this returns."""
        before = self.config.stat().st_mtime_ns if self.config.exists() else 0
        self.write(text, max(before // 1_000_000 + 1000, 1_000_000_000_000))

    def write(self, text: str, modified_ms: int) -> None:
        """The same with a time of its own; what is older than the file in force does not enter."""
        self.config.write_text(text)
        os.utime(self.config, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))
        self.close()
        self.gate.read()

    # The gate, as another process would see and use it.

    @property
    def gate(self) -> DirectGate:
        if self._gate is None:
            home = os.environ["FLEETGATE_HOME"]
            self._gate = DirectGate(open_log(f"sqlite://{home}"), load(str(self.config)), home)
        return self._gate

    @property
    def state(self) -> State:
        return self.gate.replica.catch_up()

    def events(self) -> list[Event]:
        return [event for _, _, event in self.gate.log.history()]

    def length(self) -> int:
        return self.state.seq

    def occupy(self, *models: str, kind: str = "agents", slots: int = 1, key: str = "") -> str:
        """A lease of this process."""
        got = self._ask(models, kind, slots, wait=False, key=key)
        assert got in self.state.leases, self.events()[-1]
        return got

    def stand(self, *models: str, kind: str = "agents", priority: int = 0, project: str = "default") -> str:
        """A ticket of this process in the queue."""
        got = self._ask(models, kind, 1, wait=True, priority=priority, project=project)
        assert got in self.state.tickets, self.events()[-1]
        return got

    def _ask(
        self,
        models: tuple[str, ...],
        kind: str,
        slots: int,
        *,
        wait: bool,
        priority: int = 0,
        key: str = "",
        project: str = "default",
    ) -> str:
        host = self.gate.host if kind == "agents" else ""
        spec = Spec(models=models, kind=kind, slots=slots, host=host, project=project)
        ident = new_id()
        command = cmd.Acquire(ident, spec, self.gate.me, wait, priority=priority, command="the test", key=key)
        self.gate.one(command)
        return ident

    def lease(self, ident: str) -> Lease:
        return self.state.leases[ident]

    def limit(self, kind: str, pool: str) -> int:
        found = self.state.named(kind, pool)
        assert found is not None, pool
        return found.limit

    def close(self) -> None:
        if self._gate is not None:
            self._gate.close()
            self._gate = None


@contextmanager
def opened(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    """Short paths: a socket's name has about a hundred bytes."""
    folder = Path(tempfile.mkdtemp(prefix="hg-", dir="/tmp"))
    cli = Cli(folder, monkeypatch, capsys)
    try:
        yield cli
    finally:
        cli.close()
        monkeypatch.chdir("/")
        _remove(folder)


def _remove(folder: Path) -> None:
    """Remove a folder in which a process that no test waits for, such as that of a status line, may still write."""
    end = monotonic() + 10
    while True:
        try:
            shutil.rmtree(folder)
            return
        except OSError:
            if monotonic() > end:
                raise
            sleep(0.05)
