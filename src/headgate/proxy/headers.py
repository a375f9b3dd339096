"""Headers: which are passed on, which are ours, and where a key is (SPEC X1, X7).

Names in a request are in lower case already, as ASGI has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from urllib.parse import parse_qs

from msgspec import Struct

Pairs = list[tuple[bytes, bytes]]

_HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
# Of a request also what the client of the next hop says anew.
_NOT_SENT = _HOP_BY_HOP | {b"host", b"content-length", b"expect"}
_NOT_PASSED_BACK = _HOP_BY_HOP | {b"date"}  # the server says it
_OURS = b"x-headgate-"
KEYS = (b"x-api-key", b"x-goog-api-key", b"api-key", b"authorization")  # the first that is there counts


class Asked(Struct):
    """A request's headers, sorted."""

    sent: Pairs  # to be passed on, without keys
    keys: dict[bytes, bytes]
    ours: dict[bytes, bytes]  # by the rest of their names
    length: bytes | None = None
    content_type: bytes = b""


def read_headers(headers: Iterable[tuple[bytes, bytes]]) -> Asked:
    """What a request brings along."""
    asked = Asked([], {}, {})
    dropped: frozenset[bytes] | set[bytes] = _NOT_SENT
    headers = list(headers)
    for name, value in headers:
        if name == b"connection" and value.lower() not in (b"keep-alive", b"close"):
            dropped = dropped | _named(value)
    for name, value in headers:
        if name in dropped:
            if name == b"content-length":
                asked.length = value
        elif name in KEYS:
            asked.keys.setdefault(name, value)
        elif name.startswith(_OURS):
            asked.ours[name[len(_OURS) :]] = value
        else:
            if name == b"content-type":
                asked.content_type = value
            asked.sent.append((name, value))
    return asked


def key_of(asked: Asked, query: bytes) -> str:
    """The API key that a request brings along, or nothing."""
    for name in KEYS:
        value = asked.keys.get(name)
        if value:
            return _text(bare_key(name, value))
    if b"key=" in query:
        return parse_qs(query.decode("latin-1")).get("key", [""])[0]
    return ""


def bare_key(name: bytes, value: bytes) -> bytes:
    """A key without its scheme."""
    if name != b"authorization":
        return value.strip()
    scheme, _, key = value.partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else value.strip()


def header_for(key: str, api: str, host: str) -> tuple[bytes, bytes]:
    """Where a provider looks for a key. ValueError."""
    if not key.isprintable():
        raise ValueError("the key has a character in it that no header may have")
    value = key.encode()
    if api == "anthropic" and not key.startswith("sk-ant-oat"):
        return b"x-api-key", value
    if api == "gemini":
        return b"x-goog-api-key", value
    if host.endswith((".azure.com", ".azure.us", ".azure.cn")):
        return b"api-key", value
    return b"authorization", b"Bearer " + value


def without_key(query: bytes) -> bytes:
    """A query without `key=…`."""
    return b"&".join(part for part in query.split(b"&") if not part.startswith(b"key="))


def passed_back(raw: Sequence[tuple[bytes, bytes]]) -> tuple[Pairs, bool]:
    """The headers of a response that go to the client, and whether they say that a stream of events follows."""
    pairs: Pairs = []
    event_stream = False
    named: set[bytes] = set()
    for name, value in raw:
        small = name.lower()
        if small in _NOT_PASSED_BACK:
            if small == b"connection" and value.lower() not in (b"keep-alive", b"close"):
                named = _named(value)
            continue
        if small == b"content-type":
            event_stream = value[:17].lower() == b"text/event-stream"
        pairs.append((small, value))
    return ([pair for pair in pairs if pair[0] not in named] if named else pairs), event_stream


def _named(value: bytes) -> set[bytes]:
    """What a Connection header says is for this hop only."""
    return {word.strip().lower() for word in value.split(b",")}


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
