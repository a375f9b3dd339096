"""The usage that an agent wrote into its session files since a run began (rule U2).

The rule: only what is certain counts. The files are those of the sessions that are known to be the run's. Where none is
known, one session of this working directory was written since the start, not two. Of it, only records made since
the start count, so that of a resumed session only the new part does.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from msgspec.structs import replace

from fleetgate.signals.agents.usage.records import AgentStart, UsageRecords
from fleetgate.signals.agents.usage.reports import RecordedUsage, RecordSum
from fleetgate.signals.output_buffers import MarkedLines

_MOST_BYTES = 64 << 20  # of the end of a file
_PIECE = 1 << 20
_MOST_FILES = 500  # of one run: a session may have a file for each of its helpers


def usage_since(records: UsageRecords, start: AgentStart) -> RecordSum:
    """What was used since the start, by the agent's own records."""
    total = RecordSum()
    for report in records.kept(start) or _from_files(records, start):
        if report.at_ms is not None and report.at_ms >= start.since_wall_ms:
            total.add(report)
        else:
            total.pass_over(report)
    return total


def _from_files(records: UsageRecords, start: AgentStart) -> Iterator[RecordedUsage]:
    """The reports in the files of the run, each with the time of its record or of the one before it."""
    for number, path in enumerate(records.files(start)):
        if number >= _MOST_FILES:
            return
        at: int | None = None
        for line in _marked_lines(path, records.record_marks, start.since_wall_ms):
            report = records.recorded(line)
            if report is None:
                continue
            at = at if report.at_ms is None else report.at_ms
            yield replace(report, at_ms=at)


def _marked_lines(path: str, marks: tuple[bytes, ...], since_wall_ms: int) -> Iterator[bytes]:
    """The lines of a regular file with a mark; none where it was not written since then."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return
    with open(fd, "rb", buffering=0) as file:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode) or about.st_mtime_ns // 1_000_000 < since_wall_ms:
            return
        file.seek(max(0, about.st_size - _MOST_BYTES))
        lines, left = MarkedLines(marks), _MOST_BYTES
        while left > 0 and (piece := file.read(min(_PIECE, left))):
            left -= len(piece)
            yield from lines.feed(piece)
        yield from lines.finish()
