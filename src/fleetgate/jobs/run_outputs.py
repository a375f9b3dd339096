"""The kept output of runs (`run --log`): the same files as a job's, and a file beside them that describes the run.

A run's folder is named by its lease, which is used once. It is deleted like that of a finished job, when nothing was
written to it for `jobs.keep`: by `fleetgate clean`, by workers, and by the next `run --log`.
"""

from __future__ import annotations

import os
from time import time_ns

import msgspec
from msgspec import Struct

from fleetgate.core.entities import Lease
from fleetgate.core.errors import BadRequest, NotFound
from fleetgate.core.model_names import shown
from fleetgate.gate.request_ids import begun_by
from fleetgate.jobs.output_files import OutputWriter, files, folder_of, path_of, remove
from fleetgate.log.store_files import make_file
from fleetgate.present.request_text import command_of

_ABOUT = "run.json"
_LONGEST = 64 * 1024


class RunAbout(Struct):
    """The run that printed it."""

    name: str = ""
    command: str = ""
    model: str = ""
    began_at: int = 0  # wall time in ms


class RunOutput:
    """Writes what the agent of one run prints. Nothing here raises: a full disk costs output, not the run."""

    def __init__(self, folder: str, lease: Lease, most_bytes: int) -> None:
        self._writer = OutputWriter(folder, lease.id, most_bytes)
        self.write = self._writer.write
        about = RunAbout(lease.ticket.name, command_of(lease), lease.model, time_ns() // 1_000_000)
        try:
            fd = make_file(f"{folder_of(folder, lease.id)}/{_ABOUT}", exclusive=True)
            with open(fd, "wb") as file:
                file.write(msgspec.json.encode(about))
        except OSError:
            pass
        self._writer.note(f"run began{f' on {lease.model}' if lease.model else ''}: {about.command}")

    def ended(self, how: str) -> int:
        """Returns how many bytes could not be kept."""
        self._writer.note(f"run ended: {how}")
        self._writer.close()
        return self._writer.lost


def every(folder: str) -> dict[str, RunAbout]:
    """The runs whose output is kept here, the oldest first."""
    try:
        idents = os.listdir(f"{folder}/jobs") if folder else []
    except OSError:
        return {}
    found = [(ident, about) for ident in idents if (about := _about(folder, ident)) is not None]
    return dict(sorted(found, key=lambda each: each[1].began_at))


def find(folder: str, word: str) -> str:
    """The id of a run by its id, its name (the newest run of that name), or the beginning of its id."""
    runs = every(folder)
    if word in runs:
        return word
    named = [ident for ident, about in runs.items() if word and about.name == word]
    if named:
        return named[-1]
    begun = begun_by(word, runs)
    if len(begun) > 1:
        raise BadRequest(f"{shown(word)} is the beginning of several ids: {', '.join(begun[:8])}; type more of it")
    if begun:
        return begun[0]
    raise NotFound(
        f"no job {shown(word)}, and no run whose output was kept: `fleetgate jobs --all` lists the jobs, "
        f"`fleetgate run --log` keeps the output of a run"
    )


def clean(folder: str, before_ms: int, running: set[str]) -> list[str]:
    """Delete the output of runs that ended before a time (wall time)."""
    old = [ident for ident in every(folder) if ident not in running and _written_at(folder, ident) < before_ms]
    for ident in old:
        remove(folder, ident)
    return old


def _written_at(folder: str, ident: str) -> int:
    try:
        return os.stat(path_of(folder, ident), follow_symlinks=False).st_mtime_ns // 1_000_000
    except OSError:
        return 0 if not files(folder, ident) else 1 << 62


def _about(folder: str, ident: str) -> RunAbout | None:
    try:
        fd = os.open(f"{folder_of(folder, ident)}/{_ABOUT}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return msgspec.json.decode(os.read(fd, _LONGEST), type=RunAbout)
    except (OSError, msgspec.MsgspecError):
        return None  # another user may have written it, or a crash cut it off
    finally:
        os.close(fd)
