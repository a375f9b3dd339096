"""A login whose token was refreshed is the same account: by the file that it is in, or by what the provider says."""

from __future__ import annotations

import json
import socket
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.proxy.proxied import CHAT, MESSAGES, Proxied
from tests.proxy.upstream import RawUpstream, read_request

PATH = "/anthropic/v1/messages"


class Provider(RawUpstream):
    """Knows tokens, and says whose they are in the headers of its answers."""

    def __init__(self, header: str = "anthropic-organization-id") -> None:
        super().__init__(lambda connection: None)
        self.header = header
        self.owners: dict[str, str] = {}

    def serve(self, connection: socket.socket) -> None:
        with connection:
            while True:
                head = read_request(connection).partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")[1:]
                said = {name.lower(): value for name, _, value in (line.partition(": ") for line in head)}
                token = said.get("authorization", "").removeprefix("Bearer ") or said.get("x-api-key", "")
                if token in self.owners:
                    owner = f"{self.header}: {self.owners[token]}\r\n" if self.owners[token] else ""
                    connection.sendall(f"HTTP/1.1 200 OK\r\n{owner}Content-Length: 2\r\n\r\n{{}}".encode())
                else:
                    connection.sendall(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\n{}")


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as provider:
        yield provider


def account(gate: Proxied, token: str, path: str = PATH, body: object = MESSAGES, **headers: str) -> str:
    """The account under which a call with a login's token is counted."""
    answer = gate.request("POST", path, body, token="", Authorization=f"Bearer {token}", **headers)
    assert answer.status == 200, answer
    return answer.headers["x-fleetgate-model"].partition("/")[0]


def accounts_used(gate: Proxied) -> set[str]:
    return {event["model"].partition("/")[0] for event in gate.events("granted") if event["model"]}


def test_a_refreshed_token_is_the_same_account_by_the_organization_that_the_provider_names(
    proxied: Callable[..., Proxied], provider: Provider
) -> None:
    provider.owners = {"login-1": "org-a", "login-2": "org-a", "login-3": "org-a", "login-of-another": "org-b"}
    gate = proxied(provider.url, requests="anthropic = 2")
    first = account(gate, "login-1")
    assert first.startswith("anthropic@key-")
    assert account(gate, "login-2") == first, "from its first call on"
    assert account(gate, "login-2") == first
    assert account(gate, "login-of-another") != first
    gate.stop()
    gate.start()
    assert account(gate, "login-3") == first, "learned once, and stored"
    assert len(accounts_used(gate)) == 2, "no account was made for a token alone"
    stored = b"".join(file.read_bytes() for file in gate.home.rglob("*") if file.is_file())
    assert b"org-a" not in stored
    assert b"login-2" not in stored


def test_api_keys_of_one_organization_are_accounts_of_their_own(
    proxied: Callable[..., Proxied], provider: Provider
) -> None:
    provider.owners = {"sk-ant-api-1": "org-a", "sk-ant-api-2": "org-a", "login-1": "org-a"}
    gate = proxied(provider.url)
    found = {account(gate, key) for key in ("sk-ant-api-1", "sk-ant-api-2", "login-1")}
    assert len(found) == 3


def test_a_token_of_the_login_file_is_the_default_account_now_and_after_a_refresh(
    proxied: Callable[..., Proxied], provider: Provider, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    login = home / ".claude" / ".credentials.json"
    login.parent.mkdir(parents=True)

    def log_in(token: str) -> None:
        login.write_text(json.dumps({"claudeAiOauth": {"accessToken": token, "refreshToken": "r" * 30}}))

    log_in("sk-ant-oat01-the-first-one")
    for number in ("first", "second", "third", "fourth"):
        provider.owners[f"sk-ant-oat01-the-{number}-one"] = "org-a"
    gate = proxied(provider.url, HOME=str(home))
    assert account(gate, "sk-ant-oat01-the-first-one") == "anthropic"
    log_in("sk-ant-oat01-the-second-one")
    assert account(gate, "sk-ant-oat01-the-second-one") == "anthropic"
    assert account(gate, "sk-ant-oat01-the-first-one") == "anthropic", "an agent may still use the one before"
    assert account(gate, "sk-ant-oat01-the-third-one") == "anthropic", "by the organization, where no file tells"
    login.unlink()
    assert account(gate, "sk-ant-oat01-the-fourth-one") == "anthropic"
    assert accounts_used(gate) == {"anthropic"}


def test_the_calls_of_a_run_are_its_accounts(proxied: Callable[..., Proxied], provider: Provider) -> None:
    provider.owners = {"a-login-that-no-file-has": "", "another-login": ""}
    gate = proxied(provider.url)
    for model, expected in (("anthropic/claude-x", "anthropic"), ("anthropic@work/claude-x", "anthropic@work")):
        lease = gate.ok("POST", "/v1/leases", {"models": [model], "wait_s": 0})["lease"]
        token = "a-login-that-no-file-has" if expected == "anthropic" else "another-login"
        assert account(gate, token, f"/l/{lease}{PATH}") == expected
        assert account(gate, token) == expected, "and so is the key, from then on"
        gate.ok("POST", f"/v1/leases/{lease}/release", {})


def test_m1_a_token_of_codex_tells_its_account_and_a_header_of_the_client_does_not(
    proxied: Callable[..., Proxied], provider: Provider
) -> None:
    def token(account: str, number: int) -> str:
        claims = {"https://api.openai.com/auth": {"chatgpt_account_id": account}, "n": number}
        return "eyJhbGciOi." + urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=") + ".sig"

    first_tokens = [token("acc-1", number) for number in range(3)]
    provider.owners = dict.fromkeys((*first_tokens, "login-1", "login-2"), "")
    gate = proxied(provider.url)
    path = "/openai/v1/chat/completions"
    first = account(gate, first_tokens[0], path, CHAT)
    assert account(gate, first_tokens[1], path, CHAT) == first
    junk = {"Authorization": f"Bearer {token('acc-1', 99)}"}
    assert gate.request("POST", path, CHAT, token="", **junk).status == 401, "a token that is not accepted"
    assert not gate.get("/v1/backoffs").json["backoffs"], "does no harm"
    found = {account(gate, each, path, CHAT, ChatGPT_Account_ID="acc-1") for each in ("login-1", "login-2")}
    assert len(found | {first}) == 3, "what a request says of itself shows nothing"
    gate.kill()
    gate.start()
    assert account(gate, first_tokens[2], path, CHAT) == first


def test_a_token_that_has_ended_is_not_held_against_the_account(
    proxied: Callable[..., Proxied], provider: Provider
) -> None:
    provider.owners = {"login-1": "org-a"}
    gate = proxied(provider.url)
    first = account(gate, "login-1")
    provider.owners = {"login-2": "org-a"}
    answer = gate.request("POST", PATH, MESSAGES, token="", Authorization="Bearer login-1")
    assert answer.status == 401
    assert account(gate, "login-2") == first
    assert not gate.get("/v1/backoffs").json["backoffs"]


def test_m3_a_call_of_a_run_on_an_account_with_a_key_goes_upstream_with_that_key(
    proxied: Callable[..., Proxied],
) -> None:
    more = '[providers."anthropic@work"]\nkey_env = "WORK_KEY"'
    gate = proxied(more=more, WORK_KEY="sk-ant-api03-of-work", ANTHROPIC_API_KEY="sk-ant-api03-of-default")
    lease = gate.ok("POST", "/v1/leases", {"models": ["anthropic@work/claude-x"], "wait_s": 0})["lease"]
    answer = gate.chat(f"/l/{lease}{PATH}", MESSAGES, x_api_key="sk-ant-api03-of-default")
    assert answer.status == 200
    assert answer.headers["x-fleetgate-model"] == "anthropic@work/claude-x"
    assert gate.provider.seen[-1].headers["x-api-key"] == "sk-ant-api03-of-work"
    answer = gate.chat(PATH, MESSAGES, x_api_key="sk-ant-api03-of-default")
    assert gate.provider.seen[-1].headers["x-api-key"] == "sk-ant-api03-of-default", "without a run, as it came"
    gate.ok("POST", f"/v1/leases/{lease}/release", {})
