"""The JSON of jobs (rule O8). Values that do not apply are null; keys are only ever added.

Only shapes: jobs/ fills them, cli/ and api/ show them.
"""

from __future__ import annotations

from msgspec import Struct, field

from fleetgate.core.entities import BATCH
from fleetgate.present.json.state import Range, ReasonShape, Time
from fleetgate.present.json.usage import SpentShape


class SubmittedShape(Struct):
    """A submitted job, as in `fleetgate submit --json` (rule O8)."""

    id: str
    state: str
    position: int | None
    estimate_s: Range | None
    reason: ReasonShape | None
    new: bool
    of: int | None  # how many have a position for `pool`
    pool: str | None


class AttemptShape(Struct):
    """The usage of one attempt of a job."""

    attempt: int
    model: str | None
    usage: SpentShape | None


class JobShape(Struct):
    """A job (rule O8). `env` has names only; secrets in `command` are cut. Only workers of `user` run it."""

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
    user: str | None
    ending: bool
    of: int | None
    pool: str | None
    usage: SpentShape | None  # by all attempts so far; null: not known
    attempts: list[AttemptShape]  # the usage of each of the last attempts that have ended
    work_class: str = field(default=BATCH, name="class")
    access_key: str | None = None  # the name of the access key that it was submitted with


class JobFilter(Struct, frozen=True):
    """Which jobs are listed. `everything`: also those that ended more than a day ago."""

    states: tuple[str, ...] = ()
    project: str = ""
    name: str = ""
    since_s: float | None = None  # submitted within this time
    everything: bool = False


class JobsShape(Struct):
    """`total` counts those beyond the page too; `counts` is by state, whatever states were asked for."""

    jobs: list[JobShape]
    total: int
    counts: dict[str, int]


class PieceShape(Struct):
    """Something that a job printed, or a note of ours. `base64` is what it really was, where that is not UTF-8."""

    at: Time
    stream: str
    text: str
    base64: str | None


class OutputShape(Struct):
    """A part of what a job printed, over all its attempts. `next` is the place behind it."""

    id: str
    pieces: list[PieceShape]
    next: str
    more: bool
    skipped: bool
    ended: bool
