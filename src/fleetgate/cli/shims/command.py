"""`fleetgate shim`: shims for agents, installed, removed and listed."""

from __future__ import annotations

import os

import click

from fleetgate.cli.click_helpers import json_option, tell
from fleetgate.cli.output.table import Column, show_table
from fleetgate.cli.read_only_gate import note, say_json
from fleetgate.cli.shims.real_program import real_program
from fleetgate.cli.shims.shim_folder import ShimFolder
from fleetgate.cli.shims.startup_files import (
    SHELLS,
    CannotChange,
    add_block,
    path_block,
    remove_block,
    startup_files,
    user_shell,
)
from fleetgate.core.errors import BadRequest
from fleetgate.signals.agents.detect import KNOWN

_COLUMNS = (Column("AGENT"), Column("USED"), Column("STARTS"), Column("PROBLEM", least=20))


@click.group(short_help="Count agents that you start by name (`claude`).", no_args_is_help=True)
def command() -> None:
    """Count agents that you start by name, without typing `fleetgate run`.

    A shim is a small program with the name of an agent, first on PATH, that starts the real one under `fleetgate run`.

    \b
    fleetgate shim install claude
    fleetgate shim ls
    """


@command.command("install", short_help="Put a shim in front of an agent.")
@click.argument("agents", nargs=-1, metavar="AGENT…")
@click.option("--all", "everything", is_flag=True, help=f"All agents on PATH that Fleetgate knows: {', '.join(KNOWN)}.")
@click.option("--no-path", is_flag=True, help="Leave the start-up files of your shell unchanged.")
@click.option("--shell", type=click.Choice(SHELLS), help="Whose start-up files to change (default: your login shell).")
def install(agents: tuple[str, ...], everything: bool, no_path: bool, shell: str | None) -> None:
    """Put a shim in front of an agent, or renew it, and put the shims first on PATH for new shells.

    From then on every session of the agent waits for a slot and holds it until it ends. Inside another run it uses
    the slot of that run. `--version` and the like need no slot. If Fleetgate fails, the agent starts anyway.

    \b
    fleetgate shim install claude codex
    fleetgate shim install --all

    Exit codes: 0; 64 when there is no such program, or a shim would not be safe.
    """
    folder = ShimFolder(os.environ)
    names = list(dict.fromkeys(agents)) or (
        [name for name in KNOWN if real_program(name, os.environ)] if everything else []
    )
    if not names:
        found = "no known agent is on PATH" if everything else "which agents? Name them, or use --all"
        raise BadRequest(f"{found} (known: {', '.join(KNOWN)})")
    for name in names:
        folder.text_of(name)  # all can be made, or none is
    for name in names:
        made = folder.install(name)
        tell(f"{name}: {'installed' if made else 'already installed'} ({folder.path}/{name})")
    put_first(folder.path, shell or user_shell(os.environ), changes=not no_path)


@command.command("uninstall", short_help="Remove a shim.")
@click.argument("agents", nargs=-1, metavar="AGENT…")
@click.option("--all", "everything", is_flag=True, help="All shims.")
def uninstall(agents: tuple[str, ...], everything: bool) -> None:
    """Remove a shim: the agent starts as it did before. With the last shim, the line for PATH is removed, too.

    Running sessions continue, and keep their slots.

    \b
    fleetgate shim uninstall claude
    fleetgate shim uninstall --all

    Exit codes: 0; 64 when there is no such shim.
    """
    folder = ShimFolder(os.environ)
    names = list(dict.fromkeys(agents)) or (folder.names() if everything else [])
    if not names and not everything:
        raise BadRequest(f"which shims? Name them, or use --all (installed: {', '.join(folder.names()) or 'none'})")
    for name in names:
        if "/" in name or not folder.uninstall(name):
            raise BadRequest(f"{name}: there is no such shim (installed: {', '.join(folder.names()) or 'none'})")
        tell(f"{name}: removed")
    tell("in open shells, type: hash -r")
    if not folder.names():
        for path in remove_path_blocks():
            tell(f"{path}: removed the line for PATH")


@command.command("ls", short_help="List shims, and whether they are used.")
@json_option
def ls(as_json: bool) -> None:
    """List shims: whether this shell uses them, and which program each starts.

    \b
    fleetgate shim ls
    fleetgate shim ls --json
    """
    views = ShimFolder(os.environ).views()
    if as_json:
        say_json({"shims": views})
        return
    rows = [[view.name, "yes" if view.is_first else "no", view.real or "-", view.problem] for view in views]
    show_table(_COLUMNS, rows, "no shims; `fleetgate shim install AGENT` makes one")


def put_first(folder: str, shell: str, *, changes: bool) -> None:
    """Put the folder of the shims first on PATH in new shells, and say what to do in this one."""
    line = f'export PATH="{folder}:$PATH"'
    try:
        if not changes or not shell:
            raise CannotChange("" if not changes else f"your shell is none of {', '.join(SHELLS)}")
        for path in startup_files(shell, os.environ):
            if add_block(path, path_block(shell, folder)):
                tell(f"{path}: added a line that puts the shims first on PATH")
    except CannotChange as error:
        why = f"{error}. " if str(error) else ""
        note(f"{why}Put the shims first on PATH yourself, at the end of your shell's start-up file: {line}")
        return
    if os.environ.get("PATH", "").split(":")[0] != folder:
        tell(f"open a new terminal to use it, or type: {f'set -gx PATH {folder} $PATH' if shell == 'fish' else line}")


def remove_path_blocks() -> list[str]:
    """Remove the line for PATH from the start-up files of all shells; the files that were changed."""
    changed = []
    for shell in SHELLS:
        for path in _all_startup_files(shell):
            try:
                if remove_block(path, "shims"):
                    changed.append(path)
            except CannotChange as error:
                note(str(error))
    return changed


def _all_startup_files(shell: str) -> list[str]:
    """Also those that have no use for the block now, but may have had."""
    home = os.environ.get("HOME", "")
    logins = [f"{home}/{name}" for name in (".bash_profile", ".bash_login", ".profile")] if shell == "bash" else []
    return list(dict.fromkeys([*startup_files(shell, os.environ), *logins]))
