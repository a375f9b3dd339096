"""H2: `/v1/…` does what the command line does, with the same JSON, and errors as H3."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.served import Served


def cli(served: Served, *argv: str) -> Any:
    done = served.cli(*argv, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def fill(served: Served) -> Served:
    """One pool that is full, one waiting agent, a backoff."""
    served.cap("umans", 1)
    served.lease(id="holder-0001", renew_within_s=600, command="agent one")
    stand(served)
    served.ok("PUT", "/v1/backoffs", {"key": "openai/gpt-5", "reason": "overloaded", "for_s": 600})
    return served


def stand(served: Served) -> None:
    """Come to wait in the queue, or come back in time to keep the place."""
    assert served.lease(id="waiter-0001", wait_s=0.1, client="laptop").status == 202


@pytest.fixture
def busy(fresh: Served) -> Served:
    return fill(fresh)


@pytest.fixture(scope="module")
def one_of_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("busy")) as served:
        yield fill(served)


@pytest.fixture
def looked_at(one_of_all: Served) -> Served:
    """The same for tests that change nothing: to start a service for each would take most of the time."""
    stand(one_of_all)
    return one_of_all


def same(one: Any, other: Any) -> bool:
    """Equal, but for what goes by the moment at which it was looked at."""
    if isinstance(one, dict) and isinstance(other, dict):
        return all(key in other and (key in ("at", "age_s") or same(one[key], other[key])) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.mark.parametrize(
    ("path", "argv"),
    [
        ("status", ("status",)),
        ("tickets", ("queue",)),
        ("leases", ("ps",)),
        ("caps", ("cap", "ls")),
        ("backoffs", ("backoff", "ls")),
        ("capacity?models=umans/coder&kind=requests", ("capacity", "-m", "umans/coder", "--kind", "requests")),
        ("select?models=anthropic/x", ("select", "-m", "anthropic/x")),
        ("cooldown?selector=umans", ("cooldown", "umans")),
        ("metrics?hours=24", ("metrics",)),
        ("config", ("config", "show")),
    ],
)
def test_h2_o_listings_are_those_of_the_command_line(looked_at: Served, path: str, argv: tuple[str, ...]):
    done = looked_at.cli(*argv, "--json")
    told = json.loads(done.stdout)
    read = looked_at.get(f"/v1/{path}").json
    if path.startswith("metrics"):
        told.pop("since")  # now less a day
    assert same(told, read), (told, read)


def test_h2_o7_history_is_that_of_the_command_line(looked_at: Served):
    told = [json.loads(line) for line in looked_at.cli("history", "--json").stdout.splitlines()]
    read = looked_at.get("/v1/history").json
    assert [{key: value for key, value in event.items() if key != "text"} for event in read["events"]] == told
    assert (read["seq"], read["first_seq"], read["more"]) == (told[-1]["seq"], 1, False)
    page = looked_at.get("/v1/history?since=1&limit=2&types=granted,queued").json
    assert [event["type"] for event in page["events"]] == ["granted", "queued"]
    assert looked_at.get("/v1/history?limit=1").json["more"] is True


def test_h2_one_answer_has_what_a_page_needs(looked_at: Served):
    read = looked_at.get("/v1/overview?tickets=5").json
    assert read["status"]["waiting"] == 1
    assert [ticket["id"] for ticket in read["tickets"]] == ["waiter-0001"]
    assert [lease["id"] for lease in read["leases"]] == ["holder-0001"]
    assert read["session"]["may_change"] is False
    assert looked_at.get("/v1/overview?tickets=0").json["tickets"] == []


def test_h2_who_holds_and_who_waits(looked_at: Served):
    holders = looked_at.get("/v1/holders").json["holders"]
    assert {(each["client"], tuple(each["leases"]), tuple(each["tickets"])) for each in holders} == {
        ("127.0.0.1", ("holder-0001",), ()),
        ("laptop", (), ("waiter-0001",)),
    }


def test_h2_one_ticket_and_one_lease(looked_at: Served):
    assert looked_at.get("/v1/tickets/waiter").json["position"] == 1
    assert looked_at.get("/v1/leases/holder-0001").json["command"] == "agent one"
    assert looked_at.get("/v1/tickets/holder-0001").status == 404
    assert looked_at.get("/v1/leases/waiter-0001").status == 404
    assert looked_at.get("/v1/leases/nobody").json["reason"] == "not_found"


def test_a9_a_ticket_is_moved_and_taken_out(busy: Served):
    busy.lease(id="waiter-0002", wait_s=0.1)
    moved = busy.ok("POST", "/v1/tickets/waiter-0002/bump", {})
    assert moved == {
        "id": "waiter-0002",
        "position": 1,
        "priority": 0,
        "entered": False,
        "of": 2,
        "pool": "umans",
    }
    assert busy.ok("POST", "/v1/tickets/waiter-0001/bump", {"priority": 5})["priority"] == 5
    refused = busy.request("DELETE", "/v1/tickets/holder-0001")
    assert (refused.status, refused.json["reason"]) == (409, "conflict")
    both = busy.request("POST", "/v1/tickets/cancel", {"ids": ["waiter-0001", "nobody-0001"]})
    assert both.status == 404
    assert busy.get("/v1/tickets").json["total"] == 2  # all or none
    assert busy.ok("POST", "/v1/tickets/cancel", {"ids": ["waiter-0001", "waiter-0002"]})["cancelled"] == [
        "waiter-0001",
        "waiter-0002",
    ]
    assert {event["by"] for event in busy.events("cancelled")} == {"owner"}


def test_c2_a_cap_is_set_reset_and_removed_and_each_says_what_was_before(fresh: Served):
    first = fresh.cap("umans", 2, cooldown_ms=0, on_429="pause", max_hold_ms=60_000, name="um")
    assert (first["cap"], first["cooldown_ms"], first["on_429"], first["max_hold_ms"]) == (2, 0, "pause", 60_000)
    assert first["was"] is None
    assert fresh.cap("umans", 3)["was"] == {"cap": 2, "auto": False, "source": "run time"}
    assert cli(fresh, "cap", "ls")["caps"][-1]["cap"] == 3
    removed = fresh.ok("DELETE", "/v1/caps?selector=umans")
    assert (removed["cap"], removed["was"]["cap"]) == (None, 3)
    assert fresh.ok("POST", "/v1/caps/reset", {"selector": "umans"})["cap"] is None
    assert fresh.request("POST", "/v1/caps/reset", {"selector": "umans"}).status == 404
    assert fresh.request("DELETE", "/v1/caps?selector=umans").status == 404
    assert fresh.cap("host", 5)["kind"] == "agents"
    automatic = fresh.ok("PUT", "/v1/caps", {"selector": "host", "cap": "auto"})
    assert automatic["auto"] is True
    for body in ({"selector": "umans", "cap": "auto"}, {"selector": "host", "cap": 2, "on_429": "step"}):
        assert fresh.request("PUT", "/v1/caps", body).status == 400


def test_p4_what_a_refusal_costs_is_set_over_http(fresh: Served):
    assert fresh.cap("umans", 4)["refusals"] == "normal"
    assert fresh.cap("umans", 4, refusals="expensive")["refusals"] == "expensive"
    assert fresh.get("/v1/caps").json["caps"][-1]["refusals"] == "expensive"
    assert fresh.get("/v1/explain?pool=umans").json["refusals"] == "expensive"
    for wrong in ({"refusals": "free"}, {"refusals": "cheap", "on_429": "step"}):
        assert fresh.request("PUT", "/v1/caps", {"selector": "umans", "cap": 4, **wrong}).status == 400
    assert fresh.get("/v1/caps").json["caps"][-1]["refusals"] == "expensive"


def test_c5_caps_are_imported_all_or_none(fresh: Served):
    done = fresh.ok("POST", "/v1/caps/import", {"text": "# mine\nopus-4-6=4\nOPUS_CONCURRENCY_CAP=6\n"})
    assert [(cap["selector"], cap["cap"]) for cap in done["caps"]] == [("*/claude-opus-4-6", 4), ("*/claude-opus-*", 6)]
    bad = fresh.request("POST", "/v1/caps/import", {"text": "opus-4-6=5\nnonsense\n"})
    assert bad.status == 400
    assert "2" in bad.json["error"]
    assert fresh.get("/v1/caps").json["caps"][0]["cap"] == 6


def test_k_a_cooldown_is_set_and_says_what_was_before(fresh: Served):
    done = fresh.ok("PUT", "/v1/cooldown", {"selector": "umans", "cooldown_ms": 20})
    assert (done["cooldown_ms"], done["was_ms"], done["capped"]) == (20, 350, False)


def test_p_a_pool_is_paused_and_resumed(busy: Served):
    done = busy.ok("POST", "/v1/pause", {"target": "umans", "for_s": 600})
    assert done["pools"][0]["paused_until"].endswith("Z")
    assert busy.get("/v1/tickets").json["tickets"][0]["reason"]["code"] == "paused"
    assert busy.ok("POST", "/v1/pause", {"target": "umans"})["pools"][0]["paused_until"] is None
    resumed = busy.ok("POST", "/v1/resume", {"target": "umans"})
    assert resumed["pools"] == [{"pool": "umans", "kind": "requests"}]
    assert busy.ok("POST", "/v1/resume", {"target": "umans"})["pools"] == []
    assert busy.request("POST", "/v1/pause", {"target": "nope"}).status == 404


def test_h2_a_host_is_drained_and_takes_new_agents_again(fresh: Served):
    assert fresh.ok("POST", "/v1/drain", {"host": "builder-7"}) == {
        "host": "builder-7",
        "draining": True,
        "running": 0,
        "entered": 0,
    }
    assert fresh.ok("POST", "/v1/drain", {"host": "builder-7"})["draining"], "twice is no mistake"
    assert fresh.get("/v1/status").json["draining"] == ["builder-7"]
    own = fresh.ok("POST", "/v1/drain")["host"]
    refused = fresh.cli("run", "--no-wait", "--", "true")
    assert refused.returncode == 75
    assert own in refused.stderr
    assert not fresh.ok("POST", "/v1/drain", {"host": own, "end": True})["draining"]
    assert fresh.cli("run", "--no-wait", "--", "true").returncode == 0
    unknown = fresh.request("POST", "/v1/drain", {"host": "nope", "end": True})
    assert unknown.status == 404
    assert "builder-7" in unknown.json["error"]
    assert fresh.request("POST", "/v1/drain", {"host": "a|b"}).status == 400
    assert fresh.request("POST", "/v1/drain", {"host": "x" * 300}).status == 400
    assert fresh.request("POST", "/v1/drain", {"host": "x"}, token="").status == 401
    told = [event for event in fresh.get("/v1/history").json["events"] if event["type"] == "draining"]
    assert told[0]["by"] == "owner"


def test_p3_a_report_lowers_the_limit_and_restore_undoes_it(fresh: Served):
    fresh.cap("umans", 4, on_429="step")
    told = fresh.ok("POST", "/v1/report", {"target": "umans", "retry_after_s": 30})
    assert (told["pool"], told["limit"], told["cap"], told["incident"]) == ("umans", 3, 4, True)
    (pool,) = [pool for pool in fresh.get("/v1/status").json["pools"] if pool["pool"] == "umans"]
    assert (pool["auto_reduced"], pool["auto_reduced_from"]) == (True, 4)
    restored = fresh.ok("POST", "/v1/restore", {"pool": "umans"})
    assert restored["cap"] == 4
    (pool,) = [pool for pool in fresh.get("/v1/status").json["pools"] if pool["pool"] == "umans"]
    assert (pool["auto_reduced"], pool["limit"]) == (False, 4)
    assert fresh.request("POST", "/v1/restore", {"pool": "umans"}).status == 409
    assert fresh.request("POST", "/v1/restore", {"pool": "nope"}).status == 404
    assert fresh.request("POST", "/v1/report", {}).status == 400


def test_b_backoffs_are_set_used_and_cleared(fresh: Served):
    made = fresh.ok("PUT", "/v1/backoffs", {"key": "openai/gpt-5", "reason": "auth_error"})
    assert (made["key"], made["scope"], made["reason"]) == ("openai", "account", "auth")
    chosen = fresh.ok("POST", "/v1/select", {"models": ["openai/gpt-5", "a/b"]})
    assert chosen == {"model": "a/b"}
    none = fresh.get("/v1/select?models=openai/gpt-5").json
    assert none["model"] is None
    assert none["unusable"][0]["reason"]["cause"] == "auth"
    assert fresh.ok("DELETE", "/v1/backoffs?key=openai")["cleared"] == ["openai"]
    assert fresh.request("DELETE", "/v1/backoffs?key=openai").status == 404
    assert fresh.request("DELETE", "/v1/backoffs").status == 400
    assert fresh.ok("DELETE", "/v1/backoffs?all=true")["cleared"] == []
    refused = fresh.request("PUT", "/v1/backoffs", {"key": "openai", "reason": "whim"})
    assert "valid are" in refused.json["error"]


def test_b4_rotation_is_kept_in_the_log(fresh: Served):
    body = {"models": ["a/b", "c/d"], "rotate": "pulse"}
    assert [fresh.ok("POST", "/v1/select", body)["model"] for _ in range(3)] == ["a/b", "c/d", "a/b"]
    assert cli(fresh, "select", "-m", "a/b,c/d", "--rotate=pulse") == {"model": "c/d"}


def test_p4_what_is_believed_of_a_limit_is_told_over_http_as_on_the_command_line(fresh: Served):
    fresh.cap("umans", 2)
    fresh.lease(renew_within_s=600)
    said = fresh.get("/v1/explain?pool=umans").json
    assert (said["limit"], said["in_flight"], bool(said["sentences"])) == (2, 1, True)
    assert said.keys() == cli(fresh, "explain", "umans").keys()
    assert fresh.get("/v1/explain?pool=nobody").status == 404


def test_d1_charts_have_samples(fresh: Served):
    fresh.cap("umans", 2)
    fresh.lease(renew_within_s=600)

    def counted() -> Any:
        samples = fresh.get("/v1/series?minutes=5").json["samples"]
        return [each for each in samples if each["running"]]

    sample = fresh.wait_until(counted, "a sample has it")[0]
    pool = sample["pools"]["requests umans"]
    assert pool == {"in_flight": 1, "limit": 2, "queued": 0, "rate_limits": 0, "proven": 1, "refused": None}
    fresh.stop()
    fresh.start()
    assert sample in fresh.get("/v1/series?minutes=5").json["samples"], "a restart does not empty the charts"


@pytest.mark.parametrize(
    ("method", "path", "status", "reason"),
    [
        ("GET", "/nope", 404, "not_found"),
        ("GET", "/v1/nope", 404, "not_found"),
        ("DELETE", "/v1/status", 405, "method_not_allowed"),
        ("GET", "/v1/tickets?limit=x", 400, "bad_request"),
        ("GET", "/v1/tickets?limit=-1", 400, "bad_request"),
        ("GET", "/v1/cooldown", 400, "bad_request"),
        ("GET", "/v1/cooldown?selector=a%20b", 400, "bad_request"),
        ("GET", "/v1/history?types=nope", 400, "bad_request"),
        ("GET", "/v1/capacity?models=nonsense", 400, "bad_request"),
        ("GET", "/v1/capacity?kind=nonsense", 400, "bad_request"),
        ("GET", "/v1/metrics?hours=0", 400, "bad_request"),
    ],
)
def test_h3_every_error_is_a_sentence_and_a_code(served: Served, method: str, path: str, status: int, reason: str):
    answer = served.request(method, path)
    assert (answer.status, answer.json["reason"]) == (status, reason)
    assert answer.headers["content-type"] == "application/json"
    assert answer.json["error"]
    if status == 405:
        assert "GET" in answer.headers["allow"]


@pytest.mark.parametrize("body", [b"", b"{", b'{"selector": "\xff"}', b"nonsense"])
def test_h3_a_body_that_is_not_json_is_said_to_be(served: Served, body: bytes):
    answer = served.request("PUT", "/v1/caps", body)
    assert answer.status == 400
    assert answer.json["reason"] in ("bad_json", "bad_request")


def test_w5_a_reserve_is_set_with_the_cap_and_shown(fresh: Served) -> None:
    answer = fresh.cap("umans", 8, reserve="25%", lendable=True)
    assert (answer["reserve"], answer["lendable"]) == ("25%", True)
    (pool,) = [each for each in fresh.get("/v1/status").json["pools"] if each["pool"] == "umans"]
    assert (pool["kept"], pool["lendable"]) == (2, True)
    assert fresh.cap("umans", 8, reserve=3)["reserve"] == 3
    assert fresh.cap("umans", 9)["reserve"] == 3
    wrong = fresh.request("PUT", "/v1/caps", {"selector": "umans", "cap": 9, "reserve": "many"})
    assert wrong.status == 400
    assert "a number of slots, or a percentage" in wrong.json["error"]
    assert fresh.cap("umans", 9, reserve=0)["reserve"] is None
