"""The headers of requests and answers: which are passed on, which are ours, and where a key is (rules X1, X7).

Names in a request are in lower case already, as ASGI has them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from fleetgate.proxy.sessions import SESSION_HEADERS
from fleetgate.signals.content_encoding import narrowed

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
# Of a request also the headers that the HTTP client of the next hop writes itself.
_NOT_SENT = _HOP_BY_HOP | {b"host", b"content-length", b"expect"}
# A browser applies these to the origin that an answer came from. That is our origin, and the dashboard's.
_ACT_ON_ORIGIN = frozenset(
    (
        b"accept-ch",
        b"access-control-allow-credentials",
        b"access-control-allow-headers",
        b"access-control-allow-methods",
        b"access-control-allow-origin",
        b"access-control-allow-private-network",
        b"access-control-expose-headers",
        b"access-control-max-age",
        b"activate-storage-access",
        b"alt-svc",
        b"clear-site-data",
        b"content-security-policy",
        b"content-security-policy-report-only",
        b"critical-ch",
        b"cross-origin-embedder-policy",
        b"cross-origin-opener-policy",
        b"cross-origin-resource-policy",
        b"document-policy",
        b"expect-ct",
        b"feature-policy",
        b"integrity-policy",
        b"link",
        b"nel",
        b"origin-agent-cluster",
        b"origin-trial",
        b"permissions-policy",
        b"public-key-pins",
        b"public-key-pins-report-only",
        b"refresh",
        b"report-to",
        b"reporting-endpoints",
        b"service-worker-allowed",
        b"set-cookie",
        b"set-cookie2",
        b"set-login",
        b"sourcemap",
        b"speculation-rules",
        b"strict-transport-security",
        b"supports-loading-mode",
        b"timing-allow-origin",
        b"use-as-dictionary",
        b"x-content-type-options",
        b"x-dns-prefetch-control",
        b"x-frame-options",
        b"x-permitted-cross-domain-policies",
        b"x-sourcemap",
        b"x-xss-protection",
    )
)
_NOT_PASSED_BACK = _HOP_BY_HOP | _ACT_ON_ORIGIN | {b"date"}  # the server says the date
# On every answer of the proxy: a browser that shows it runs nothing in it, and treats it as a page of no origin.
ISOLATED: Pairs = [
    (b"content-security-policy", b"sandbox; default-src 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
]
_SESSION_COOKIE = (b"fleetgate_session", b"__Host-fleetgate_session")
_OURS = b"x-fleetgate-"
_SESSION_HEADERS = frozenset(SESSION_HEADERS)
KEYS = (b"x-api-key", b"x-goog-api-key", b"api-key", b"authorization")  # the first that is there counts


class CallHeaders:
    """A request's headers, sorted."""

    __slots__ = ("content_type", "encoding", "keys", "length", "ours", "sent", "sessions", "upgrade")

    def __init__(self) -> None:
        self.sent: Pairs = []  # to be passed on, without keys
        self.keys: dict[bytes, bytes] = {}
        self.ours: dict[bytes, bytes] = {}  # by the rest of their names
        self.length: bytes | None = None
        self.content_type = b""
        self.upgrade = b""  # the protocol that it asks for instead of HTTP
        self.encoding = b""  # of its body
        self.sessions: dict[bytes, bytes] = {}  # ids of the session that it belongs to, by header


def read_headers(headers: Iterable[tuple[bytes, bytes]]) -> CallHeaders:
    """What a request brings along."""
    asked = CallHeaders()
    dropped: frozenset[bytes] | set[bytes] = _NOT_SENT
    headers = list(headers)
    for name, value in headers:
        if name == b"connection" and value.lower() not in (b"keep-alive", b"close"):
            dropped = dropped | _named(value)
    for name, value in headers:
        if name in dropped:
            if name == b"content-length":
                asked.length = value
            elif name == b"upgrade":
                asked.upgrade = value
        elif name in KEYS:
            asked.keys.setdefault(name, value)
        elif name.startswith(_OURS):
            asked.ours[name[len(_OURS) :]] = value
        else:
            if name == b"content-type":
                asked.content_type = value
            elif name == b"content-encoding":
                asked.encoding += b", " + value if asked.encoding else value
            elif name == b"cookie":
                value = _without_session(value)
                if not value:
                    continue
            elif name in _SESSION_HEADERS:
                asked.sessions.setdefault(name, value)
            asked.sent.append((name, value))
    return asked


def looked_at(sent: Pairs) -> Pairs:
    """The headers of a request whose answer is to be looked at: it asks for encodings only that are known here."""
    return [
        (name, narrowed(value.decode("latin-1")).encode("latin-1")) if name == b"accept-encoding" else (name, value)
        for name, value in sent
    ]


def key_of(asked: CallHeaders, query: bytes) -> str:
    """The API key that a request brings along, or nothing."""
    for name in KEYS:
        value = asked.keys.get(name)
        if value:
            return text_of(bare_key(name, value))
    return next(iter(keys_in(query)), "")


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


def keys_in(query: bytes) -> list[str]:
    """The keys that a query brings along, in `key=…`, which may be written with escapes."""
    return [key for part in query.split(b"&") if (key := _key_in(part))] if query else []


def without_keys(query: bytes, keys: Container[str] | None = None) -> bytes:
    """A query without these keys; without all that it has, if none are named."""
    if not query:
        return query
    found = ((part, _key_in(part)) for part in query.split(b"&"))
    return b"&".join(part for part, key in found if key is None or not (keys is None or key in keys))


def _key_in(part: bytes) -> str | None:
    """The key in a part of a query; None if it names something else."""
    name, _, value = part.partition(b"=")
    return text_of(unquote_to_bytes(value.replace(b"+", b" "))) if unquote_to_bytes(name) == b"key" else None


class ResponseHead(NamedTuple):
    """The head of a provider's response, as it goes to the client."""

    lines: list[bytes]
    length: int | None  # of its body, if it says so
    event_stream: bool
    encoding: str  # of its body, in the order in which encodings were applied


def passed_back(raw: Sequence[tuple[bytes, bytes]], *, bodiless: bool) -> ResponseHead:
    """The headers of a response that go to the client. `bodiless`: it has a status that has no body, and no length."""
    lines: list[bytes] = []
    length, event_stream, encodings = None, False, b""
    named: set[bytes] | None = None
    for name, value in raw:
        small = name.lower()
        if small in _NOT_PASSED_BACK:
            if small == b"connection" and value.lower() not in (b"keep-alive", b"close"):
                named = _named(value)
            continue
        if small == b"content-length":
            if bodiless:  # the client would wait for it
                continue
            length = int(value)
        elif small == b"content-type":
            event_stream = value[:17].lower() == b"text/event-stream"
        elif small == b"content-encoding":
            encodings = encodings + b", " + value if encodings else value
        lines.append(b"%s: %s\r\n" % (small, value))
    if named:
        lines = [line for line in lines if line.partition(b":")[0] not in named]
        length = None if b"content-length" in named else length
    return ResponseHead(lines, length, event_stream, encodings.decode("latin-1") if encodings else "")


def _without_session(cookies: bytes) -> bytes:
    """A Cookie header without the dashboard's session, which is not for providers."""
    parts = [part.strip() for part in cookies.split(b";")]
    return b"; ".join(part for part in parts if part and not part.startswith(_SESSION_COOKIE))


def _named(value: bytes) -> set[bytes]:
    """What a Connection header says is for this hop only."""
    return {word.strip().lower() for word in value.split(b",")}


def text_of(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
