"""`fleetgate session`: the agent sessions that `fleetgate run --session` remembers."""

from __future__ import annotations

from time import time_ns

import click

from fleetgate.cli.click_helpers import json_option, opened_gate, show_result
from fleetgate.cli.completion_values import complete_session
from fleetgate.cli.output.table import Column, show_table
from fleetgate.cli.read_only_gate import opened, say_json
from fleetgate.core.errors import BadRequest
from fleetgate.core.model_names import shown
from fleetgate.gate import agent_sessions
from fleetgate.gate.agent_sessions import Place, Remembered
from fleetgate.present.log_time import Json
from fleetgate.present.text import some, span
from fleetgate.present.wall_time import utc

_COLUMNS = (
    Column("KEY", least=16, name=True),
    Column("AGENT"),
    Column("ACCOUNT", name=True),
    Column("SESSION", least=16),
    Column("USED"),
    Column("HOST"),
)


@click.group(short_help="List and clear the sessions that `run --session` resumes.", no_args_is_help=True)
def command() -> None:
    """List and clear the agent sessions that `fleetgate run --session KEY` remembers and resumes.

    \b
    fleetgate session ls
    fleetgate session clear issue-12
    """


@command.command("ls", short_help="List the remembered sessions.")
@json_option
def ls(as_json: bool) -> None:
    """List the remembered sessions, the most recently used first.

    \b
    fleetgate session ls
    fleetgate session ls --json
    """
    with opened(configured=False) as gate:
        found = agent_sessions.every(gate.log)
        if as_json:
            say_json({"sessions": [session_json(where, remembered) for where, remembered in found]})
        else:
            now = time_ns() // 1_000_000
            show_table(_COLUMNS, [_row(where, remembered, now) for where, remembered in found], "no sessions")


def session_json(where: Place, remembered: Remembered) -> Json:
    return {
        "key": where.key,
        "agent": where.agent,
        "provider": where.provider or None,
        "account": where.account or None,
        "host": where.host,
        "session": remembered.session,
        "used_at": utc(remembered.at),
    }


def _row(where: Place, remembered: Remembered, now: int) -> list[str]:
    used = f"{span(max(now - remembered.at, 0))} ago"
    return [where.key, where.agent, _account(where), remembered.session, used, where.host]


def _account(where: Place) -> str:
    return f"{where.provider}@{where.account}" if where.account not in ("", "default") else where.provider or "-"


@command.command("clear", short_help="Forget sessions, so that the next run starts a new one.")
@click.argument("key", required=False, shell_complete=complete_session)
@click.option("--all", "everything", is_flag=True, help="Forget all sessions.")
@json_option
def clear(key: str | None, everything: bool, as_json: bool) -> None:
    """Forget the sessions of a key, for every agent, account and host. The next run with it starts a new one.

    The agents' own files are not touched. A run in progress stores its session when it ends.

    \b
    fleetgate session clear issue-12
    fleetgate session clear --all

    Exit codes: 0; 64 when there is no session with this key.
    """
    if (key is None) != everything:
        raise BadRequest("which one? Give a KEY (see `fleetgate session ls`) or --all")
    gate = opened_gate(configured=False)
    found = agent_sessions.every(gate.log)
    meant = [where for where, _ in found if everything or where.key == key]
    if key is not None and not meant:
        keys = list(dict.fromkeys(where.key for where, _ in found))
        raise BadRequest(f"{shown(key)}: no session with this key; keys: {some(keys) or 'none'}")
    if meant:
        gate.decide([], durable=True, side=[agent_sessions.forget(where) for where in meant])
    keys = list(dict.fromkeys(where.key for where in meant))
    show_result(as_json, {"cleared": keys}, f"cleared: {some(keys)}" if keys else "no sessions")
