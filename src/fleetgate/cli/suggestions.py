"""Suggestions for commands that do not exist: what people try, and close matches of what they mistype.

A suggestion is a command line to type. It is never run automatically.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import click

# What does it here -> what people type. `*` stands for the remaining words.
_MEANT = {
    "fleetgate stop ID (a running agent or job), or fleetgate cancel ID (a waiting one)": ("kill", "terminate"),
    "fleetgate cancel ID (a waiting run or a job), or fleetgate clean (finished jobs)": ("rm", "delete", "remove"),
    "fleetgate ps (running), fleetgate queue (waiting), or fleetgate jobs": ("list", "ls"),
    "fleetgate logs ID (a job's output), or fleetgate history (events)": ("log",),
    "fleetgate history": ("events",),
    "fleetgate history -f, or fleetgate logs -f ID": ("tail",),
    "fleetgate top": ("watch", "monitor"),
    "fleetgate metrics": ("stats",),
    "fleetgate status, or fleetgate show ID (a job)": ("info",),
    "fleetgate show ID (a job), or fleetgate explain POOL (a learned limit)": ("inspect",),
    "fleetgate run -- COMMAND…, fleetgate serve, or fleetgate worker": ("start",),
    "fleetgate run *": ("exec",),
    "fleetgate submit *": ("add", "enqueue", "jobs submit"),
    "fleetgate cap ls": ("caps", "limits", "cap list", "cap show", "cap get"),
    "fleetgate cap set *": ("limit", "set", "cap add"),
    "fleetgate resume *": ("unpause",),
    "fleetgate drain * --end": ("undrain",),
    "fleetgate serve": ("server",),
    "fleetgate open": ("dashboard", "ui"),
    "fleetgate init": ("setup", "install"),
    "fleetgate doctor, or fleetgate config check": ("check",),
    "fleetgate store migrate": ("migrate", "store init"),
    "fleetgate --version": ("version",),
    "fleetgate queue": ("queue ls", "queue list"),
    "fleetgate cancel *": ("queue cancel", "queue rm", "jobs cancel"),
    "fleetgate bump *": ("queue bump",),
    "fleetgate pause *": ("queue pause",),
    "fleetgate jobs": ("jobs ls", "jobs list"),
    "fleetgate show *": ("jobs show",),
    "fleetgate logs *": ("jobs logs",),
    "fleetgate retry *": ("jobs retry",),
    "fleetgate clean *": ("jobs clean",),
    "fleetgate cap rm *": ("cap delete", "cap remove"),
    "fleetgate backoff ls": ("backoff list",),
    "fleetgate backoff set *": ("backoff add",),
    "fleetgate backoff clear *": ("backoff rm", "backoff reset"),
    "fleetgate session ls": ("session list",),
    "fleetgate session clear *": ("session rm",),
    "edit the file (fleetgate config edit), or fleetgate cap set SELECTOR N": ("config set",),
    "fleetgate config show": ("config get", "config list", "config ls"),
    "fleetgate config check *": ("config validate",),
    "nothing: an edited file is applied with the next command (or fleetgate config apply)": ("config reload",),
    "fleetgate store status": ("store show",),
}
TRIED = {tuple(words.split()): meant for meant, tried in _MEANT.items() for words in tried}


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
