"""`fleetgate key`: access keys for people and programs that use the service (rules E1, E2)."""

from __future__ import annotations

import click

from fleetgate.cli.click_helpers import json_option, opened_gate, read_duration_ms, show_result, whoami
from fleetgate.cli.completion_values import complete_key
from fleetgate.cli.output.table import Column, show_table
from fleetgate.cli.read_only_gate import current, opened, say_json
from fleetgate.core.access.keys import ROLES, AccessKey, CreateKey, RemoveKey, RotateKey
from fleetgate.core.entities import CLASSES
from fleetgate.gate.access_keys import key_digest, new_key, store_salt
from fleetgate.present.json.access_keys import key_json, rights_text
from fleetgate.present.log_time import LogTimes
from fleetgate.present.text import span

_COLUMNS = (
    Column("NAME", least=12, name=True),
    Column("ROLE"),
    Column("PROJECT", name=True),
    Column("CLASS"),
    Column("MAX PRIORITY", right=True),
    Column("CREATED"),
    Column("EXPIRES"),
)
_ONCE = "this is the only time it is shown; keep it where only its user can read it"


@click.group(short_help="Create, list, rotate and remove access keys.", no_args_is_help=True)
def command() -> None:
    """Create, list, rotate and remove access keys for people and programs that use `fleetgate serve`.

    A key is sent as `Authorization: Bearer KEY`. Its role says what it may do: a viewer reads; an agent acquires
    slots, reports and submits jobs, all for its own project; an operator reads, and manages caps, queue and jobs; an
    admin also manages keys. The service's own token is an admin.

    \b
    fleetgate key create ci --role agent --project web --class batch --max-priority 0
    fleetgate key ls
    fleetgate key rm ci
    """


@command.command("create", short_help="Create a key and print it once.")
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), default="agent", show_default=True, help="What the key may do.")
@click.option("--project", default="", metavar="NAME", help="The project of all its requests. An agent needs one.")
@click.option("--class", "work_class", type=click.Choice(CLASSES), help="The class of all its requests.")
@click.option("--max-priority", type=int, metavar="N", help="The highest priority of its requests.")
@click.option("--expires", metavar="DURATION", help="How long it is valid, for example 90d (default: for ever).")
@json_option
def create(
    name: str,
    role: str,
    project: str,
    work_class: str | None,
    max_priority: int | None,
    expires: str | None,
    as_json: bool,
) -> None:
    """Create a key and print it. It is not stored: only a salted digest of it is, so it cannot be shown again.

    \b
    fleetgate key create ci --project web --class batch --max-priority 0
    fleetgate key create wallboard --role viewer --expires 90d

    Exit codes: 0; 64 when something is invalid, or there is a key with this name.
    """
    lasts_ms = read_duration_ms("--expires", expires)
    gate = opened_gate()
    text = new_key()
    key = AccessKey(
        name,
        key_digest(store_salt(gate.replica), text),
        role,
        project,
        work_class or "",
        max_priority,
        expires_at=gate.now() + lasts_ms if lasts_ms else 0,
    )
    gate.one(CreateKey(key, whoami(gate.host)), durable=True)
    if as_json:
        say_json({"name": name, "key": text})
        return
    click.echo(text)
    click.echo(f"fleetgate: created {name}: {rights_text(key)}; {_ONCE}", err=True)


@command.command("ls", short_help="List the keys.")
@json_option
def ls(as_json: bool) -> None:
    """List the keys and what they may do. The keys themselves are not stored.

    \b
    fleetgate key ls
    fleetgate key ls --json
    """
    with opened(configured=False) as gate:
        state, moments = current(gate), LogTimes(gate)
        shapes = [key_json(key, moments) for _, key in sorted(state.access_keys.items())]
        if as_json:
            say_json({"keys": shapes})
            return
        rows = []
        for shape, (_, key) in zip(shapes, sorted(state.access_keys.items()), strict=True):
            ends = "expired" if shape.expired else f"in {span(key.expires_at - moments.now)}" if key.expires_at else "-"
            priority = "" if key.max_priority is None else str(key.max_priority)
            age = f"{span(max(moments.now - key.created_at, 0))} ago"
            rows.append([key.name, key.role, key.project, key.work_class, priority, age, ends])
        show_table(_COLUMNS, rows, "no keys (to make one: fleetgate key create NAME --project PROJECT)")


@command.command("rotate", short_help="Replace a key by a new one with the same rights.")
@click.argument("name", shell_complete=complete_key)
@json_option
def rotate(name: str, as_json: bool) -> None:
    """Replace a key by a new one with the same name and rights, and print it. The old one is worth nothing at once.

    \b
    fleetgate key rotate ci

    Exit codes: 0; 64 when there is no such key.
    """
    gate = opened_gate()
    text = new_key()
    gate.one(RotateKey(name, key_digest(store_salt(gate.replica), text), whoami(gate.host)), durable=True)
    if as_json:
        say_json({"name": name, "key": text})
        return
    click.echo(text)
    click.echo(f"fleetgate: rotated {name}; {_ONCE}", err=True)


@command.command("rm", short_help="Remove a key.")
@click.argument("name", shell_complete=complete_key)
@json_option
def rm(name: str, as_json: bool) -> None:
    """Remove a key: it is worth nothing at once. Slots and jobs that it asked for continue.

    \b
    fleetgate key rm ci

    Exit codes: 0; 64 when there is no such key.
    """
    gate = opened_gate()
    gate.one(RemoveKey(name, whoami(gate.host)), durable=True)
    show_result(as_json, {"removed": name}, f"removed {name}")
