"""`fleetgate node`: one process that decides for all others of this host (docs/node.md)."""

from __future__ import annotations

import click

from fleetgate.cli.click_helpers import read_duration_ms
from fleetgate.cli.log_output import log_format_option, log_to_stderr
from fleetgate.cli.open_gate import load_config

IDLE_MS = 60_000


@click.command(short_help="Run one process that decides for all others on this host.")
@click.option("--idle", metavar="DURATION", help="Exit after this long without work (default: never).")
@click.option("--by-itself", is_flag=True, hidden=True, help="Started by another command: exits when it is not needed.")
@log_format_option
def command(idle: str | None, by_itself: bool, log_format: str) -> int:
    """Run the node of this host until you stop it.

    `fleetgate run` and `acquire` on this host then connect to it through a socket in the state folder instead of
    opening the store: a thousand waiting agents need one connection and one copy of the state. If the node
    exits, nothing is lost: waiting agents use the store directly.

    \b
    fleetgate node
    fleetgate node --idle 10m

    Exit codes: 0 when stopped (TERM, INT), idle for too long, or another node is already running; 69 store
    unreachable; 64 usage; 78 config.
    """
    from fleetgate.gate.node.run import run_node

    log_to_stderr(log_format, with_time=True)
    idle_ms = read_duration_ms("--idle", idle)
    return run_node(load_config(), idle_s=(idle_ms or IDLE_MS) / 1000 if idle_ms or by_itself else None)
