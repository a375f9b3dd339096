"""The access keys of a running service: found by their text, as the log has them now."""

from __future__ import annotations

from fleetgate.core.access.keys import AccessKey
from fleetgate.gate.access_keys import PREFIX, find_key, store_salt
from fleetgate.gate.library.gate_core import GateCore
from fleetgate.log.protocol import StoreError


class AccessKeys:
    """Made once for a service. A key that was created or removed elsewhere is known within two seconds."""

    def __init__(self, core: GateCore) -> None:
        self._core = core
        self.salt = b""  # the store's

    async def start(self) -> None:
        """Read the store's salt, before the first request comes."""
        await self._core.read_state()  # no thread is at work now
        self.salt = store_salt(self._core.replica)

    def find(self, text: str) -> AccessKey | None:
        """The key that this text is; None if it is none, or the store cannot be read."""
        if not text.startswith(PREFIX):
            return None
        core = self._core
        try:
            if not core.log.is_shared and not core.commits.busy:
                core.catch_up()
            known = core.replica.loaded
            return None if known is None else find_key(known.state, self.salt, text, core.now())
        except StoreError:
            return None

    def named(self, name: str) -> AccessKey | None:
        """The key of this name, if it has not expired; for a browser that a key signed in."""
        core = self._core
        try:
            if not core.log.is_shared and not core.commits.busy:
                core.catch_up()
            known = core.replica.loaded
            key = None if known is None else known.state.access_keys.get(name)
            return key if key is not None and key.is_valid_at(core.now()) else None
        except StoreError:
            return None
