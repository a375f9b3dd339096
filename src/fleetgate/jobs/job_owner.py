"""The user that a job belongs to, and the proof of it.

A worker runs only jobs of the users it was given, by default its own. In a state folder that only one user can write
to, all rows belong to that user. Where several users can write, a row proves nothing: any of them can write any row.
There the submitter keeps the job's specification in a file that only the submitter can read and write
(sealed_files.py), and the kernel knows its owner. PostgreSQL has no such proof: everyone who can write to the database
decides what workers run.
"""

from __future__ import annotations

import os
import pwd

from msgspec.structs import replace

from fleetgate.core.errors import BadRequest
from fleetgate.core.model_names import shown
from fleetgate.jobs.job_record import JobSpec
from fleetgate.log.store_files import only_writer


def user_name(uid: int | None = None) -> str:
    """The name of a user, by default of this process's."""
    uid = os.geteuid() if uid is None else uid
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def uid_of(name: str) -> int:
    """The number of a user; BadRequest where there is none of that name."""
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        number = name.removeprefix("uid ")
        if number.isascii() and number.isdecimal() and len(number) < 11:
            return int(number)
    raise BadRequest(f"--user {shown(name)}: this machine has no such user; `getent passwd` lists them")


class Owners:
    """The users whose jobs a worker runs; none named: its own."""

    def __init__(self, names: tuple[str, ...], folder: str, *, shared_log: bool) -> None:
        self.uids = frozenset(uid_of(name) for name in names) or frozenset((os.geteuid(),))
        self.names = frozenset(user_name(uid) for uid in self.uids)
        self._shared_log = shared_log
        # The only user who can write rows, which need no proof then; None where several users can.
        self._writer = None if shared_log or not folder else only_writer(folder)
        self._in_memory = not folder and not shared_log

    def may_run(self, user: str) -> bool:
        """Whether a job of this user is taken up. Rows of older versions name none: they are the folder's owner's."""
        if user:
            return user in self.names
        return self._shared_log or self._in_memory or self._writer is None or self._writer in self.uids

    def vouch_for_rows(self) -> bool:
        """Whether what a row says can be run as it is."""
        return self._shared_log or self._in_memory or (self._writer is not None and self._writer in {*self.uids, 0})

    def shown(self) -> str:
        return " and ".join(sorted(self.names))


def name_owner(spec: JobSpec, folder: str, *, shared_log: bool) -> JobSpec:
    """A new job's specification with its user, where others than that user could have submitted it."""
    own = not shared_log and not must_seal(folder, shared_log=False)
    return replace(spec, user="" if own else user_name())


def must_seal(folder: str, *, shared_log: bool) -> bool:
    """Whether a job that this process submits needs a sealed file to prove whose it is."""
    return bool(folder) and not shared_log and only_writer(folder) not in (os.geteuid(), 0)
