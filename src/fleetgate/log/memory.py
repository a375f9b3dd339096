"""The log in memory: for the library without a store, for simulations and for tests.

Several deciders share one store through `connect()`, as several processes share a database; they may be in
several threads. Events are kept encoded, as in a database: no decider ever sees another's objects, and what
does not survive being written down fails here first.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fleetgate.core.errors import InternalError
from fleetgate.core.events import Event
from fleetgate.log import clock as clocks
from fleetgate.log import host_beats as beating
from fleetgate.log.checksum import new_id
from fleetgate.log.continuity import check_last, events_of, pruned
from fleetgate.log.event_codec import decode, encode
from fleetgate.log.protocol import KEEP_BYTES, ROW_BYTES, START, Commit, Head, LogReplaced, Position, SideWrite, Stored


class _Row(NamedTuple):
    number: int
    id: str
    at: int
    seq: int
    due: int | None
    events: bytes

    @property
    def position(self) -> Position:
        return Position(self.number, self.id, self.seq)


class FairLock:
    """A lock whose waiters get it in the order in which they came. Any thread may release it."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._waiters: deque[threading.Lock] = deque()
        self.held = False

    def acquire(self, *, wait: bool) -> bool:
        with self._mutex:
            if not self.held:
                self.held = True
                return True
            if not wait:
                return False
            turn = threading.Lock()
            turn.acquire()
            self._waiters.append(turn)
        try:
            turn.acquire()
        except BaseException:
            self._give_up(turn)
            raise
        return True

    def release(self) -> None:
        with self._mutex:
            if self._waiters:
                self._waiters.popleft().release()
            else:
                self.held = False

    def _give_up(self, turn: threading.Lock) -> None:
        with self._mutex:
            if turn in self._waiters:
                self._waiters.remove(turn)
                return
        self.release()  # the turn had come when the wait was interrupted


class MemoryStore:
    """What the logs of one `connect()` family share."""

    def __init__(self, clock: clocks.Clock) -> None:
        self.clock = clock
        self.lock = FairLock()
        self.mutex = threading.Lock()  # around every look at, and change of, what follows
        self.first = 1  # the number of rows[0]; rises when the log is pruned
        self.rows: list[_Row] = []
        self.bytes = 0  # that they take, about
        self.tables: dict[str, dict[str, bytes]] = {}
        self.snapshots: list[Stored] = []  # oldest first, at most two
        self.beats: dict[str, int] = {}


class MemoryLog:
    """One decider's view of a store in memory. `clock` is for tests: the log's time in ms."""

    is_shared = False
    upkept_by_node = False

    def __init__(self, clock: clocks.Clock | None = None, *, store: MemoryStore | None = None) -> None:
        if clock is None:
            clock = clocks.anchored(clocks.choose_offset(0, clocks.wall_ms(), clocks.boot_ms()))
        self.store = store or MemoryStore(clock)
        self._floor = 0
        self._holds = False
        self._begun = False

    def connect(self) -> MemoryLog:
        """Another decider's view of the same store."""
        return MemoryLog(self.store.clock, store=self.store)

    def __repr__(self) -> str:
        return f"MemoryLog({len(self.store.rows)} commits{', holding the write lock' if self._holds else ''})"

    # Reading.

    def read(self, after: Position, limit: int = 10_000) -> list[Commit]:
        store = self.store
        with store.mutex:
            self._check_known(after)
            start = after.commit + 1 - store.first
            rows = store.rows[start : start + limit]
            if store.rows:
                self._floor = max(self._floor, store.rows[-1].at)
        return [Commit(*row[:5], decode(row.number, row.events)) for row in rows]

    def head(self) -> Head | None:
        with self.store.mutex:
            last = self.store.rows[-1] if self.store.rows else None
        return Head(last.number, last.at, last.due) if last else None

    def history(self, since_seq: int = 0) -> Iterator[tuple[int, int, Event]]:
        with self.store.mutex:
            rows = list(self.store.rows)
        for row in rows:
            if row.seq > since_seq:
                yield from events_of(row.number, row.at, row.seq, row.events, since_seq)

    def side_value(self, table: str, key: str) -> bytes | None:
        with self.store.mutex:
            return self.store.tables.get(table, {}).get(key)

    def side_items(self, table: str, low: str = "", high: str = "") -> list[tuple[str, bytes]]:
        with self.store.mutex:
            items = sorted(self.store.tables.get(table, {}).items())
        return [item for item in items if item[0] >= low and (not high or item[0] < high)]

    def seems_replaced(self) -> bool:
        return False  # a store in memory is not restored before its first use

    def _check_known(self, position: Position) -> None:
        store = self.store
        if position.commit == 0:
            if store.first > 1:
                raise pruned(store.first)
            return
        index = position.commit - store.first
        if not 0 <= index < len(store.rows) or store.rows[index].position != position:
            raise LogReplaced(f"the log does not have commit {position.commit} with id {position.id}")

    # Writing.

    def try_lock(self) -> bool:
        return self._take(wait=False)

    def lock(self) -> None:
        self._take(wait=True)

    def _take(self, *, wait: bool) -> bool:
        if self._holds:
            raise InternalError("the write lock is already held here")
        self._holds = self.store.lock.acquire(wait=wait)
        return self._holds

    def unlock(self) -> None:
        self.rollback()
        if self._holds:
            self._holds = False
            self.store.lock.release()

    def lock_owner(self) -> int | None:
        return os.getpid() if self.store.lock.held else None

    def begin(self, *, durable: bool = False) -> None:
        if not self._holds or self._begun:
            raise InternalError("a transaction needs the write lock, and is not begun twice")
        self._begun = True

    def now(self) -> int:
        self._floor = max(self._floor, self.store.clock())
        return self._floor

    def append(
        self, after: Position, at: int, events: Sequence[Event], due: int | None, side: Sequence[SideWrite] = ()
    ) -> Position:
        if not self._begun:
            raise InternalError("append needs a transaction")
        self._begun = False
        encoded = encode(events)
        store = self.store
        with store.mutex:
            check_last(store.rows[-1].position if store.rows else START, after)
            number, seq = after.commit + 1, after.seq + len(events)
            row = _Row(number, new_id(number, at, seq, due, encoded), at, seq, due, encoded)
            store.rows.append(row)
            store.bytes += len(encoded) + ROW_BYTES
            for write in side:
                table = store.tables.setdefault(write.table, {})
                if write.value is None:
                    table.pop(write.key, None)
                else:
                    table[write.key] = write.value
        self._floor = max(self._floor, at)
        return row.position

    def rollback(self) -> None:
        self._begun = False

    # Beats.

    def beat(self, site: str, gap_ms: int = beating.GAP_MS) -> None:
        now = self.now()
        with self.store.mutex:
            known = self.store.beats
            known.update(beating.rows_to_write(known, site, now, gap_ms))
            for old in beating.rows_to_forget(known, now):
                del known[old]

    def beats(self, gap_ms: int = beating.GAP_MS) -> dict[str, int]:
        now = self.now()
        with self.store.mutex:
            return beating.silences(self.store.beats, now, gap_ms)

    # Upkeep.

    def snapshot(self) -> Stored | None:
        with self.store.mutex:
            return self.store.snapshots[-1] if self.store.snapshots else None

    def save_snapshot(self, data: bytes, position: Position) -> None:
        store = self.store
        with store.mutex:
            if position.commit == 0:
                raise LogReplaced("a snapshot of an empty log is not kept")
            self._check_known(position)
            others = [stored for stored in store.snapshots if stored.position != position]
            kept = sorted([*others, Stored(data, position)], key=lambda stored: stored.position.commit)
            store.snapshots = kept[-2:]

    def maintain(self, keep_ms: int, most_bytes: int = KEEP_BYTES) -> bool:
        horizon = self.now() - keep_ms
        store = self.store
        with store.mutex:
            if len(store.snapshots) < 2:
                return False
            behind = store.snapshots[0].position.commit - store.first
            old = 0
            while old < behind and (store.rows[old].at < horizon or store.bytes > most_bytes):
                store.bytes -= len(store.rows[old].events) + ROW_BYTES
                old += 1
            del store.rows[:old]
            store.first += old
            return False

    def forget_side_items(self, table: str, before: str) -> bool:
        with self.store.mutex:
            values = self.store.tables.get(table, {})
            for key in [key for key in values if key < before]:
                del values[key]
        return False

    def close(self) -> None:
        """Also the end of a killed process: its transaction never happened, and its lock is free."""
        self.unlock()
