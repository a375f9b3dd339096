"""`headgate report`: a rate limit that a script saw, so that everybody slows down (SPEC P1-P3)."""

from __future__ import annotations

import click

from headgate.cli import exits
from headgate.cli.listing import say_json
from headgate.cli.targets import (
    find_id,
    json_option,
    kind_for,
    kind_option,
    opened_gate,
    pool_target,
    read_duration_ms,
    some,
    tell,
    until_text,
)
from headgate.cli.times import utc
from headgate.core import commands as cmd
from headgate.core import events as ev
from headgate.core.errors import BadRequest, HeadgateError
from headgate.core.names import parse_model
from headgate.core.pools import Pool
from headgate.core.records import Spec
from headgate.core.state import State
from headgate.gate.direct import DirectGate


@click.command(short_help="Tell the gate of a rate limit that a script saw.")
@click.argument("target", required=False)
@click.option("--rate-limited", is_flag=True, help="The provider said: too many requests (429).")
@click.option("--retry-after", metavar="SECONDS", help="How long the provider said to wait (default 30).")
@click.option("--lease", metavar="ID", help="The lease whose call was refused: several of one moment are one incident.")
@kind_option
@json_option
def command(
    target: str | None, rate_limited: bool, retry_after: str | None, lease: str | None, kind: str | None, as_json: bool
) -> int:
    """Tell the gate of a rate limit: the pool is paused, and with on_429 = step its limit is lowered by one.

    TARGET is a pool as `headgate status` lists it, or a model: then its narrowest capped pool is meant. With --lease it
    is the narrowest capped pool of that lease, and TARGET may be left out. A later report may make a pause longer,
    never shorter.

    \b
    headgate report umans --rate-limited --retry-after 30
    headgate report --rate-limited --lease "$id"

    Exit: 0; 64 when no cap makes such a pool.
    """
    if not rate_limited:
        raise BadRequest("say what was seen: valid is --rate-limited")
    if not target and not lease:
        raise BadRequest("say where: a pool, a model or --lease ID, for example `headgate report umans --rate-limited`")
    wait_ms = read_duration_ms("--retry-after", retry_after, zero=True)
    gate = opened_gate()
    state = gate.read()
    report = _of_lease(state, lease, target, kind) if lease else _of_target(state, target or "", kind, gate.host)
    report.retry_after_ms = wait_ms
    events = gate.one(report)
    pool = _acted_on(gate.state, report)
    if as_json:
        say_json(_as_json(gate, pool, events))
    else:
        tell(_as_text(gate, pool, events))
    return exits.OK


def _of_lease(state: State, lease: str, target: str | None, kind: str | None) -> cmd.Report:
    ident = find_id(state, lease)
    held = state.leases.get(ident)
    if held is None:
        raise BadRequest(f"{ident} is still in line: nothing of it can have been refused")
    if kind is not None and kind != held.ticket.spec.kind:
        raise BadRequest(f"--kind {kind}: the lease {ident} is of kind {held.ticket.spec.kind}")
    report = cmd.Report(id=ident)
    pool = _acted_on(state, report)
    if target and target not in (held.model, pool.id if pool is not None else ""):
        acts = f"acts on {pool.id}" if pool is not None else "acts on no pool"
        raise BadRequest(f"a report for {ident} {acts}, not on {target}: leave out one of TARGET and --lease")
    return report


def _of_target(state: State, target: str, kind: str | None, host: str) -> cmd.Report:
    found = kind or _kind_of(state, target) or kind_for(state, target)
    if target in ("host", "project") or target.startswith(("host:", "project:")):
        raise BadRequest(f"a rate limit never acts on {target}: valid is a provider's pool or a model")
    if _on_model(state, found, target):
        return cmd.Report(kind=found, target=target)
    name = pool_target(state, found, target, host)
    if state.named(found, name) is None:
        pools = [pool.id for pool in state.pools.values() if pool.kind == found and pool.cap.selector.text == name]
        raise BadRequest(f"{target} has a pool for each account, and a report is about one: {some(sorted(pools))}")
    return cmd.Report(kind=found, target=name)


def _kind_of(state: State, target: str) -> str | None:
    """The kind of the cap that is meant; with both, it was a model call that was refused."""
    for kind in ("requests", "agents"):
        need = state.rules.find(kind, target)
        if (need is not None and need.cap.capped) or _on_model(state, kind, target):
            return kind
    return None


def _on_model(state: State, kind: str, target: str) -> bool:
    """Whether `target` is a model that some cap of this kind is on."""
    try:
        model = parse_model(target)
    except HeadgateError:
        return False
    needs = state.rules.needs(Spec(models=(str(model),), kind=kind), model)
    return any(need.cap.capped and need.cap.selector.scope == "model" for need in needs)


def _acted_on(state: State, report: cmd.Report) -> Pool | None:
    """The pool that a report is about: the narrowest capped one of a provider."""
    if not report.id:
        pool = state.named(report.kind, report.target)
        if pool is not None:
            return pool
    held = state.held.get(report.id) or state.queue(Spec(models=(report.target,), kind=report.kind)).candidates[0]
    pools = [pool for pool, _ in held.needs if pool.cap.capped and pool.cap.selector.scope == "model"]
    return pools[0] if pools else None


def _as_json(gate: DirectGate, pool: Pool | None, events: list[ev.Event]) -> dict[str, object]:
    if pool is None:
        return {"pool": None, "kind": None, "paused_until": None, "limit": None, "cap": None, "incident": False}
    paused = pool.paused_until > gate.now()
    return {
        "pool": pool.id,
        "kind": pool.kind,
        "paused_until": utc(pool.paused_until + gate.wall_offset_ms()) if paused else None,
        "limit": pool.limit,
        "cap": pool.auto_cap if pool.cap.auto else pool.cap.cap,
        "incident": _is_new(events),
    }


def _as_text(gate: DirectGate, pool: Pool | None, events: list[ev.Event]) -> str:
    if pool is None:
        return "nothing to slow down: no cap on a provider or model applies to this lease"
    limit = next((event for event in events if isinstance(event, ev.Reduced)), None)
    text = f"{pool.id} ({pool.kind}): paused {until_text(gate, pool.paused_until)}"
    if limit is not None:
        return f"{text}; limit now {limit.limit} of {limit.cap} (restore: {_restore(pool, limit.cap)})"
    return f"{text}; limit stays {pool.limit}" + ("" if _is_new(events) else " (an incident already known)")


def _restore(pool: Pool, cap: int) -> str:
    kind = "" if pool.kind == "requests" else " --kind agents"
    return f"headgate cap set '{pool.cap.selector.text}' {cap}{kind}"


def _is_new(events: list[ev.Event]) -> bool:
    return any(isinstance(event, ev.Paused) and event.incident for event in events)
