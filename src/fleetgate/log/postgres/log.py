"""The log in PostgreSQL. A commit is one row; the row of its namespace is the write lock.

A decision takes two round trips: one begins the transaction, locks the namespace's row, and reads the tail and the
clock; the other adds the commit and commits. The statements of a round trip have snapshots of their own (READ
COMMITTED), so the tail is read as it is after the lock was had.

- A commit by which somebody gets a slot, and one that was begun as durable, is on disk when `append` returns, as the
  server is set up to; others a moment later, and never after one that follows them. So a server that crashes may forget
  that a slot was given back or that somebody queued up, and never one that is used.
- Whoever is stopped or cut off while it has the lock loses both to `idle_in_transaction_session_timeout`.
- A connection that is lost before COMMIT was sent means that nothing happened: TransactionLost, decide again. One that
  is lost after it: the lock is taken once more, so that the old transaction is over, and the commit looked for by its
  id; then it has happened, or it has not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from threading import get_ident
from time import monotonic
from typing import TYPE_CHECKING, TypeVar
from zlib import crc32

from fleetgate.core.errors import InternalError
from fleetgate.core.events import Claimed, Event, Granted
from fleetgate.log import clock as clocks
from fleetgate.log import host_beats as beating
from fleetgate.log.checksum import is_whole, new_id
from fleetgate.log.event_codec import decode, encode
from fleetgate.log.postgres import migrations
from fleetgate.log.postgres import sql as sql
from fleetgate.log.postgres.connection import (
    ConnectionLost,
    ServerConnection,
    StatementRefused,
    Tries,
    connect,
    escaping,
    explain,
)
from fleetgate.log.postgres.row_codec import Row, bytes_of, position_of, rows_of, side_writes, text_of
from fleetgate.log.postgres.url import Address, parse
from fleetgate.log.protocol import (
    KEEP_BYTES,
    ROW_BYTES,
    SAMPLES,
    START,
    Commit,
    Head,
    LogReplaced,
    Position,
    SideWrite,
    Stored,
    StoreError,
    StoreMoved,
    TransactionLost,
)

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

    from fleetgate.log.postgres.listener import Listener

LOCK_PATIENCE_S = 60.0
TAIL_COMMITS = 100  # read with the lock
PRUNE_COMMITS = 2_000
HISTORY_COMMITS = 500
MOVED_TO = "it was moved to "  # so a namespace says that it is closed for good

T = TypeVar("T")

_INCARNATION = ("store", "incarnation")  # beside the log: the server that it was last seen on


class PostgresLog:
    """The log of a namespace. `clock` is for tests: the log's time in ms instead of the server's."""

    is_shared = True

    def __init__(
        self,
        url: str | Address,
        clock: clocks.Clock | None = None,
        link: Callable[..., ServerConnection] = ServerConnection,
    ) -> None:
        self._address = url if isinstance(url, Address) else parse(url)
        self._clock = clock
        self._offset = 0  # from the boot clock here to the server's
        self._floor = 0  # time that was already seen, here or in the log
        self._ns = 0
        self._holds = False  # as the caller sees it
        self._serial = 0  # of the connection that has a transaction open with the lock in it; 0 without one
        self._begun = False
        self._durable = False
        self._known: Position | None = None  # the last position that was read or written
        self._tail: list[Row] = []  # what the log had from `_tail_from` on when the lock was had
        self._tail_from: int | None = None  # None when that is not all
        self._last: Position | None = None  # the last commit, as far as this transaction has read
        self._news: tuple[SideWrite, ...] = ()  # to be written with the next commit
        self._notice = ""  # to those on other machines, with the commit of this transaction
        self._meanwhile: Callable[[], None] | None = None  # what to do while that is on its way
        self._link = link(self._address, self._greet)
        try:
            self._link.connect()
        except BaseException:
            self._link.close()
            raise

    def __repr__(self) -> str:
        return f"PostgresLog({self._address.shown!r}{', holding the write lock' if self._holds else ''})"

    def connect(self) -> PostgresLog:
        """Another log on the same store, with a connection of its own."""
        return PostgresLog(self._address, self._clock)

    @property
    def address(self) -> Address:
        return self._address

    @property
    def upkept_by_node(self) -> bool:
        return self._link.upkept_by_node

    @property
    def _locked(self) -> bool:
        """Whether a transaction that has the lock is open; it ends with its connection."""
        return self._serial != 0 and self._serial == self._link.serial and self._link.alive

    @property
    def is_behind(self) -> bool:
        return self._locked and self._known is not None and self._tail_from is None

    def listen(self) -> Listener:
        from fleetgate.log.postgres.listener import Listener

        return Listener(self._address, self._ns)

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

    def _greet(self) -> None:
        """After connecting: can this program work with what is there? What is our namespace's number, and the time?"""
        address = self._address
        name = self._link.literal(address.namespace)
        results = self._link.ask(
            f"{migrations.NUMBERS}; SELECT id, closed FROM fleetgate.namespaces WHERE name = {name}; {sql.CLOCK}"
        )
        migrations.check(address, results[0])
        if not results[1].ntuples:
            raise StoreError(
                f"there is no namespace {address.namespace!r} in the store at {address.shown}: make it with "
                "`fleetgate store migrate`, or correct FLEETGATE_STORE"
            )
        self._refuse_closed(results[1])
        self._ns = int(results[1].get_value(0, 0) or 0)
        self._set_clock(results[2])

    def _refuse_closed(self, found: PGresult) -> None:
        closed = (found.get_value(0, 1) or b"").decode() if found.ntuples else ""
        if closed.startswith(MOVED_TO):
            raise StoreMoved.away(self._address.shown, closed.removeprefix(MOVED_TO))
        if closed:
            raise StoreError(f"the gate at {self._address.shown} is closed: {closed}")

    # Reading.

    def read(self, after: Position, limit: int = 10_000) -> list[Commit]:
        rows = self._whole(self._rows_from(after, limit + (after.commit > 0)))
        new = len(rows)
        if after.commit:
            if not rows or rows[0][0] != after.commit or rows[0][1] != after.id or rows[0][3] != after.seq:
                raise LogReplaced(f"the log does not have commit {after.commit} with id {after.id}")
            new -= 1
        elif rows and rows[0][0] != 1:
            raise LogReplaced(f"the log begins with commit {rows[0][0]}: load its snapshot")
        self._known = after
        if rows:
            number, id, at, seq, _, _ = rows[-1]
            self._known = Position(number, id, seq)
            self._floor = max(self._floor, at)
        if new < limit and self._begun:
            self._last = self._known
        return [
            Commit(number, id, at, seq, due, decode(number, events))
            for number, id, at, seq, due, events in (rows[1:] if after.commit else rows)
        ]

    def _rows_from(self, after: Position, limit: int) -> list[Row]:
        if self._locked and self._tail_from is not None and self._tail_from <= after.commit:
            return [row for row in self._tail if row[0] >= after.commit][:limit]
        read = sql.READ.format(ns=self._ns, number=after.commit, limit=limit)
        found, closed = self._ask(f"{read}; {sql.CLOSED.format(ns=self._ns)}")
        self._refuse_closed(closed)
        return rows_of(found)

    def head(self) -> Head | None:
        last, clock, closed = self._ask(
            f"{sql.LAST.format(ns=self._ns)}; {sql.CLOCK}; {sql.CLOSED.format(ns=self._ns)}"
        )
        self._set_clock(clock)
        self._refuse_closed(closed)
        for number, _, at, _, due, _ in rows_of(last):
            return Head(number, at, due)
        return None

    def history(self, since_seq: int = 0) -> Iterator[tuple[int, int, Event]]:
        found = self._ask(sql.COMMIT_AFTER.format(ns=self._ns, seq=since_seq))[0]
        number = int(found.get_value(0, 0) or 1) if found.ntuples else 1
        while rows := self._history_from(number):
            for number, _, at, last_seq, _, text in rows:
                events = decode(number, text)
                for seq, event in enumerate(events, last_seq - len(events) + 1):
                    if seq > since_seq:
                        yield seq, at, event
            number += 1

    def _history_from(self, number: int) -> list[Row]:
        found = self._ask(sql.READ.format(ns=self._ns, number=number, limit=HISTORY_COMMITS))[0]
        return self._whole(rows_of(found))

    def _whole(self, rows: list[Row]) -> list[Row]:
        """Commits that follow one another, all as they were written; StoreError if they are not."""
        number = rows[0][0] if rows else 0
        for row in rows:
            if row[0] != number or not is_whole(*row):
                what = "is missing" if row[0] != number else "is not as it was written"
                raise StoreError(
                    f"the log of the store at {self._address.shown} is damaged (commit {number} {what}): run "
                    "`fleetgate doctor`, and restore a backup of the database"
                )
            number += 1
        return rows

    def side_value(self, table: str, key: str) -> bytes | None:
        literal = self._link.literal
        found = self._ask(sql.SIDE.format(ns=self._ns, table=literal(table), key=literal(key)))[0]
        return bytes_of(found.get_value(0, 0)) if found.ntuples else None

    def side_items(self, table: str) -> list[tuple[str, bytes]]:
        found = self._ask(sql.SIDE_ITEMS.format(ns=self._ns, table=self._link.literal(table)))[0]
        return [(text_of(found.get_value(row, 0)), bytes_of(found.get_value(row, 1))) for row in range(found.ntuples)]

    # Whether it is still the server that it was.

    def seems_replaced(self) -> bool:
        try:
            found = self._link.ask(sql.INCARNATION)[0]
        except (ConnectionLost, StatementRefused):
            return False  # a role that may not ask, or a server that is away: whoever knew the log finds out
        current = (found.get_value(0, 0) or b"") if found.ntuples else b""
        stored = self.side_value(*_INCARNATION)
        self._news = () if stored == current else (SideWrite(*_INCARNATION, bytes(current)),)
        return stored is not None and bool(self._news)

    # Beats.

    def beat(self, site: str, gap_ms: int = beating.GAP_MS) -> None:
        known = self._beats()
        rows = beating.rows_to_write(known, site, self.now(), gap_ms)
        # By the server's clock when it is written, which may be long after we looked at it.
        at = sql.CLOCK_BYTES if self._clock is None else f"'{self._clock()}'::bytea"
        literal = self._link.literal
        written = ", ".join(f"({self._ns}, {literal(beating.TABLE)}, {literal(row)}, {at})" for row in sorted(rows))
        old = [SideWrite(beating.TABLE, row, None) for row in beating.rows_to_forget(known, self.now())]
        beat = f"{sql.SET_SIDE.format(rows=written)}{side_writes(self._ns, old, literal)}"
        self._ask(f"BEGIN; {sql.NOT_SYNCED}{beat}COMMIT")

    def beats(self, gap_ms: int = beating.GAP_MS) -> dict[str, int]:
        return beating.silences(self._beats(), self.now(), gap_ms)

    def _beats(self) -> dict[str, int]:
        items = sql.SIDE_ITEMS.format(ns=self._ns, table=self._link.literal(beating.TABLE))
        found, clock = self._ask(f"{items}; {sql.CLOCK}")
        self._set_clock(clock)
        rows = range(found.ntuples)
        return {text_of(found.get_value(row, 0)): beating.read(bytes_of(found.get_value(row, 1))) for row in rows}

    # Writing.

    def try_lock(self) -> bool:
        self._check_free()
        self._holds = self._take(wait=False)
        return self._holds

    def lock(self) -> None:
        self._check_free()
        self._take(wait=True)
        self._holds = True

    def _check_free(self) -> None:
        if self._holds:
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
        self._serial = self._link.serial
        self._tail_from, self._last = None, None
        try:
            self._refuse_closed(locked)
            if int(locked.get_value(0, 0) or 0) != self._ns:
                self._link.drop()
                raise ConnectionLost("the namespace is another one")
        except BaseException:
            self._end()
            raise
        self._set_clock(clock)
        self._tail = rows_of(found)
        if known is None:
            self._last = position_of(self._tail[-1]) if self._tail else START
        elif len(self._tail) < TAIL_COMMITS:
            self._tail_from = known.commit
            self._last = position_of(self._tail[-1]) if self._tail else None
        return True

    def unlock(self) -> None:
        self.rollback()
        self._holds = False
        self._end()

    def lock_owner(self) -> int | None:
        if self._locked:
            return os.getpid()
        try:
            conn = connect(self._address)
        except (ConnectionLost, StoreError):
            return None
        try:
            name = escaping(conn)(self._address.namespace.encode()).decode()
            for (said,) in conn.execute(sql.OWNER.format(name=name)):
                pid, _, host = str(said).removeprefix("fleetgate ").partition("@")
                return int(pid) if pid.isdigit() and os.uname().nodename.startswith(host) else None
        except Exception:
            return None
        finally:
            conn.close()
        return None

    def begin(self, *, durable: bool = False) -> None:
        if not self._holds or self._begun:
            raise InternalError("a transaction needs the write lock, and is not begun twice")
        if not self._locked:  # the second under one lock: the first has let go of the row
            self._take(wait=True)
        self._begun = True
        self._durable, self._notice, self._meanwhile = durable, "", None

    def now(self) -> int:
        now = self._clock() if self._clock is not None else clocks.boot_ms() + self._offset
        self._floor = max(self._floor, now)
        return self._floor

    def append(
        self, after: Position, at: int, events: Sequence[Event], due: int | None, side: Sequence[SideWrite] = ()
    ) -> Position:
        if not self._begun:
            raise InternalError("append needs a transaction")
        try:
            if not self._locked:
                raise self._transaction_lost()
            self._check_last(after)
            number, seq, encoded = after.commit + 1, after.seq + len(events), encode(events)
            position = Position(number, new_id(number, at, seq, due, encoded), seq)
            synced = self._durable or any(_lends(event) for event in events)
            self._commit(self._commit_of(position, at, encoded, due, (*side, *self._news), synced), position)
        except BaseException:
            self._begun = False
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
        beside = side_writes(self._ns, side, self._link.literal) if side else ""
        return f"{add}{beside}{sql.NOT_SYNCED}COMMIT{tell}{sync}"

    def _commit(self, statements: str, position: Position) -> None:
        self._begun = False
        try:
            results = self._link.ask(statements, on=self._serial, meanwhile=self._meanwhile)
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
                raise self._transaction_lost() from lost
            if self._notice:
                self.notify(self._notice)
            return
        self._serial = 0
        # A transaction that had failed answers COMMIT with ROLLBACK.
        if any(result.command_status == b"ROLLBACK" for result in results):
            raise self._transaction_lost()

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
        if self._begun:
            self._begun = False
            self._end()

    def _end(self) -> None:
        """Leave the transaction on the connection, if there is one."""
        self._serial = 0
        self._tail_from, self._last = None, None
        if self._link.alive and self._link.in_transaction:
            try:
                self._link.ask("ROLLBACK")
            except (ConnectionLost, StatementRefused):
                self._link.drop()  # which ends it as well

    def _check_last(self, after: Position) -> None:
        if self._last is None:
            rows = rows_of(self._ask(sql.LAST.format(ns=self._ns))[0])
            self._last = position_of(rows[-1]) if rows else START
        if self._last != after:
            raise LogReplaced(f"commit {after.commit} with id {after.id} is not the last of the log")

    # Upkeep.

    def snapshot(self) -> Stored | None:
        for offset in range(2):
            found = self._ask_with(sql.SNAPSHOT.format(ns=self._ns, offset=offset), ())
            if not found.ntuples:
                break
            number, id, seq, checksum, data = (found.get_value(0, column) or b"" for column in range(5))
            if crc32(data) == int.from_bytes(checksum, "big"):
                return Stored(data, Position(int.from_bytes(number, "big"), id.decode(), int.from_bytes(seq, "big")))
        first = self._ask(sql.FIRST.format(ns=self._ns))[0]
        if first.ntuples and int(first.get_value(0, 0) or 0) > 1:
            raise StoreError(
                f"no snapshot of the store at {self._address.shown} can be read, and the log before commit "
                f"{int(first.get_value(0, 0) or 0)} was pruned: restore a backup of the database"
            )
        return None

    def save_snapshot(self, data: bytes, position: Position) -> None:
        save = sql.SAVE.format(
            ns=self._ns,
            checksum=crc32(data),
            number=position.commit,
            id=self._link.literal(position.id),
            seq=position.seq,
        )
        if not self._ask_with(save, (data,)).ntuples:
            raise LogReplaced(f"a snapshot of commit {position.commit} with id {position.id} is not of this log")
        self._ask(sql.KEEP_TWO.format(ns=self._ns))

    def maintain(self, keep_ms: int, most_bytes: int = KEEP_BYTES) -> bool:
        horizon = self.now() - keep_ms
        first, older = self._ask(f"{sql.FIRST.format(ns=self._ns)}; {sql.OLDER_SNAPSHOT.format(ns=self._ns)}")
        if not first.ntuples or not older.ntuples:
            return False
        number = int(first.get_value(0, 0) or 0)
        end = min(int(older.get_value(0, 0) or 0), number + PRUNE_COMMITS)
        if end <= number:
            return False
        kept_since, sample = (
            statement.format(ns=self._ns, first=number, end=end, horizon=horizon, samples=SAMPLES)
            for statement in (sql.KEPT_SINCE, sql.SAMPLE)
        )
        kept, sampled = self._ask(f"{kept_since}; {sample}")
        old = int(kept.get_value(0, 0) or 0) if kept.ntuples else end
        commits, mean = (int(sampled.get_value(0, column) or 0) for column in range(2))
        surplus = commits - most_bytes // (mean + ROW_BYTES)
        old = max(old, min(number + surplus, end))
        if old > number:
            self._ask(sql.PRUNE.format(ns=self._ns, end=old))
        return old > number

    def close(self) -> None:
        self._begun = self._holds = False
        self._end()
        self._link.close()

    # Round trips that may be made twice.

    def _ask(self, statements: str) -> list[PGresult]:
        return self._again(lambda: self._link.ask(statements))

    def _ask_with(self, statement: str, values: Sequence[bytes]) -> PGresult:
        return self._again(lambda: self._link.ask_with(statement, values, binary=True))

    def _again(self, ask: Callable[[], T]) -> T:
        in_transaction = self._serial != 0
        tries = Tries(self._address)
        while True:
            try:
                if in_transaction and not self._locked:
                    raise ConnectionLost("the connection is another one")
                return ask()
            except ConnectionLost as lost:
                if in_transaction:
                    self._serial = 0
                    raise self._transaction_lost() from lost
                tries.again(lost)
            except StatementRefused as refused:
                raise explain(self._address, refused) from refused

    def _transaction_lost(self) -> TransactionLost:
        return TransactionLost(
            f"the connection to the store at {self._address.shown} was lost in a decision: nothing of it happened; "
            "try again"
        )

    def _set_clock(self, found: PGresult) -> None:
        self._offset = int(found.get_value(0, 0) or 0) - clocks.boot_ms()


def _lends(event: Event) -> bool:
    """Whether somebody uses a slot because of this event. A grant that waits to be claimed is not used yet."""
    return isinstance(event, Claimed) or (isinstance(event, Granted) and event.claimed)
