"""A log that fails, and processes that die, at a chosen step of a transaction.

`FaultyLog` stands between a decider and its log and counts the steps that pass. At the chosen one it either raises
(the store failed, or Ctrl-C came, and the process goes on) or kills: then nothing of the process runs any more, its
`finally` blocks included, and every later call raises `Killed`. On PostgreSQL a step is also each round trip, before it
is made and after: a failure there is a connection that is lost, and the log finds out whether the server did it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from fleetgate.core.events import Event
from fleetgate.log.host_beats import GAP_MS
from fleetgate.log.postgres import PostgresLog
from fleetgate.log.postgres.connection import ConnectionLost
from fleetgate.log.protocol import KEEP_BYTES, Commit, Head, Log, Position, SideWrite, Stored, StoreError
from fleetgate.log.sqlite.log import SqliteLog

KILL, ERROR, INTERRUPT = "kill", "error", "interrupt"
KINDS = (KILL, ERROR, INTERRUPT)

# Where only death can come. A log that raises from `lock` does not have it, one that raises from `unlock` has let
# go; and sending a wake-up never raises.
_ONLY_DEATH = {"locked", "unlock", "wake", "close"}


class Killed(BaseException):
    """The process was killed with -9 here."""


class Appended(NamedTuple):
    """What a decider wanted to commit."""

    events: list[Event]
    side: list[SideWrite]


class FaultyLog:
    """A log with a fault in it. `arm(n)` makes the n-th step from now fail, counted from 0."""

    def __init__(self, inner: Log) -> None:
        self.inner = inner
        self.dead = False
        self.steps: list[str] = []  # passed since it was armed
        self.appended: Appended | None = None  # the last attempt since it was armed
        self.failed_at = ""  # the step at which the fault struck
        self._left: int | None = None
        self._kind = KILL
        self._at = ""
        if isinstance(inner, SqliteLog):
            _look_inside(inner, self)
        if isinstance(inner, PostgresLog):
            _look_at_trips(inner, self)

    def __repr__(self) -> str:
        return f"FaultyLog({self.inner!r}, {self._left} steps left)"

    def arm(self, after: int | None = None, kind: str = KILL, *, at: str = "") -> None:
        """Fail at the n-th step from now, or at the first of this name; without either, never."""
        self.steps, self.appended, self.failed_at = [], None, ""
        self._left, self._kind, self._at = after, kind, at

    def step(self, name: str) -> None:
        """A step begins, or has just ended."""
        if self.dead:
            raise Killed
        self.steps.append(name)
        if self._left is not None:
            self._left -= 1
        struck = name == self._at if self._left is None else self._left < 0
        if not struck or (self._kind != KILL and name in _ONLY_DEATH):
            return
        self._left, self._at, self.failed_at = None, "", name
        if self._kind == KILL:
            self.dead = True
            raise Killed
        if self._kind == INTERRUPT:
            raise KeyboardInterrupt
        if name.startswith("sql"):
            error = sqlite3.OperationalError(f"injected at {name}")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise error
        if name.startswith("trip"):
            raise ConnectionLost(f"injected at {name}")
        raise StoreError(f"injected at {name}")

    @property
    def is_shared(self) -> bool:
        return False  # its steps are those of one process that decides directly

    @property
    def upkept_by_node(self) -> bool:
        return False

    def connect(self) -> Log:
        return self.inner.connect()

    # Reading.

    def snapshot(self) -> Stored | None:
        self.step("snapshot")
        return self.inner.snapshot()

    def read(self, after: Position, limit: int = 10_000) -> list[Commit]:
        self.step("read")
        commits = self.inner.read(after, limit)
        self.step("was read")
        return commits

    def head(self) -> Head | None:
        self.step("head")
        return self.inner.head()

    def history(self, since_seq: int = 0) -> Iterator[tuple[int, int, Event]]:
        self.step("history")
        return self.inner.history(since_seq)

    def side_value(self, table: str, key: str) -> bytes | None:
        self.step("side")
        return self.inner.side_value(table, key)

    def side_items(self, table: str, low: str = "", high: str = "") -> list[tuple[str, bytes]]:
        self.step("side items")
        return self.inner.side_items(table, low, high)

    def seems_replaced(self) -> bool:
        return self.inner.seems_replaced()

    # Writing.

    def try_lock(self) -> bool:
        self.step("lock")
        got = self.inner.try_lock()
        self.step("locked")
        return got

    def lock(self) -> None:
        self.step("lock")
        self.inner.lock()
        self.step("locked")

    def unlock(self) -> None:
        self.step("unlock")
        self.inner.unlock()
        self.step("unlocked")

    def lock_owner(self) -> int | None:
        return self.inner.lock_owner()

    def begin(self, *, durable: bool = False) -> None:
        self.step("begin")
        self.inner.begin(durable=durable)
        self.step("begun")

    def now(self) -> int:
        self.step("now")
        return self.inner.now()

    def append(
        self, after: Position, at: int, events: Sequence[Event], due: int | None, side: Sequence[SideWrite] = ()
    ) -> Position:
        self.step("append")
        self.appended = Appended(list(events), list(side))
        position = self.inner.append(after, at, events, due, side)
        self.step("appended")
        return position

    def rollback(self) -> None:
        self.step("rollback")
        self.inner.rollback()

    # Beats.

    def beat(self, site: str, gap_ms: int = GAP_MS) -> None:
        self.step("beat")
        self.inner.beat(site, gap_ms)

    def beats(self, gap_ms: int = GAP_MS) -> dict[str, int]:
        self.step("beats")
        return self.inner.beats(gap_ms)

    # Upkeep.

    def save_snapshot(self, data: bytes, position: Position) -> None:
        self.step("save")
        self.inner.save_snapshot(data, position)
        self.step("saved")

    def maintain(self, keep_ms: int, most_bytes: int = KEEP_BYTES) -> bool:
        self.step("maintain")
        more = self.inner.maintain(keep_ms, most_bytes)
        self.step("maintained")
        return more

    def forget_side_items(self, table: str, before: str) -> bool:
        self.step("forget side items")
        return self.inner.forget_side_items(table, before)

    def close(self) -> None:
        self.step("close")
        self.inner.close()

    def bury(self) -> None:
        """What the system does after a process: its transaction never happened, its files and locks are let go."""
        self.dead = False
        self.arm()
        self.inner.close()


class _Connection:
    """A SQLite connection that passes through the faulty log's steps at each statement that writes."""

    def __init__(self, inner: sqlite3.Connection, faults: FaultyLog) -> None:
        self._inner = inner
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def execute(self, sql: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        word = sql.split(None, 1)[0]
        if self._faults.dead:
            raise Killed
        if word not in ("INSERT", "DELETE", "COMMIT", "BEGIN"):
            return self._inner.execute(sql, values)
        self._faults.step(f"sql {word}")
        cursor = self._inner.execute(sql, values)
        if word == "COMMIT":
            self._faults.step("sql COMMITTED")
        return cursor


def _look_inside(log: SqliteLog, faults: FaultyLog) -> None:
    """Let the steps inside of one append or save fail, too; also after the log has opened its files anew."""
    db: Any = log._db
    connect = db._connect
    db._connect = lambda *args: _Connection(connect(*args), faults)
    db.conn = _Connection(db.conn, faults)
    upkeep: Any = log._upkeep
    point = upkeep.point_to_snapshot

    def point_to_snapshot(position: Position, checksum: int) -> int | None:
        faults.step("between file and pointer")
        found: int | None = point(position, checksum)
        return found

    upkeep.point_to_snapshot = point_to_snapshot


def _look_at_trips(log: PostgresLog, faults: FaultyLog) -> None:
    """Let every round trip fail, before it is made and after; the connection is gone then."""
    link: Any = log._link
    ask = link.ask

    def faulty(sql: str, *, on: int = 0, meanwhile: Any = None) -> Any:
        if faults.dead:
            raise Killed
        try:
            faults.step("trip")
            results = ask(sql, on=on, meanwhile=meanwhile)
            faults.step("trip COMMITTED" if sql.startswith("INSERT INTO fleetgate.log") else "trip made")
        except (ConnectionLost, KeyboardInterrupt):
            link.drop()
            raise
        return results

    link.ask = faulty
