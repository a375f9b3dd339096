"""What processes use: CPU time and memory, as Linux counts it (0 on other systems)."""

from __future__ import annotations

import os
import sys
import time

_OF_PROCESS = 2  # the kind of clock that clock_getcpuclockid(3) names for a process


def cpu_s(*pids: int) -> float:
    """The CPU time of some processes, with threads that have ended. Counted in nanoseconds."""
    return sum(_clock_s(pid) for pid in pids)


def _clock_s(pid: int) -> float:
    if not pid or sys.platform != "linux":
        return 0.0
    try:
        return time.clock_gettime((~pid << 3) | _OF_PROCESS)
    except OSError:
        return 0.0


def kernel_cpu_s(pid: int) -> float:
    """The part of the CPU time that the kernel spent for a process. Counted in ticks of 10 ms, as a rule."""
    fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(fields[12]) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def memory_mb(pid: int) -> float:
    """The resident memory of a process."""
    fields = _text(f"/proc/{pid}/statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6 if fields else 0.0


def has_loaded(pid: int, name: str) -> bool:
    """Whether a process has loaded a library with this in its path."""
    return name in _text(f"/proc/{pid}/maps")


def children(pid: int) -> list[int]:
    """The processes that a process has started and that are running."""
    return [int(child) for task in _tasks(pid) for child in _text(f"/proc/{pid}/task/{task}/children").split()]


def _tasks(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
