"""`fleetgate report`: a rate limit that a script saw, so that all agents slow down (rule P1)."""

from __future__ import annotations

import click

from fleetgate.cli.click_helpers import json_option, kind_option, opened_gate, read_duration_ms, tell, until_text
from fleetgate.cli.completion_values import complete_pool
from fleetgate.cli.name_arguments import NAME
from fleetgate.cli.read_only_gate import say_json
from fleetgate.core import events as ev
from fleetgate.core.errors import BadRequest
from fleetgate.core.pools.pool import Pool
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.present.log_time import LogTimes
from fleetgate.present.rate_limit_report import acted_on, is_new, of_lease, of_target, report_json


@click.command(short_help="Report a rate limit seen by a script.")
@click.argument("target", type=NAME, shell_complete=complete_pool, required=False)
@click.option("--rate-limited", is_flag=True, help="The provider answered: too many requests (429).")
@click.option(
    "--retry-after",
    metavar="SECONDS",
    help="The wait that the provider asked for (default 30; 60 for a model without a cap).",
)
@click.option("--lease", metavar="ID", help="The lease whose call was refused: reports of the same moment count once.")
@kind_option
@json_option
def command(
    target: str | None, rate_limited: bool, retry_after: str | None, lease: str | None, kind: str | None, as_json: bool
) -> None:
    """Report a rate limit: the pool is paused, and with on_429 = step its limit is lowered by one.

    TARGET is a pool that `fleetgate status` lists, or a model: then its narrowest capped pool is used, and a model
    without a cap is backed off. With --lease, TARGET may be omitted or name a pool of that lease. A later report can
    extend a pause or backoff, never shorten it.

    \b
    fleetgate report umans --rate-limited --retry-after 30
    fleetgate report --rate-limited --lease "$id"

    Exit codes: 0; 64 when TARGET is neither a model nor a pool.
    """
    if not rate_limited:
        raise BadRequest("what happened? Add --rate-limited")
    if not target and not lease:
        raise BadRequest(
            "which one? Give a pool, a model or --lease ID, for example `fleetgate report umans --rate-limited`"
        )
    wait_ms = read_duration_ms("--retry-after", retry_after, zero=True)
    gate = opened_gate()
    state = gate.read()
    report = of_lease(state, lease, target, kind) if lease else of_target(state, target or "", kind, gate.host)
    report.retry_after_ms = wait_ms
    events = gate.one(report)
    pool, backoff = acted_on(gate.state, report)
    if as_json:
        say_json(report_json(pool, backoff, events, LogTimes(gate)))
    elif pool is not None:
        tell(_as_text(gate, pool, events))
    elif backoff is not None:
        text = f"{backoff.key}: has no cap, so it is backed off: {backoff.reason}"
        tell(f"{text}, {until_text(gate, backoff.until)} (to clear: fleetgate backoff clear {backoff.key})")
    else:
        tell("nothing to do: the lease has no model")


def _as_text(gate: DirectGate, pool: Pool, events: list[ev.Event]) -> str:
    limit = next((event for event in events if isinstance(event, ev.Reduced)), None)
    text = f"{pool.id} ({pool.kind}): paused {until_text(gate, pool.paused_until)}"
    refused = next((event for event in events if isinstance(event, ev.Refused)), None)
    if refused is not None:
        return f"{text}; limit {refused.limit} of {refused.cap}, recovering automatically (fleetgate explain {pool.id})"
    if limit is not None:
        return f"{text}; limit now {limit.limit} of {limit.cap} (to restore: {_restore(pool, limit.cap)})"
    return f"{text}; limit stays {pool.limit}" + ("" if is_new(events) else " (already reported)")


def _restore(pool: Pool, cap: int) -> str:
    return f"fleetgate cap set '{pool.cap.selector.text}' {cap} --kind {pool.kind}"
