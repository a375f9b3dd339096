"""A connection to the database through the node of this host (gate/node/connection_pool.py), or a direct one.

For the log it is a connection like any other: `ConnectionLost` means that it is gone, because of the node or the
server. Each new connection tries the node first; if no node answers, it goes to the server directly.
"""

from __future__ import annotations

import _socket
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from fleetgate.gate.node import discovery, protocol
from fleetgate.gate.node.client import NodeGone, NodeLink, NodeStopped
from fleetgate.log.postgres import PostgresLog
from fleetgate.log.postgres.connection import ConnectionLost, ServerConnection, StatementRefused
from fleetgate.log.postgres.url import Address
from fleetgate.log.protocol import StoreError

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

GREETING_S = 6.0  # a node that is silent for this long is bypassed; it tries 5 s for the server
_WITHOUT_S = 60.0
_START_AGAIN_S = 15.0
_LOOK_S = 5.0
ANSWER_S = 60.0  # later it may have to wait for the lock or the server


class Result(Struct, array_like=True, frozen=True):
    """The result of one statement: the part of a PGresult that the log uses."""

    command_status: bytes | None
    rows: list[list[bytes | None]]

    @property
    def ntuples(self) -> int:
        return len(self.rows)

    def get_value(self, row: int, column: int) -> bytes | None:
        return self.rows[row][column]


_decode = msgspec.msgpack.Decoder(list[Result]).decode


class PooledConnection(ServerConnection):
    """A connection through the node. `start` starts a node if none is running; without it, other processes do that."""

    def __init__(
        self,
        address: Address,
        greet: Callable[[], None],
        *,
        path: str,
        start: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(address, greet)
        self._path = path
        self._start = start
        self._node: NodeLink | None = None  # through which we are connected
        self._greeted = False  # it has answered
        self._open_there = False  # a transaction
        self._without_until = 0.0  # the node does not answer, or not in our language
        self._start_at = 0.0  # when one may be started again
        self._look_at = 0.0  # how often to look for one while connected directly

    @property
    def alive(self) -> bool:
        return self._node is not None or super().alive

    @property
    def in_transaction(self) -> bool:
        return self._open_there if self._node is not None else super().in_transaction

    @property
    def upkept_by_node(self) -> bool:  # type: ignore[override]
        return self._node is not None

    def connect(self) -> None:
        """Connect if necessary, and return to the node once there is one again: connections are scarce."""
        if super().alive and not super().in_transaction and monotonic() > max(self._look_at, self._without_until):
            self._look_at = monotonic() + _LOOK_S
            if discovery.is_held(self._path):
                self.drop()
            elif self._start is not None and monotonic() >= self._start_at:
                self._start_at = monotonic() + _START_AGAIN_S
                self._start()  # it is there at the next look
        super().connect()

    def ask(self, sql: str, *, on: int = 0, meanwhile: Callable[[], None] | None = None) -> list[PGresult]:
        self.check(on)
        self.connect()
        if self._node is None:
            return super().ask(sql, on=on, meanwhile=meanwhile)
        return self._said(protocol.Say(sql, bound=self._open_there))

    def ask_with(self, sql: str, values: Sequence[bytes | None], *, binary: bool = False) -> PGresult:
        self.connect()
        if self._node is None:
            return super().ask_with(sql, values, binary=binary)
        (result,) = self._said(protocol.Say(sql, list(values), binary, self._open_there))
        return result

    def literal(self, text: str) -> str:
        if self._node is None and super().alive:
            return super().literal(text)
        if "\0" in text:
            raise StoreError("PostgreSQL cannot keep text with a NUL in it: nothing was changed")
        quoted = text.replace("'", "''")
        return f" E'{quoted.replace(chr(92), chr(92) * 2)}'" if "\\" in quoted else f"'{quoted}'"

    def drop(self) -> None:
        node, self._node = self._node, None
        self._open_there = False
        if node is not None:
            node.close()
        super().drop()

    def _said(self, call: protocol.Say) -> list[PGresult]:
        assert self._node is not None
        try:
            answer = self._node.ask_once(call, ANSWER_S if self._greeted else GREETING_S)
        except NodeGone as gone:
            if not self._greeted or isinstance(gone, NodeStopped):
                self._without_until = monotonic() + _WITHOUT_S
            self.drop()
            raise ConnectionLost(str(gone)) from gone
        except BaseException:
            self.drop()  # in the middle of an answer
            raise
        if answer.lost:
            self.drop()
            raise ConnectionLost(answer.lost)
        self._open_there = answer.in_transaction
        if answer.wrong is not None:
            self.drop()
            raise protocol.raised(answer.wrong)
        self._greeted = True
        if answer.refused is not None:
            code, said, committed = answer.refused
            raise StatementRefused(code, said, committed=committed)
        return _decode(answer.said)  # type: ignore[return-value]  # as far as the log looks

    def _try(self) -> None:
        before = self._without_until
        try:
            super()._try()
        except ConnectionLost:
            if self._without_until == before:
                raise
            super()._try()  # the node did not help: connect directly at once

    def _open(self) -> None:
        self._greeted = False
        self._look_at = monotonic() + _LOOK_S
        sock = self._met() if monotonic() >= self._without_until else None
        if sock is not None:
            self._node = NodeLink(self._path, sock)
        else:
            super()._open()

    def _met(self) -> _socket.socket | None:
        """A connection to the node, if there is one or one can be started."""
        sock = discovery.connect(self._path)
        if sock is None and self._start is not None and monotonic() >= self._start_at:
            if not discovery.is_held(self._path):
                self._start()
            sock = discovery.await_node(self._path)
            if sock is None:
                self._start_at = monotonic() + _START_AGAIN_S
        return sock


def open_pooled(url: str, path: str, *, start: Callable[[], None] | None = None) -> PostgresLog:
    """The log of a PostgreSQL store, through the node at this path if there is one."""

    def link(address: Address, greet: Callable[[], None]) -> PooledConnection:
        return PooledConnection(address, greet, path=path, start=start)

    return PostgresLog(url, link=link)
