"""A pool of a node's connections to the database, used by commands and workers of its host for a transaction each.

A process that requests a slot lets the node decide (gate/node/node.py). Every other process (a listing, a cap, a job)
decides itself, and only its round trips go through the node: the hundred processes of a worker do not need a hundred
connections. A pooler in transaction mode does the same, and the log works behind one.

The rule: a connection with an open transaction belongs to one client until the transaction is over, or the client has
left or has been silent for longer than the server itself allows.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

import msgspec

from fleetgate.gate.node import protocol
from fleetgate.log.postgres.connection import ConnectionLost, ServerConnection, StatementRefused
from fleetgate.log.postgres.sql import IDLE_MS
from fleetgate.log.postgres.url import Address, parse

MOST = 4  # connections
_IDLE_S = 30.0

_encode = msgspec.msgpack.Encoder().encode


class PoolClient:
    """The process at the other end of one connection to the node."""

    __slots__ = ("begun", "link")

    silent_s = IDLE_MS / 1000 + 0.5  # in a transaction: the server has ended it by this time

    def __init__(self) -> None:
        self.link: ServerConnection | None = None  # with its transaction
        self.begun = False


class ConnectionPool:
    """The connections of one node. Belongs to its loop."""

    def __init__(self, url: str) -> None:
        self._address: Address = parse(url)
        self._free: list[tuple[ServerConnection, float]] = []  # and since when
        self._any = asyncio.Semaphore(MOST)
        self._transactions = asyncio.Semaphore(MOST - 1)  # may wait for the lock; reads need not
        self._threads = ThreadPoolExecutor(MOST, thread_name_prefix="connection-pool")

    def new_client(self) -> PoolClient:
        return PoolClient()

    async def say(self, client: PoolClient, call: protocol.Say, answer: protocol.Answer) -> None:
        """One round trip. Raises StoreError if there is no server."""
        if call.bound and client.link is None:
            answer.lost = "its transaction is over"
            return
        if client.link is None:
            await self._assign(client, begins=call.text.startswith("BEGIN"))
        link = client.link
        assert link is not None
        loop = asyncio.get_running_loop()
        try:
            answer.said = await loop.run_in_executor(self._threads, _ask, link, call)
        except ConnectionLost as lost:
            answer.lost = str(lost) or "the connection was lost"
        except StatementRefused as refused:
            answer.refused = (refused.code, refused.said, refused.committed)
        except asyncio.CancelledError:
            client.link = None  # a thread still uses it: no other client may
            raise
        except BaseException:
            self._put_back(client)
            raise
        answer.in_transaction = link.in_transaction
        if not answer.in_transaction:
            self._put_back(client)

    async def _assign(self, client: PoolClient, *, begins: bool) -> None:
        if begins:
            await self._transactions.acquire()
        try:
            await self._any.acquire()
        except BaseException:
            if begins:
                self._transactions.release()
            raise
        client.begun = begins
        client.link = self._free.pop()[0] if self._free else ServerConnection(self._address, lambda: None)

    def leave(self, client: PoolClient) -> None:
        """The client has left: roll back its open transaction."""
        if client.link is not None:
            client.link.drop()
            self._put_back(client)

    def _put_back(self, client: PoolClient) -> None:
        link, client.link = client.link, None
        assert link is not None
        if client.begun:
            self._transactions.release()
        self._any.release()
        self._free.append((link, monotonic()))

    def tidy(self) -> None:
        """Close connections that were not used for a while; called now and then."""
        kept = [(link, since) for link, since in self._free if monotonic() - since < _IDLE_S]
        for link, since in self._free:
            if monotonic() - since >= _IDLE_S:
                link.close()
        self._free = kept

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for link, _ in self._free:
            link.close()
        self._free.clear()


def _ask(link: ServerConnection, call: protocol.Say) -> bytes:
    """In a thread."""
    if call.values is None:
        results = link.ask(call.text)
    else:
        results = [link.ask_with(call.text, call.values, binary=call.binary)]
    return _encode(
        [
            (
                result.command_status,
                [[result.get_value(row, column) for column in range(result.nfields)] for row in range(result.ntuples)],
            )
            for result in results
        ]
    )
