"""`fleetgate release`: releases a lease, its own or by force that of another process."""

from __future__ import annotations

import os

import click

from fleetgate.cli.click_helpers import (
    entered_text,
    json_option,
    opened_gate,
    read_duration_ms,
    show_result,
    until_text,
    whoami,
)
from fleetgate.cli.completion_values import complete_lease
from fleetgate.cli.open_gate import load_config
from fleetgate.cli.read_only_gate import note
from fleetgate.config.errors import ConfigError
from fleetgate.config.file import Loaded
from fleetgate.config.units import format_duration
from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Lease
from fleetgate.core.errors import BadRequest, NotFound, NotNow
from fleetgate.core.model_names import shown
from fleetgate.core.state.state import State
from fleetgate.gate.request_ids import ALPHABET, LENGTH
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.present.lease_owner import still_runs, what_force_breaks, why_not_to_release
from fleetgate.present.name_lookup import entered, find_id, whose

OUTCOMES = ("ok", "rate_limited", "usage_window", "quota", "overloaded", "auth", "server_error", "local_error")
_WITH_A_WAIT = ("rate_limited", "usage_window", "quota", "overloaded", "auth", "server_error")


@click.command(short_help="Release a lease.")
@click.argument("ident", metavar="ID", shell_complete=complete_lease)
@click.option("--outcome", metavar="OUTCOME", help=f"How it ended: {', '.join(OUTCOMES)} (default: ok).")
@click.option("--retry-after", metavar="SECONDS", help="The wait that the provider asked for (with a failed outcome).")
@click.option("--force", is_flag=True, help="Free the slot of an agent that is still running. The agent continues.")
@json_option
def command(ident: str, outcome: str | None, retry_after: str | None, force: bool, as_json: bool) -> None:
    """Release a lease. The next waiting agent gets its slots.

    The first four characters of an ID are enough. Releasing twice is harmless. Only a running agent, or its child
    processes, can release its slot. With --force anyone can: the history records who did, and the agent continues
    beyond the cap.

    \b
    fleetgate release 7kq2m9x4ab
    fleetgate release "$id" --outcome rate_limited --retry-after 30
    fleetgate release 7kq --force

    Exit codes: 0, even when it was already released; 64 for an invalid ID, or when its agent is still running.
    """
    _check(outcome, retry_after, force)
    wait_ms = read_duration_ms("--retry-after", retry_after, zero=True)
    gate = opened_gate(_config_for(outcome), configured=False)
    lease = _lease(gate.read(), ident)
    if lease is None:
        released = False
    elif force:
        released = _force_release(gate, lease, as_json)
    else:
        released = _release(gate, lease, outcome, wait_ms, as_json)
    if not released:
        ident = ident if lease is None else lease.id
        document = {"lease": ident, "released": False, "outcome": None, "held_s": None, "entered": 0}
        show_result(as_json, document, f"{ident} was already released")


def _release(gate: DirectGate, lease: Lease, outcome: str | None, wait_ms: int | None, as_json: bool) -> bool:
    """Whether the lease was still held."""
    refusal = why_not_to_release(lease, os.getpid())
    if refusal:
        raise NotNow(refusal)
    evidence = f"released by {whoami(gate.host)} while it was running" if lease.child and still_runs(lease) else ""
    used = gate.credentials.used_for(lease.model if outcome in _WITH_A_WAIT else "")
    release = cmd.Release(
        lease.id, outcome or "ok", wait_ms, evidence=evidence, credential=used.digest, identity=used.identity
    )
    events = gate.one(release)
    ended = next((event for event in events if isinstance(event, ev.Released)), None)
    if ended is None:
        return False
    document = {"lease": lease.id, "released": True, "outcome": ended.outcome, "held_s": ended.held_ms / 1000}
    held = format_duration(ended.held_ms, 2)
    text = f"released {lease.id} after {held}{_slowed(gate, events)}{entered_text(events)}"
    show_result(as_json, {**document, "entered": entered(events)}, text)
    gate.maintain()
    return True


def _config_for(outcome: str | None) -> Loaded | None:
    """The config file, which names the credential that was refused; an invalid file does not stop a release."""
    try:
        return load_config() if outcome in _WITH_A_WAIT else None
    except ConfigError:
        return None


def _check(outcome: str | None, retry_after: str | None, force: bool) -> None:
    if outcome is not None and outcome not in OUTCOMES:
        raise BadRequest(f"--outcome {shown(outcome)}: valid are {', '.join(OUTCOMES)}")
    if retry_after is not None and outcome not in _WITH_A_WAIT:
        raise BadRequest(f"--retry-after goes with --outcome {', '.join(_WITH_A_WAIT[:-1])} or {_WITH_A_WAIT[-1]}")
    if force and outcome is not None:
        raise BadRequest("--force and --outcome: use only one of the two")


def _lease(state: State, ident: str) -> Lease | None:
    """The lease with this id; None when it has ended, which only a complete id can show."""
    try:
        found = find_id(state, ident)
    except NotFound:
        if len(ident) == LENGTH and all(char in ALPHABET for char in ident):
            return None
        raise
    if found in state.tickets:
        raise BadRequest(f"{found} is waiting and has no slot: `fleetgate cancel {found}` removes it from the queue")
    return state.leases[found]


def _force_release(gate: DirectGate, lease: Lease, as_json: bool) -> bool:
    try:
        events = gate.one(cmd.Reclaim(lease.id, whoami(gate.host)))
    except NotFound:
        return False
    held_ms = next(event.held_ms for event in events if isinstance(event, ev.Reclaimed))
    document = {"lease": lease.id, "released": True, "outcome": None, "held_s": held_ms / 1000, "forced": True}
    held = format_duration(held_ms, 2)
    text = f"freed the slot of {lease.id}, {whose(lease)}, after {held}{entered_text(events)}"
    show_result(as_json, {**document, "entered": entered(events)}, text)
    if not as_json and (broken := what_force_breaks(lease)):
        note(broken)
    return True


def _slowed(gate: DirectGate, events: list[ev.Event]) -> str:
    """The effect of a rate limit on the pool."""
    text = ""
    for event in events:
        if isinstance(event, ev.Paused):
            text += f"; {event.pool} is paused {until_text(gate, event.until)}"
        elif isinstance(event, ev.Reduced | ev.Refused):
            text += f", its limit is now {event.limit} of {event.cap}"
    return text
