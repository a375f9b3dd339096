"""The results of the tools. They are short, because a model reads them: what does not apply is left out."""

from __future__ import annotations

from msgspec import Struct

from fleetgate.present.json.jobs import JobShape, SubmittedShape
from fleetgate.present.json.state import BackoffShape, CapacityShape, TicketShape
from fleetgate.present.usage.report import UsageAmounts, UsageShape

Span = list[float]  # low and high, in seconds


class CapacityResult(Struct, omit_defaults=True):
    """Whether an agent would start now: `level` is green, yellow or red."""

    level: str
    advice: str
    waiting: int
    free_slots: int | None = None  # left out: nothing is capped
    wait_s: Span | None = None
    why: str | None = None
    code: str | None = None
    retry_at: str | None = None
    models: list[str] = []


class WaitingRequest(Struct, omit_defaults=True):
    """A request in the queue."""

    id: str
    position: int
    models: list[str]
    project: str
    why: str
    of: int | None = None
    pool: str | None = None
    waiting_since: str | None = None
    starts_in_s: Span | None = None
    command: str | None = None


class BackoffLine(Struct, omit_defaults=True):
    """A model or account that is held back."""

    key: str
    reason: str
    until: str | None = None


class QueueResult(Struct, omit_defaults=True):
    """The queue, in the order in which requests are expected to start."""

    running: int
    waiting: int
    requests: list[WaitingRequest]
    backoffs: list[BackoffLine]


class SubmitResult(Struct, omit_defaults=True):
    """A job in the queue."""

    id: str
    state: str
    next: str
    new: bool
    position: int | None = None
    of: int | None = None
    pool: str | None = None
    starts_in_s: Span | None = None
    why: str | None = None


class JobResult(Struct, omit_defaults=True):
    """A job as it is now."""

    id: str
    state: str
    finished: bool
    next: str
    name: str | None = None
    model: str | None = None
    attempt: int = 0
    why: str | None = None
    position: int | None = None
    of: int | None = None
    pool: str | None = None
    starts_in_s: Span | None = None
    exit_code: int | None = None
    signal: int | None = None
    outcome: str | None = None
    tokens: int | None = None
    cost_usd: float | None = None
    output_end: str | None = None


class UsageAmount(Struct, omit_defaults=True):
    """Calls, tokens and cost. A cost that is left out is not known; `cost_complete`: every part of it is known."""

    calls: int
    tokens: int
    input: int
    output: int
    cost_usd: float | None = None
    cost_complete: bool = True


class UsageRowResult(UsageAmount, omit_defaults=True):
    """A row of usage: `group` has the values of what it is grouped by."""

    group: dict[str, str | None] = {}


class UsageResult(Struct, omit_defaults=True):
    """The usage of a period."""

    since: str
    until: str
    total: UsageAmount
    rows: list[UsageRowResult]
    rows_left_out: int = 0


_ADVICE = {
    "green": "Start it now.",
    "yellow": "You may start one now; expect a short wait. Do not start several.",
    "red": "Do not start agents now. Submit the work as a job, which starts when a slot is free, use another model, "
    "or ask again later.",
}


def capacity_result(found: CapacityShape) -> CapacityResult:
    result = CapacityResult(
        found.level, _ADVICE[found.level], found.queued, found.free, found.wait_s, models=found.models
    )
    if found.reason is not None:
        result.why, result.code, result.retry_at = found.reason.text, found.reason.code, found.reason.until
    return result


def waiting_request(ticket: TicketShape) -> WaitingRequest:
    return WaitingRequest(
        id=ticket.id,
        position=ticket.position,
        models=ticket.models,
        project=ticket.project,
        why=ticket.reason.text,
        of=ticket.of,
        pool=ticket.pool,
        waiting_since=ticket.since,
        starts_in_s=ticket.estimate_s,
        command=ticket.command,
    )


def backoff_line(backoff: BackoffShape) -> BackoffLine:
    return BackoffLine(backoff.key, backoff.reason, backoff.until)


def submit_result(job: SubmittedShape, next_step: str) -> SubmitResult:
    return SubmitResult(
        id=job.id,
        state=job.state,
        next=next_step,
        new=job.new,
        position=job.position,
        of=job.of,
        pool=job.pool,
        starts_in_s=job.estimate_s,
        why=None if job.reason is None else job.reason.text,
    )


def job_result(job: JobShape, *, finished: bool, next_step: str, output_end: str) -> JobResult:
    return JobResult(
        id=job.id,
        state=job.state,
        finished=finished,
        next=next_step,
        name=job.name,
        model=job.model,
        attempt=job.attempt,
        why=job.why if job.reason is None else job.reason.text,
        position=job.position,
        of=job.of,
        pool=job.pool,
        starts_in_s=job.estimate_s,
        exit_code=job.exit_code,
        signal=job.signal,
        outcome=job.outcome,
        tokens=None if job.usage is None else job.usage.tokens,
        cost_usd=None if job.usage is None else job.usage.cost_usd,
        output_end=output_end or None,
    )


def usage_result(report: UsageShape) -> UsageResult:
    rows = [UsageRowResult(*_amounts(line), {name: getattr(line, name) for name in report.by}) for line in report.rows]
    return UsageResult(report.since, report.until, UsageAmount(*_amounts(report.total)), rows, report.rows_left_out)


def _amounts(line: UsageAmounts) -> tuple[int, int, int, int, float | None, bool]:
    every_input = line.input + line.cache_read + line.cache_write
    return line.calls, line.tokens, every_input, line.output, line.cost_usd, line.cost_complete
