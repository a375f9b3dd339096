"""Who may change something (SPEC H5): the token, the browser's cookie, and the one-time link that makes the cookie.

The cookie is signed with the token and says when it ends, so it is good across restarts and ends with the token.
"""

from __future__ import annotations

import hmac
import os
import secrets
from time import monotonic, time

from headgate.core.errors import HeadgateError
from headgate.log.files import make_folder

COOKIE = "headgate_session"
COOKIE_S = 30 * 86_400
LINK_S = 300
LEAST_LENGTH = 16
_MOST_LINKS = 100


class NoToken(HeadgateError):
    """There is no token, or it cannot be used."""


def token_path(folder: str) -> str:
    return f"{folder}/token"


def find_token(folder: str) -> str | None:
    """The token that is set up: of the environment, else of the state folder."""
    given = os.environ.get("HEADGATE_TOKEN", "")
    if given:
        return _checked(given, "HEADGATE_TOKEN")
    path = token_path(folder)
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return _checked(file.read(4096).strip(), path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise NoToken(f"the token {path} cannot be read: {error.strerror}") from error


def make_token(folder: str) -> str:
    """A new token in the state folder, for its owner's eyes only."""
    path, token = token_path(folder), secrets.token_urlsafe(32)
    own = f"{path}.{os.getpid()}"
    try:
        make_folder(folder)
        fd = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, f"{token}\n".encode())
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(own, path)
    except OSError as error:
        raise NoToken(f"the token {path} cannot be written: {error.strerror}") from error
    return token


def _checked(token: str, where: str) -> str:
    if len(token) < LEAST_LENGTH or not token.isascii() or not token.isprintable() or " " in token:
        raise NoToken(f"{where} is not a token: valid are {LEAST_LENGTH} or more printable characters without blanks")
    return token


class Tokens:
    """Judges what a request brings along. All comparisons take the same time, whatever is compared."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self._key = hmac.digest(self._token, b"headgate session", "sha256")
        self._links: dict[str, float] = {}

    def is_token(self, authorization: bytes) -> bool:
        """Whether an Authorization header has it."""
        scheme, _, given = authorization.partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), self._token)

    def is_session(self, cookies: bytes) -> bool:
        """Whether a Cookie header has a session that we signed and that has not ended."""
        for part in cookies.split(b";"):
            name, _, value = part.strip().partition(b"=")
            if name == COOKIE.encode() and self._is_signed(value.decode("latin-1")):
                return True
        return False

    def session(self) -> str:
        """A new cookie's value."""
        ends = str(int(time()) + COOKIE_S)
        return f"{ends}.{self._sign(ends)}"

    def new_link(self) -> str:
        """A code that can be exchanged for a session once, soon."""
        now = monotonic()
        self._links = {code: until for code, until in self._links.items() if until > now}
        if len(self._links) >= _MOST_LINKS:
            del self._links[next(iter(self._links))]
        code = secrets.token_urlsafe(24)
        self._links[code] = now + LINK_S
        return code

    def redeem(self, code: str) -> bool:
        """Whether a code is good; it is not any more after this."""
        return self._links.pop(code, 0.0) > monotonic()

    def _is_signed(self, value: str) -> bool:
        ends, _, signature = value.partition(".")
        good = hmac.compare_digest(signature.encode(), self._sign(ends).encode())
        return good and ends.isdecimal() and len(ends) < 15 and int(ends) > time()

    def _sign(self, ends: str) -> str:
        return hmac.digest(self._key, ends.encode(), "sha256").hex()
