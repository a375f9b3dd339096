"""`fleetgate node`: one process that decides for all others of this host (docs/node.md)."""

from __future__ import annotations

import click

from fleetgate.cli.click_helpers import read_duration_ms
from fleetgate.cli.log_output import log_format_option, log_to_stderr
from fleetgate.cli.open_gate import load_config

IDLE_MS = 60_000


@click.command(short_help="One process that decides for all others of this host.")
@click.option("--idle", metavar="DURATION", help="End after so long without anything to do (default: never).")
@click.option("--by-itself", is_flag=True, hidden=True, help="Started by another command: ends when nobody needs it.")
@log_format_option
def command(idle: str | None, by_itself: bool, log_format: str) -> int:
    """Run the node of this host, until it is told to stop.

    `fleetgate run` and `acquire` on this host then ask it over a socket in the state folder, and none of them opens the
    store: a thousand that wait cost one connection and one copy of the state. Without a node each goes to the store
    itself. When it ends, whatever way, nothing is lost: those who wait notice, and go on without it.

    \b
    fleetgate node
    fleetgate node --idle 10m

    Exit: 0 when it was told to stop (TERM, INT), had nothing to do for so long, or another one runs already; 69 when
    the store cannot be used, 64 usage, 78 config.
    """
    from fleetgate.gate.node.run import run_node

    log_to_stderr(log_format, with_time=True)
    idle_ms = read_duration_ms("--idle", idle)
    return run_node(load_config(), idle_s=(idle_ms or IDLE_MS) / 1000 if idle_ms or by_itself else None)
