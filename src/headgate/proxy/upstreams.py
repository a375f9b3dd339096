"""The providers that requests go to: those of the config, and the well-known ones, with a client for each.

A path is appended to the provider's base URL. Where both say the same (`…/v1` and `/v1/messages`) it is said once, so
that agents may be given an address with or without it.
"""

from __future__ import annotations

import os
from typing import Any

import aiohttp
from yarl import URL

from headgate.config.settings import Provider, Settings

# name: (base URL, API)
BUILT_IN = {
    "anthropic": ("https://api.anthropic.com", "anthropic"),
    "openai": ("https://api.openai.com/v1", "openai"),
    "gemini": ("https://generativelanguage.googleapis.com", "gemini"),
    "google": ("https://generativelanguage.googleapis.com", "gemini"),
    "openrouter": ("https://openrouter.ai/api/v1", "openai"),
    "groq": ("https://api.groq.com/openai/v1", "openai"),
    "mistral": ("https://api.mistral.ai/v1", "openai"),
}
# First parts of the API's own paths: a provider of such a name is not proxied.
RESERVED = frozenset(
    ("", "v1", "p", "l", "concurrency", "metrics", "healthz", "readyz", "docs", "login", "openapi.json", "assets")
)
_CONNECT_S = 30.0
_KEEP_ALIVE_S = 20.0
_HEAD_BYTES = 64 * 1024
_MOST_URLS = 1000
_NO_AUTO_HEADERS = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")


class Upstream:
    """One provider, or one account of it that is elsewhere."""

    def __init__(self, name: str, given: Provider, base_url: str, api: str) -> None:
        self.name = name
        self.api = api
        self.hold_s = given.hold_ms / 1000
        self.stall_s = given.stall_ms / 1000
        url = URL(base_url, encoded=True)
        self.host = url.host or ""
        self._origin = str(url.origin())
        self._base = url.raw_path.rstrip("/")
        self._segments = self._base.split("/")[1:] if self._base else []
        self._session: aiohttp.ClientSession | None = None
        self._urls: dict[str, URL] = {}

    def __repr__(self) -> str:
        return f"<Upstream {self.name} {self._origin}{self._base}>"

    def url(self, path: str, query: bytes) -> URL:
        """Where a path is."""
        known = self._urls.get(path) if not query else None
        if known is not None:
            return known
        url = self._url(path, query)
        if not query:
            if len(self._urls) >= _MOST_URLS:
                self._urls.clear()
            self._urls[path] = url
        return url

    def _url(self, path: str, query: bytes) -> URL:
        if self._segments:
            path = self._without_base(path)
        text = f"{self._origin}{self._base}{path}"
        return URL(f"{text}?{query.decode('latin-1')}" if query else text, encoded=True)

    def _without_base(self, path: str) -> str:
        """The path without what the base URL ends in."""
        own = self._segments
        for start in range(len(own)):
            said = "/" + "/".join(own[start:])
            if path == said or path.startswith(said + "/"):
                return path[len(said) :]
        return path

    async def ask(self, method: str, url: URL, headers: list[tuple[str, str]], data: Any) -> aiohttp.ClientResponse:
        """Send a request; back with the head of the answer. Raises aiohttp.ClientError, TimeoutError, OSError."""
        if self._session is None:
            self._session = self._make_session()
        # What `session.request` does too, without making a context manager of it.
        return await self._session._request(method, url, headers=headers, data=data, allow_redirects=False)

    def _make_session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=300, keepalive_timeout=_KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=_NO_AUTO_HEADERS,
            max_line_size=_HEAD_BYTES,
            max_field_size=_HEAD_BYTES,
            trust_env=any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy")),
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


class Upstreams:
    """All of them, by name; accounts with a base URL of their own as `provider@account`."""

    def __init__(self, settings: Settings) -> None:
        self._all: dict[str, Upstream] = {}
        for name, (base_url, api) in BUILT_IN.items():
            if name not in settings.providers:
                self._all[name] = Upstream(name, Provider(), base_url, api)
        for name, given in settings.providers.items():
            provider, _, account = name.partition("@")
            base_url, api = given.base_url, given.api
            if not base_url and not account:
                base_url, api = BUILT_IN.get(provider, ("", given.api))
            if base_url and provider not in RESERVED:
                self._all[name] = Upstream(name, given, base_url, api)

    def __contains__(self, name: object) -> bool:
        return name in self._all

    def find(self, provider: str, account: str = "") -> Upstream:
        """The provider; of an account that is elsewhere, that."""
        return self._all.get(f"{provider}@{account}") or self._all[provider]

    def names(self) -> list[str]:
        return sorted(self._all)

    async def close(self) -> None:
        for upstream in self._all.values():
            await upstream.close()
