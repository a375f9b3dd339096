"""The states of a job and every edge between them. docs/jobs.md draws this table; a test compares the two.

A job is in exactly one state. Final states are left only by `anew`, a person's wish.
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
    "start": Edge((QUEUED,), RUNNING, "a worker got its slot and started it: one attempt more"),
    "hold": Edge((QUEUED,), HELD, "its turn came, and it was submitted with --confirm"),
    "approve": Edge((HELD,), QUEUED, "somebody approved it"),
    "finish": Edge((RUNNING,), SUCCEEDED, "it ended well"),
    "limit": Edge((RUNNING,), QUEUED, "a limit ended it: back in the queue, no retry spent"),
    "again": Edge((RUNNING,), QUEUED, "it failed and has retries left: back in the queue after a pause"),
    "hand_back": Edge((RUNNING,), QUEUED, "its worker was stopped: back in the queue, no retry spent"),
    "requeue": Edge((RUNNING,), QUEUED, "its worker died, and --on-lost is retry"),
    "fail": Edge((RUNNING,), FAILED, "it failed, and no retry is left or would help"),
    "lose": Edge((RUNNING,), LOST, "its worker died, and --on-lost is fail"),
    "cancel": Edge((QUEUED, HELD, RUNNING), CANCELLED, "somebody cancelled it"),
    "expire": Edge((QUEUED, HELD), EXPIRED, "it waited in the queue for too long"),
    "anew": Edge(FINAL, QUEUED, "somebody wants it run again: fleetgate retry"),
}


def follow(state: str, edge: str) -> str:
    """The state that an edge leads to; NotNow where it does not begin at this one."""
    sources, target, _ = EDGES[edge]
    if state not in sources:
        raise NotNow(f"it is {state}; only what is {' or '.join(sources)} can {edge.replace('_', ' ')}")
    return target
