"""The move of a gate into a PostgreSQL database, while it is in use (docs/postgres.md, "Moving").

1. The new gate is closed ("being filled"), and must be empty.
2. Everything up to now is copied, while the old gate goes on.
3. The old gate's write lock is taken: no process decides any more. The rest is copied, with all that is beside the log.
4. The old gate is closed for good. Only then is the new one opened; then the lock is let go.

So at no moment do both decide. A copy that dies in 1 to 3 has changed nothing in the old gate, and is begun again. One
that dies between closing and opening left everything copied, and copying once more opens the new gate.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from fleetgate.log.continuity import Row
from fleetgate.log.postgres import migrations
from fleetgate.log.postgres import sql as sql
from fleetgate.log.postgres.connection import ConnectionLost, ServerConnection, StatementRefused, short_connection
from fleetgate.log.postgres.log import PostgresLog
from fleetgate.log.postgres.row_codec import bytes_of, rows_of, text_of
from fleetgate.log.postgres.session import MOVED_TO
from fleetgate.log.postgres.url import Address
from fleetgate.log.protocol import Stored, StoreError, StoreMoved
from fleetgate.log.sqlite.log import SqliteLog
from fleetgate.log.sqlite.moved_store import close_for_good

FILLING = "it is being filled by `fleetgate store copy`; if that was ended, do it again"
_COMMITS = 1_000  # at once
_SIDES = 500

SideRow = tuple[str, str, bytes]


class Copied(NamedTuple):
    """How much was copied; nothing when only the last step was left to do."""

    commits: int = 0
    values: int = 0


def copy(source: str, target: Address) -> Copied:
    """Copy the gate at a URL into an empty namespace, and close it."""
    with short_connection(target, "nothing was changed in the old gate") as link:
        filler = _Filler(link)
        try:
            old = open_source(source)
        except StoreMoved as error:
            if error.to != target.usable or not filler.begun():
                raise
            filler.open()
            return Copied()
        try:
            return filler.fill(old)
        finally:
            old.close()


def open_source(url: str) -> Source:
    if url.startswith("sqlite://"):
        return SqliteSource(url.removeprefix("sqlite://"))
    if url.startswith("postgresql://"):
        return PostgresSource(url)
    raise StoreError("a gate is copied from sqlite:///some/folder or postgresql://user@host/database")


class SqliteSource(SqliteLog):
    """A gate to copy from, in a folder."""

    def __init__(self, folder: str) -> None:
        import os

        if not os.path.exists(f"{folder}/fleetgate.db"):
            raise StoreError(f"there is no store in {folder}")
        self.folder = folder
        super().__init__(folder)

    def close_for_good(self, to: str) -> None:
        try:
            close_for_good(self.folder, to)
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"cannot close the store in {self.folder} ({error}): it goes on being used") from error


class PostgresSource(PostgresLog):
    """A gate to copy from, in a database."""

    def lock(self) -> None:
        super().lock()
        self.session.connection.ask("SET LOCAL idle_in_transaction_session_timeout = 0")

    def rows_behind(self, number: int, limit: int) -> list[Row]:
        session = self.session
        return rows_of(session.ask(sql.READ.format(ns=session.namespace, number=number + 1, limit=limit))[0])

    def side_rows(self) -> list[SideRow]:
        found = self.session.ask(
            f"SELECT tbl, key, encode(value, 'hex') FROM fleetgate.side WHERE namespace = {self.session.namespace}"
        )[0]
        value = found.get_value
        return [
            (text_of(value(row, 0)), text_of(value(row, 1)), bytes_of(value(row, 2))) for row in range(found.ntuples)
        ]

    def close_for_good(self, to: str) -> None:
        link, ns = self.session.connection, self.session.namespace
        link.ask(f"UPDATE fleetgate.namespaces SET closed = {link.literal(MOVED_TO + to)} WHERE id = {ns}; COMMIT")


Source = SqliteSource | PostgresSource


def _number(value: int | None) -> str:
    return "NULL" if value is None else str(value)


class _Filler:
    """The namespace that is filled."""

    def __init__(self, link: ServerConnection) -> None:
        self._link = link
        address = link.address
        found = migrations.find_namespace(link)[0]
        if not found.ntuples:
            raise StoreError(
                f"there is no namespace {address.namespace!r} at {address.shown}: `fleetgate store migrate`"
            )
        self._ns = int(found.get_value(0, 0) or 0)
        self._closed = (found.get_value(0, 1) or b"").decode()

    def begun(self) -> bool:
        return self._closed == FILLING

    def fill(self, old: Source) -> Copied:
        self._begin()
        commits, last = self._copy_commits(old, 0)
        old.lock()
        rest, last = self._copy_commits(old, last)
        values = self._copy_sides(old.side_rows())
        self._copy_snapshot(old.snapshot())
        old.close_for_good(self._link.address.usable)
        try:
            self.open()
        except (ConnectionLost, StatementRefused, StoreError) as error:
            raise StoreError(
                f"everything is copied and the old gate is closed, but the new one could not be opened ({error}): do "
                "the same once more"
            ) from error
        return Copied(commits + rest, values)

    def _begin(self) -> None:
        """Close the namespace; what an earlier copy left in it goes, anything else stays and is refused."""
        ns, link = self._ns, self._link
        link.ask(f"BEGIN; SELECT 1 FROM fleetgate.namespaces WHERE id = {ns} FOR UPDATE")
        try:
            if not self.begun():
                used = link.ask(f"SELECT 1 FROM fleetgate.log WHERE namespace = {ns} LIMIT 1")[0].ntuples
                if used or self._closed:
                    raise StoreError(
                        f"{link.address.shown} is not empty: copy into another namespace (`fleetgate store migrate` "
                        "makes the one that its URL names)"
                    )
            link.ask(
                f"DELETE FROM fleetgate.log WHERE namespace = {ns}; DELETE FROM fleetgate.side WHERE namespace = {ns}; "
                f"DELETE FROM fleetgate.snapshots WHERE namespace = {ns}; "
                f"UPDATE fleetgate.namespaces SET closed = {link.literal(FILLING)} WHERE id = {ns}; COMMIT"
            )
        except BaseException:
            link.drop()
            raise

    def _copy_commits(self, old: Source, after: int) -> tuple[int, int]:
        copied = 0
        while rows := old.rows_behind(after, _COMMITS):
            literal = self._link.literal
            values = ", ".join(
                f"({self._ns}, {number}, {literal(id)}, {at}, {seq}, {_number(due)}, {literal(events)})"
                for number, id, at, seq, due, events in rows
            )
            self._link.ask(f"INSERT INTO fleetgate.log (namespace, number, id, at, seq, due, events) VALUES {values}")
            copied += len(rows)
            after = rows[-1][0]
            if len(rows) < _COMMITS:
                break
        return copied, after

    def _copy_sides(self, rows: Sequence[SideRow]) -> int:
        literal = self._link.literal
        for start in range(0, len(rows), _SIDES):
            values = ", ".join(
                f"({self._ns}, {literal(table)}, {literal(key)}, '\\x{value.hex()}'::bytea)"
                for table, key, value in rows[start : start + _SIDES]
            )
            self._link.ask(f"INSERT INTO fleetgate.side (namespace, tbl, key, value) VALUES {values}")
        return len(rows)

    def _copy_snapshot(self, stored: Stored | None) -> None:
        if stored is None:
            return
        from zlib import crc32

        number, id, seq = stored.position
        save = sql.SAVE.format(
            ns=self._ns, checksum=crc32(stored.data), number=number, id=self._link.literal(id), seq=seq
        )
        self._link.ask_with(save, (stored.data,), binary=True)

    def open(self) -> None:
        self._link.ask(
            f"BEGIN; SELECT {sql.SYNCED}; UPDATE fleetgate.namespaces SET closed = '' WHERE id = {self._ns}; COMMIT"
        )
