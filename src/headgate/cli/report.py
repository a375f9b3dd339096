"""`headgate report`: a rate limit that a script saw, so that everybody slows down (SPEC P1-P3)."""

from __future__ import annotations

import click

from headgate.cli import exits
from headgate.cli.backoff import backoff_json
from headgate.cli.listing import Moments, say_json
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
from headgate.core import blame
from headgate.core import commands as cmd
from headgate.core import events as ev
from headgate.core.backoffs import Backoff
from headgate.core.errors import BadRequest, HeadgateError
from headgate.core.names import Model, parse_model
from headgate.core.pools import Pool
from headgate.core.records import Spec
from headgate.core.state import State
from headgate.gate.direct import DirectGate


@click.command(short_help="Tell the gate of a rate limit that a script saw.")
@click.argument("target", required=False)
@click.option("--rate-limited", is_flag=True, help="The provider said: too many requests (429).")
@click.option(
    "--retry-after",
    metavar="SECONDS",
    help="How long the provider said to wait (default 30, of a model without a cap 60).",
)
@click.option("--lease", metavar="ID", help="The lease whose call was refused: several of one moment are one incident.")
@kind_option
@json_option
def command(
    target: str | None, rate_limited: bool, retry_after: str | None, lease: str | None, kind: str | None, as_json: bool
) -> int:
    """Tell the gate of a rate limit: the pool is paused, and with on_429 = step its limit is lowered by one.

    TARGET is a pool as `headgate status` lists it, or a model: then its narrowest capped pool is meant, and where
    nothing caps it, the model is backed off. With --lease it is the model of that lease, and TARGET may be left out or
    name one of its pools. A later report may make a pause or backoff longer, never shorter.

    \b
    headgate report umans --rate-limited --retry-after 30
    headgate report --rate-limited --lease "$id"

    Exit: 0; 64 when TARGET is no model, and no cap makes such a pool.
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
    pool, backoff = _acted_on(gate.state, report)
    if as_json:
        say_json(_as_json(gate, pool, backoff, events))
    elif pool is not None:
        tell(_as_text(gate, pool, events))
    elif backoff is not None:
        text = f"{backoff.key}: no cap to lower, so it is backed off, {backoff.reason}"
        tell(f"{text}, {until_text(gate, backoff.until)} (clear: headgate backoff clear {backoff.key})")
    else:
        tell("nothing to slow down: the lease names no model")
    return exits.OK


def _of_lease(state: State, lease: str, target: str | None, kind: str | None) -> cmd.Report:
    ident = find_id(state, lease)
    held = state.leases.get(ident)
    if held is None:
        raise BadRequest(f"{ident} is still in line: nothing of it can have been refused")
    if kind is not None and kind != held.ticket.spec.kind:
        raise BadRequest(f"--kind {kind}: the lease {ident} is of kind {held.ticket.spec.kind}")
    return cmd.Report(id=ident, target=(target or "").replace("@default", "", 1))


def _of_target(state: State, target: str, kind: str | None, host: str) -> cmd.Report:
    found = kind or _kind_of(state, target) or kind_for(state, target)
    if target in ("host", "project") or target.startswith(("host:", "project:")):
        raise BadRequest(f"a rate limit never acts on {target}: valid is a provider's pool or a model")
    if "*" not in target and _model(target) is not None:
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
    model = _model(target)
    if model is None:
        return False
    needs = state.rules.needs(Spec(models=(str(model),), kind=kind), model)
    return any(need.cap.capped and need.cap.selector.scope == "model" for need in needs)


def _model(target: str) -> Model | None:
    try:
        return parse_model(target)
    except HeadgateError:
        return None


def _acted_on(state: State, report: cmd.Report) -> tuple[Pool | None, Backoff | None]:
    """What a report was about: a pool, or a model that nothing caps."""
    blamed = blame.meant(state, report, state.leases.get(report.id))
    if isinstance(blamed, Pool):
        return blamed, None
    return None, state.backoffs.get(str(blamed))


def _as_json(gate: DirectGate, pool: Pool | None, backoff: Backoff | None, events: list[ev.Event]) -> dict[str, object]:
    told = None if backoff is None else backoff_json(backoff, Moments(gate))
    if pool is None:
        nothing = dict.fromkeys(("pool", "kind", "paused_until", "limit", "cap"))
        return {**nothing, "incident": False, "backoff": told}
    paused = pool.paused_until > gate.now()
    return {
        "pool": pool.id,
        "kind": pool.kind,
        "paused_until": utc(pool.paused_until + gate.wall_offset_ms()) if paused else None,
        "limit": pool.limit,
        "cap": pool.auto_cap if pool.cap.auto else pool.cap.cap,
        "incident": _is_new(events),
        "backoff": None,
    }


def _as_text(gate: DirectGate, pool: Pool, events: list[ev.Event]) -> str:
    limit = next((event for event in events if isinstance(event, ev.Reduced)), None)
    text = f"{pool.id} ({pool.kind}): paused {until_text(gate, pool.paused_until)}"
    refused = next((event for event in events if isinstance(event, ev.Refused)), None)
    if refused is not None:
        return f"{text}; limit {refused.limit} of {refused.cap}, which recovers by itself (headgate explain {pool.id})"
    if limit is not None:
        return f"{text}; limit now {limit.limit} of {limit.cap} (restore: {_restore(pool, limit.cap)})"
    return f"{text}; limit stays {pool.limit}" + ("" if _is_new(events) else " (an incident already known)")


def _restore(pool: Pool, cap: int) -> str:
    kind = "" if pool.kind == "requests" else " --kind agents"
    return f"headgate cap set '{pool.cap.selector.text}' {cap}{kind}"


def _is_new(events: list[ev.Event]) -> bool:
    return any(isinstance(event, ev.Paused) and event.incident for event in events)
