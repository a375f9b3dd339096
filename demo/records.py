"""The record file of a fleet, read: one JSON line at the start of each agent and one at its end (demo/agent.py).

The rule: each line is one write to a file opened for appending, so the order of the lines is the order of the events
over all processes, and no clocks are compared. "Most at once" is counted from that order alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def read(path: str | os.PathLike[str]) -> list[Record]:
    """All complete lines so far; none if no agent has started yet."""
    try:
        text = Path(path).read_bytes()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.split(b"\n")[:-1]]


def running(records: Iterable[Record]) -> dict[str, int]:
    """The agents that have started and not ended, by name, with their pid."""
    alive: dict[str, int] = {}
    for record in records:
        if record["event"] == "start":
            alive[record["agent"]] = record["pid"]
        else:
            alive.pop(record["agent"], None)
    return alive


def most_at_once(records: Iterable[Record]) -> int:
    alive: set[str] = set()
    most = 0
    for record in records:
        if record["event"] == "start":
            alive.add(record["agent"])
            most = max(most, len(alive))
        else:
            alive.discard(record["agent"])
    return most
