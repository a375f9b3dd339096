"""`fleetgate top`: the whole gate, live in the terminal; the same as one text with `--once`."""

from __future__ import annotations

import os
import sys

import click

from fleetgate.cli.output.table import Screen
from fleetgate.cli.read_only_gate import current, opened
from fleetgate.core.errors import BadRequest


@click.command(short_help="Watch pools, queue and running agents, live.")
@click.option("--once", is_flag=True, help="Print one frame and exit; works without a terminal.")
def command(once: bool) -> int:
    """Watch the gate: pools, queue, running agents, backoffs, and the last ten minutes. It needs no server.

    ? lists the keys: select a ticket and cancel or bump it, pause a pool, raise or lower its cap, restore a reduced
    one, clear a backoff.

    \b
    fleetgate top
    fleetgate top --once

    Exit codes: 0; 64 without a terminal; 130 after Ctrl-C.
    """
    if once:
        return _once()
    _needs_a_terminal()
    from fleetgate.cli.top.loop import Live
    from fleetgate.cli.top.terminal import Display

    with opened() as gate:
        return Live(gate, Display()).run()


def _once() -> int:
    from fleetgate.cli.top.layout import draw_once
    from fleetgate.cli.top.loop import begin
    from fleetgate.cli.top.snapshot import snapshot
    from fleetgate.cli.top.trend import Trend

    with opened() as gate:
        state = current(gate)
        trend = Trend()
        begin(trend, gate, state)
        screen = Screen()
        draw_once(screen, snapshot(gate, state), trend)
        screen.show()
    return 0


def _needs_a_terminal() -> None:
    instead = (
        "`fleetgate top --once` prints one frame, `fleetgate status` the pools, `fleetgate history -f` follows the log"
    )
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadRequest(f"top needs a terminal; {instead}")
    if os.environ.get("TERM", "") in ("", "dumb"):
        raise BadRequest(f"top cannot draw on this terminal (TERM is {os.environ.get('TERM') or 'not set'}); {instead}")
