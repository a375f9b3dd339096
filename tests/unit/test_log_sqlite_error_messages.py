"""What a person is told when a store fails: what is wrong, where, and what to do."""

from __future__ import annotations

import errno
import os
import sqlite3

import pytest

from fleetgate.core.errors import InternalError
from fleetgate.log.protocol import StoreError
from fleetgate.log.sqlite.error_messages import explain


def said_by_sqlite(code: int, words: str) -> sqlite3.Error:
    error = sqlite3.OperationalError(words)
    error.sqlite_errorcode = code
    return error


def said_by_system(code: int, path: str | None = None) -> OSError:
    return OSError(code, os.strerror(code), path) if path else OSError(code, os.strerror(code))


@pytest.mark.parametrize(
    ("error", "wrong", "remedy"),
    [
        (said_by_sqlite(sqlite3.SQLITE_FULL, "database or disk is full"), "no space is left", "free some"),
        (
            said_by_sqlite(sqlite3.SQLITE_NOTADB, "file is not a database"),
            "/s/fleetgate.db is damaged",
            "mv /s/fleetg",
        ),
        (said_by_sqlite(sqlite3.SQLITE_CORRUPT, "malformed"), "/s/fleetgate.db is damaged", "fleetgate doctor"),
        (said_by_sqlite(sqlite3.SQLITE_CORRUPT_INDEX, "malformed"), "/s/fleetgate.db is damaged", "fleetgate doctor"),
        (said_by_sqlite(sqlite3.SQLITE_READONLY, "readonly"), "cannot write the store's database", "FLEETGATE_STORE"),
        (said_by_sqlite(sqlite3.SQLITE_READONLY_DBMOVED, "readonly"), "cannot write", "FLEETGATE_STORE"),
        (said_by_sqlite(sqlite3.SQLITE_CANTOPEN, "unable to open"), "cannot write", "FLEETGATE_STORE"),
        (said_by_sqlite(sqlite3.SQLITE_BUSY, "database is locked"), "another program keeps", "close it"),
        (said_by_sqlite(sqlite3.SQLITE_BUSY_RECOVERY, "database is locked"), "another program keeps", "close it"),
        (said_by_sqlite(sqlite3.SQLITE_IOERR_FSYNC, "disk I/O error"), "the disk failed", "check the disk"),
        (said_by_sqlite(sqlite3.SQLITE_PROTOCOL, "locking protocol"), "cannot be used (locking protocol)", "doctor"),
        (said_by_system(errno.EACCES, "/s/fleetgate.lock"), "cannot write /s/fleetgate.lock", "FLEETGATE_STORE"),
        (said_by_system(errno.EPERM), "cannot write /s", "make /s and what is in it writable"),
        (said_by_system(errno.EROFS), "read-only file system", "FLEETGATE_STORE"),
        (said_by_system(errno.ENOSPC), "no space is left", "free some"),
        (said_by_system(errno.EDQUOT), "no space is left", "free some"),
        (said_by_system(errno.ENOTDIR), "needs a folder", "sqlite:///some/folder"),
        (said_by_system(errno.ENAMETOOLONG), "cannot use the store in /s", "FLEETGATE_STORE"),
    ],
)
def test_Q1_a_failing_store_says_what_is_wrong_and_what_to_do(error: Exception, wrong: str, remedy: str) -> None:
    told = explain(error, "/s")
    assert isinstance(told, StoreError)
    assert wrong in str(told)
    assert remedy in str(told)
    assert "\n" not in str(told)


def test_misuse_is_a_bug_and_not_a_failing_store() -> None:
    told = explain(sqlite3.ProgrammingError("Cannot operate on a closed database."), "/s")
    assert isinstance(told, InternalError)
