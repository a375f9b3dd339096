"""A node's connections to the database, lent to the commands and workers of its host, a transaction at a time.

What asks for a slot tells the node what it wants, and the node decides (gate/node/node.py). What does anything else (a
listing, a cap, a job) decides itself, as ever, and only its round trips go through the node: a hundred hands of a
worker are no hundred connections. This is what a pooler in transaction mode does, and the log works behind one.

The rule: a connection with an open transaction is its borrower's alone, until that is over, the borrower has left, or
has said nothing for longer than the server itself would bear.
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
SILENT_S = IDLE_MS / 1000 + 0.5  # in a transaction: the server has ended it by then
_IDLE_S = 30.0

_encode = msgspec.msgpack.Encoder().encode


class PoolClient:
    """Who is at the other end of one connection to the node."""

    __slots__ = ("begun", "link")

    def __init__(self) -> None:
        self.link: ServerConnection | None = None  # with its transaction
        self.begun = False


class ConnectionPool:
    """The connections of one node. Belongs to its loop."""

    def __init__(self, url: str) -> None:
        self._address: Address = parse(url)
        self._free: list[tuple[ServerConnection, float]] = []  # and since when
        self._any = asyncio.Semaphore(MOST)
        self._transactions = asyncio.Semaphore(MOST - 1)  # they may wait for the lock: who only reads need not
        self._threads = ThreadPoolExecutor(MOST, thread_name_prefix="lending")

    async def say(self, borrower: PoolClient, call: protocol.Say, answer: protocol.Answer) -> None:
        """One round trip. Raises StoreError where there is no server."""
        if call.bound and borrower.link is None:
            answer.lost = "its transaction is over"
            return
        if borrower.link is None:
            await self._lend(borrower, begins=call.text.startswith("BEGIN"))
        link = borrower.link
        assert link is not None
        loop = asyncio.get_running_loop()
        try:
            answer.said = await loop.run_in_executor(self._threads, _ask, link, call)
        except ConnectionLost as lost:
            answer.lost = str(lost) or "the connection was lost"
        except StatementRefused as refused:
            answer.refused = (refused.code, refused.said, refused.committed)
        except asyncio.CancelledError:
            borrower.link = None  # a thread is still at it: nobody may have it
            raise
        except BaseException:
            self._take_back(borrower)
            raise
        answer.in_transaction = link.in_transaction
        if not answer.in_transaction:
            self._take_back(borrower)

    async def _lend(self, borrower: PoolClient, *, begins: bool) -> None:
        if begins:
            await self._transactions.acquire()
        try:
            await self._any.acquire()
        except BaseException:
            if begins:
                self._transactions.release()
            raise
        borrower.begun = begins
        borrower.link = self._free.pop()[0] if self._free else ServerConnection(self._address, _nothing)

    def leave(self, borrower: PoolClient) -> None:
        """It has gone: what it began and did not end is undone."""
        if borrower.link is not None:
            borrower.link.drop()
            self._take_back(borrower)

    def _take_back(self, borrower: PoolClient) -> None:
        link, borrower.link = borrower.link, None
        assert link is not None
        if borrower.begun:
            self._transactions.release()
        self._any.release()
        self._free.append((link, monotonic()))

    def tidy(self) -> None:
        """Now and then: let go of connections that nobody has used for a while."""
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


def _nothing() -> None:
    """Who borrows a connection has its own questions to ask of the store."""
