"""Upstreams and clients that misbehave: each has a defined end, a line in the log, and its slot is freed (rule X4)."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from time import sleep
from typing import Any, Self

import pytest

from fleetgate.testing.script import Fault
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

    def eager(self, behave: Behaviour) -> Self:
        """The same, from the head of the request on."""
        self.upstream.eager = True
        return self.behaves(behave)

    def chat(self) -> Answer:
        return self.gate.chat(self.path)

    def begin(self, extra: str = "") -> socket.socket:
        return self.gate.begin(path=self.path, extra=extra)

    def line(self) -> dict[str, Any]:
        """What the access log says of this test's first request; and its slot is free."""
        self.gate.check_nothing_is_held()
        found: list[dict[str, Any]] = self.gate.wait_until(
            lambda: [line for line in self.gate.lines() if line["project"] == self._project], "its line is there"
        )
        return found[0]


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Raw]:
    with (
        RawUpstream(lambda connection: None) as upstream,
        Proxied(tmp_path_factory.mktemp("raw"), upstream.url, requests=CAP, fake='stall = "2s"') as gate,
    ):
        yield Raw(gate, upstream)


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (b"garbage that is no HTTP at all\r\n\r\n", "did not answer as a server does"),
        (b"", "hung up without a word"),
        (JSON + b"X-Huge: " + b"x" * 300_000 + b"\r\n\r\n", ""),
        (JSON + b"X-Large: " + b"x" * 70_000 + b"\r\nContent-Length: 2\r\n\r\n{}", "longer than 65536 bytes"),
        (b"HTTP/1.1 777 Lucky\r\nContent-Length: 0\r\n\r\n", "status 777"),
        (b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", "another protocol"),
        (JSON + b"Content-Length: 50\r\n\r\n", "broke off"),
        (JSON + b"Content-Length: nonsense\r\n\r\n{}", ""),
        (JSON + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\nno chunk\r\n", ""),
    ],
    ids=["garbage", "nothing", "huge headers", "large headers", "777", "101", "no body", "bad length", "bad chunk"],
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


@pytest.mark.parametrize("length", [b"", b"Content-Length: 9\r\n"])
@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
def test_an_answer_without_a_body_has_none_for_the_client(raw: Raw, status: bytes, length: bytes) -> None:
    raw.answers(b"HTTP/1.1 " + status + b"\r\nETag: x\r\n" + length + b"\r\n")
    ask = f"GET {raw.path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    with raw.gate.connect() as client:
        for _ in range(2):  # the client's connection goes on
            client.sendall(ask)
            got = client.recv(65536)
            assert got.startswith(b"HTTP/1.1 " + status[:3])
            assert got.endswith(b"\r\n\r\n")
            assert got.count(b"\r\n\r\n") == 1
    assert raw.line()["outcome"] == "ok"


def test_x1_the_answer_to_head_names_a_length_and_has_no_body(raw: Raw) -> None:
    raw.answers(JSON + b"Content-Length: 500\r\n\r\n")
    with raw.gate.connect() as client:
        client.sendall(b"HEAD /fake/ HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        got = read_all(client)
    assert got.startswith(b"HTTP/1.1 200")
    assert b"content-length: 500\r\n" in got.lower()
    assert got.endswith(b"\r\n\r\n")


def test_trailers_are_not_passed_on_as_headers(raw: Raw) -> None:
    answer = raw.answers(SSE + b"5\r\ndata:\r\n0\r\nX-Sum: 1\r\nX-Fleetgate-Model: evil\r\n\r\n").chat()
    assert (answer.status, answer.body) == (200, b"data:")
    assert "x-sum" not in answer.headers
    assert "evil" not in str(answer.headers)


def test_an_answer_before_a_large_body_has_gone_out_is_passed_on(raw: Raw) -> None:
    """What is sent straight through, to a provider that has heard enough."""

    def refuse(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 5\r\n\r\nlarge")
        until_gone(connection)

    with raw.eager(refuse).gate.connect() as client:
        size = 64 << 20
        head = f"POST {raw.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {size}\r\n\r\n"
        client.sendall(head.encode())
        part = b"x" * (1 << 20)
        try:
            for _ in range(64):
                client.sendall(part)
        except ConnectionError:
            pass  # the answer is there, and nobody reads the rest: real clients have stopped by now
        got = client.recv(65536)
    assert got.startswith(b"HTTP/1.1 413")
    assert got.endswith(b"large")
    assert raw.line()["status"] == 413


def test_x4_a_client_that_leaves_while_its_large_body_is_sent_is_told_to_the_provider(raw: Raw) -> None:
    gone = threading.Event()

    def take(connection: socket.socket) -> None:
        until_gone(connection)
        gone.set()

    asked = raw.upstream.asked
    with raw.eager(take).gate.connect() as client:
        head = f"POST {raw.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {64 << 20}\r\n\r\n"
        client.sendall(head.encode() + b'{"model": "m1", "x": "')
        for _ in range(30):
            client.sendall(b"x" * (1 << 20))
        raw.gate.wait_until(lambda: raw.upstream.asked > asked, "it is at the provider")
        assert len(raw.gate.leases()) == 1
    assert gone.wait(60)
    assert raw.line()["client_left"]


def test_a_redirect_is_the_clients_to_follow(raw: Raw) -> None:
    answer = raw.answers(b"HTTP/1.1 307 Temporary\r\nLocation: /v1/else\r\nContent-Length: 0\r\n\r\n").chat()
    assert answer.status == 307
    assert answer.headers["location"].endswith("/fake/v1/else"), "through the proxy again"


@pytest.mark.parametrize("head", [b"", SSE + b"5\r\ndata:\r\n"], ids=["before the head", "in the stream"])
def test_an_upstream_that_stalls_is_given_up(raw: Raw, head: bytes) -> None:
    def stall(connection: socket.socket) -> None:
        connection.sendall(head)
        until_gone(connection)

    with raw.behaves(stall).begin() as client:
        got = read_all(client) if head else client.recv(65536)
    assert got.startswith(b"HTTP/1.1 200" if head else b"HTTP/1.1 504")
    assert "no byte for 2 s" in raw.line()["error"]


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
        assert ended.wait(60), "the provider was cut off, not listened to for ever"
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
        assert gone.wait(60)
    assert raw.line()["client_left"]


def test_a_client_that_leaves_while_it_sends_leaves_nothing_behind(raw: Raw) -> None:
    raw.answers(b"")
    asked = raw.upstream.asked
    with raw.gate.connect() as client:
        client.sendall(f"POST {raw.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 999\r\n\r\n{{".encode())
        sleep(0.05)  # so that the head and the end mostly come apart; either way is right
    assert raw.line()["client_left"]
    assert raw.upstream.asked == asked


def test_x4_a_provider_that_drops_frees_the_slot(proxied: Callable[..., Proxied]) -> None:
    gate = proxied(requests=CAP)
    for drop in ("before", "head", "middle"):
        for stream in (False, True):
            gate.provider.script(Fault(drop=drop))
            with gate.begin({**CHAT, "stream": stream}) as client:
                got = client.recv(65536)
            assert got.startswith((b"HTTP/1.1 502", b"HTTP/1.1 200"))
            assert gate.chat().status == 200, "the one slot is free"
