"""Access keys as text: how one is made, and how it is found again by what the log has of it (rule E1).

A key is `fgk_` and 32 random bytes, shown once. The log has a digest of it, made with the store's salt. So neither the
log nor a snapshot gives a key away, and the same key has another digest in another store.
"""

from __future__ import annotations

import os
from base64 import urlsafe_b64encode
from hashlib import blake2b

from fleetgate.core.access.keys import AccessKey
from fleetgate.core.state.state import State
from fleetgate.gate.providers.credentials import SALT
from fleetgate.gate.replica.replica import Replica

PREFIX = "fgk_"
_BYTES = 32
_LONGEST = 100


def new_key() -> str:
    """A new random key."""
    return PREFIX + urlsafe_b64encode(os.urandom(_BYTES)).decode().rstrip("=")


def store_salt(replica: Replica) -> bytes:
    """The store's salt; the first process that needs it makes it."""
    return replica.side_value(*SALT) or replica.set_side_value_once(*SALT, os.urandom(32))


def key_digest(salt: bytes, key: str) -> str:
    """What the log has of a key."""
    return blake2b(key.encode("utf-8", "surrogatepass"), key=salt, person=b"access key", digest_size=32).hexdigest()


def find_key(state: State, salt: bytes, text: str, now: int) -> AccessKey | None:
    """The key that this text is, if it is one that has not expired.

    A digest with a secret salt is compared, so the time that it takes tells nothing about the keys that there are.
    """
    if not text.startswith(PREFIX) or len(text) > _LONGEST or not state.access_keys:
        return None
    digest = key_digest(salt, text)
    found = next((key for key in state.access_keys.values() if key.digest == digest), None)
    return found if found is not None and found.is_valid_at(now) else None
