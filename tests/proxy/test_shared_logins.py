"""Logins of accounts in the proxy (rule Z6): a real service, login files that change, and a provider that knows tokens.

The files are those of Claude Code. The calls come from this process, which has the service's own user.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import time
from typing import Any

import pytest

from tests.api.served import Answer
from tests.proxy.proxied import MESSAGES, Proxied
from tests.proxy.test_refreshed_logins import CountingProvider
from tests.proxy.upstream import read_request
from tests.security.test_callers import STRANGER, Caller, as_root

SETS = '[accounts]\nanthropic = { use = ["work", "spare"], then = ["api"], patience = "0s" }\n'
API = '[providers."anthropic@api"]\nkey_env = "API_KEY"\n'
KEY = "sk-ant-api03-the-key-of-api"
PATH = "/anthropic/v1/messages"


class LoginProvider(CountingProvider):
    """Knows whose a token is, and remembers what it was sent."""

    def __init__(self) -> None:
        super().__init__()
        self.names_owner = True
        self.sent: list[str] = []
        self.on_call: Callable[[str], None] = lambda _: None
        self._sent_lock = threading.Lock()

    def serve(self, connection: Any) -> None:
        while True:
            head = read_request(connection).partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
            said = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
            token = said.get("authorization", "").removeprefix("Bearer ") or said.get("x-api-key", "")
            if head[0].startswith("POST"):
                with self._sent_lock:
                    self.sent.append(token)
                self.on_call(token)
            connection.sendall(self.answer(head[0], token))


def token(name: str, number: int = 1) -> str:
    return f"sk-ant-oat01-{name}-{number:04}"


class Logins:
    """A service with the logins of `work` and `spare`, and the key of `api`."""

    def __init__(
        self, home: Path, provider: LoginProvider, make: Callable[..., Proxied], share: str = "", more: str = ""
    ) -> None:
        self.home = home
        self.provider = provider
        provider.owners = {KEY: "org-api"}
        for name in ("work", "spare"):
            self.log_in(name)
        tables = "".join(
            f'[providers."anthropic@{name}"]\nenv = {{ CLAUDE_CONFIG_DIR = "{self.folder(name)}" }}\n{share}\n'
            for name in ("work", "spare")
        )
        caps = "\n".join(f'"anthropic@{name}" = {{ cap = 2, cooldown = 0 }}' for name in ("work", "spare", "api"))
        self.gate = make(provider.url, requests=caps, more=SETS + tables + API + more, API_KEY=KEY)

    def folder(self, name: str) -> Path:
        return self.home / f".claude-{name}"

    def log_in(self, name: str, number: int = 1, lasts_s: float = 3600.0) -> None:
        """As the agent does it: a new token, whole, in the place of the old one. The provider knows both."""
        self.folder(name).mkdir(exist_ok=True)
        self.provider.owners[token(name, number)] = f"org-{name}"
        login = {"accessToken": token(name, number), "refreshToken": f"sk-ant-ort01-{name}-secret"}
        made = self.folder(name) / ".new"
        made.write_text(json.dumps({"claudeAiOauth": {**login, "expiresAt": int((time() + lasts_s) * 1000)}}))
        made.replace(self.folder(name) / ".credentials.json")

    def call(self, talk: str = "hi", login: str = "", path: str = PATH, **headers: str) -> Answer:
        if login:
            headers["Authorization"] = f"Bearer {login}"
        body = {**MESSAGES, "messages": [{"role": "user", "content": talk}]}
        return self.gate.request("POST", path, body, token="", **headers)

    def account(self, talk: str = "hi", login: str = "", **headers: str) -> str:
        answer = self.call(talk, login, **headers)
        assert answer.status == 200, answer
        return answer.headers["x-fleetgate-model"].partition("/")[0].removeprefix("anthropic@")

    def check_no_secret_is_kept(self) -> None:
        said = b"".join(path.read_bytes() for path in self.gate.home.rglob("*") if path.is_file())
        said += self.gate.cli("history", "--json").stdout.encode() + self.gate.cli("accounts", "--json").stdout.encode()
        assert b"sk-ant-o" not in said


@pytest.fixture
def provider() -> Iterator[LoginProvider]:
    with LoginProvider() as provider:
        yield provider


@pytest.fixture
def logins(tmp_path: Path, provider: LoginProvider, proxied: Callable[..., Proxied]) -> Logins:
    return Logins(tmp_path, provider, proxied)


def test_z6_calls_of_an_agent_with_one_login_use_all_logins_of_the_set_and_conversations_stay(logins: Logins) -> None:
    homes = {talk: logins.account(talk, token("work")) for talk in "abcd"}
    assert sorted(homes.values()) == ["spare", "spare", "work", "work"]
    assert {talk: logins.account(talk, token("work")) for talk in homes} == homes
    assert {each.split("-")[3] for each in logins.provider.sent} == {"work", "spare"}
    logins.check_no_secret_is_kept()


def test_z6_a_login_that_is_used_up_is_left_and_the_key_is_used_last(logins: Logins) -> None:
    logins.provider.refused = {"org-work"}
    assert [logins.account(talk, token("work")) for talk in "abc"] == ["spare"] * 3
    logins.provider.refused = {"org-work", "org-spare"}
    assert [logins.account(talk, token("work")) for talk in "abc"] == ["api"] * 3
    assert logins.provider.sent[-1] == KEY


def test_z6_a_login_that_its_agent_refreshes_is_read_again_for_every_call(logins: Logins) -> None:
    """The old token is worth nothing as soon as there is a new one; nobody sees a refusal."""
    logins.provider.refused = {"org-work"}
    assert logins.account("a", token("work")) == "spare"
    for number in range(2, 6):
        del logins.provider.owners[token("spare", number - 1)]
        logins.log_in("spare", number)
        assert logins.account("a", token("work")) == "spare"
        assert logins.provider.sent[-1] == token("spare", number)
    assert [
        each["account"] for each in logins.gate.get("/v1/backoffs").json["backoffs"] if each["reason"] == "auth"
    ] == []
    pools = {pool["pool"] for pool in logins.gate.get("/v1/status").json["pools"]}
    assert {"anthropic@spare", "anthropic@work"} <= pools
    assert not {pool for pool in pools if "key-" in pool}, "a refreshed token is no new account"


def test_z6_a_token_that_is_refreshed_while_the_call_is_on_its_way_is_tried_again_without_a_backoff(
    logins: Logins,
) -> None:
    logins.provider.refused = {"org-work"}
    assert logins.account("a", token("work")) == "spare"

    def refresh(sent: str) -> None:
        if sent == token("spare"):
            logins.provider.owners.pop(sent, None)
            logins.log_in("spare", 2)

    logins.provider.on_call = refresh
    assert logins.account("a", token("work")) == "spare"
    assert logins.provider.sent[-2:] == [token("spare"), token("spare", 2)]
    assert "auth" not in {each["reason"] for each in logins.gate.get("/v1/backoffs").json["backoffs"]}


def test_z6_a_refused_login_is_not_reported_to_an_agent_that_did_not_bring_it(logins: Logins) -> None:
    """Otherwise the agent would log in again. The account is backed off, and returns with its next login."""
    logins.provider.refused = {"org-work"}
    assert logins.account("a", token("work")) == "spare"
    del logins.provider.owners[token("spare")]
    assert logins.account("a", token("work")) == "api"
    (held,) = [each for each in logins.gate.get("/v1/backoffs").json["backoffs"] if each["reason"] == "auth"]
    assert held["key"] == "anthropic@spare"
    logins.log_in("spare", 2)
    logins.gate.wait_until(lambda: logins.account("b", token("work")) == "spare", "the new login is used")


def test_z6_a_refusal_of_the_login_that_an_agent_brought_is_its_own_business(logins: Logins) -> None:
    del logins.provider.owners[token("work")]
    answers = [logins.call(talk, token("work")) for talk in "ab"]
    assert sorted(answer.status for answer in answers) == [200, 401]


def test_z6_an_expired_login_is_passed_over_until_its_agent_has_refreshed_it(logins: Logins) -> None:
    logins.log_in("spare", 1, lasts_s=-60.0)
    assert {logins.account(talk, token("work")) for talk in "abcd"} == {"work"}
    assert token("spare") not in logins.provider.sent
    logins.log_in("spare", 2)
    assert {logins.account(talk, token("work")) for talk in "efgh"} == {"spare"}, "it has the fewest conversations"


def test_z6_caps_of_accounts_hold_while_logins_are_shared(logins: Logins) -> None:
    logins.provider.takes_s = 0.05
    with ThreadPoolExecutor(12) as threads:
        found = list(threads.map(lambda number: logins.account(f"talk {number % 12}", token("work")), range(60)))
    assert set(found) == {"work", "spare", "api"}
    assert logins.provider.most == {"org-work": 2, "org-spare": 2, "org-api": 2}


def test_z6_a_call_without_a_login_uses_keys_alone(logins: Logins) -> None:
    assert {logins.account(talk) for talk in "abcd"} == {"api"}
    assert {logins.account(talk, x_api_key="fleetgate") for talk in "abcd"} == {"api"}
    own = (logins.gate.home / "token").read_text().strip()
    assert {logins.account(talk, x_api_key=own) for talk in "abcd"} == {"api"}
    assert set(logins.provider.sent) == {KEY}


def test_z6_a_call_with_an_access_key_never_uses_a_login_even_if_it_shows_one(logins: Logins) -> None:
    made = logins.gate.cli("key", "create", "ci", "--role", "admin", "--json")
    key = json.loads(made.stdout)["key"]
    assert {logins.account(talk, x_api_key=key) for talk in "abcd"} == {"api"}
    shown = {logins.account(talk, x_api_key=token("work"), Authorization=f"Bearer {key}") for talk in "efgh"}
    assert shown == {"work"}, "the login that it shows, and no other"
    made = logins.gate.cli("key", "create", "robot", "--project", "web", "--json")
    body = {"models": ["anthropic@spare/claude-x"], "kind": "agents", "renew_within_s": 600}
    lease = logins.gate.request("POST", "/v1/leases", body, token=json.loads(made.stdout)["key"]).json["lease"]
    assert logins.account("i", token("work"), x_fleetgate_lease=lease) == "work", "neither does a run of a key"
    logins.gate.ok("POST", f"/v1/leases/{lease}/release", {})
    assert token("spare") not in logins.provider.sent


def test_z6_share_login_says_which_calls_a_login_is_for(
    tmp_path: Path, provider: LoginProvider, proxied: Callable[..., Proxied]
) -> None:
    logins = Logins(tmp_path, provider, proxied, 'share_login = "owner"')
    key = json.loads(logins.gate.cli("key", "create", "ci", "--role", "admin", "--json").stdout)["key"]
    assert {logins.account(talk) for talk in "abcd"} == {"work", "spare"}
    assert logins.account("e", x_api_key=key) == "api"
    logins.gate.config.write_text(logins.gate.config.read_text().replace('"owner"', '"trusted"'))
    logins.gate.wait_until(lambda: logins.account("f", x_api_key=key) in ("work", "spare"), "the config is followed")
    logins.gate.config.write_text(logins.gate.config.read_text().replace('"trusted"', '"none"'))
    logins.gate.wait_until(lambda: logins.account("g") == "api", "the config is followed")
    assert {logins.account(talk, token("work")) for talk in "hijk"} == {"work"}


def test_z6_what_a_script_is_refused_with_a_login_says_nothing_about_the_account(
    tmp_path: Path, provider: LoginProvider, proxied: Callable[..., Proxied]
) -> None:
    """A provider may accept the logins of its own agents alone, and refuse them to scripts."""
    logins = Logins(tmp_path, provider, proxied, 'share_login = "owner"')
    for name in ("work", "spare"):
        del provider.owners[token(name)]
    assert logins.call("a").status == 401
    assert logins.gate.get("/v1/backoffs").json["backoffs"] == []


def test_z6_a_run_uses_the_login_of_its_account_whichever_its_agent_brings(logins: Logins) -> None:
    lease = logins.gate.lease("anthropic@spare/claude-x", kind="agents", renew_within_s=600).json["lease"]
    assert logins.account("a", token("work"), x_fleetgate_lease=lease) == "spare"
    assert logins.provider.sent == [token("spare")]
    assert logins.call("b", token("work"), path=f"/l/{lease}{PATH}").status == 200
    assert logins.provider.sent[-1] == token("spare")
    assert logins.account("c", token("spare"), x_fleetgate_lease=lease) == "spare"
    assert logins.account("d", x_fleetgate_lease=lease) == "api", "a call that brings no login does not get one"
    del logins.provider.owners[token("spare")]
    refused = logins.call("e", token("work"), x_fleetgate_lease=lease)
    logins.gate.ok("POST", f"/v1/leases/{lease}/release", {})
    assert refused.status == 503
    assert "the login of anthropic@spare was refused: log in again with its agent" in refused.json["error"]["message"]


def test_z6_other_paths_of_the_provider_keep_the_login_that_they_bring(logins: Logins) -> None:
    logins.provider.refused = {"org-work"}
    assert logins.account("a", token("work")) == "spare"
    seen = logins.provider.questions
    answer = logins.gate.request("GET", "/anthropic/v1/models", token="", Authorization=f"Bearer {token('work')}")
    assert (answer.status, logins.provider.questions) == (200, seen + 1)
    assert answer.headers["anthropic-organization-id"] == "org-work"


@as_root
def test_z6_another_user_of_the_machine_never_uses_a_login_unless_it_is_for_all_who_are_trusted(
    tmp_path: Path, provider: LoginProvider, proxied: Callable[..., Proxied]
) -> None:
    logins = Logins(tmp_path, provider, proxied, 'share_login = "owner"\n', '[serve]\nlocal_users = "all"\n')
    stranger = Caller(logins.gate.port, STRANGER)
    try:
        assert stranger.chat(PATH).headers["x-fleetgate-model"] == "anthropic@api/claude-x"
        shown = stranger.chat(PATH, Authorization=f"Bearer {token('work')}")
        assert shown.headers["x-fleetgate-model"] == "anthropic@work/claude-x", "it knows that token, and no other"
        provider.refused = {"org-work"}
        assert stranger.chat(PATH, Authorization=f"Bearer {token('work')}", x_fleetgate_hold="0s").status == 429
        assert set(provider.sent) == {KEY, token("work")}
    finally:
        stranger.end()
