"""Users whom a reverse proxy has signed in, and what others can make of its header (rule E4)."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetgate.api.errors import RequestRefused
from fleetgate.api.security.forwarded_users import ForwardedUsers, forwarded_users
from fleetgate.config.errors import ConfigError
from fleetgate.config.settings import TrustedHeader
from tests.api.served import Answer, Served

SECRET = "a-secret-of-the-reverse-proxy"


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("forwarded")
    secret = home / "proxy-secret"
    secret.write_text(f"{SECRET}\n")
    secret.chmod(0o600)
    config = f"""
[serve.trust_user_header]
header = "X-Forwarded-User"
from = ["127.0.0.1"]
secret_file = "{secret}"
users = {{ alice = "admin", "bob@example.org" = "operator", carol = "viewer" }}
"""
    with Served(home, config) as served:
        yield served


def through_proxy(
    gate: Served, user: str | None, method: str = "GET", path: str = "/v1/session", **more: str
) -> Answer:
    """A request as the reverse proxy passes it on, from a page of the service's own."""
    headers = {"X-Fleetgate-Proxy-Secret": SECRET, **more}
    if user is not None:
        headers["X-Forwarded-User"] = user
    body = None if method == "GET" else {"selector": "umans", "cap": 3}
    if method != "GET":
        headers.setdefault("Origin", f"http://127.0.0.1:{gate.port}")
    sent = {name.replace("-", "_"): value for name, value in headers.items() if value}
    return gate.request(method, path, body, token="", **sent)


def test_e4_a_user_has_the_role_of_the_config_and_is_the_author_of_what_it_changes(gate: Served):
    for user, role in (("alice", "admin"), ("bob@example.org", "operator"), ("carol", "viewer")):
        session = through_proxy(gate, user).json
        assert (session["role"], session["user"], session["key"]) == (role, user, None)
    assert through_proxy(gate, "alice", path="/v1/keys").status == 200
    assert through_proxy(gate, "bob@example.org", path="/v1/keys").status == 403
    assert through_proxy(gate, "bob@example.org", "PUT", "/v1/caps").status == 200
    refused = through_proxy(gate, "carol", "PUT", "/v1/caps")
    assert (refused.status, refused.json["reason"]) == (403, "role_needed")
    assert "the user carol has the role viewer" in refused.json["error"]
    assert gate.events("rule_set")[-1]["by"] == "user bob@example.org"


def test_e4_the_password_that_the_reverse_proxy_asked_for_is_not_ours_and_a_bearer_token_is(gate: Served):
    basic = "Basic YWxpY2U6cGFzc3dvcmQ="
    assert through_proxy(gate, "alice", Authorization=basic).json["user"] == "alice"
    assert gate.request("PUT", "/v1/caps", {"selector": "x", "cap": 1}, token="", Authorization=basic).status == 401
    assert through_proxy(gate, "carol", Authorization=f"Bearer {gate.token}").json["role"] == "admin"
    assert through_proxy(gate, "carol", Authorization="Bearer wrong").status == 401


def test_e4_without_the_secret_the_header_is_nothing(gate: Served):
    for user in ("alice", "root"):
        answer = gate.request("PUT", "/v1/caps", {"selector": "umans", "cap": 9}, token="", X_Forwarded_User=user)
        assert (answer.status, answer.json["reason"]) == (401, "token_needed")
    session = gate.request("GET", "/v1/session", token="", X_Forwarded_User="alice").json
    assert session["user"] is None


@pytest.mark.parametrize("wrong", ["", SECRET[:-1], SECRET + "x", SECRET.upper(), "x" * 4000])
def test_e4_a_wrong_secret_is_refused_even_for_reading(gate: Served, wrong: str):
    if not wrong:
        return
    answer = through_proxy(gate, "alice", **{"X-Fleetgate-Proxy-Secret": wrong})
    assert (answer.status, answer.json["reason"]) == (403, "proxy_wrong")
    assert SECRET not in answer.body.decode()


def test_e4_a_request_of_the_proxy_that_names_nobody_or_an_unknown_user_is_refused(gate: Served):
    """The proxy's own user may be trusted on loopback: what it passes on for others must not be."""
    for user in (None, " "):
        answer = through_proxy(gate, user, path="/v1/status")
        assert (answer.status, answer.json["reason"]) == (401, "user_needed")
    for user in ("mallory", "alice, carol", "alice\tx", "Alice", "a" * 300, "ali\xe9"):
        answer = through_proxy(gate, user, path="/v1/status")
        assert (answer.status, answer.json["reason"]) == (403, "user_unknown"), user


def raw(gate: Served, head: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", gate.port), timeout=30) as sock:
        sock.sendall(head)
        return sock.recv(65_536)


def test_e4_two_names_or_two_secrets_are_refused(gate: Served):
    base = f"GET /v1/session HTTP/1.1\r\nHost: 127.0.0.1:{gate.port}\r\nConnection: close\r\n".encode()
    secret = b"X-Fleetgate-Proxy-Secret: " + SECRET.encode() + b"\r\n"
    user = b"X-Forwarded-User: carol\r\n"
    assert b" 200 " in raw(gate, base + secret + user + b"\r\n")
    assert b"user_needed" in raw(gate, base + secret + b"X-Forwarded-User: alice\r\n" + user + b"\r\n")
    assert b"proxy_wrong" in raw(gate, base + secret + secret + user + b"\r\n")


def test_e4_a_page_elsewhere_cannot_use_the_proxys_sign_in(gate: Served):
    """A browser sends its cookies for the reverse proxy along, so the proxy adds both headers."""
    for origin in ("https://evil.example", "null"):
        answer = through_proxy(gate, "alice", "PUT", "/v1/caps", Origin=origin)
        assert (answer.status, answer.json["reason"]) == (403, "foreign_origin")
    answer = through_proxy(gate, "alice", "PUT", "/v1/caps", Origin="")
    assert (answer.status, answer.json["reason"]) == (403, "origin_needed")
    assert through_proxy(gate, "alice", path="/v1/status", **{"Sec-Fetch-Site": "cross-site"}).status == 403
    assert through_proxy(gate, "alice", path="/v1/status", Host="evil.example").status == 403


def test_e4_the_secret_and_the_header_are_in_no_file_log_or_answer(gate: Served):
    shown = [through_proxy(gate, "alice", path=path).body for path in ("/v1/config", "/v1/history", "/metrics")]
    stored = [path.read_bytes() for path in gate.home.rglob("*") if path.is_file()]
    assert not [text for text in [*shown, *stored] if SECRET.encode() in text]


# The parts.


def made(**more: Any) -> ForwardedUsers:
    said = {"header": "x-user", "peers": ("10.0.0.0/30", "::1/128"), "secret_file": "", **more}
    return ForwardedUsers(TrustedHeader(**said), SECRET.encode())


class Asked:
    """A request, as far as it matters here."""

    method = "GET"

    def __init__(self, address: str, user: bytes = b"ann") -> None:
        self.client = (address, 1)
        self.headers = [(b"x-fleetgate-proxy-secret", SECRET.encode()), (b"x-user", user)]


@pytest.mark.parametrize("address", ["10.0.0.1", "::ffff:10.0.0.2", "::1"])
def test_e4_the_proxy_is_known_by_its_address_too(address: str):
    found = made(role="viewer").find(Asked(address))  # type: ignore[arg-type]
    assert found is not None
    assert (found.role, found.author) == ("viewer", "user ann")


@pytest.mark.parametrize("address", ["10.0.0.9", "127.0.0.1", "::2", "fe80::1%eth0"])
def test_e4_the_secret_from_another_address_is_refused(address: str):
    with pytest.raises(RequestRefused, match="not the reverse proxy"):
        made(role="viewer").find(Asked(address))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("content", "mode", "sentence"),
    [(SECRET, 0o644, "other users can read"), ("short", 0o600, "too short"), (None, 0, "cannot be read")],
)
def test_e4_a_secret_that_others_could_know_stops_the_service(
    tmp_path: Path, content: str | None, mode: int, sentence: str
):
    path = tmp_path / "secret"
    if content is not None:
        path.write_text(content)
        path.chmod(mode)
    with pytest.raises(ConfigError, match=sentence):
        forwarded_users(TrustedHeader("x-user", ("::1",), str(path)))
    assert forwarded_users(None) is None
