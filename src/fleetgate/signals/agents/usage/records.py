"""The base class of an agent's records of usage: where they are, and what a line of them reports (rule U2)."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from fleetgate.signals.agents.agent import Agent
from fleetgate.signals.agents.usage.reports import RecordedUsage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fleetgate.core.plans.reading import PlanReading


class AgentStart(Struct, frozen=True):
    """The start of a run: what tells where the agent keeps its records of it."""

    args: tuple[str, ...]  # the agent's own
    environ: Mapping[str, str]
    folder: str
    since_wall_ms: int
    sessions: tuple[str, ...] = ()  # those of the run, as far as they are known


class UsageRecords:
    """The records of one agent. The base class finds nothing."""

    marks: tuple[bytes, ...] = ()  # one is in every line of its output that reports usage
    record_marks: tuple[bytes, ...] = ()  # the same for its session files
    plan_marks: tuple[bytes, ...] = ()  # one is in every line of its output that reports plan windows
    files_report_plan = False  # its session files report plan windows while it runs
    reports_cost = True  # where it knows the price of a model
    reports_in_text = False  # whether `reported` finds anything where the agent prints text

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    def reported(self, line: bytes, resumed: bool) -> RecordedUsage | None:
        """The usage that a line of stdout reports. `resumed`: the run resumes a session."""
        return None

    def plan_windows(self, line: bytes, now_wall_ms: int, model: str) -> tuple[PlanReading, ...]:
        """The plan windows that a line of stdout reports (rule W1)."""
        return ()

    def reported_at_end(self, end: bytes) -> RecordedUsage | None:
        """The usage that the end of stdout reports, where that is not one line."""
        return None

    def prefers_files(self, args: Sequence[str]) -> bool:
        """Whether its session files know more than its output does."""
        return False

    def files(self, start: AgentStart) -> Iterator[str]:
        """The session files of a run; none where it is not certain which they are."""
        return iter(())

    def recorded(self, line: bytes) -> RecordedUsage | None:
        """The usage that a line of such a file reports."""
        return None

    def kept(self, start: AgentStart) -> list[RecordedUsage]:
        """The same of an agent that keeps its sessions in another way."""
        return []

    def session_of(self, environ: Mapping[str, str], pid: int) -> str:
        """The session of a process that is running, where the agent writes that down."""
        return ""


def wall_ms(timestamp: object) -> int | None:
    """A time that a record has, in RFC 3339, as epoch milliseconds."""
    from datetime import datetime

    try:
        return int(datetime.fromisoformat(timestamp).timestamp() * 1000) if isinstance(timestamp, str) else None
    except (ValueError, OverflowError):
        return None


def names_in(folder: str) -> list[str]:
    """What is in a folder; nothing where there is none."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def written_since(paths: Iterable[str], since_wall_ms: int) -> list[str]:
    """Of these, the regular files that were written since then."""
    found = []
    for path in paths:
        try:
            about = os.lstat(path)
        except OSError:
            continue
        if stat.S_ISREG(about.st_mode) and about.st_mtime_ns // 1_000_000 >= since_wall_ms:
            found.append(path)
    return found
