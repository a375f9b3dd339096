"""The providers that requests go to: those of the config, and the well-known ones, with a client for each.

A path is appended to the provider's base URL. Where both say the same (`…/v1` and `/v1/messages`) it is said once, so
that agents may be given an address with or without it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import urlsplit

from fleetgate.config.settings import Provider, Settings
from fleetgate.gate.providers.known_providers import KNOWN_PROVIDERS
from fleetgate.proxy.headers import Pairs
from fleetgate.proxy.http_client.connection import UpstreamRequest
from fleetgate.proxy.http_client.pool import UpstreamConnections

# First parts of the API's own paths: a provider of such a name is not proxied.
RESERVED = frozenset(
    ("", "v1", "p", "l", "concurrency", "metrics", "healthz", "readyz", "docs", "login", "openapi.json", "assets")
)
_MOST_PATHS = 1000
LONGEST_PATH = 300  # a longer one is looked at each time: anyone can send long ones, and those of APIs are short
_IDENTITY_PATHS = {"anthropic": "/v1/models"}  # every answer of this API names the organization of the token
_BODILESS = frozenset(("GET", "HEAD", "DELETE", "OPTIONS"))


class ProxiedProvider:
    """One provider, or one account of it that is elsewhere."""

    def __init__(self, name: str, given: Provider, base_url: str, api: str) -> None:
        self.name = name
        self.provider = name.partition("@")[0]
        self.api = api
        self.hold_s = given.hold_ms / 1000
        self.stall_s = given.stall_ms / 1000
        self.comment_after_s = given.comment_after_ms / 1000
        self.follows_rates = given.rates != "ignore"
        said = given.identity_path
        self.identity_path = _IDENTITY_PATHS.get(self.provider, "") if said is None else said
        self._url = urlsplit(base_url)
        self.host = self._url.hostname or ""
        self._base = self._url.path.rstrip("/").encode()
        self._segments = self._base.split(b"/")[1:] if self._base else []
        self._connections: UpstreamConnections | None = None
        self._lines: dict[tuple[str, bytes], bytes] = {}

    def __repr__(self) -> str:
        return f"<ProxiedProvider {self.name} {self._url.scheme}://{self.host}{self._base.decode()}>"

    @property
    def connections(self) -> UpstreamConnections:
        """The connections to it. CannotConnect where the environment names a proxy that cannot be used."""
        if self._connections is None:
            self._connections = UpstreamConnections(self._url)
        return self._connections

    def request(
        self,
        method: str,
        path: bytes,
        query: bytes,
        headers: Pairs,
        body: bytes,
        pieces: AsyncIterator[bytes] | None = None,
    ) -> UpstreamRequest:
        """A request as it is sent to this provider.

        With `pieces` instead of a body, `headers` say how long they are together; otherwise they are sent in chunks.
        """
        lines = [self._first_lines(self.connections, method, path, query)]
        lines += [b"%s: %s\r\n" % pair for pair in headers]
        if pieces is None:
            if body or method not in _BODILESS:
                lines.append(b"content-length: %d\r\n" % len(body))
        elif not any(name == b"content-length" for name, _ in headers):
            lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(b"\r\n")
        return UpstreamRequest(method.encode(), b"".join(lines), body, pieces)

    def _first_lines(self, connections: UpstreamConnections, method: str, path: bytes, query: bytes) -> bytes:
        """The request line, and what every request to this provider says."""
        known = self._lines.get((method, path)) if not query else None
        if known is not None:
            return known
        target = self.target(path) + (b"?" + query if query else b"")
        lines = b"%s %s%s HTTP/1.1\r\nhost: %s\r\n%s" % (
            method.encode(),
            connections.before_path,
            target,
            connections.authority.encode(),
            connections.extra,
        )
        if not query and len(path) <= LONGEST_PATH:
            if len(self._lines) >= _MOST_PATHS:
                self._lines.clear()
            self._lines[method, path] = lines
        return lines

    def target(self, path: bytes) -> bytes:
        """Where a path is at the provider."""
        if self._segments:
            path = self._without_base(path)
        return self._base + path or b"/"

    def url_of(self, path: bytes) -> str:
        """The whole URL of a path."""
        return f"{self._url.scheme}://{self._url.netloc}{self.target(path).decode('latin-1')}"

    def is_below_base(self, path: bytes) -> bool:
        """Whether a path of the provider is in the base URL."""
        return path == self._base or path.startswith(self._base + b"/")

    def _without_base(self, path: bytes) -> bytes:
        """The path without what the base URL ends in."""
        own = self._segments
        for start in range(len(own)):
            said = b"/" + b"/".join(own[start:])
            if path == said or path.startswith(said + b"/"):
                return path[len(said) :]
        return path

    @property
    def connected(self) -> bool:
        return self._connections is not None and self._connections.connected

    async def close(self) -> None:
        if self._connections is not None:
            await self._connections.close()


class ProxiedProviders:
    """All of them, by name; accounts with a base URL of their own as `provider@account`."""

    def __init__(self, settings: Settings) -> None:
        self._all: dict[str, ProxiedProvider] = {}
        for name, (base_url, api) in KNOWN_PROVIDERS.items():
            if name not in settings.providers:
                self._all[name] = ProxiedProvider(name, Provider(), base_url, api)
        for name, given in settings.providers.items():
            provider, _, account = name.partition("@")
            base_url, api = given.base_url, given.api
            if not base_url and not account:
                base_url, api = KNOWN_PROVIDERS.get(provider, ("", given.api))
            if base_url and provider not in RESERVED:
                self._all[name] = ProxiedProvider(name, given, base_url, api)

    def __contains__(self, name: object) -> bool:
        return name in self._all

    def find(self, provider: str, account: str = "") -> ProxiedProvider:
        """The provider; of an account that is elsewhere, that."""
        return self._all.get(f"{provider}@{account}") or self._all[provider]

    def names(self) -> list[str]:
        return sorted(self._all)

    @property
    def connected(self) -> bool:
        """Whether there is any connection, in use or idle."""
        return any(upstream.connected for upstream in self._all.values())

    async def close(self) -> None:
        for upstream in self._all.values():
            await upstream.close()
