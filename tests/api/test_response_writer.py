"""H1, X1: answers that are written without being awaited are HTTP, byte for byte, and never more or less than said."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from fleetgate.api.http.response_writer import ResponseWriter

EVENTS = [(b"content-type", b"text/event-stream")]
SIZED = [(b"content-length", b"5")]


class Wire:
    """What goes to the client."""

    def __init__(self) -> None:
        self.out = b""
        self.writes = 0
        self.closed = False
        self.on_room: object = None

    def write_now(self, data: bytes) -> None:
        self.out += data
        self.writes += 1

    def close(self) -> None:
        self.closed = True


class Cycle(SimpleNamespace):
    """A request as the server sees it."""

    async def receive(self) -> Any:
        raise NotImplementedError


def cycle_of(method: str = "POST", **more: Any) -> Any:
    told: list[str] = []
    cycle = Cycle(
        scope={"method": method},
        transport=Wire(),
        flow=SimpleNamespace(write_paused=False),
        default_headers=[(b"date", b"today")],
        keep_alive=True,
        disconnected=False,
        response_started=False,
        response_complete=False,
        waiting_for_100_continue=True,
        message_event=asyncio.Event(),
        on_response=lambda: told.append("done"),
        told=told,
    )
    cycle.__dict__.update(more)
    return cycle


def written(cycle: Any) -> tuple[bytes, bytes]:
    head, _, body = cycle.transport.out.partition(b"\r\n\r\n")
    return head, body


def test_x1_a_stream_comes_in_chunks_and_its_head_goes_with_the_first() -> None:
    direct = ResponseWriter((cycle := cycle_of()).receive)
    direct.begin(200, EVENTS)
    assert not cycle.transport.writes
    assert cycle.response_started
    direct.write(b"data: 1\n\n")
    assert cycle.transport.writes == 1
    direct.write(b"")
    direct.end(b"data: 2\n\n")
    head, body = written(cycle)
    assert head == (b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked")
    assert body == b"9\r\ndata: 1\n\n\r\n9\r\ndata: 2\n\n\r\n0\r\n\r\n"
    assert cycle.transport.writes == 2
    assert cycle.told == ["done"]
    assert cycle.response_complete
    assert not cycle.transport.closed


def test_x1_a_head_can_go_alone_and_an_end_too() -> None:
    direct = ResponseWriter((cycle := cycle_of()).receive)
    direct.begin(200, EVENTS)
    direct.write(b"")
    assert cycle.transport.out.endswith(b"chunked\r\n\r\n")
    direct.end(b"")
    assert written(cycle)[1] == b"0\r\n\r\n"


def test_x1_a_body_of_known_length_goes_as_it_is() -> None:
    direct = ResponseWriter((cycle := cycle_of()).receive)
    direct.begin(404, SIZED)
    direct.write(b"12")
    direct.end(b"345")
    assert written(cycle) == (b"HTTP/1.1 404 Not Found\r\ndate: today\r\ncontent-length: 5", b"12345")


@pytest.mark.parametrize("last", [b"", b"1234", b"123456"])
def test_x1_what_is_shorter_or_longer_than_said_does_not_look_whole(last: bytes) -> None:
    direct = ResponseWriter((cycle := cycle_of()).receive)
    direct.begin(200, SIZED)
    with pytest.raises(ValueError, match="length"):
        direct.end(last)
    assert not cycle.response_complete
    with pytest.raises(ValueError, match="more"):
        direct.write(b"123456")


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304)])
def test_x1_where_no_body_may_be_there_is_none(method: str, status: int) -> None:
    direct = ResponseWriter((cycle := cycle_of(method)).receive)
    direct.begin(status, SIZED if method == "HEAD" else [])
    direct.end(b"")
    head, body = written(cycle)
    assert (b"chunked" in head, body) == (False, b"")
    assert cycle.response_complete


def test_h5_a_header_cannot_begin_another() -> None:
    for value in (b"a\r\nset-cookie: b", b"a\nb", b"a\rb", b"a\0b"):
        direct = ResponseWriter((cycle := cycle_of()).receive)
        with pytest.raises(ValueError, match="line break"):
            direct.begin(200, [(b"x-one", value)])
        assert not cycle.response_started


def test_h6_a_connection_that_is_to_end_says_so_and_ends() -> None:
    direct = ResponseWriter((cycle := cycle_of(keep_alive=False)).receive)
    direct.begin(200, SIZED)
    direct.end(b"12345")
    assert b"connection: close" in written(cycle)[0]
    assert cycle.transport.closed


def test_x4_nothing_is_written_to_one_who_has_left() -> None:
    direct = ResponseWriter((cycle := cycle_of(disconnected=True)).receive)
    direct.begin(200, EVENTS)
    direct.write(b"1")
    direct.end(b"2")
    assert not cycle.transport.out
    assert not cycle.told
