"""The ordered log: a sequence of commits, and the stores that keep it.

`protocol.py` defines what a log is. `memory.py`, `sqlite/` and `postgres/` are logs; the suite in `tests/contract/`
holds for each of them. A store's implementation is imported when it is opened, and not before.
"""

from __future__ import annotations

import os

from fleetgate.log.clock import Clock
from fleetgate.log.protocol import Log, StoreError


def open_log(url: str, *, clock: Clock | None = None) -> Log:
    """Open the store that `url` names: `sqlite:///some/folder`, `postgresql://…`, `memory://`. `clock` is for tests."""
    scheme, separator, rest = url.partition("://")
    if separator and scheme == "sqlite":
        from fleetgate.log.sqlite.log import SqliteLog

        return SqliteLog(_folder(rest), clock)
    if separator and scheme == "memory" and not rest:
        from fleetgate.log.memory import MemoryLog

        return MemoryLog(clock)
    if separator and scheme in ("postgresql", "postgres"):
        from fleetgate.log.postgres import PostgresLog

        return PostgresLog(url, clock)
    raise StoreError(
        f"not a store: {_shown(url)}; a store is sqlite:///some/folder, postgresql://user@host/database or memory://"
    )


def _folder(path: str) -> str:
    """The folder of a SQLite store's URL."""
    if not path.startswith("/") or "\0" in path:
        raise StoreError(
            f"not a store: {_shown('sqlite://' + path)}; name a folder from the root: sqlite:///some/folder"
        )
    if path.endswith(".db") and not os.path.isdir(path):
        raise StoreError(f"{_shown(path)} is no folder: FLEETGATE_STORE names the folder that holds fleetgate.db")
    return path


def _shown(text: str) -> str:
    """`text` as it can be put into a message; what may be a password is left out."""
    head, at, tail = text.rpartition("@")
    text = f"{head.partition('://')[0]}://...@{tail}" if at else text
    return repr(text if len(text) <= 200 else text[:197] + "...")
