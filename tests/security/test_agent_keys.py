"""An agent's key against the other projects of a service (rules E1, E2): what a malicious client with one tries."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.api.served import Answer, Served
from tests.api.test_access_keys import create

BODY: dict[str, Any] = {"models": ["umans/coder"], "renew_within_s": 600}
CONFIG = """
[requests]
umans = { cap = 1, cooldown = "0" }
groq = { cap = 2, cooldown = "0" }
mistral = { cap = 2, cooldown = "0" }
"project:docs" = 5
"""


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("keys"), CONFIG) as served:
        yield served


@pytest.fixture(scope="module")
def agent(gate: Served) -> str:
    return create(gate, "ci", "--project", "web", "--class", "batch", "--max-priority", "3", "--max-running", "4")


@pytest.fixture(scope="module")
def others(gate: Served) -> dict[str, str]:
    """What another project has: a key, a lease and a ticket, and a job with names that are not for the agent."""
    token = create(gate, "theirs", "--project", "docs", "--max-running", "9", "--budget", "usd=5/day")

    def post(path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = gate.request("POST", path, body, token=token)
        assert answer.status in (201, 202), answer.body
        found: dict[str, Any] = answer.json
        return found

    lease = post("/v1/leases", {**BODY, "id": "theirlease1"})["lease"]
    ticket = post("/v1/leases", {**BODY, "id": "theirticket", "wait_s": 0.1, "key": "nightly"})["id"]
    job = post("/v1/jobs", {"command": ["true"], "key": "jobkey", "session": "sess1", "name": "secretname"})["id"]
    return {"token": token, "lease": lease, "ticket": ticket, "job": job}


def tells(answer: Answer, others: dict[str, str]) -> list[str]:
    """What an answer says of the other project."""
    words = (others["lease"], others["ticket"], others["job"], "docs", "theirs", "secretname", "process")
    return [word for word in words if word in answer.body.decode()]


def test_e1_a_since_in_the_past_gets_no_request_past_the_highest_priority_of_its_key(gate: Served, agent: str):
    held = gate.ok("POST", "/v1/leases", {**BODY, "models": ["mistral/m"], "slots": 2})["lease"]
    own = {**BODY, "models": ["mistral/m"], "wait_s": 0.1, "project": "web", "class": "batch", "priority": 3}
    first = gate.request("POST", "/v1/leases", own).json["id"]
    old = {**own, "priority": 100, "since": "2020-01-01T00:00:00Z"}
    second = gate.request("POST", "/v1/leases", old, token=agent).json["id"]
    positions = {each["id"]: each["position"] for each in gate.ok("GET", "/v1/tickets?project=web")["tickets"]}
    assert positions[first] < positions[second]
    unlimited = create(gate, "unlimited", "--project", "web")
    third = gate.request("POST", "/v1/leases", old, token=unlimited).json["id"]
    assert gate.request("GET", f"/v1/tickets/{third}", token=unlimited).json["since"] == "2020-01-01T00:00:00.000Z"
    for each in (first, second, third):
        gate.ok("DELETE", f"/v1/tickets/{each}")
    gate.ok("POST", f"/v1/leases/{held}/release", {})


def test_e1_a_job_that_a_key_runs_again_has_the_class_and_at_most_the_priority_of_that_key(gate: Served, agent: str):
    more = {"command": ["true"], "project": "web", "priority": 90, "class": "interactive"}
    job = gate.ok("POST", "/v1/jobs", more)["id"]
    assert gate.request("POST", f"/v1/jobs/{job}/cancel", {}, token=agent).status == 200
    again = gate.request("POST", f"/v1/jobs/{job}/retry", {}, token=agent)
    assert (again.status, again.json["priority"], again.json["class"]) == (200, 3, "batch")
    (ticket,) = [each for each in gate.ok("GET", "/v1/tickets")["tickets"] if each["id"] == job]
    assert (ticket["priority"], ticket["class"]) == (3, "batch")
    gate.ok("POST", f"/v1/jobs/{job}/cancel", {})


def test_e2_a_job_with_the_key_or_session_of_another_projects_request_is_refused_without_a_word_about_it(
    gate: Served, agent: str, others: dict[str, str]
):
    for more in ({"key": "jobkey"}, {"key": "nightly"}, {"session": "sess1"}):
        answer = gate.request("POST", "/v1/jobs", {"command": ["true"], **more}, token=agent)
        assert (answer.status, tells(answer, others)) == (409, []), answer.body
        assert "is taken" in answer.json["error"]
        said = gate.request("POST", "/v1/jobs", {"command": ["true"], **more}, token=gate.token)
        assert tells(said, others), "the owner is told who has it"


def test_e2_of_jobs_that_are_refused_for_another_projects_key_none_is_in_the_queue(
    gate: Served, agent: str, others: dict[str, str]
):
    batch = {"jobs": [{"command": ["true"], "name": "first"}, {"command": ["true"], "key": "jobkey"}]}
    answer = gate.request("POST", "/v1/jobs/batch", batch, token=agent)
    assert (answer.status, tells(answer, others)) == (409, [])
    assert not [each for each in gate.ok("GET", "/v1/jobs")["jobs"] if each["name"] == "first"]


def test_e2_a_report_of_an_agent_is_about_what_its_project_uses_and_names_no_pool(
    gate: Served, agent: str, others: dict[str, str]
):
    for target in ("groq", "groq/x", "anthropic/claude", "umans", "nope", "docs", "project:docs", "key:theirs"):
        for kind in ({}, {"kind": "agents"}, {"kind": "requests"}):
            answer = gate.request("POST", "/v1/report", {"target": target, **kind}, token=agent)
            named = [word for word in tells(answer, others) if word not in target]
            assert (answer.status, named) == (404, []), answer.body
    pools = gate.ok("GET", "/v1/status")["pools"]
    assert not [each for each in pools if each["paused_until"]]
    assert not gate.ok("GET", "/v1/backoffs")["backoffs"]
    lease = gate.request("POST", "/v1/leases", {**BODY, "models": ["groq/x"]}, token=agent).json["lease"]
    for target in ("groq", "groq/x"):
        told = gate.request("POST", "/v1/report", {"target": target, "retry_after_s": 1}, token=agent)
        assert (told.status, told.json["pool"]) == (200, "groq")
    assert gate.request("POST", "/v1/report", {"target": "umans"}, token=agent).status == 404
    gate.request("POST", f"/v1/leases/{lease}/release", {}, token=agent)


def test_e2_an_ended_lease_of_another_project_looks_like_one_that_never_was(
    gate: Served, agent: str, others: dict[str, str]
):
    body = {**BODY, "models": ["mistral/m"], "id": "theirended"}
    gate.request("POST", "/v1/leases", body, token=others["token"])
    assert gate.request("POST", "/v1/leases/theirended/release", {}, token=others["token"]).json["released"]
    renewed = [
        gate.request("POST", f"/v1/leases/{ident}/renew", {}, token=agent) for ident in ("theirended", "neverthere")
    ]
    assert len({(each.status, each.body.replace(b"theirended", b"neverthere")) for each in renewed}) == 1
    assert gate.request("POST", "/v1/leases/theirended/renew", {}, token=others["token"]).status == 410
    again = [
        gate.request("POST", "/v1/leases", {**body, "id": ident}, token=agent)
        for ident in ("theirended", others["lease"])
    ]
    told = {(each.status, each.body.replace(b"theirended", others["lease"].encode())) for each in again}
    assert ([status for status, _ in told], len(told)) == ([404], 1)


def test_e2_an_agent_is_told_of_its_own_lease_that_it_was_not_renewed(gate: Served, agent: str):
    body = {**BODY, "models": ["cohere/m"], "renew_within_s": 5}
    lease = gate.request("POST", "/v1/leases", body, token=agent).json["lease"]
    gate.wait_until(lambda: lease not in {each["id"] for each in gate.ok("GET", "/v1/leases")["leases"]}, "it ended")
    gate.wait_until(lambda: [each for each in gate.events("reclaimed") if each["id"] == lease], "the event")
    renewed = gate.request("POST", f"/v1/leases/{lease}/renew", {}, token=agent)
    assert (renewed.status, renewed.json["cause"]) == (410, "unrenewed")


def test_e1_capacity_counts_the_caps_of_the_key_that_asks(gate: Served):
    key = create(gate, "small", "--project", "small", "--max-running", "1")
    body = {**BODY, "models": ["cohere/m"]}
    path = "/v1/capacity?models=cohere/m&kind=requests"
    assert gate.request("GET", path, token=key).json["free"] == 1
    lease = gate.request("POST", "/v1/leases", body, token=key).json["lease"]
    found = gate.request("GET", path, token=key).json
    assert (found["level"], found["free"], found["reason"]["pool"]) == ("red", 0, "key:small")
    gate.ok("POST", f"/v1/leases/{lease}/release", {})


def test_e2_of_two_projects_that_name_the_same_id_at_the_same_moment_one_is_refused(gate: Served):
    """The id is in no state while the first request is being decided, and the second must not join it."""
    tokens = [create(gate, f"{project}-only", "--project", project) for project in ("left", "right")]
    with ThreadPoolExecutor(2) as both:
        for number in range(100):
            wait = {"wait_s": 0.1} if number % 2 else {}
            body = {**BODY, "models": ["together/m"], "id": f"sameid{number:04}", **wait}
            tries = [both.submit(gate.request, "POST", "/v1/leases", body, token=token) for token in tokens]
            answers = [each.result() for each in tries]
            assert sorted(each.status for each in answers) == [201, 404], [each.body for each in answers]
            owner = tokens[[each.status for each in answers].index(201)]
            released = gate.request("POST", f"/v1/leases/{body['id']}/release", {}, token=owner)
            assert released.json["released"]


def test_e2_what_people_do_to_a_pool_is_told_to_an_agent_without_their_names(gate: Served):
    """Pauses, backoffs and drains have authors, which are in the history and not for agents."""
    boss = create(gate, "boss", "--role", "operator")
    key = create(gate, "reader", "--project", "curious")
    changes = [
        ("POST", "/v1/pause", {"target": "mistral", "kind": "requests"}),
        ("PUT", "/v1/backoffs", {"key": "groq", "reason": "quota", "for_s": 600}),
        ("PUT", "/v1/caps", {"selector": "project:curious", "cap": 3}),
    ]
    for method, path, body in changes:
        assert gate.request(method, path, body, token=boss).status == 200
    waiting = [
        gate.request("POST", "/v1/leases", {**BODY, "models": [model], "wait_s": 0.1}, token=key)
        for model in ("mistral/m", "groq/x")
    ]
    paths = ["/v1/overview", "/v1/status", "/v1/tickets", "/v1/projects", "/v1/capacity?kind=requests&models=mistral/m"]
    paths += ["/v1/capacity?kind=requests&models=groq/x", "/v1/select?models=groq/x,mistral/m"]
    answers = [gate.request("GET", path, token=key) for path in paths]
    assert [each.status for each in answers] == [200] * len(paths)
    for each in (*answers, *waiting):
        assert not [name for name in (b"boss", b"theirs", b"docs") if name in each.body], each.body
    assert b"boss" in gate.request("GET", "/v1/history").body
    for each in waiting:
        gate.request("DELETE", f"/v1/tickets/{each.json['id']}", token=key)
    gate.ok("POST", "/v1/resume", {"target": "mistral", "kind": "requests"})
    gate.ok("DELETE", "/v1/backoffs?key=groq")


def test_e2_a_viewer_rotates_no_models(gate: Served):
    viewer = create(gate, "looks", "--role", "viewer")
    body = {"models": ["umans/a", "umans/b"]}
    assert gate.request("POST", "/v1/select", body, token=viewer).status == 200
    assert gate.request("POST", "/v1/select", {**body, "rotate": "review"}, token=viewer).status == 403
    key = create(gate, "rotates", "--project", "web")
    assert gate.request("POST", "/v1/select", {**body, "rotate": "review"}, token=key).status == 200
