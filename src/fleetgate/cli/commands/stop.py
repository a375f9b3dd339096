"""`fleetgate stop`: stops running agents and jobs, and waits until they are gone."""

from __future__ import annotations

from time import monotonic, sleep

import click

from fleetgate.cli import exit_codes
from fleetgate.cli.click_helpers import json_option, opened_gate, tell, whoami
from fleetgate.cli.completion_values import complete_host, complete_lease, complete_project
from fleetgate.cli.read_only_gate import note, say_json
from fleetgate.core import commands as cmd
from fleetgate.core.entities import Lease
from fleetgate.core.errors import BadRequest, FleetgateError, NotFound, NotNow
from fleetgate.core.model_names import glob
from fleetgate.core.state.state import State
from fleetgate.gate.liveness import process_identity
from fleetgate.gate.liveness.orphan_stops import has_no_runner
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.jobs import actions, unattended_ends
from fleetgate.present.lease_owner import why_not_to_stop
from fleetgate.present.name_lookup import find_id, whose
from fleetgate.present.text import count

_PATIENCE_S = 30.0  # TERM, 10 s, KILL, and time for another machine to read the request
_STARTS_S = 5.0  # how long a run may hold a slot before its agent has started
_LOOK_S = 0.1


@click.command(short_help="Stop running agents and jobs.")
@click.argument("words", metavar="ID|NAME…", nargs=-1, shell_complete=complete_lease)
@click.option("--all", "everything", is_flag=True, help="Stop every agent and job on this host.")
@click.option(
    "--host", metavar="HOST", shell_complete=complete_host, help="With --all: on this host instead; * is all."
)
@click.option("--project", metavar="NAME", shell_complete=complete_project, help="With --all: only of this project.")
@click.option("--no-wait", is_flag=True, help="Do not wait until they are gone.")
@json_option
def command(
    words: tuple[str, ...], everything: bool, host: str | None, project: str | None, no_wait: bool, as_json: bool
) -> int:
    """Stop running agents and jobs, and wait until they are gone.

    The agent's process group gets TERM, and KILL 10 seconds later. Its slot is free when the group is gone. The history
    names who stopped it. A stopped `fleetgate run` exits with 143; a stopped job is cancelled. The first four
    characters of an ID are enough. Agents on other machines of a PostgreSQL store are stopped, too.

    \b
    fleetgate stop 7kq2m9x4ab
    fleetgate stop review
    fleetgate stop --all --project docs

    Exit codes: 0 when all are gone; 64 for an unknown ID, or one that cannot be stopped; 75 when one is still running
    after 30 seconds (the request stays in force).
    """
    if everything == bool(words):
        raise BadRequest("which agents? Give IDs or names (see `fleetgate ps`), or --all")
    if (host or project) and not everything:
        raise BadRequest("--host and --project go with --all")
    gate = opened_gate(configured=False)
    by = whoami(gate.host)
    state = gate.read()
    left_out: list[str] = []
    if everything:
        leases, left_out = _all(state, host or gate.host, project)
    else:
        leases = list({lease.id: lease for lease in (_running(gate, word) for word in words)}.values())
    texts = {lease.id: whose(lease) for lease in leases}
    running = [ident for ident in texts if _request(gate, ident, by)]
    left = {} if no_wait else _wait(gate, running, scripts=not everything)
    if as_json:
        done = [] if no_wait else [ident for ident in texts if ident not in left]
        say_json({"stopped": done, "stopping": running if no_wait else list(left), "not_stopped": left_out})
    else:
        _print(texts, left, left_out, no_wait, everything)
        _mention_queue(gate.state, everything)
    return exit_codes.DEFERRED if left else exit_codes.OK


def _all(state: State, host: str, project: str | None) -> tuple[list[Lease], list[str]]:
    """Every agent that matches, and a sentence about each that is left out. A script is stopped only by its ID."""
    found, left_out = [], []
    for lease in state.leases.values():
        spec = lease.ticket.spec
        at = process_identity.host_of(lease.lives_with) or spec.host
        if spec.kind != "agents" or not glob(host, at) or (project is not None and spec.project != project):
            continue
        why_not = why_not_to_stop(lease)
        if why_not:
            left_out.append(why_not)
        else:
            found.append(lease)
    return found, left_out


def _running(gate: DirectGate, word: str) -> Lease:
    """The lease that is meant, once its agent has started. Raises if it cannot be stopped."""
    until = monotonic() + _STARTS_S
    while True:
        state = gate.replica.catch_up()
        try:
            ident = find_id(state, word)
        except NotFound as error:
            raise NotFound(f"nothing that runs is called {word!r}: `fleetgate ps` lists what does") from error
        if ident in state.tickets:
            raise NotNow(
                f"{ident} is waiting and has not started: `fleetgate cancel {ident}` removes it from the queue"
            )
        lease = state.leases[ident]
        why_not = why_not_to_stop(lease, here=True)
        if not why_not:
            return lease
        starts = not (
            lease.ticket.renew_ms or lease.ticket.bound or lease.ticket.run or lease.ticket.spec.kind != "agents"
        )
        if not starts or monotonic() > until:
            raise NotNow(why_not)
        sleep(_LOOK_S)


def _request(gate: DirectGate, ident: str, by: str) -> bool:
    """Whether it was running when the request came; a job that was about to start is cancelled at once."""
    lease = gate.replica.catch_up().leases.get(ident)
    if lease is None:
        return False
    if lease.ticket.job:
        try:
            return actions.cancel(gate, ident, by) == "ending"
        except FleetgateError:
            return ident in gate.replica.catch_up().leases
    (decided,) = gate.decide([cmd.Stop(ident, by)], durable=True)
    return decided.error is None


def _wait(gate: DirectGate, idents: list[str], *, scripts: bool) -> dict[str, str]:
    """Wait until all are gone, and end those whose runner cannot. Returns those that are still there, and why."""
    until = monotonic() + _PATIENCE_S
    left = list(idents)
    while True:
        state = gate.replica.catch_up()
        left = [ident for ident in left if ident in state.leases and state.leases[ident].stop_by]
        gate.orphan_stops.step([state.leases[ident] for ident in left], scripts=scripts)
        if (not left and not gate.orphan_stops.busy) or monotonic() > until:
            break
        orphans = [lease for ident in left if has_no_runner(lease := state.leases[ident])]
        if gone := [lease.lives_with for lease in orphans if process_identity.is_gone(lease.lives_with)]:
            gate.decide([cmd.Lost(tuple(gone))])  # a runner would have released it
            continue
        sleep(_LOOK_S)
    unattended_ends.see_to_ends(gate)
    return {ident: _why_still(gate.state.leases[ident]) for ident in left}


def _why_still(lease: Lease) -> str:
    if has_no_runner(lease):
        return ". No process runs it any more, and only its own user can end it"
    host = process_identity.host_of(lease.lives_with)
    here = process_identity.local_pid(lease.lives_with) is not None
    return "" if here else f". {host} has not read it yet, or has no Fleetgate process that could obey"


def _print(texts: dict[str, str], left: dict[str, str], left_out: list[str], no_wait: bool, everything: bool) -> None:
    for ident, text in texts.items():
        if ident in left:
            why = left[ident]
            note(f"{ident} is still running after {_PATIENCE_S:.0f}s: {text}; the request stays in force{why}")
        else:
            tell(f"{'stopping' if no_wait else 'stopped'} {ident}, {text}")
    for text in left_out:
        note(f"not stopped: {text}")
    if everything and not texts:
        tell("nothing is running that could be stopped")


def _mention_queue(state: State, everything: bool) -> None:
    """Mention the next ones: after --all, a user may not want them to start."""
    waiting = len(state.tickets)
    if everything and waiting:
        cancel = "`fleetgate cancel ID…` removes them, `fleetgate queue` lists them"
        note(f"{count(waiting, 'request')} in the queue can start now: {cancel}")
