"""Fresh PostgreSQL stores for tests: namespaces of one server, and an operator who restores backups of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import count
from typing import Any

import psycopg

from fleetgate.log.postgres import migrations
from fleetgate.log.postgres import url as postgres_url
from tests.postgres_server import Server

_TABLES = ("log", "side", "snapshots")
_numbers = count(1)


def migrate(url: str) -> None:
    migrations.migrate(postgres_url.parse(url))


@cache
def _database(server: Server) -> str:
    return server.new_database(migrate)


def fresh_store(server: Server, *, tcp: bool = False, **options: object) -> str:
    """The URL of an empty gate."""
    url = server.url(_database(server), tcp=tcp, namespace=f"t{next(_numbers)}", **options)
    migrate(url)
    return url


def admin(url: str) -> psycopg.Connection[Any]:
    """A connection to the database of a store, past all of ours."""
    return psycopg.connect(postgres_url.parse(url).url, autocommit=True)


def backup(url: str) -> Callable[[], None]:
    """Copy the rows of a gate; call what is returned to put them back under running processes."""
    namespace = postgres_url.parse(url).namespace
    with admin(url) as conn:
        (ns,) = conn.execute("SELECT id FROM fleetgate.namespaces WHERE name = %s", (namespace,)).fetchone() or (0,)
        rows = {
            table: conn.execute(f"SELECT * FROM fleetgate.{table} WHERE namespace = {ns}").fetchall()
            for table in _TABLES
        }

    def restore() -> None:
        with admin(url) as conn, conn.transaction(), conn.cursor() as cursor:
            for table in _TABLES:
                cursor.execute(f"DELETE FROM fleetgate.{table} WHERE namespace = {ns}")
                if rows[table]:
                    marks = ", ".join(["%s"] * len(rows[table][0]))
                    cursor.executemany(f"INSERT INTO fleetgate.{table} VALUES ({marks})", rows[table])

    return restore
