"""The places of calls with a key that no provider has accepted yet.

Such a call of a caller that is not trusted leaves no trace in the log: anyone can make up keys. It takes a place here
instead, in memory: one for each key, and a few for each provider. When the provider has accepted its key, the call gets
a slot of its account like any other, and those that wait here with the same key go to the queue. So do the calls of
trusted callers after several keys were refused; else these have a slot of the account that the key would have at once.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

ACCOUNT = "unverified"  # what such calls are shown as
AT_ONCE = 8  # at one provider
MOST_WAITING = 256


class TooManyTrials(Exception):
    """Too many wait already."""


class KeyTrials:
    """The calls with one key: one at a time."""

    __slots__ = ("calls", "lock")

    def __init__(self) -> None:
        self.calls = 0  # under way or waiting
        self.lock = asyncio.Lock()


class TrialPlace(NamedTuple):
    """What a call holds while its key is unproven."""

    provider: str
    account: str  # that the key would have


class TrialPlaces:
    """All places for calls with unproven keys."""

    def __init__(self) -> None:
        self._providers: dict[str, asyncio.Semaphore] = {}
        self._keys: dict[TrialPlace, KeyTrials] = {}
        self._logins: dict[str, asyncio.Lock] = {}
        self._waiting = 0

    def login_lock(self, provider: str) -> asyncio.Lock:
        """Held by the call that shows whose login its token is, until its answer begins: one at a provider."""
        return self._logins.setdefault(provider, asyncio.Lock())

    async def enter(self, place: TrialPlace) -> None:
        """Take a place, which is waited for. TooManyTrials."""
        if self._waiting >= MOST_WAITING:
            raise TooManyTrials
        turns = self._keys.setdefault(place, KeyTrials())
        turns.calls += 1
        self._waiting += 1
        try:
            await turns.lock.acquire()
            try:
                await self._room(place).acquire()
            except BaseException:
                turns.lock.release()
                raise
        except BaseException:
            self._forget(place, turns)
            raise
        finally:
            self._waiting -= 1

    def leave(self, place: TrialPlace) -> None:
        turns = self._keys[place]
        self._room(place).release()
        turns.lock.release()
        self._forget(place, turns)

    def _room(self, place: TrialPlace) -> asyncio.Semaphore:
        return self._providers.setdefault(place.provider, asyncio.Semaphore(AT_ONCE))

    def _forget(self, place: TrialPlace, turns: KeyTrials) -> None:
        turns.calls -= 1
        if not turns.calls:
            del self._keys[place]
