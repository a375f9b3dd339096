"""The ordered log: one small protocol, several stores (memory, SQLite, PostgreSQL).

A log is a sequence of commits. A commit has a dense number, a random id and a dense run of events. Whoever
decides holds the write lock from before it reads the last commit until its own is in; so decisions are made
one after another, whichever process makes them.

The random id is how a replaced log is noticed: a process remembers the id at its own last commit, and if the
log has another id there, it is not the log this process knows (a restored backup, a failover). Every read
that starts from a position checks it, and raises LogReplaced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

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
    """The log is not the one that this process knows: load it anew."""


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
    """The gate is elsewhere now, and will not come back by itself. Made of its sentence, as it goes over a socket."""

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
    """What a log that many machines share is told by those on the others."""

    def fileno(self) -> int:
        """To select on."""

    def drain(self) -> list[str]:
        """What was told since, without waiting; "*" when something may have been missed."""

    def close(self) -> None:
        """Stop listening."""


class Log(Protocol):
    """Synchronous. One object belongs to one decider; calls must not overlap, and not cross a fork."""

    @property
    def remote(self) -> bool:
        """Whether it is shared by many machines: each call may take long, and holders may be anywhere.

        Such a log has `tell(text)`, which wakes those who `listen()` on other machines (log/postgres/listener.py), and
        `hurry()`, after which the calling thread never waits long for a read.
        """

    @property
    def tended(self) -> bool:
        """Whether the node of this host sees to its upkeep."""

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

    def side(self, table: str, key: str) -> bytes | None:
        """A value beside the log."""

    def side_items(self, table: str) -> list[tuple[str, bytes]]:
        """All values of a table beside the log, by key."""

    def replaced(self) -> bool:
        """Whether commits may be missing that somebody here has seen, though this log has never been read before.

        A hint: False until the next opening, once something was appended.
        """

    # Writing: lock, begin, append or rollback, unlock.
    def try_lock(self) -> bool:
        """Take the write lock if nobody has it."""

    def lock(self) -> None:
        """Wait for the write lock, first come first served."""

    def unlock(self) -> None:
        """Let go of the write lock, if it is held; a transaction under way is rolled back."""

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

    def close(self) -> None:
        """Let go of everything; what was not committed never happened. Closing twice is fine."""
