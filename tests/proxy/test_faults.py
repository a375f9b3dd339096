"""Upstreams and clients that misbehave: each has a defined end, a line in the log, and its seat is freed (SPEC X4)."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from time import sleep
from typing import Any, Self

import pytest

from headgate.testing.script import Fault
from tests.api.served import Answer
from tests.proxy.proxied import CHAT, Proxied, read_all
from tests.proxy.upstream import Behaviour, RawUpstream, until_gone

JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
CAP = "fake = { cap = 1, cooldown = 0 }"


class Raw:
    """One service before an upstream that answers as a test says. Each test's requests are of a project of its own."""

    def __init__(self, gate: Proxied, upstream: RawUpstream) -> None:
        self.gate, self.upstream = gate, upstream
        self._numbers = itertools.count(1)
        self.path = ""

    def answers(self, data: bytes) -> Self:
        return self.behaves(lambda connection: connection.sendall(data))

    def behaves(self, behave: Behaviour) -> Self:
        self.upstream.behave = behave
        self._project = f"test-{next(self._numbers)}"
        self.path = f"/p/{self._project}/fake/chat/completions"
        return self

    def chat(self) -> Answer:
        return self.gate.chat(self.path)

    def begin(self, extra: str = "") -> socket.socket:
        return self.gate.begin(path=self.path, extra=extra)

    def line(self) -> dict[str, Any]:
        """What the access log says of this test's first request; and its seat is free."""
        self.gate.check_nothing_is_held()
        found: list[dict[str, Any]] = self.gate.wait_until(
            lambda: [line for line in self.gate.lines() if line["project"] == self._project], "its line is there"
        )
        return found[0]


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Raw]:
    with (
        RawUpstream(lambda connection: None) as upstream,
        Proxied(tmp_path_factory.mktemp("raw"), upstream.url, requests=CAP, fake='stall = "700ms"') as gate,
    ):
        yield Raw(gate, upstream)


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (b"garbage that is no HTTP at all\r\n\r\n", "did not answer as a server does"),
        (b"", "Disconnected"),
        (JSON + b"X-Huge: " + b"x" * 300_000 + b"\r\n\r\n", ""),
        (JSON + b"Content-Length: 50\r\n\r\n", "broke off"),
        (JSON + b"Content-Length: nonsense\r\n\r\n{}", ""),
        (JSON + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\nno chunk\r\n", ""),
    ],
    ids=["garbage", "nothing", "huge headers", "no body", "bad length", "bad chunk"],
)
def test_an_answer_that_is_none_is_a_502(raw: Raw, sent: bytes, says: str) -> None:
    answer = raw.answers(sent).chat()
    assert answer.status == 502
    assert says in answer.json["error"]["message"]
    assert raw.line()["outcome"] == "server_error"


def test_a_provider_that_is_not_there_is_a_502(proxied: Callable[..., Proxied]) -> None:
    gate = proxied("http://127.0.0.1:9", requests=CAP)
    answer = gate.chat()
    assert answer.status == 502
    assert "fake could not be reached" in answer.json["error"]["message"]


@pytest.mark.parametrize(
    "sent",
    [
        JSON + b'Content-Length: 500\r\n\r\n{"half": ',
        SSE + b"5\r\ndata:\r\n",
        SSE + b"5\r\ndata:\r\nZZ\r\n",
    ],
    ids=["less than its length", "without an end", "a chunk that is none"],
)
def test_x4_an_answer_that_breaks_off_is_broken_off_for_the_client(raw: Raw, sent: bytes) -> None:
    with raw.answers(sent).begin(extra="Connection: close\r\n") as client:
        got = read_all(client)
    assert got.startswith((b"HTTP/1.1 200", b"HTTP/1.1 502"))
    assert not got.startswith(b"HTTP/1.1 200") or not got.endswith(b"0\r\n\r\n"), "it must not look whole"
    assert raw.line()["outcome"] == "server_error"


def test_more_than_its_length_is_never_taken_for_the_next_answer(raw: Raw) -> None:
    raw.answers(JSON + b"Content-Length: 2\r\n\r\n{}trailing garbage")
    for _ in range(2):
        answer = raw.chat()
        assert answer.status == 502 or answer.body == b"{}"
        assert not answer.body.endswith(b"garbage")


def test_answers_of_the_first_hundred_are_not_the_answer(raw: Raw) -> None:
    early = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n"
    assert raw.answers(early + JSON + b'Content-Length: 8\r\n\r\n{"a": 1}').chat().body == b'{"a": 1}'


def test_an_answer_of_http_1_0_ends_with_its_connection(raw: Raw) -> None:
    raw.answers(b'HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{"a": 2}')
    assert raw.chat().body == b'{"a": 2}'
    with raw.gate.connect() as client:
        client.sendall(b"GET /fake/v1/models HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
        assert read_all(client).startswith(b"HTTP/1.1 505"), "a client of HTTP/1.0 could not read chunks"


def test_a_redirect_is_the_clients_to_follow(raw: Raw) -> None:
    answer = raw.answers(b"HTTP/1.1 307 Temporary\r\nLocation: /else\r\nContent-Length: 0\r\n\r\n").chat()
    assert (answer.status, answer.headers["location"]) == (307, "/else")


@pytest.mark.parametrize("head", [b"", SSE + b"5\r\ndata:\r\n"], ids=["before the head", "in the stream"])
def test_an_upstream_that_stalls_is_given_up(raw: Raw, head: bytes) -> None:
    def stall(connection: socket.socket) -> None:
        connection.sendall(head)
        until_gone(connection)

    with raw.behaves(stall).begin() as client:
        got = read_all(client) if head else client.recv(65536)
    assert got.startswith(b"HTTP/1.1 200" if head else b"HTTP/1.1 504")
    assert "no byte for 0.7 s" in raw.line()["error"]


def test_x4_a_client_that_reads_nothing_slows_the_provider_and_is_given_up(raw: Raw) -> None:
    ended = threading.Event()

    def endless(connection: socket.socket) -> None:
        connection.sendall(SSE)
        try:
            while True:
                connection.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")
        except OSError:
            ended.set()

    with raw.behaves(endless).begin():
        assert ended.wait(20), "the provider was cut off, not listened to for ever"
        line = raw.line()
    assert line["bytes"] < 64 << 20
    assert "takes nothing" in line["error"]


def test_a_half_closed_client_counts_as_gone(raw: Raw) -> None:
    gone = threading.Event()

    def wait(connection: socket.socket) -> None:
        until_gone(connection)
        gone.set()

    asked = raw.upstream.asked
    with raw.behaves(wait).begin() as client:
        raw.gate.wait_until(lambda: raw.upstream.asked > asked, "it is at the provider")
        client.shutdown(socket.SHUT_WR)
        assert gone.wait(20)
    assert raw.line()["client_left"]


def test_a_client_that_leaves_while_it_sends_leaves_nothing_behind(raw: Raw) -> None:
    raw.answers(b"")
    asked = raw.upstream.asked
    with raw.gate.connect() as client:
        client.sendall(f"POST {raw.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 999\r\n\r\n{{".encode())
        sleep(0.05)
    assert raw.line()["client_left"]
    assert raw.upstream.asked == asked


def test_x4_a_provider_that_drops_frees_the_seat(proxied: Callable[..., Proxied]) -> None:
    gate = proxied(requests=CAP)
    for drop in ("before", "head", "middle"):
        for stream in (False, True):
            gate.provider.script(Fault(drop=drop))
            with gate.begin({**CHAT, "stream": stream}) as client:
                got = client.recv(65536)
            assert got.startswith((b"HTTP/1.1 502", b"HTTP/1.1 200"))
            assert gate.chat().status == 200, "the one seat is free"
