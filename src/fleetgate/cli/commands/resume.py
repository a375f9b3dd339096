"""`fleetgate resume`: ends a pause, manual or after a rate limit."""

from __future__ import annotations

import click

from fleetgate.cli.click_helpers import entered_text, json_option, kind_option, opened_gate, show_result
from fleetgate.cli.completion_values import complete_pool
from fleetgate.cli.name_arguments import NAME
from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.present.name_lookup import entered, kind_for, pool_target


@click.command(short_help="End a pause.")
@click.argument("target", type=NAME, shell_complete=complete_pool)
@kind_option
@json_option
def command(target: str, kind: str | None, as_json: bool) -> None:
    """End a pause, manual or after a rate limit. Waiting agents start as slots allow.

    A limit that rate limits have lowered stays lowered: `fleetgate cap set` restores it.

    TARGET is a pool as `fleetgate status` lists it, `host` for this machine, or a selector for all of its pools.

    \b
    fleetgate resume umans

    Exit codes: 0, even when it was not paused; 64 when there is no such pool.
    """
    gate = opened_gate()
    state = gate.read()
    found = kind_for(state, target, kind)
    name = pool_target(state, found, target, gate.host)
    events = gate.one(cmd.Resume(found, name), durable=True)
    pools = [event.pool for event in events if isinstance(event, ev.Resumed)]
    lines = [f"{pool} ({found}): resumed{_reduced(gate, found, pool)}" for pool in pools]
    lines = lines or [f"{name} ({found}): was not paused"]
    if entered(events):
        lines.append(entered_text(events).removeprefix("; "))
    document = {"pools": [{"pool": pool, "kind": found} for pool in pools], "entered": entered(events)}
    show_result(as_json, document, *lines)


def _reduced(gate: DirectGate, kind: str, name: str) -> str:
    pool = gate.state.named(kind, name)
    if pool is None or not pool.limiter.is_reduced:
        return ""
    cap = pool.configured_cap
    return f"; its limit is still {pool.limit} of {cap} after rate limits"
