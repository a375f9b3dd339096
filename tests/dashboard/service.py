"""A real `fleetgate serve` on a store of its own, and a fleet to look at."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import msgspec

from fleetgate.config.file import load
from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Rule, Spec
from fleetgate.gate.liveness import process_identity
from fleetgate.gate.request_ids import new_id
from fleetgate.gate.serving.service_address import ServiceAddress, read_address
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.log import open_log
from tests.price_table import put_prices

FLEETGATE = str(Path(sys.executable).with_name("fleetgate"))
DEADLINE_S = 60.0


def wait_until(what: str, condition: Callable[[], Any], deadline_s: float = DEADLINE_S) -> Any:
    """What the condition answers, once that is something."""
    end = time.monotonic() + deadline_s
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline_s} s: {what}")
        time.sleep(0.02)


class Server:
    """A state folder with a service on it, which can be killed and started again on the same port."""

    def __init__(self, home: Path, config: str = "") -> None:
        self.home = home
        self.port = 0
        put_prices(home)
        (home / "config.toml").write_text(config)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FLEETGATE_", "AIDEVOPS_"))}
        self.env = {**kept, "FLEETGATE_HOME": str(home), "FLEETGATE_CONFIG": str(home / "config.toml")}
        self._process: subprocess.Popen[bytes] | None = None
        self._gate: DirectGate | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        (self.home / "serve.log").touch()
        output = (self.home / "serve.log").open("ab")
        command = [FLEETGATE, "serve", "--port", str(self.port)]
        self._process = subprocess.Popen(command, env=self.env, stdout=output, stderr=output)
        output.close()
        self.port = wait_until("the service says where it is", self._address).port

    def _address(self) -> ServiceAddress | None:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError((self.home / "serve.log").read_text())
        return read_address(str(self.home))

    def kill(self) -> None:
        """As rudely as possible."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def run(self, *arguments: str, check: bool = True) -> str:
        """A command of Fleetgate on this state folder."""
        done = subprocess.run([FLEETGATE, *arguments], env=self.env, capture_output=True, text=True, timeout=DEADLINE_S)
        if check and done.returncode:
            raise AssertionError(f"fleetgate {' '.join(arguments)}: {done.returncode} {done.stderr}")
        return done.stdout

    def http(self, method: str, path: str, **body: Any) -> Any:
        """What the service answers to one who has the token."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        try:
            headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
            connection.request(method, path, msgspec.json.encode(body) if body else None, headers)
            response = connection.getresponse()
            answer = msgspec.json.decode(response.read())
        finally:
            connection.close()
        if response.status >= 400:
            raise AssertionError(f"{method} {path}: {answer}")
        return answer

    def configure(self, config: str) -> None:
        """Write the config file and apply it."""
        (self.home / "config.toml").write_text(config)
        self.run("config", "apply")

    def pool(self, name: str) -> Any:
        return next(pool for pool in self.http("GET", "/v1/status")["pools"] if pool["pool"] == name)

    def link(self) -> str:
        """A one-time link, as `fleetgate open` makes it."""
        return str(self.http("POST", "/v1/login-links")["url"])

    @property
    def token(self) -> str:
        return (self.home / "token").read_text().strip()

    # This process as a holder, without the price of a process for each ticket.

    @property
    def gate(self) -> DirectGate:
        if self._gate is None:
            loaded = load(str(self.home / "config.toml"))
            self._gate = DirectGate(open_log(f"sqlite://{self.home}"), loaded, str(self.home))
        return self._gate

    def caps(self, kind: str = "requests", **caps: int) -> None:
        """Caps by provider. With `adapt` calls would wait for each other at first."""
        step = "step" if kind == "requests" else None
        rules = [Rule(kind, name, cap=cap, on_429=step) for name, cap in caps.items()]
        self.gate.decide([cmd.SetRule(rule) for rule in rules], durable=True)

    def ask(self, model: str, command: str = "", count: int = 1, **more: Any) -> list[str]:
        """Acquire slots; some are granted at once, others wait in the queue. Their ids, in order."""
        kind = more.pop("kind", "requests")
        project = more.pop("project", "default")
        holder = more.pop("holder", process_identity.this_process())
        spec = Spec((model,) if model else (), kind, more.pop("slots", 1), self.gate.host, project)
        asked = [
            cmd.Acquire(new_id(), spec, holder, command=command.format(number=number), **more)
            for number in range(1, count + 1)
        ]
        for some in _parts(asked, 2_000):
            for decided in self.gate.decide(some):
                if decided.error is not None:
                    raise decided.error
        return [each.id for each in asked]

    def release(self, ident: str, **more: Any) -> None:
        """Release; the request that is admitted by that takes the slot."""
        self.tell(cmd.Release(ident, **more))

    def tell(self, *commands: cmd.Command) -> None:
        for decided in self.gate.decide(list(commands)):
            if decided.error is not None:
                raise decided.error
            granted = [event.id for event in decided.events if isinstance(event, ev.Granted) and not event.claimed]
            if granted:
                self.gate.decide([cmd.Claim(ident) for ident in granted])

    def wipe(self) -> None:
        """No caps, an empty queue, nothing granted, nothing cooling: as in the beginning but for the history."""
        if self._process is None or self._process.poll() is not None:
            self.start()
        state = self.gate.read()
        rules = list(state.rules.runtime)
        first = [cmd.SetRule(Rule(kind, selector, cooldown_ms=0)) for kind, selector in rules]
        last: list[cmd.Command] = [cmd.Cancel(ident) for ident in state.tickets]
        last += [cmd.Reclaim(ident, "the tests") for ident in state.leases]
        last += [cmd.EndBackoff(key) for key in state.backoffs]
        last += [cmd.RemoveCap(kind, selector) for kind, selector in rules]  # forgets pauses and reductions
        last += [cmd.ResetCap(kind, selector) for kind, selector in rules]
        last += [cmd.UnsetBudget(*key) for key in state.budget_rules.runtime]
        self.gate.decide([*first, *last])
        left = self.gate.read()
        assert not any((left.tickets, left.leases, left.backoffs, left.rules.runtime))

    def stop(self) -> None:
        if self._gate is not None:
            self._gate.close()
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def _parts(items: Sequence[cmd.Acquire], size: int) -> list[Sequence[cmd.Acquire]]:
    return [items[start : start + size] for start in range(0, len(items), size)]
