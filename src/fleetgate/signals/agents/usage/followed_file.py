"""What an agent writes into its session file about its plan while it runs (rule W1): Codex's `token_count` records.

The rule: the file is read on from where the last look ended, so a look costs what was written since. Of a file that
existed before the run, only records made since its start count.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from fleetgate.signals.agents.usage.records import AgentStart, UsageRecords
from fleetgate.signals.agents.usage.reports import RecordedUsage
from fleetgate.signals.output_buffers import MarkedLines

_PIECE = 1 << 20
_MOST_BYTES = 16 << 20  # of one look


class FollowedFile:
    """The session file of one run. Its first look finds out which that is."""

    def __init__(self, records: UsageRecords) -> None:
        self._records = records
        self._lines = MarkedLines(records.record_marks)
        self._path = ""
        self._at = 0  # how much of it was read

    def look(self, start: AgentStart) -> RecordedUsage | None:
        """The last report with limits of a plan among what was written since the last look; None: there is none."""
        self._path = self._path or next(self._records.files(start), "")
        found = None
        for line in self._new_lines() if self._path else ():
            report = self._records.recorded(line)
            if report is not None and report.limits is not None and (report.at_ms or 0) >= start.since_wall_ms:
                found = report
        return found

    def _new_lines(self) -> Iterator[bytes]:
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return
        with open(fd, "rb", buffering=0) as file:
            about = os.fstat(fd)
            if not stat.S_ISREG(about.st_mode):
                return
            if about.st_size < self._at or about.st_size - self._at > _MOST_BYTES:  # another file, or a long history
                self._at, self._lines = max(about.st_size - _MOST_BYTES, 0), MarkedLines(self._records.record_marks)
            file.seek(self._at)
            while piece := file.read(_PIECE):
                self._at += len(piece)
                yield from self._lines.feed(piece)
