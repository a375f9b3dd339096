"""What SQLite and the operating system say when a store fails, as a sentence for a person (rules Q1, Q2).

Each says what is wrong, which file it is about, and what to do. Nothing is ever deleted or overwritten here:
a damaged store is moved away by the person whose it is.
"""

from __future__ import annotations

import errno
import os
import sqlite3

from fleetgate.core.errors import FleetgateError, InternalError
from fleetgate.log.protocol import StoreError

_ELSEWHERE = "or set FLEETGATE_STORE to a folder that is, for example FLEETGATE_STORE=sqlite:///var/tmp/fleetgate"


def explain(error: Exception, folder: str) -> FleetgateError:
    """The StoreError for what went wrong with the store in `folder`."""
    if isinstance(error, OSError):
        return StoreError(_of_system(error, folder))
    code = getattr(error, "sqlite_errorcode", None)
    if code is None and isinstance(error, sqlite3.OperationalError):
        return damaged(folder, str(error))  # a text that is none, for example
    if code is None:
        # Not said by the database: misuse of a closed log, for example.
        return InternalError(f"the store in {folder} was used wrongly: {error}")
    return StoreError(_of_sqlite(code, str(error), folder))


def damaged(folder: str, what: str) -> StoreError:
    """The way out of a damaged database, leaving its files to tools that can still read them."""
    database = os.path.join(folder, "fleetgate.db")
    aside = os.path.join(folder, "damaged")
    return StoreError(
        f"the store's database {database} is damaged ({what}): run `fleetgate doctor`, restore a backup, or start "
        f"with an empty store by moving this one away: mkdir {aside} && mv {database}* {aside}/"
    )


def _of_system(error: OSError, folder: str) -> str:
    said = error.strerror or str(error)
    place = error.filename if isinstance(error.filename, str) else folder
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"cannot write {place} ({said}): make {folder} and what is in it writable for this user, {_ELSEWHERE}"
    if error.errno == errno.EROFS:
        return f"the store's folder {folder} is on a read-only file system: make it writable, {_ELSEWHERE}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return _no_space(folder)
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return f"the store needs a folder, and {folder} is none: FLEETGATE_STORE names a folder, sqlite:///some/folder"
    return f"cannot use the store in {folder} ({said}): make it a folder that this user can write, {_ELSEWHERE}"


def _of_sqlite(code: int, said: str, folder: str) -> str:
    database = os.path.join(folder, "fleetgate.db")
    primary = code & 0xFF
    if primary == sqlite3.SQLITE_FULL:
        return _no_space(folder)
    if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return str(damaged(folder, said))
    if primary in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN):
        return (
            f"cannot write the store's database {database} ({said}): make {folder} and what is in it writable for "
            f"this user, {_ELSEWHERE}"
        )
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return (
            f"another program keeps the store's database {database} locked: close it (a sqlite3 shell, a backup?) "
            "and try again"
        )
    if primary == sqlite3.SQLITE_IOERR:
        return (
            f"the disk failed under the store's database {database} ({said}): nothing was changed; check the disk "
            "and run `fleetgate doctor`"
        )
    return f"the store's database {database} cannot be used ({said}): run `fleetgate doctor`"


def _no_space(folder: str) -> str:
    return f"no space is left on the disk of the store in {folder}: nothing was changed; free some and try again"
