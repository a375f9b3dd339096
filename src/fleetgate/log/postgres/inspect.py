"""Facts about a PostgreSQL store, for `fleetgate store`, `fleetgate doctor` and messages. Changes nothing."""

from __future__ import annotations

import os
from time import monotonic

from msgspec import Struct

from fleetgate.log.clock import wall_ms
from fleetgate.log.postgres import migrations
from fleetgate.log.postgres import sql as sql
from fleetgate.log.postgres.connection import ConnectionLost, connect, escaping, short_connection
from fleetgate.log.postgres.listener import reaches
from fleetgate.log.postgres.url import Address
from fleetgate.log.protocol import StoreError

_LOOK = """SELECT current_setting('server_version'),
    (SELECT value FROM fleetgate.meta WHERE key = 'version'), (SELECT value FROM fleetgate.meta WHERE key = 'oldest'),
    (SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0) FROM pg_class c
        WHERE c.relnamespace = 'fleetgate'::regnamespace AND c.relkind = 'r'),
    (SELECT string_agg(name, ' ' ORDER BY name) FROM fleetgate.namespaces),
    (SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'fleetgate %'),
    (SELECT coalesce(max(number) - min(number) + 1, 0) FROM fleetgate.log WHERE namespace = {ns}),
    (SELECT coalesce(max(seq), 0) FROM fleetgate.log WHERE namespace = {ns}
        AND number = (SELECT max(number) FROM fleetgate.log WHERE namespace = {ns})),
    current_setting('synchronous_commit'), current_setting('fsync')"""


class StoreFacts(Struct):
    """A store as it is."""

    server: str
    version: int  # of the tables
    oldest: int
    size_bytes: int  # of all namespaces
    namespaces: list[str]
    connections: int
    commits: int
    events: int
    synchronous_commit: str
    fsync: str
    trip_ms: float  # there and back
    clock_ms: int  # by which the server's clock is ahead of this machine's
    listens: bool


def look(address: Address) -> StoreFacts:
    """Look at a store; StoreError when this program cannot work with it."""
    with short_connection(address) as link:
        named = migrations.find_namespace(link)[0]
        ns = int(named.get_value(0, 0) or 0) if named.ntuples else 0
        found = link.ask(_LOOK.format(ns=ns))[0]
        began = monotonic()
        clock = link.ask(sql.CLOCK)[0]
        trip_ms = (monotonic() - began) * 1000
        ahead = int(clock.get_value(0, 0) or 0) - wall_ms()
    words = [(found.get_value(0, column) or b"").decode() for column in range(10)]
    return StoreFacts(
        server=words[0],
        version=int(words[1]),
        oldest=int(words[2]),
        size_bytes=int(words[3]),
        namespaces=words[4].split(),
        connections=int(words[5]),
        commits=int(words[6]),
        events=int(words[7]),
        synchronous_commit=words[8],
        fsync=words[9],
        trip_ms=round(trip_ms, 2),
        clock_ms=ahead,
        listens=reaches(address, ns),
    )


def lock_owner(address: Address) -> int | None:
    """The pid of the process on this host that holds the write lock, as far as the server tells."""
    try:
        conn = connect(address)
    except (ConnectionLost, StoreError):
        return None
    try:
        name = escaping(conn)(address.namespace.encode()).decode()
        for (said,) in conn.execute(sql.OWNER.format(name=name)):
            pid, _, host = str(said).removeprefix("fleetgate ").partition("@")
            return int(pid) if pid.isdigit() and os.uname().nodename.startswith(host) else None
    except Exception:
        return None
    finally:
        conn.close()
    return None
