"""HTTP/1.1 as bytes, without I/O: a request's head is read, a response's head is written.

The rule: every input is either a `Request` or a `BadRequest` with the status to answer; nothing else is raised.
"""

from __future__ import annotations

import string
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, unquote

import msgspec

MAX_HEAD_BYTES = 32 * 1024
MAX_FIELDS = 128
MAX_BODY_BYTES = 32 * 1024 * 1024
MAX_CHUNK_LINE_BYTES = 1024

CHUNKED = -1  # as a body's length: told by the body itself

_TOKEN = frozenset("!#$%&'*+-.^_`|~" + string.ascii_letters + string.digits)
_HEX = frozenset(string.hexdigits)
_OWN_PHRASES = {498: "Capacity Exceeded", 529: "Overloaded"}


class BadRequest(Exception):
    """Bytes that are no request we answer: the status that says so, and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Request(msgspec.Struct):
    """One request. Field names are in lower case; repeated fields are joined by a comma."""

    method: str
    target: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    minor: int  # of HTTP/1.x
    body: bytes = b""

    @property
    def keep_alive(self) -> bool:
        wish = self.headers.get("connection", "").lower()
        return "close" not in wish if self.minor else "keep-alive" in wish

    def json(self) -> Any:
        """The body as JSON; raises `msgspec.DecodeError`."""
        return msgspec.json.decode(self.body)


def can_start(byte: int) -> bool:
    """Whether a request can begin with this byte; a TLS greeting cannot."""
    return chr(byte) in _TOKEN or byte in b"\r\n"


def parse_head(head: bytes) -> Request:
    """Read the request line and the fields, without the empty line that ends them."""
    line, *fields = head.decode("latin-1").split("\r\n")
    parts = line.split(" ")
    if len(parts) != 3:
        raise BadRequest(400, "a request line is METHOD TARGET HTTP/1.1")
    method, target, version = parts
    if not method or not _TOKEN.issuperset(method):
        raise BadRequest(400, "the method is no token")
    if version not in ("HTTP/1.0", "HTTP/1.1"):
        known = version.startswith("HTTP/")
        raise BadRequest(505 if known else 400, "only HTTP/1.0 and HTTP/1.1 are spoken here")
    path, query = _split_target(target)
    return Request(method, target, path, query, _parse_fields(fields), int(version[-1]))


def body_length(request: Request) -> int:
    """How many bytes of body follow the head, or CHUNKED."""
    coding = request.headers.get("transfer-encoding")
    length = request.headers.get("content-length")
    if coding is not None:
        if length is not None:
            raise BadRequest(400, "Content-Length beside Transfer-Encoding")
        if coding.lower() != "chunked":
            raise BadRequest(501, "the only transfer coding known here is chunked")
        return CHUNKED
    if length is None:
        return 0
    if not (length.isascii() and length.isdigit()) or len(length) > 18:
        raise BadRequest(400, "Content-Length is not a number")
    return check_size(int(length))


def check_size(length: int) -> int:
    if length > MAX_BODY_BYTES:
        raise BadRequest(413, f"a body has at most {MAX_BODY_BYTES} bytes")
    return length


def chunk_size(line: bytes) -> int:
    """The size that a chunk's first line names; its extensions are ignored."""
    digits = line.decode("latin-1").partition(";")[0].strip(" \t")
    if not digits or len(digits) > 15 or not _HEX.issuperset(digits):
        raise BadRequest(400, "a chunk begins with its size in hexadecimal")
    return int(digits, 16)


def response_head(status: int, fields: Iterable[tuple[str, str]]) -> bytes:
    lines = [f"HTTP/1.1 {status} {_phrase(status)}"]
    # A field that a test scripted must not be able to break the response in two.
    lines += [f"{name}: {value}".replace("\r", " ").replace("\n", " ") for name, value in fields]
    return "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n"


def _split_target(target: str) -> tuple[str, dict[str, str]]:
    if target.startswith(("http://", "https://")):
        target = "/" + target.split("://", 1)[1].partition("/")[2]
    if not target.startswith("/") and target != "*":
        raise BadRequest(400, "the target is no path")
    path, _, query = target.partition("#")[0].partition("?")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=100)
    except ValueError:
        raise BadRequest(400, "the query has more than 100 fields") from None
    return unquote(path), dict(pairs)


def _parse_fields(lines: list[str]) -> dict[str, str]:
    if len(lines) > MAX_FIELDS:
        raise BadRequest(431, f"at most {MAX_FIELDS} fields")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or not _TOKEN.issuperset(name):
            raise BadRequest(400, "a field is NAME: VALUE")
        value = value.strip(" \t")
        if any(char in "\r\n\0" for char in value):
            raise BadRequest(400, "a field's value holds a control character")
        _add_field(headers, name.lower(), value)
    return headers


def _add_field(headers: dict[str, str], name: str, value: str) -> None:
    if name not in headers:
        headers[name] = value
    elif name != "content-length":
        headers[name] += ", " + value
    elif headers[name] != value:
        raise BadRequest(400, "two different Content-Lengths")


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return _OWN_PHRASES.get(status, "Unknown")
