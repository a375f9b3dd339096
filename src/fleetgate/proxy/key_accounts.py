"""The accounts of keys (rule X5).

The config's accounts have names, and the key of `key_env`, or in `credential_file`, is that of its account; so is a key
that agents of a well-known provider find in this process's environment that of `default`. A token that was in such a
file is still its account's, for a client that has not noticed the new one. Any other key is an account of its own,
named by a hash that is salted with the store's salt, once the provider has accepted it.

The rule: a key is known as a whole or not at all. What is compared are digests with a random key, each with all, so
neither an answer nor its time tells whether an unknown key resembles a known one. Keys stay in memory: they are not
logged, stored or shown.
"""

from __future__ import annotations

import hmac
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from stat import S_ISREG
from time import monotonic, time
from typing import NamedTuple

from fleetgate.config.errors import ConfigError
from fleetgate.config.paths import expand_home
from fleetgate.config.settings import Provider, Settings
from fleetgate.core.model_names import DEFAULT_ACCOUNT
from fleetgate.gate.providers.account_login import login_variables
from fleetgate.gate.providers.credential_tokens import tokens_in
from fleetgate.gate.providers.credentials import WELL_KNOWN, read_file
from fleetgate.gate.providers.login_files import LoginFile, login_files
from fleetgate.gate.providers.login_token import login_token

_MOST = 10_000  # keys remembered
_MOST_FORMER = 64  # tokens that were in the files of a provider
_MOST_REFUSED = 1_000
_REFUSED_S = 60.0  # how long a refused key is answered here
_MANY_REFUSED, _LATELY_S = 4, 3600.0
_LOOK_S = 1.0  # how long a known key is known without another look
_YOUNG_S = 2.0  # a file changed so lately may change again without its times telling
ANY_KEY = "fleetgate"  # what a client may send where its SDK wants some key


class KeyOwner(NamedTuple):
    """The account of a known key; `current`: it is the account's credential now."""

    account: str
    current: bool


class KeyAccounts:
    """The accounts of all providers."""

    def __init__(self, settings: Settings, salt: Callable[[], bytes]) -> None:
        self._salt = salt
        self.use(settings)
        self._secret = os.urandom(32)
        self._accepted: dict[bytes, str] = {}
        self._refused: dict[bytes, float] = {}
        self._refusals: deque[float] = deque(maxlen=_MANY_REFUSED)
        self._former: dict[str, dict[bytes, str]] = {}  # by provider
        self._files: dict[tuple[str, str, str], tuple[object, frozenset[str]]] = {}

    def use(self, settings: Settings) -> None:
        """Go by this config; what is known of clients' keys stays."""
        self._providers = settings.providers
        self._looked: dict[str, tuple[float, dict[bytes, str]]] = {}  # by provider: when, and what was found

    @property
    def salt(self) -> bytes:
        """The store's salt, for names that tell nothing."""
        return self._salt()

    # Keys of the config.

    def find(self, provider: str, key: str) -> KeyOwner | None:
        """Whose credential a key is, by the config and what agents find here; None: of no account that is known."""
        digest = self._digest(provider, key)
        found = None
        former = self._former.setdefault(provider, {})
        looked_at, current = self._looked.get(provider, (0.0, {}))
        now = monotonic()
        if now - looked_at > _LOOK_S or not (digest in current or digest in self._accepted):
            current = self._current(provider)
            self._looked[provider] = now, current
        for known, account in former.items():
            if hmac.compare_digest(known, digest):
                found = KeyOwner(account, False)
        for known, account in current.items():
            if hmac.compare_digest(known, digest):
                found = KeyOwner(account, True)
            former[known] = account
        while len(former) > _MOST_FORMER + len(current):
            del former[next(iter(former))]
        return found

    def key_of(self, provider: str, account: str) -> str:
        """The key that the config has for an account, or nothing. Logins in files are those of `login_of`."""
        given = self._providers.get(_entry(provider, account), Provider())
        return os.environ.get(given.key_env, "") if given.key_env else ""

    def login_of(self, provider: str, account: str) -> str:
        """The valid token of an account's login, read from its file now; nothing where there is none, or a key."""
        given = self._providers.get(_entry(provider, account), Provider())
        if given.key_env:
            return ""
        if given.credential_file:
            with suppress(ConfigError):
                return login_token(LoginFile(expand_home(given.credential_file)), provider)
            return ""
        files = self._login_files(provider, account)
        return next((token for file in files if (token := login_token(file, provider))), "")

    def shared_with(self, provider: str, account: str) -> str:
        """Which calls may be sent with the login of an account: one of SHARE_LOGIN."""
        return self._providers.get(_entry(provider, account), Provider()).share_login

    def _login_files(self, provider: str, account: str) -> list[LoginFile]:
        login = login_variables(_entry(provider, account), self._providers)
        return login_files(provider, login if account != DEFAULT_ACCOUNT else {**os.environ, **login})

    def _current(self, provider: str) -> dict[bytes, str]:
        """The accounts of a provider by the digests of their tokens."""
        known = {}
        for account, given in self._given(provider):
            for token in self._tokens(provider, account, given):
                known[self._digest(provider, token)] = account
        return known

    def _given(self, provider: str) -> list[tuple[str, Provider]]:
        accounts = [(DEFAULT_ACCOUNT, self._providers.get(provider, Provider()))]
        for name, given in self._providers.items():
            ours, _, account = name.partition("@")
            if account and ours == provider:
                accounts.append((account, given))
        return accounts

    def _tokens(self, provider: str, account: str, given: Provider) -> set[str]:
        if given.key_env:
            return {os.environ.get(given.key_env, "")} - {""}
        if given.credential_file:
            return set(self._in_file(provider, given.credential_file))
        tokens: set[str] = set()
        if account == DEFAULT_ACCOUNT:
            names = () if given.env else WELL_KNOWN.get(provider, ())
            tokens = {os.environ.get(name, "") for name in names} - {""}
        for file in self._login_files(provider, account):
            tokens |= self._in_file(provider, file.path, file.key)
        return tokens

    def _in_file(self, provider: str, named: str, part: str = "") -> frozenset[str]:
        """The tokens in a file, which is read when its stat has changed."""
        try:
            path = expand_home(named)
            seen = os.stat(path)
        except (OSError, ConfigError):
            return frozenset()
        if not S_ISREG(seen.st_mode):
            return frozenset()
        look = (seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)
        known = self._files.get((provider, path, part))
        if known is not None and known[0] == look:
            return known[1]
        tokens = tokens_in(read_file(path), provider, part)
        if abs(time() - seen.st_mtime) > _YOUNG_S:
            self._files[provider, path, part] = look, tokens
        return tokens

    # Keys of clients.

    def name_of(self, provider: str, key: str) -> str:
        """A name that tells nothing: the same key has another one in another store, and with another provider."""
        digest = hmac.digest(self._salt(), f"account\0{provider}\0{key}".encode("utf-8", "surrogatepass"), "sha256")
        return f"key-{digest.hex()[:8]}"

    def accepted_as(self, provider: str, key: str) -> str:
        """The account of a key that is not of the config, and that the provider has accepted; else nothing."""
        return self._accepted.get(self._digest(provider, key), "")

    def accept(self, provider: str, key: str, account: str) -> None:
        """The provider has accepted a key."""
        digest = self._digest(provider, key)
        self._refused.pop(digest, None)
        if len(self._accepted) >= _MOST:
            self._accepted.clear()
        self._accepted[digest] = account

    def refuse(self, provider: str, key: str) -> None:
        """The provider has refused a key: whatever was thought of it is forgotten."""
        digest = self._digest(provider, key)
        self._accepted.pop(digest, None)
        self._refused.pop(digest, None)
        if len(self._refused) >= _MOST_REFUSED:
            del self._refused[next(iter(self._refused))]
        self._refused[digest] = monotonic() + _REFUSED_S
        self._refusals.append(monotonic())

    @property
    def many_are_refused(self) -> bool:
        """Whether so many keys were refused lately that unproven ones, of any caller, are kept out of the log."""
        return len(self._refusals) == _MANY_REFUSED and self._refusals[0] > monotonic() - _LATELY_S

    def is_refused(self, provider: str, key: str) -> bool:
        """Whether the provider has just refused this key."""
        if not self._refused:
            return False
        digest = self._digest(provider, key)
        until = self._refused.get(digest)
        if until is None:
            return False
        if until > monotonic():
            return True
        del self._refused[digest]
        return False

    def _digest(self, provider: str, key: str) -> bytes:
        text = f"{provider}\0{key}".encode("utf-8", "surrogatepass")
        return blake2b(text, key=self._secret, digest_size=16).digest()


def _entry(provider: str, account: str) -> str:
    return provider if account == DEFAULT_ACCOUNT else f"{provider}@{account}"
