"""Errors of the system that no part of Fleetgate has explained, as sentences: a command never ends in a traceback."""

from __future__ import annotations

import errno
import os

from fleetgate.core.errors import FleetgateError


class SystemTrouble(FleetgateError):
    """The system does not let us go on."""

    exit_code = 71  # EX_OSERR


def explain(error: OSError | MemoryError) -> SystemTrouble:
    """What is wrong, and what to do."""
    if isinstance(error, MemoryError):
        return SystemTrouble(
            "out of memory: nothing more was done; end something else, or raise the limit (`ulimit -v`)"
        )
    what = f"{error.strerror or error}" + (f": {os.fsdecode(error.filename)!r}" if _names_file(error) else "")
    return SystemTrouble(f"the system does not let this go on ({what}): {_advice(error)}")


def _names_file(error: OSError) -> bool:
    return isinstance(error.filename, str | bytes)


def _advice(error: OSError) -> str:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return f"raise the number of files that may be open (`ulimit -n`, {os.sysconf('SC_OPEN_MAX')} now)"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "make room on the disk"
    if error.errno == errno.EROFS:
        return "set FLEETGATE_HOME to a folder that can be written to"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "check the owner and the mode of what is named, or set FLEETGATE_HOME to a folder of your own"
    if error.errno in (errno.EAGAIN, errno.ENOMEM):
        return "end something else, or raise the limits of this user (`ulimit -a`)"
    if error.errno == errno.ENOENT and not _has_folder():
        return "the current folder does not exist any more: `cd` to another one"
    return "see to it, and try again; `fleetgate doctor` looks for more"


def _has_folder() -> bool:
    try:
        os.getcwd()
    except OSError:
        return False
    return True
