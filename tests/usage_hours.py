"""Hours of usage, written beside a log as the gate writes them when an hour is over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fleetgate.core.usage import RESPONSE, Usage, UsageRow
from fleetgate.gate.usage_rows import hour_row
from fleetgate.log.protocol import START, Log, SideWrite

OPUS = "anthropic/claude-opus-4-6"


def row(
    calls: int = 1,
    project: str = "web",
    model: str = OPUS,
    *,
    cost: int | None = 310_000,
    source: str = RESPONSE,
    host: str = "vm",
    kind: str = "requests",
    input: int = 1_000,
    cache_read: int = 0,
    output: int = 100,
) -> UsageRow:
    usage = Usage(calls, input, cache_read, 0, output, cost, source)
    return UsageRow(project, model, host, "", kind, usage)


def write_hours(log: Log, hours: Mapping[int, Sequence[UsageRow]]) -> None:
    write_beside(log, [hour_row(hour, rows) for hour, rows in hours.items()])


def write_beside(log: Log, side: Sequence[SideWrite]) -> None:
    log.lock()
    try:
        log.begin()
        stored = log.snapshot()
        position = stored.position if stored is not None else START
        while commits := log.read(position):
            position = commits[-1].position
        log.append(position, log.now(), [], None, side)
    finally:
        log.unlock()
