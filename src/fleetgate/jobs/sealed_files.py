"""Sealed jobs: the specification of a job in a file of its submitter, in a state folder that several users share.

The row has what anyone may read, with secrets cut out; the file `jobs/ID.job` has what is run. It is made by the
submitter with mode 0600, so the kernel says who made it and keeps its content from others.

The rule: nothing of a sealed job is run unless the file is a regular file of a user whose jobs this worker runs, no one
else can write to it, it has one name, and its content says that it is this very job's.
"""

from __future__ import annotations

import os
import stat

import msgspec
from msgspec import Struct

from fleetgate.core.errors import FleetgateError
from fleetgate.jobs.job_owner import Owners, user_name
from fleetgate.jobs.job_record import Job, JobSpec
from fleetgate.log.store_files import make_inner_folder, sync_folder
from fleetgate.signals.redaction import MASK, redact_words

_LARGEST = 16 << 20


class OwnerUnproven(FleetgateError):
    """A job that must not be run: its owner cannot be proved."""


class Sealed(Struct):
    """What is in the file."""

    id: str
    spec: JobSpec


def seal(folder: str, ident: str, job: Job) -> Job:
    """Write the specification of a new job to a file of its own. Returns the row that goes with it."""
    place = f"{folder}/jobs"
    make_inner_folder(place)
    fd = os.open(_path(folder, ident), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(msgspec.json.encode(Sealed(ident, job.spec)))
        file.flush()
        os.fsync(fd)
    sync_folder(place)
    return msgspec.structs.replace(job, spec=_shown(job.spec), sealed=True)


def unseal(folder: str, ident: str, job: Job, owners: Owners) -> JobSpec:
    """What is to be run of a job. NotTrusted says why it must not be."""
    if not job.sealed and owners.vouch_for_rows():
        return job.spec
    path = _path(folder, ident)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise OwnerUnproven(
            f"whose job it is cannot be proved: {path}: {error.strerror}; submit it again, as the user who runs it"
        ) from error
    try:
        _check(fd, path, owners)
        with os.fdopen(os.dup(fd), "rb") as file:
            found = msgspec.json.decode(file.read(_LARGEST), type=Sealed)
    except msgspec.MsgspecError as error:
        raise OwnerUnproven(f"{path} cannot be read ({error}): submit the job again") from error
    finally:
        os.close(fd)
    if found.id != ident:
        raise OwnerUnproven(f"{path} is the file of another job: submit this one again")
    return found.spec


def remove(folder: str, ident: str) -> None:
    """Forget the file of a job, if there is one."""
    try:
        if folder:
            os.unlink(_path(folder, ident))
    except OSError:
        pass  # there is none, or it is not ours to remove


def _path(folder: str, ident: str) -> str:
    return f"{folder}/jobs/{ident}.job"


def _check(fd: int, path: str, owners: Owners) -> None:
    found = os.fstat(fd)
    if found.st_uid not in owners.uids:
        raise OwnerUnproven(
            f"{path} belongs to {user_name(found.st_uid)}, and this worker runs jobs of {owners.shown()}"
        )
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1 or found.st_mode & 0o022:
        raise OwnerUnproven(f"{path} is no file that only its owner can write to: submit the job again")


def _shown(spec: JobSpec) -> JobSpec:
    return msgspec.structs.replace(
        spec, argv=tuple(redact_words(spec.argv)), env=dict.fromkeys(spec.env, MASK), exact=None
    )
