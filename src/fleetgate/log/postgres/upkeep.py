"""Upkeep of a PostgreSQL store: snapshots, and the pruning of old commits."""

from __future__ import annotations

from zlib import crc32

from fleetgate.log.postgres import sql as sql
from fleetgate.log.postgres.session import Session
from fleetgate.log.protocol import ROW_BYTES, SAMPLES, LogReplaced, Position, Stored, StoreError

PRUNE_COMMITS = 2_000


def newest_snapshot(session: Session) -> Stored | None:
    """The newest snapshot that is whole; StoreError if there is none and the log was pruned."""
    ns = session.namespace
    for offset in range(2):
        found = session.ask_with(sql.SNAPSHOT.format(ns=ns, offset=offset), ())
        if not found.ntuples:
            break
        number, id, seq, checksum, data = (found.get_value(0, column) or b"" for column in range(5))
        if crc32(data) == int.from_bytes(checksum, "big"):
            return Stored(data, Position(int.from_bytes(number, "big"), id.decode(), int.from_bytes(seq, "big")))
    first = session.ask(sql.FIRST.format(ns=ns))[0]
    if first.ntuples and int(first.get_value(0, 0) or 0) > 1:
        raise StoreError(
            f"no snapshot of the store at {session.address.shown} can be read, and the log before commit "
            f"{int(first.get_value(0, 0) or 0)} was pruned: restore a backup of the database"
        )
    return None


def save_snapshot(session: Session, data: bytes, position: Position) -> None:
    """Keep the snapshot of a commit and the newest other one."""
    save = sql.SAVE.format(
        ns=session.namespace,
        checksum=crc32(data),
        number=position.commit,
        id=session.connection.literal(position.id),
        seq=position.seq,
    )
    if not session.ask_with(save, (data,)).ntuples:
        raise LogReplaced(f"a snapshot of commit {position.commit} with id {position.id} is not of this log")
    session.ask(sql.KEEP_TWO.format(ns=session.namespace))


def prune(session: Session, horizon: int, most_bytes: int) -> bool:
    """Prune some commits that are older than `horizon` or too many; whether there were any."""
    ns = session.namespace
    first, older = session.ask(f"{sql.FIRST.format(ns=ns)}; {sql.OLDER_SNAPSHOT.format(ns=ns)}")
    if not first.ntuples or not older.ntuples:
        return False
    number = int(first.get_value(0, 0) or 0)
    end = min(int(older.get_value(0, 0) or 0), number + PRUNE_COMMITS)
    if end <= number:
        return False
    kept_since, sample = (
        statement.format(ns=ns, first=number, end=end, horizon=horizon, samples=SAMPLES)
        for statement in (sql.KEPT_SINCE, sql.SAMPLE)
    )
    kept, sampled = session.ask(f"{kept_since}; {sample}")
    old = int(kept.get_value(0, 0) or 0) if kept.ntuples else end
    commits, mean = (int(sampled.get_value(0, column) or 0) for column in range(2))
    surplus = commits - most_bytes // (mean + ROW_BYTES)
    old = max(old, min(number + surplus, end))
    if old > number:
        session.ask(sql.PRUNE.format(ns=ns, end=old))
    return old > number


def forget_side_items(session: Session, table: str, before: str) -> bool:
    """Delete some values beside the log whose keys are before this one; whether there may be more."""
    literal = session.connection.literal
    forget = sql.FORGET_SIDE_ITEMS.format(
        ns=session.namespace, table=literal(table), before=literal(before), most=PRUNE_COMMITS
    )
    return session.ask(forget)[0].ntuples == PRUNE_COMMITS
