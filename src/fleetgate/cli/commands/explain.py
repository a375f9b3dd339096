"""`fleetgate explain POOL`: what the gate believes of a provider's limit, and why."""

from __future__ import annotations

import click

from fleetgate.cli.click_helpers import gate_to_read, json_option, kind_option, show_result
from fleetgate.cli.completion_values import complete_pool
from fleetgate.cli.name_arguments import NAME
from fleetgate.present.limits.explanation import explanation_of, explanation_shape, summary
from fleetgate.present.log_time import LogTimes


@click.command(short_help="Explain what Fleetgate has learned about a limit.")
@click.argument("pool", shell_complete=complete_pool, type=NAME)
@kind_option
@json_option
def command(pool: str, kind: str | None, as_json: bool) -> None:
    """Explain what Fleetgate has learned about a pool's limit: what worked, what was refused, when it tries more.

    POOL is a pool that `fleetgate status` lists, e.g. umans or umans@work, or `host` for this machine.

    The first sentence is the belief; the last lines say what would change it.

    \b
    fleetgate explain umans

    Exit codes: 0; 64 when there is no such pool.
    """
    gate = gate_to_read()
    state, moments = gate.read(), LogTimes(gate)
    said = explanation_of(state, pool, kind, gate.host, moments.now)
    limit = "no limit" if said.limit is None else f"limit {said.limit}"
    head = f"{said.pool} ({said.kind}): {said.in_flight} in flight, {said.cooling} cooling, {limit}, cap {said.cap}"
    believed = summary(said, moments)
    lines = [head, *([] if believed is None else [believed]), *said.sentences, "What would change the limit:"]
    show_result(as_json, explanation_shape(said, moments), *lines, *(f"  {change}" for change in said.changes))
