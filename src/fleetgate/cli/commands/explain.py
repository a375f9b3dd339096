"""`fleetgate explain POOL`: what the gate believes of a provider's limit, and why."""

from __future__ import annotations

import click

from fleetgate.cli.click_helpers import gate_to_read, json_option, kind_option, show_result
from fleetgate.cli.completion_values import complete_pool
from fleetgate.cli.name_arguments import NAME
from fleetgate.present.limit_explanation import explained
from fleetgate.present.log_time import LogTimes


@click.command(short_help="Explain what Fleetgate has learned about a limit.")
@click.argument("pool", shell_complete=complete_pool, type=NAME)
@kind_option
@json_option
def command(pool: str, kind: str | None, as_json: bool) -> None:
    """Explain what Fleetgate has learned about a pool's limit: what worked, what was refused, when it tries more.

    POOL is a pool that `fleetgate status` lists, e.g. umans or umans@work, or `host` for this machine.

    \b
    fleetgate explain umans

    Exit codes: 0; 64 when there is no such pool.
    """
    gate = gate_to_read()
    said = explained(gate.read(), pool, kind, gate.host, LogTimes(gate))
    limit = "no limit" if said.limit is None else f"limit {said.limit}"
    text = f"{said.pool} ({said.kind}): {said.in_flight} in flight, {said.cooling} cooling, {limit}, cap {said.cap}"
    show_result(as_json, said, text, *said.sentences)
