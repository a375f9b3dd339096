"""The access token of a login, as its agent keeps it: in a file of Claude Code, Codex or opencode.

The token is read at the moment it is needed, and kept nowhere. Refreshing it is the business of the agent that owns
the login: a token whose time is over is no token. Refresh tokens are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import time
from typing import Any

from fleetgate.core.model_names import names_of
from fleetgate.gate.providers.credential_owner import claims_of, decoded
from fleetgate.gate.providers.credential_tokens import is_token
from fleetgate.gate.providers.credentials import read_file
from fleetgate.gate.providers.login_files import LoginFile

_LEAST_S = 10.0  # that a token has to be valid for


def login_token(file: LoginFile, provider: str) -> str:
    """The valid access token in a login file; "" where there is none."""
    document = decoded(read_file(file.path))
    if not isinstance(document, dict):
        return ""
    parts = [document.get(file.key)] if file.key else _parts(document, provider)
    return next((token for part in parts if isinstance(part, dict) for token in _tokens(part)), "")


def _parts(document: dict[str, Any], provider: str) -> Iterator[Any]:
    """Where a login of this provider may be in a file that does not say."""
    if provider == "anthropic":
        yield document.get("claudeAiOauth")  # Claude Code
    if provider == "openai":
        yield document.get("tokens")  # Codex
    for name in names_of(provider):
        yield document.get(name)  # opencode


def _tokens(part: dict[str, Any]) -> Iterator[str]:
    """The access token of a login, if it is one that is still valid."""
    if "accessToken" in part:
        token, ends_at_s = part["accessToken"], _seconds(part.get("expiresAt"))
    elif "access_token" in part:
        token = part["access_token"]
        claims = claims_of(token) if isinstance(token, str) else None
        ends_at_s = _seconds(claims.get("exp"), 1.0) if isinstance(claims, dict) else 0.0
    elif part.get("type") == "oauth":
        token, ends_at_s = part.get("access"), _seconds(part.get("expires"))
    else:
        return
    if isinstance(token, str) and is_token(token) and (not ends_at_s or ends_at_s > time() + _LEAST_S):
        yield token


def _seconds(value: object, unit: float = 0.001) -> float:
    """A time since 1970 in seconds; 0 where none is given."""
    return value * unit if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
