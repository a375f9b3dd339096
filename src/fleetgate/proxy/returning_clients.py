"""The places in the queue of clients that gave up waiting: one that asks for the same again soon gets its age back.

Many clients leave after a minute or five, and try again. A place belongs to the same caller (its key, its run, its
session) and the same request, to the last byte; it is kept for a while, and given back once.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from time import monotonic

from fleetgate.proxy.calls.exchange import Exchange

KEPT_S = 120.0
MOST = 1000


class ReturningClients:
    """Those of one service."""

    def __init__(self) -> None:
        self._salt = os.urandom(32)
        self._all: dict[tuple[bytes, int], list[tuple[float, bytes, int]]] = {}  # by path and size of the body
        self._number = 0

    def __len__(self) -> int:
        return self._number

    def keep(self, exchange: Exchange) -> None:
        """The client of a request that waits has left."""
        if not exchange.candidates or not exchange.body.kept or not exchange.since:
            return
        self._forget_old()
        if self._number < MOST:
            entry = (monotonic() + KEPT_S, self._mark(exchange), exchange.since)
            self._all.setdefault((exchange.path, len(exchange.body.data)), []).append(entry)
            self._number += 1

    def take(self, exchange: Exchange) -> int:
        """Since when this very request has waited before; 0: it has not, as far as anything tells."""
        found = (
            self._all.get((exchange.path, len(exchange.body.data)))
            if self._all and exchange.candidates and exchange.body.kept
            else None
        )
        if not found:
            return 0
        mark, now = self._mark(exchange), monotonic()
        for entry in found:  # the one that left first
            if entry[1] == mark and entry[0] > now:
                found.remove(entry)
                self._number -= 1
                return entry[2]
        return 0

    def _forget_old(self) -> None:
        now = monotonic()
        kept = {key: [entry for entry in entries if entry[0] > now] for key, entries in self._all.items()}
        self._all = {key: entries for key, entries in kept.items() if entries}
        self._number = sum(map(len, self._all.values()))

    def _mark(self, exchange: Exchange) -> bytes:
        """What only the same caller's same request has."""
        session = b"\n".join(b"%s %s" % pair for pair in exchange.headers.sessions.items())
        account = "" if exchange.uses_set else exchange.account
        own = (exchange.secret, exchange.access_key_name)
        caller = (exchange.route.provider, account, *own, str(exchange.trusted), exchange.client)
        call = (exchange.project, str(exchange.priority), exchange.method)
        texts = [each.encode("utf-8", "surrogatepass") for each in caller + call]
        parts = (*texts, session, exchange.path, exchange.query, exchange.body.data)
        digest = blake2b(key=self._salt, digest_size=16)
        for part in parts:
            digest.update(b"%d:" % len(part))
            digest.update(part)
        return digest.digest()
