"""A trace: what came to the gate from outside, without what the gate decided about it.

A *step* is something that happened at a time of its own, such as a request that arrived or a cap that was set. Steps of
a run (the calls that an agent makes, and its end) and of a worker (the jobs that it offers to run) follow their own
progress: they come as long after the step before them as they really did, even if that one came later than it did.
"""

from __future__ import annotations

from msgspec import Struct, field

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.state.snapshot_format import Snapshot


class TraceStep(Struct):
    """A command for the engine, or an event that is applied as it is."""

    at: int  # log time; of a follower: ms after what it follows
    seq: int  # of the real event: steps at the same time are taken in this order
    command: cmd.Command | None = None
    event: ev.Event | None = None


class LeaseTrace(Struct):
    """How a lease went on: that the provider accepted its call, what it used on the way, and how it ended."""

    seq: int
    model: str
    kind: str
    held_ms: int | None = None  # None: until the end of the trace, or it ends as a follower
    end: cmd.Command | None = None
    news: list[TraceStep] = field(default_factory=list)  # on the way, so many ms after the grant
    levels: dict[str, int] = field(default_factory=dict)  # by pool of models: slots in use when it began, with its own


class Leave(Struct):
    """A request that left the queue without a slot, so long after it had arrived."""

    waited_ms: int
    seq: int
    command: cmd.Command


class Trace(Struct):
    """Everything from `start` to `end`, and the state at the start."""

    start: int
    end: int
    state: Snapshot
    steps: list[TraceStep] = field(default_factory=list)
    followers: dict[str, list[TraceStep]] = field(default_factory=dict)  # by `granted` or `over` of a request
    holds: dict[str, list[LeaseTrace]] = field(default_factory=dict)  # by request, one for each time it was granted
    leaves: dict[str, Leave] = field(default_factory=dict)
    refused_outright: int = 0  # requests that did not want to wait
    unclaimed: int = 0  # grants that were not claimed in time
    still_running: int = 0
    events: int = 0
    begins_late: bool = False  # older events are no longer kept
    caps_guessed: bool = False  # and caps were changed since: what they were at the start is not known


def granted(ident: str) -> str:
    """What follows the grant of a request."""
    return f"granted {ident}"


def over(ident: str, times: int) -> str:
    """What follows the end of a request, or its leaving; a job's ID may end several times."""
    return f"over {ident} {times}"
