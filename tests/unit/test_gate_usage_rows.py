"""The hourly rows of usage beside the log: what a reader gets of them, and how long they are kept (rule U5)."""

from __future__ import annotations

import pytest

from fleetgate.gate.replica.replica import Replica
from fleetgate.gate.usage_rows import HOUR_MS, TABLE, closed_rows, key_of
from fleetgate.log.memory import MemoryLog
from fleetgate.log.protocol import StoreError
from tests.usage_hours import row, write_hours, write_values

HOUR = 498_000


def test_only_the_hours_of_the_period_are_read_oldest_first() -> None:
    log = MemoryLog()
    write_hours(log, {HOUR + n: [row(n), row(n, "docs")] for n in range(600)})
    found = [(hour, each.project, each.usage.calls) for hour, each in closed_rows(log, HOUR + 5, HOUR + 505)]
    assert found == [(HOUR + n, project, n) for n in range(5, 505) for project in ("web", "docs")]
    assert list(closed_rows(log, HOUR + 7, HOUR + 7)) == []


def test_keys_of_hours_sort_as_the_hours_do() -> None:
    hours = [0, 9, 10, 498_000, 999_999]
    assert sorted(map(key_of, hours)) == list(map(key_of, hours))


def test_a_row_that_cannot_be_read_is_an_error_that_names_its_hour() -> None:
    log = MemoryLog()
    write_values(log, {key_of(HOUR): b"\xff"})
    with pytest.raises(StoreError, match="498000"):
        list(closed_rows(log, HOUR, HOUR + 1))


def test_upkeep_deletes_rows_of_hours_that_ended_longer_ago_than_they_are_kept() -> None:
    now = HOUR * HOUR_MS + 1
    log = MemoryLog(lambda: now)
    write_hours(log, {HOUR - n: [row(1)] for n in (1, 2, 24, 25, 26, 700)})
    replica = Replica(log.connect(), "vm|boot|ns|1|1")
    replica.maintain(usage_ms=10**12)
    assert len(log.side_items(TABLE)) == 6
    replica.maintain(usage_ms=24 * HOUR_MS)
    assert [HOUR - int(key) for key, _ in log.side_items(TABLE)] == [24, 2, 1]
