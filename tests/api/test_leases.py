"""H2: slots over HTTP: long-poll, renewals, and a service that is killed and started again."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread
from time import monotonic
from typing import Any

import pytest

from tests.api.served import Served

ME = "my-request-1"


def test_h2_o5_a_slot_is_had_renewed_and_given_back(fresh: Served):
    fresh.cap("umans", 1)
    answer = fresh.lease(client="worker 7", command="summarise")
    assert answer.status == 201
    assert set(answer.json) == {"lease", "model", "waited_s", "renew_within_s", "ends_at"}
    ident = answer.json["lease"]
    (listed,) = fresh.get("/v1/leases").json["leases"]
    assert (listed["id"], listed["client"], listed["command"]) == (ident, "worker 7", "summarise")
    assert listed["lives_with"] is None
    assert ident in fresh.cli("ps").stdout
    assert fresh.ok("POST", f"/v1/leases/{ident}/renew")["renew_within_s"] == 30
    released = fresh.ok("POST", f"/v1/leases/{ident}/release")
    assert (released["released"], released["outcome"]) == (True, "ok")
    again = fresh.ok("POST", f"/v1/leases/{ident}/release")  # rule L1
    assert again["released"] is False
    gone = fresh.request("POST", f"/v1/leases/{ident}/renew")
    assert (gone.status, gone.json["reason"], gone.json["cause"]) == (410, "gone", "released")


def test_h2_o5_who_does_not_wait_is_told_why_at_once(fresh: Served):
    fresh.cap("umans", 1)
    fresh.lease()
    answer = fresh.lease()
    assert answer.status == 200
    assert answer.json["deferred"] is True
    assert answer.json["in_queue"] is False
    assert answer.json["reason"]["code"] == "concurrency_cap"
    assert fresh.get("/v1/tickets").json["total"] == 0


def test_h2_a_long_poll_ends_when_the_slot_is_free(fresh: Served):
    fresh.cap("umans", 1, cooldown_ms=0)
    ident = fresh.lease().json["lease"]
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(fresh.lease, wait_s=30)
        fresh.wait_until(lambda: fresh.get("/v1/tickets").json["total"] == 1, "it waits in the queue")
        fresh.ok("POST", f"/v1/leases/{ident}/release")
        answer = waiting.result()
    assert answer.status == 201
    assert answer.json["lease"] != ident


def test_h2_between_polls_a_ticket_keeps_its_place(fresh: Served):
    fresh.cap("umans", 1, cooldown_ms=0)
    first = fresh.lease().json["lease"]
    mine = fresh.lease(wait_s=0.1, id=ME)
    assert (mine.status, mine.json["in_queue"], mine.json["position"], mine.json["id"]) == (202, True, 1, ME)
    assert fresh.lease(wait_s=0.1).json["position"] == 2
    assert fresh.lease(wait_s=0.1, id=ME).json["position"] == 1
    fresh.ok("POST", f"/v1/leases/{first}/release")  # while nobody polls
    got = fresh.lease(wait_s=5, id=ME)
    assert (got.status, got.json["lease"]) == (201, ME)
    assert fresh.lease(wait_s=5, id=ME).json == got.json  # the answer was lost: the same again


def test_h2_an_answer_that_was_lost_is_given_again_and_takes_no_second_slot(fresh: Served):
    fresh.cap("umans", 2)
    assert fresh.lease(id=ME).json == fresh.lease(id=ME).json
    assert len(fresh.get("/v1/leases").json["leases"]) == 1


def test_h2_the_id_of_a_process_own_lease_is_nobody_elses(fresh: Served):
    acquired = fresh.cli("acquire", "-m", "umans/coder", "--pid", "1")
    ident = acquired.stdout.strip()
    assert fresh.lease(id=ident).status == 404
    assert fresh.request("POST", f"/v1/leases/{ident}/renew").status == 404


def test_h2_a_cancelled_ticket_ends_its_poll(fresh: Served):
    fresh.cap("umans", 1)
    fresh.lease()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(fresh.lease, wait_s=30, id=ME)
        fresh.wait_until(lambda: fresh.get("/v1/tickets").json["total"] == 1, "it waits in the queue")
        assert fresh.ok("DELETE", f"/v1/tickets/{ME}") == {"cancelled": [ME]}
        answer = waiting.result()
    assert (answer.status, answer.json["reason"], answer.json["cause"]) == (410, "gone", "cancelled")


def test_h2_a_lease_that_is_not_renewed_is_reclaimed_and_history_says_so(fresh: Served):
    kept, lost = "kept-kept-1", "lost-lost-1"
    fresh.cap("umans", 2, on_429="step")
    assert fresh.lease(id=kept, renew_within_s=5).status == 201
    assert fresh.lease(id=lost, renew_within_s=5).status == 201
    done = Event()

    def renew() -> None:
        while not done.wait(1):
            fresh.ok("POST", f"/v1/leases/{kept}/renew")

    renewing = Thread(target=renew)
    renewing.start()
    try:
        (reclaimed,) = fresh.wait_until(lambda: fresh.events("reclaimed"), "it is reclaimed")
    finally:
        done.set()
        renewing.join()
    assert (reclaimed["id"], reclaimed["cause"]) == (lost, "unrenewed")
    assert "did not renew" in reclaimed["text"]
    assert [lease["id"] for lease in fresh.get("/v1/leases").json["leases"]] == [kept]
    gone = fresh.request("POST", f"/v1/leases/{lost}/renew")
    assert (gone.status, gone.json["cause"]) == (410, "unrenewed")
    assert fresh.events("renewed") == []  # renewals this frequent are not written down


def test_h2_a_client_that_hangs_up_leaves_the_queue_after_the_grace_time(fresh: Served):
    fresh.cap("umans", 1)
    fresh.lease(renew_within_s=120)
    body = b'{"models":["umans/coder"],"wait_s":60,"id":"my-request-1"}'
    head = f"POST /v1/leases HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {fresh.token}\r\n"
    with socket.create_connection(("127.0.0.1", fresh.port)) as raw:
        raw.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        fresh.wait_until(lambda: fresh.get("/v1/tickets").json["total"] == 1, "it waits in the queue")
    hung_up = monotonic()
    (left,) = fresh.wait_until(lambda: fresh.events("cancelled"), "it is taken out")
    assert monotonic() - hung_up < 30  # and not after its whole minute
    assert (left["id"], left["by"]) == (ME, "its client did not come back")


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_h2_leases_and_places_in_the_queue_outlive_the_service(fresh: Served, how: str):
    fresh.cap("umans", 1, cooldown_ms=0)
    fresh.lease(id="holder-0001", renew_within_s=60)
    assert fresh.lease(id=ME, wait_s=0.1).status == 202
    getattr(fresh, how)()
    assert '"id":"holder-0001"' in fresh.cli("ps", "--json").stdout  # it is not taken for dead
    fresh.start()
    assert fresh.ok("POST", "/v1/leases/holder-0001/renew")["lease"] == "holder-0001"
    assert fresh.lease(id=ME, wait_s=0.1).json["position"] == 1
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(fresh.lease, id=ME, wait_s=30)
        fresh.ok("POST", "/v1/leases/holder-0001/release")
        assert waiting.result().json["lease"] == ME
    spoke = {event["id"] for event in fresh.events("renewed")}
    assert spoke == {"holder-0001", ME}  # the new service speaks for them: one event each


def test_h2_what_nobody_comes_back_for_does_not_leak_over_a_restart(fresh: Served):
    fresh.cap("umans", 1)
    fresh.lease(id="holder-0001", renew_within_s=5)
    fresh.kill()
    fresh.start()
    (reclaimed,) = fresh.wait_until(lambda: fresh.events("reclaimed"), "it is reclaimed")
    assert (reclaimed["id"], reclaimed["cause"]) == ("holder-0001", "unrenewed")


def test_h6_polls_end_when_the_service_stops_and_go_on_with_the_next(fresh: Served):
    fresh.cap("umans", 1)
    fresh.lease(renew_within_s=120)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(fresh.lease, wait_s=60, id=ME)
        fresh.wait_until(lambda: fresh.get("/v1/tickets").json["total"] == 1, "it waits in the queue")
        assert fresh.stop() == 0
        assert waiting.result().status == 202
    fresh.start()
    assert fresh.lease(id=ME, wait_s=0.1).json["position"] == 1


def test_a10_a_key_that_is_taken_is_refused_and_names_its_owner(fresh: Served):
    fresh.lease(key="nightly", id="holder-0001")
    answer = fresh.lease(key="nightly", wait_s=5)
    assert (answer.status, answer.json["reason"]["code"]) == (200, "key_taken")
    assert "holder-0001" in answer.json["reason"]["text"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"models": ["nonsense"]}, None),
        ({"models": ["a/b"], "kind": "x"}, "kind"),
        ({"models": ["a/b"], "slots": 0}, "slots"),
        ({"models": ["a/b"], "wait_s": 61}, "wait_s"),
        ({"models": ["a/b"], "wait_s": "1"}, "wait_s"),
        ({"models": ["a/b"], "id": "short"}, "id"),
        ({"models": ["a/b"], "renew_within_s": 1}, "renew_within_s"),
        ({"models": ["a/b"], "since": "yesterday"}, None),
        ({"models": ["a/b"], "bogus": 1}, "bogus"),
        ({"models": ["a/b"], "project": "a\nb"}, None),
        ([], None),
    ],
)
def test_q1_a_request_that_cannot_be_is_refused_and_changes_nothing(served: Served, body: object, field: str | None):
    before = served.get("/v1/status").json["seq"]
    answer = served.request("POST", "/v1/leases", body)
    assert (answer.status, answer.json["reason"]) == (400, "bad_request")
    assert answer.json.get("field") == field or field is None
    assert served.get("/v1/status").json["seq"] == before


def test_a1_clients_of_one_pool_never_hold_more_than_its_cap(fresh: Served):
    fresh.cap("umans", 3, cooldown_ms=0)
    most = [0]

    def work(number: int) -> None:
        for _ in range(10):
            ident = fresh.lease(wait_s=30).json["lease"]
            most[0] = max(most[0], len(fresh.get("/v1/leases").json["leases"]))
            fresh.ok("POST", f"/v1/leases/{ident}/release")

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(work, range(12)))
    assert 1 <= most[0] <= 3
    assert fresh.get("/v1/leases").json["leases"] == []
    assert len(fresh.events("released")) == 120


def test_the_lease_of_a_process_that_still_runs_is_taken_back_by_force_only(fresh: Served):
    ident = fresh.cli("acquire", "--pid", str(os.getpid())).stdout.strip()
    refused = fresh.request("POST", f"/v1/leases/{ident}/release")
    assert (refused.status, refused.json["reason"]) == (409, "conflict")
    assert "is still running" in refused.json["error"]
    assert fresh.ok("POST", f"/v1/leases/{ident}/release", {"force": True})["forced"] is True


def test_l6_an_agent_is_stopped_over_http_and_a_client_cannot_be(fresh: Served):
    client = fresh.lease(client="worker 7", name="nightly").json["lease"]
    refused = fresh.request("POST", f"/v1/leases/{client}/stop")
    assert (refused.status, refused.json["reason"]) == (409, "conflict")
    (listed,) = fresh.get("/v1/leases").json["leases"]
    assert (listed["can_stop"], listed["cannot_stop"]) == (False, refused.json["error"])
    assert listed["name"] == "nightly"
    with fresh.spawn("run", "--name", "review", "-m", "umans/coder", "--", "sleep", "300") as run:
        found = fresh.wait_until(lambda: _agent(fresh), "the agent runs")
        assert (found["name"], found["can_stop"], found["stop_by"], found["job"]) == ("review", True, None, False)
        answer = fresh.request("POST", f"/v1/leases/{found['id']}/stop")
        assert (answer.status, answer.json["stopping"], answer.json["stop_by"]) == (202, True, "owner")
        assert run.wait(30) == 143
    assert fresh.request("POST", f"/v1/leases/{found['id']}/stop").json["stopping"] is False
    assert fresh.events("stop_requested")[0]["by"] == "owner"


def test_l6_the_service_ends_an_agent_whose_run_was_killed(fresh: Served):
    with fresh.spawn("run", "--", "sleep", "300") as run:
        found = fresh.wait_until(lambda: _agent(fresh), "the agent runs")
        run.kill()
        assert fresh.request("POST", f"/v1/leases/{found['id']}/stop").status == 202
        fresh.wait_until(lambda: not fresh.get("/v1/leases").json["leases"], "its slot is free")
    assert fresh.events("reclaimed")[0]["by"] == "owner"


def _agent(fresh: Served) -> Any:
    return next((each for each in fresh.get("/v1/leases").json["leases"] if each["child_pid"]), None)
