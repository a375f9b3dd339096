"""Errors of the operating system as sentences: a command never ends with a traceback."""

from __future__ import annotations

import errno
import os

from fleetgate.core.errors import FleetgateError


class SystemTrouble(FleetgateError):
    """An error of the operating system that no other part has explained."""

    exit_code = 71  # EX_OSERR


def explain(error: OSError | MemoryError) -> SystemTrouble:
    """The error as a sentence with advice."""
    if isinstance(error, MemoryError):
        return SystemTrouble("out of memory: stop another program, or raise the limit (`ulimit -v`)")
    named = isinstance(error.filename, str | bytes)
    what = f"{error.strerror or error}" + (f": {os.fsdecode(error.filename)!r}" if named else "")
    return SystemTrouble(f"system error ({what}): {_advice(error)}")


def _advice(error: OSError) -> str:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return f"raise the limit of open files (`ulimit -n`, now {os.sysconf('SC_OPEN_MAX')})"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some disk space"
    if error.errno == errno.EROFS:
        return "set FLEETGATE_HOME to a writable folder"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "check its owner and mode, or set FLEETGATE_HOME to a folder of your own"
    if error.errno in (errno.EAGAIN, errno.ENOMEM):
        return "stop another program, or raise the limits of this user (`ulimit -a`)"
    if error.errno == errno.ENOENT and not _has_folder():
        return "the current folder no longer exists: `cd` to another one"
    return "fix it and try again; `fleetgate doctor` may find the cause"


def _has_folder() -> bool:
    try:
        os.getcwd()
    except OSError:
        return False
    return True
