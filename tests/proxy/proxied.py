"""A service that proxies to a provider, and what a test wants to know about it."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from fleetgate.testing.provider import FakeProvider
from tests.api.served import Answer, Served

CHAT = {"model": "m1", "messages": [{"role": "user", "content": "hi"}]}
MESSAGES = {"model": "claude-x", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}

_CONFIG = """
[requests]
{requests}

[providers.fake]
base_url = "{url}/v1"
{fake}

[providers.anthropic]
base_url = "{url}"
{fake}

[providers.openai]
base_url = "{url}/v1"

[providers.gemini]
base_url = "{url}"
{more}
"""


class Proxied(Served):
    """`fake` and `openai` speak OpenAI, `anthropic` and `gemini` their own; all are the same fake provider."""

    def __init__(
        self,
        home: Path,
        provider: FakeProvider | str,
        requests: str = "",
        fake: str = "",
        more: str = "",
        **environ: str,
    ) -> None:
        self.upstream = provider if isinstance(provider, str) else provider.url
        self._provider = None if isinstance(provider, str) else provider
        config = _CONFIG.format(requests=requests, url=self.upstream, fake=fake, more=more)
        super().__init__(home, config, **environ)

    @property
    def provider(self) -> FakeProvider:
        assert self._provider is not None
        return self._provider

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def chat(self, path: str = "/fake/v1/chat/completions", body: object = CHAT, **headers: str) -> Answer:
        """A call of a model, without Fleetgate's token."""
        return self.request("POST", path, body, token="", **{"x_api_key": "key-of-a-client", **headers})

    def leases(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("/v1/leases").json["leases"]
        return found

    def tickets(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("/v1/tickets").json["tickets"]
        return found

    def lines(self) -> list[dict[str, Any]]:
        """The access log, as far as its lines are whole."""
        try:
            text = (self.home / "access.log").read_text()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.rpartition("\n")[0].splitlines()]

    def line(self, number: int = 1) -> dict[str, Any]:
        """The last line, when there are so many."""
        return self.wait_until(lambda: self.lines()[number - 1 :], f"{number} lines")[-1]  # type: ignore[no-any-return]

    def check_nothing_is_held(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.wait_until(lambda: not self.leases() and not self.tickets(), "every slot is free, nothing waits")

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def begin(self, body: object = CHAT, path: str = "/fake/v1/chat/completions", extra: str = "") -> socket.socket:
        """A request whose answer is not read yet."""
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{extra}"
        connection = self.connect()
        connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        return connection


def read_all(connection: socket.socket) -> bytes:
    """Everything until the other side closes."""
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)
