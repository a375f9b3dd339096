"""Caps, budgets and usage by access key, keys over HTTP, and the authors of changes (rules E1 to E3)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from fleetgate.cli.click_group import COMMANDS
from tests.api.served import Served
from tests.api.test_access_keys import create, routes
from tests.api.test_metrics import read

BODY: dict[str, Any] = {"models": ["umans/coder"], "renew_within_s": 600}


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    config = '[requests]\numans = { cap = 9, cooldown = "0", on_429 = "fixed" }\n'
    config += 'key = { cap = 2, cooldown = "0" }\n"key:ann" = { cap = 1, cooldown = "0" }\n'
    with Served(tmp_path_factory.mktemp("keys"), config) as served:
        yield served


@pytest.fixture(scope="module")
def ann(gate: Served) -> str:
    return create(gate, "ann", "--project", "docs", "--max-priority", "5")


@pytest.fixture(scope="module")
def bob(gate: Served) -> str:
    return create(gate, "bob", "--project", "web", "--budget", "calls=3/day")


def acquire(gate: Served, token: str, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = gate.request("POST", "/v1/leases", {**BODY, **more}, token=token).json
    return found


def test_e1_a_cap_of_a_key_counts_what_was_asked_for_with_that_key(gate: Served, ann: str, bob: str):
    first = acquire(gate, ann)["lease"]
    second = acquire(gate, ann)
    assert (second["reason"]["code"], second["reason"]["pool"]) == ("concurrency_cap", "key:ann")
    others = [acquire(gate, bob) for _ in range(3)]
    assert ["lease" in each for each in others] == [True, True, False]
    assert others[2]["reason"]["pool"] == "key:bob"
    own = gate.ok("POST", "/v1/leases", BODY)
    assert own["lease"], "the owner's token is no key"
    held = {each["id"]: each["access_key"] for each in gate.ok("GET", "/v1/leases")["leases"]}
    assert (held[first], held[own["lease"]]) == ("ann", None)
    listed = {each["name"]: each for each in gate.ok("GET", "/v1/keys")["keys"]}
    assert (listed["ann"]["running"], listed["ann"]["caps"]["requests"]) == (1, 1)
    for each in held:
        gate.ok("POST", f"/v1/leases/{each}/release", {"usage": {"calls": 1, "input": 10}})
    listed = {each["name"]: each for each in gate.ok("GET", "/v1/keys")["keys"]}
    assert [(each["name"], each["used"], each["free"]) for each in listed["bob"]["budgets"]] == [
        ("key:bob calls/day", 2, 1)
    ]


def test_e1_no_client_can_say_that_it_has_the_key_of_another(gate: Served, ann: str):
    for field in ("access_key", "key_name"):
        answer = gate.request("POST", "/v1/leases", {**BODY, field: "bob"}, token=ann)
        assert (answer.status, field in answer.json["error"]) == (400, True)
        job = gate.request("POST", "/v1/jobs", {"command": ["true"], field: "bob"}, token=ann)
        assert job.status == 400
    named = acquire(gate, ann, key="bob", client="bob", role="bob", name="key:bob")["lease"]
    (held,) = [each for each in gate.ok("GET", "/v1/leases")["leases"] if each["id"] == named]
    assert held["access_key"] == "ann"
    gate.ok("POST", f"/v1/leases/{named}/release", {"usage": {"calls": 1}})


def test_u4_usage_and_metrics_are_by_key(gate: Served, ann: str, bob: str):
    rows = {each["key"]: each["calls"] for each in gate.ok("GET", "/v1/usage?by=key")["rows"]}
    assert (rows["ann"], rows["bob"]) == (2, 2)
    by_run = gate.ok("GET", "/v1/usage?by=key,run")["rows"]
    assert {each["key"] for each in by_run} >= {"ann", "bob"}
    shown = gate.cli("usage", "--by", "key", "--json")
    assert {each["key"] for each in json.loads(shown.stdout)["rows"]} == {"ann", "bob", None}
    gate.wait_until(lambda: read(gate).get('fleetgate_key_calls_total{key="ann"}') == 2, "the feed has counted")


def test_e1_a_job_counts_for_the_key_that_submitted_it_or_ran_it_again(gate: Served, bob: str):
    also = create(gate, "also", "--project", "web")
    job = gate.request("POST", "/v1/jobs", {"command": ["true"], "key": "once"}, token=bob).json["id"]
    (ticket,) = [each for each in gate.events("queued") if each["id"] == job]
    assert (ticket["ticket"]["spec"]["access_key"], ticket["ticket"]["by"]) == ("bob", "key bob")
    assert gate.request("POST", f"/v1/jobs/{job}/cancel", {}, token=bob).status == 200
    again = gate.request("POST", f"/v1/jobs/{job}/retry", {}, token=also)
    assert (again.status, again.json["access_key"], again.json["by"]) == (200, "also", "key bob")
    gate.ok("POST", f"/v1/jobs/{job}/cancel", {})


def test_e2_an_idempotency_key_that_another_project_uses_does_not_say_who_uses_it(gate: Served, ann: str):
    held = gate.ok("POST", "/v1/leases", {**BODY, "key": "shared", "project": "web"})["lease"]
    refused = acquire(gate, ann, key="shared")
    assert (refused["reason"]["code"], held in json.dumps(refused)) == ("key_taken", False)
    gate.ok("POST", f"/v1/leases/{held}/release", {})


# Keys over HTTP.


def test_e1_an_admin_manages_keys_over_http_and_each_is_in_one_answer_that_is_not_cached(gate: Served):
    admin = create(gate, "root", "--role", "admin")
    body = {"name": "new", "project": "web", "class": "batch", "max_running": 2, "budgets": ["usd=5/day"]}
    made = gate.request("POST", "/v1/keys", {**body, "expires": "1h"}, token=admin)
    assert (made.status, made.headers["cache-control"]) == (201, "no-store")
    key = made.json["key"]
    (listed,) = [each for each in gate.ok("GET", "/v1/keys")["keys"] if each["name"] == "new"]
    assert (listed["role"], listed["work_class"], listed["caps"]) == ("agent", "batch", {"agents": 2, "requests": 2})
    assert (listed["budgets"][0]["name"], listed["expired"]) == ("key:new usd/day", False)
    assert gate.request("GET", "/v1/session", token=key).json["key"] == "new"
    rotated = gate.request("POST", "/v1/keys/new/rotate", {}, token=admin)
    assert (rotated.status, rotated.headers["cache-control"]) == (200, "no-store")
    assert gate.request("GET", "/v1/session", token=key).status == 401
    assert gate.request("DELETE", "/v1/keys/new", token=admin).json == {"removed": "new"}
    assert gate.request("GET", "/v1/session", token=rotated.json["key"]).status == 401
    assert not [each for each in gate.ok("GET", "/v1/budgets")["budgets"] if each["name"].startswith("key:new")]
    assert gate.request("DELETE", "/v1/keys/new", token=admin).status == 404
    assert gate.request("POST", "/v1/keys/new/rotate", {}, token=admin).status == 404
    for wrong in ({"name": "a b"}, {"name": "x"}, {"name": "x", "project": "p", "budgets": ["5 usd"]}):
        assert gate.request("POST", "/v1/keys", wrong, token=admin).status == 400
    for more in ({"expires": "soon"}, {"role": "root"}, {"max_running": 0}):
        assert gate.request("POST", "/v1/keys", {"name": "x", "project": "p", **more}, token=admin).status == 400
    made_by = {each["key"]["name"]: each["by"] for each in gate.events("key_set")}
    assert made_by["new"] == "key root"


def cli(gate: Served, token: str, *words: str) -> subprocess.CompletedProcess[str]:
    """`fleetgate key` on a machine that has neither the store nor the token's file."""
    environ = {"PATH": gate.environ["PATH"], "HOME": "/nonexistent", "FLEETGATE_TOKEN": token}
    command = [sys.executable, "-m", "fleetgate", "key", "--service", f"http://127.0.0.1:{gate.port}", *words]
    return subprocess.run(command, env=environ, text=True, capture_output=True, timeout=60, check=False)


def test_e1_the_command_manages_the_keys_of_a_service_elsewhere(gate: Served, ann: str):
    made = cli(gate, gate.token, "create", "far", "--project", "web", "--expires", "90d", "--max-running", "3")
    assert made.returncode == 0, made.stderr
    assert gate.request("GET", "/v1/session", token=made.stdout.strip()).json["key"] == "far"
    assert "far" in cli(gate, gate.token, "ls").stdout
    rotated = cli(gate, gate.token, "rotate", "far", "--json")
    assert gate.request("GET", "/v1/session", token=json.loads(rotated.stdout)["key"]).status == 200
    assert cli(gate, gate.token, "rm", "far").stdout == "removed far\n"
    refused = cli(gate, ann, "ls")
    assert (refused.returncode, "needs the role admin" in refused.stderr) == (77, True)
    assert cli(gate, "", "ls").returncode == 64
    assert cli(gate, gate.token, "rm", "far").returncode == 64
    gone = subprocess.run(
        [sys.executable, "-m", "fleetgate", "key", "--service", "http://127.0.0.1:1", "ls"],
        env={**gate.environ, "FLEETGATE_TOKEN": gate.token},
        text=True,
        capture_output=True,
        check=False,
    )
    assert (gone.returncode, gate.token in gone.stderr) == (69, False)
    for url in ("gate.example.org", "ftp://x", "http://me:pw@x", "http://x:99999"):
        command = [sys.executable, "-m", "fleetgate", "key", "--service", url, "ls"]
        assert subprocess.run(command, env={**gate.environ, "FLEETGATE_TOKEN": "t"}, check=False).returncode == 64


# Every command as HTTP has it, with the key of an agent. "": it works on files of its machine, and HTTP has nothing.
AS_HTTP: dict[str, list[tuple[str, str, dict[str, Any] | None]]] = {
    "accounts": [("GET", "/v1/accounts", None)],
    "acquire": [("POST", "/v1/leases", {**BODY, "project": "web"})],
    "release": [("POST", "/v1/leases/{lease}/release", {"force": True})],
    "approve": [("POST", "/v1/jobs/{job}/approve", {})],
    "backoff": [
        ("PUT", "/v1/backoffs", {"key": "umans", "reason": "quota", "for_s": 60}),
        ("DELETE", "/v1/backoffs?key=umans", None),
        ("GET", "/v1/backoffs", None),
    ],
    "budget": [
        ("POST", "/v1/budgets", {"selector": "key:ann", "unit": "usd", "amount": 99, "per": "day"}),
        ("GET", "/v1/budgets", None),
    ],
    "bump": [("POST", "/v1/tickets/{ticket}/bump", {})],
    "cancel": [("DELETE", "/v1/tickets/{ticket}", None), ("POST", "/v1/jobs/{job}/cancel", {})],
    "cap": [
        ("PUT", "/v1/caps", {"selector": "key:ann", "cap": 99}),
        ("DELETE", "/v1/caps?selector=key:ann", None),
        ("GET", "/v1/caps", None),
    ],
    "config": [("GET", "/v1/config", None)],
    "cooldown": [("PUT", "/v1/cooldown", {"selector": "umans", "cooldown_ms": 0})],
    "drain": [("POST", "/v1/drain", {"host": "x"})],
    "explain": [("GET", "/v1/explain?pool=umans", None)],
    "history": [("GET", "/v1/history", None)],
    "jobs": [("GET", "/v1/jobs?project=web", None)],
    "key": [
        ("GET", "/v1/keys", None),
        ("POST", "/v1/keys", {"name": "evil", "role": "admin"}),
        ("POST", "/v1/keys/ann/rotate", {}),
        ("DELETE", "/v1/keys/bob", None),
    ],
    "logs": [("GET", "/v1/jobs/{job}/output", None)],
    "metrics": [("GET", "/v1/metrics", None), ("GET", "/metrics", None)],
    "open": [("POST", "/v1/login-links", {})],
    "pause": [("POST", "/v1/pause", {"target": "umans", "kind": "requests"})],
    "projects": [("GET", "/v1/projects", None)],
    "ps": [("GET", "/v1/leases", None)],
    "queue": [("GET", "/v1/tickets", None)],
    "report": [("POST", "/v1/report", {"lease": "{lease}"})],
    "resume": [("POST", "/v1/resume", {"target": "umans", "kind": "requests"})],
    "retry": [("POST", "/v1/jobs/{job}/retry", {})],
    "run": [("POST", "/v1/leases", {**BODY, "kind": "agents", "project": "web"})],
    "show": [("GET", "/v1/jobs/{job}", None), ("GET", "/v1/leases/{lease}", None)],
    "status": [("GET", "/v1/status", None)],
    "stop": [("POST", "/v1/leases/{lease}/stop", {})],
    "submit": [("POST", "/v1/jobs", {"command": ["true"], "project": "web"})],
    "top": [("GET", "/v1/overview", None)],
    "usage": [("GET", "/v1/usage", None)],
    "wait": [("GET", "/v1/jobs/{job}", None)],
}
# They answer an agent about models, or work on files and processes of their own machine only.
LOCAL = {
    *("capacity", "select", "clean", "completion", "digest", "dispatch", "doctor", "env", "help", "hook", "init"),
    *("mcp", "node", "notify", "observe", "serve", "session", "shim", "simulate", "statusline", "store", "worker"),
}


def test_e2_no_command_does_anything_outside_the_project_of_an_agents_key(gate: Served, ann: str, bob: str):
    assert set(COMMANDS) == set(AS_HTTP) | LOCAL, "a new command: say what it is over HTTP"
    lease = acquire(gate, bob)["lease"]
    ticket = acquire(gate, bob, slots=2, wait_s=0.1)["id"]
    job = gate.request("POST", "/v1/jobs", {"command": ["true"]}, token=bob).json["id"]
    names = {"{lease}": lease, "{ticket}": ticket, "{job}": job}

    def filled(text: str) -> str:
        for name, value in names.items():
            text = text.replace(name, value)
        return text

    known = {(method, path.partition("?")[0]) for method, path in routes(gate)}
    before = [gate.ok("GET", path) for path in ("/v1/caps", "/v1/keys", "/v1/budgets", f"/v1/jobs/{job}")]
    for name, requests in AS_HTTP.items():
        for method, path, body in requests:
            sent = None if body is None else json.loads(filled(json.dumps(body)))
            answer = gate.request(method, filled(path), sent, token=ann)
            told = f"{name}: {method} {path}: {answer.status} {answer.body!r}"
            harmless = answer.status in (200, 202) and (answer.json.get("released"), answer.json.get("stopping")) in (
                (False, None),
                (None, False),
            )
            # What it may read is its own part: nothing there names the other project, or what belongs to it.
            others = [what for what in (*names.values(), "web") if what in answer.body.decode()]
            own_part = method == "GET" and answer.status == 200 and not others
            assert answer.status in (403, 404) or harmless or own_part, told
            assert "there is no /" not in answer.json.get("error", ""), told
    assert ("POST", "/v1/keys") in known
    assert [gate.ok("GET", path) for path in ("/v1/caps", "/v1/keys", "/v1/budgets", f"/v1/jobs/{job}")] == before
    assert gate.request("GET", f"/v1/leases/{lease}", token=bob).status == 200
    assert gate.request("GET", f"/v1/tickets/{ticket}", token=bob).status == 200
    high = gate.request("POST", "/v1/jobs", {"command": ["true"], "priority": 100}, token=ann).json["id"]
    assert gate.request("GET", f"/v1/jobs/{high}", token=ann).json["priority"] == 5


# Authors.


def test_e3_every_change_names_its_author(gate: Served):
    ops = create(gate, "ops", "--role", "operator")
    change = [
        ("PUT", "/v1/caps", {"selector": "groq", "cap": 3}),
        ("POST", "/v1/pause", {"target": "groq", "kind": "requests"}),
        ("POST", "/v1/resume", {"target": "groq", "kind": "requests"}),
        ("POST", "/v1/caps/reset", {"selector": "groq", "kind": "requests"}),
        ("POST", "/v1/budgets", {"selector": "groq", "unit": "calls", "amount": 9, "per": "day"}),
        ("PUT", "/v1/backoffs", {"key": "groq", "reason": "quota", "for_s": 60}),
        ("DELETE", "/v1/backoffs?key=groq", None),
        ("POST", "/v1/drain", {"host": "elsewhere"}),
    ]
    for token, author in ((ops, "key ops"), (gate.token, "owner")):
        since = gate.ok("GET", "/v1/status")["seq"]
        for method, path, body in change:
            if author == "owner" and path.endswith("drain"):
                body = {"host": "elsewhere", "end": True}
            answer = gate.request(method, path, body, token=token)
            assert answer.status in (200, 201), f"{method} {path}: {answer.body!r}"
        events = [each for each in gate.ok("GET", f"/v1/history?since={since}")["events"] if each["seq"] > since]
        kinds = {each["type"] for each in events}
        expected = {"rule_set", "paused", "resumed", "cap_reset", "budget_set", "backed_off", "backoff_ended"}
        assert kinds >= expected
        assert {each["by"] for each in events if "by" in each} == {author}, events
        assert all(f"by {author}" in each["text"] for each in events if each.get("by"))
    assert gate.cli("cap", "set", "mistral", "4").returncode == 0
    (local,) = [each for each in gate.events("rule_set") if each["rule"]["selector"] == "mistral"]
    assert local["by"].startswith("root@") or "@" in local["by"]
    shown = gate.cli("history", "-n", "1").stdout
    assert f"(by {local['by']})" in shown
    (loaded,) = gate.events("file_loaded")
    assert "@" in loaded["by"]
