"""H2: `GET /v1/events`: live, resumable, filtered, and honest about what it cannot tell."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from tests.api.served import Served


class Told(NamedTuple):
    id: str | None
    event: str
    data: dict[str, Any]


class Reader:
    """Reads a stream as a browser does."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.response = response
        self.last_id: str | None = None

    def next(self) -> Told:
        ident, event, data = None, "", ""
        while True:
            line = self.response.readline().decode()
            if not line:
                raise EOFError
            name, _, value = line.rstrip("\n").partition(": ")
            if name == "id":
                ident = self.last_id = value
            elif name == "event":
                event = value
            elif name == "data":
                data = value
            elif not line.strip() and event:
                return Told(ident, event, json.loads(data))

    def until(self, event: str) -> Told:
        while (told := self.next()).event != event:
            pass
        return told


@contextmanager
def stream(served: Served, query: str = "", **headers: str) -> Iterator[Reader]:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
    try:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("GET", f"/v1/events{query}", headers=sent)
        response = connection.getresponse()
        assert response.status == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        yield Reader(response)
    finally:
        connection.close()


def test_h2_what_happens_is_told_in_order_with_its_sequence_number(fresh: Served):
    with stream(fresh) as reader:
        hello = reader.next()
        assert (hello.event, hello.id) == ("hello", None)
        fresh.cap("umans", 2)
        told = reader.next()
        assert (told.event, told.data["type"], told.id) == ("rule_set", "rule_set", str(told.data["seq"]))
        assert told.data["text"] == "set at run time: umans (requests) cap 2 (by owner)"
        ident = fresh.lease().json["lease"]
        granted = reader.next()
        assert (granted.event, granted.data["id"]) == ("granted", ident)


def test_h2_what_other_processes_do_is_told_too(fresh: Served):
    with stream(fresh) as reader:
        reader.next()
        assert fresh.cli("pause", "host").returncode == 0
        assert reader.until("paused").data["pool"].startswith("host:")


@pytest.mark.parametrize("how", ["header", "query"])
def test_h2_a_stream_resumes_behind_the_last_id(fresh: Served, how: str):
    for cap in (1, 2, 3):
        fresh.cap("umans", cap)
    first = fresh.get("/v1/history").json["events"][0]["seq"]
    headers = {"Last_Event_ID": str(first)} if how == "header" else {}
    with stream(fresh, f"?since={first if how == 'query' else 0}", **headers) as reader:
        assert reader.next().data["since"] == first
        assert [reader.next().data["seq"] for _ in range(2)] == [first + 1, first + 2]
        fresh.cap("umans", 4)
        assert reader.next().data["seq"] == first + 3


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_h2_a_stream_resumes_over_a_restart_and_misses_nothing(fresh: Served, how: str):
    with stream(fresh) as reader:
        reader.next()
        fresh.cap("umans", 1)
        last = reader.next()
        if how == "stop":
            assert fresh.stop() == 0
            assert reader.next().event == "stopping"
            with pytest.raises(EOFError):
                reader.next()
        else:
            fresh.kill()
    assert fresh.cli("cap", "set", "umans", "2").returncode == 0  # while nobody serves
    fresh.start()
    with stream(fresh, Last_Event_ID=str(last.id)) as reader:
        reader.next()
        assert reader.next().data["rule"]["cap"] == 2


def test_h2_a_filter_tells_these_types_only(fresh: Served):
    with stream(fresh, "?types=granted,released") as reader:
        reader.next()
        fresh.cap("umans", 1)
        ident = fresh.lease().json["lease"]
        fresh.ok("POST", f"/v1/leases/{ident}/release")
        assert [reader.next().event for _ in range(2)] == ["granted", "released"]


def test_h2_a_number_that_the_log_has_not_reached_is_said_to_be_of_another_log(fresh: Served):
    with stream(fresh, "?since=999999") as reader:
        last = reader.next().data["seq"]
        reset = reader.next()
        assert (reset.event, reset.data["seq"]) == ("reset", last)
        fresh.cap("umans", 1)
        assert reader.next().event == "rule_set"


def test_h2_a_log_that_is_replaced_while_it_is_told_is_said_and_told_from_there_on(fresh: Served):
    fresh.cap("umans", 1)
    backup = {name: (fresh.home / name).read_bytes() for name in ("fleetgate.db", "fleetgate.db-wal")}
    with stream(fresh) as reader:
        reader.next()
        fresh.cap("umans", 2)
        fresh.cap("umans", 3)
        last = fresh.get("/v1/status").json["seq"]
        while reader.until("rule_set").data["seq"] < last:
            pass  # a stream may begin before the feed has read what was set first
        for name in (*backup, "fleetgate.db-shm"):
            (fresh.home / name).unlink()
        for name, data in backup.items():
            (fresh.home / name).write_bytes(data)
        reset = reader.until("reset")
        assert reset.data["seq"] < last
        assert "replaced" in reset.data["text"]
        fresh.cap("umans", 4)
        told = reader.until("rule_set")
        assert told.data["rule"]["cap"] == 4
        assert told.data["seq"] - reset.data["seq"] in (1, 2), "`recovering` comes before it, or before the reset"
    caps = [event["rule"]["cap"] for event in fresh.events("rule_set")]
    assert caps == [1, 4]  # those who read the past see the log that is in place, too


@pytest.mark.parametrize(
    ("query", "headers"),
    [("?types=nonsense", {}), ("?since=-1", {}), ("?since=x", {}), ("", {"Last_Event_ID": "x"})],
)
def test_q1_a_stream_that_cannot_be_is_refused(served: Served, query: str, headers: dict[str, str]):
    answer = served.get(f"/v1/events{query}", **headers)
    assert answer.status == 400
    assert set(answer.json) >= {"error", "reason"}


def test_h2_many_listen_at_once(fresh: Served):
    with stream(fresh) as one, stream(fresh) as two, stream(fresh, "?types=rule_set") as three:
        readers = (one, two, three)
        for reader in readers:
            reader.next()
        fresh.wait_until(lambda: b"fleetgate_streams 3.0\n" in fresh.get("/metrics").body, "all three are counted")
        fresh.cap("umans", 1)
        assert {reader.next().data["seq"] for reader in readers} == {fresh.get("/v1/status").json["seq"]}
    fresh.wait_until(lambda: b"fleetgate_streams 0.0\n" in fresh.get("/metrics").body, "all have left")
