"""Jobs as they are now: rows, tickets and leases together, and ends that were not handled yet."""

from __future__ import annotations

from itertools import islice

import msgspec
from msgspec import Struct

from fleetgate.config.units import format_duration
from fleetgate.core import events as ev
from fleetgate.core.entities import Reason, Ticket
from fleetgate.core.errors import BadRequest, NotFound
from fleetgate.core.model_names import shown
from fleetgate.core.queue.positions import QueueView, TicketView
from fleetgate.core.state.state import State
from fleetgate.core.usage import Usage
from fleetgate.core.views.pool_and_lease_views import ticket_view
from fleetgate.gate.liveness import process_identity
from fleetgate.gate.replica.side_rows import JOB_ENDS
from fleetgate.gate.request_ids import begun_by
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.jobs import run_outputs, state_machine
from fleetgate.jobs.job_record import JOBS, Job, read
from fleetgate.log.protocol import Log
from fleetgate.present.text import place, some
from fleetgate.signals.redaction import readable, shown_command

DAY_MS = 86_400_000  # how long those that have ended are listed by default

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
    running_spent: Usage | None = None  # by the attempt that is running, as far as the proxy saw its calls
    ending: bool = False  # it was cancelled while it was running
    of: int = 0  # how many have a position for `pool`
    pool: str = ""

    @property
    def spent(self) -> Usage | None:
        """What all its attempts used so far; None: not known."""
        before, now = self.job.spent, self.running_spent
        return now or before if before is None or now is None else before.plus(now)

    @property
    def place(self) -> str:
        """Where in the queue; "" where it is in none."""
        return "" if self.position is None else place(self.position, self.of, self.pool)


def find(log: Log, ident: str) -> Job | None:
    value = log.side_value(JOBS, ident)
    return None if value is None else read(ident, value)


def every(log: Log) -> dict[str, Job]:
    """All jobs, by id."""
    return {ident: read(ident, value) for ident, value in log.side_items(JOBS)}


def ends(log: Log) -> dict[str, LeftAs]:
    """Ends of jobs without a worker that were not handled yet."""
    return {ident: _decode_end(value) for ident, value in log.side_items(JOB_ENDS)}


def view(gate: DirectGate, ident: str) -> JobView:
    """One job as it is now. NotFound where there is none."""
    job = find(gate.log, ident)
    if job is None:
        raise NotFound(f"no job {shown(ident)}: `fleetgate jobs --all` lists them")
    state = gate.replica.catch_up()
    value = gate.log.side_value(JOB_ENDS, ident)
    end = None if value is None else _decode_end(value)
    return _now(ident, job, state, ticket_view(state, ident, gate.now()), end)


def several(gate: DirectGate, idents: set[str]) -> dict[str, JobView]:
    """Some jobs as they are now, of which there may be many: the line is walked once for all."""
    jobs = {ident: job for ident in idents if (job := find(gate.log, ident)) is not None}
    over = ends(gate.log)
    state = gate.replica.catch_up()
    line = {view.ticket.id: view for view in QueueView(state, gate.now()).walk(lambda ticket: ticket.id in jobs)}
    return {ident: _now(ident, job, state, line.get(ident), over.get(ident)) for ident, job in jobs.items()}


def views(gate: DirectGate) -> list[JobView]:
    """All jobs as they are now."""
    return listing(gate, JobSelection()).views


class JobSelection(Struct, frozen=True):
    """Which jobs. Empty: all."""

    states: tuple[str, ...] = ()
    project: str = ""
    name: str = ""  # is part of its name or command
    submitted_since: int = 0  # wall time in ms
    ended_since: int = 0  # of those that have ended; wall time in ms


class Listing(Struct):
    """A part of the jobs; `total` and `counts` are of all that match, the latter whatever their state."""

    views: list[JobView]
    total: int
    counts: dict[str, int]


class _BriefSpec(Struct):
    argv: tuple[str, ...] = ()
    project: str = "default"
    name: str = ""
    on_lost: str = "retry"


class _Brief(Struct):
    """The part of a row that listings need: there may be a hundred thousand rows, and one page is shown."""

    spec: _BriefSpec
    state: str
    submitted_at: int
    started_at: int = 0
    finished_at: int = 0


_decode_brief = msgspec.json.Decoder(_Brief).decode


def listing(gate: DirectGate, wanted: JobSelection, offset: int = 0, limit: int | None = None) -> Listing:
    """Jobs as they are now: what runs, what waits by position, what has ended, the last first."""
    rows = dict(gate.log.side_items(JOBS))
    over = ends(gate.log)
    state = gate.replica.catch_up()
    counts = dict.fromkeys(state_machine.STATES, 0)
    every_one = not (wanted.project or wanted.name or wanted.submitted_since)
    chosen: set[str] = set()  # of those in the queue, where not every one is
    running, in_queue, adrift, ended = [], 0, [], []
    for ident, value in rows.items():
        ticket = state.tickets.get(ident)
        if ticket is not None and every_one:  # the quick way: most of very many wait
            now = state_machine.HELD if ticket.held else state_machine.QUEUED
            counts[now] += 1
            in_queue += not wanted.states or now in wanted.states
            continue
        row = _brief(ident, value)
        now = _state_now(state, ident, row, over.get(ident))
        if not _matches(row, now, wanted):
            continue
        counts[now] += 1
        if wanted.states and now not in wanted.states:
            continue
        if ticket is not None:
            chosen.add(ident)
            in_queue += 1
        elif now == state_machine.RUNNING:
            running.append((row.started_at, ident))
        elif now in state_machine.FINAL:
            ended.append((-(row.finished_at or row.submitted_at), ident))
        else:
            adrift.append(ident)  # it returns to the queue when its end is handled

    def is_listed(ticket: Ticket) -> bool:
        if not every_one:
            return ticket.id in chosen
        now = state_machine.HELD if ticket.held else state_machine.QUEUED
        return ticket.job and ticket.id in rows and (not wanted.states or now in wanted.states)

    total = len(running) + in_queue + len(adrift) + len(ended)
    end = total if limit is None else min(offset + limit, total)
    found: list[tuple[str, TicketView | None]] = [(ident, None) for _, ident in sorted(running)]
    before = len(found)
    told = 0
    if in_queue and offset < before + in_queue and end > before:
        walk = islice(QueueView(state, gate.now()).walk(is_listed), min(end - before, in_queue))
        found += [(view.ticket.id, view) for view in walk]
        told = len(found) - before
    found += [("", None)] * (in_queue - told)  # none of them is told
    found += [(ident, None) for ident in adrift]
    found += [(ident, None) for _, ident in sorted(ended)]
    views = [
        _now(ident, read(ident, rows[ident]), state, view, over.get(ident))
        for ident, view in found[offset:end]
        if ident
    ]
    return Listing(views, total, counts)


def _brief(ident: str, value: bytes) -> _Brief:
    try:
        return _decode_brief(value)
    except msgspec.MsgspecError:
        read(ident, value)  # says what is wrong with it
        raise


def _matches(row: _Brief, now: str, wanted: JobSelection) -> bool:
    """Whatever its state. A job without an end time has just ended, and its row is not written yet."""
    spec = row.spec
    return (
        (not wanted.project or spec.project == wanted.project)
        and (not wanted.name or wanted.name in (spec.name or shown_command(spec.argv)))
        and row.submitted_at >= wanted.submitted_since
        and (now not in state_machine.FINAL or not row.finished_at or row.finished_at >= wanted.ended_since)
    )


def _state_now(state: State, ident: str, row: Job | _Brief, end: LeftAs | None) -> str:
    ticket = state.tickets.get(ident)
    if ticket is not None:
        return state_machine.HELD if ticket.held else state_machine.QUEUED
    if ident in state.leases:
        return state_machine.RUNNING
    return row.state if end is None or row.state in state_machine.FINAL else _state_after(row, end)


def _now(ident: str, job: Job, state: State, found: TicketView | None, end: LeftAs | None) -> JobView:
    now = _state_now(state, ident, job, end)
    if found is not None:
        where = None if found.ticket.held else found.position
        return JobView(ident, job, now, where, found.reason, found.estimate_ms, of=found.of, pool=found.pool)
    if now == state_machine.RUNNING and ident in state.leases:
        lease = state.leases[ident]
        return JobView(ident, job, now, child=lease.child, running_spent=lease.spent, ending=bool(lease.stop_by))
    if end is not None and job.state not in state_machine.FINAL:
        job.why = why_left(end) or job.why
    return JobView(ident, job, now)


def _state_after(row: Job | _Brief, end: LeftAs) -> str:
    if isinstance(end, ev.Expired):
        return state_machine.EXPIRED
    if isinstance(end, ev.Cancelled):
        return state_machine.CANCELLED
    return state_machine.QUEUED if row.spec.on_lost == "retry" else state_machine.LOST


def why_left(end: LeftAs) -> str:
    """Why a job that did not run left the queue, in words; "" for one that ran."""
    if isinstance(end, ev.Expired):
        return f"expired after {format_duration(end.after_ms // 1000 * 1000, 2)}"
    if isinstance(end, ev.Cancelled):
        return f"cancelled by {end.by}" if end.by else "cancelled"
    return ""


def find_job(gate: DirectGate, prefix: str) -> str:
    """The id of a job, of which only the beginning need be typed; a name does too, if only one job has it."""
    prefix = readable(prefix)
    if gate.log.side_value(JOBS, prefix) is not None:
        return prefix
    jobs = every(gate.log)
    found = sorted(ident for ident, job in jobs.items() if prefix and job.spec.name == prefix)
    found = found or begun_by(prefix, jobs)
    if len(found) == 1:
        return found[0]
    if found:
        raise BadRequest(f"{shown(prefix)} may be any of {some(found)}; type more of the id")
    raise NotFound(f"no job {shown(prefix)}: `fleetgate jobs --all` lists them")


def find_output(gate: DirectGate, word: str) -> str:
    """The job or run whose output is meant."""
    try:
        return find_job(gate, word)
    except NotFound:
        return run_outputs.find(gate.folder, readable(word))


def has_ended(gate: DirectGate, ident: str) -> bool:
    """Whether a job, or a run, prints nothing any more."""
    if find(gate.log, ident) is None:
        lease = gate.replica.catch_up().leases.get(ident)
        return lease is None or process_identity.is_gone(lease.lives_with) is True
    return view(gate, ident).state in state_machine.FINAL
