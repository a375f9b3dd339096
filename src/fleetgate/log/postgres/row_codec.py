"""Rows of the server as values here, and values beside the log as statements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fleetgate.log.continuity import Row
from fleetgate.log.postgres import sql as sql
from fleetgate.log.protocol import SideWrite

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult


def rows_of(found: PGresult) -> list[Row]:
    value = found.get_value
    rows = []
    for row in range(found.ntuples):
        due = value(row, 4)
        rows.append(
            (
                int(value(row, 0) or 0),
                text_of(value(row, 1)),
                int(value(row, 2) or 0),
                int(value(row, 3) or 0),
                None if due is None else int(due),
                text_of(value(row, 5)),
            )
        )
    return rows


def text_of(value: bytes | None) -> str:
    return (value or b"").decode()


def bytes_of(value: bytes | None) -> bytes:
    return bytes.fromhex(text_of(value))


def side_items_of(found: PGresult) -> list[tuple[str, bytes]]:
    """Keys and values beside the log."""
    value = found.get_value
    return [(text_of(value(row, 0)), bytes_of(value(row, 1))) for row in range(found.ntuples)]


def side_statements(ns: int, side: Sequence[SideWrite], literal: Callable[[str], str]) -> str:
    """The statements that write these; of two writes to one key the last counts."""
    last = {(write.table, write.key): write.value for write in side}
    kept, gone = [], []
    for (table, key), value in last.items():
        row = f"{literal(table)}, {literal(key)}"
        if value is None:
            gone.append(f"({row})")
        else:
            kept.append(f"({ns}, {row}, '\\x{value.hex()}'::bytea)")
    written = sql.SET_SIDE.format(rows=", ".join(kept)) if kept else ""
    return written + (sql.DELETE_SIDE.format(ns=ns, rows=", ".join(gone)) if gone else "")
