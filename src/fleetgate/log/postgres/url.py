"""The URL of a PostgreSQL store: postgresql://user@host:port/database?namespace=team-a

Everything but `namespace` is libpq's own: several hosts, sslmode, a password file. The form for messages is
built from the parts that are not secret, never by removing the secret ones.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from fleetgate.log.protocol import StoreError

DEFAULT_NAMESPACE = "default"
EXAMPLE = "postgresql://user@host/database?namespace=team-a"
_NAMESPACE = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
_OURS = ("namespace",)
_PLAIN = ("host", "port", "hostaddr", "user", "service", "sslmode", "sslrootcert", "target_session_attrs")


class Address(NamedTuple):
    """Where a store is. `url` is for libpq alone and may hold a password: never show it."""

    url: str
    namespace: str
    shown: str
    usable: str  # as a URL for others, who must know the password themselves
    secrets: tuple[str, ...]

    def __repr__(self) -> str:
        return f"Address({self.shown!r})"

    def hide(self, text: str) -> str:
        """A message of libpq or of the server, without what must not be shown, on one line."""
        for secret in self.secrets:
            text = text.replace(secret, "...")
        return " ".join(text.split())


def parse(url: str) -> Address:
    """The parts of a URL; StoreError with what is valid."""
    try:
        parts = urlsplit(url)
        port = parts.port
        given = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        # A list of hosts with ports is libpq's own way to write a URL.
        return _with_several_hosts(url)
    host = unquote(parts.hostname or "")
    return _address(url, given, host + (f":{port}" if port else ""), parts.path, parts.username, parts.password)


def _with_several_hosts(url: str) -> Address:
    scheme, _, rest = url.partition("://")
    place, _, query = rest.partition("?")
    login, at, hosts = place.rpartition("@")
    hosts, _, database = hosts.partition("/")
    user, _, password = login.partition(":")
    if scheme not in ("postgres", "postgresql") or not re.fullmatch(r"[A-Za-z0-9_.,:\[\]%-]*", hosts):
        raise StoreError(f"not a store that can be used: valid is {EXAMPLE}")
    return _address(url, parse_qsl(query, keep_blank_values=True), hosts, "/" + database, user, password or None)


def _address(
    url: str, given: list[tuple[str, str]], host: str, path: str, user: str | None, password: str | None
) -> Address:
    options = dict(given)
    namespace = options.get("namespace", DEFAULT_NAMESPACE)
    if not _NAMESPACE.fullmatch(namespace):
        raise StoreError(
            f"not a namespace: {namespace[:80]!r}; valid are up to 63 of a-z, 0-9, '_', '.' and '-', beginning with a "
            f"letter or digit: {EXAMPLE}"
        )
    base, _, query = url.partition("?")
    kept = "&".join(part for part in query.split("&") if part and part.partition("=")[0] not in _OURS)
    secrets = {text for text in (password, unquote(password or ""), *_of_options(options)) if text}
    return Address(
        url=base + (f"?{kept}" if kept else ""),
        namespace=namespace,
        shown=_shown(host, path, user, options, namespace),
        usable=_usable(host, path, user, options, namespace),
        secrets=tuple(sorted(secrets, key=len, reverse=True)),
    )


def _of_options(options: dict[str, str]) -> list[str]:
    return [value for name, value in options.items() if "password" in name.lower() or "secret" in name.lower()]


def _shown(host: str, path: str, user: str | None, options: dict[str, str], namespace: str) -> str:
    place = host or options.get("host", "")
    if not host and "port" in options:
        place += ":" + options["port"]
    database = path.strip("/") or options.get("dbname", "")
    if "://" in database or "=" in database:
        database = "..."  # a whole connection string may stand there, with its password
    login = f"{quote(unquote(user))}@" if user else ""
    return f"postgresql://{login}{place}/{database}?namespace={namespace}"


def _usable(host: str, path: str, user: str | None, options: dict[str, str], namespace: str) -> str:
    """Put together from what is no secret, too; but of more parts than are worth showing."""
    kept = {name: options[name] for name in _PLAIN if name in options}
    if host.startswith("/"):  # the folder of a socket
        kept["host"], _, port = host.partition(":")
        if port:
            kept["port"] = port
        host = ""
    database = path.strip("/")
    if "://" in database or "=" in database:
        return _shown(host, path, user, options, namespace)
    login = f"{quote(unquote(user))}@" if user else ""
    query = "".join(f"{name}={quote(value)}&" for name, value in kept.items())
    return f"postgresql://{login}{host}/{database}?{query}namespace={namespace}"
