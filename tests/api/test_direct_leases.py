"""H2, H5: lease requests are answered on the connection itself, in the same words as by the routes that document them.

A path with a slash at its end goes to those routes.
"""

from __future__ import annotations

import json
import socket
import time
from typing import Any, NamedTuple

import pytest

from tests.api.served import PATIENCE_S, Served

ASK = b'{"models":["quick/x"]}'


class Told(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def was_quick(self) -> bool:
        """These answers end their head with the length of the body; the others have more behind it."""
        return self.headers[-1][0] == "content-length"

    def header(self, name: str) -> str | None:
        return next((value for each, value in self.headers if each == name), None)


class Wire:
    """A connection of bytes."""

    def __init__(self, served: Served, receive_bytes: int = 0) -> None:
        self.served = served
        self.raw = socket.socket()
        if receive_bytes:
            self.raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.raw.settimeout(PATIENCE_S)
        self.raw.connect(("127.0.0.1", served.port))
        self._read = self.raw.makefile("rb")

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self._read.close()
        self.raw.close()

    def request(
        self, path: str, body: bytes = b"", *, chunked: bool = False, version: str = "1.1", **more: str
    ) -> bytes:
        """A request's bytes."""
        headers = {"Host": "localhost", "Authorization": f"Bearer {self.served.token}"}
        headers |= {"Content-Type": "application/json"} if body else {}
        headers |= {"Transfer-Encoding": "chunked"} if chunked else {"Content-Length": str(len(body))}
        headers |= {name.replace("_", "-"): value for name, value in more.items()}
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items() if value)
        if chunked:
            body = (b"%x\r\n%s\r\n" % (len(body), body) if body else b"") + b"0\r\n\r\n"
        return f"POST {path} HTTP/{version}\r\n{head}\r\n".encode() + body

    def send(self, data: bytes) -> None:
        self.raw.sendall(data)

    def answer(self) -> Told:
        line = self._read.readline()
        assert line.startswith(b"HTTP/1.1 "), line
        headers = []
        while (header := self._read.readline().strip()) != b"":
            name, _, value = header.decode().partition(": ")
            headers.append((name, value))
        told = Told(int(line.split()[1]), headers, b"")
        return told._replace(body=self._read.read(int(told.header("content-length") or 0)))

    def ask(self, path: str, body: bytes = b"", **more: Any) -> Told:
        self.send(self.request(path, body, **more))
        return self.answer()

    def is_over(self) -> bool:
        return self._read.read(1) == b""


BAD = [
    ("/v1/leases", b'{"models":["quick/x"],"colour":"red"}'),
    ("/v1/leases", b'{"models":"quick/x"}'),
    ("/v1/leases", b'{"models":["quick/x"],"wait_s":61}'),
    ("/v1/leases", b'{"models":["quick"]}'),
    ("/v1/leases", b'{"models":['),
    ("/v1/leases", b'{"models":["\xff"]}'),
    ("/v1/leases", b"[]"),
    ("/v1/leases/2222222222/renew", b""),
    ("/v1/leases/nosuch/release", b""),
    ("/v1/leases/2222222222/release", b'{"outcome":"ok","retry_after_s":3}'),
    ("/v1/leases/2222222222/release", b'{"outcome":"wonderful"}'),
]


@pytest.mark.parametrize(("path", "body"), BAD)
def test_q1_both_ways_refuse_with_the_same_words(served: Served, path: str, body: bytes):
    with Wire(served) as wire:
        quick, usual = wire.ask(path, body), wire.ask(f"{path}/", body)
    assert (quick.was_quick, usual.was_quick) == (True, False)
    assert 400 <= quick.status < 500
    assert (quick.status, quick.json) == (usual.status, usual.json)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("slash", ["", "/"])
def test_h2_both_ways_acquire_renew_and_release(served: Served, chunked: bool, slash: str):
    with Wire(served) as wire:
        got = wire.ask(f"/v1/leases{slash}", ASK, chunked=chunked)
        assert (got.status, got.was_quick) == (201, not slash)
        lease = got.json["lease"]
        renewed = wire.ask(f"/v1/leases/{lease}/renew{slash}", chunked=chunked)
        assert (renewed.status, renewed.json["lease"]) == (200, lease)
        ended = [wire.ask(f"/v1/leases/{lease}/release{slash}", chunked=chunked) for _ in range(2)]
        assert [(each.status, each.json["released"]) for each in ended] == [(200, True), (200, False)]
    assert {name for name, _ in got.headers} >= {
        "date",
        "content-type",
        "x-content-type-options",
        "x-frame-options",
        "referrer-policy",
        "cross-origin-resource-policy",
        "cross-origin-opener-policy",
    }


@pytest.mark.parametrize(
    ("said", "status", "reason"),
    [
        ({"Authorization": ""}, 401, "token_needed"),
        ({"Authorization": "Bearer wrong-wrong-wrong-wrong"}, 401, "token_wrong"),
        ({"Host": "evil.example"}, 403, "wrong_host"),
        ({"Origin": "http://evil.example"}, 403, "foreign_origin"),
        ({"Sec_Fetch_Site": "cross-site"}, 403, "foreign_origin"),
        ({"Content_Type": "text/plain"}, 415, "not_json"),
        ({"Content_Length": "70000"}, 413, "too_large"),
        ({"X_Long": "x" * 17_000}, 431, "too_large"),
    ],
)
@pytest.mark.parametrize("before", [0, 1])
def test_h5_nothing_gets_past_the_guard_on_a_connection_that_was_good(
    served: Served, said: dict[str, str], status: int, reason: str, before: int
):
    held = len(served.get("/v1/leases").json["leases"])
    with Wire(served) as wire:
        for _ in range(before):
            lease = wire.ask("/v1/leases", ASK).json["lease"]
            assert wire.ask(f"/v1/leases/{lease}/release").status == 200
        told = wire.ask("/v1/leases", ASK, **said)
        assert (told.status, told.json["reason"], told.header("connection")) == (status, reason, "close")
        assert wire.is_over()
    assert len(served.get("/v1/leases").json["leases"]) == held


def test_h2_requests_that_come_at_once_are_answered_in_order(served: Served):
    with Wire(served) as wire:
        lease = wire.ask("/v1/leases", ASK).json["lease"]
        health = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        renew = wire.request(f"/v1/leases/{lease}/renew")
        release = wire.request(f"/v1/leases/{lease}/release")
        wire.send(renew + health + renew + wire.request("/v1/leases", b"{") + release + release + health + renew)
        told = [wire.answer() for _ in range(8)]
        assert [each.status for each in told] == [200, 200, 200, 400, 200, 200, 200, 410]
        assert [told[4].json["released"], told[5].json["released"]] == [True, False]
        assert wire.ask("/v1/leases", b"{").was_quick, "and after that as before"


def test_h2_what_comes_behind_a_long_poll_waits_for_its_answer(fresh: Served):
    fresh.cap("quick", 1, cooldown_ms=0)
    held = fresh.lease("quick/x").json["lease"]
    with Wire(fresh) as wire:
        wire.send(wire.request("/v1/leases", b'{"models":["quick/x"],"wait_s":60}'))
        fresh.wait_until(lambda: fresh.get("/v1/tickets").json["total"] == 1, "it waits")
        wire.send(wire.request(f"/v1/leases/{held}/renew"))
        fresh.ok("POST", f"/v1/leases/{held}/release")
        assert [wire.answer().status, wire.answer().status] == [201, 410], "the renewal came after the release"


def test_h2_a_client_that_sends_on_without_reading_gets_every_answer_once_it_reads(served: Served):
    with Wire(served, receive_bytes=4096) as wire:
        lease = wire.ask("/v1/leases", ASK).json["lease"]
        renew = wire.request(f"/v1/leases/{lease}/renew")
        wire.send(renew * 2_000 + wire.request("/v1/leases/nosuch/release"))
        assert [wire.answer().status for _ in range(2_001)] == [*[200] * 2_000, 404]
        assert wire.ask(f"/v1/leases/{lease}/release").json["released"]


@pytest.mark.parametrize("more", [{"version": "1.0"}, {"Connection": "close"}])
def test_h2_a_connection_that_is_to_end_ends_after_the_answer(served: Served, more: dict[str, str]):
    with Wire(served) as wire:
        told = wire.ask("/v1/leases", ASK, **more)
        assert (told.status, told.header("connection")) == (201, "close")
        assert wire.is_over()
    assert served.ok("POST", f"/v1/leases/{told.json['lease']}/release")["released"]


def test_h2_who_expects_to_be_asked_for_the_body_is(served: Served):
    with Wire(served) as wire:
        whole = wire.request("/v1/leases", ASK, Expect="100-continue")
        wire.send(whole[: -len(ASK)])
        assert wire._read.readline() == b"HTTP/1.1 100 Continue\r\n"
        assert wire._read.readline() == b"\r\n"
        wire.send(ASK)
        told = wire.answer()
        assert told.status == 201
        assert wire.ask(f"/v1/leases/{told.json['lease']}/release").json["released"]


def test_h2_a_request_may_come_in_pieces(served: Served):
    with Wire(served) as wire:
        wire.raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        whole = wire.request("/v1/leases", ASK)
        for at in range(0, len(whole), 7):
            wire.send(whole[at : at + 7])
            time.sleep(0.001)  # so that most pieces come alone; whether they do is all the same
        told = wire.answer()
        assert (told.status, told.was_quick) == (201, True)
        assert wire.ask(f"/v1/leases/{told.json['lease']}/release").json["released"]


@pytest.mark.parametrize(
    ("path", "status"), [("/v1/leases?x=1", 201), ("/v1/%6ceases", 201), ("/v1/leases/a%62c/renew", 404)]
)
def test_h2_escapes_and_a_query_change_nothing(served: Served, path: str, status: int):
    with Wire(served) as wire:
        told = wire.ask(path, ASK)
        assert (told.status, told.was_quick) == (status, True)
        if told.status == 201:
            assert wire.ask(f"/v1/leases/{told.json['lease']}/release").json["released"]


def test_h6_a_poll_that_ends_with_the_service_is_answered_and_its_connection_closed(fresh: Served):
    fresh.cap("quick", 1, cooldown_ms=0)
    fresh.lease("quick/x")
    with Wire(fresh) as wire:
        wire.send(wire.request("/v1/leases", b'{"models":["quick/x"],"wait_s":60}'))
        fresh.wait_until(lambda: fresh.get("/v1/tickets").json["total"] == 1, "it waits")
        assert fresh.stop() == 0
        told = wire.answer()
        assert (told.status, told.was_quick) == (202, True)
        assert wire.is_over()
