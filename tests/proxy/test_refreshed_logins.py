"""A refreshed token changes nothing (rule M1): caps, limits, backoffs and windows stay, also without a login file.

The provider here counts the calls of each organization in flight, and its tokens are valid once they are known.
"""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import sleep, time

import pytest

from tests.api.served import Answer
from tests.postgres_server import Server
from tests.postgres_stores import fresh_store
from tests.proxy.proxied import MESSAGES, Proxied
from tests.proxy.upstream import RawUpstream, read_request

PATH = "/anthropic/v1/messages"


class CountingProvider(RawUpstream):
    """Names the organization of each token; counts calls in flight, and what it was asked for."""

    def __init__(self) -> None:
        super().__init__(lambda connection: None)
        self.owners: dict[str, str] = {}
        self.questions = self.calls = 0
        self.most: Counter[str] = Counter()
        self.refused: set[str] = set()  # organizations that have used up their window
        self.names_owner = self.answers_questions = True
        self.takes_s = 0.0
        self.busy = 0  # how many calls are refused because too many are in flight
        self._now: Counter[str] = Counter()
        self._lock = threading.Lock()

    def serve(self, connection: socket.socket) -> None:
        while True:
            head = read_request(connection).partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
            said = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
            connection.sendall(self.answer(head[0], said.get("authorization", "").removeprefix("Bearer ")))

    def answer(self, line: str, token: str) -> bytes:
        owner = self.owners.get(token)
        if owner is None:
            return b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\n{}"
        named = f"anthropic-organization-id: {owner}\r\n" if self.names_owner else ""
        if line.startswith("GET"):
            self.questions += 1
            if not self.answers_questions:
                return b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}"
            return f"HTTP/1.1 200 OK\r\n{named}Content-Length: 2\r\n\r\n{{}}".encode()
        with self._lock:
            self.calls += 1
            self._now[owner] += 1
            self.most[owner] = max(self.most[owner], self._now[owner])
        sleep(self.takes_s)
        with self._lock:
            self._now[owner] -= 1
        reset = int(time()) + 7200
        if self.busy:
            self.busy -= 1
            body = json.dumps(
                {"type": "error", "error": {"type": "rate_limit_error", "message": "concurrent requests"}}
            )
            head = f"HTTP/1.1 429 Too Many Requests\r\n{named}Retry-After: 0\r\nContent-Type: application/json\r\n"
            return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()
        if owner in self.refused:
            body = json.dumps({"type": "error", "error": {"type": "rate_limit_error", "message": "used up"}})
            unified = f"anthropic-ratelimit-unified-status: rejected\r\nanthropic-ratelimit-unified-reset: {reset}\r\n"
            head = f"HTTP/1.1 429 Too Many Requests\r\n{named}{unified}Retry-After: 7200\r\n"
            return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        windows = (
            f"anthropic-ratelimit-unified-5h-utilization: 0.42\r\nanthropic-ratelimit-unified-5h-reset: {reset}\r\n"
        )
        return f"HTTP/1.1 200 OK\r\n{named}{windows}Content-Length: 2\r\n\r\n{{}}".encode()


@pytest.fixture
def provider() -> Iterator[CountingProvider]:
    with CountingProvider() as provider:
        yield provider


def call(gate: Proxied, token: str, **headers: str) -> Answer:
    return gate.request("POST", PATH, MESSAGES, token="", Authorization=f"Bearer {token}", **headers)


def account(gate: Proxied, token: str) -> str:
    answer = call(gate, token)
    assert answer.status == 200, answer
    return answer.headers["x-fleetgate-model"].partition("/")[0]


def crowd(gate: Proxied, tokens: list[str], clients: int = 12) -> None:
    """Many clients at once, whose tokens are refreshed all the time."""
    with ThreadPoolExecutor(clients) as threads:
        answers = list(threads.map(lambda token: call(gate, token), tokens))
    assert {answer.status for answer in answers} == {200}


@pytest.mark.parametrize("organizations", [1, 3])
def test_m1_no_cap_is_exceeded_while_tokens_are_refreshed(
    proxied: Callable[..., Proxied], provider: CountingProvider, organizations: int
) -> None:
    """From the very first call on, without a file that knows the logins, as with the keychain of macOS."""
    provider.takes_s = 0.05
    gate = proxied(provider.url, requests="anthropic = { cap = 2, cooldown = 0 }")
    provider.owners = {f"login-{n}": f"org-{n % organizations}" for n in range(60)}
    crowd(gate, [f"login-{n // 2}" for n in range(120)])
    assert provider.most == {f"org-{n}": 2 for n in range(organizations)}
    assert provider.questions <= 60
    pools = [pool["pool"] for pool in gate.get("/v1/status").json["pools"] if pool["kind"] == "requests"]
    assert len({pool for pool in pools if "@" in pool}) == organizations


@pytest.mark.parametrize("organizations", [1, 2])
def test_m1_where_the_provider_is_not_asked_no_cap_is_exceeded_either(
    proxied: Callable[..., Proxied], provider: CountingProvider, organizations: int
) -> None:
    """A call with a new token holds a slot of each account that it may be of, until its own answer names one."""
    gate = proxied(provider.url, requests="anthropic = { cap = 2, cooldown = 0 }", fake='identity_path = ""')
    provider.owners = {f"login-{n}": f"org-{n % organizations}" for n in range(40)}
    provider.takes_s = 0.05
    crowd(gate, [f"login-{n // 2}" for n in range(80)])
    assert set(provider.most) == {f"org-{n}" for n in range(organizations)}
    assert max(provider.most.values()) <= 2
    assert provider.questions == 0
    assert len({account(gate, f"login-{n}") for n in range(40)}) == organizations


@pytest.mark.parametrize("fake", ["", 'identity_path = ""'])
def test_m1_no_cap_is_exceeded_by_several_processes_either(
    provider: CountingProvider, fake: str, tmp_path: Path
) -> None:
    with Proxied(tmp_path, provider.url, requests="anthropic = { cap = 2, cooldown = 0 }", fake=fake) as gate:
        gate.stop()
        gate.start("--processes", "2")
        provider.owners = {f"login-{n}": "org-a" for n in range(40)}
        account(gate, "login-0")
        provider.takes_s = 0.05
        crowd(gate, [f"login-{n // 2}" for n in range(80)])
        assert provider.most["org-a"] <= 2
        assert len({account(gate, f"login-{n}") for n in range(40)}) == 1


def test_m1_a_call_that_gets_no_slot_of_the_account_it_may_be_of_is_refused_in_time(
    proxied: Callable[..., Proxied], provider: CountingProvider
) -> None:
    requests, fake = "anthropic = { cap = 1, cooldown = 0 }", 'identity_path = ""\nhold = "500ms"'
    gate = proxied(provider.url, requests=requests, fake=fake)
    provider.owners = {"login-1": "org-a", "login-2": "org-a"}
    account(gate, "login-1")
    provider.takes_s = 3.0
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(call, gate, "login-1")
        gate.wait_until(lambda: provider.most and gate.leases(), "the slot is in use")
        second = call(gate, "login-2")
        assert second.status == 429
        assert "1 of 1" in second.body.decode()
        assert first.result().status == 200
    assert provider.most == {"org-a": 1}


def test_m1_the_default_account_is_guarded_also_where_it_is_one_of_a_set(
    proxied: Callable[..., Proxied], provider: CountingProvider, tmp_path: Path
) -> None:
    login = tmp_path / ".claude" / ".credentials.json"
    login.parent.mkdir()
    login.write_text(json.dumps({"claudeAiOauth": {"accessToken": "sk-ant-oat01-first"}}))
    more = '[accounts]\nanthropic = { use = ["default", "work"] }\n[providers."anthropic@work"]\nkey_env = "WORK_KEY"'
    requests = "anthropic = { cap = 1, cooldown = 0 }"
    gate = proxied(provider.url, requests=requests, fake='identity_path = ""', more=more, WORK_KEY="sk-ant-api03-work")
    provider.owners = {"sk-ant-oat01-first": "org-a", "sk-ant-oat01-second": "org-a"}
    assert account(gate, "sk-ant-oat01-first") == "anthropic"
    login.unlink()
    provider.takes_s = 0.5
    with ThreadPoolExecutor(2) as threads:
        tokens = ("sk-ant-oat01-first", "sk-ant-oat01-second")
        answers = list(threads.map(lambda token: account(gate, token), tokens))
    assert answers == ["anthropic", "anthropic"]
    assert provider.most == {"org-a": 1}


def test_m1_a_new_token_of_another_account_is_counted_and_reported_as_of_its_own(
    proxied: Callable[..., Proxied], provider: CountingProvider
) -> None:
    gate = proxied(provider.url, fake='identity_path = ""\nhold = "1s"')
    provider.owners = {"login-1": "org-a", "login-2": "org-b", "login-3": "org-b", "login-4": "org-c"}
    first = account(gate, "login-1")
    assert first != account(gate, "login-2") == account(gate, "login-3")
    provider.refused = {"org-c"}
    assert call(gate, "login-4").status == 429
    (backoff,) = gate.get("/v1/backoffs").json["backoffs"]
    assert backoff["key"].partition("/")[0] not in (first, account(gate, "login-2"))
    assert account(gate, "login-1") == first


def test_m1_a_provider_that_names_nobody_is_asked_once_and_each_token_is_an_account(
    proxied: Callable[..., Proxied], provider: CountingProvider
) -> None:
    """As behind a gateway with bearer keys of its own: the calls are in the queue from the first one on."""
    provider.names_owner = provider.answers_questions = False
    provider.takes_s = 0.2
    gate = proxied(provider.url, requests="anthropic = { cap = 2, cooldown = 0 }")
    provider.owners = {f"bearer-{n}": f"user-{n}" for n in range(4)}
    crowd(gate, [f"bearer-{n % 4}" for n in range(60)])
    assert provider.most == {f"user-{n}": 2 for n in range(4)}
    assert 1 <= provider.questions <= 4
    assert len({account(gate, f"bearer-{n}") for n in range(4)}) == 4
    asked = provider.questions
    provider.owners["bearer-new"] = "user-new"
    account(gate, "bearer-new")
    assert provider.questions == asked


def test_m1_a_backoff_and_a_window_outlive_the_token_and_the_service(
    proxied: Callable[..., Proxied], provider: CountingProvider
) -> None:
    gate = proxied(provider.url, requests="anthropic = { cap = 4, on_429 = 'adapt' }", fake='hold = "1s"')
    provider.owners = {"login-1": "org-a", "login-2": "org-a", "login-3": "org-a", "login-of-b": "org-b"}
    mine = account(gate, "login-1")
    provider.refused = {"org-a"}
    assert call(gate, "login-1").status == 429
    limits = {pool["pool"]: (pool["limit"], pool["cap"]) for pool in gate.get("/v1/status").json["pools"]}
    asked = provider.calls

    def stays(token: str) -> None:
        assert call(gate, token).status == 429
        assert provider.calls == asked, "the provider is not bothered"
        (backoff,) = gate.get("/v1/backoffs").json["backoffs"]
        assert backoff["key"].partition("/")[0] == mine
        assert {each["account"] for each in gate.get("/v1/plans").json["plans"]} == {mine}
        assert {p["pool"]: (p["limit"], p["cap"]) for p in gate.get("/v1/status").json["pools"]} == limits

    stays("login-2")
    gate.stop()
    gate.start()
    stays("login-3")
    assert account(gate, "login-of-b") != mine, "another account goes on"


def test_m1_a_limit_that_was_learned_outlives_the_token_and_a_killed_service(
    proxied: Callable[..., Proxied], provider: CountingProvider
) -> None:
    gate = proxied(provider.url, requests='anthropic = { cap = 4, on_429 = "step" }')
    provider.owners = {f"login-{n}": "org-a" for n in range(4)}
    mine = account(gate, "login-0")
    provider.busy = 1
    assert account(gate, "login-1") == mine, "the refusal of a refreshed token is tried again, and seen by no client"

    def limits() -> dict[str, int]:
        pools = gate.get("/v1/status").json["pools"]
        return {pool["pool"]: pool["limit"] for pool in pools if "@" in pool["pool"]}

    assert limits() == {mine: 3}
    assert account(gate, "login-2") == mine
    gate.kill()
    gate.start()
    assert account(gate, "login-3") == mine
    assert limits() == {mine: 3}


def test_m1_what_an_answer_has_shown_outlives_a_kill_at_that_moment(
    proxied: Callable[..., Proxied], provider: CountingProvider, tmp_path: Path
) -> None:
    """The login is in a file, so its account has a name. The file is gone when the token is refreshed."""
    login = tmp_path / "login.json"
    more = f'[providers."anthropic@work"]\ncredential_file = "{login}"'
    gate = proxied(provider.url, more=more)
    for turn in range(4):
        organization, token = f"org-{turn}", f"sk-ant-oat01-token-of-{turn}"
        provider.owners |= {token: organization, f"{token}-refreshed": organization}
        login.write_text(json.dumps({"claudeAiOauth": {"accessToken": token}}))
        assert account(gate, token) == "anthropic@work"
        gate.kill()
        login.unlink()
        gate.start()
        assert account(gate, f"{token}-refreshed") == "anthropic@work"


def test_m1_a_name_of_the_config_replaces_that_of_an_identity_for_good(
    proxied: Callable[..., Proxied], provider: CountingProvider, tmp_path: Path
) -> None:
    login = tmp_path / "login.json"
    gate = proxied(provider.url, more=f'[providers."anthropic@work"]\ncredential_file = "{login}"')
    provider.owners = {f"sk-ant-oat01-number-{n}": "org-a" for n in range(4)}
    assert account(gate, "sk-ant-oat01-number-0").startswith("anthropic@key-")
    login.write_text(json.dumps({"claudeAiOauth": {"accessToken": "sk-ant-oat01-number-1"}}))
    assert account(gate, "sk-ant-oat01-number-1") == "anthropic@work"
    login.unlink()
    assert account(gate, "sk-ant-oat01-number-2") == "anthropic@work"
    gate.kill()
    gate.start()
    assert account(gate, "sk-ant-oat01-number-3") == "anthropic@work"


def test_m1_all_processes_of_a_service_agree(
    proxied: Callable[..., Proxied], provider: CountingProvider, tmp_path: Path
) -> None:
    login = tmp_path / "login.json"
    gate = proxied(provider.url, more=f'[providers."anthropic@work"]\ncredential_file = "{login}"')
    gate.stop()
    gate.start("--processes", "2")
    provider.owners = {f"sk-ant-oat01-number-{n}": f"org-{n % 2}" for n in range(40)}
    login.write_text(json.dumps({"claudeAiOauth": {"accessToken": "sk-ant-oat01-number-0"}}))
    assert account(gate, "sk-ant-oat01-number-0") == "anthropic@work"
    login.unlink()
    found = {(n % 2, account(gate, f"sk-ant-oat01-number-{n}")) for n in range(1, 40)}
    assert len(found) == 2
    assert (0, "anthropic@work") in found


def test_m1_a_stranger_is_never_counted_as_anothers_account_by_what_it_says(
    proxied: Callable[..., Proxied], provider: CountingProvider
) -> None:
    gate = proxied(provider.url)
    provider.owners = {"login-1": "org-a", "of-a-stranger": "org-b"}
    mine = account(gate, "login-1")
    claims = {"anthropic_organization_id": "org-a", "ChatGPT_Account_ID": "org-a", "OpenAI_Organization": "org-a"}
    answer = call(gate, "of-a-stranger", **claims)
    assert answer.headers["x-fleetgate-model"].partition("/")[0] != mine
    provider.names_owner = False
    provider.owners["another"] = "org-b"
    answer = call(gate, "another", **claims)
    assert answer.headers["x-fleetgate-model"].partition("/")[0] != mine
    assert call(gate, "junk", **claims).status == 401
    assert not gate.get("/v1/backoffs").json["backoffs"]


def test_m1_an_echo_of_what_a_client_has_sent_is_no_word_of_the_provider(proxied: Callable[..., Proxied]) -> None:
    with EchoingProvider() as provider:
        gate = proxied(provider.url)
        found = set()
        for token in ("login-1", "login-2"):
            answer = call(gate, token, anthropic_organization_id="org-a")
            assert answer.headers["x-fleetgate-model"]
            found.add(answer.headers["x-fleetgate-model"])
        assert len(found) == 2


class EchoingProvider(RawUpstream):
    """Sends back what it got, and accepts every token."""

    def __init__(self) -> None:
        super().__init__(lambda connection: None)

    def serve(self, connection: socket.socket) -> None:
        while True:
            head = read_request(connection).partition(b"\r\n\r\n")[0].lower()
            echo = next(
                (line for line in head.split(b"\r\n") if line.startswith(b"anthropic-organization-id")), b"x: y"
            )
            connection.sendall(b"HTTP/1.1 200 OK\r\n" + echo + b"\r\nContent-Length: 2\r\n\r\n{}")


def test_m1_a_caller_that_is_not_trusted_keeps_its_account_and_gets_none_that_the_config_names(
    provider: CountingProvider, tmp_path: Path
) -> None:
    login = tmp_path / "login.json"
    login.write_text(json.dumps({"claudeAiOauth": {"accessToken": "sk-ant-oat01-of-the-owner"}}))
    more = f'[providers."anthropic@work"]\ncredential_file = "{login}"'
    with Proxied(tmp_path, provider.url, more=more) as gate:
        provider.owners = {"sk-ant-oat01-of-the-owner": "org-a", "seat-1": "org-a", "seat-2": "org-a", "b": "org-b"}
        assert account(gate, "sk-ant-oat01-of-the-owner") == "anthropic@work"
        gate.stop()
        gate.start("--host", "0.0.0.0", "--new-token")
        for token in ("seat-1", "seat-2", "b", "junk"):
            call(gate, token)
        found = gate.request("GET", "/v1/history?limit=10000&types=granted").json["events"]
        events = [event for event in found if event["model"]]
        accounts = [event["model"].partition("/")[0] for event in events]
        assert accounts[0] == "anthropic@work"
        assert accounts[1] == accounts[2] != accounts[3]
        assert len(accounts) == 4, "junk is of no account"
        assert "anthropic@work" not in accounts[1:]


@pytest.mark.postgres
def test_m1_services_on_one_database_know_the_same_identities(
    postgres: Server, provider: CountingProvider, tmp_path: Path
) -> None:
    """One is killed right after it has learned whose login it is; another machine's service gets the new token."""
    store = fresh_store(postgres)
    login = tmp_path / "login.json"
    login.write_text(json.dumps({"claudeAiOauth": {"accessToken": "sk-ant-oat01-first"}}))
    provider.owners = {"sk-ant-oat01-first": "org-a", "sk-ant-oat01-second": "org-a", "sk-ant-oat01-other": "org-b"}
    homes = [tmp_path / name for name in ("one", "other")]
    for home in homes:
        home.mkdir()
    more = f'[providers."anthropic@work"]\ncredential_file = "{login}"'
    with (
        Proxied(homes[0], provider.url, more=more, FLEETGATE_STORE=store) as one,
        Proxied(homes[1], provider.url, FLEETGATE_STORE=store) as other,
    ):
        mine = account(other, "sk-ant-oat01-other")
        assert account(one, "sk-ant-oat01-first") == "anthropic@work"
        one.kill()
        assert account(other, "sk-ant-oat01-second") == "anthropic@work"
        one.start()
        assert account(one, "sk-ant-oat01-other") == mine
