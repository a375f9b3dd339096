"""The part of a credential file that belongs to a provider, and the account that it names (rule B3).

Agents keep their logins as JSON. Nothing here is trusted or checked: two contents are compared, before and after, and
all that follows from a difference is that a backoff ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

import msgspec

# Where agents store whose login it is, as paths of keys: the most specific first.
_NAMES = (
    ("tokens", "account_id"),  # Codex
    ("account_id",),
    ("accountId",),  # opencode
    ("account_uuid",),
    ("oauthAccount", "organizationUuid"),  # Claude Code: limits are of the organization
    ("organizationUuid",),
    ("oauthAccount", "accountUuid"),
    ("accountUuid",),
    ("client_email",),  # a service account of Google
    ("email",),
    ("oauthAccount", "emailAddress"),
)
_TOKENS = (("tokens", "id_token"), ("id_token",))
_CLAIMS = ("sub", "email")


class Read(NamedTuple):
    """The bytes of the credential, and the account that it names, with the kind of that name; "" is unknown."""

    material: bytes = b""
    kind: str = ""
    name: str = ""


def read_credential(content: bytes, provider: str) -> Read:
    """What a credential file contains for a provider; nothing if the file seems to be half written."""
    if content.lstrip()[:1] != b"{":
        return Read(content.strip())
    document = decoded(content)
    if not isinstance(document, dict):
        return Read()
    material, own = content, document
    if isinstance(part := document.get(provider), dict):  # a file for several providers: others change, too
        material, own = msgspec.json.encode(part, order="deterministic"), part
    kind, name = next(_names(own), ("", ""))
    return Read(material, kind, name)


def read_login(content: bytes, key: str) -> Read:
    """What the part under `key` of an agent's login file contains; the rest may be logins of other providers."""
    document = decoded(content)
    part = document.get(key) if isinstance(document, dict) else None
    if not isinstance(part, dict):
        return Read()
    kind, name = next(chain(_names(part), _names(document)), ("", ""))
    return Read(msgspec.json.encode(part, order="deterministic"), kind, name)


def _names(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for path in _NAMES:
        if name := _text(document, path):
            yield ".".join(path), name
    for path in _TOKENS:
        claims = claims_of(_text(document, path))
        for claim in _CLAIMS:
            if name := _text(claims, (claim,)):
                yield f"{'.'.join(path)}.{claim}", name


def _text(document: Any, path: tuple[str, ...]) -> str:
    for key in path:
        document = document.get(key) if isinstance(document, dict) else None
    return document if isinstance(document, str) else ""


def claims_of(token: str) -> Any:
    """The claims of a JSON web token, unchecked."""
    from binascii import a2b_base64

    parts = token.split(".")
    try:
        return decoded(a2b_base64(parts[1].replace("-", "+").replace("_", "/") + "==")) if len(parts) == 3 else None
    except ValueError:  # not base64: its letters may be anything
        return None


def decoded(content: bytes) -> Any:
    """A JSON document; None where there is none."""
    try:
        return msgspec.json.decode(content)
    except (ValueError, RecursionError):
        return None
