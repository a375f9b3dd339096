"""Who may use the service and the keys of its config: real attacks, over sockets, by other users of the machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fleetgate.testing.provider import FakeProvider
from tests.proxy.proxied import CHAT, MESSAGES, Proxied

STRANGER = 12_345
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
LOGIN = "sk-ant-oat01-" + "Qf7" * 20
WORK, OTHER = "sk-ant-api03-the-key-of-work", "sk-or-v1-the-key-of-the-other-provider"

# Sends each request that comes by its standard input on a connection of its own, as another user.
CLIENT = """
import encodings.idna, json, os, socket, sys
user = int(sys.argv[2])
if user != os.getuid():
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
for line in sys.stdin:
    with socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=60) as connection:
        connection.sendall(json.loads(line).encode("latin-1"))
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
    print(json.dumps(b"".join(parts).decode("latin-1")), flush=True)
"""


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class Caller:
    """A process of some user, which sends requests."""

    def __init__(self, port: int, user: int) -> None:
        argv = [sys.executable, "-I", "-c", CLIENT, str(port), str(user)]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def raw(self, request: str) -> Answer:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        head, _, body = json.loads(process.stdout.readline()).partition("\r\n\r\n")
        first, *lines = head.split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        return Answer(int(first.split()[1]), headers, body)

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        data = "" if body is None else json.dumps(body)
        said = {"Host": "127.0.0.1", "Connection": "close", "Content-Type": "application/json", **headers}
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in said.items())
        return self.raw(f"{method} {path} HTTP/1.1\r\n{lines}Content-Length: {len(data)}\r\n\r\n{data}")

    def chat(self, path: str = "/fake/v1/chat/completions", **headers: str) -> Answer:
        return self.ask("POST", path, MESSAGES if "messages" in path else CHAT, **headers)

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        if self._process.stdout is not None:
            self._process.stdout.close()


class Scene(NamedTuple):
    gate: Proxied
    stranger: Caller
    other: FakeProvider

    def sent(self) -> list[dict[str, str]]:
        """The headers of all that has gone upstream."""
        return [seen.headers for seen in (*self.gate.provider.seen, *self.other.seen)]

    def state(self) -> dict[str, Any]:
        """What calls can leave behind."""
        pools = [pool["pool"] for pool in self.gate.get("/v1/status").json["pools"]]
        return {"pools": pools, "backoffs": self.gate.get("/v1/backoffs").json["backoffs"]}


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("callers")
    login = folder / "login.json"
    login.write_text(json.dumps({"claudeAiOauth": {"accessToken": LOGIN, "refreshToken": "sk-ant-ort01-" + "r" * 40}}))
    with FakeProvider() as provider, FakeProvider() as other:
        more = f"""
        [providers."fake@work"]
        key_env = "WORK_KEY"
        [providers.logged]
        base_url = "{provider.url}"
        api = "anthropic"
        credential_file = "{login}"
        [providers.other]
        base_url = "{other.url}/v1"
        key_env = "OTHER_KEY"
        [fallback]
        "fake/m1" = ["other/m2"]
        """
        gate = Proxied(
            folder,
            provider,
            requests="fake = 4\nstrict = 4",
            fake='key_env = "FAKE_KEY"',
            more=more,
            FAKE_KEY="the-key-of-the-default-account",
            WORK_KEY=WORK,
            OTHER_KEY=OTHER,
        )
        with gate:
            stranger = Caller(gate.port, STRANGER if os.geteuid() == 0 else os.geteuid())
            yield Scene(gate, stranger, other)
            stranger.end()
            gate.check_nothing_is_held()


@as_root
@pytest.mark.parametrize("path", ["/v1/status", "/v1/leases", "/v1/history", "/v1/config", "/metrics", "/v1/events"])
def test_another_user_of_the_machine_reads_no_state(scene: Scene, path: str) -> None:
    answer = scene.stranger.ask("GET", path)
    assert (answer.status, answer.json["reason"]) == (401, "token_needed")
    assert "local_users" in answer.text
    if path != "/v1/events":
        token = {"Authorization": f"Bearer {scene.gate.token}"}
        assert scene.stranger.ask("GET", path, **token).status == 200, "the token is what counts"
        assert scene.gate.get(path).status == 200, "the service's own user needs none"


@as_root
def test_another_user_of_the_machine_changes_nothing_and_leases_nothing(scene: Scene) -> None:
    for method, path, body in (
        ("PUT", "/concurrency/limits/x", {"limit": 1}),
        ("POST", "/concurrency/acquire", {"provider": "x"}),
        ("POST", "/v1/leases", {"models": ["fake/m1"], "wait_s": 0}),
        ("PUT", "/v1/caps", {"selector": "x", "cap": 1}),
    ):
        assert scene.stranger.ask(method, path, body).status == 401, path
    assert scene.gate.request("PUT", "/concurrency/limits/x", {"limit": 1}, token="").status == 200


@as_root
@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/", "/assets/app.js", "/favicon.ico"])
def test_another_user_sees_whether_it_runs_and_the_files_of_its_page(scene: Scene, path: str) -> None:
    assert scene.stranger.ask("GET", path).status == scene.gate.get(path).status != 401


@as_root
@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/fake/v1/chat/completions", {}),
        ("/fake/v1/chat/completions", {"x_api_key": "fleetgate"}),
        ("/fake@work/v1/chat/completions", {}),
        ("/fake@work/v1/chat/completions", {"x_api_key": "junk-junk-junk-junk"}),
        ("/fake@work/v1/chat/completions", {"x_api_key": WORK[:-1]}),
        ("/fake@work/v1/chat/completions", {"Authorization": f"Bearer {WORK}x"}),
        ("/fake@default/v1/chat/completions", {"x_api_key": "junk-junk-junk-junk"}),
        ("/fake@nobody/v1/chat/completions", {"x_api_key": "junk-junk-junk-junk"}),
        ("/p/blue/fake@work/v1/chat/completions", {"x_api_key": "junk-junk-junk-junk"}),
        ("/logged@default/v1/messages", {"x_api_key": "junk-junk-junk-junk"}),
        ("/fake/v1/models", {}),
    ],
)
def test_a_stranger_without_a_key_that_we_know_gets_a_401_and_nothing_goes_upstream(
    scene: Scene, path: str, headers: dict[str, str]
) -> None:
    before = len(scene.sent())
    answer = scene.stranger.chat(path, **headers)
    assert answer.status == 401
    assert answer.json["error"]["message"]
    assert len(scene.sent()) == before


@as_root
def test_a_stranger_passes_with_a_key_of_their_own_and_no_key_of_ours_goes_along(scene: Scene) -> None:
    answer = scene.stranger.chat(x_api_key="a-key-of-the-stranger")
    assert answer.status == 200
    assert scene.gate.provider.seen[-1].headers["x-api-key"] == "a-key-of-the-stranger"
    assert answer.headers["x-fleetgate-model"] == "fake/m1", "accounts have no names for strangers"
    assert scene.stranger.chat("/fake@work/v1/chat/completions", x_api_key=WORK).status == 200, "who has its key may"
    assert scene.gate.provider.seen[-1].headers["x-api-key"] == WORK


@as_root
def test_the_fallback_at_another_provider_is_not_for_strangers(scene: Scene) -> None:
    from fleetgate.testing.script import Fault

    scene.gate.provider.script(Fault(status=529))
    before = len(scene.other.seen)
    answer = scene.stranger.chat(x_api_key="another-key-of-a-stranger", x_fleetgate_hold="0s")
    assert answer.status == 529
    assert len(scene.other.seen) == before
    assert all(OTHER not in str(headers) for headers in scene.sent())


@as_root
def test_a_strangers_first_call_is_tried_again_after_a_rate_limit_and_nothing_is_held_against_anyone(
    scene: Scene,
) -> None:
    from fleetgate.testing.script import Fault

    scene.gate.provider.script(Fault(status=429, retry_after_s=0))
    answer = scene.stranger.chat(x_api_key="a-new-key-of-a-stranger")
    assert answer.status == 200
    assert answer.headers["x-fleetgate-attempts"] == "2"
    line = scene.gate.wait_until(
        lambda: [each for each in scene.gate.lines() if each["attempts"] == 2 and each["status"] == 200], "its line"
    )[-1]
    assert line["outcome"] == "ok"
    assert not scene.state()["backoffs"]


@as_root
def test_no_answer_tells_a_stranger_whether_a_key_resembles_one_of_ours(scene: Scene) -> None:
    """The attack: guess the login byte by byte, by a header that names its account."""
    told = set()
    text = json.dumps({"accessToken": LOGIN})
    for key in (LOGIN[:-1], LOGIN[:20], LOGIN[3:], LOGIN + "x", text[1:40], "claudeAiOauth-16", "Z" * len(LOGIN)):
        answer = scene.stranger.chat("/logged/v1/messages", x_api_key=key)
        told.add((answer.status, answer.headers["x-fleetgate-model"], tuple(sorted(answer.headers))))
    assert len(told) == 1, told
    assert scene.gate.chat("/logged/v1/messages", MESSAGES, x_api_key=LOGIN[:-1]).headers["x-fleetgate-model"] != (
        "logged/claude-x"
    ), "nor is a part of it the account's for anyone else"
    whole = scene.gate.chat("/logged/v1/messages", MESSAGES, x_api_key=LOGIN)
    assert whole.headers["x-fleetgate-model"] == "logged/claude-x"


def test_a_trusted_caller_gets_the_key_of_the_account_that_it_names(scene: Scene) -> None:
    assert scene.gate.chat("/fake@work/v1/chat/completions", x_api_key="whatever-the-agent-sends").status == 200
    assert scene.gate.provider.seen[-1].headers["authorization"] == f"Bearer {WORK}"
    assert scene.gate.chat(x_api_key="").status == 200
    assert scene.gate.provider.seen[-1].headers["authorization"] == "Bearer the-key-of-the-default-account"


@as_root
def test_the_token_makes_a_stranger_trusted_and_is_never_sent_upstream(scene: Scene) -> None:
    token = scene.gate.token
    for headers in (
        {"x_api_key": token},
        {"Authorization": f"Bearer {token}"},
        {"x_api_key": "fleetgate", "Authorization": f"Bearer {token}"},
    ):
        assert scene.stranger.chat("/fake@work/v1/chat/completions", **headers).status == 200
        assert scene.gate.provider.seen[-1].headers["authorization"] == f"Bearer {WORK}"
    both = scene.stranger.chat(x_api_key="a-key-of-the-stranger", Authorization=f"Bearer {token}")
    assert both.status == 200
    assert all(token not in str(headers) for headers in scene.sent())


@pytest.mark.parametrize("query", ["key={}", "k%65y={}", "key=&k%65y={}", "key=another&x=1&key={}"])
@pytest.mark.parametrize("header", [{"x_api_key": "a-key-of-the-caller"}, {}])
def test_a_token_of_ours_in_the_query_is_never_sent_upstream(scene: Scene, query: str, header: dict[str, str]) -> None:
    created = scene.gate.cli("key", "create", "in-query", "--project", "web", "--json")
    access_key = json.loads(created.stdout)["key"]
    try:
        for ours in (scene.gate.token, access_key):
            assert scene.stranger.chat(f"/fake/v1/chat/completions?{query.format(ours)}", **header).status == 200
            seen = scene.gate.provider.seen[-1]
            assert ours not in f"{seen.target} {seen.query} {seen.headers}"
            if header:
                assert seen.headers["x-api-key"] == header["x_api_key"]
    finally:
        assert scene.gate.cli("key", "rm", "in-query").returncode == 0


@as_root
def test_a_stranger_cannot_claim_an_account_by_a_header_or_by_a_token_that_it_made_up(scene: Scene) -> None:
    """The provider here accepts every token: what one says of itself counts for callers that are trusted only."""

    def token(number: int) -> str:
        claims = json.dumps({"https://api.openai.com/auth": {"chatgpt_account_id": "acc-1"}, "n": number})
        return f"Bearer eyJhbGciOi.{urlsafe_b64encode(claims.encode()).decode().rstrip('=')}.sig"

    claim = {"ChatGPT_Account_ID": "acc-1"}
    owner = scene.gate.chat(x_api_key="", Authorization=token(1))
    again = scene.gate.chat(x_api_key="", Authorization=token(2))
    assert owner.headers["x-fleetgate-model"] == again.headers["x-fleetgate-model"]
    for made_up in (token(3), "Bearer login-of-the-stranger"):
        assert scene.stranger.chat(Authorization=made_up, **claim).status == 200
        assert scene.stranger.chat(Authorization=made_up, **claim).status == 200
        assert scene.gate.events("granted")[0]["model"] != owner.headers["x-fleetgate-model"]


@as_root
def test_junk_keys_leave_nothing_behind(scene: Scene) -> None:
    gate, refuses = scene.gate, "junk"
    with FakeProvider(keys=["good"]) as strict:
        gate.config.write_text(gate.config.read_text() + f'\n[providers.strict]\nbase_url = "{strict.url}/v1"\n')
        gate.wait_until(lambda: gate.chat("/strict/v1/chat/completions", x_api_key="good").status == 200, "it is known")
        before, events = scene.state(), len(gate.events())
        for number in range(100):
            answer = scene.stranger.chat("/strict/v1/chat/completions", x_api_key=f"{refuses}-{number}")
            assert answer.status == 401
        calls = strict.stats.calls
        assert scene.stranger.chat("/strict/v1/chat/completions", x_api_key=f"{refuses}-99").status == 401
        assert strict.stats.calls == calls, "a key that was just refused is refused here"
        assert scene.state() == before
        assert len(gate.events()) == events, "not a line in the log"
        for number in range(50):  # the same of a trusted caller: a few, then nothing more
            gate.chat("/strict/v1/chat/completions", x_api_key=f"trusted-{refuses}-{number}")
        assert scene.state()["backoffs"] == before["backoffs"]
        assert len(gate.events()) < events + 20
        assert gate.chat("/strict/v1/chat/completions", x_api_key="good").status == 200


def test_a_refused_key_of_a_caller_is_not_the_accounts_fault(scene: Scene) -> None:
    from fleetgate.testing.script import Fault

    for path, body in (("/logged@default/v1/messages", MESSAGES), ("/logged/v1/messages", MESSAGES)):
        scene.gate.provider.script(Fault(status=401))
        key = f"junk-for-{path.count('@')}-{LOGIN[:20]}"
        assert scene.gate.chat(path, body, x_api_key=key).status == 401
    assert not [each for each in scene.state()["backoffs"] if each["key"].startswith("logged")]
    assert scene.gate.chat("/logged/v1/messages", MESSAGES, x_api_key=LOGIN).status == 200
    scene.gate.provider.script(Fault(status=401))
    assert scene.gate.chat("/logged/v1/messages", MESSAGES, x_api_key=LOGIN).status == 401
    backoffs = scene.gate.wait_until(lambda: scene.state()["backoffs"], "its own login was refused")
    assert [each["key"] for each in backoffs] == ["logged"]
    assert scene.gate.cli("backoff", "clear", "logged").returncode == 0


def test_elsewhere_than_on_loopback_no_key_of_the_config_is_for_a_caller_with_a_junk_key(tmp_path: Path) -> None:
    with FakeProvider() as provider:
        more = '[providers."fake@work"]\nkey_env = "WORK_KEY"'
        gate = Proxied(tmp_path, provider, fake='key_env = "FAKE_KEY"', more=more, FAKE_KEY="key-1", WORK_KEY=WORK)
        try:
            gate.start("--host", "0.0.0.0", "--new-token")
            for account in ("work", "default", "nobody"):
                answer = gate.chat(f"/fake@{account}/v1/chat/completions", x_api_key="junk-junk-junk-junk")
                assert answer.status == 401
                assert answer.json["error"]["code"] == "key_wrong"
            assert not provider.seen
            assert gate.request("POST", "/fake@work/v1/chat/completions", CHAT).status == 200
            assert provider.seen[-1].headers["authorization"] == f"Bearer {WORK}"
        finally:
            gate.kill()


@as_root
def test_every_user_may_where_the_config_says_so(tmp_path: Path) -> None:
    with FakeProvider() as provider:
        more = '[serve]\nlocal_users = "all"'
        with Proxied(tmp_path, provider, fake='key_env = "FAKE_KEY"', more=more, FAKE_KEY="key-1") as gate:
            stranger = Caller(gate.port, STRANGER)
            try:
                assert stranger.ask("GET", "/v1/status").status == 200
                assert stranger.chat().status == 200
                assert stranger.ask("PUT", "/v1/caps", {"selector": "x", "cap": 1}).status == 401
            finally:
                stranger.end()


def test_what_one_connection_shows_does_not_count_for_another(scene: Scene) -> None:
    """Two requests on one connection are of one user; the token of the first is not the second's."""
    with socket.create_connection(("127.0.0.1", scene.gate.port), timeout=60) as connection:
        head = "GET /v1/session HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        connection.sendall(f"{head}Authorization: Bearer {scene.gate.token}\r\n\r\n".encode())
        assert b'"may_change":true' in connection.recv(65536)
        connection.sendall(f"{head}\r\n".encode())
        assert b'"may_change":false' in connection.recv(65536)
