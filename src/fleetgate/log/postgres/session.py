"""The connection of a log to its namespace, with the transaction that is open on it and the server's clock.

A transaction that has the write lock ends with the connection that it was begun on. `serial` says which one that was:

| state | `serial` | `is_locked` |
| --- | --- | --- |
| no transaction | 0 | False |
| open, with the lock | that of the connection | True |
| lost with its connection | that of an earlier connection | False |

A question that belongs to no transaction is asked again when its connection is lost. One that belongs to a transaction
raises TransactionLost: nothing of it was committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from fleetgate.log import clock as clocks
from fleetgate.log.postgres import migrations
from fleetgate.log.postgres import sql as sql
from fleetgate.log.postgres.connection import ConnectionLost, ServerConnection, StatementRefused, Tries, explain
from fleetgate.log.postgres.url import Address
from fleetgate.log.protocol import StoreError, StoreMoved, TransactionLost

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

MOVED_TO = "it was moved to "  # so a namespace says that it is closed for good

T = TypeVar("T")


class Session:
    """A namespace at an address. `connection` makes the connection; `clock` is for tests."""

    def __init__(
        self, address: Address, clock: clocks.Clock | None, connection: Callable[..., ServerConnection]
    ) -> None:
        self.address = address
        self.clock = clock
        self.namespace = 0
        self.serial = 0
        self._offset = 0  # from the boot clock here to the server's
        self.connection = connection(address, self._greet)

    def _greet(self) -> None:
        """After connecting: can this program work with what is there? What is our namespace's number, and the time?"""
        found, clock = migrations.find_namespace(self.connection, f"; {sql.CLOCK}")
        if not found.ntuples:
            raise StoreError(
                f"there is no namespace {self.address.namespace!r} in the store at {self.address.shown}: make it with "
                "`fleetgate store migrate`, or correct FLEETGATE_STORE"
            )
        self.refuse_closed(found)
        self.namespace = int(found.get_value(0, 0) or 0)
        self.set_clock(clock)

    def refuse_closed(self, found: PGresult) -> None:
        """Raise why the namespace is closed, if a row (id, closed) says so."""
        closed = (found.get_value(0, 1) or b"").decode() if found.ntuples else ""
        if closed.startswith(MOVED_TO):
            raise StoreMoved.away(self.address.shown, closed.removeprefix(MOVED_TO))
        if closed:
            raise StoreError(f"the gate at {self.address.shown} is closed: {closed}")

    def set_clock(self, found: PGresult) -> None:
        """Take the server's time, as `sql.CLOCK` has found it."""
        self._offset = int(found.get_value(0, 0) or 0) - clocks.boot_ms()

    def now(self) -> int:
        """The server's time, by the boot clock here."""
        return self.clock() if self.clock is not None else clocks.boot_ms() + self._offset

    # The transaction.

    @property
    def is_locked(self) -> bool:
        """Whether a transaction that has the write lock is open."""
        return self.serial != 0 and self.serial == self.connection.serial and self.connection.alive

    def end(self) -> None:
        """Leave the transaction on the connection, if there is one."""
        self.serial = 0
        if self.connection.alive and self.connection.in_transaction:
            try:
                self.connection.ask("ROLLBACK")
            except (ConnectionLost, StatementRefused):
                self.connection.drop()  # which ends it as well

    def transaction_lost(self) -> TransactionLost:
        return TransactionLost(
            f"the connection to the store at {self.address.shown} was lost in a decision: nothing of it happened; "
            "try again"
        )

    # Round trips that may be made twice.

    def ask(self, statements: str) -> list[PGresult]:
        """The results of statements, in which `{ns}` was already replaced."""
        return self._again(lambda: self.connection.ask(statements))

    def ask_with(self, statement: str, values: Sequence[bytes]) -> PGresult:
        """The result of one statement with values beside it, all of them binary."""
        return self._again(lambda: self.connection.ask_with(statement, values, binary=True))

    def _again(self, ask: Callable[[], T]) -> T:
        in_transaction = self.serial != 0
        tries = Tries(self.address)
        while True:
            try:
                if in_transaction and not self.is_locked:
                    raise ConnectionLost("the connection is another one")
                return ask()
            except ConnectionLost as lost:
                if in_transaction:
                    self.serial = 0
                    raise self.transaction_lost() from lost
                tries.again(lost)
            except StatementRefused as refused:
                raise explain(self.address, refused) from refused
