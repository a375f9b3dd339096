"""Ends of jobs without a worker: a ticket expired, a worker died, a slot was taken back.

The process that decided that may know nothing about jobs; it left a row in the same transaction
(gate/replica/replica.py). Every job command, and every worker once a second, handles these rows: each exactly once,
in one transaction with what follows from it.
"""

from __future__ import annotations

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.gate.replica.replica import Decided
from fleetgate.gate.replica.side_rows import JOB_ENDS
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.jobs import job_record, job_store, retry_policy, state_machine
from fleetgate.jobs.job_record import Job
from fleetgate.jobs.job_store import LeftAs
from fleetgate.jobs.retry_policy import JobVerdict
from fleetgate.log.protocol import SideWrite

_AT_ONCE = 200


class _HandledElsewhere(Exception):
    """Another process has handled it."""


def see_to_ends(gate: DirectGate) -> int:
    """Handle every end of a job without a worker. Returns how many there were."""
    seen = 0
    while found := list(job_store.ends(gate.log).items())[:_AT_ONCE]:
        for ident, end in found:
            try:
                _see_to(gate, ident, end)
                seen += 1
            except _HandledElsewhere:
                continue
    return seen


def _see_to(gate: DirectGate, ident: str, end: LeftAs) -> None:
    log = gate.log
    before = (log.side_value(JOB_ENDS, ident), log.side_value(job_record.JOBS, ident))
    job = job_store.find(log, ident)
    over = [SideWrite(JOB_ENDS, ident, None)]
    commands: list[cmd.Command] = []
    if job is not None and job.state not in state_machine.FINAL:
        verdict = _verdict(job, end)
        if isinstance(end, ev.Reclaimed):
            job_record.add_usage(job, end.total or end.usage)
        commands = state_machine.follow(ident, job, verdict, gate.now())
        over.append(job_record.write(ident, job))

    def rows(_: list[Decided]) -> list[SideWrite]:
        if (log.side_value(JOB_ENDS, ident), log.side_value(job_record.JOBS, ident)) != before:
            raise _HandledElsewhere
        return over

    if before[0] is not None:
        gate.decide(commands, side=rows)


def _verdict(job: Job, end: LeftAs) -> JobVerdict:
    if isinstance(end, ev.Expired):
        return JobVerdict("expire", job_store.why_left(end))
    if isinstance(end, ev.Cancelled):
        return JobVerdict("cancel", job_store.why_left(end))
    if end.cause == "forced":
        return JobVerdict("fail", f"its slot was taken back by {end.by or 'a user'}")
    if end.by:  # its worker died before it could stop it
        return JobVerdict("cancel", f"cancelled by {end.by} while it was running")
    if end.gave_way or job.gives_way:
        return retry_policy.gave_way()
    return retry_policy.lost(job)
