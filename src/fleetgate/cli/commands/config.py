"""`fleetgate config`: the settings in force and their sources, and the check of a config file."""

from __future__ import annotations

import os
import sys
from time import time_ns

import click
from msgspec.structs import replace

from fleetgate.cli import exit_codes
from fleetgate.cli.click_helpers import entered_text, json_option, opened_gate, show_result
from fleetgate.cli.open_gate import load_to_read
from fleetgate.cli.output.cap_table import COLUMNS, rows
from fleetgate.cli.output.table import Column, Screen
from fleetgate.cli.read_only_gate import note, say_json
from fleetgate.config.environment import Environment
from fleetgate.config.errors import ConfigError
from fleetgate.config.file import Loaded, load
from fleetgate.config.file_editor import edit_config
from fleetgate.config.paths import config_path, store_url
from fleetgate.core import events as ev
from fleetgate.core.entities import BudgetRule, Rule
from fleetgate.gate.slots.slot_gate import load_file, unapplied_text
from fleetgate.log.store_url import POSTGRES
from fleetgate.present.budgets.text import rule_text
from fleetgate.present.cap_listing import cap_text, lines
from fleetgate.present.effective_settings import values, warnings
from fleetgate.present.name_lookup import entered
from fleetgate.present.text import count, printable, printable_lines

_COLUMNS = (Column("SETTING"), Column("VALUE", least=20), Column("SOURCE"))
_Rules = dict[tuple[str, str], Rule]
_Budgets = dict[tuple[str, str, str], BudgetRule]


@click.group(short_help="Show settings in force; edit, check and apply config files.", no_args_is_help=True)
def command() -> None:
    """Show the settings in force and their sources; edit, check and apply config files.

    \b
    fleetgate config show
    fleetgate config edit
    fleetgate config check ~/.config/fleetgate/config.toml
    """


@command.command("show", short_help="Show every setting in force and its source.")
@json_option
def show(as_json: bool) -> None:
    """Show every setting in force and its source: the environment, run time, the file, or built in.

    It warns if run-time values hide the file, and if another file is in force. Secrets are not shown.

    \b
    fleetgate config show
    fleetgate config show --json

    Exit codes: 0; 78 when the environment is invalid.
    """
    environment = Environment.read()
    loaded = load_to_read(note)
    gate = opened_gate(loaded, configured=False)
    state = gate.read()
    found, caps = values(state, environment, loaded), lines(state, environment)
    notes = warnings(state, loaded, caps)
    if loaded is not None and (missing := gate.caps_not_in_force()):
        notes.append(unapplied_text(loaded.path, missing))
    if as_json:
        settings = [each.as_json() for each in found]
        say_json({"values": settings, "caps": caps, "warnings": notes})
        return
    screen = Screen()
    screen.table(_COLUMNS, [[_label(each.name), each.text, each.said_by] for each in found])
    screen.line()
    screen.table(COLUMNS, rows(caps))
    for warning in notes:
        screen.line()
        screen.prose(printable(f"warning: {warning}"), indent="  ")
    screen.show()


def _label(name: str) -> str:
    for unit in ("_ms", "_bytes"):
        name = name.removesuffix(unit)
    return name.replace("_", " ") if "." not in name else name


@command.command("check", short_help="Check a config file.")
@click.argument("file", required=False)
@json_option
def check(file: str | None, as_json: bool) -> int:
    """Check a config file; without FILE, the one in use. Nothing is changed.

    \b
    fleetgate config check ./config.toml

    Exit codes: 0 when it is valid; 78 with every error, its line, what was found and what is valid.
    """
    try:
        loaded = _load(file)
    except ConfigError as error:
        if not as_json:
            raise
        say_json({"path": file or config_path(), "valid": False, "problems": error.problems})
        return exit_codes.CONFIG
    caps = len(loaded.settings.rules)
    budgets = len(loaded.settings.budgets)
    numbers = [count(caps, "cap"), *([count(budgets, "budget")] if budgets else [])]
    text = f"{loaded.path}: valid ({', '.join(numbers)}, {count(len(loaded.settings.providers), 'provider')})"
    show_result(as_json, {"path": loaded.path, "valid": True, "caps": caps, "budgets": budgets, "problems": []}, text)
    if caps and store_url().startswith(POSTGRES):
        note(f"many machines share this store: to apply the caps of this file, `fleetgate config apply {loaded.path}`")
    return exit_codes.OK


@command.command("path", short_help="Print the location of the config file.")
@json_option
def path(as_json: bool) -> None:
    """Print the location of the config file, whether it exists or not.

    \b
    cat "$(fleetgate config path)"
    """
    where = config_path()
    show_result(as_json, {"path": where, "exists": os.path.exists(where)}, where)


@command.command("edit", short_help="Edit the config file; it is checked before it is saved.")
@json_option
def edit(as_json: bool) -> int:
    """Edit the config file with $VISUAL or $EDITOR. It is checked before it replaces the old one.

    After a mistake you can edit again; the file stays as it was until the new one is valid. The new settings are in
    force at once, for all processes of a local store.

    \b
    fleetgate config edit
    EDITOR='code --wait' fleetgate config edit

    Exit codes: 0 saved, or not changed; 75 not saved; 78 not valid, and there is no terminal to ask.
    """
    where = config_path()
    changed = edit_config(where, _edits_again)
    text = f"{where} was not changed"
    if changed:
        gate = opened_gate(_load(None), configured=False)
        gate.read()
        text = f"{where} was saved, and is in force"
        if missing := gate.caps_not_in_force():
            text = f"{where} was saved"
            note(unapplied_text(where, missing))
    show_result(as_json, {"path": where, "changed": changed}, text)
    return exit_codes.OK


def _edits_again(error: ConfigError) -> bool | None:
    """Show the mistakes and ask; None without a terminal."""
    if not has_terminal():
        return None
    print(printable_lines(str(error)), file=sys.stderr)
    try:
        return input("Edit again? [Y/n] ").strip().lower() not in ("n", "no", "q", "x")
    except EOFError:
        return False


def has_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


@command.command("apply", short_help="Apply the caps and budgets of a config file, even an older one.")
@click.argument("file", required=False)
@json_option
def apply(file: str | None, as_json: bool) -> None:
    """Apply the caps and budgets of a config file, even an older one; without FILE, the one in use.

    A newer file is applied automatically with the next command. Use this for a backup or another file. It stays in
    force until the config file is edited again. Values set at run time still override it.

    \b
    fleetgate config apply
    fleetgate config apply config.toml.bak

    Exit codes: 0; 78 when the file is invalid (nothing is changed).
    """
    loaded = _load(file)
    gate = opened_gate(configured=False)
    state = gate.read()
    before, budgets_before = state.rules.file, state.budget_rules.file
    # As if it were written now: the config file is applied again only when it is edited after this.
    now_ms = max(time_ns() // 1_000_000, loaded.mtime_ms, state.file_modified)
    events = gate.one(load_file(replace(loaded, mtime_ms=now_ms), force=True), durable=True)
    applied = any(isinstance(event, ev.FileLoaded) for event in events)
    changes = _changes(before, gate.state.rules.file) + _budget_changes(budgets_before, gate.state.budget_rules.file)
    document = {"path": loaded.path, "digest": loaded.digest, "applied": applied, "changes": changes}
    lines = [f"  {each['selector']} ({each['kind']}): {each['before']} -> {each['after']}" for each in changes]
    text = f"{loaded.path} is now in force{entered_text(events)}" if applied else f"{loaded.path}: already in force"
    show_result(as_json, {**document, "entered": entered(events)}, text, *lines)


def _budget_changes(before: _Budgets, after: _Budgets) -> list[dict[str, str]]:
    """The budgets of the file that have changed."""
    changes = []
    for key in sorted({**before, **after}):
        old, new = (rule_text(rule) if rule else "none" for rule in (before.get(key), after.get(key)))
        if old != new:
            changes.append({"kind": "budget", "selector": key[0], "before": old, "after": new})
    return changes


def _load(file: str | None) -> Loaded:
    loaded = load(os.path.abspath(file) if file else config_path(), required=True)
    assert loaded is not None
    return loaded


def _changes(before: _Rules, after: _Rules) -> list[dict[str, str]]:
    """The caps of the file that have changed."""
    changes = []
    for key in sorted({**before, **after}):
        old, new = (cap_text(rule.cap, rule.auto) if rule else "none" for rule in (before.get(key), after.get(key)))
        if old != new:
            changes.append({"kind": key[0], "selector": key[1], "before": old, "after": new})
    return changes
