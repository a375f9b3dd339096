"""The tables of a PostgreSQL store, their versions, and how they are changed (docs/decisions/0013).

A database carries two numbers. `version` is the last step that it was taken through. `oldest` is the oldest version
of the tables that a program may have been written for and still use it. A program that was written for version V works
when `oldest` <= V <= `version`; so a step that only adds leaves `oldest` alone, and old and new releases work side by
side while a fleet is upgraded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fleetgate.log.postgres.connection import ServerConnection, StatementRefused, short_connection
from fleetgate.log.postgres.url import Address
from fleetgate.log.protocol import StoreError

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

SCHEMA = "fleetgate"

# One step for each version; never changed once released, and only added to. A step that old releases cannot live with
# sets `oldest` itself. There are no foreign keys: each would lock the namespace's row, which orders the decisions.
STEPS = (
    """
CREATE TABLE fleetgate.meta (key text PRIMARY KEY, value bigint NOT NULL);
INSERT INTO fleetgate.meta VALUES ('version', 0), ('oldest', 1);
CREATE TABLE fleetgate.namespaces (
    id     integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name   text COLLATE "C" NOT NULL UNIQUE,
    closed text NOT NULL DEFAULT ''
);
CREATE TABLE fleetgate.log (
    namespace integer NOT NULL,
    number    bigint NOT NULL,
    id        text NOT NULL,
    at        bigint NOT NULL,
    seq       bigint NOT NULL,
    due       bigint,
    events    text NOT NULL,
    PRIMARY KEY (namespace, number)
);
CREATE TABLE fleetgate.side (
    namespace integer NOT NULL,
    tbl       text COLLATE "C" NOT NULL,
    key       text COLLATE "C" NOT NULL,
    value     bytea NOT NULL,
    PRIMARY KEY (namespace, tbl, key)
);
CREATE TABLE fleetgate.snapshots (
    namespace integer NOT NULL,
    number    bigint NOT NULL,
    id        text NOT NULL,
    seq       bigint NOT NULL,
    checksum  bigint NOT NULL,
    data      bytea NOT NULL,
    PRIMARY KEY (namespace, number)
);
""",
)
VERSION = len(STEPS)

NUMBERS = "SELECT key, value FROM fleetgate.meta WHERE key IN ('version', 'oldest')"
_MIGRATING = 0x68656164  # of an advisory lock: one that migrates at a time


class Migrated(NamedTuple):
    before: int  # 0 where there was nothing
    after: int
    made: bool  # whether the namespace is new


def check(address: Address, found: PGresult) -> None:
    """Whether this program can work with the tables whose NUMBERS were found; StoreError says what to do."""
    numbers = {found.get_value(row, 0): int(found.get_value(row, 1) or 0) for row in range(found.ntuples)}
    version, oldest = numbers.get(b"version", 0), numbers.get(b"oldest", 0)
    if oldest > VERSION:
        raise StoreError(
            f"the store at {address.shown} has tables of version {version}, which need a newer fleetgate (this one is "
            f"for version {VERSION}): upgrade fleetgate"
        )
    if version < VERSION:
        raise StoreError(
            f"the store at {address.shown} has tables of version {version}, and this fleetgate needs {VERSION}: run "
            "`fleetgate store migrate`; older releases go on working with it"
        )


def find_namespace(link: ServerConnection, more: str = "") -> list[PGresult]:
    """The row (id, closed) of a connection's namespace, if there is one, and what `more` finds. Checks the tables."""
    name = link.literal(link.address.namespace)
    numbers, *found = link.ask(f"{NUMBERS}; SELECT id, closed FROM fleetgate.namespaces WHERE name = {name}{more}")
    check(link.address, numbers)
    return found


def migrate(address: Address) -> Migrated:
    """Bring the tables to this version and make the namespace; harmless when all is there."""
    with short_connection(address) as link:
        try:
            return _migrate(link)
        except StatementRefused as refused:
            if refused.code != "42501":
                raise
            raise StoreError(
                f"the role of {address.shown} may not make tables ({refused}): migrate with the database's owner, or "
                f"GRANT CREATE ON DATABASE"
            ) from refused


def _migrate(link: ServerConnection) -> Migrated:
    encoding = (link.ask("SELECT current_setting('server_encoding')")[0].get_value(0, 0) or b"").decode()
    if encoding != "UTF8":
        raise StoreError(f"the database of {link.address.shown} has encoding {encoding}: make one with encoding UTF8")
    link.ask(f"BEGIN; SELECT pg_advisory_xact_lock({_MIGRATING})")
    try:
        before = _version(link)
        for number, step in enumerate(STEPS[before:], before + 1):
            if number == 1 and not _has_schema(link):
                link.ask(f"CREATE SCHEMA {SCHEMA}")
            link.ask(f"{step}; UPDATE fleetgate.meta SET value = {number} WHERE key = 'version'")
        name = link.literal(link.address.namespace)
        made = link.ask(f"INSERT INTO fleetgate.namespaces (name) VALUES ({name}) ON CONFLICT DO NOTHING RETURNING id")
        link.ask("COMMIT")
    except BaseException:
        link.drop()
        raise
    return Migrated(before, max(before, VERSION), made[0].ntuples > 0)


def _has_schema(link: ServerConnection) -> bool:
    return link.ask(f"SELECT 1 FROM pg_namespace WHERE nspname = '{SCHEMA}'")[0].ntuples > 0


def _version(link: ServerConnection) -> int:
    found = link.ask("SELECT to_regclass('fleetgate.meta') IS NOT NULL")[0]
    if found.get_value(0, 0) != b"t":
        return 0
    found = link.ask("SELECT value FROM fleetgate.meta WHERE key = 'version'")[0]
    return int(found.get_value(0, 0) or 0)
