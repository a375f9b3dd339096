"""Which account a key belongs to (SPEC X5).

The config's accounts have names, and the key of `key_env`, or in `credential_file`, is that of `default`; so is a key
that agents of a well-known provider find in this process's environment. Any other key is an account of its own, named
by a hash that is salted with the store's salt. Keys stay in memory: they are not logged, stored or shown.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable

from headgate.config.paths import expand_home
from headgate.config.settings import Provider, Settings
from headgate.core.names import DEFAULT_ACCOUNT
from headgate.gate.credentials import WELL_KNOWN

_MOST = 10_000  # keys remembered
_LARGEST_FILE = 1 << 20
ANY_KEY = "headgate"  # what a client may send where its SDK wants some key


class Accounts:
    """The accounts of all providers."""

    def __init__(self, settings: Settings, salt: Callable[[], bytes], is_token: Callable[[bytes], bool]) -> None:
        self._salt = salt
        self._is_token = is_token
        self._providers = settings.providers
        self._known: dict[tuple[str, str], str] = {}
        self._strange: set[str] = set()

    def is_token(self, key: str) -> bool:
        """Whether a key is Headgate's own token; one that has an account by now is not."""
        return key not in self._strange and self._is_token(b"Bearer " + key.encode())

    def of(self, provider: str, key: str) -> str:
        """The account of a key; `default` where there is no key."""
        if not key:
            return DEFAULT_ACCOUNT
        known = self._known.get((provider, key))
        if known is None:
            known = self._named(provider, key) or self._hashed(provider, key)
            if len(self._known) >= _MOST:
                self._known.clear()
                self._strange.clear()
            self._known[provider, key] = known
            self._strange.add(key)
        return known

    def key_of(self, provider: str, account: str) -> str:
        """The key that the config has for an account, or nothing. (Keys in files belong to agents.)"""
        given = self._providers.get(_entry(provider, account), Provider())
        return os.environ.get(given.key_env, "") if given.key_env else ""

    def _named(self, provider: str, key: str) -> str:
        """The name of the account whose key this is, where that is known."""
        for name, given in self._providers.items():
            ours, _, account = name.partition("@")
            if ours == provider and _has(given, key):
                return account or DEFAULT_ACCOUNT
        if not self._providers.get(provider, Provider()).key_env:
            for variable in WELL_KNOWN.get(provider, ()):
                if os.environ.get(variable) == key:
                    return DEFAULT_ACCOUNT
        return ""

    def _hashed(self, provider: str, key: str) -> str:
        """A name that tells nothing: the same key has another one in another store, and with another provider."""
        digest = hmac.digest(self._salt(), f"account\0{provider}\0{key}".encode(), "sha256")
        return f"key-{digest.hex()[:8]}"


def _entry(provider: str, account: str) -> str:
    return provider if account == DEFAULT_ACCOUNT else f"{provider}@{account}"


def _has(given: Provider, key: str) -> bool:
    if given.key_env:
        return os.environ.get(given.key_env) == key
    if not given.credential_file or len(key) < 16:
        return False
    try:
        with open(expand_home(given.credential_file), "rb") as file:
            return key.encode() in file.read(_LARGEST_FILE)
    except (OSError, ValueError):
        return False
