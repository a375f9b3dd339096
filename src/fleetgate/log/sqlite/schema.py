"""The tables of a SQLite store, and how a new one comes to be.

A new database is built beside its place and renamed into it, under the write lock: a reader sees either
no database or a complete one, and a process killed half-way leaves nothing that another would take for a store.
"""

from __future__ import annotations

import os
import sqlite3

from fleetgate.log.sqlite.connection import FORMAT
from fleetgate.log.store_files import make_file, sync_folder

# A change that older releases cannot live with is a new FORMAT, and needs a migration from each one before it; a column
# that may be empty is added to what is there (`add_columns`).
TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE log (
    number INTEGER PRIMARY KEY,
    id     TEXT NOT NULL,
    at     INTEGER NOT NULL,
    seq    INTEGER NOT NULL,
    due    INTEGER,
    events TEXT NOT NULL
);
CREATE TABLE side (
    tbl      TEXT NOT NULL,
    key      TEXT NOT NULL,
    value    BLOB NOT NULL,
    checksum INTEGER,
    PRIMARY KEY (tbl, key)
) WITHOUT ROWID;
CREATE TABLE snapshots (
    number   INTEGER PRIMARY KEY,
    id       TEXT NOT NULL,
    seq      INTEGER NOT NULL,
    checksum INTEGER NOT NULL
);
"""


def create(path: str) -> None:
    """Build a new database at `path`. The caller holds the write lock and has seen that there is none."""
    aside = path + ".new"
    for name in (aside, aside + "-wal", aside + "-shm"):
        if os.path.lexists(name):
            os.unlink(name)  # of a process that was killed here
    os.close(make_file(aside, exclusive=True))
    try:
        _build(aside)
        _set_aside(path + "-wal")
        os.rename(aside, path)
    except BaseException:
        os.unlink(aside)
        raise
    sync_folder(os.path.dirname(path))


def _build(path: str) -> None:
    conn = sqlite3.connect(path, isolation_level=None)
    try:
        conn.execute("PRAGMA auto_vacuum=INCREMENTAL")  # so that what was pruned can be given back
        conn.execute("PRAGMA synchronous=FULL")
        conn.execute("PRAGMA journal_mode=WAL").fetchall()
        conn.executescript(f"BEGIN IMMEDIATE; {TABLES} PRAGMA user_version={FORMAT}; COMMIT;")
    finally:
        conn.close()


def add_columns(conn: sqlite3.Connection) -> None:
    """Give a database of an older release the columns that it lacks. The caller holds the write lock."""
    if not any(column[1] == "checksum" for column in conn.execute("PRAGMA table_info(side)").fetchall()):
        conn.execute("ALTER TABLE side ADD COLUMN checksum INTEGER")


def _set_aside(wal: str) -> None:
    """Keep a write-ahead log whose database was moved away from being played into the new one."""
    if os.path.lexists(wal):
        os.rename(wal, f"{wal}.left-{os.urandom(4).hex()}")
