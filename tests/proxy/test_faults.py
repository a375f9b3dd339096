"""Upstreams and clients that misbehave: each has a defined end, a line in the log, and its seat is freed (SPEC X4)."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from time import sleep

import pytest

from headgate.testing.provider import FakeProvider
from headgate.testing.script import Fault
from tests.proxy.proxied import CHAT, Proxied, read_all
from tests.proxy.upstream import RawUpstream, until_gone

JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
CAP = "fake = { cap = 1, cooldown = 0 }"


def _answering(data: bytes) -> Callable[[socket.socket], None]:
    return lambda connection: connection.sendall(data)


@pytest.mark.parametrize(
    ("sent", "status", "says"),
    [
        (b"garbage that is no HTTP at all\r\n\r\n", 502, "did not answer as a server does"),
        (b"", 502, "Disconnected"),
        (JSON + b"X-Huge: " + b"x" * 300_000 + b"\r\n\r\n", 502, ""),
        (JSON + b"Content-Length: 50\r\n\r\n", 502, "broke off"),
        (JSON + b"Content-Length: nonsense\r\n\r\n{}", 502, ""),
        (JSON + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\nno chunk\r\n", 502, ""),
    ],
    ids=["garbage", "nothing", "huge headers", "no body", "bad length", "bad chunk"],
)
def test_an_answer_that_is_none_is_a_502(proxied: Callable[..., Proxied], sent: bytes, status: int, says: str) -> None:
    with RawUpstream(_answering(sent)) as upstream:
        gate = proxied(upstream.url, requests=CAP)
        answer = gate.chat()
        assert answer.status == status
        assert says in answer.json["error"]["message"]
        assert gate.line()["outcome"] == "server_error"
        gate.check_nothing_is_held()


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
def test_x4_an_answer_that_breaks_off_is_broken_off_for_the_client(
    proxied: Callable[..., Proxied], sent: bytes
) -> None:
    with RawUpstream(_answering(sent)) as upstream:
        gate = proxied(upstream.url, requests=CAP)
        with gate.begin(extra="Connection: close\r\n") as client:
            got = read_all(client)
        assert got.startswith((b"HTTP/1.1 200", b"HTTP/1.1 502"))
        assert not got.startswith(b"HTTP/1.1 200") or not got.endswith(b"0\r\n\r\n"), "it must not look whole"
        assert gate.line()["outcome"] == "server_error"
        gate.check_nothing_is_held()


def test_more_than_its_length_is_never_taken_for_the_next_answer(proxied: Callable[..., Proxied]) -> None:
    with RawUpstream(_answering(JSON + b"Content-Length: 2\r\n\r\n{}trailing garbage")) as upstream:
        gate = proxied(upstream.url, requests=CAP)
        for _ in range(2):
            answer = gate.chat()
            assert answer.status == 502 or answer.body == b"{}"
            assert not answer.body.endswith(b"garbage")


def test_answers_of_the_first_hundred_and_of_http_1_0_are_understood(proxied: Callable[..., Proxied]) -> None:
    early = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n"
    with RawUpstream(_answering(early + JSON + b'Content-Length: 8\r\n\r\n{"a": 1}')) as upstream:
        assert proxied(upstream.url, requests=CAP).chat().body == b'{"a": 1}'


def test_an_answer_of_http_1_0_ends_with_its_connection(proxied: Callable[..., Proxied]) -> None:
    with RawUpstream(_answering(b'HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{"a": 2}')) as upstream:
        gate = proxied(upstream.url, requests=CAP)
        assert gate.chat().body == b'{"a": 2}'
        with gate.connect() as client:
            client.sendall(b"GET /fake/v1/models HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
            assert read_all(client).startswith(b"HTTP/1.1 505"), "a client of HTTP/1.0 could not read chunks"


def test_a_redirect_is_the_clients_to_follow(proxied: Callable[..., Proxied]) -> None:
    with RawUpstream(_answering(b"HTTP/1.1 307 Temporary\r\nLocation: /else\r\nContent-Length: 0\r\n\r\n")) as upstream:
        answer = proxied(upstream.url).chat()
        assert (answer.status, answer.headers["location"]) == (307, "/else")


@pytest.mark.parametrize("head", [b"", SSE + b"5\r\ndata:\r\n"], ids=["before the head", "in the stream"])
def test_an_upstream_that_stalls_is_given_up(proxied: Callable[..., Proxied], head: bytes) -> None:
    def stall(connection: socket.socket) -> None:
        connection.sendall(head)
        until_gone(connection)

    with RawUpstream(stall) as upstream:
        gate = proxied(upstream.url, requests=CAP, fake='stall = "400ms"')
        with gate.begin() as client:
            got = read_all(client) if head else client.recv(65536)
        assert got.startswith(b"HTTP/1.1 200" if head else b"HTTP/1.1 504")
        gate.check_nothing_is_held()


def test_x4_a_client_that_reads_nothing_slows_the_provider_and_is_given_up(proxied: Callable[..., Proxied]) -> None:
    ended = threading.Event()

    def endless(connection: socket.socket) -> None:
        connection.sendall(SSE)
        try:
            while True:
                connection.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")
        except OSError:
            ended.set()

    with RawUpstream(endless) as upstream:
        gate = proxied(upstream.url, requests=CAP, fake='stall = "1s"')
        with gate.begin():
            assert ended.wait(20), "the provider was cut off, not listened to for ever"
            line = gate.line()
        assert line["bytes"] < 64 << 20
        assert "takes nothing" in line["error"]
        gate.check_nothing_is_held()


def test_a_half_closed_client_counts_as_gone(proxied: Callable[..., Proxied]) -> None:
    with FakeProvider(latency_s=30) as provider:
        gate = proxied(provider, requests=CAP)
        with gate.begin() as client:
            provider.wait_until(lambda stats: stats.active == 1)
            client.shutdown(socket.SHUT_WR)
            provider.wait_until(lambda stats: stats.active == 0)
        assert gate.line()["client_left"]


def test_a_client_that_leaves_while_it_sends_leaves_nothing_behind(proxied: Callable[..., Proxied]) -> None:
    gate = proxied(requests=CAP)
    with gate.connect() as client:
        client.sendall(b"POST /fake/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 999\r\n\r\n{")
        sleep(0.05)
    assert gate.line()["client_left"]
    assert gate.provider.stats.calls == 0


@pytest.mark.parametrize("drop", ["before", "head", "middle"])
@pytest.mark.parametrize("stream", [False, True])
def test_x4_a_provider_that_drops_frees_the_seat(proxied: Callable[..., Proxied], drop: str, stream: bool) -> None:
    gate = proxied(requests=CAP)
    gate.provider.script(Fault(drop=drop))  # type: ignore[arg-type]
    with gate.begin({**CHAT, "stream": stream}) as client:
        got = client.recv(65536)
    assert got.startswith((b"HTTP/1.1 502", b"HTTP/1.1 200"))
    assert gate.chat().status == 200, "the one seat is free"
