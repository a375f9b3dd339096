"""The states of a job and every edge between them. docs/jobs.md draws this table; a test compares the two.

A job is in exactly one state. Final states are left only by `retry`, which a person asks for.
"""

from __future__ import annotations

from typing import NamedTuple

from fleetgate.present.errors import NotNow

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
    "requeue": Edge((RUNNING,), QUEUED, "its worker died, and --on-lost is retry"),
    "fail": Edge((RUNNING,), FAILED, "it failed, and no retry is left or would help"),
    "lose": Edge((RUNNING,), LOST, "its worker died, and --on-lost is fail"),
    "cancel": Edge((QUEUED, HELD, RUNNING), CANCELLED, "a person cancelled it"),
    "expire": Edge((QUEUED, HELD), EXPIRED, "it waited too long"),
    "retry": Edge(FINAL, QUEUED, "a person ran it again with fleetgate retry"),
}


def follow(state: str, edge: str) -> str:
    """The state that an edge leads to; NotNow where it does not begin at this one."""
    sources, target, _ = EDGES[edge]
    if state not in sources:
        raise NotNow(f"it is {state}; only what is {' or '.join(sources)} can {edge.replace('_', ' ')}")
    return target
