"""`fleetgate wait`: waits for jobs to finish, and exits with their code."""

from __future__ import annotations

from math import inf
from time import monotonic, sleep

import click

from fleetgate.cli import exit_codes
from fleetgate.cli.click_helpers import read_duration_ms
from fleetgate.cli.completion_values import complete_job
from fleetgate.cli.read_only_gate import current, note, opened
from fleetgate.core.errors import BadRequest
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.jobs import job_store, state_machine, unattended_ends
from fleetgate.jobs.job_store import JobView

POLL_S = 0.1
_SLOW_S = 1.0
_CODES = {
    state_machine.EXPIRED: exit_codes.DEFERRED,
    state_machine.CANCELLED: exit_codes.INTERRUPTED,
    state_machine.LOST: exit_codes.SOFTWARE,
}


@click.command(short_help="Wait for jobs to finish; exit with their code.")
@click.argument("idents", metavar="ID…", nargs=-1, shell_complete=complete_job)
@click.option("--all", "everything", is_flag=True, help="All unfinished jobs.")
@click.option("--timeout", metavar="DURATION", help="Wait at most this long, then exit 75.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing.")
def command(idents: tuple[str, ...], everything: bool, timeout: str | None, quiet: bool) -> int:
    """Wait for jobs to finish, and exit with their code; for several jobs, that of the first one that failed.

    \b
    fleetgate wait 7kq
    fleetgate wait --all

    Exit codes: the job's own (128+n for a signal); 75 expired, or timeout; 130 cancelled; 70 lost.
    """
    if everything == bool(idents):
        raise BadRequest("which jobs? Give IDs (see `fleetgate jobs`) or --all")
    timeout_ms = read_duration_ms("--timeout", timeout)
    until = None if timeout_ms is None else monotonic() + timeout_ms / 1000
    with opened() as gate:
        if everything:
            left = [view.id for view in job_store.views(gate) if view.state not in state_machine.FINAL]
        else:
            left = list(dict.fromkeys(job_store.find_job(gate, ident) for ident in idents))
        codes: dict[str, int] = {}
        order = list(left)
        try:
            while left := _look(gate, left, codes, quiet=quiet):
                if until is not None and monotonic() >= until:
                    note(f"still waiting for {', '.join(left[:5])}")
                    return exit_codes.DEFERRED
                await_commit(gate)
        except KeyboardInterrupt:
            return exit_codes.INTERRUPTED
    return next((codes[ident] for ident in order if codes[ident]), exit_codes.OK)


def _look(gate: DirectGate, left: list[str], codes: dict[str, int], *, quiet: bool) -> list[str]:
    """The unfinished jobs; the exit codes of finished ones are added to `codes`."""
    found = {view.id: view for view in job_store.views(gate)} if len(left) > 3 else {}
    still = []
    for ident in left:
        view = found.get(ident) or job_store.view(gate, ident)
        if view.state not in state_machine.FINAL:
            still.append(ident)
            continue
        codes[ident] = exit_code(view)
        if not quiet:
            note(f"{ident} {view.state}{f': {view.job.why}' if view.job.why else ''}")
    return still


def await_commit(gate: DirectGate, until: float = inf) -> None:
    """Wait for the next commit, at most a second or until a time; then check for jobs whose process died."""
    before = gate.log.head()
    until = min(until, monotonic() + _SLOW_S)
    while monotonic() < until:
        sleep(POLL_S)
        head = gate.log.head()
        if head is not None and (before is None or head.commit != before.commit):
            return
    current(gate, reap=True)
    unattended_ends.see_to_ends(gate)


def exit_code(view: JobView) -> int:
    """The exit code of a finished job."""
    if view.state in _CODES:
        return _CODES[view.state]
    if view.state == state_machine.SUCCEEDED:
        return exit_codes.OK
    job = view.job
    code = 128 + (job.signal or 0) if job.exit_code is None else job.exit_code
    return code or 1  # it failed, whatever its exit code was
