"""The states of a ticket, and which event leads from one to another. docs/ticket-states.md draws this table.

A ticket does not store its state: it follows from the stored fields `away`, `job`, `held` and `stalled_at`
(`Ticket.state`). A test plays all transitions and compares them with this table and with the page.
"""

from __future__ import annotations

from typing import NamedTuple

WAITING = "waiting"  # in the queue, asking for slots
STALLED = "stalled"  # the same, but every candidate is backed off: its time to expire stands still
PASSED_OVER = "passed_over"  # a slot was granted and not claimed: it keeps its place until its process is heard of
UNASSIGNED = "unassigned"  # a job that no worker offers to run
HELD = "held"  # a job whose turn came and that a person must approve
STATES = (WAITING, STALLED, PASSED_OVER, UNASSIGNED, HELD)

# Where a ticket comes from and goes to.
NEW = "[*]"
RUNNING = "running"  # it is part of a lease
GONE = "gone"


class TicketEdge(NamedTuple):
    """The transitions that one kind of event makes, from each source to each target."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    meaning: str


EDGES = {
    "queued": TicketEdge((NEW,), (WAITING, STALLED, UNASSIGNED), "a request has to wait; a job waits for a worker"),
    "granted": TicketEdge((NEW, WAITING, STALLED), (RUNNING,), "slots were granted; a stalled ticket probes a backoff"),
    "returned": TicketEdge((RUNNING,), (PASSED_OVER, UNASSIGNED), "the grant was not claimed, or the job not started"),
    "asked": TicketEdge((PASSED_OVER,), (WAITING, STALLED), "the process of the ticket was heard of again"),
    "offered": TicketEdge((UNASSIGNED,), (WAITING, STALLED), "a worker offers to run the job"),
    "withdrawn": TicketEdge((WAITING, STALLED), (UNASSIGNED,), "the worker is gone, or its host is drained"),
    "held": TicketEdge((WAITING, STALLED), (HELD,), "its turn came, and it was submitted with `--confirm`"),
    "approved": TicketEdge((HELD,), (UNASSIGNED,), "a person approved it"),
    "backed_off": TicketEdge((WAITING,), (STALLED,), "the last usable candidate is backed off"),
    "backoff_ended": TicketEdge((STALLED,), (WAITING,), "a candidate is usable again"),
    "cancelled": TicketEdge(STATES, (GONE,), "a person cancelled it, or its process stopped waiting"),
    "expired": TicketEdge((WAITING, PASSED_OVER, UNASSIGNED, HELD), (GONE,), "it waited too long"),
    "dropped": TicketEdge((WAITING, STALLED, PASSED_OVER), (GONE,), "its process or its client is gone"),
    "released": TicketEdge((RUNNING,), (GONE,), "its lease ended"),
    "reclaimed": TicketEdge((RUNNING,), (GONE,), "its lease was taken back"),
}
