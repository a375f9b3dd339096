"""The file of `--status-file`: the result of a run, since an agent may exit with 75, too."""

from __future__ import annotations

import os

import msgspec

from fleetgate.core.errors import BadRequest
from fleetgate.present.text import printable_json

_FIELDS = ("admitted", "model", "lease", "waited_s", "exit_code", "signal", "outcome", "reason", "usage")


class Status:
    """A file that is written at the end, at once. Whether it can be written is checked at the start."""

    def __init__(self, path: str) -> None:
        self._path = os.path.abspath(path) if path else ""
        self._facts: dict[str, object] = dict.fromkeys(_FIELDS) | {"admitted": False}
        if self._path and (os.path.isdir(self._path) or not os.access(os.path.dirname(self._path), os.W_OK)):
            raise BadRequest(f"--status-file {path}: cannot be written there")

    def note(self, **facts: object) -> None:
        """Add facts, without writing them yet."""
        self._facts |= facts

    def write(self, **facts: object) -> None:
        self.note(**facts)
        if not self._path:
            return
        draft = f"{self._path}.{os.getpid()}-{os.urandom(4).hex()}.tmp"  # others may write to its folder
        try:
            with open(draft, "xb") as file:
                file.write(printable_json(msgspec.json.encode(self._facts).decode()).encode() + b"\n")
            os.replace(draft, self._path)
        except OSError as error:
            from fleetgate.cli.run.wait_progress import say

            say(f"could not write the status file: {error}")
