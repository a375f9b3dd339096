"""A real `fleetgate serve` for tests, and a small client that shows what went over the wire."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Any, NamedTuple, Self

from tests.price_table import put_prices

PATIENCE_S = 60.0


class Answer(NamedTuple):
    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Served:
    """One state folder, and the service on it: started, stopped and killed at will."""

    def __init__(self, home: Path, config: str = "", **environ: str) -> None:
        self.home = home / "state"
        self.config = home / "config.toml"
        self.config.write_text(config)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FLEETGATE_", "AIDEVOPS_"))}
        kept.pop("PYTHONDONTWRITEBYTECODE", None)
        own = {"HOME": str(home), "FLEETGATE_HOME": str(self.home), "FLEETGATE_CONFIG": str(self.config)}
        self.environ = {**kept, **own, **environ}
        self.port = 0
        self.process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self, *options: str) -> Self:
        """Start, on the same port as before, and wait until it answers."""
        if not self.home.exists():
            put_prices(self.home)
        self.process = self.spawn("serve", "--port", str(self.port), *options)
        self.wait_until(self._answers, "the service answers")
        return self

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"it ended: {self.process.communicate()[1]}"
        try:
            address = json.loads((self.home / "serve.json").read_bytes())
        except (OSError, ValueError):
            return False
        if f"|{self.process.pid}|" not in address["process"]:
            return False  # of the one before
        self.port = address["port"]
        return self.get("/readyz").status == 200

    def stop(self) -> int:
        """Ask it to end; its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE_S)
        self._close()
        return code

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(PATIENCE_S)
            self._close()

    def _close(self) -> None:
        assert self.process is not None
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        self.process = None

    def spawn(self, *argv: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "fleetgate", *argv]
        return subprocess.Popen(
            command,
            env=self.environ,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )

    def cli(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Another command on the same state folder."""
        command = [sys.executable, "-m", "fleetgate", *argv]
        return subprocess.run(
            command, env=self.environ, text=True, capture_output=True, timeout=PATIENCE_S, check=False
        )

    @property
    def token(self) -> str:
        return (self.home / "token").read_text().strip()

    # Asking.

    def request(
        self, method: str, path: str, body: object = None, *, token: str | None = None, **headers: str
    ) -> Answer:
        """One request. A body that is bytes goes as it is; the token goes along unless it is "".

        Status 0: nobody answers, or the service ended before it took the connection (then the kernel resets it).
        """
        given = self.token if token is None else token
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if given:
            sent["Authorization"] = f"Bearer {given}"
        data = None
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request(method, path, data, sent)
            response = connection.getresponse()
            return Answer(response.status, response.read(), {k.lower(): v for k, v in response.getheaders()})
        except ConnectionError:
            return Answer(0, b"", {})
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        """Read without a token."""
        return self.request("GET", path, token="", **headers)

    def ok(self, method: str, path: str, body: object = None) -> Any:
        """Do something that works; what came of it."""
        answer = self.request(method, path, body)
        assert answer.status in (200, 201), (method, path, answer)
        return answer.json

    def cap(self, selector: str, cap: int, **more: object) -> Any:
        return self.ok("PUT", "/v1/caps", {"selector": selector, "cap": cap, **more})

    def lease(self, model: str = "umans/coder", **more: object) -> Answer:
        return self.request("POST", "/v1/leases", {"models": [model], **more})

    def events(self, *types: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get(f"/v1/history?limit=10000&types={','.join(types)}").json["events"]
        return found

    @staticmethod
    def wait_until(true: Any, what: str, patience_s: float = PATIENCE_S) -> Any:
        until = monotonic() + patience_s
        while not (found := true()):
            assert monotonic() < until, f"not in time: {what}"
            sleep(0.02)
        return found
