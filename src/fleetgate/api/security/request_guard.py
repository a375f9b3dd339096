"""The guard that checks every request before any route (rule H5): its size, its Host and Origin, its token.

A page that the user visits must not drive the gate. A name that an attacker's DNS points at us is not a Host we know;
a page elsewhere sends its Origin, which is not ours; and there is no CORS, so nothing is ever readable from there.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import Struct

from fleetgate.api.errors import RequestRefused, refusal
from fleetgate.api.security.caller import LOCAL_OPERATOR, OWNER, PUBLIC, READER, Caller
from fleetgate.api.security.forwarded_users import ForwardedUsers
from fleetgate.api.security.sessions import HEADER
from fleetgate.api.security.tokens import Tokens
from fleetgate.core.access.keys import AccessKey
from fleetgate.front.request import ClientRequest, Headers
from fleetgate.gate.serving.local_peer import LocalUsers, Peer

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
    find_key: Callable[[str], AccessKey | None] = lambda _: None  # an access key by its text
    named_key: Callable[[str], AccessKey | None] = lambda _: None  # or by its name
    forwarded: ForwardedUsers | None = None  # users whom a reverse proxy has signed in

    def trusts(self, peer: object) -> bool:
        """Whether a connection comes, over loopback, from a user of this machine who needs no token to be trusted."""
        return self.loopback and isinstance(peer, Peer) and peer.trusted

    def owns(self, peer: object) -> bool:
        """Whether a connection comes, over loopback, from the service's own user."""
        return self.loopback and isinstance(peer, Peer) and peer.own


class Guard:
    """Checks requests, by what their heads say."""

    def __init__(self, access: Access, connections: Callable[[], int], most_connections: int) -> None:
        self._access = access
        self._connections = connections
        self._most_connections = most_connections
        self._hosts: set[bytes] = set()  # some that were found right

    def admit(self, request: ClientRequest, path: str) -> Caller:
        """Let a request pass; returns whose it is. Its body gets a limit. RequestRefused."""
        if path in _HEALTH:
            caller, length = PUBLIC, 0
        else:
            caller, length = self._check(request, path)
        most = JOBS_BYTES if caller.may_submit and path.startswith("/v1/jobs") else BODY_BYTES
        if length > most or request.body_size > most:
            raise RequestRefused(413, "too_large", f"the body is too large: at most {most} bytes")
        request.body_limit = most
        return caller

    def _check(self, request: ClientRequest, path: str) -> tuple[Caller, int]:
        if len(request.path) + len(request.query) > PATH_BYTES:
            raise RequestRefused(414, "too_large", f"the address is too long: at most {PATH_BYTES} bytes")
        found: dict[bytes, bytes] = {}
        size = 0
        for name, value in request.headers:
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
        self._check_origin(request, path, found)
        caller = self._caller(request, path, found)
        length = _length(found, request.headers)
        if length and path.startswith("/v1/") and not _is_json(found.get(b"content-type")):
            raise RequestRefused(415, "not_json", "the body must be JSON, with Content-Type: application/json")
        return caller, length

    def check_proxied(self, request: ClientRequest) -> None:
        """Check the Host and the Origin of a request to a provider; its key, the provider checks. RequestRefused."""
        host, browser, hosts = b"", False, 0
        for name, value in request.headers:
            if name == b"host":
                host = value
                hosts += 1
            elif name == b"origin" or name.startswith(b"sec-fetch-"):
                browser = True
        if hosts > 1:
            raise RequestRefused(400, "two_hosts", "two Host headers: send one")
        if browser or host not in self._hosts:
            self._check_source(request)

    def _check_source(self, request: ClientRequest) -> None:
        """That it is meant for us, and comes from a program or from a script of our own page."""
        for name, value in request.headers:
            if (name == b"sec-fetch-mode" and value == b"navigate") or (
                name == b"sec-fetch-dest" and value != b"empty"
            ):
                raise _browser_page()
        found = {name: value for name, value in request.headers if name in _HEADERS}
        self._check_host(found.get(b"host", b""))
        self._check_origin(request, text_path(request), found)

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

    def _check_origin(self, request: ClientRequest, path: str, found: dict[bytes, bytes]) -> None:
        """The browser says where a request comes from; programs say nothing."""
        origin = found.get(b"origin")
        if origin is not None:
            ours = origin.partition(b"://")[2].lower()
            if ours != found.get(b"host", b"").lower():
                raise _foreign(origin.decode("latin-1"))
        site = found.get(b"sec-fetch-site", b"none")
        if site not in (b"none", b"same-origin") and not (request.method == "GET" and path in _PAGES):
            raise _foreign("another page")

    def _caller(self, request: ClientRequest, path: str, found: dict[bytes, bytes]) -> Caller:
        """Whose request it is, by its token, its access key, its session or its local user."""
        access = self._access
        given = found.get(b"authorization")
        if given is not None and (access.forwarded is None or given[:7].lower() == b"bearer "):
            return self._caller_with(given)  # another scheme is the reverse proxy's own
        secret = found.get(HEADER)
        if secret is not None and (signed_in := self._signed_in(found.get(b"cookie", b""), secret)) is not None:
            return signed_in
        safe = request.method in _SAFE
        if safe and (path in _PUBLIC or path.startswith("/assets/")):
            return PUBLIC
        if (request.method, path) == _SIGN_IN:
            return PUBLIC
        if access.forwarded is not None and (user := access.forwarded.find(request)) is not None:
            return user
        if safe or (path.startswith("/concurrency/") and not access.concurrency_token):
            if access.trusts(request.peer):
                return READER if safe else LOCAL_OPERATOR
            if access.loopback:
                raise _stranger()
        raise RequestRefused(
            401,
            "token_needed",
            "this needs the token, as `Authorization: Bearer …`: it is in the file `token` of the state folder; "
            "in a browser, `fleetgate open` signs you in",
        )

    def _signed_in(self, cookies: bytes, secret: bytes) -> Caller | None:
        """The caller that a browser was signed in as: the owner, or a key that is still what it was then."""
        sessions = self._access.tokens.sessions
        found = sessions.find(cookies, secret)
        if found is None or not found.key:
            return None if found is None else OWNER
        key = self._access.named_key(found.key)
        return Caller(key.role, key) if key is not None and sessions.key_mark(key) == found.mark else None

    def _caller_with(self, authorization: bytes) -> Caller:
        """The owner of a token or of an access key."""
        if self._access.tokens.is_token(authorization):
            return OWNER
        scheme, _, text = authorization.partition(b" ")
        if scheme.lower() == b"bearer":
            key = self._access.find_key(text.strip().decode("latin-1"))
            if key is not None:
                return Caller(key.role, key)
        raise RequestRefused(
            401,
            "token_wrong",
            "this is neither the token, which is in the file `token` of the state folder, nor a valid access key",
        )


def text_path(request: ClientRequest) -> str:
    """The path of a request, without its escapes."""
    path = request.path
    return (unquote_to_bytes(path) if b"%" in path else path).decode("utf-8", "replace")


def refuse(request: ClientRequest, error: Exception) -> None:
    """Respond with an error, and end the connection: the rest of the request is not read."""
    status, shape, extra = refusal(error)
    headers = [
        (b"content-type", b"application/json"),
        *((name.encode(), value.encode()) for name, value in extra.items()),
        *SECURE_HEADERS,
        (b"content-security-policy", b"sandbox; default-src 'none'; frame-ancestors 'none'"),
        (b"connection", b"close"),
    ]
    request.respond(status, headers, msgspec.json.encode(shape))


def _is_json(kind: bytes | None) -> bool:
    return kind is None or kind.partition(b";")[0].strip().lower() == b"application/json"


def _length(found: dict[bytes, bytes], headers: Headers) -> int:
    """The body's length; -1 when it is not said."""
    given = found.get(b"content-length")
    if given is not None:
        return int(given)  # the parser has checked it
    return -1 if any(name == b"transfer-encoding" for name, _ in headers) else 0


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
