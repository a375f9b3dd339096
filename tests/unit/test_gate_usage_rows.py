"""The hourly rows of usage beside the log: what a reader gets of them, and how long they are kept (rule U5)."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core.budgets.usage_sums import HOUR_MS
from fleetgate.core.entities import Spec
from fleetgate.core.usage import ESTIMATE, RESPONSE, Usage, UsageRow
from fleetgate.gate.replica.replica import Replica
from fleetgate.gate.usage_rows import TABLE, closed_rows, key_of
from fleetgate.log.memory import MemoryLog
from fleetgate.log.protocol import SideWrite, StoreError
from fleetgate.log.sqlite.log import SqliteLog
from tests.usage_hours import OPUS, row, write_beside, write_hours

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
    write_beside(log, [SideWrite(TABLE, key_of(HOUR), b"\xff")])
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


class Clock:
    def __init__(self, ms: int) -> None:
        self.ms = ms

    def __call__(self) -> int:
        return self.ms


def test_what_calls_used_is_the_same_before_and_after_their_hour_is_closed() -> None:
    clock = Clock(HOUR * HOUR_MS)
    replica = Replica(MemoryLog(clock), "vm|boot|ns|1|1")

    def call(ident: str, usage: Usage | None) -> None:
        spec = Spec(models=(OPUS,), kind="requests", host="vm", project="web")
        estimate = Usage(calls=1, output=1_000, cost=9)
        for command in (
            cmd.Acquire(ident, spec, "vm|boot|ns|1|1", estimate=estimate),
            cmd.Release(ident, "ok", usage=usage),
        ):
            assert replica.decide([command])[0].error is None

    def counted() -> list[tuple[int, int, int, int | None, str]]:
        state = replica.catch_up()
        rows = [
            *closed_rows(replica.log, HOUR, state.usage.hour),
            *((state.usage.hour, each) for each in state.usage.rows()),
        ]
        return sorted((hour, u.calls, u.output, u.cost, u.source) for hour, each in rows for u in (each.usage,))

    call("call-000001", Usage(calls=1, output=10, cost=3, source=RESPONSE))
    call("call-000002", Usage(calls=1, output=20, cost=4, source=RESPONSE))
    call("call-000003", Usage(calls=1, output=5, source=RESPONSE))
    call("call-000004", None)
    first = [
        (HOUR, 1, 5, None, RESPONSE),
        (HOUR, 1, 1_000, 9, ESTIMATE),
        (HOUR, 2, 30, 7, RESPONSE),
    ]
    assert counted() == first
    assert replica.log.side_items(TABLE) == []
    clock.ms += 2 * HOUR_MS
    call("call-000005", Usage(calls=1, output=40, cost=5, source=RESPONSE))
    assert [key for key, _ in replica.log.side_items(TABLE)] == [key_of(HOUR)]
    assert counted() == [*first, (HOUR + 2, 1, 40, 5, RESPONSE)]


def test_u5_a_year_of_a_busy_fleet_takes_less_than_100_megabytes(tmp_path: Path) -> None:
    random = Random(1)

    def busy_hour() -> list[UsageRow]:
        names = [
            (f"project-{n % 10}", f"anthropic@team-{n % 5}/claude-opus-4-6", f"build-{n % 7:02}") for n in range(50)
        ]
        return [
            UsageRow(
                project,
                model,
                host,
                "",
                "requests",
                Usage(
                    random.randint(1, 500),
                    random.randint(1, 5_000_000),
                    random.randint(1, 50_000_000),
                    random.randint(0, 1_000_000),
                    random.randint(1, 500_000),
                    random.randint(1, 90_000_000),
                    RESPONSE,
                ),
            )
            for project, model, host in names
        ]

    log = SqliteLog(str(tmp_path / "store"))
    hours = 480
    for first in range(0, hours, 24):
        write_hours(log, {HOUR + n: busy_hour() for n in range(first, first + 24)})
    log.close()
    taken = (tmp_path / "store" / "fleetgate.db").stat().st_size
    assert taken > hours * 1_000, "it is not in the file yet"
    assert taken * 8_760 / hours < 100_000_000
