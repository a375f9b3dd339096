"""The row of a job, beside the log. Fields are only ever added, with defaults: old rows stay readable.

Only the environment that `--env` names is kept: the rest, with its keys, is the worker's. Times are wall time in ms,
unless a comment says otherwise.
"""

from __future__ import annotations

import os

import msgspec
from msgspec import Struct, field

from fleetgate.core import commands as cmd
from fleetgate.core.entities import BATCH, Spec
from fleetgate.core.errors import FleetgateError
from fleetgate.core.usage import Usage
from fleetgate.gate.acquire_command import job_command
from fleetgate.log.protocol import SideWrite
from fleetgate.signals.redaction import readable, shown_command

JOBS = "jobs"

RETRIES = 3
_MOST_ATTEMPTS = 50  # whose usage is kept apart


class Exact(Struct, frozen=True):
    """What to run, byte for byte, where it is not all UTF-8."""

    argv: tuple[bytes, ...]
    cwd: bytes
    env: tuple[tuple[bytes, bytes], ...]


class JobSpec(Struct, frozen=True, omit_defaults=True):
    """What to run, and how. `argv`, `cwd` and `env` are readable; what is executed is told by the methods below."""

    argv: tuple[str, ...]
    cwd: str
    host: str  # where it was submitted, and where it runs unless any host will do
    models: tuple[str, ...] = ()
    any: bool = False
    any_host: bool = False
    slots: int = 1
    supervisor: bool = False
    caps: tuple[tuple[str, int], ...] = ()
    family_caps: tuple[tuple[str, int], ...] = ()
    project: str = "default"
    priority: int = 0
    expires_ms: int = 0  # 0: the default of 24 h
    retries: int = RETRIES
    retry_on: tuple[str, ...] = ()  # exit codes and outcomes; () is every failure
    on_lost: str = "retry"
    key: str = ""
    name: str = ""
    role: str = ""
    session: str = ""
    classify: str = ""
    env: dict[str, str] = {}
    timeout_ms: int = 0  # of one attempt; 0: none
    silence_ms: int = 0  # 0: 20 min for known agents, none for others
    confirm: bool = False
    exact: Exact | None = None
    work_class: str = field(default=BATCH, name="class")  # one of CLASSES (rule W4)
    user: str = ""  # who submitted it, and whose worker runs it; "": the owner of the state folder

    @property
    def command(self) -> str:
        """For display."""
        return shown_command(self.argv)

    def words_to_run(self) -> list[str]:
        return list(self.argv) if self.exact is None else [os.fsdecode(word) for word in self.exact.argv]

    def folder_to_enter(self) -> str:
        return self.cwd if self.exact is None else os.fsdecode(self.exact.cwd)

    def variables_to_set(self) -> dict[str, str]:
        if self.exact is None:
            return self.env
        return {os.fsdecode(name): os.fsdecode(value) for name, value in self.exact.env}


def readable_parts(argv: tuple[str, ...], cwd: str, env: dict[str, str]) -> dict[str, object]:
    """The fields of a specification that say what is executed: readable, and exact where that is not the same."""
    texts = [*argv, cwd, *env, *env.values()]
    exact = None
    if any(_bytes(text) != readable(text).encode() for text in texts):
        pairs = tuple((_bytes(name), _bytes(value)) for name, value in env.items())
        exact = Exact(tuple(map(_bytes, argv)), _bytes(cwd), pairs)
    return {
        "argv": tuple(map(readable, argv)),
        "cwd": readable(cwd),
        "env": {readable(name): readable(value) for name, value in env.items()},
        "exact": exact,
    }


def _bytes(text: str) -> bytes:
    """As the system takes it: an argument that is not UTF-8 has its own bytes back."""
    try:
        return os.fsencode(text)
    except UnicodeEncodeError:  # the locale has not all of its characters
        return readable(text).encode()


class AttemptUsage(Struct, frozen=True, omit_defaults=True):
    """What one attempt used."""

    attempt: int
    model: str
    usage: Usage


class Job(Struct, omit_defaults=True):
    """One row. `state` is as it was last written: see store.py for what it is now."""

    spec: JobSpec
    state: str
    since: int  # log time: its age in the queue, kept over all attempts
    submitted_at: int
    by: str = ""
    attempt: int = 0  # how often it was started
    failures: int = 0  # retries that were spent
    limits: int = 0  # how often a limit ended it
    losses: int = 0  # how often its worker died
    started_at: int = 0  # the last attempt
    finished_at: int = 0  # the last attempt, or the end of waiting
    model: str = ""
    exit_code: int | None = None
    signal: int | None = None
    outcome: str = ""
    why: str = ""  # the result, in one sentence
    spent: Usage | None = None  # by all attempts, as far as that is known
    attempts_spent: tuple[AttemptUsage, ...] = ()  # by each of the last ones
    gives_way: bool = False  # it is stopped for interactive work, and returns to the queue however it ends
    access_key: str = ""  # the name of the access key that it was submitted with (rule E1)
    sealed: bool = False  # the command is in a file of its submitter (sealed_files.py); `spec` is only for display

    @property
    def title(self) -> str:
        return self.spec.name or self.spec.command


def add_usage(job: Job, usage: Usage | None) -> None:
    """Note what the last attempt used; an attempt counts once, however often this is noted."""
    earlier = tuple(each for each in job.attempts_spent if each.attempt != job.attempt)
    if usage is None or len(earlier) < len(job.attempts_spent):
        return
    job.spent = usage if job.spent is None else job.spent.plus(usage)
    job.attempts_spent = (*earlier, AttemptUsage(job.attempt, job.model, usage))[-_MOST_ATTEMPTS:]


def acquire_command(ident: str, job: Job, not_before: int = 0) -> cmd.Acquire:
    """The command that puts a job in the queue, the first time or again."""
    spec = job.spec
    return job_command(
        ident,
        _slot_spec(spec, job.access_key),
        since=job.since,
        priority=spec.priority,
        expires_ms=spec.expires_ms,
        command=spec.command,
        name=spec.name,
        key=spec.key,
        role=spec.role,
        session=spec.session,
        any_host=spec.any_host,
        confirm=spec.confirm and not job.attempt,
        not_before=not_before,
        by=job.by,
    )


def _slot_spec(spec: JobSpec, access_key: str) -> Spec:
    return Spec(
        models=spec.models,
        slots=spec.slots,
        host="" if spec.any_host else spec.host,
        project=spec.project,
        any_candidate=spec.any,
        supervisor=spec.supervisor,
        caps=spec.caps,
        family_caps=spec.family_caps,
        user=spec.user,
        work_class=spec.work_class,
        access_key=access_key,
    )


def write(ident: str, job: Job) -> SideWrite:
    return SideWrite(JOBS, ident, msgspec.json.encode(job))


def forget(ident: str) -> SideWrite:
    return SideWrite(JOBS, ident, None)


def read(ident: str, value: bytes) -> Job:
    """Decode a row. Raises FleetgateError with the job's id if it cannot be read."""
    try:
        return msgspec.json.decode(value, type=Job)
    except msgspec.MsgspecError as error:
        raise FleetgateError(f"job {ident} cannot be read ({error}): it was written by another version?") from error
