"""Suggestions for commands that do not exist: what people try, and close matches of what they mistype.

A suggestion is a command line to type. It is never run automatically.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import click

# What people type -> what does it here. `*` stands for the remaining words.
TRIED = {
    ("kill",): "fleetgate cancel ID (a waiting run or a job), or fleetgate release ID --force (a running agent's slot)",
    ("stop",): "fleetgate cancel ID (a job), or fleetgate pause POOL (no new agents)",
    ("rm",): "fleetgate cancel ID (a waiting run or a job), or fleetgate clean (finished jobs)",
    ("delete",): "fleetgate cancel ID (a waiting run or a job), or fleetgate clean (finished jobs)",
    ("remove",): "fleetgate cancel ID (a waiting run or a job), or fleetgate clean (finished jobs)",
    ("list",): "fleetgate ps (running), fleetgate queue (waiting), or fleetgate jobs",
    ("ls",): "fleetgate ps (running), fleetgate queue (waiting), or fleetgate jobs",
    ("log",): "fleetgate logs ID (a job's output), or fleetgate history (events)",
    ("events",): "fleetgate history",
    ("tail",): "fleetgate history -f, or fleetgate logs -f ID",
    ("watch",): "fleetgate top",
    ("monitor",): "fleetgate top",
    ("stats",): "fleetgate metrics",
    ("info",): "fleetgate status, or fleetgate show ID (a job)",
    ("inspect",): "fleetgate show ID (a job), or fleetgate explain POOL (a learned limit)",
    ("start",): "fleetgate run -- COMMAND…, fleetgate serve, or fleetgate worker",
    ("exec",): "fleetgate run *",
    ("add",): "fleetgate submit *",
    ("enqueue",): "fleetgate submit *",
    ("caps",): "fleetgate cap ls",
    ("limit",): "fleetgate cap set *",
    ("limits",): "fleetgate cap ls",
    ("set",): "fleetgate cap set *",
    ("unpause",): "fleetgate resume *",
    ("undrain",): "fleetgate drain * --end",
    ("server",): "fleetgate serve",
    ("dashboard",): "fleetgate open",
    ("ui",): "fleetgate open",
    ("init",): "fleetgate config path (where the config file goes), then fleetgate doctor",
    ("setup",): "fleetgate config path (where the config file goes), then fleetgate doctor",
    ("install",): "fleetgate doctor (checks this installation), or fleetgate completion SHELL",
    ("check",): "fleetgate doctor, or fleetgate config check",
    ("migrate",): "fleetgate store migrate",
    ("version",): "fleetgate --version",
    ("queue", "ls"): "fleetgate queue",
    ("queue", "list"): "fleetgate queue",
    ("queue", "cancel"): "fleetgate cancel *",
    ("queue", "rm"): "fleetgate cancel *",
    ("queue", "bump"): "fleetgate bump *",
    ("queue", "pause"): "fleetgate pause *",
    ("jobs", "ls"): "fleetgate jobs",
    ("jobs", "list"): "fleetgate jobs",
    ("jobs", "show"): "fleetgate show *",
    ("jobs", "logs"): "fleetgate logs *",
    ("jobs", "cancel"): "fleetgate cancel *",
    ("jobs", "retry"): "fleetgate retry *",
    ("jobs", "submit"): "fleetgate submit *",
    ("jobs", "clean"): "fleetgate clean *",
    ("cap", "list"): "fleetgate cap ls",
    ("cap", "show"): "fleetgate cap ls",
    ("cap", "get"): "fleetgate cap ls",
    ("cap", "add"): "fleetgate cap set *",
    ("cap", "delete"): "fleetgate cap rm *",
    ("cap", "remove"): "fleetgate cap rm *",
    ("backoff", "list"): "fleetgate backoff ls",
    ("backoff", "add"): "fleetgate backoff set *",
    ("backoff", "rm"): "fleetgate backoff clear *",
    ("backoff", "reset"): "fleetgate backoff clear *",
    ("session", "list"): "fleetgate session ls",
    ("session", "rm"): "fleetgate session clear *",
    ("config", "set"): "edit the file that fleetgate config path prints, or fleetgate cap set SELECTOR N",
    ("config", "edit"): '$EDITOR "$(fleetgate config path)"',
    ("config", "get"): "fleetgate config show",
    ("config", "list"): "fleetgate config show",
    ("config", "ls"): "fleetgate config show",
    ("config", "validate"): "fleetgate config check *",
    ("config", "reload"): "nothing: an edited file is applied with the next command (or fleetgate config apply)",
    ("store", "show"): "fleetgate store status",
    ("store", "init"): "fleetgate store migrate",
}


def suggestion(argv: Sequence[str], ctx: click.Context | None) -> str:
    """A line that says what was probably meant; "" where that is not clear."""
    words = argv[1:] if argv[:1] == ["help"] else argv
    meant = _tried(words)
    if not meant and ctx is not None and isinstance(ctx.command, click.Group):
        meant = _close_match(words, ctx, ctx.command)
    if not meant:
        return ""
    return f"did you mean `{meant}`?" if meant.startswith("fleetgate ") and "(" not in meant else f"try:   {meant}"


def _tried(argv: Sequence[str]) -> str:
    if argv[:1] == ["cap"] and len(argv) == 3 and (argv[2].isdecimal() or argv[2] == "auto"):
        return f"fleetgate cap set {shlex.join(argv[1:])}"
    for length in (2, 1):
        found = TRIED.get(tuple(argv[:length]))
        if found is not None:
            return found.replace("*", shlex.join(argv[length:])).replace("  ", " ").rstrip()
    return ""


def _close_match(argv: Sequence[str], ctx: click.Context, group: click.Group) -> str:
    """The subcommand that is spelled most like the word after the group's own name."""
    from difflib import get_close_matches

    depth = len(ctx.command_path.split()) - 1
    matches = get_close_matches(argv[depth].lower(), group.list_commands(ctx), n=1) if len(argv) > depth else []
    return f"{ctx.command_path} {matches[0]}" if matches else ""
