"""The processes of an agent: its process group, or its descendants in a group that it shares.

An agent without a terminal leads a group of its own. On a terminal it is in the group of the command line that started
it, together with processes that are none of its own; there its descendants are found in /proc.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

KILL_AFTER_S = 10.0  # how long an agent may take to end after TERM


class AgentProcesses:
    """Those of the agent with this pid. A descendant that left the group is not one of them: it wanted to leave.

    The system gives the number of a group to another process only when the whole group is gone. So where a process of
    that pid has started later than the agent, nothing is left of a group that the agent led.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._start = _start(pid)  # b"" where /proc does not show it
        try:
            self._group = os.getpgid(pid)
        except OSError:
            self._group = pid
        self._family: dict[int, bytes] = {}  # in a shared group: pids, and when they started

    def signal(self, *numbers: int) -> None:
        """Send signals to all of them."""
        for number in numbers:
            if self._group == self._pid:
                if not self._is_reused():
                    _send(os.killpg, self._pid, number)
                continue
            self._look()
            for pid in self._family or (() if self._is_reused() else (self._pid,)):
                _send(os.kill, pid, number)

    def live(self) -> bool:
        """Whether one of them has not ended."""
        if self._group == self._pid:
            return not self._is_reused() and group_lives(self._pid)
        self._look()
        return bool(self._family) or (not pids_in_proc() and _exists(self._pid))

    def _is_reused(self) -> bool:
        """Whether the pid is another process's by now."""
        now = _start(self._pid)
        return bool(now and self._start) and now != self._start

    def _look(self) -> None:
        """Find the agent, its descendants, and those of them whose parent has ended since the last look."""
        found = {pid: entry for pid in pids_in_proc() if (entry := _entry(pid)) is not None}
        known = {pid for pid, start in self._family.items() if pid in found and found[pid].start == start}
        if not self._family and self._pid in found and not self._is_reused():
            known.add(self._pid)
        more = known
        while more:
            more = {pid for pid, entry in found.items() if entry.parent in more and entry.group == self._group} - known
            known |= more
        self._family = {pid: found[pid].start for pid in known}


def group_lives(group: int) -> bool:
    """Whether a process group has a living member. One that has ended and is not reaped does not live."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # another user's (sudo)
    pids = pids_in_proc()
    # In a container often no process reaps orphans, and the group exists for ever.
    return any(is_living_member(pid, group) for pid in pids) if os.getpid() in pids else True


def signal_group(pid: int, number: int) -> None:
    """Signal the group that a process leads; if it leads none, only the process."""
    try:
        os.killpg(pid, number) if os.getpgid(pid) == pid else os.kill(pid, number)
    except OSError:
        pass  # it is gone, or another user's


def pids_in_proc() -> list[int]:
    """The processes that /proc shows; none where there is no /proc."""
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def is_living_member(pid: int, group: int) -> bool:
    """Whether a process is in a group, and has not ended."""
    entry = _entry(pid)
    return entry is not None and entry.group == group


class _Entry:
    """A living process, as /proc shows it."""

    __slots__ = ("group", "parent", "start")

    def __init__(self, parent: int, group: int, start: bytes) -> None:
        self.parent = parent
        self.group = group
        self.start = start


def _entry(pid: int) -> _Entry | None:
    fields = _fields(pid)
    if not fields or fields[0] in (b"Z", b"X"):
        return None
    return _Entry(int(fields[1]), int(fields[2]), fields[19])


def _start(pid: int) -> bytes:
    """When a process started, even if it has ended and is not reaped; b"" where that cannot be seen."""
    fields = _fields(pid)
    return fields[19] if fields else b""


def _fields(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat behind the name; none where there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2].split()
    except OSError:
        return []


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # another user's
    return True


def _send(how: Callable[[int, int], None], to: int, number: int) -> None:
    try:
        how(to, number)
    except OSError:
        pass  # it is gone, or another user's (sudo)
