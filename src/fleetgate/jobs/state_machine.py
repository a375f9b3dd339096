"""The states of a job and every edge between them. docs/jobs.md draws this table; a test compares the two.

A job is in exactly one state. `follow` is the one place where it changes. Final states are left only by `retry`, which
a person asks for.
"""

from __future__ import annotations

from time import time_ns
from typing import NamedTuple

from fleetgate.core import commands as cmd
from fleetgate.core.errors import NotNow
from fleetgate.jobs.job_record import Job, acquire_command
from fleetgate.jobs.retry_policy import JobVerdict

QUEUED, HELD, RUNNING = "queued", "held", "running"
SUCCEEDED, FAILED, CANCELLED, EXPIRED, LOST = "succeeded", "failed", "cancelled", "expired", "lost"

STATES = (QUEUED, HELD, RUNNING, SUCCEEDED, FAILED, CANCELLED, EXPIRED, LOST)
FINAL = (SUCCEEDED, FAILED, CANCELLED, EXPIRED, LOST)


class Edge(NamedTuple):
    """Where an edge leads from and to, and what it means."""

    sources: tuple[str, ...]
    target: str
    meaning: str


EDGES = {
    "start": Edge((QUEUED,), RUNNING, "a worker got a slot for it and started it; this counts as an attempt"),
    "hold": Edge((QUEUED,), HELD, "it could start, and was submitted with --confirm"),
    "approve": Edge((HELD,), QUEUED, "a person approved it"),
    "finish": Edge((RUNNING,), SUCCEEDED, "it succeeded"),
    "limit": Edge((RUNNING,), QUEUED, "a limit ended it; it returns to the queue and spends no retry"),
    "again": Edge((RUNNING,), QUEUED, "it failed and has retries left; it returns to the queue after a pause"),
    "hand_back": Edge((RUNNING,), QUEUED, "its worker was stopped; it returns to the queue and spends no retry"),
    "give_way": Edge((RUNNING,), QUEUED, "it gave way to a person; it returns to the queue and spends no retry"),
    "requeue": Edge((RUNNING,), QUEUED, "its worker died, and --on-lost is retry"),
    "fail": Edge((RUNNING,), FAILED, "it failed, and no retry is left or would help"),
    "lose": Edge((RUNNING,), LOST, "its worker died, and --on-lost is fail"),
    "cancel": Edge((QUEUED, HELD, RUNNING), CANCELLED, "a person cancelled it"),
    "expire": Edge((QUEUED, HELD), EXPIRED, "it waited too long"),
    "retry": Edge(FINAL, QUEUED, "a person ran it again with fleetgate retry"),
}


def next_state(state: str, edge: str) -> str:
    """The state that an edge leads to; NotNow where it does not begin at this one."""
    sources, target, _ = EDGES[edge]
    if state not in sources:
        raise NotNow(f"it is {state}; only what is {' or '.join(sources)} can {edge.replace('_', ' ')}")
    return target


def follow(ident: str, job: Job, verdict: JobVerdict, now: int) -> list[cmd.Command]:
    """Move a job along an edge: change its row, and return the commands for the engine that go with it."""
    edge = verdict.edge
    # The row of a job that was about to start when its worker died still says `queued`.
    came_from = RUNNING if RUNNING in EDGES[edge].sources else job.state
    job.state = next_state(came_from, edge)
    job.why = verdict.why
    if edge == "again":
        job.failures += 1
    elif edge == "limit":
        job.limits += 1
    elif edge in ("requeue", "lose"):
        job.losses += 1
    if job.state == QUEUED:
        return [acquire_command(ident, job, now + verdict.pause_ms if verdict.pause_ms else 0)]
    job.finished_at = time_ns() // 1_000_000
    if edge == "expire" or (edge == "cancel" and not job.attempt):
        return []  # the ticket's own event reports it
    return [cmd.EndJob(ident, job.state, job.attempt, job.why, job.title[:100], job.exit_code)]
