"""The tokens in a credential file: access tokens and API keys, whole, as a client would send them.

A key is compared with whole tokens, never with the text of a file: a caller who may ask whether something is part of
a file can read the file, byte by byte.
"""

from __future__ import annotations

from collections.abc import Iterator

from fleetgate.core.model_names import names_of
from fleetgate.gate.providers.credential_owner import decoded
from fleetgate.gate.providers.credentials import WELL_KNOWN

LEAST_LENGTH = 16
_DEEPEST = 6
# Names of members whose value is sent to the provider, and of those whose value is something else.
_SENT = ("access", "token", "key", "secret", "bearer", "password", "credential", "auth")
_NOT_SENT = ("refresh", "idtoken", "type", "expir", "scope", "client", "url", "uri", "account", "email", "version")


def tokens_in(content: bytes, provider: str, part: str = "") -> frozenset[str]:
    """The tokens of one provider in a file; with `part`, only those under that name of its JSON object."""
    if content.lstrip()[:1] not in (b"{", b"["):
        return frozenset(_in_lines(content))
    document = decoded(content)
    if isinstance(document, dict):
        document = document.get(part) if part else _own_part(document, provider)
    if isinstance(document, str):
        return frozenset((document,)) if is_token(document) else frozenset()
    return frozenset(_in_members(document, _DEEPEST))


def _own_part(document: dict[str, object], provider: str) -> object:
    """The part of this provider in a file for several providers, or nothing; of any other file, all of it."""
    for name in names_of(provider):
        if isinstance(document.get(name), dict | str):
            return document[name]
    others = any(name in document for known in WELL_KNOWN for name in names_of(known))
    return None if others else document


def _in_members(value: object, deep: int) -> Iterator[str]:
    if isinstance(value, list) and deep:
        for each in value:
            yield from _in_members(each, deep - 1)
    if not isinstance(value, dict) or not deep:
        return
    for name, each in value.items():
        plain = str(name).lower().replace("_", "").replace("-", "")
        if not isinstance(each, str):
            yield from _in_members(each, deep - 1)
        elif (
            any(word in plain for word in _SENT)
            and not any(word in plain for word in _NOT_SENT)
            and not plain.endswith("id")
            and is_token(each)
        ):
            yield each


def _in_lines(content: bytes) -> Iterator[str]:
    """The tokens in plain text: each line that is one word, and each value of `NAME=VALUE`."""
    for line in content.decode("utf-8", "replace").splitlines():
        line = line.strip()
        name, equals, value = line.removeprefix("export ").strip().partition("=")
        if equals and name.strip().isidentifier():
            value = value.strip().strip("\"'")
            if is_token(value):
                yield value
        if is_token(line):
            yield line


def is_token(text: str) -> bool:
    """Whether a text may be a whole token."""
    return len(text) >= LEAST_LENGTH and text.isascii() and text.isprintable() and " " not in text
