"""`fleetgate backoff`: models and accounts that are not used for a while, and why."""

from __future__ import annotations

import shlex

import click

from fleetgate.cli.click_helpers import (
    entered_text,
    json_option,
    opened_gate,
    read_duration_ms,
    show_result,
    until_text,
)
from fleetgate.cli.completion_values import complete_backoff, complete_model
from fleetgate.cli.name_arguments import NAME
from fleetgate.cli.output.table import Column, Screen, show_table
from fleetgate.cli.read_only_gate import current, opened, say_json
from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.errors import BadRequest
from fleetgate.core.pools.backoff import Backoff, parse_key
from fleetgate.present.json.state import backoff_json, watches_credential
from fleetgate.present.log_time import LogTimes
from fleetgate.present.name_lookup import check_provider, read_backoff

_COLUMNS = (
    Column("KEY", least=16, name=True),
    Column("SCOPE"),
    Column("REASON"),
    Column("ENDS"),
    Column("EVIDENCE", least=12),
)


@click.group(short_help="List, set and clear backoffs of models and accounts.", no_args_is_help=True)
def command() -> None:
    """List, set and clear backoffs: models and accounts that are not used for a while, and why.

    \b
    fleetgate backoff ls
    fleetgate backoff set anthropic/claude-opus-4-6 rate_limited 10m
    fleetgate backoff clear anthropic/claude-opus-4-6
    """


@command.command("ls", short_help="List the backoffs in force.")
@json_option
def ls(as_json: bool) -> None:
    """List the backoffs in force: what is not used, why, until when, and the evidence.

    \b
    fleetgate backoff ls
    fleetgate backoff ls --json
    """
    with opened() as gate:
        state = current(gate)
        moments = LogTimes(gate)
        backoffs = [backoff for _, backoff in sorted(state.backoffs.items())]
        if as_json:
            say_json({"backoffs": [backoff_json(backoff, moments) for backoff in backoffs]})
        else:
            show_table(_COLUMNS, _rows(backoffs, moments), "no backoffs")


def draw_backoffs(screen: Screen, backoffs: list[Backoff], moments: LogTimes) -> None:
    screen.table(_COLUMNS, _rows(backoffs, moments))


def _rows(backoffs: list[Backoff], moments: LogTimes) -> list[list[str]]:
    return [[each.key, each.scope, each.reason, ends_text(each, moments), each.evidence] for each in backoffs]


def clear_hint(backoffs: list[Backoff]) -> str:
    """How to end these backoffs manually."""
    key = backoffs[0].key if len(backoffs) == 1 else "KEY"
    return f"to use it sooner: fleetgate backoff clear {shlex.quote(key)}"


def ends_text(backoff: Backoff, moments: LogTimes) -> str:
    """When a backoff ends, in words."""
    if backoff.probing:
        return f"when {backoff.probing} succeeds"
    if moments.now >= backoff.probe_at:
        return "after the next success"
    probe = "one try " if backoff.must_probe or backoff.probe_at < backoff.until else ""
    changed = ", or new login" if watches_credential(backoff) else ""
    return f"{probe}in {moments.left(backoff.probe_at)}{changed}"


@command.command("set", short_help="Do not use a model or account for a while.")
@click.argument("key", type=NAME, shell_complete=complete_model)
@click.argument("reason")
@click.argument("duration", required=False)
@json_option
def set_(key: str, reason: str, duration: str | None, as_json: bool) -> None:
    """Do not use a model, a family of models or an account for a while. An existing backoff is replaced.

    KEY is a model (anthropic/claude-opus-4-6), a family (anthropic/claude-opus-*) or an account (anthropic,
    anthropic@work). REASON is rate_limited, usage_window, quota, overloaded, auth or server_error; auth and quota
    always apply to the account. DURATION is like 10m; a bare number is seconds (default: 60s for rate_limited, 1h for
    auth and quota, 5m for the others).

    \b
    fleetgate backoff set openai/gpt-5 overloaded 5m
    fleetgate backoff set anthropic@work auth

    Exit codes: 0; 64 when something is invalid (nothing is changed).
    """
    name, meant = read_backoff(key, reason)
    for_ms = read_duration_ms("DURATION", duration)
    gate = opened_gate()
    check_provider(key, gate.read(), gate.settings)
    refused = gate.credentials.used_for(f"{name}/any").digest if meant == "auth" else ""
    events = gate.one(cmd.BackOff(name, meant, for_ms, refused), durable=True)
    (made,) = [event for event in events if isinstance(event, ev.BackedOff)]
    wider = (
        [f"{meant} concerns the account: it applies to every model of {made.key}"] if name != parse_key(key)[0] else []
    )
    sooner = ", or until its credential changes" if made.credential else ""
    done = f"{made.key}: backed off ({made.reason}) {until_text(gate, made.until)}{sooner}"
    show_result(as_json, backoff_json(gate.state.backoffs[made.key], LogTimes(gate)), *wider, done)


@command.command("clear", short_help="Use a model or account again.")
@click.argument("keys", nargs=-1, metavar="KEY…", shell_complete=complete_backoff)
@click.option("--all", "everything", is_flag=True, help="Clear all backoffs.")
@json_option
def clear(keys: tuple[str, ...], everything: bool, as_json: bool) -> None:
    """Use models or accounts again. Requests that waited for them start at once.

    \b
    fleetgate backoff clear anthropic/claude-opus-4-6
    fleetgate backoff clear --all

    Exit codes: 0; 64 when one of them is not backed off (nothing is changed).
    """
    if bool(keys) == everything:
        raise BadRequest("which ones? Give KEYs (see `fleetgate backoff ls`) or --all")
    gate = opened_gate()
    state = gate.read()
    names = sorted(state.backoffs) if everything else [parse_key(key)[0] for key in dict.fromkeys(keys)]
    unknown = [name for name in names if name not in state.backoffs]
    if unknown:
        listed = ", ".join(sorted(state.backoffs)) or "none"
        raise BadRequest(f"{', '.join(unknown)}: not backed off; backoffs: {listed}")
    decided = gate.decide([cmd.EndBackoff(name) for name in names], durable=True)
    events = [event for each in decided for event in each.events]
    text = f"cleared: {', '.join(names)}{entered_text(events)}" if names else "no backoffs"
    show_result(as_json, {"cleared": names}, text)
