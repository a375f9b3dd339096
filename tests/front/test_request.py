"""H1, X1: a response is HTTP, byte for byte, and never more or less than its head says."""

from __future__ import annotations

import pytest

from fleetgate.front.request import header_lines
from tests.front.request_wire import RequestWire

EVENTS = [(b"content-type", b"text/event-stream")]
SIZED = [(b"content-length", b"5")]


def test_x1_a_stream_comes_in_chunks_and_its_head_goes_with_the_first() -> None:
    request = (wire := RequestWire("POST")).request
    request.begin(200, EVENTS)
    assert wire.sent == b""
    assert request.response_begun
    request.write(b"data: 1\n\n")
    request.write(b"")
    request.end(b"data: 2\n\n")
    head, _, body = wire.sent.partition(b"\r\n\r\n")
    assert head == b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked"
    assert body == b"9\r\ndata: 1\n\n\r\n9\r\ndata: 2\n\n\r\n0\r\n\r\n"
    assert wire.writes == 2
    assert wire.finished == 1
    assert request.responded


def test_x1_a_head_can_go_alone_and_an_end_too() -> None:
    request = (wire := RequestWire()).request
    request.begin(200, EVENTS)
    request.write(b"")
    assert wire.sent.endswith(b"chunked\r\n\r\n")
    request.end()
    assert wire.body == b"0\r\n\r\n"


def test_x1_a_body_of_known_length_goes_as_it_is() -> None:
    request = (wire := RequestWire()).request
    request.begin(404, SIZED)
    request.write_parts((b"1", b"2"))
    request.end(b"345")
    assert wire.sent == b"HTTP/1.1 404 Not Found\r\ndate: today\r\ncontent-length: 5\r\n\r\n12345"


@pytest.mark.parametrize("last", [b"", b"1234", b"123456"])
def test_x1_a_response_that_is_shorter_or_longer_than_said_does_not_look_whole(last: bytes) -> None:
    request = (wire := RequestWire()).request
    request.begin(200, SIZED)
    with pytest.raises(ValueError, match="than its head says"):
        request.end(last)
    assert not request.responded
    with pytest.raises(ValueError, match="longer"):
        request.write(b"123456")
    assert not wire.finished


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304)])
def test_x1_where_no_body_may_be_there_is_none(method: str, status: int) -> None:
    request = (wire := RequestWire(method)).request
    request.begin(status, SIZED)
    request.write(b"12345")
    request.end()
    assert (b"chunked" in wire.sent, wire.body) == (False, b"")
    assert (b"content-length: 5" in wire.sent) == (method == "HEAD")
    assert request.responded


def test_h5_a_header_cannot_begin_another() -> None:
    for value in (b"a\r\nset-cookie: b", b"a\nb", b"a\rb", b"a\0b"):
        request = RequestWire().request
        with pytest.raises(ValueError, match="line break"):
            request.begin(200, [(b"x-one", value)])
        assert not request.response_begun
        with pytest.raises(ValueError, match="line break"):
            header_lines([(b"x-one", value)])


def test_h6_a_response_that_ends_its_connection_says_so() -> None:
    request = (wire := RequestWire()).request
    wire.closing = True
    request.begin(200, SIZED)
    request.end(b"12345")
    assert b"connection: close\r\n" in wire.sent
    assert not request.keep_alive


@pytest.mark.parametrize(("version", "said"), [("1.1", b""), ("1.0", b"connection: keep-alive\r\n")])
def test_h1_a_response_with_known_header_lines_is_the_same_as_one_with_pairs(version: str, said: bytes) -> None:
    one, other = RequestWire("POST"), RequestWire("POST")
    for wire in (one, other):
        wire.request.http_version = version
    one.request.respond(201, EVENTS, b"body")
    other.request.respond_with(201, header_lines(EVENTS), b"body")
    assert one.sent == other.sent
    assert said in one.sent


def test_x4_nothing_is_written_to_a_client_that_has_left() -> None:
    request = (wire := RequestWire()).request
    wire.leave()
    request.begin(200, EVENTS)
    request.write(b"1")
    request.end(b"2")
    assert not wire.sent


def test_x4_a_watcher_hears_once_that_the_client_left_and_not_after_it_has_stopped() -> None:
    heard: list[str] = []
    request = (wire := RequestWire()).request
    request.watch_client(lambda: heard.append("stopped"))()
    wire.leave()
    request.watch_client(lambda: heard.append("late"))
    assert heard == ["late"]
    request = (wire := RequestWire()).request
    request.watch_client(lambda: heard.append("first"))
    wire.leave()
    assert heard == ["late", "first"]
