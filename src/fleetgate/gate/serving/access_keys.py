"""The access keys of a running service: found by their text, as the log has them now."""

from __future__ import annotations

import asyncio

from fleetgate.core.access.keys import AccessKey
from fleetgate.gate.access_keys import PREFIX, find_key, store_salt
from fleetgate.gate.library.gate_core import GateCore
from fleetgate.log.protocol import StoreError

_LOOK_EVERY_S = 0.25  # all unknown keys that come meanwhile share one look at the log, so guesses cost next to nothing
_MOST_ASKED = 1000


class KeyNotKnownYet(Exception):
    """A key is unknown here, and may have been created elsewhere: look again when `looked` is done."""

    def __init__(self, looked: asyncio.Future[None]) -> None:
        super().__init__("an access key is not known yet")
        self.looked = looked


class AccessKeys:
    """Made once for a service. A key that was created elsewhere is known at once, one that was removed within two
    seconds.
    """

    def __init__(self, core: GateCore) -> None:
        self._core = core
        self.salt = b""  # the store's
        self._asked: set[str] = set()  # unknown keys for which the log is being looked at
        self._look: asyncio.Future[None] | None = None  # the next one
        self._looked_at = -_LOOK_EVERY_S  # the loop's time

    async def start(self) -> None:
        """Read the store's salt, before the first request comes."""
        await self._core.read_state()  # no thread is at work now
        self.salt = store_salt(self._core.replica)

    def find(self, text: str) -> AccessKey | None:
        """The key that this text is; None if it is none, or the store cannot be read. KeyNotKnownYet."""
        if not text.startswith(PREFIX):
            return None
        core = self._core
        waits = core.log.is_shared or core.commits.busy  # the log cannot be read now
        try:
            if not waits:
                core.catch_up()
            known = core.replica.loaded
            found = None if known is None else find_key(known.state, self.salt, text, core.now())
        except StoreError:
            return None
        if found is not None or not waits or text in self._asked:
            self._asked.discard(text)
            return found
        if len(self._asked) >= _MOST_ASKED:
            self._asked.clear()  # of clients that did not wait
        self._asked.add(text)
        raise KeyNotKnownYet(self._next_look())

    def _next_look(self) -> asyncio.Future[None]:
        if self._look is None:
            loop = self._core.loop
            self._look = loop.create_future()
            loop.call_at(max(loop.time(), self._looked_at + _LOOK_EVERY_S), self._begin_look)
        return self._look

    def _begin_look(self) -> None:
        look, self._look = self._look, None
        assert look is not None
        self._looked_at = self._core.loop.time()
        self._core.commits.catch_up_in_thread().add_done_callback(lambda _: look.set_result(None))

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
