"""A job as it is now, as JSON (present/json/jobs.py)."""

from __future__ import annotations

from base64 import b64encode

from fleetgate.gate.liveness import process_identity
from fleetgate.jobs.job_store import JobView
from fleetgate.jobs.output_files import ERR, NOTE, OUT, Piece
from fleetgate.present.json.jobs import AttemptShape, JobShape, PieceShape, SubmittedShape
from fleetgate.present.json.state import reason_json, seconds
from fleetgate.present.json.usage import usage_json
from fleetgate.present.log_time import LogTimes
from fleetgate.present.wall_time import utc
from fleetgate.signals.agents.placeholders import filled_in
from fleetgate.signals.redaction import redact_words

STREAMS = {OUT: "out", ERR: "err", NOTE: "fleetgate"}


def submitted_json(view: JobView, moments: LogTimes, *, new: bool) -> SubmittedShape:
    reason = None if view.reason is None else reason_json(view.reason, moments)
    return SubmittedShape(
        view.id, view.state, view.position, seconds(view.estimate_ms), reason, new, view.of or None, view.pool or None
    )


def job_json(view: JobView, moments: LogTimes) -> JobShape:
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
        command=filled_in(redact_words(spec.argv), job.model),
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
        pid=process_identity.pid_of(view.child) if view.child else None,
        by=job.by or None,
        user=spec.user or None,
        ending=view.ending,
        of=view.of or None,
        pool=view.pool or None,
        usage=usage_json(view.spent),
        attempts=[
            AttemptShape(each.attempt, each.model or None, usage_json(each.usage)) for each in job.attempts_spent
        ],
        work_class=job.spec.work_class,
        access_key=job.access_key or None,
    )


def piece_json(piece: Piece) -> PieceShape:
    """Bytes that are no text are told twice: as text with marks where they are wrong, and as they were."""
    at, stream = utc(piece.at) or "", STREAMS.get(piece.mark, "out")
    try:
        return PieceShape(at, stream, piece.data.decode(), None)
    except UnicodeDecodeError:
        return PieceShape(at, stream, piece.data.decode(errors="replace"), b64encode(piece.data).decode())
