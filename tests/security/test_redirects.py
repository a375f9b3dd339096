"""A hostile provider that redirects clients: none of our tokens goes elsewhere, and no route of our own is called.

The client is httpx with redirects on, as the SDKs of Anthropic and OpenAI use it. On its way to another host it drops
`Authorization`, but not `x-api-key`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from tests.api.test_access_keys import create
from tests.proxy.proxied import CHAT, Proxied

OWN = "a-key-of-the-client"


class Redirecting:
    """A server that redirects requests for `/v1/from`, with the target that a test sets, and answers all others."""

    def __init__(self) -> None:
        self.location = ""
        self.status = 307
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                outer.seen.append(
                    (self.command, self.path, {name.lower(): text for name, text in self.headers.items()})
                )
                redirects = self.path.startswith("/v1/from") and outer.location
                self.send_response(outer.status if redirects else 200)
                if redirects:
                    self.send_header("Location", outer.location)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def do_GET(self) -> None:
                self.do_POST()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def redirect(self, location: str, status: int = 307) -> None:
        self.location, self.status = location, status
        self.seen.clear()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Redirecting, Redirecting]]:
    """The provider, and a server elsewhere."""
    made = Redirecting(), Redirecting()
    yield made
    for each in made:
        each.close()


@pytest.fixture(scope="module")
def gate(servers: tuple[Redirecting, Redirecting], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    folder = tmp_path_factory.mktemp("redirects")
    with Proxied(folder, servers[0].url, fake='key_env = "FAKE_KEY"', FAKE_KEY="sk-of-the-config") as made:
        yield made


def send(gate: Proxied, path: str = "/fake/v1/from", method: str = "POST", **headers: str) -> httpx.Response:
    with httpx.Client(follow_redirects=True, timeout=60, trust_env=False) as client:
        body: dict[str, Any] = {"json": CHAT} if method == "POST" else {}
        shown = {name.replace("_", "-"): value for name, value in headers.items()}
        return client.request(method, gate.url + path, headers=shown, **body)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_to_another_host_gets_neither_our_token_nor_an_access_key(
    gate: Proxied, servers: tuple[Redirecting, Redirecting], status: int
) -> None:
    provider, elsewhere = servers
    key = create(gate, f"agent-{status}", "--project", "web")
    for ours in (gate.token, key):
        for target in (f"{elsewhere.url}/taken", elsewhere.url.removeprefix("http:") + "/taken"):
            provider.redirect(target, status)
            elsewhere.seen.clear()
            answer = send(gate, x_api_key=ours)
            assert (answer.status_code, "location" in answer.headers) == (status, False)
            assert not elsewhere.seen
            assert [path for _, path, _ in provider.seen] == ["/v1/from"]


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("shown", ["token", "nothing", "own key"])
def test_a_redirect_cannot_lead_to_a_route_of_our_own(
    gate: Proxied, servers: tuple[Redirecting, Redirecting], shown: str, absolute: bool
) -> None:
    provider = servers[0]
    gate.ok("POST", "/v1/budgets", {"selector": "project:web", "unit": "calls", "amount": 5, "per": "day"})
    headers = {"token": {"x_api_key": gate.token}, "nothing": {}, "own key": {"x_api_key": OWN}}[shown]
    for path in ("/v1/budgets/project%3Aweb%20calls%2Fday/reset", "/concurrency/resume?provider=fake", "/v1/status"):
        provider.redirect(gate.url + path if absolute else path)
        before = gate.get("/v1/status").json["seq"]
        answer = send(gate, **headers)
        assert not answer.history or answer.url.path.startswith("/fake/")
        assert gate.get("/v1/history?types=budget_reset,resumed").json["events"] == []
        assert "pools" not in answer.text
        assert gate.get("/v1/status").json["seq"] >= before


@pytest.mark.parametrize(
    ("prefix", "target", "arrives"),
    [
        ("/fake", "/v1/to?a=b", "/v1/to?a=b"),
        ("/fake", "to", "/v1/to"),
        ("/fake/v1", "{url}/v1/to", "/v1/to"),
        ("/p/blue/fake", "{url}/v1/to/%2e%2E;/x", None),
        ("/fake", "/other/to", None),
        ("/openai/v1", "./to#part", "/v1/to"),
    ],
)
def test_x1_a_redirect_to_the_same_provider_comes_through_the_proxy_again(
    gate: Proxied, servers: tuple[Redirecting, Redirecting], prefix: str, target: str, arrives: str | None
) -> None:
    provider = servers[0]
    provider.redirect(target.format(url=provider.url))
    answer = send(gate, f"{prefix}/from" if prefix.endswith("/v1") else f"{prefix}/v1/from", x_api_key=OWN)
    paths = [path for _, path, _ in provider.seen]
    assert paths == (["/v1/from"] if arrives is None else ["/v1/from", arrives])
    if arrives is not None:
        assert (answer.status_code, len(answer.history)) == (200, 1)
        assert provider.seen[1][2].get("x-api-key", provider.seen[1][2].get("authorization")) in (
            OWN,
            f"Bearer {OWN}",
        )


def test_x1_a_client_with_a_key_of_its_own_is_redirected_to_another_host_as_without_the_proxy(
    gate: Proxied, servers: tuple[Redirecting, Redirecting]
) -> None:
    provider, elsewhere = servers
    target = f"{elsewhere.url}/files/1?signature=x".replace("127.0.0.1", "localhost")
    provider.redirect(target, 302)
    with httpx.Client(trust_env=False) as client:
        answer = client.get(f"{gate.url}/fake/v1/from", headers={"x-api-key": OWN})
    assert answer.headers.get("location") is None, "to this machine, a provider redirects nothing"
    provider.redirect("https://storage.example/files/1?signature=x", 302)
    with httpx.Client(trust_env=False) as client:
        answer = client.get(f"{gate.url}/fake/v1/from", headers={"x-api-key": OWN})
    assert answer.headers["location"] == "https://storage.example/files/1?signature=x"


@pytest.mark.parametrize(
    "location",
    [
        "http://127.0.0.1:1/x",
        "//localhost/x",
        "http://a.localhost./x",
        "http://[::1]/x",
        "http://[::ffff:127.0.0.1]/x",
        "http://0.0.0.0/x",
        "http:\\\\evil.example\\x",
        "ftp://evil.example/x",
        "javascript:alert(1)",
        "http://[/x",
        "http://a:99999/x",
        "https://user@storage.example/x",
    ],
)
def test_a_redirect_to_this_machine_or_to_what_is_no_plain_address_is_not_passed_on(
    gate: Proxied, servers: tuple[Redirecting, Redirecting], location: str
) -> None:
    servers[0].redirect(location, 302)
    with httpx.Client(trust_env=False) as client:
        answer = client.get(f"{gate.url}/fake/v1/from", headers={"x-api-key": OWN})
    assert (answer.status_code, answer.headers.get("location")) == (302, None)
