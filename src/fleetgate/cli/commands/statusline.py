"""`fleetgate statusline`: one line for the status line of Claude Code (see cli/statusline/)."""

from __future__ import annotations

import click

from fleetgate.cli.statusline.line import print_line


@click.command(short_help="One line for an agent's status line.")
@click.option("--account", metavar="ACCOUNT", default="", help="Whose plan the windows are of (default: anthropic).")
def command(account: str) -> int:
    """Print one line: slots, queue, plan windows, cost today. Never fails, never waits.

    Claude Code gives its status line JSON on stdin. The plan windows in it are recorded, for the whole fleet.

    \b
    in ~/.claude/settings.json:
    {"statusLine": {"type": "command", "command": "fleetgate statusline"}}
    """
    return print_line(account)
