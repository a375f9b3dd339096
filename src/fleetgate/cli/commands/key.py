"""`fleetgate key`: access keys for people and programs that use the service (rules E1, E2)."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from fleetgate.cli.access.key_store import KeyStore, OwnKeys, ServiceKeys
from fleetgate.cli.click_helpers import json_option, read_duration_ms, show_result
from fleetgate.cli.completion_values import complete_key
from fleetgate.cli.output.table import Column, show_table
from fleetgate.cli.read_only_gate import say_json
from fleetgate.core.access.keys import ROLES, AccessKey
from fleetgate.core.entities import CLASSES
from fleetgate.present.access.key_listing import AccessKeyShape, rights_text
from fleetgate.present.access.key_request import KeyRequest
from fleetgate.present.json.projects import share_text
from fleetgate.present.text import span

_COLUMNS = (
    Column("NAME", least=12, name=True),
    Column("ROLE"),
    Column("PROJECT", name=True),
    Column("CLASS"),
    Column("MAX PRIORITY", right=True),
    Column("RUNNING", right=True),
    Column("WAITING", right=True),
    Column("SHARE", right=True),
    Column("CREATED"),
    Column("EXPIRES"),
)
_ONCE = "this is the only time it is shown; keep it where only its user can read it"


@click.group(short_help="Create, list, rotate and remove access keys.", no_args_is_help=True)
@click.option(
    "--service",
    metavar="URL",
    envvar="FLEETGATE_SERVICE",
    help="Of a service elsewhere, with FLEETGATE_KEY or FLEETGATE_TOKEN (default: this machine's).",
)
@click.pass_context
def command(context: click.Context, service: str | None) -> None:
    """Create, list, rotate and remove access keys for people and programs that use `fleetgate serve`.

    A key is sent as `Authorization: Bearer KEY`. Its role says what it may do: a viewer reads; an agent acquires
    slots, reports and submits jobs, all for its own project; an operator reads, and manages caps, queue and jobs; an
    admin also manages keys. The service's own token is an admin.

    With --service, the keys are those of a service elsewhere. It is asked over HTTP, with the token or the access key
    of an admin in FLEETGATE_TOKEN or FLEETGATE_KEY.

    \b
    fleetgate key create ci --role agent --project web --class batch --max-priority 0
    fleetgate key ls
    fleetgate key rm ci
    fleetgate key --service https://gate.example.org ls
    """
    context.obj = OwnKeys() if service is None else ServiceKeys(service)


@command.command("create", short_help="Create a key and print it once.")
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), default="agent", show_default=True, help="What the key may do.")
@click.option("--project", default="", metavar="NAME", help="The project of all its requests. An agent needs one.")
@click.option("--class", "work_class", type=click.Choice(CLASSES), help="The class of all its requests.")
@click.option("--max-priority", type=int, metavar="N", help="The highest priority of its requests.")
@click.option("--max-running", type=int, metavar="N", help="How many agents, and how many calls, it may run at once.")
@click.option(
    "--budget", "budgets", multiple=True, metavar="UNIT=AMOUNT/PERIOD", help="A budget of its own: usd=5/day."
)
@click.option("--expires", metavar="DURATION", help="How long it is valid, for example 90d (default: for ever).")
@json_option
@click.pass_obj
def create(
    keys: KeyStore,
    name: str,
    role: str,
    project: str,
    work_class: str | None,
    max_priority: int | None,
    max_running: int | None,
    budgets: tuple[str, ...],
    expires: str | None,
    as_json: bool,
) -> None:
    """Create a key and print it. It is not stored: only a salted digest of it is, so it cannot be shown again.

    --max-running and --budget set caps and budgets of `key:NAME`, which `fleetgate cap set` and `fleetgate budget set`
    change later.

    \b
    fleetgate key create ci --project web --class batch --max-priority 0
    fleetgate key create bob --project web --max-running 4 --budget usd=20/day
    fleetgate key create wallboard --role viewer --expires 90d

    Exit codes: 0; 64 when something is invalid, or there is a key with this name; with --service, 69 when the service
    does not answer, and 77 when it refuses.
    """
    lasts_ms = read_duration_ms("--expires", expires) or 0
    asked = KeyRequest(name, role, project, work_class or "", max_priority, lasts_ms, max_running, budgets)
    text = keys.create(asked)
    if as_json:
        say_json({"name": name, "key": text})
        return
    click.echo(text)
    rights = rights_text(AccessKey(name, "", role, project, work_class or "", max_priority))
    if max_running is not None:
        rights += f", {max_running} at once"
    rights += "".join(f", {budget}" for budget in budgets)
    click.echo(f"fleetgate: created {name}: {rights}; {_ONCE}", err=True)


@command.command("ls", short_help="List the keys.")
@json_option
@click.pass_obj
def ls(keys: KeyStore, as_json: bool) -> None:
    """List the keys, what they may do and what they have at the gate. The keys themselves are not stored.

    SHARE is the part of the slots in use that a key has, and the fair share of its project, as in `fleetgate projects`.

    \b
    fleetgate key ls
    fleetgate key ls --json
    """
    shapes = keys.every()
    if as_json:
        say_json({"keys": shapes})
        return
    now = datetime.now(UTC)
    rows = [_row(shape, now) for shape in shapes]
    show_table(_COLUMNS, rows, "no keys (to make one: fleetgate key create NAME --project PROJECT)")


def _row(shape: AccessKeyShape, now: datetime) -> list[str]:
    ends = "expired" if shape.expired else f"in {_distance(shape.expires_at, now)}" if shape.expires_at else "-"
    caps = sorted(set(shape.caps.values()))
    running = f"{shape.running} of {'/'.join(map(str, caps))}" if caps else str(shape.running)
    priority = "" if shape.max_priority is None else str(shape.max_priority)
    made = f"{_distance(shape.created_at, now)} ago"
    rights = [shape.name, shape.role, shape.project or "", shape.work_class or "", priority]
    return [*rights, running, str(shape.waiting), share_text(shape.shares) or "-", made, ends]


def _distance(moment: str | None, now: datetime) -> str:
    """How far a moment is from now."""
    return span(abs(int((datetime.fromisoformat(moment or "") - now).total_seconds() * 1000)))


@command.command("rotate", short_help="Replace a key by a new one with the same rights.")
@click.argument("name", shell_complete=complete_key)
@json_option
@click.pass_obj
def rotate(keys: KeyStore, name: str, as_json: bool) -> None:
    """Replace a key by a new one with the same name and rights, and print it. The old one is worth nothing at once.

    \b
    fleetgate key rotate ci

    Exit codes: 0; 64 when there is no such key.
    """
    text = keys.rotate(name)
    if as_json:
        say_json({"name": name, "key": text})
        return
    click.echo(text)
    click.echo(f"fleetgate: rotated {name}; {_ONCE}", err=True)


@command.command("rm", short_help="Remove a key.")
@click.argument("name", shell_complete=complete_key)
@json_option
@click.pass_obj
def rm(keys: KeyStore, name: str, as_json: bool) -> None:
    """Remove a key: it is worth nothing at once. Slots and jobs that it asked for continue.

    Caps and budgets of `key:NAME` that were set at run time end with it.

    \b
    fleetgate key rm ci

    Exit codes: 0; 64 when there is no such key.
    """
    keys.remove(name)
    show_result(as_json, {"removed": name}, f"removed {name}")
