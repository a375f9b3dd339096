"""`headgate explain POOL`: what the gate believes of a provider's limit, and why."""

from __future__ import annotations

import click

from headgate.cli import exits
from headgate.cli.listing import say_json
from headgate.cli.targets import json_option, kind_option, opened_gate, tell
from headgate.core.errors import NotFound
from headgate.core.explaining import Explanation, explain
from headgate.present.moments import Moments
from headgate.present.targets import kind_for, pool_target


@click.command(short_help="What is believed of a provider's limit, and why.")
@click.argument("pool")
@kind_option
@json_option
def command(pool: str, kind: str | None, as_json: bool) -> int:
    """Tell in sentences what a pool's limit is, what was proven and refused, and when more is tried.

    POOL is a pool as `headgate status` lists it, e.g. umans or umans@work, or `host` for this machine.

    \b
    headgate explain umans

    Exit: 0; 64 when no cap makes such a pool.
    """
    gate = opened_gate()
    state = gate.read()
    found = kind_for(state, pool, kind)
    named = state.named(found, pool_target(state, found, pool, gate.host))
    if named is None:
        pools = [known.id for known in state.pools.values() if known.kind == found and known.cap.capped]
        raise NotFound(f"{pool} is not one pool of kind {found}: there are {', '.join(sorted(pools)) or 'none'}")
    said = explain(named, gate.now())
    if as_json:
        say_json(_as_json(said, Moments(gate)))
        return exits.OK
    limit = "no limit" if said.limit is None else f"limit {said.limit}"
    tell(f"{said.pool} ({said.kind}): {said.in_flight} in flight, {said.cooling} cooling, {limit}, cap {said.cap}")
    for sentence in said.sentences:
        tell(sentence)
    return exits.OK


def _as_json(said: Explanation, moments: Moments) -> dict[str, object]:
    told = {name: getattr(said, name) for name in said.__struct_fields__}
    for name in ("proven_at", "last_refusal_at", "next_probe_at"):
        told[name] = moments.utc(told[name])
    return told
