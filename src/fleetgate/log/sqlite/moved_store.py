"""The end of a SQLite store, when its gate was moved into another store (`fleetgate store copy`).

What is left in the database's place is a database that says where the gate went. A process that has the
old one open notices that it is not in its place any more, opens what is, and reports it; older releases say that they
are too old for it. The old files are kept in the folder `moved`.
"""

from __future__ import annotations

import os
import sqlite3

from fleetgate.log.protocol import StoreMoved
from fleetgate.log.sqlite.connection import MOVED
from fleetgate.log.store_files import make_file, make_inner_folder, sync_folder


def moved(folder: str, conn: sqlite3.Connection) -> StoreMoved:
    """What to say of a store whose database is of the format MOVED."""
    rows = conn.execute("SELECT value FROM meta WHERE key = 'moved_to'").fetchall()
    return StoreMoved.away(folder, str(rows[0][0]) if rows else "another store")


def close_for_good(folder: str, to: str) -> None:
    """Put the sign in the place of the database. The caller has the write lock, and has copied everything."""
    path = os.path.join(folder, "fleetgate.db")
    aside = os.path.join(folder, "moved")
    sign = path + ".moved"
    if os.path.lexists(sign):
        os.unlink(sign)
    os.close(make_file(sign, exclusive=True))
    _build(sign, to)
    make_inner_folder(aside)
    kept = os.path.join(aside, "fleetgate.db")
    if os.path.lexists(kept):
        os.rename(kept, f"{kept}.{os.urandom(4).hex()}")
    os.link(path, kept)
    if os.path.lexists(path + "-wal"):
        os.rename(path + "-wal", kept + "-wal")
    os.rename(sign, path)
    sync_folder(folder)


def _build(path: str, to: str) -> None:
    conn = sqlite3.connect(path, isolation_level=None)
    try:
        conn.execute("PRAGMA synchronous=FULL")
        conn.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID")
        conn.execute("INSERT INTO meta VALUES ('moved_to', ?)", (to,))
        conn.execute(f"PRAGMA user_version={MOVED}")
    finally:
        conn.close()
