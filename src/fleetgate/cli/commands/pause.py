"""`fleetgate pause`: stops admitting agents to a pool."""

from __future__ import annotations

import click

from fleetgate.cli.click_helpers import json_option, kind_option, opened_gate, read_duration_ms, show_result, until_text
from fleetgate.cli.completion_values import complete_pool
from fleetgate.cli.name_arguments import NAME
from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.state.state import State
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.present.name_lookup import kind_for, pool_target
from fleetgate.present.wall_time import utc


@click.command(short_help="Stop admitting agents to a pool.")
@click.argument("target", type=NAME, shell_complete=complete_pool)
@click.option("--for", "duration", metavar="DURATION", help="For how long (default: until `fleetgate resume`).")
@kind_option
@json_option
def command(target: str, duration: str | None, kind: str | None, as_json: bool) -> None:
    """Stop admitting agents to a pool. Running agents continue; waiting ones keep their place.

    TARGET is a pool as `fleetgate status` lists it, `host` for this machine, or a selector for all of its pools.

    \b
    fleetgate pause umans --for 10m
    fleetgate pause host

    Exit codes: 0; 64 when there is no such pool.
    """
    for_ms = read_duration_ms("--for", duration)
    gate = opened_gate()
    state = gate.read()
    found = kind_for(state, target, kind)
    name = pool_target(state, found, target, gate.host)
    events = gate.one(cmd.Pause(found, name, for_ms), durable=True)
    paused = [event for event in events if isinstance(event, ev.Paused)]
    lines = [
        f"{event.pool} ({found}): paused {until_text(gate, event.until)}{_running(gate, found, event.pool)}"
        for event in paused
    ]
    if others := other_pools(gate.state, found, [event.pool for event in paused]):
        lines.append(f"not paused, other accounts of the same cap: {', '.join(others)}")
    show_result(as_json, {"pools": [_as_json(gate, event) for event in paused]}, *lines)


def _as_json(gate: DirectGate, event: ev.Paused) -> dict[str, object]:
    """One pool. `paused_until` is null if only `fleetgate resume` ends the pause."""
    until = utc(event.until + gate.wall_offset_ms())
    return {"pool": event.pool, "kind": event.kind, "paused": True, "paused_until": until}


def _running(gate: DirectGate, kind: str, name: str) -> str:
    pool = gate.state.named(kind, name)
    return f"; {pool.used} running continue" if pool is not None and pool.used else ""


def other_pools(state: State, kind: str, pools: list[str]) -> list[str]:
    """Other pools of the same selectors: `umans` is a selector, and also the pool of the default account."""
    selectors = {pool.cap.selector.text for pool in state.pools.values() if pool.kind == kind and pool.id in pools}
    return sorted(
        pool.id
        for pool in state.pools.values()
        if pool.kind == kind and pool.id not in pools and pool.cap.selector.text in selectors - {"host", "project"}
    )
