"""Three accounts as one, through the real proxy (rules Z1 to Z5): each is a fake provider with a limit of its own.

Forty clients, each with a conversation of its own, call without a key. The credential of the chosen account goes
upstream. First all slots are used, and every conversation stays where it is. Then the plan of one account is used up.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle, pairwise
from typing import Any

import aiohttp
import pytest

from fleetgate.testing import FakeProvider, Fault
from tests.proxy.proxied import MESSAGES, Proxied

LIMITS = {"work": 4, "spare": 4, "api": 8}
CLIENTS = 40
LONG_S, SHORT_S = 1.4, 0.2
ACCOUNTS = '[accounts]\nanthropic = { use = ["work", "spare"], then = ["api"], patience = "30s" }\n'
USED_UP = Fault(
    status=429,
    headers={
        "anthropic-ratelimit-unified-status": "rejected",
        "anthropic-ratelimit-unified-reset": str(int(time.time()) + 3600),
        "anthropic-ratelimit-unified-representative-claim": "five_hour",
    },
    times=100_000,
)


@contextmanager
def providers(**options: Any) -> Iterator[dict[str, FakeProvider]]:
    """A fake provider for each account, which accepts the key of that account alone."""
    found = {name: FakeProvider(limit=limit, keys=[f"key-{name}"], **options) for name, limit in LIMITS.items()}
    with found["work"], found["spare"], found["api"]:
        yield found


def config(found: dict[str, FakeProvider]) -> str:
    tables = [
        f'[providers."anthropic@{name}"]\nbase_url = "{each.url}"\napi = "anthropic"\nkey_env = "KEY_{name.upper()}"\n'
        for name, each in found.items()
    ]
    return ACCOUNTS + "\n".join(tables)


def requests(cooldown: str = "20ms") -> str:
    return "\n".join(
        f'"anthropic@{name}" = {{ cap = {limit}, cooldown = "{cooldown}", on_429 = "pause" }}'
        for name, limit in LIMITS.items()
    )


def keys() -> dict[str, str]:
    return {f"KEY_{name.upper()}": f"key-{name}" for name in LIMITS}


def call(talk: str) -> dict[str, Any]:
    return {**MESSAGES, "messages": [{"role": "user", "content": talk}]}


class Fleet:
    """Clients that call again and again, and what they and the providers saw."""

    def __init__(self, url: str, clients: int = CLIENTS, models: tuple[str, ...] = ("claude-x",)) -> None:
        self._url = f"{url}/anthropic/v1/messages"
        self._clients = clients
        self._models = models  # which the calls of each conversation take in turn
        self.statuses: Counter[int] = Counter()
        self.calls: list[tuple[float, str, str]] = []  # when a call ended, its conversation, its account

    async def run(self, steps: Callable[[], Any]) -> None:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            clients = [asyncio.create_task(self._call_for_ever(session, f"talk {n}")) for n in range(self._clients)]
            await steps()
            for client in clients:
                client.cancel()
            for ended in await asyncio.gather(*clients, return_exceptions=True):
                assert isinstance(ended, asyncio.CancelledError), ended

    async def _call_for_ever(self, session: aiohttp.ClientSession, talk: str) -> None:
        headers = {"x-claude-code-session-id": "one-session"}
        for model in cycle(self._models):
            async with session.post(self._url, json={**call(talk), "model": model}, headers=headers) as response:
                await response.read()
                self.statuses[response.status] += 1
                model = response.headers.get("x-fleetgate-model", "")
                self.calls.append((time.monotonic(), talk, model.partition("/")[0].removeprefix("anthropic@")))

    def homes(self, since: float = 0.0, until: float = 1e18) -> dict[str, list[str]]:
        """The accounts of each conversation, in the order of its calls."""
        found: dict[str, list[str]] = {}
        for at, talk, account in self.calls:
            if since <= at < until:
                found.setdefault(talk, []).append(account)
        return found


async def run_full(found: dict[str, FakeProvider], seconds: float) -> list[int]:
    """Let clients call for a while, and then with short calls; how many calls were under way in that while."""
    used = []
    await asyncio.sleep(1.0)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        used.append(sum(each.stats.active for each in found.values()))
        await asyncio.sleep(0.01)
    for each in found.values():
        each.latency_s = SHORT_S
    await asyncio.sleep(3.0)
    return used


@pytest.mark.timeout(120)
def test_z1_to_z5_forty_conversations_use_three_accounts_and_move_when_one_is_used_up(
    proxied: Callable[..., Proxied],
) -> None:
    with providers(latency_s=LONG_S) as found:
        gate = proxied(found["work"], requests=requests(), more=config(found), **keys())
        fleet = Fleet(gate.url)
        used: list[int] = []
        moments: dict[str, float] = {}

        async def steps() -> None:
            used.extend(await run_full(found, 7.0))
            moments["quick"] = time.monotonic()
            await asyncio.sleep(1.0)
            found["work"].script(USED_UP)
            moments["used up"] = time.monotonic()
            await asyncio.sleep(3.0)

        asyncio.run(fleet.run(steps))
        part = sum(used) / len(used) / sum(LIMITS.values())
        before = fleet.homes(until=moments["used up"])
        switches = sum(one != other for homes in before.values() for one, other in pairwise(homes))
        refused = {name: each.stats.refused for name, each in found.items()}
        print(f"used {part:.1%}; {switches} switches in {sum(map(len, before.values()))} calls; refused {refused}")
        assert set(fleet.statuses) == {200}
        assert part >= 0.95
        assert switches == 0
        assert refused == {"work": 0, "spare": 0, "api": 0}

        stranded = {talk for talk, homes in before.items() if homes[-1] == "work"}
        assert len(stranded) >= LIMITS["work"]
        late = {
            talk: min((at for at, each, account in fleet.calls if each == talk and account != "work"), default=1e18)
            for talk in stranded
        }
        slowest = max(late.values()) - moments["used up"] - SHORT_S
        print(f"{len(stranded)} conversations moved, the last after {slowest:.2f} s")
        assert slowest <= 2.0 + SHORT_S
        others = {talk: homes for talk, homes in fleet.homes(since=moments["used up"]).items() if talk not in stranded}
        assert all(set(homes) == {before[talk][-1]} for talk, homes in others.items()), "others were pushed out"


@pytest.fixture
def accounts(proxied: Callable[..., Proxied]) -> Iterator[tuple[Proxied, dict[str, FakeProvider]]]:
    with providers() as found:
        yield proxied(found["work"], requests=requests(), more=config(found), **keys()), found


def account_of(gate: Proxied, talk: str, path: str = "/anthropic/v1/messages", **headers: str) -> str:
    """The account that a call of a conversation used."""
    answer = gate.request("POST", path, call(talk), token="", **headers)
    assert answer.status == 200, answer.body
    return answer.headers["x-fleetgate-model"].partition("/")[0].removeprefix("anthropic@")


def test_z3_a_conversation_stays_and_the_helpers_of_a_session_spread(
    accounts: tuple[Proxied, dict[str, FakeProvider]],
) -> None:
    gate, _ = accounts
    homes = {talk: account_of(gate, talk, x_claude_code_session_id="one") for talk in ("a", "b", "c", "d")}
    assert sorted(homes.values()) == ["spare", "spare", "work", "work"]
    again = {talk: account_of(gate, talk, x_claude_code_session_id="one") for talk in reversed(homes)}
    assert again == homes
    gate.stop()
    gate.start()
    assert {talk: account_of(gate, talk, x_claude_code_session_id="one") for talk in homes} == homes


def test_z1_a_path_that_names_an_account_uses_it(accounts: tuple[Proxied, dict[str, FakeProvider]]) -> None:
    gate, found = accounts
    assert account_of(gate, "a", "/anthropic@api/v1/messages") == "api"
    assert found["api"].stats.calls == 1


def test_z1_a_client_with_a_key_of_an_account_uses_that_account(
    accounts: tuple[Proxied, dict[str, FakeProvider]],
) -> None:
    gate, _ = accounts
    assert account_of(gate, "a", "/anthropic@spare/v1/messages", x_api_key="key-spare") == "spare"


def test_z4_a_call_that_an_account_refuses_goes_to_the_next_and_the_history_says_why(
    accounts: tuple[Proxied, dict[str, FakeProvider]],
) -> None:
    gate, found = accounts
    for name in ("work", "spare"):
        found[name].script(USED_UP)
    assert account_of(gate, "a") == "api"
    reasons = [event["why"] for event in gate.get("/v1/history?n=50").json["events"] if event.get("why")]
    assert reasons[-1] == "moved from spare to api: spare and work are backed off (usage_window)"
    assert f"; {reasons[-1]}" in gate.cli("history", "-n", "20").stdout
    assert account_of(gate, "b") == "api"
    assert "; spilled to api: work and spare are backed off (usage_window)" in gate.cli("history", "-n", "20").stdout


def test_z1_accounts_without_a_key_are_left_out(proxied: Callable[..., Proxied]) -> None:
    with providers() as found:
        own = {name: key for name, key in keys().items() if name != "KEY_WORK"}
        gate = proxied(found["work"], requests=requests(), more=config(found), **own)
        assert [account_of(gate, talk) for talk in ("a", "b", "a")] == ["spare", "spare", "spare"]


def test_z1_without_any_key_the_error_says_where_to_set_one(proxied: Callable[..., Proxied]) -> None:
    with providers() as found:
        gate = proxied(found["work"], requests=requests(), more=config(found))
        answer = gate.request("POST", "/anthropic/v1/messages", call("a"), token="")
        assert answer.status == 503
        assert "set key_env in [providers.'anthropic@work']" in answer.json["error"]["message"]


def test_z1_a_client_with_the_key_of_the_default_account_keeps_to_it(proxied: Callable[..., Proxied]) -> None:
    with FakeProvider(keys=["own"]) as default, providers() as found:
        gate = proxied(default, fake='key_env = "OWN"', more=config(found), OWN="own", **keys())
        answer = gate.request("POST", "/anthropic/v1/messages", call("a"), token="", x_api_key="own")
        assert (answer.status, answer.headers["x-fleetgate-model"]) == (200, "anthropic/claude-x")
        assert account_of(gate, "a") == "work"


def test_z3_leases_over_http_name_their_conversation(accounts: tuple[Proxied, dict[str, FakeProvider]]) -> None:
    gate, _ = accounts
    models = []
    for talk in ("a", "b", "b", "a"):
        got = gate.lease("anthropic/claude-x", conversation=talk)
        assert got.status == 201, got.body
        models.append(got.json["model"].partition("/")[0])
        gate.ok("POST", f"/v1/leases/{got.json['lease']}/release", {})
    assert models == ["anthropic@work", "anthropic@spare", "anthropic@spare", "anthropic@work"]
    (shown,) = gate.get("/v1/status").json["account_sets"]
    assert shown["conversations"] == {"work": 1, "spare": 1, "api": 0}
    text = gate.cli("status").stdout
    assert "anthropic without an account uses work (1 conversation), spare (1 conversation), then api" in text
    capacity = gate.cli("capacity", "-m", "anthropic/claude-x", "--kind", "requests").stdout
    assert "16 slots free for anthropic/claude-x (with anthropic@work)" in capacity


def test_z4_a_call_for_which_the_key_of_an_account_is_refused_goes_to_the_next(
    accounts: tuple[Proxied, dict[str, FakeProvider]],
) -> None:
    """The client brought no key, so a refused one is not its business."""
    gate, found = accounts
    revoked = Fault(status=401, times=100)
    found["work"].script(revoked)
    assert [account_of(gate, talk) for talk in ("a", "b", "c")] == ["spare", "spare", "spare"]
    assert found["work"].stats.calls == 1, "an account whose key was refused is left alone"
    reasons = [event["why"] for event in gate.get("/v1/history?n=50").json["events"] if event.get("why")]
    assert "work is backed off (auth)" in reasons[-1]
    named = gate.request("POST", "/anthropic@api/v1/messages", call("d"), token="")
    assert named.status == 200
    found["api"].script(revoked)
    named = gate.request("POST", "/anthropic@api/v1/messages", call("d"), token="")
    assert named.status == 401, "the only account of a call: its client is told"


def test_z4_a_call_tries_each_account_once_whose_key_is_refused_and_the_next_call_none(
    accounts: tuple[Proxied, dict[str, FakeProvider]],
) -> None:
    gate, found = accounts
    for each in found.values():
        each.script(Fault(status=401, times=100))
    asked = ("POST", "/anthropic/v1/messages", call("a"))
    assert gate.request(*asked, token="", x_fleetgate_hold="1s").status == 401
    again = gate.request(*asked, token="", x_fleetgate_hold="1s")
    assert (again.status, "Fleetgate: anthropic@work/claude-x is backed off" in again.json["error"]["message"]) == (
        401,
        True,
    )
    assert {name: each.stats.calls for name, each in found.items()} == {"work": 1, "spare": 1, "api": 1}


def test_e2_an_agents_key_moves_no_conversation_of_another_project(
    accounts: tuple[Proxied, dict[str, FakeProvider]],
) -> None:
    """A conversation of another project that it names, or begins with the same words, is one of its own."""
    gate, found = accounts
    keys = [
        json.loads(gate.cli("key", "create", project, "--project", project, "--json").stdout)["key"]
        for project in ("web", "docs")
    ]

    def leased(key: str, talk: str) -> str:
        body = {"models": ["anthropic/claude-x"], "conversation": talk, "renew_within_s": 600}
        got = gate.request("POST", "/v1/leases", body, token=key).json
        gate.request("POST", f"/v1/leases/{got['lease']}/release", {}, token=key)
        return str(got["model"]).partition("/")[0]

    one = {"x_claude_code_session_id": "one"}
    assert [leased(key, "a") for key in (*keys, *keys)] == ["anthropic@work", "anthropic@spare"] * 2
    homes = [account_of(gate, "hello", x_api_key=key, **one) for key in (*keys, *keys)]
    assert homes[:2] == homes[2:]
    (shown,) = gate.get("/v1/status").json["account_sets"]
    assert sum(shown["conversations"].values()) == 4
    body = {"model": "claude-x", "max_tokens": 9}
    nameless = gate.request("POST", "/anthropic/v1/messages", body, token="", x_api_key=keys[0])
    assert nameless.status in (200, 400)
    (shown,) = gate.get("/v1/status").json["account_sets"]
    assert sum(shown["conversations"].values()) == 4, "a call that names none belongs to none"
