"""`fleetgate store`: which store this is; its tables; moving a gate into a database."""

from __future__ import annotations

import os

import click

from fleetgate.cli import exit_codes
from fleetgate.cli.click_helpers import json_option, tell
from fleetgate.cli.read_only_gate import say_json
from fleetgate.config.paths import sqlite_folder, store_url
from fleetgate.config.units import format_size
from fleetgate.core.errors import BadRequest
from fleetgate.log.store_url import POSTGRES, shown
from fleetgate.present.text import count


@click.group(short_help="Show the store; make its tables; move a gate.", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> int | None:
    """Show which store this gate is in, make or upgrade the tables of a PostgreSQL store, and move a gate into one.

    \b
    fleetgate store
    fleetgate store migrate
    fleetgate store copy sqlite:///var/lib/fleetgate 'postgresql://user@host/database?namespace=team-a'
    """
    if ctx.invoked_subcommand is None:
        return status.main([], standalone_mode=False)  # type: ignore[no-any-return]
    return None


@command.command("status", short_help="Which store this is, its version and size.")
@json_option
def status(as_json: bool) -> int:
    """Show which store FLEETGATE_STORE names, its version and its size; that of `fleetgate store` alone.

    \b
    fleetgate store status --json

    Exit: 0; 69 when it cannot be reached or its tables need `fleetgate store migrate`.
    """
    url = store_url()
    if url.startswith(POSTGRES):
        return _postgres(url, as_json)
    folder = sqlite_folder(url)
    if folder is None:
        document: dict[str, object] = {"store": url, "kind": "memory"}
        text = f"{url}: a gate for one process alone"
    else:
        from fleetgate.log.sqlite.connection import FORMAT

        path = f"{folder}/fleetgate.db"
        size = sum(os.path.getsize(each) for each in (path, f"{path}-wal") if os.path.exists(each))
        document = {"store": url, "kind": "sqlite", "version": FORMAT, "size_bytes": size}
        what = f"SQLite, format {FORMAT}, {format_size(size)}" if size else "SQLite; nothing there yet"
        text = f"{url}: {what}"
    say_json(document) if as_json else tell(text)
    return exit_codes.OK


def _postgres(url: str, as_json: bool) -> int:
    from fleetgate.log.postgres.inspect import look
    from fleetgate.log.postgres.migrations import VERSION
    from fleetgate.log.postgres.url import parse

    seen = look(parse(url))
    if as_json:
        say_json(
            {
                "store": shown(url),
                "kind": "postgresql",
                "version": seen.version,
                "needs": VERSION,
                "oldest": seen.oldest,
                "size_bytes": seen.size_bytes,
                "server": seen.server,
                "namespaces": seen.namespaces,
                "connections": seen.connections,
                "commits": seen.commits,
                "events": seen.events,
                "listens": seen.listens,
                "trip_ms": seen.trip_ms,
            }
        )
        return exit_codes.OK
    tell(
        f"{shown(url)}: PostgreSQL {seen.server}, tables of version {seen.version} (this fleetgate is for {VERSION}), "
        f"{format_size(seen.size_bytes)} for {count(len(seen.namespaces), 'namespace')}"
    )
    tell(
        f"{seen.events} events so far, {count(seen.commits, 'commit')} kept; {count(seen.connections, 'connection')}; "
        f"a round trip takes {seen.trip_ms:g} ms; {waking(seen.listens)}"
    )
    return exit_codes.OK


def waking(listens: bool) -> str:
    """How those who wait are woken."""
    if listens:
        return "those who wait on other machines are woken at once"
    return "those who wait on other machines find out by polling, within a second (a pooler is in between)"


@command.command("migrate", short_help="Make or upgrade the tables of a PostgreSQL store.")
@json_option
def migrate(as_json: bool) -> int:
    """Make the tables of the PostgreSQL store that FLEETGATE_STORE names, or bring them to this version; and make its
    namespace. Harmless when all is there. Older releases go on working with it, unless the changelog says otherwise.

    \b
    fleetgate store migrate

    Exit: 0; 69 when the database cannot be reached or its role may not make tables.
    """
    url = store_url()
    if not url.startswith(POSTGRES):
        raise BadRequest(f"{shown(url)} needs no migration: only a PostgreSQL store does (FLEETGATE_STORE)")
    from fleetgate.log.postgres.migrations import migrate
    from fleetgate.log.postgres.url import parse

    address = parse(url)
    done = migrate(address)
    if as_json:
        say_json({"store": address.shown, "before": done.before, "after": done.after, "namespace_made": done.made})
        return exit_codes.OK
    changed = f"tables made, version {done.after}" if not done.before else f"tables upgraded from version {done.before}"
    same = done.before == done.after
    tell(f"{address.shown}: {f'tables of version {done.after}, as needed' if same else changed}")
    if done.made:
        tell(f"namespace {address.namespace!r} made: an empty gate")
    return exit_codes.OK


@command.command("copy", short_help="Move a gate into a PostgreSQL database.")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@json_option
def copy(source: str, target: str, as_json: bool) -> int:
    """Move the gate FROM (a SQLite folder or URL, or a PostgreSQL URL) into the empty PostgreSQL namespace TO.

    It may be in use: everything that was committed is in TO, then FROM is closed for good, and only then TO is opened.
    Agents that run go on; those that wait in the queue must be started anew with FLEETGATE_STORE set to TO.

    \b
    fleetgate store copy ~/.local/state/fleetgate 'postgresql://user@host/database?namespace=team-a'

    Exit: 0; 69 when one of them cannot be used, or TO is not empty: then nothing was changed in FROM.
    """
    if "://" not in source:
        source = f"sqlite://{os.path.abspath(source)}"
    old = store_url({**os.environ, "FLEETGATE_STORE": source})
    new = store_url({**os.environ, "FLEETGATE_STORE": target})
    if not new.startswith(POSTGRES):
        raise BadRequest(f"{shown(new)}: a gate is copied into a PostgreSQL database")
    from fleetgate.log.postgres.copy_store import copy
    from fleetgate.log.postgres.url import parse

    address = parse(new)
    copied = copy(old, address)
    if as_json:
        say_json({"from": shown(old), "to": address.shown, "commits": copied.commits, "values": copied.values})
        return exit_codes.OK
    tell(f"{count(copied.commits, 'commit')} and {count(copied.values, 'value')} beside them are in {address.shown}")
    tell(f"{shown(old)} is closed; set FLEETGATE_STORE to the new one everywhere")
    return exit_codes.OK
