"""`fleetgate store`: which store this is; its tables; moving a gate into a database."""

from __future__ import annotations

import os

import click
from msgspec.structs import asdict

from fleetgate.cli.click_helpers import json_option, show_result
from fleetgate.config.paths import sqlite_folder, store_url
from fleetgate.config.units import format_size
from fleetgate.core.errors import BadRequest
from fleetgate.log.store_url import POSTGRES, shown
from fleetgate.present.text import count


@click.group(short_help="Show the store; make its tables; move a gate.", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Show the store of this gate, create or upgrade the tables of a PostgreSQL store, and move a gate into one.

    \b
    fleetgate store
    fleetgate store migrate
    fleetgate store copy sqlite:///var/lib/fleetgate 'postgresql://user@host/database?namespace=team-a'
    """
    if ctx.invoked_subcommand is None:
        status.main([], standalone_mode=False)


@command.command("status", short_help="Show the store, its version and size.")
@json_option
def status(as_json: bool) -> None:
    """Show the store that FLEETGATE_STORE names, its version and size. `fleetgate store` does the same.

    \b
    fleetgate store status --json

    Exit codes: 0; 69 when it is unreachable, or its tables need `fleetgate store migrate`.
    """
    url = store_url()
    if url.startswith(POSTGRES):
        _postgres(url, as_json)
        return
    folder = sqlite_folder(url)
    if folder is None:
        document: dict[str, object] = {"store": url, "kind": "memory"}
        text = f"{url}: a gate for a single process"
    else:
        from fleetgate.log.sqlite.connection import FORMAT

        path = f"{folder}/fleetgate.db"
        size = sum(os.path.getsize(each) for each in (path, f"{path}-wal") if os.path.exists(each))
        document = {"store": url, "kind": "sqlite", "version": FORMAT, "size_bytes": size}
        what = f"SQLite, format {FORMAT}, {format_size(size)}" if size else "SQLite; empty"
        text = f"{url}: {what}"
    show_result(as_json, document, text)


def _postgres(url: str, as_json: bool) -> None:
    from fleetgate.log.postgres.inspect import look
    from fleetgate.log.postgres.migrations import VERSION
    from fleetgate.log.postgres.url import parse

    seen = look(parse(url))
    document = {"store": shown(url), "kind": "postgresql", "needs": VERSION, **asdict(seen)}
    for name in ("synchronous_commit", "fsync", "clock_ms"):  # which `doctor` judges
        del document[name]
    show_result(
        as_json,
        document,
        f"{shown(url)}: PostgreSQL {seen.server}, tables of version {seen.version} (this fleetgate is for {VERSION}), "
        f"{format_size(seen.size_bytes)} for {count(len(seen.namespaces), 'namespace')}",
        f"{seen.events} events so far, {count(seen.commits, 'commit')} kept; {count(seen.connections, 'connection')}; "
        f"a round trip takes {seen.trip_ms:g}ms; {waking(seen.listens)}",
    )


def waking(listens: bool) -> str:
    """How waiting agents on other machines learn of a free slot."""
    if listens:
        return "waiting agents on other machines are woken at once"
    return "waiting agents on other machines notice a free slot by polling, within a second (because of a pooler)"


@command.command("migrate", short_help="Create or upgrade the tables of a PostgreSQL store.")
@json_option
def migrate(as_json: bool) -> None:
    """Create or upgrade the tables of the PostgreSQL store that FLEETGATE_STORE names, and create its namespace.

    Running it again is harmless. Older releases keep working with it, unless the changelog says otherwise.

    \b
    fleetgate store migrate

    Exit codes: 0; 69 when the database is unreachable, or its role may not create tables.
    """
    url = store_url()
    if not url.startswith(POSTGRES):
        raise BadRequest(f"{shown(url)} needs no migration: only PostgreSQL stores do (FLEETGATE_STORE)")
    from fleetgate.log.postgres.migrations import migrate
    from fleetgate.log.postgres.url import parse

    address = parse(url)
    done = migrate(address)
    if not done.before:
        text = f"created tables (schema version {done.after})"
    elif done.before == done.after:
        text = f"tables are up to date (schema version {done.after})"
    else:
        text = f"upgraded tables from schema version {done.before} to {done.after}"
    made = [f"created namespace {address.namespace!r} (empty)"] if done.made else []
    document = {"store": address.shown, "before": done.before, "after": done.after, "namespace_made": done.made}
    show_result(as_json, document, f"{address.shown}: {text}", *made)


@command.command("copy", short_help="Move a gate into a PostgreSQL database.")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@json_option
def copy(source: str, target: str, as_json: bool) -> None:
    """Move the gate FROM (a SQLite folder or URL, or a PostgreSQL URL) into the empty PostgreSQL namespace TO.

    FROM may be in use: first everything that was committed is copied, then FROM is closed for good, and then TO is
    opened. Running agents continue. Start new ones with FLEETGATE_STORE set to TO.

    \b
    fleetgate store copy ~/.local/state/fleetgate 'postgresql://user@host/database?namespace=team-a'

    Exit codes: 0; 69 when one of them is unreachable, or TO is not empty (FROM is then unchanged).
    """
    if "://" not in source:
        source = f"sqlite://{os.path.abspath(source)}"
    old = store_url({**os.environ, "FLEETGATE_STORE": source})
    new = store_url({**os.environ, "FLEETGATE_STORE": target})
    if not new.startswith(POSTGRES):
        raise BadRequest(f"{shown(new)}: the target must be a PostgreSQL database")
    from fleetgate.log.postgres.copy_store import copy
    from fleetgate.log.postgres.url import parse

    address = parse(new)
    copied = copy(old, address)
    show_result(
        as_json,
        {"from": shown(old), "to": address.shown, "commits": copied.commits, "values": copied.values},
        f"{count(copied.commits, 'commit')} and {count(copied.values, 'value')} copied to {address.shown}",
        f"{shown(old)} is closed; set FLEETGATE_STORE to the new store everywhere",
    )
