"""What users can do with a job: cancel, approve, retry, clean (rules J4, J5)."""

from __future__ import annotations

from time import monotonic, sleep

from msgspec.structs import replace

from fleetgate.core import commands as cmd
from fleetgate.core.access.keys import AccessKey
from fleetgate.core.errors import NotFound, NotNow
from fleetgate.gate.replica.replica import Decided
from fleetgate.gate.replica.side_rows import JOB_ENDS
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.jobs import (
    job_record,
    job_store,
    output_files,
    run_outputs,
    sealed_files,
    state_machine,
    unattended_ends,
)
from fleetgate.jobs.retry_policy import JobVerdict
from fleetgate.jobs.submit import ring
from fleetgate.log.protocol import SideWrite

_BETWEEN_S = 10.0  # how long a job may have a slot and no process
_AGAIN_S = 0.05


def cancel(gate: DirectGate, ident: str, by: str) -> str:
    """Cancel a job. Returns `cancelled`, or `ending` for a running job that is being stopped."""
    until = monotonic() + _BETWEEN_S
    while True:
        try:
            return _cancel(gate, ident, by)
        except NotFound:  # it has left the queue and is about to start: try again soon
            if ident not in gate.replica.catch_up().leases or monotonic() > until:
                raise
        sleep(_AGAIN_S)


def _cancel(gate: DirectGate, ident: str, by: str) -> str:
    unattended_ends.see_to_ends(gate)
    view = job_store.view(gate, ident)
    if view.state in state_machine.FINAL:
        raise NotNow(f"job {ident} has ended: {view.state}")
    lease = gate.state.leases.get(ident)
    if lease is not None and lease.child:
        gate.one(cmd.Stop(ident, by), durable=True)
        return "ending"
    job = view.job
    commands = state_machine.follow(ident, job, JobVerdict("cancel", f"cancelled by {by}"), gate.now())

    def rows(decided: list[Decided]) -> list[SideWrite]:
        if decided[0].error is not None:
            raise decided[0].error  # it started, or left, in between
        return [job_record.write(ident, job), SideWrite(JOB_ENDS, ident, None)]

    gate.decide([cmd.Cancel(ident, by), *commands], durable=True, side=rows)
    return "cancelled"


def approve(gate: DirectGate, ident: str, by: str) -> None:
    """Approve a job that was submitted with --confirm."""
    now = job_store.view(gate, ident).state
    if now not in (state_machine.QUEUED, state_machine.HELD):
        raise NotNow(f"job {ident} is not waiting: it is {now}")
    gate.one(cmd.Approve(ident, by), durable=True)
    ring(gate)


def retry(gate: DirectGate, ident: str, by: str = "", key: AccessKey | None = None) -> None:
    """Run a finished job again, with all its retries. It waits at the end of the queue.

    With an access key it runs for that key from now on, so that no client uses up what belongs to the key of another;
    and with the class and at most the priority of that key.
    """
    unattended_ends.see_to_ends(gate)
    job = job_store.view(gate, ident).job
    if job.state not in state_machine.FINAL:
        raise NotNow(f"job {ident} has not finished: it is {job_store.view(gate, ident).state}")
    job.state = state_machine.next_state(job.state, "retry")
    job.failures = job.limits = job.losses = 0
    job.since, job.finished_at, job.why = gate.now(), 0, "run again"
    job.exit_code = job.signal = None
    job.outcome = ""
    if key is not None:
        job.access_key = key.name
        most, spec = key.max_priority, job.spec
        priority = spec.priority if most is None else min(spec.priority, most)
        job.spec = replace(spec, priority=priority, work_class=key.work_class or spec.work_class)

    def rows(decided: list[Decided]) -> list[SideWrite]:
        (asked,) = decided
        if asked.error is not None:
            raise asked.error
        if ident not in gate.state.tickets:
            raise NotNow(f"job {ident} cannot run again now: another job has its key or its session")
        job.since = gate.state.tickets[ident].since
        return [job_record.write(ident, job)]

    command = job_record.acquire_command(ident, job)
    command.since, command.by = None, by  # like a new one
    gate.decide([command], durable=True, side=rows)
    ring(gate)


def clean(gate: DirectGate, before_ms: int) -> list[str]:
    """Delete jobs that finished before a time (wall time), and their output."""
    unattended_ends.see_to_ends(gate)
    jobs = job_store.every(gate.log)
    old = [ident for ident, job in jobs.items() if job.state in state_machine.FINAL and job.finished_at < before_ms]
    for start in range(0, len(old), 500):
        some = old[start : start + 500]

        def rows(_: list[Decided], some: list[str] = some) -> list[SideWrite]:
            kept = {ident for ident in some if ident in gate.state.tickets or ident in gate.state.leases}
            return [job_record.forget(ident) for ident in some if ident not in kept]  # one may be running again

        gate.decide([], side=rows)
    for ident in old:
        if job_store.find(gate.log, ident) is None:
            output_files.remove(gate.folder, ident)
            sealed_files.remove(gate.folder, ident)
    return old


def clean_runs(gate: DirectGate, before_ms: int) -> list[str]:
    """Delete the kept output of runs that ended before a time (wall time)."""
    return run_outputs.clean(gate.folder, before_ms, set(gate.replica.catch_up().leases))
