"""The service's token, which may change everything: in a file that only its owner can read, or in the environment."""

from __future__ import annotations

import hmac
import os
import secrets

from fleetgate.api.security.one_time_marks import Marks
from fleetgate.api.security.sessions import Sessions
from fleetgate.core.errors import FleetgateError
from fleetgate.log.store_files import NotTrusted, make_folder, read_trusted, write_own

LEAST_LENGTH = 16


class NoToken(FleetgateError):
    """There is no token, or it cannot be used."""


def token_path(folder: str) -> str:
    return f"{folder}/token"


def find_token(folder: str) -> str | None:
    """The token that is set up: of the environment, else of the state folder."""
    given = os.environ.get("FLEETGATE_TOKEN", "")
    if given:
        return _checked(given, "FLEETGATE_TOKEN")
    path = token_path(folder)
    try:
        return _checked(read_trusted(path, folder, secret=True, most=4096).decode(errors="replace").strip(), path)
    except FileNotFoundError:
        return None
    except NotTrusted as error:
        raise NoToken(f"the token {path} is not used: {error}. `fleetgate serve --new-token` makes another") from error
    except OSError as error:
        raise NoToken(f"the token {path} cannot be read: {error.strerror}") from error


def make_token(folder: str) -> str:
    """A new token in the state folder, for its owner's eyes only."""
    path, token = token_path(folder), secrets.token_urlsafe(32)
    try:
        make_folder(folder)
        write_own(path, f"{token}\n".encode(), 0o600)
    except OSError as error:
        raise NoToken(f"the token {path} cannot be written: {error.strerror}") from error
    return token


def _checked(token: str, where: str) -> str:
    if len(token) < LEAST_LENGTH or not token.isascii() or not token.isprintable() or " " in token:
        raise NoToken(f"{where} is not a token: valid are {LEAST_LENGTH} or more printable characters without blanks")
    return token


class Tokens:
    """Judges what a request brings along. All comparisons take the same time, whatever is compared."""

    def __init__(self, token: str, marks: Marks) -> None:
        self._token = token.encode()
        self.sessions = Sessions(self._token, marks)

    def is_token(self, authorization: bytes) -> bool:
        """Whether an Authorization header has it."""
        scheme, _, given = authorization.partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), self._token)
