"""One line of the access log (proxy/access_log.py)."""

from __future__ import annotations

from msgspec import Struct


class AccessRecord(Struct, omit_defaults=True):
    """What became of a request."""

    at: float | str
    method: str
    provider: str
    path: str
    status: int | None
    model: str | None
    attempts: int
    waited_ms: int
    upstream_ms: int
    ms: int
    bytes: int
    project: str
    outcome: str
    client_left: bool = False
    error: str = ""
    run: str = ""
