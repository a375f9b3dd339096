"""The SQL statements of the log. `{ns}` is the number of its namespace; texts are put in as literals.

The statements of one round trip are joined by semicolons; those that end with one are meant to be followed by others.
"""

from __future__ import annotations

IDLE_MS = 2_000  # between two statements of a transaction; a process that needs longer is stopped or gone
LOCK_MS = 10_000  # for one try; a process that waits for the lock then tries again

BEGIN = (
    "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; "
    f"SELECT set_config('idle_in_transaction_session_timeout', '{IDLE_MS}', true), "
    f"set_config('lock_timeout', '{LOCK_MS}', true); "
)
LOCK = "SELECT id, closed FROM fleetgate.namespaces WHERE name = {name} FOR UPDATE{skip}; "
CLOSED = "SELECT id, closed FROM fleetgate.namespaces WHERE id = {ns} AND closed <> ''"  # as a rule, no row
CLOCK = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"
CLOCK_BYTES = "convert_to((extract(epoch FROM clock_timestamp()) * 1000)::bigint::text, 'UTF8')"
COLUMNS = "SELECT number, id, at, seq, due, events FROM fleetgate.log WHERE namespace = {ns}"
READ = COLUMNS + " AND number >= {number} ORDER BY number LIMIT {limit}"
LAST = COLUMNS.replace("events", "''") + " ORDER BY number DESC LIMIT 1"
KNOWN = "SELECT 1 FROM fleetgate.log WHERE namespace = {ns} AND number = {number} AND id = {id}"
ADD = (
    "INSERT INTO fleetgate.log (namespace, number, id, at, seq, due, events) "
    "VALUES ({ns}, {number}, '{id}', {at}, {seq}, {due}, {events}); "
)
SET_SIDE = (
    "INSERT INTO fleetgate.side (namespace, tbl, key, value) VALUES {rows} "
    "ON CONFLICT (namespace, tbl, key) DO UPDATE SET value = excluded.value; "
)
DELETE_SIDE = "DELETE FROM fleetgate.side WHERE namespace = {ns} AND (tbl, key) IN ({rows}); "
NOT_SYNCED = "SET LOCAL synchronous_commit = off; "
# In a transaction of its own, and not synced: it takes a lock of the whole server until it is committed.
NOTIFY = f"BEGIN; {NOT_SYNCED}SELECT pg_notify('fleetgate_{{ns}}', {{text}}); COMMIT"
# What the operator has chosen stands, as long as it waits for a disk at all.
SYNCED = "CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END"
# A transaction that leaves nothing but a mark in the write-ahead log, and waits until that is on disk, and with it all
# that was committed before.
SYNC = f"BEGIN; SELECT {SYNCED}, pg_logical_emit_message(true, 'fleetgate', ''); COMMIT"
# Which server this is, and how often another took its place: a standby that is promoted, and a backup that is
# restored, begin a timeline of their own.
INCARNATION = """SELECT system_identifier || '-' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)
    FROM pg_control_system()"""
SIDE = "SELECT encode(value, 'hex') FROM fleetgate.side WHERE namespace = {ns} AND tbl = {table} AND key = {key}"
SIDE_ITEMS = (
    "SELECT key, encode(value, 'hex') FROM fleetgate.side WHERE namespace = {ns} AND tbl = {table} AND key >= {low} "
    "AND ({high} = '' OR key < {high}) ORDER BY key"
)
FORGET_SIDE_ITEMS = """DELETE FROM fleetgate.side WHERE namespace = {ns} AND tbl = {table} AND key IN (
    SELECT key FROM fleetgate.side WHERE namespace = {ns} AND tbl = {table} AND key < {before} ORDER BY key LIMIT {most}
) RETURNING 1"""
# By halves, since commits are dense and sorted; in one round trip.
COMMIT_AFTER = """WITH RECURSIVE part (low, high) AS (
    SELECT min(number), max(number) + 1 FROM fleetgate.log WHERE namespace = {ns}
    UNION ALL
    SELECT CASE WHEN one.seq > {seq} THEN low ELSE one.number + 1 END,
        CASE WHEN one.seq > {seq} THEN one.number ELSE high END
    FROM part, LATERAL (SELECT number, seq FROM fleetgate.log
        WHERE namespace = {ns} AND number = (low + high) / 2) one
    WHERE low < high
) SELECT low FROM part WHERE low >= high"""
FIRST = "SELECT number, at FROM fleetgate.log WHERE namespace = {ns} ORDER BY number LIMIT 1"
# A snapshot counts only if the log still has its commit.
SNAPSHOT = """SELECT number, id, seq, checksum, data
    FROM fleetgate.snapshots JOIN fleetgate.log USING (namespace, number, id, seq)
    WHERE namespace = {ns} ORDER BY number DESC LIMIT 1 OFFSET {offset}"""
SAVE = """INSERT INTO fleetgate.snapshots (namespace, number, id, seq, checksum, data)
    SELECT namespace, number, id, seq, {checksum}, $1 FROM fleetgate.log
    WHERE namespace = {ns} AND number = {number} AND id = {id} AND seq = {seq}
    ON CONFLICT (namespace, number) DO UPDATE SET id = excluded.id, seq = excluded.seq,
        checksum = excluded.checksum, data = excluded.data
    RETURNING 1"""
KEEP_TWO = """DELETE FROM fleetgate.snapshots WHERE namespace = {ns} AND number NOT IN
    (SELECT number FROM fleetgate.snapshots WHERE namespace = {ns} ORDER BY number DESC LIMIT 2)"""
OLDER_SNAPSHOT = "SELECT number FROM fleetgate.snapshots WHERE namespace = {ns} ORDER BY number DESC LIMIT 1 OFFSET 1"
KEPT_SINCE = """SELECT number FROM fleetgate.log
    WHERE namespace = {ns} AND number >= {first} AND number < {end} AND at >= {horizon} ORDER BY number LIMIT 1"""
# How many commits there are, and how long their events are on average, by a sample of them.
SAMPLE = """WITH part AS (SELECT max(number) - {first} + 1 AS commits FROM fleetgate.log WHERE namespace = {ns})
    SELECT commits, (SELECT avg(octet_length(events))::bigint FROM fleetgate.log
        WHERE namespace = {ns} AND number IN
        (SELECT {first} + commits * n / {samples} FROM generate_series(0, {samples} - 1) n)) FROM part"""
PRUNE = "DELETE FROM fleetgate.log WHERE namespace = {ns} AND number < {end}"
# Who has locked the namespace's row: the transaction in its xmax, as long as that one lasts.
OWNER = """SELECT application_name FROM fleetgate.namespaces n
    JOIN pg_locks l ON l.locktype = 'transactionid' AND l.granted AND l.transactionid = n.xmax
    JOIN pg_stat_activity a ON a.pid = l.pid WHERE n.name = {name}"""
