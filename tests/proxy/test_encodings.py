"""Compressed answers and requests: understood on the way, and passed on byte for byte."""

from __future__ import annotations

import gzip
import json
import socket
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import brotli  # type: ignore[import-untyped]
import pytest
import zstandard

from tests.proxy.proxied import CHAT, Proxied
from tests.proxy.upstream import RawUpstream, read_request

QUOTA = json.dumps({"error": {"message": "no credit", "code": "insufficient_quota"}}).encode()
OVERLOADED = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n'
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "br": brotli.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "gzip, zstd": lambda data: zstandard.compress(gzip.compress(data)),
}


class Origin(RawUpstream):
    """Answers with `answer`, and keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__(lambda _: None)
        self.answer = b""
        self.seen = b""

    def serve(self, connection: socket.socket) -> None:
        self.seen = read_request(connection)
        self.asked += 1
        connection.sendall(self.answer)


@pytest.fixture(scope="module")
def origin() -> Iterator[Origin]:
    with Origin() as origin:
        yield origin


@pytest.fixture(scope="module")
def gate(origin: Origin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    fallback = '[fallback]\n"openai/first" = ["openai/second"]'
    with Proxied(Path(tmp_path_factory.mktemp("packed")), origin.url, requests="openai = 4", more=fallback) as proxied:
        yield proxied
        proxied.check_nothing_is_held()


def _answer(status: str, body: bytes, encoding: str, content_type: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-encoding: {encoding}\r\nconnection: close\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize("encoding", PACKED)
def test_a_compressed_error_is_understood_and_passed_on_as_it_came(
    gate: Proxied, origin: Origin, encoding: str
) -> None:
    packed = PACKED[encoding](QUOTA)
    origin.answer = _answer("429 Too Many Requests", packed, encoding)
    answer = gate.chat("/openai/v1/chat/completions", x_api_key=f"key-{encoding}")
    assert (answer.status, answer.body, answer.headers["content-encoding"]) == (429, packed, encoding)
    assert gate.wait_until(lambda: gate.events("released"), "it ended")[-1]["outcome"] == "quota"


@pytest.mark.parametrize("encoding", PACKED)
def test_an_error_inside_a_compressed_stream_is_noticed(gate: Proxied, origin: Origin, encoding: str) -> None:
    packed = PACKED[encoding](b'event: ping\ndata: {"type":"ping"}\n\n' * 50 + OVERLOADED)
    origin.answer = _answer("200 OK", packed, encoding, "text/event-stream")
    before = len(gate.events("released"))
    answer = gate.chat("/anthropic/v1/messages", {**CHAT, "model": f"m-{encoding}"}, x_api_key=f"key-{encoding}")
    assert (answer.status, answer.body) == (200, packed)
    released = gate.wait_until(lambda: gate.events("released")[before:], "it ended")
    assert released[-1]["outcome"] == "overloaded"


@pytest.mark.parametrize("encoding", PACKED)
def test_a_compressed_call_takes_a_slot_of_its_model_and_is_sent_as_it_came(
    gate: Proxied, origin: Origin, encoding: str
) -> None:
    origin.answer = _answer("200 OK", b"{}", "identity")
    packed = PACKED[encoding](json.dumps({**CHAT, "model": "packed"}).encode())
    key = {"x_api_key": f"sender-{encoding}"}
    answer = gate.chat("/openai/v1/responses", packed, Content_Encoding=encoding, **key)
    assert answer.headers["x-fleetgate-model"].endswith("/packed")
    assert origin.seen.endswith(packed)
    assert f"content-encoding: {encoding}".encode() in origin.seen.lower()


@pytest.mark.parametrize("encoding", ["zstd", "gzip", "dcz", "compress"])
def test_a_call_that_cannot_be_decoded_takes_a_slot_of_its_account(
    gate: Proxied, origin: Origin, encoding: str
) -> None:
    origin.answer = _answer("200 OK", b"{}", "identity")
    answer = gate.chat("/openai/v1/responses", b"\x00\x01 no such thing", Content_Encoding=encoding, x_api_key="other")
    assert answer.headers["x-fleetgate-model"].endswith("/unknown")
    assert origin.seen.endswith(b"\x00\x01 no such thing")


def test_a_bomb_takes_a_slot_and_no_memory(gate: Proxied, origin: Origin) -> None:
    origin.answer = _answer("200 OK", b"{}", "identity")
    bomb = zstandard.compress(b'{"model": "bomb", "x": "' + bytes(200_000_000))
    answer = gate.chat("/openai/v1/responses", bomb, Content_Encoding="zstd", x_api_key="other")
    assert answer.headers["x-fleetgate-model"].endswith("/bomb")


def test_a_compressed_call_falls_back_without_its_encoding(gate: Proxied, origin: Origin) -> None:
    first = _answer("529 Overloaded", b"{}", "identity")
    origin.answer = first
    body = json.dumps({**CHAT, "model": "first"}).encode()
    answers: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        answers.append(read_request(connection))
        connection.sendall(first if len(answers) == 1 else _answer("200 OK", b"{}", "identity"))

    origin.serve, kept = serve, origin.serve  # type: ignore[method-assign]
    try:
        answer = gate.chat("/openai/v1/responses", zstandard.compress(body), Content_Encoding="zstd", x_api_key="fall")
    finally:
        origin.serve = kept  # type: ignore[method-assign]
    assert answer.status == 200
    assert json.loads(answers[1][answers[1].index(b"{") :])["model"] == "second"
    assert b"content-encoding" not in answers[1].lower()


def test_only_encodings_that_are_known_are_asked_for(gate: Proxied, origin: Origin) -> None:
    origin.answer = _answer("200 OK", b"{}", "identity")
    gate.chat("/openai/v1/responses", {**CHAT, "model": "x"}, Accept_Encoding="gzip, dcb, br", x_api_key="other")
    assert b"accept-encoding: gzip, br\r\n" in origin.seen.lower()
