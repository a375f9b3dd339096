"""Browser sessions: how a browser that has no token shows that it may change something.

A session is a pair. The browser keeps the cookie, and the page keeps the secret in the tab's sessionStorage and sends
it as a header. The secret is a signature of the cookie, made with the service's token, so:

- A cookie alone is worth nothing. Cookies know no port: every web server on 127.0.0.1 that the browser visits gets it.
- A secret alone is worth nothing. A page that the proxy served, or one of another origin, cannot read it anyway.
- Nothing is stored: a session outlives restarts, and a new token ends all of them.

A sign-in begins with a code that `fleetgate open` asks for with the token. It can be used once, within five minutes,
and on loopback only by users of this machine whom the service trusts, unless it is made to be shared.
"""

from __future__ import annotations

import hmac
import secrets
from time import time
from typing import NamedTuple

from fleetgate.api.security.one_time_marks import Marks
from fleetgate.core.access.keys import AccessKey

COOKIE = "fleetgate_session"
HEADER = b"x-fleetgate-session"
SESSION_S = 12 * 3600
CODE_S = 300
_SHARED = "shared"  # a code that any user of the machine may use, and a reverse proxy


class SignedIn(NamedTuple):
    """Whose session it is: a key's, or with "" the owner's."""

    key: str = ""  # its name
    mark: str = ""  # what the key was when it signed the browser in


class BrowserSession(NamedTuple):
    cookie: str  # its value
    secret: str
    ends_at: int  # epoch seconds


class Sessions:
    """Made once for a service, from its token."""

    def __init__(self, token: bytes, marks: Marks) -> None:
        self._key = hmac.digest(token, b"fleetgate session", "sha256")
        # Two services on one machine share the browser's cookies: each has a name of its own.
        self.cookie = f"{COOKIE}_{hmac.digest(self._key, b'name', 'sha256').hex()[:8]}"
        self._names = frozenset((self.cookie.encode(), f"__Host-{self.cookie}".encode()))
        self._marks = marks  # codes that were not used yet, and sessions that were ended

    def begin(self, key: AccessKey | None = None) -> BrowserSession:
        """A new session, of the owner or of an access key."""
        ends_at = int(time()) + SESSION_S
        cookie = f"{ends_at}.{secrets.token_urlsafe(24)}"
        if key is not None:
            cookie += f".{key.name}.{self.key_mark(key)}"
        return BrowserSession(cookie, self._sign(cookie.encode()), ends_at)

    def find(self, cookies: bytes, secret: bytes) -> SignedIn | None:
        """The session of a Cookie header that belongs to the secret and has not ended."""
        found = self._find(cookies, secret)
        if found is None:
            return None
        parts = found.decode().split(".")
        return SignedIn(parts[2], parts[3]) if len(parts) == 4 else SignedIn()

    def key_mark(self, key: AccessKey) -> str:
        """What a key is now: another one after it was rotated, so that its sessions end with it."""
        return hmac.digest(self._key, f"key {key.name} {key.digest}".encode(), "sha256").hex()[:32]

    def end(self, cookies: bytes, secret: bytes) -> None:
        """Sign out: the pair is worth nothing from now on."""
        found = self._find(cookies, secret)
        if found is None:
            return
        self._marks.put(f"ended {found.decode()}", "", max(_end_of(found) - time(), 0))

    def cookie_header(self, session: BrowserSession | None, *, tls: bool) -> str:
        """The Set-Cookie header that begins a session, or with None forgets it."""
        value, age = (session.cookie, SESSION_S) if session is not None else ("", 0)
        name = f"__Host-{self.cookie}" if tls else self.cookie
        return f"{name}={value}; Path=/; Max-Age={age}; HttpOnly; SameSite=Strict" + ("; Secure" if tls else "")

    def new_code(self, *, shared: bool = False) -> str:
        """A code that can be exchanged for a session once, soon."""
        text = secrets.token_urlsafe(24)
        self._marks.put(f"code {text}", _SHARED if shared else "", CODE_S)
        return text

    def is_for(self, code: str, *, trusted: bool) -> bool:
        """Whether a caller may use this code, if it is one; `trusted`: a user whom the service trusts."""
        known = self._marks.get(f"code {code}")
        return known is None or known == _SHARED or trusted

    def redeem(self, code: str) -> bool:
        """Whether a code is good; it is not any more after this."""
        return self._marks.take(f"code {code}") is not None

    def _find(self, cookies: bytes, secret: bytes) -> bytes | None:
        """The cookie that belongs to the secret. Others of its name may be there, set by another web server."""
        for part in cookies.split(b";"):
            name, _, value = part.strip().partition(b"=")
            if name in self._names and hmac.compare_digest(self._sign(value).encode(), secret):
                return value if _end_of(value) > time() and not self._is_ended(value) else None
        return None

    def _is_ended(self, cookie: bytes) -> bool:
        return self._marks.get(f"ended {cookie.decode()}") is not None

    def _sign(self, cookie: bytes) -> str:
        return hmac.digest(self._key, b"tab " + cookie, "sha256").hex()


def _end_of(cookie: bytes) -> int:
    ends_at = cookie.partition(b".")[0]
    return int(ends_at) if ends_at.isdigit() and len(ends_at) < 15 else 0
