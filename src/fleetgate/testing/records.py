"""What agents say about themselves: one JSON line at their start and one at their end, in one shared file.

The rule: a line is one write to a file opened for appending, so the order of the lines is the order in which it
happened, over all processes and without comparing clocks. "Most at once" is counted from that order alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def append(path: str | os.PathLike[str], record: Record) -> None:
    line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(file, line)
    finally:
        os.close(file)


def read(path: str | os.PathLike[str]) -> list[Record]:
    """All whole lines so far; none where no agent has started yet."""
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
