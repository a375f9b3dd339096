"""The ordered log: one small protocol, several stores (memory, SQLite, PostgreSQL).

A log is a sequence of commits. A commit has a dense number, a random id and a dense run of events. A
process that decides holds the write lock from before it reads the last commit until its own is in; so decisions are
made one after another, across all processes.

The random id is how a replaced log is noticed: a process remembers the id at its own last commit, and if the
log has another id there, it is not the log this process knows (a restored backup, a failover). Every read
that starts from a position checks it, and raises LogReplaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, cast

from fleetgate.core.errors import FleetgateError
from fleetgate.core.events import Event
from fleetgate.log.host_beats import GAP_MS


class Position(NamedTuple):
    """How far a process has read: the number and id of a commit, and the sequence number of its last event."""

    commit: int
    id: str
    seq: int


START = Position(0, "", 0)
KEEP_BYTES = 256 << 20  # of commits
ROW_BYTES = 80  # what a commit takes beside its events, about
SAMPLES = 100  # commits that are looked at to tell how much all of them take
_MOVED, _DO = " was moved to ", ": set FLEETGATE_STORE to it (with the password, if it needs one)"


class Commit(NamedTuple):
    """What one transaction did. `due` is when the next deadline is, as far as its writer knew."""

    number: int
    id: str
    at: int
    seq: int  # of the last event; the first is seq - len(events) + 1
    due: int | None
    events: list[Event]

    @property
    def position(self) -> Position:
        return Position(self.number, self.id, self.seq)


class Head(NamedTuple):
    """The log's newest commit, without its events."""

    commit: int
    at: int
    due: int | None


class Stored(NamedTuple):
    """A snapshot as it was saved: the encoded state, and the position that it stands for."""

    data: bytes
    position: Position


class SideWrite(NamedTuple):
    """A value beside the log that changes with a commit; None deletes it."""

    table: str
    key: str
    value: bytes | None


class LogReplaced(Exception):
    """The log is not the one that this process knows: load it again."""


class StoreError(FleetgateError):
    """The store cannot be used; the sentence says why and what to do."""


_STARTING = ("starting up", "shutting down", "recovery mode", "not yet accepting")


class StoreAway(StoreError):
    """The store cannot be reached now, and may be in a moment: its server is restarted, or the network is disturbed."""

    @property
    def is_starting(self) -> bool:
        """Whether a server says so itself."""
        return any(word in str(self) for word in _STARTING)


class StoreMoved(StoreError):
    """The gate is elsewhere now, and will not come back. Made of its sentence, as it goes over a socket."""

    @classmethod
    def away(cls, place: str, to: str) -> StoreMoved:
        """For the gate of a place, which is at a URL now."""
        return cls(f"the gate of {place}{_MOVED}{to}{_DO}")

    @property
    def to(self) -> str:
        """The URL of the store, without a password."""
        return str(self).partition(_MOVED)[2].partition(_DO)[0]


class TransactionLost(StoreAway):
    """The transaction is over and nothing of it was committed; the log is the one that it was: decide again."""


class Listener(Protocol):
    """The notices that processes on other machines send through a shared log."""

    def fileno(self) -> int:
        """A descriptor to select on."""

    def drain(self) -> list[str]:
        """The notices since the last call, without waiting; "*" when some may have been missed."""

    def close(self) -> None:
        """Stop listening."""


class Log(Protocol):
    """Synchronous. One object belongs to one decider; calls must not overlap, and not cross a fork."""

    @property
    def is_shared(self) -> bool:
        """Whether many machines share it: each call may take long, and holders may be on any of them.

        Such a log is a SharedLog; ask for it with `shared(log)`.
        """

    @property
    def upkept_by_node(self) -> bool:
        """Whether the node of this host does the upkeep of the store."""

    def connect(self) -> Log:
        """Another log on the same store, for another thread."""

    # Reading, at any time, without the lock.
    def snapshot(self) -> Stored | None:
        """The newest snapshot that is whole; None if there is none and the log can be read from START.

        StoreError if there is none and the log was pruned.
        """

    def read(self, after: Position, limit: int = 10_000) -> list[Commit]:
        """The commits after a position, oldest first; LogReplaced if the log does not know the position.

        START is not known to a log that was pruned: begin with its snapshot.
        """

    def head(self) -> Head | None:
        """One row, for waiters' backstop polls; None while the log is empty."""

    def history(self, since_seq: int = 0) -> Iterator[tuple[int, int, Event]]:
        """(seq, at, event) of everything after `since_seq` that has not been pruned, oldest first."""

    def side_value(self, table: str, key: str) -> bytes | None:
        """A value beside the log."""

    def side_items(self, table: str, low: str = "", high: str = "") -> list[tuple[str, bytes]]:
        """The values of a table beside the log, in the order of their keys: from `low` on and, if given, before `high`.

        Keys compare by their characters.
        """

    def seems_replaced(self) -> bool:
        """Whether commits may be missing that a process here has seen, though this log has never been read before.

        A hint: False until the next opening, once something was appended.
        """

    # Writing: lock, begin, append or rollback, unlock.
    def try_lock(self) -> bool:
        """Take the write lock if it is free."""

    def lock(self) -> None:
        """Wait for the write lock, first come first served."""

    def unlock(self) -> None:
        """Release the write lock, if it is held; an open transaction is rolled back."""

    def lock_owner(self) -> int | None:
        """The pid that seems to hold the write lock, for messages about a wait that lasts.

        May be called while `lock` waits in another thread.
        """

    def begin(self, *, durable: bool = False) -> None:
        """Start a transaction; with `durable` its commit is on disk when append returns."""

    def now(self) -> int:
        """The log's time in ms, at any time.

        Never goes backwards here, and is never before a commit that was read; so inside a transaction call it after
        read.
        """

    def append(
        self, after: Position, at: int, events: Sequence[Event], due: int | None, side: Sequence[SideWrite] = ()
    ) -> Position:
        """Add a commit behind `after` and commit the transaction. No events is fine: only `due` or `side` changes.

        LogReplaced if `after` is not the last commit. Whatever it raises, nothing was committed and the transaction
        is over.
        """

    def rollback(self) -> None:
        """Leave the transaction, if there is one; nothing happened."""

    # Beats: who is there. Without the lock, and in no commit.
    def beat(self, site: str, gap_ms: int = GAP_MS) -> None:
        """This host (a site: host, boot and pid namespace) is there now, by the store's clock."""

    def beats(self, gap_ms: int = GAP_MS) -> dict[str, int]:
        """For how long each host was silent while the store answered, in ms. See log/host_beats.py."""

    # Upkeep, outside the lock.
    def save_snapshot(self, data: bytes, position: Position) -> None:
        """Keep the snapshot of a commit and the newest other; LogReplaced if the log does not know the position."""

    def maintain(self, keep_ms: int, most_bytes: int = KEEP_BYTES) -> bool:
        """Checkpoint, prune, and give space back; whether there is more to do at once.

        Commits are pruned that are older than `keep_ms`, and the oldest while all take more than about `most_bytes`;
        never what the two snapshots that are kept need. Cheap when there is nothing to do, and short otherwise.
        """

    def forget_side_items(self, table: str, before: str) -> bool:
        """Delete some values of a table whose keys are before this one; whether there is more to do at once.

        It is part of no commit: only for values that are no longer kept.
        """

    def close(self) -> None:
        """Release everything; an open transaction is rolled back. Closing twice is harmless."""


class SharedLog(Log, Protocol):
    """A log that many machines share. What it adds to a log: notices between machines, and reads that do not wait."""

    @property
    def is_behind(self) -> bool:
        """Whether the write lock is held here and more was committed than was read with the lock."""

    def listen(self) -> Listener:
        """Receive the notices of other machines; close the listener."""

    def notify(self, text: str) -> None:
        """Send a notice to all that listen. Never raises: a notice is only a hint."""

    def notify_with_commit(self, text: str, meanwhile: Callable[[], None]) -> None:
        """Send a notice in the round trip of this transaction's commit, and only if the commit is made.

        `meanwhile` is called after the commit was sent and before its answer comes, if the connection allows it.
        """

    def fail_fast(self) -> None:
        """From now on a read by the calling thread fails at once while the server is away, instead of waiting.

        For the thread of an event loop.
        """


def shared(log: Log) -> SharedLog | None:
    """The log with what a shared log adds; None for a log that one machine has to itself."""
    return cast(SharedLog, log) if log.is_shared else None
