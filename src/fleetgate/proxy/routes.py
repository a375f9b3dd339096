"""The route of a request, by its path: `/PROVIDER/…`, and before that, for agents that can set no headers, the project
(`/p/PROJECT/…`) or the lease of the run that it belongs to (`/l/LEASE/…`).

The path is looked at as it came, and its rest is passed on as it came.
"""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from fleetgate.core.model_names import canonical

_MOST = 200  # characters of a name


class Route(NamedTuple):
    """Where a request goes. An empty `account` means: the one that its key belongs to."""

    provider: str
    account: str
    project: str
    lease: str
    rest: bytes  # with its slash, or empty
    said: str  # the provider as the path has it


def find_route(raw_path: bytes, providers: Container[str]) -> Route | None:
    """The route of a path; None when it names no provider that is known."""
    project = lease = ""
    head, rest = _split(raw_path)
    for _ in range(2):
        if head not in ("p", "l"):
            break
        named, rest = _split(rest)
        if not named:
            return None
        if head == "p":
            project = named
        else:
            lease = named
        head, rest = _split(rest)
    provider, at, account = head.partition("@")
    said, provider = provider, canonical(provider)
    if provider not in providers or (at and not account):
        return None
    return Route(provider, account, project, lease, rest, said)


def split_names(raw_path: bytes) -> tuple[str, bytes]:
    """What stands where a provider's name is, without project and lease before it, and what follows."""
    head, rest = _split(raw_path)
    for _ in range(2):
        if head in ("p", "l"):
            head, rest = _split(_split(rest)[1])
    return head, rest


def leaves_base(path: bytes) -> bool:
    """Whether a path climbs: `..` in it, however it is written, would lead out of the provider's base URL."""
    for _ in range(3):
        if b".." in path and any(
            segment.partition(b";")[0].strip() == b".." for segment in path.replace(b"\\", b"/").split(b"/")
        ):
            return True
        if b"%" not in path:
            return False
        path = unquote_to_bytes(path)
    return False


def _split(path: bytes) -> tuple[str, bytes]:
    """The first segment, and what follows with its slash."""
    end = path.find(b"/", 1)
    first, rest = (path[1:], b"") if end < 0 else (path[1:end], path[end:])
    if len(first) > _MOST:
        return "", rest
    if b"%" in first:
        first = unquote_to_bytes(first)
    return first.decode("utf-8", "replace"), rest
