"""The rows of jobs, and a job as it is now: its row, its ticket or lease, and an end that nobody has seen to yet."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from headgate.core import events as ev
from headgate.core.errors import BadRequest, NotFound
from headgate.core.names import shown
from headgate.core.records import Reason
from headgate.core.state import State
from headgate.core.views import TicketView, ticket_view, ticket_views
from headgate.gate.direct import DirectGate
from headgate.gate.transaction import JOB_ENDS
from headgate.jobs import states
from headgate.jobs.records import JOBS, WISHES, Job, Wish, read
from headgate.log.protocol import Log
from headgate.present.words import some

LeftAs = ev.Expired | ev.Cancelled | ev.Reclaimed
_decode_end = msgspec.json.Decoder(LeftAs).decode


class JobView(Struct):
    """A job as it is now."""

    id: str
    job: Job
    state: str
    position: int | None = None
    reason: Reason | None = None
    estimate_ms: tuple[int, int] | None = None
    child: str = ""  # the process that runs it
    end: LeftAs | None = None  # how it ended, where its row does not say so yet


def find(log: Log, ident: str) -> Job | None:
    value = log.side(JOBS, ident)
    return None if value is None else read(ident, value)


def every(log: Log) -> dict[str, Job]:
    """All jobs, by id."""
    return {ident: read(ident, value) for ident, value in log.side_items(JOBS)}


def ends(log: Log) -> dict[str, LeftAs]:
    """Ends that came when no worker was by, and that nobody has seen to."""
    return {ident: _decode_end(value) for ident, value in log.side_items(JOB_ENDS)}


def wish(log: Log, ident: str) -> Wish | None:
    value = log.side(WISHES, ident)
    return None if value is None else msgspec.json.decode(value, type=Wish)


def view(gate: DirectGate, ident: str) -> JobView:
    """One job as it is now. NotFound where there is none."""
    job = find(gate.log, ident)
    if job is None:
        raise NotFound(f"no job {shown(ident)}: `headgate jobs --all` lists them")
    state = gate.replica.catch_up()
    value = gate.log.side(JOB_ENDS, ident)
    end = None if value is None else _decode_end(value)
    return _now(ident, job, state, ticket_view(state, ident, gate.now()), end)


def views(gate: DirectGate) -> list[JobView]:
    """All jobs as they are now: what runs, what waits by position, what has ended, the last first."""
    jobs, over = every(gate.log), ends(gate.log)
    state = gate.replica.catch_up()
    line = {view.ticket.id: view for view in ticket_views(state, gate.now()) if view.ticket.job}
    found = [_now(ident, job, state, line.get(ident), over.get(ident)) for ident, job in jobs.items()]
    return sorted(found, key=_place)


def _now(ident: str, job: Job, state: State, place: TicketView | None, end: LeftAs | None) -> JobView:
    if place is not None:
        now = states.HELD if place.ticket.held else states.QUEUED
        where = None if place.ticket.held else place.position
        return JobView(ident, job, now, where, place.reason, place.estimate_ms)
    lease = state.leases.get(ident)
    if lease is not None:
        return JobView(ident, job, states.RUNNING, child=lease.child)
    if end is not None and job.state not in states.FINAL:
        return JobView(ident, job, _state_after(job, end), end=end)
    return JobView(ident, job, job.state)


def _state_after(job: Job, end: LeftAs) -> str:
    if isinstance(end, ev.Expired):
        return states.EXPIRED
    if isinstance(end, ev.Cancelled):
        return states.CANCELLED
    return states.QUEUED if job.spec.on_lost == "retry" else states.LOST


def _place(view: JobView) -> tuple[int, int]:
    if view.state == states.RUNNING:
        return (0, view.job.started_at)
    if view.state not in states.FINAL:
        return (1, view.position if view.position is not None else 1 << 40)
    return (2, -(view.job.finished_at or view.job.submitted_at))


def find_job(gate: DirectGate, prefix: str) -> str:
    """The id of a job, of which only the beginning need be typed; a name does too, if only one job has it."""
    if gate.log.side(JOBS, prefix) is not None:
        return prefix
    jobs = every(gate.log)
    found = sorted(ident for ident in jobs if prefix and ident.startswith(prefix))
    found = found or sorted(ident for ident, job in jobs.items() if prefix and job.spec.name == prefix)
    if len(found) == 1:
        return found[0]
    if found:
        raise BadRequest(f"{shown(prefix)} may be any of {some(found)}; type more of the id")
    raise NotFound(f"no job {shown(prefix)}: `headgate jobs --all` lists them")
