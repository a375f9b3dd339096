"""Submission of jobs: from specifications to places in the queue (rules J1, A10), many in one transaction, all or none.

The commit is on disk before an id is returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic, sleep, time_ns

from msgspec import Struct

from fleetgate.core import events as ev
from fleetgate.core.entities import Reason
from fleetgate.core.errors import FleetgateError
from fleetgate.core.model_names import shown
from fleetgate.core.views.wait_reasons import reason_of_job
from fleetgate.gate.replica.replica import Decided
from fleetgate.gate.request_ids import new_id
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.gate.wakeup import mailbox
from fleetgate.jobs import job_record, state_machine, unattended_ends
from fleetgate.jobs.job_owner import must_seal, name_owner
from fleetgate.jobs.job_record import Job, JobSpec, acquire_command
from fleetgate.jobs.sealed_files import remove, seal
from fleetgate.log.protocol import SideWrite

TAKEN_UP_S = 0.3


class SubmissionRefused(FleetgateError):
    """A job that cannot be submitted now: another request has its key or its session."""

    exit_code = 75

    def __init__(self, reason: Reason, name: str = "") -> None:
        super().__init__(f"{f'{name}: ' if name else ''}not submitted: {reason.text} ({reason.code})")
        self.reason = reason


class Submitted(Struct):
    """A job in the queue; `new` is false for one that was there before, by the same key."""

    id: str
    new: bool = True


def submit(
    gate: DirectGate,
    specs: Sequence[JobSpec],
    *,
    by: str = "",
    since: int | None = None,
    secret_env: bool = False,
    access_key: str = "",
    only_project: str = "",
) -> list[Submitted]:
    """Put jobs in the queue, all or none. Raises the error of the first that is refused.

    With `secret_env` the values of their variables are kept in a file of the submitter, not in the store. `access_key`
    is the name of the key that the submitter has shown. `only_project`: the submitter may know of no other project.
    """
    unattended_ends.see_to_ends(gate)
    began = gate.now() if since is None else since
    named = [name_owner(spec, gate.folder, shared_log=gate.log.is_shared) for spec in specs]
    now = time_ns() // 1_000_000
    jobs = [Job(spec, state_machine.QUEUED, began, now, by, access_key=access_key) for spec in named]
    asked = [acquire_command(new_id(), job) for job in jobs]
    if (secret_env and gate.folder) or must_seal(gate.folder, shared_log=gate.log.is_shared):
        jobs = [seal(gate.folder, command.id, job) for command, job in zip(asked, jobs, strict=True)]
    for command in asked:
        command.since = since  # without one, the time of the decision: so a new job is told from one that is back
    submitted: list[Submitted] = []

    def rows(decided: list[Decided]) -> list[SideWrite]:
        submitted.clear()
        writes = []
        for command, job, each in zip(asked, jobs, decided, strict=True):
            if each.error is not None:
                raise each.error
            reason = next((event.reason for event in each.events if isinstance(event, ev.Deferred)), None)
            if reason is None:
                job.since = gate.state.tickets[command.id].since
                writes.append(job_record.write(command.id, job))
                submitted.append(Submitted(command.id))
            else:
                submitted.append(Submitted(_with_key(gate, job, reason, only_project), new=False))
        return writes

    try:
        gate.decide(asked, durable=True, side=rows)
    finally:
        kept = {one.id for one in submitted}
        for command, job in zip(asked, jobs, strict=True):
            if job.sealed and command.id not in kept:
                remove(gate.folder, command.id)  # it was refused, or exists already
    ring(gate)
    return submitted


def _with_key(gate: DirectGate, job: Job, reason: Reason, only_project: str) -> str:
    """The job that has the key already; SubmissionRefused when it is not a job's, or not for this submitter."""
    state, spec = gate.state, job.spec
    by_key = reason.code == "key_taken"
    ident = state.keys.get(spec.key, "") if by_key else state.sessions.get((spec.host, spec.session), "")
    lease = state.leases.get(ident)
    ticket = lease.ticket if lease is not None else state.tickets.get(ident)
    if only_project and (ticket is None or ticket.spec.project != only_project):
        what = f"key {shown(spec.key)}" if by_key else f"session {shown(spec.session)}"
        raise SubmissionRefused(Reason(reason.code, f"the {what} is taken"), spec.name)  # by whom is not for it
    if not by_key or ticket is None or not ticket.job:
        raise SubmissionRefused(reason, spec.name)
    return ident


def ring(gate: DirectGate) -> int:
    """Wake the worker processes of this machine for a new job. Returns how many there are; they also poll."""
    return sum(mailbox.send(address, b"job") is True for address in mailbox.worker_processes(gate.folder))


def taken_up(gate: DirectGate, ident: str, most_s: float = TAKEN_UP_S) -> None:
    """Wait a moment for a worker to pick the job up, if there is one, so that `status` does not report none."""
    until = monotonic() + most_s
    while mailbox.worker_processes(gate.folder) and monotonic() < until:
        ticket = gate.replica.catch_up().tickets.get(ident)
        if ticket is None or not ticket.away:
            return
        if reason_of_job(gate.state, gate.state.queue(ticket.spec), gate.now(), ticket).code != "no_worker":
            return
        sleep(0.005)
