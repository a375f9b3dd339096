"""A job as programs are told it (SPEC O8). What does not apply is null; keys are only ever added."""

from __future__ import annotations

from msgspec import Struct

from headgate.gate import processes
from headgate.jobs.store import JobView
from headgate.present.moments import Moments
from headgate.present.shapes import Range, ReasonShape, Time, reason_json, seconds
from headgate.present.times import utc


class SubmittedShape(Struct):
    """SPEC O8: `headgate submit --json`."""

    id: str
    state: str
    position: int | None
    estimate_s: Range | None
    reason: ReasonShape | None
    new: bool


class JobShape(Struct):
    """SPEC O8. `env` has names only: values may be secrets."""

    id: str
    name: str | None
    state: str
    attempt: int
    model: str | None
    position: int | None
    reason: ReasonShape | None
    estimate_s: Range | None
    exit_code: int | None
    signal: int | None
    outcome: str | None
    why: str | None
    command: list[str]
    cwd: str
    env: list[str]
    host: str | None
    project: str
    priority: int
    models: list[str]
    key: str | None
    session: str | None
    role: str | None
    retries: int
    failures: int
    limits: int
    losses: int
    on_lost: str
    submitted_at: Time | None
    started_at: Time | None
    finished_at: Time | None
    pid: int | None
    by: str | None


def submitted_json(view: JobView, moments: Moments, *, new: bool) -> SubmittedShape:
    reason = None if view.reason is None else reason_json(view.reason, moments)
    return SubmittedShape(view.id, view.state, view.position, seconds(view.estimate_ms), reason, new)


def job_json(view: JobView, moments: Moments) -> JobShape:
    job, spec = view.job, view.job.spec
    return JobShape(
        id=view.id,
        name=spec.name or None,
        state=view.state,
        attempt=job.attempt,
        model=job.model or None,
        position=view.position,
        reason=None if view.reason is None else reason_json(view.reason, moments),
        estimate_s=seconds(view.estimate_ms),
        exit_code=job.exit_code,
        signal=job.signal,
        outcome=job.outcome or None,
        why=job.why or None,
        command=list(spec.argv),
        cwd=spec.cwd,
        env=sorted(spec.env),
        host=None if spec.any_host else spec.host,
        project=spec.project,
        priority=spec.priority,
        models=list(spec.models),
        key=spec.key or None,
        session=spec.session or None,
        role=spec.role or None,
        retries=spec.retries,
        failures=job.failures,
        limits=job.limits,
        losses=job.losses,
        on_lost=spec.on_lost,
        submitted_at=utc(job.submitted_at),
        started_at=utc(job.started_at) if job.started_at else None,
        finished_at=utc(job.finished_at) if job.finished_at else None,
        pid=processes.pid_of(view.child) if view.child else None,
        by=job.by or None,
    )
