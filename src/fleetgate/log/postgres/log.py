"""The log in PostgreSQL. A commit is one row; the row of its namespace is the write lock.

A decision takes two round trips. The first begins the transaction, locks the namespace's row, and reads the tail and
the clock; the second adds the commit and commits. The statements of a round trip have snapshots of their own (READ
COMMITTED), so the tail is read while holding the lock.

- A commit that puts a slot to use, and one that was begun as durable, is on disk when `append` returns, as the server
  is set up to. Others are a moment later, and never after one that follows them. So a server that crashes may forget
  that a slot was released or that a request was queued, but never a slot that is in use.
- A process that is stopped or cut off while it holds the lock loses lock and transaction to
  `idle_in_transaction_session_timeout`.
- A connection that is lost before COMMIT was sent means that nothing happened: TransactionLost, decide again. If it is
  lost after that, the lock is taken once more, so that the old transaction is over, and the commit is looked up by its
  id; then it has happened, or it has not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from threading import get_ident
from time import monotonic

from fleetgate.core.errors import InternalError
from fleetgate.core.events import Claimed, Event, Granted
from fleetgate.log import clock as clocks
from fleetgate.log import host_beats as beating
from fleetgate.log.checksum import new_id
from fleetgate.log.continuity import Row, check_last, check_rows, commits_of, head_of, history, position_of, rows_after
from fleetgate.log.event_codec import encode
from fleetgate.log.postgres import sql as sql
from fleetgate.log.postgres import upkeep
from fleetgate.log.postgres.connection import ConnectionLost, ServerConnection, StatementRefused, Tries, explain
from fleetgate.log.postgres.row_codec import bytes_of, rows_of, side_items_of, side_statements
from fleetgate.log.postgres.session import Session
from fleetgate.log.postgres.url import Address, parse
from fleetgate.log.protocol import (
    KEEP_BYTES,
    START,
    Commit,
    Head,
    Listener,
    LogReplaced,
    Position,
    SideWrite,
    Stored,
    StoreError,
    TransactionLost,
)

LOCK_PATIENCE_S = 60.0
TAIL_COMMITS = 100  # read with the lock
HISTORY_COMMITS = 500

_INCARNATION = ("store", "incarnation")  # beside the log: the server that it was last seen on


class Stage(Enum):
    """What the caller has of the log: `lock`, `begin`, `append` or `rollback`, `unlock` lead from one to the next.

    The transaction on the server is begun with the lock, and may be lost at any stage (session.py).
    """

    FREE = "free"
    LOCKED = "locked"
    BEGUN = "begun"  # a transaction


class PostgresLog:
    """The log of a namespace. `clock` is for tests: the log's time in ms instead of the server's."""

    is_shared = True

    def __init__(
        self,
        url: str | Address,
        clock: clocks.Clock | None = None,
        link: Callable[..., ServerConnection] = ServerConnection,
    ) -> None:
        address = url if isinstance(url, Address) else parse(url)
        self.session = session = Session(address, clock, link)
        self._link = session.connection
        self._ask, self._address = session.ask, address
        self._stage = Stage.FREE
        self._floor = 0  # time that was already seen, here or in the log
        self._durable = False
        self._known: Position | None = None  # the last position that was read or written
        self._tail: list[Row] = []  # what the log had from `_tail_from` on when the lock was taken
        self._tail_from: int | None = None  # None when that is not all
        self._last: Position | None = None  # the last commit, as far as this transaction has read
        self._news: tuple[SideWrite, ...] = ()  # to be written with the next commit
        self._notice = ""  # for other machines, with the commit of this transaction
        self._meanwhile: Callable[[], None] | None = None  # what to do while the commit is on its way
        try:
            self._link.connect()
        except BaseException:
            self._link.close()
            raise

    @property
    def _ns(self) -> int:
        return self.session.namespace

    def __repr__(self) -> str:
        return (
            f"PostgresLog({self._address.shown!r}{', holding the write lock' if self._stage is not Stage.FREE else ''})"
        )

    def connect(self) -> PostgresLog:
        """Another log on the same store, with a connection of its own."""
        return PostgresLog(self._address, self.session.clock)

    @property
    def upkept_by_node(self) -> bool:
        return self._link.upkept_by_node

    @property
    def is_behind(self) -> bool:
        return self.session.is_locked and self._known is not None and self._tail_from is None

    def listen(self) -> Listener:
        from fleetgate.log.postgres.listener import NoticeListener

        return NoticeListener(self._address, self._ns)

    def fail_fast(self) -> None:
        self._link.hurried = get_ident()

    def notify(self, text: str) -> None:
        try:
            self._link.ask(self._notify_statement(text))
        except (ConnectionLost, StatementRefused, StoreError):
            return

    def notify_with_commit(self, text: str, meanwhile: Callable[[], None]) -> None:
        self._notice, self._meanwhile = text, meanwhile

    def _notify_statement(self, text: str) -> str:
        return sql.NOTIFY.format(ns=self._ns, text=self._link.literal(text))

    # Reading.

    def read(self, after: Position, limit: int = 10_000) -> list[Commit]:
        rows = check_rows(self._rows_from(after, limit + (after.commit > 0)), self._damaged)
        new = rows_after(rows, after)
        self._known = position_of(rows[-1]) if rows else after
        if rows:
            self._floor = max(self._floor, rows[-1][2])
        if len(new) < limit and self._stage is Stage.BEGUN:
            self._last = self._known
        return commits_of(new)

    def _rows_from(self, after: Position, limit: int) -> list[Row]:
        if self.session.is_locked and self._tail_from is not None and self._tail_from <= after.commit:
            return [row for row in self._tail if row[0] >= after.commit][:limit]
        read = sql.READ.format(ns=self._ns, number=after.commit, limit=limit)
        found, closed = self._ask(f"{read}; {sql.CLOSED.format(ns=self._ns)}")
        self.session.refuse_closed(closed)
        return rows_of(found)

    def head(self) -> Head | None:
        last, clock, closed = self._ask(
            f"{sql.LAST.format(ns=self._ns)}; {sql.CLOCK}; {sql.CLOSED.format(ns=self._ns)}"
        )
        self.session.set_clock(clock)
        self.session.refuse_closed(closed)
        return head_of(rows_of(last))

    def history(self, since_seq: int = 0) -> Iterator[tuple[int, int, Event]]:
        found = self._ask(sql.COMMIT_AFTER.format(ns=self._ns, seq=since_seq))[0]
        number = int(found.get_value(0, 0) or 1) if found.ntuples else 1
        yield from history(self._history_from, number, since_seq)

    def _history_from(self, number: int) -> list[Row]:
        found = self._ask(sql.READ.format(ns=self._ns, number=number, limit=HISTORY_COMMITS))[0]
        return check_rows(rows_of(found), self._damaged)

    def _damaged(self, what: str) -> StoreError:
        return StoreError(
            f"the log of the store at {self._address.shown} is damaged ({what}): run `fleetgate doctor`, and restore a "
            "backup of the database"
        )

    def side_value(self, table: str, key: str) -> bytes | None:
        literal = self._link.literal
        found = self._ask(sql.SIDE.format(ns=self._ns, table=literal(table), key=literal(key)))[0]
        return bytes_of(found.get_value(0, 0)) if found.ntuples else None

    def side_items(self, table: str, low: str = "", high: str = "") -> list[tuple[str, bytes]]:
        return side_items_of(self._ask(self._side_items_statement(table, low, high))[0])

    def _side_items_statement(self, table: str, low: str = "", high: str = "") -> str:
        literal = self._link.literal
        return sql.SIDE_ITEMS.format(ns=self._ns, table=literal(table), low=literal(low), high=literal(high))

    # Whether it is still the server that it was.

    def seems_replaced(self) -> bool:
        try:
            found = self._link.ask(sql.INCARNATION)[0]
        except (ConnectionLost, StatementRefused):
            return False  # a role that may not ask, or a server that is away: a process that knew the log finds out
        current = (found.get_value(0, 0) or b"") if found.ntuples else b""
        stored = self.side_value(*_INCARNATION)
        self._news = () if stored == current else (SideWrite(*_INCARNATION, bytes(current)),)
        return stored is not None and bool(self._news)

    # Beats.

    def beat(self, site: str, gap_ms: int = beating.GAP_MS) -> None:
        known = self._beats()
        rows = beating.rows_to_write(known, site, self.now(), gap_ms)
        # By the server's clock when it is written, which may be long after we looked at it.
        at = sql.CLOCK_BYTES if self.session.clock is None else f"'{self.session.clock()}'::bytea"
        literal = self._link.literal
        written = ", ".join(f"({self._ns}, {literal(beating.TABLE)}, {literal(row)}, {at})" for row in sorted(rows))
        old = [SideWrite(beating.TABLE, row, None) for row in beating.rows_to_forget(known, self.now())]
        beat = f"{sql.SET_SIDE.format(rows=written)}{side_statements(self._ns, old, literal)}"
        self._ask(f"BEGIN; {sql.NOT_SYNCED}{beat}COMMIT")

    def beats(self, gap_ms: int = beating.GAP_MS) -> dict[str, int]:
        return beating.silences(self._beats(), self.now(), gap_ms)

    def _beats(self) -> dict[str, int]:
        found, clock = self._ask(f"{self._side_items_statement(beating.TABLE)}; {sql.CLOCK}")
        self.session.set_clock(clock)
        return {site: beating.read(value) for site, value in side_items_of(found)}

    # Writing.

    def try_lock(self) -> bool:
        self._check_free()
        taken = self._take(wait=False)
        if taken:
            self._stage = Stage.LOCKED
        return taken

    def lock(self) -> None:
        self._check_free()
        self._take(wait=True)
        self._stage = Stage.LOCKED

    def _check_free(self) -> None:
        if self._stage is not Stage.FREE:
            raise InternalError("the write lock is already held here")

    def _take(self, *, wait: bool) -> bool:
        """Open a transaction that has the lock, with the tail and the time."""
        until = monotonic() + LOCK_PATIENCE_S
        tries = Tries(self._address)
        while True:
            try:
                return self._try_to_take(wait=wait)
            except ConnectionLost as lost:  # nothing was done yet: once more, with another connection
                tries.again(lost)
            except StatementRefused as refused:
                self._end()
                if refused.code not in ("55P03", "40P01", "57014"):
                    raise explain(self._address, refused) from refused
                if monotonic() > until:
                    raise StoreError(
                        f"the lock of the store at {self._address.shown} could not be had for {LOCK_PATIENCE_S:g} s: "
                        "who keeps it? (`fleetgate doctor`)"
                    ) from refused

    def _try_to_take(self, *, wait: bool) -> bool:
        self._link.connect()
        known = self._known
        name = self._link.literal(self._address.namespace)
        tail = sql.READ if known is not None else sql.LAST
        tail = tail.format(ns=self._ns, number=known.commit if known is not None else 0, limit=TAIL_COMMITS)
        lock = sql.LOCK.format(name=name, skip="" if wait else " SKIP LOCKED")
        _, _, locked, found, clock = self._link.ask(f"{sql.BEGIN}{lock}{tail}; {sql.CLOCK}")
        if not locked.ntuples:
            self._end()
            if wait:
                self._link.drop()  # the namespace is gone: connecting says so
                raise ConnectionLost("the namespace is gone")
            return False
        self.session.serial = self._link.serial
        self._tail_from, self._last = None, None
        try:
            self.session.refuse_closed(locked)
            if int(locked.get_value(0, 0) or 0) != self._ns:
                self._link.drop()
                raise ConnectionLost("the namespace is another one")
        except BaseException:
            self._end()
            raise
        self.session.set_clock(clock)
        self._tail = rows_of(found)
        if known is None:
            self._last = position_of(self._tail[-1]) if self._tail else START
        elif len(self._tail) < TAIL_COMMITS:
            self._tail_from = known.commit
            self._last = position_of(self._tail[-1]) if self._tail else None
        return True

    def unlock(self) -> None:
        self.rollback()
        self._stage = Stage.FREE
        self._end()

    def lock_owner(self) -> int | None:
        if self.session.is_locked:
            return os.getpid()
        from fleetgate.log.postgres.inspect import lock_owner

        return lock_owner(self._address)

    def begin(self, *, durable: bool = False) -> None:
        if self._stage is not Stage.LOCKED:
            raise InternalError("a transaction needs the write lock, and is not begun twice")
        if not self.session.is_locked:  # the second under one lock: the first has let go of the row
            self._take(wait=True)
        self._stage = Stage.BEGUN
        self._durable, self._notice, self._meanwhile = durable, "", None

    def now(self) -> int:
        self._floor = max(self._floor, self.session.now())
        return self._floor

    def append(
        self, after: Position, at: int, events: Sequence[Event], due: int | None, side: Sequence[SideWrite] = ()
    ) -> Position:
        if self._stage is not Stage.BEGUN:
            raise InternalError("append needs a transaction")
        try:
            if not self.session.is_locked:
                raise self.session.transaction_lost()
            self._check_last(after)
            number, seq, encoded = after.commit + 1, after.seq + len(events), encode(events)
            position = Position(number, new_id(number, at, seq, due, encoded), seq)
            synced = self._durable or any(_is_in_use(event) for event in events)
            self._commit(self._commit_of(position, at, encoded, due, (*side, *self._news), synced), position)
        except BaseException:
            self._stage = Stage.LOCKED
            self._end()
            raise
        self._known = position
        self._news = ()
        self._floor = max(self._floor, at)
        return position

    def _commit_of(
        self, position: Position, at: int, events: bytes, due: int | None, side: Sequence[SideWrite], synced: bool
    ) -> str:
        add = sql.ADD.format(
            ns=self._ns,
            number=position.commit,
            id=position.id,
            at=at,
            seq=position.seq,
            due="NULL" if due is None else due,
            events=self._link.literal(events.decode()),
        )
        # The lock is let go with the commit, and others go on while this one waits for the disk.
        sync = f"; {sql.SYNC}" if synced else ""
        tell = f"; {self._notify_statement(self._notice)}" if self._notice else ""
        beside = side_statements(self._ns, side, self._link.literal) if side else ""
        return f"{add}{beside}{sql.NOT_SYNCED}COMMIT{tell}{sync}"

    def _commit(self, statements: str, position: Position) -> None:
        self._stage = Stage.LOCKED
        try:
            results = self._link.ask(statements, on=self.session.serial, meanwhile=self._meanwhile)
        except StatementRefused as refused:
            if refused.code == "23505":
                raise LogReplaced(f"there is a commit {position.commit} already") from refused
            if refused.committed:
                raise StoreError(
                    f"the last decision was committed, but whether it is on the disk of {self._address.shown} is not "
                    f"known ({refused})"
                ) from refused
            raise explain(self._address, refused) from refused
        except ConnectionLost as lost:
            if not self._has_happened(position, lost):
                raise self.session.transaction_lost() from lost
            if self._notice:
                self.notify(self._notice)
            return
        self.session.serial = 0
        # A transaction that had failed answers COMMIT with ROLLBACK.
        if any(result.command_status == b"ROLLBACK" for result in results):
            raise self.session.transaction_lost()

    def _has_happened(self, position: Position, lost: ConnectionLost) -> bool:
        """Look a commit up whose answer did not come; under the lock, so that its transaction is over."""
        while True:
            try:
                self._take(wait=True)
                found = self._ask(sql.KNOWN.format(ns=self._ns, number=position.commit, id=f"'{position.id}'"))[0]
                self._end()
                if found.ntuples:
                    self._ask(sql.SYNC)  # it may have been lost on its way to the disk
                return found.ntuples > 0
            except TransactionLost:
                continue  # this look was lost as well: once more, or StoreError when there is no server
            except StoreError as error:
                raise type(error)(f"{error}; whether the last decision was committed is not known") from lost
            finally:
                self._end()

    def rollback(self) -> None:
        if self._stage is Stage.BEGUN:
            self._stage = Stage.LOCKED
            self._end()

    def _end(self) -> None:
        """Leave the transaction on the connection, if there is one."""
        self._tail_from, self._last = None, None
        self.session.end()

    def _check_last(self, after: Position) -> None:
        if self._last is None:
            rows = rows_of(self._ask(sql.LAST.format(ns=self._ns))[0])
            self._last = position_of(rows[-1]) if rows else START
        check_last(self._last, after)

    # Upkeep.

    def snapshot(self) -> Stored | None:
        return upkeep.newest_snapshot(self.session)

    def save_snapshot(self, data: bytes, position: Position) -> None:
        upkeep.save_snapshot(self.session, data, position)

    def maintain(self, keep_ms: int, most_bytes: int = KEEP_BYTES) -> bool:
        return upkeep.prune(self.session, self.now() - keep_ms, most_bytes)

    def forget_side_items(self, table: str, before: str) -> bool:
        return upkeep.forget_side_items(self.session, table, before)

    def close(self) -> None:
        self._stage = Stage.FREE
        self._end()
        self._link.close()


def _is_in_use(event: Event) -> bool:
    """Whether a slot is used because of this event. A grant that waits to be claimed is not used yet."""
    return isinstance(event, Claimed) or (isinstance(event, Granted) and event.claimed)
