"""The guard that checks every request before any route (rule H5): its size, its Host and Origin, its token.

A page that the user visits must not drive the gate. A name that an attacker's DNS points at us is not a Host we know;
a page elsewhere sends its Origin, which is not ours; and there is no CORS, so nothing is ever readable from there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from ipaddress import ip_address
from typing import Any

import msgspec
from msgspec import Struct

from fleetgate.api.errors import RequestRefused, refusal
from fleetgate.api.security.sessions import HEADER
from fleetgate.api.security.tokens import Tokens
from fleetgate.gate.serving.local_peer import LocalUsers, Peer

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

BODY_BYTES = 64 * 1024
JOBS_BYTES = 4 * 1024 * 1024  # prompts are long, and batches of them longer
HEAD_BYTES = 16 * 1024
PATH_BYTES = 4 * 1024

_MOST_HOSTS = 100
_HEALTH = frozenset(("/healthz", "/readyz"))
_PAGES = frozenset(("/", "/docs"))  # what a link from elsewhere may lead to
# The page itself, without any data: it says how to sign in.
_PUBLIC = frozenset(("/", "/favicon.ico", "/docs", "/docs.css", "/openapi.json"))
_SIGN_IN = ("POST", "/v1/session")  # its code is what counts
_SAFE = frozenset(("GET", "HEAD", "OPTIONS"))
_HEADERS = frozenset(
    (b"host", b"origin", b"sec-fetch-site", b"authorization", b"cookie", HEADER, b"content-length", b"content-type")
)

SECURE_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)


class Access(Struct):
    """Which clients the service answers."""

    tokens: Tokens
    loopback: bool
    names: frozenset[str]  # in lower case, besides addresses
    concurrency_token: bool
    may_submit: bool  # jobs: with this, a client can run any command
    users: LocalUsers  # of this machine, who are trusted on loopback

    def trusts(self, scope: Scope) -> bool:
        """Whether a request comes, over loopback, from a user of this machine who needs no token to be trusted."""
        peer: Peer | None = scope.get("fleetgate.peer") if self.loopback else None
        return peer is not None and peer.trusted


class Guard:
    """Wraps the routes."""

    def __init__(self, app: App, access: Access, connections: Callable[[], int], most_connections: int) -> None:
        self._app = app
        self._access = access
        self._connections = connections
        self._most_connections = most_connections
        self._hosts: set[bytes] = set()  # some that were found right

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        path = scope["path"]
        scope["fleetgate.may_change"] = False
        try:
            if path not in _HEALTH:
                self._check(scope, path)
            length = scope.get("fleetgate.length", 0)
            most = JOBS_BYTES if path.startswith("/v1/jobs") and scope["fleetgate.may_change"] else BODY_BYTES
            if length > most:
                raise _too_large(most)
        except RequestRefused as error:
            await refuse(error, send, close=True)
            return
        await self._app(scope, receive if length >= 0 else _counted(receive, most), _secured(send))

    def passes(self, scope: Scope, path: str) -> bool:
        """Whether a request would be passed on unchanged: for the fast path, which answers without this wrapper."""
        scope["fleetgate.may_change"] = False
        try:
            self._check(scope, path)
        except RequestRefused:
            return False
        length: int = scope["fleetgate.length"]
        return 0 <= length <= BODY_BYTES

    def _check(self, scope: Scope, path: str) -> None:
        if len(scope["raw_path"]) + len(scope["query_string"]) > PATH_BYTES:
            raise RequestRefused(414, "too_large", f"the address is too long: at most {PATH_BYTES} bytes")
        found: dict[bytes, bytes] = {}
        size = 0
        for name, value in scope["headers"]:
            size += len(name) + len(value)
            if name in _HEADERS:
                if name == b"host" and b"host" in found:
                    raise _wrong_host("two of them")
                found[name] = value
        if size > HEAD_BYTES:
            raise RequestRefused(431, "too_large", f"the headers are too long: at most {HEAD_BYTES} bytes")
        if self._connections() > self._most_connections:
            raise RequestRefused(
                503,
                "too_many_connections",
                f"more than {self._most_connections} connections are open: close some, or come back later",
                retry_after_s=1,
            )
        self._check_host(found.get(b"host", b""))
        self._check_origin(scope, path, found)
        self._check_token(scope, path, found)
        length = scope["fleetgate.length"] = _length(found, scope["headers"])
        if length and path.startswith("/v1/") and not _is_json(found.get(b"content-type")):
            raise RequestRefused(415, "not_json", "the body must be JSON, with Content-Type: application/json")

    def check_source(self, scope: Scope) -> None:
        """Only that it is meant for us and comes from a program, or from a script of our own page. RequestRefused."""
        for name, value in scope["headers"]:
            if (name == b"sec-fetch-mode" and value == b"navigate") or (
                name == b"sec-fetch-dest" and value != b"empty"
            ):
                raise _browser_page()
        found = {name: value for name, value in scope["headers"] if name in _HEADERS}
        self._check_host(found.get(b"host", b""))
        self._check_origin(scope, scope["path"], found)

    def knows_host(self, host: bytes) -> bool:
        """Whether this Host was found valid before: cheaper than a full check."""
        return host in self._hosts

    def _check_host(self, host: bytes) -> None:
        if host in self._hosts:
            return
        text = host.decode("latin-1").lower()
        name = text.rpartition(":")[0] if not text.endswith("]") and ":" in text else text
        if name not in self._access.names:
            try:
                ip_address(name.strip("[]"))
            except ValueError:
                raise _wrong_host(text or "none") from None
        if len(self._hosts) < _MOST_HOSTS:
            self._hosts.add(host)

    def _check_origin(self, scope: Scope, path: str, found: dict[bytes, bytes]) -> None:
        """The browser says where a request comes from; programs say nothing."""
        origin = found.get(b"origin")
        if origin is not None:
            ours = origin.partition(b"://")[2].lower()
            if ours != found.get(b"host", b"").lower():
                raise _foreign(origin.decode("latin-1"))
        site = found.get(b"sec-fetch-site", b"none")
        if site not in (b"none", b"same-origin") and not (scope["method"] == "GET" and path in _PAGES):
            raise _foreign("another page")

    def _check_token(self, scope: Scope, path: str, found: dict[bytes, bytes]) -> None:
        access = self._access
        given = found.get(b"authorization")
        if given is not None:
            if not access.tokens.is_token(given):
                raise RequestRefused(
                    401, "token_wrong", "this is not the token: it is in the file `token` of the state folder"
                )
            scope["fleetgate.may_change"] = True
            return
        secret = found.get(HEADER)
        if secret is not None and access.tokens.sessions.is_open(found.get(b"cookie", b""), secret):
            scope["fleetgate.may_change"] = True
            return
        safe = scope["method"] in _SAFE
        if safe and (path in _PUBLIC or path.startswith("/assets/")):
            return
        if (scope["method"], path) == _SIGN_IN:
            return
        if safe or (path.startswith("/concurrency/") and not access.concurrency_token):
            if access.trusts(scope):
                return
            if access.loopback:
                raise _stranger()
        raise RequestRefused(
            401,
            "token_needed",
            "this needs the token, as `Authorization: Bearer …`: it is in the file `token` of the state folder; "
            "in a browser, `fleetgate open` signs you in",
        )


async def refuse(error: Exception, send: Send, *, close: bool = False) -> None:
    """Answer with an error, without a route."""
    status, shape, extra = refusal(error)
    body = msgspec.json.encode(shape)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *((name.encode(), value.encode()) for name, value in extra.items()),
        *SECURE_HEADERS,
        (b"content-security-policy", b"sandbox; default-src 'none'; frame-ancestors 'none'"),
    ]
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _is_json(kind: bytes | None) -> bool:
    return kind is None or kind.partition(b";")[0].strip().lower() == b"application/json"


def _length(found: dict[bytes, bytes], headers: list[tuple[bytes, bytes]]) -> int:
    """The body's length; -1 when it is not said."""
    given = found.get(b"content-length")
    if given is not None:
        return int(given) if given.isdigit() and len(given) < 16 else JOBS_BYTES + 1
    return -1 if any(name == b"transfer-encoding" for name, _ in headers) else 0


def _counted(receive: Receive, most: int) -> Receive:
    """The same messages, as long as the body is not too large."""
    size = 0

    async def counted() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > most:
            raise _too_large(most)
        return message

    return counted


def _secured(send: Send) -> Send:
    async def secured(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *SECURE_HEADERS]
        await send(message)

    return secured


def _too_large(most: int) -> RequestRefused:
    return RequestRefused(413, "too_large", f"the body is too large: at most {most} bytes")


def _wrong_host(found: str) -> RequestRefused:
    return RequestRefused(
        403,
        "wrong_host",
        f"Host {found[:100]!r} is not this service: valid are its addresses, localhost, and `hosts` under [serve] "
        "in the config",
    )


def _browser_page() -> RequestRefused:
    return RequestRefused(
        403,
        "browser_page",
        "the proxy answers programs: a browser cannot open or embed what a provider sends, "
        "which could act on the dashboard",
    )


def _stranger() -> RequestRefused:
    return RequestRefused(
        401,
        "token_needed",
        "the service does not trust this user of the machine: send the token, as `Authorization: Bearer …` (it is in "
        "the file `token` of the state folder), or set local_users under [serve] in the service's config",
    )


def _foreign(origin: str) -> RequestRefused:
    return RequestRefused(
        403, "foreign_origin", f"requests of {origin[:100]!r} are not answered: only the service's own pages are"
    )
