"""A browser that an access key signed in has the rights of that key, as long as the key is what it was (rule E2)."""

from __future__ import annotations

from collections.abc import Iterator
from time import sleep

import pytest

from fleetgate.api.events.sse import KEY_CHECK_S
from tests.api.served import Served
from tests.api.test_access_keys import create
from tests.api.test_event_stream import stream
from tests.security.test_sessions import pair_of

CAP = {"selector": "safe", "cap": 2}


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("served")) as served:
        yield served


def signed_in(gate: Served, key: str) -> dict[str, str]:
    answer = gate.request("POST", "/v1/session", {"key": key}, token="")
    assert answer.status == 200, answer.body
    assert (answer.headers["cache-control"], "HttpOnly" in answer.headers["set-cookie"]) == ("no-store", True)
    assert key not in answer.body.decode() + answer.headers["set-cookie"]
    return pair_of(answer)


@pytest.mark.parametrize(
    ("role", "changes", "keys"), [("viewer", 403, 403), ("operator", 200, 403), ("admin", 200, 200)]
)
def test_e2_a_browser_may_do_what_the_key_may_that_signed_it_in(gate: Served, role: str, changes: int, keys: int):
    pair = signed_in(gate, create(gate, f"a-{role}", "--role", role))
    session = gate.get("/v1/session", **pair).json
    assert (session["role"], session["key"], session["may_change"]) == (role, f"a-{role}", role != "viewer")
    assert gate.get("/v1/overview", **pair).status == 200
    assert gate.request("PUT", "/v1/caps", CAP, token="", **pair).status == changes
    assert gate.get("/v1/keys", **pair).status == keys
    if changes == 200:
        assert gate.events("rule_set")[-1]["by"] == f"key a-{role}"
    either = [{"Cookie": pair["Cookie"]}, {"x_fleetgate_session": pair["x_fleetgate_session"]}]
    assert [gate.request("PUT", "/v1/caps", CAP, token="", **half).status for half in either] == [401, 401]
    assert gate.request("DELETE", "/v1/session", token="", **pair).status == 200
    assert gate.request("PUT", "/v1/caps", CAP, token="", **pair).status == 401


@pytest.mark.parametrize("how", ["rotate", "rm"])
def test_e1_a_session_ends_when_its_key_is_rotated_or_removed(gate: Served, how: str):
    name = f"short-{how}"
    pair = signed_in(gate, create(gate, name, "--role", "admin"))
    assert gate.request("PUT", "/v1/caps", CAP, token="", **pair).status == 200
    assert gate.cli("key", how, name).returncode == 0
    assert gate.request("PUT", "/v1/caps", CAP, token="", **pair).status == 401
    if how == "rm":  # nor does a new key of the same name bring it back
        create(gate, name, "--role", "admin")
        assert gate.request("PUT", "/v1/caps", CAP, token="", **pair).status == 401


@pytest.mark.parametrize("how", ["rotate", "rm"])
@pytest.mark.parametrize("by", ["key", "session"])
def test_e1_a_stream_of_events_ends_when_its_key_is_rotated_or_removed(gate: Served, how: str, by: str):
    name = f"listener-{how}-{by}"
    key = create(gate, name, "--role", "viewer")
    shown = {"Authorization": f"Bearer {key}"} if by == "key" else signed_in(gate, key)
    with stream(gate, **shown) as reader:
        assert reader.next().event == "hello"
        assert gate.cli("key", how, name).returncode == 0
        sleep(KEY_CHECK_S)  # it may hear of this for so long
        gate.cap("safe", 3)
        with pytest.raises(EOFError):
            reader.until("rule_set")
        gate.ok("DELETE", "/v1/caps?selector=safe")


def test_e1_a_session_ends_when_its_key_expires(gate: Served):
    pair = signed_in(gate, create(gate, "brief", "--role", "operator", "--expires", "2s"))
    ended = lambda: gate.request("PUT", "/v1/caps", CAP, token="", **pair).status == 401  # noqa: E731
    gate.wait_until(ended, "the key has expired")


def test_e2_a_cookie_cannot_be_made_to_name_another_key(gate: Served):
    create(gate, "boss", "--role", "admin")
    pair = signed_in(gate, create(gate, "guest", "--role", "viewer"))
    forged = {**pair, "Cookie": pair["Cookie"].replace(".guest.", ".boss.")}
    assert forged["Cookie"] != pair["Cookie"]
    assert gate.request("PUT", "/v1/caps", CAP, token="", **forged).status == 401
    owner = {**pair, "Cookie": ".".join(pair["Cookie"].split(".")[:2])}
    assert gate.request("PUT", "/v1/caps", CAP, token="", **owner).status == 401


def test_e2_what_is_no_key_of_a_person_signs_nobody_in(gate: Served):
    agent = create(gate, "robot", "--project", "web")
    for body, status, reason in (
        ({"key": "fgk_" + "a" * 43}, 403, "key_wrong"),
        ({"key": gate.token}, 403, "key_wrong"),
        ({}, 400, "bad_request"),
        ({"key": agent, "code": "x"}, 400, "bad_request"),
    ):
        answer = gate.request("POST", "/v1/session", body, token="")
        assert (answer.status, answer.json["reason"]) == (status, reason)
        assert "set-cookie" not in answer.headers
    foreign = gate.request("POST", "/v1/session", {"key": agent}, token="", Origin="https://evil.example")
    assert foreign.json["reason"] == "foreign_origin"
