"""What a person is told when a store fails: what is wrong, where, and what to do."""

from __future__ import annotations

import errno
import os
import sqlite3

import pytest

from headgate.core.errors import InternalError
from headgate.log.protocol import StoreError
from headgate.log.sqlite.error_messages import explain


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
            "/s/headgate.db is damaged",
            "mv /s/headg",
        ),
        (said_by_sqlite(sqlite3.SQLITE_CORRUPT, "malformed"), "/s/headgate.db is damaged", "headgate doctor"),
        (said_by_sqlite(sqlite3.SQLITE_CORRUPT_INDEX, "malformed"), "/s/headgate.db is damaged", "headgate doctor"),
        (said_by_sqlite(sqlite3.SQLITE_READONLY, "readonly"), "cannot write the store's database", "HEADGATE_STORE"),
        (said_by_sqlite(sqlite3.SQLITE_READONLY_DBMOVED, "readonly"), "cannot write", "HEADGATE_STORE"),
        (said_by_sqlite(sqlite3.SQLITE_CANTOPEN, "unable to open"), "cannot write", "HEADGATE_STORE"),
        (said_by_sqlite(sqlite3.SQLITE_BUSY, "database is locked"), "another program keeps", "close it"),
        (said_by_sqlite(sqlite3.SQLITE_BUSY_RECOVERY, "database is locked"), "another program keeps", "close it"),
        (said_by_sqlite(sqlite3.SQLITE_IOERR_FSYNC, "disk I/O error"), "the disk failed", "check the disk"),
        (said_by_sqlite(sqlite3.SQLITE_PROTOCOL, "locking protocol"), "cannot be used (locking protocol)", "doctor"),
        (said_by_system(errno.EACCES, "/s/headgate.lock"), "cannot write /s/headgate.lock", "HEADGATE_STORE"),
        (said_by_system(errno.EPERM), "cannot write /s", "make /s and what is in it writable"),
        (said_by_system(errno.EROFS), "read-only file system", "HEADGATE_STORE"),
        (said_by_system(errno.ENOSPC), "no space is left", "free some"),
        (said_by_system(errno.EDQUOT), "no space is left", "free some"),
        (said_by_system(errno.ENOTDIR), "needs a folder", "sqlite:///some/folder"),
        (said_by_system(errno.ENAMETOOLONG), "cannot use the store in /s", "HEADGATE_STORE"),
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
