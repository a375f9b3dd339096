"""Where a provider may redirect a client.

HTTP clients follow a redirect with the headers of the first request, some of them even to another host. So a hostile or
broken provider could have our token or an access key sent anywhere, or a route of our own called.

- A redirect to the same provider, below its base URL, leads through the proxy again.
- Any other redirect is passed on only to a client that showed neither our token nor an access key. None is
  passed on that leads to this machine.
"""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import SplitResult, urljoin, urlsplit

from fleetgate.front.request import ClientRequest
from fleetgate.proxy.calls.exchange import Exchange
from fleetgate.proxy.routes import leaves_base

_LOCATION = b"location: "
_PORTS = {"http": 80, "https": 443}


def with_safe_redirect(exchange: Exchange, client: ClientRequest, lines: list[bytes]) -> list[bytes]:
    """The header lines of a redirect as they may go to the client."""
    found = [line for line in lines if line.startswith(_LOCATION)]
    if not found:
        return lines
    location = _location(exchange, client, found[0][len(_LOCATION) :].strip()) if len(found) == 1 else b""
    others = [line for line in lines if line not in found]
    return [*others, b"%s%s\r\n" % (_LOCATION, location)] if location else others


def _location(exchange: Exchange, client: ClientRequest, location: bytes) -> bytes:
    """The target for the client; nothing if it gets none."""
    own = urlsplit(exchange.upstream.url_of(exchange.path))
    try:
        target = urlsplit(urljoin(own.geturl(), location.decode("ascii")))
        origins = _origin(own), _origin(target)
    except ValueError:
        return b""
    if b"\\" in location or target.scheme not in _PORTS or "@" in target.netloc:
        return b""
    if origins[0] == origins[1] and (through_proxy := _path_in_proxy(exchange, client, target)):
        return through_proxy
    shows_ours = exchange.shows_token or exchange.access_key is not None
    return b"" if shows_ours or _is_here(target, client) else target.geturl().encode()


def _path_in_proxy(exchange: Exchange, client: ClientRequest, target: SplitResult) -> bytes:
    """The path of a provider's URL in the proxy, with the names that the client has put before it; nothing if it has
    none.
    """
    route, upstream = exchange.route, exchange.upstream
    path = target.path.encode()
    if upstream.name not in (route.provider, f"{route.provider}@{route.account}"):
        return b""  # the answer is of another provider than the client's path names
    if leaves_base(path) or not upstream.is_below_base(path):
        return b""
    prefix = client.path.removesuffix(route.rest)
    return prefix + path + (b"?" + target.query.encode() if target.query else b"")


def _origin(url: SplitResult) -> tuple[str, str, int | None]:
    return url.scheme, url.hostname or "", url.port or _PORTS.get(url.scheme)


def _is_here(target: SplitResult, client: ClientRequest) -> bool:
    """Whether a URL leads to this machine, or to the address at which the client has reached the service."""
    name = (target.hostname or "").rstrip(".")
    try:
        address = ip_address(name)
    except ValueError:
        hosts = {value.lower() for header, value in client.headers if header == b"host"}
        return name == "localhost" or name.endswith(".localhost") or target.netloc.lower().encode() in hosts
    mapped = getattr(address, "ipv4_mapped", None) or address
    return bool(mapped.is_loopback or mapped.is_unspecified)
