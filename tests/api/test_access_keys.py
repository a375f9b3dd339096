"""Access keys over HTTP: what each role may do, and that an agent can do nothing outside its project (rules E1, E2)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleetgate.core.state.state import State
from fleetgate.gate.serving.access_keys import AccessKeys, KeyNotKnownYet
from tests.api.served import Served
from tests.postgres_server import Server
from tests.postgres_stores import fresh_store

# What a key of the role agent may use; each is checked for its project below.
FOR_AGENTS = {
    ("POST", "/v1/leases"),
    ("POST", "/v1/leases/{ident}/renew"),
    ("POST", "/v1/leases/{ident}/release"),
    ("POST", "/v1/leases/{ident}/stop"),
    ("GET", "/v1/leases/{ident}"),
    ("GET", "/v1/tickets/{ident}"),
    ("DELETE", "/v1/tickets/{ident}"),
    ("POST", "/v1/tickets/cancel"),
    ("POST", "/v1/report"),
    ("GET", "/v1/jobs"),
    ("POST", "/v1/jobs"),
    ("POST", "/v1/jobs/batch"),
    ("GET", "/v1/jobs/{ident}"),
    ("GET", "/v1/jobs/{ident}/output"),
    ("POST", "/v1/jobs/{ident}/cancel"),
    ("POST", "/v1/jobs/{ident}/retry"),
    ("GET", "/v1/status"),
    ("GET", "/v1/overview"),
    ("GET", "/v1/tickets"),
    ("GET", "/v1/leases"),
    ("GET", "/v1/projects"),
    ("GET", "/v1/usage"),
    ("GET", "/v1/budgets"),
    ("GET", "/v1/capacity"),
    ("GET", "/v1/select"),
    ("POST", "/v1/select"),
    ("GET", "/v1/session"),
    ("POST", "/v1/session"),
    ("DELETE", "/v1/session"),
    ("GET", "/healthz"),
    ("GET", "/readyz"),
}


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("keys"), '[requests]\numans = { cap = 1, cooldown = "0" }\n') as served:
        yield served


def create(gate: Served, name: str, *options: str) -> str:
    done = gate.cli("key", "create", name, *options, "--json")
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["key"])


@pytest.fixture(scope="module")
def agent(gate: Served) -> str:
    return create(gate, "ci", "--project", "web", "--class", "batch", "--max-priority", "3")


@pytest.fixture(scope="module")
def others(gate: Served, agent: str) -> dict[str, str]:
    """A lease, a ticket and a job of another project."""
    lease = gate.lease(id="theirlease1", project="docs", renew_within_s=600).json
    assert gate.lease(id="theirticket", project="docs", wait_s=0.1).status == 202
    job = gate.ok("POST", "/v1/jobs", {"command": ["true"], "project": "docs"})
    return {"lease": lease["lease"], "ticket": "theirticket", "job": job["id"]}


def routes(gate: Served) -> list[tuple[str, str]]:
    document = gate.get("/openapi.json").json
    return [(method.upper(), path) for path, methods in document["paths"].items() for method in methods]


def test_e2_every_other_route_names_the_role_that_an_agent_lacks(gate: Served, agent: str):
    tried = 0
    for method, path in routes(gate):
        if (method, path) in FOR_AGENTS or path.startswith(("/concurrency/limits/{", "/concurrency/cooldown/{")):
            continue
        answer = gate.request(method, path.replace("{ident}", "x").replace("{name}", "x"), token=agent)
        assert answer.status == 403, f"{method} {path}: {answer.status} {answer.body!r}"
        assert answer.json["reason"] == "role_needed"
        assert "the key ci has the role agent" in answer.json["error"]
        tried += 1
    assert tried > 30
    assert gate.request("PUT", "/concurrency/limits/umans", {"limit": 9}, token=agent).status == 403


def test_e2_what_belongs_to_another_project_is_not_there_for_an_agent(gate: Served, agent: str, others: dict[str, str]):
    for method, path, body in [
        ("GET", f"/v1/leases/{others['lease']}", None),
        ("POST", f"/v1/leases/{others['lease']}/renew", {}),
        ("GET", f"/v1/tickets/{others['ticket']}", None),
        ("DELETE", f"/v1/tickets/{others['ticket']}", None),
        ("POST", "/v1/tickets/cancel", {"ids": [others["ticket"]]}),
        ("POST", "/v1/report", {"lease": others["lease"]}),
        ("POST", "/v1/leases", {"models": ["umans/coder"], "id": others["ticket"], "wait_s": 0.1}),
        ("GET", f"/v1/jobs/{others['job']}", None),
        ("GET", f"/v1/jobs/{others['job']}/output", None),
        ("POST", f"/v1/jobs/{others['job']}/cancel", {}),
        ("POST", f"/v1/jobs/{others['job']}/retry", {}),
    ]:
        answer = gate.request(method, path, body, token=agent)
        assert answer.status == 404, f"{method} {path}: {answer.status} {answer.body!r}"
    for verb in ("release", "stop"):  # as for a lease that has ended
        answers = [
            gate.request("POST", f"/v1/leases/{ident}/{verb}", {}, token=agent) for ident in ("xx", others["lease"])
        ]
        assert len({(each.status, each.body.replace(others["lease"].encode(), b"xx")) for each in answers}) == 1
        assert not answers[0].json["released" if verb == "release" else "stopping"]
    for kind, ident in others.items():  # neither the beginning of an id nor an unknown one tells anything
        path = "/v1/jobs/" if kind == "job" else "/v1/leases/"
        said = [gate.request("GET", path + each, token=agent) for each in (ident, ident[:4], "zz")]
        texts = {each.json["error"].replace(ident, "zz").replace(ident[:4], "zz") for each in said}
        assert ({each.status for each in said}, len(texts)) == ({404}, 1)
    assert gate.request("GET", "/v1/jobs?project=docs", token=agent).status == 403
    assert gate.request("GET", "/v1/jobs", token=agent).json["jobs"] == []
    for path in ("tickets", "usage"):
        assert gate.request("GET", f"/v1/{path}?project=docs", token=agent).status == 403
    still = gate.ok("GET", "/v1/overview")
    assert {each["id"] for each in still["leases"]} == {others["lease"]}
    assert others["ticket"] in {each["id"] for each in still["tickets"]}


def test_e2_what_an_agent_reads_names_nothing_of_another_project(gate: Served, agent: str, others: dict[str, str]):
    """Every route that it may read, from the OpenAPI document, while two projects are at the gate."""
    create(gate, "theirs", "--project", "docs", "--max-running", "9")
    for selector in ("project:docs", "key:theirs", "umans", "project:web", "key:ci"):
        body = {"selector": selector, "unit": "usd", "amount": 5, "per": "day"}
        assert gate.request("POST", "/v1/budgets", body).status == 200
    gate.cap("project:docs", 7)
    mine = gate.request("POST", "/v1/leases", {"models": ["umans/coder"], "wait_s": 0.1}, token=agent).json["id"]
    lease = gate.request("POST", "/v1/leases", {"models": ["mine/fast"], "renew_within_s": 600}, token=agent).json[
        "lease"
    ]
    reading = [path for method, path in routes(gate) if method == "GET" and path.startswith("/v1/")]
    answers = {}
    for path in reading:
        answer = gate.request("GET", path.replace("{ident}", mine).replace("{name}", "umans"), token=agent)
        if answer.status == 200:
            answers[path] = answer.body.decode()
    assert {"/v1/overview", "/v1/status", "/v1/tickets", "/v1/leases", "/v1/projects", "/v1/budgets"} <= set(answers)
    for path, text in answers.items():
        for theirs in (*others.values(), "docs", "theirs"):
            assert theirs not in text, f"{path} names {theirs}"
    overview = json.loads(answers["/v1/overview"])
    assert [each["id"] for each in overview["tickets"]] == [mine]
    assert [each["id"] for each in overview["leases"]] == [lease]
    assert (overview["status"]["running"], overview["status"]["waiting"]) == (1, 1)
    assert (overview["session"]["role"], overview["session"]["project"]) == ("agent", "web")
    (pool,) = [each for each in overview["status"]["pools"] if each["pool"] == "umans"]
    assert (pool["in_flight"], pool["limit"]) == (1, 1), "what others use of a pool that it waits for is in its numbers"
    assert {each["name"] for each in json.loads(answers["/v1/budgets"])["budgets"]} == {
        "project:web usd/day",
        "key:ci usd/day",
    }
    assert [each["project"] for each in json.loads(answers["/v1/projects"])["projects"]] == ["web"]
    gate.request("POST", f"/v1/leases/{lease}/release", {}, token=agent)
    gate.request("DELETE", f"/v1/tickets/{mine}", token=agent)


def test_e1_requests_of_an_agent_have_its_project_its_class_and_at_most_its_priority(gate: Served, agent: str):
    gate.cap("groq", 1)
    body: dict[str, Any] = {"models": ["groq/fast"], "priority": 50, "class": "interactive", "renew_within_s": 600}
    lease = gate.request("POST", "/v1/leases", body, token=agent).json["lease"]
    (found,) = [each for each in gate.ok("GET", "/v1/leases")["leases"] if each["id"] == lease]
    assert (found["project"], found["class"]) == ("web", "batch")
    queued = gate.request("POST", "/v1/leases", {**body, "wait_s": 0.1}, token=agent).json["id"]
    assert gate.request("GET", f"/v1/tickets/{queued}", token=agent).json["priority"] == 3
    assert gate.request("DELETE", f"/v1/tickets/{queued}", token=agent).status == 200
    assert gate.request("POST", "/v1/leases", {**body, "project": "docs"}, token=agent).status == 403
    forced = gate.request("POST", f"/v1/leases/{lease}/release", {"force": True}, token=agent)
    assert (forced.status, forced.json["reason"]) == (403, "role_needed")
    assert gate.request("POST", f"/v1/leases/{lease}/release", {}, token=agent).json["released"]
    job = gate.request("POST", "/v1/jobs", {"command": ["true"], "priority": 9}, token=agent).json["id"]
    shape = gate.request("GET", f"/v1/jobs/{job}", token=agent).json
    assert (shape["project"], shape["class"], shape["priority"]) == ("web", "batch", 3)
    assert (shape["by"], shape["access_key"]) == ("key ci", "ci")


def test_e2_a_viewer_reads_and_changes_nothing(gate: Served):
    key = create(gate, "wall", "--role", "viewer")
    session = gate.request("GET", "/v1/session", token=key).json
    assert (session["role"], session["key"], session["may_change"]) == ("viewer", "wall", False)
    assert gate.request("GET", "/v1/overview", token=key).status == 200
    for method, path in routes(gate):
        if method != "GET" and path.startswith("/v1/") and "session" not in path and "/v1/select" not in path:
            answer = gate.request(method, path.replace("{ident}", "x").replace("{name}", "x"), token=key)
            assert answer.status == 403, f"{method} {path}: {answer.status}"


def test_e2_an_operator_manages_caps_and_no_keys(gate: Served):
    key = create(gate, "ops", "--role", "operator")
    assert gate.request("PUT", "/v1/caps", {"selector": "mistral", "cap": 2}, token=key).status == 200
    assert gate.request("POST", "/v1/login-links", {}, token=key).json["reason"] == "role_needed"


def test_e1_a_removed_rotated_expired_or_invented_key_is_worth_nothing(gate: Served):
    old = create(gate, "shortlived", "--role", "viewer", "--expires", "1s")
    done = gate.cli("key", "rotate", "shortlived", "--json")
    new = json.loads(done.stdout)["key"]
    assert gate.request("GET", "/v1/status", token=old).json["reason"] == "token_wrong"
    gate.wait_until(lambda: gate.request("GET", "/v1/status", token=new).status == 401, "the key has expired")
    removed = create(gate, "removed", "--role", "admin")
    assert gate.request("GET", "/v1/status", token=removed).status == 200
    assert gate.cli("key", "rm", "removed").returncode == 0
    for token in (removed, "fgk_", "fgk_" + "a" * 43, new[:-1]):
        answer = gate.request("GET", "/v1/status", token=token)
        assert (answer.status, answer.json["reason"]) == (401, "token_wrong")


def test_e1_no_key_is_stored_or_shown(gate: Served, agent: str):
    secret = agent.removeprefix("fgk_")
    shown = [gate.cli(*words).stdout for words in (("key", "ls", "--json"), ("key", "ls"), ("history", "--json"))]
    shown.append(gate.request("GET", "/v1/history").body.decode())
    assert all("ci" in text for text in shown)
    assert not [text for text in shown if secret in text]
    events = gate.request("GET", "/v1/history").json["events"]
    assert [event["key"]["name"] for event in events if event["type"] == "key_set" and "digest" not in event["key"]]
    stored = b"".join(path.read_bytes() for path in gate.home.rglob("*") if path.is_file())
    assert secret.encode() not in stored


@pytest.mark.postgres
def test_e1_on_postgresql_a_key_that_was_created_elsewhere_is_known_at_once_and_a_removed_one_soon(
    postgres: Server, tmp_path: Path
):
    with Served(tmp_path, FLEETGATE_STORE=fresh_store(postgres)) as gate:

        def status(key: str) -> int:
            return gate.request("POST", "/v1/leases", {"models": ["umans/coder"]}, token=key).status

        keys = [create(gate, name, "--project", "web") for name in ("one", "two", "three")]
        assert [status(key) for key in keys] == [201, 201, 201]
        assert gate.cli("key", "rm", "one").returncode == 0
        gate.wait_until(lambda: status(keys[0]) == 401, "the removed key is known")
        key = create(gate, "four", "--project", "web")
        called = gate.request("GET", "/anthropic/v1/nothing", token="", x_api_key=key)
        assert b"this access key is not valid" not in called.body, "the proxy knows it, too"
        viewer = create(gate, "five", "--role", "viewer")
        signed_in = [gate.request("POST", "/v1/session", {"key": key}, token="").status for key in (viewer, "fgk_no")]
        assert signed_in == [200, 403]
        unknown = gate.request("GET", "/anthropic/v1/nothing", token="", x_api_key="fgk_unknown")
        assert (unknown.status, b"this access key is not valid" in unknown.body) == (401, True)


async def test_e1_guesses_of_keys_cost_few_looks_at_a_shared_log():
    loop = asyncio.get_running_loop()
    looks: list[asyncio.Future[None]] = []

    def look() -> asyncio.Future[None]:
        looks.append(loop.create_future())
        loop.call_soon(looks[-1].set_result, None)
        return looks[-1]

    core: Any = SimpleNamespace(
        loop=loop,
        now=lambda: 0,
        log=SimpleNamespace(is_shared=True),
        commits=SimpleNamespace(busy=False, catch_up_in_thread=look),
        replica=SimpleNamespace(loaded=SimpleNamespace(state=State())),
    )
    keys, began = AccessKeys(core), loop.time()
    waiting = set()
    for number in range(1000):
        with pytest.raises(KeyNotKnownYet) as caught:
            keys.find(f"fgk_{number}")
        waiting.add(caught.value.looked)
        if number % 100 == 0:
            await asyncio.sleep(0.01)  # a look may begin
    async with asyncio.timeout(30):
        await asyncio.wait([*waiting])
    assert 1 <= len(looks) <= 2 + (loop.time() - began) / 0.25
    assert keys.find("fgk_999") is None, "after the look"
    assert keys.find("sk-of-a-provider") is None
