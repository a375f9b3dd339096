"""The table of results: what was measured, the figure, a baseline of the same run, and the goal."""

from __future__ import annotations

import os
import platform
import sqlite3
from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple


class Row(NamedTuple):
    what: str
    figure: str
    reach: str = ""
    baseline: str = ""


def environment() -> str:
    load = os.getloadavg()[0]
    return (
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, {platform.system()} "
        f"{platform.machine()}, {os.cpu_count()} cores, load {load:.1f} at the start"
    )


def table(rows: list[Row]) -> str:
    """A Markdown table for docs/benchmarks.md."""
    lines = ["| what | measured | baseline in the same run | goal |", "| --- | --- | --- | --- |"]
    lines += [f"| {row.what} | {row.figure} | {row.baseline} | {row.reach} |" for row in rows]
    return "\n".join(lines)


def best_of(times: int, work: Callable[[], None]) -> float:
    """The seconds of the fastest of several runs, which was disturbed least."""
    durations = []
    for _ in range(times):
        began = perf_counter()
        work()
        durations.append(perf_counter() - began)
    return min(durations)


def percentile(values: list[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)]
