"""Checks that the commits that were read are the log that this process knows, and the events in them.

For the logs that keep a commit as a row: SQLite and PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from fleetgate.core.events import Event
from fleetgate.log.checksum import is_whole
from fleetgate.log.event_codec import decode
from fleetgate.log.protocol import Commit, Head, LogReplaced, Position, StoreError

Row = tuple[int, str, int, int, int | None, str]  # of the log: number, id, time, seq, due, events


def position_of(row: Row) -> Position:
    return Position(row[0], row[1], row[3])


def head_of(rows: list[Row]) -> Head | None:
    """What the last commit says, which is the only one of these rows."""
    for number, _, at, _, due, _ in rows:
        return Head(number, at, due)
    return None


def check_rows(rows: list[Row], damaged: Callable[[str], StoreError]) -> list[Row]:
    """The rows, if they follow one another and each is as it was written; otherwise what `damaged` makes of it."""
    number = rows[0][0] if rows else 0
    for row in rows:
        if not is_whole(*row):
            raise damaged(f"commit {row[0]!r} is not as it was written")
        if row[0] != number:
            raise damaged(f"commit {number} is missing")
        number += 1
    return rows


def rows_after(rows: list[Row], after: Position) -> list[Row]:
    """The rows behind a position, of rows that begin with its own; LogReplaced if the log does not have it."""
    if after.commit:
        if not rows or rows[0][0] != after.commit or rows[0][1] != after.id or rows[0][3] != after.seq:
            raise LogReplaced(f"the log does not have commit {after.commit} with id {after.id}")
        return rows[1:]
    if rows and rows[0][0] != 1:
        raise pruned(rows[0][0])
    return rows


def pruned(first: int) -> LogReplaced:
    """The error for a reader that begins at START while the log no longer does."""
    return LogReplaced(f"the log begins with commit {first}: load its snapshot")


def check_last(last: Position, after: Position) -> None:
    """LogReplaced if `after` is not the last commit, behind which the next one goes."""
    if last != after:
        raise LogReplaced(f"commit {after.commit} with id {after.id} is not the last of the log")


def commits_of(rows: Sequence[Row]) -> list[Commit]:
    return [Commit(number, id, at, seq, due, decode(number, events)) for number, id, at, seq, due, events in rows]


def history(read: Callable[[int], list[Row]], number: int, since_seq: int) -> Iterator[tuple[int, int, Event]]:
    """(seq, at, event) of every event after `since_seq`. `read` returns some rows from a commit's number on."""
    while rows := read(number):
        for number, _, at, last_seq, _, text in rows:
            yield from events_of(number, at, last_seq, text, since_seq)
        number += 1


def events_of(
    number: int, at: int, last_seq: int, text: str | bytes, since_seq: int
) -> Iterator[tuple[int, int, Event]]:
    """The same for one commit."""
    events = decode(number, text)
    for seq, event in enumerate(events, last_seq - len(events) + 1):
        if seq > since_seq:
            yield seq, at, event
