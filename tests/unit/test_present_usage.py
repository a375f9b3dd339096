"""Reports of usage: periods and time zones, sums by dimensions, costs that are not known, estimates (rule U4)."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from fleetgate.core import events as ev
from fleetgate.core.budgets.usage_sums import HOUR_MS
from fleetgate.core.entities import Lease, Spec, Ticket
from fleetgate.core.errors import BadRequest
from fleetgate.core.usage import ESTIMATE, PARTIAL, RECORD, Usage, UsageRow
from fleetgate.gate.usage_history import used_by_runs
from fleetgate.log.memory import MemoryLog
from fleetgate.present.log_time import LogTimes
from fleetgate.present.text import dollars_text, number_text
from fleetgate.present.usage.period import UsagePeriod, parse_period
from fleetgate.present.usage.query import CurrentUsage, UsageQuery, parse_query
from fleetgate.present.usage.report import UsageTable, UsageTotal, cost_text
from tests.usage_hours import OPUS, row, write_hours

BERLIN, KOLKATA = ZoneInfo("Europe/Berlin"), ZoneInfo("Asia/Kolkata")
NOW = int(datetime(2026, 11, 18, 7, 30, tzinfo=UTC).timestamp() * 1000)
HOUR = NOW // HOUR_MS
NOTHING = CurrentUsage(0, (), 0, {})


class At:
    """A gate, as far as times need one: the log's time, and what to add to it."""

    def __init__(self, wall_ms: int = NOW, offset_ms: int = 0) -> None:
        self._wall_ms, self._offset_ms = wall_ms, offset_ms

    def now(self) -> int:
        return self._wall_ms - self._offset_ms

    def wall_offset_ms(self) -> int:
        return self._offset_ms


def period(since: str, until: str = "", zone: ZoneInfo | None = None, gate: At | None = None) -> UsagePeriod:
    return parse_period(since, until, LogTimes(gate or At()), zone)


def hours_of(year: int, month: int, day: int, zone: ZoneInfo) -> int:
    """The UTC hour in which a day of a zone begins."""
    return int(datetime(year, month, day, tzinfo=zone).timestamp()) // 3600


# Periods.


@pytest.fixture(autouse=True)
def the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetgate.present.wall_time.time", lambda: NOW / 1000)


def test_an_age_begins_with_the_hour_that_it_is_in_and_includes_the_current_hour() -> None:
    found = period("2h")
    assert (found.low, found.high) == (HOUR - 2, HOUR + 1)
    assert (found.since, found.until) == ("2026-11-18T05:00:00.000Z", "2026-11-18T07:30:00.000Z")
    assert period("10m")[:2] == (HOUR, HOUR + 1)


def test_a_date_is_of_the_zone() -> None:
    assert period("2026-11-01", "2026-11-03", BERLIN)[:2] == (
        hours_of(2026, 11, 1, BERLIN),
        hours_of(2026, 11, 3, BERLIN),
    )
    assert period("today", "", BERLIN).low == hours_of(2026, 11, 18, BERLIN)
    assert period("yesterday", "today", BERLIN)[:2] == (hours_of(2026, 11, 17, BERLIN), hours_of(2026, 11, 18, BERLIN))


def test_two_periods_that_meet_have_no_hour_in_common_and_miss_none() -> None:
    for zone in (BERLIN, KOLKATA):
        first, second = period("2026-11-01", "2026-11-02", zone), period("2026-11-02", "2026-11-03", zone)
        assert first.high == second.low
        assert second.high - second.low == 24


def test_a_day_on_which_the_clocks_go_back_has_25_hours_and_one_on_which_they_go_forward_has_23() -> None:
    back, forward = period("2026-10-25", "2026-10-26", BERLIN), period("2026-03-29", "2026-03-30", BERLIN)
    assert (back.high - back.low, forward.high - forward.low) == (25, 23)
    for each, date in ((back, "2026-10-25"), (forward, "2026-03-29")):
        assert {each.day(hour) for hour in range(each.low, each.high)} == {date}
        starts = [each.start(hour) for hour in range(each.low, each.high)]
        assert len(set(starts)) == len(starts), "two hours with one name would be one row"
    assert "2026-10-25T02:00:00+02:00" in [back.start(hour) for hour in range(back.low, back.high)]
    assert "2026-10-25T02:00:00+01:00" in [back.start(hour) for hour in range(back.low, back.high)]


def test_in_a_zone_of_half_hours_an_hour_counts_for_the_day_in_which_it_ends() -> None:
    one_day = period("2026-11-17", "2026-11-18", KOLKATA)
    assert one_day.high - one_day.low == 24
    assert {one_day.day(hour) for hour in range(one_day.low, one_day.high)} == {"2026-11-17"}
    assert one_day.start(one_day.low) == "2026-11-16T23:30:00+05:30"


def test_a_clock_that_drifted_moves_no_hour_and_one_that_was_set_moves_all() -> None:
    assert period("2h", gate=At(offset_ms=4_000))[:2] == (HOUR - 2, HOUR + 1)
    assert period("2h", gate=At(offset_ms=-4_000))[:2] == (HOUR - 2, HOUR + 1)
    late = period("2h", gate=At(offset_ms=3 * HOUR_MS))
    assert (late.low, late.high) == (HOUR - 5, HOUR - 2)
    assert late.since == "2026-11-18T05:00:00.000Z"


@pytest.mark.parametrize(
    ("since", "until", "words"),
    [
        ("never", "", "since 'never'.*yesterday"),
        ("7d", "whenever", "until 'whenever'"),
        ("2026-11-18T06:01Z", "2026-11-18T06:59Z", "at least an hour after"),
        ("today", "yesterday", "at least an hour after"),
        ("2027-01-01", "", "in the future"),
        ("9" * 30, "", "since"),
        ("", "", "since"),
    ],
)
def test_a_period_that_cannot_be_one_is_refused(since: str, until: str, words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        period(since, until, BERLIN)


# Sums.


def report(by: str, *rows: UsageRow, hour: int = HOUR, project: str = "", model: str = "") -> UsageTable:
    found = UsageTable(by.split(","), period("7d", zone=BERLIN), project, model)
    found.add((hour, each, "") for each in rows)
    return found


def test_rows_are_summed_by_each_dimension() -> None:
    rows = (
        row(2, "web", "anthropic@work/claude-opus-4-6", host="a", cost=3),
        row(3, "docs", "openai/gpt-5", host="b", kind="agents", source=RECORD, cost=2),
        row(4, "web", "", host="b", cost=1),
    )
    expected: dict[str, list[tuple[tuple[str, ...], int]]] = {
        "project": [(("web",), 6), (("docs",), 3)],
        "model": [(("anthropic@work/claude-opus-4-6",), 2), (("openai/gpt-5",), 3), (("",), 4)],
        "account": [(("anthropic@work",), 2), (("openai",), 3), (("",), 4)],
        "host": [(("a",), 2), (("b",), 7)],
        "key": [(("",), 9)],
        "kind": [(("requests",), 6), (("agents",), 3)],
        "source": [(("response",), 6), (("record",), 3)],
        "day": [(("2026-11-18",), 9)],
        "hour": [(("2026-11-18T08:00:00+01:00",), 9)],
        "kind,project": [(("requests", "web"), 6), (("agents", "docs"), 3)],
    }
    for by, sums in expected.items():
        found = [(labels, usage.calls) for labels, usage in report(by, *rows).rows()]
        assert sorted(found) == sorted(sums), by
        assert report(by, *rows).total.calls == 9


def test_only_the_period_counts_and_what_is_asked_for() -> None:
    assert report("project", row(), hour=HOUR - 200).rows() == []
    assert report("project", row(), hour=HOUR + 1).rows() == []
    rows = (row(1, "web"), row(2, "docs"), row(4, "docs", "openai/gpt-5"), row(8, "docs", ""))
    assert report("project", *rows, project="docs").total.calls == 14
    assert report("project", *rows, model="anthropic/claude-opus-*").total.calls == 3
    assert report("project", *rows, model="anthropic", project="docs").total.calls == 2


def test_the_largest_rows_come_first_and_times_in_their_order() -> None:
    rows = (row(1, "a", cost=None, input=9), row(1, "b", cost=5), row(1, "c", cost=7), row(1, "d", cost=None, input=99))
    assert [labels[0] for labels, _ in report("project", *rows).rows()] == ["c", "b", "d", "a"]
    found = UsageTable(("hour", "project"), period("7d"))
    found.add((HOUR - n, row(1, "b" if n % 2 else "a", cost=n), "") for n in range(4))
    assert [labels for labels, _ in found.rows()] == sorted(labels for labels, _ in found.rows())


def test_a_cost_that_is_not_known_is_never_nothing() -> None:
    known, unknown, free = row(cost=310_000), row(cost=None), row(cost=0)
    refused = row(0, cost=None, input=0, output=0)  # a call that was refused used nothing

    def cost(*rows: UsageRow) -> tuple[int | None, bool, str]:
        total = report("project", *rows).total
        return total.cost, total.cost_complete, cost_text(total)

    assert cost(known) == (310_000, True, "$0.31")
    assert cost(unknown) == (None, False, "?")
    assert cost(known, unknown) == (310_000, False, "≥ $0.31")
    assert cost(free) == (0, True, "$0")
    assert cost(known, refused) == (310_000, True, "$0.31")
    shape = report("project", known, unknown).shape()
    assert (shape.total.cost_usd, shape.total.cost_complete) == (0.31, False)
    assert report("project", unknown).shape().rows[0].cost_usd is None


def test_estimates_and_responses_that_broke_off_are_counted_apart_and_marked() -> None:
    total = report("project", row(3), row(2, source=ESTIMATE), row(1, source=PARTIAL)).total
    assert (total.calls, total.estimated_calls, total.partial_calls) == (6, 2, 1)
    assert cost_text(total) == "~$0.93"
    assert cost_text(report("project", row(3)).total) == "$0.31"


def test_rows_beyond_the_limit_are_in_the_total_and_counted() -> None:
    shape = report("project", *(row(1, f"p{n}", cost=n) for n in range(10))).shape(3)
    assert ([line.project for line in shape.rows], shape.rows_left_out) == (["p9", "p8", "p7"], 7)
    assert shape.total.calls == 10


def test_all_digits_of_large_sums_are_kept() -> None:
    total = report("project", *(row(1, cost=10**15 + 1, input=10**15) for _ in range(3))).total
    assert (total.input, total.cost) == (3 * 10**15, 3 * 10**15 + 3)


# From the store.


def test_closed_hours_come_from_beside_the_log_and_the_current_one_from_the_state_each_once() -> None:
    log = MemoryLog()
    write_hours(log, {HOUR - 2: [row(1)], HOUR - 1: [row(2)], HOUR: [row(4)]})
    query, now = UsageQuery(("project",), period("7d")), CurrentUsage(HOUR, (row(8),), 0, {})
    assert query.answer(log, now).total.calls == 11, "its own hour counts twice"
    assert query.answer(log, NOTHING).total.calls == 7
    assert UsageQuery(("project",), period("7d", "1h")).answer(log, now).total.calls == 1


def test_a_question_names_what_is_wrong_with_it() -> None:
    moments = LogTimes(At())
    for by in ("model,colour", "", " , "):
        with pytest.raises(BadRequest, match="valid are project, model, account"):
            parse_query(by, "7d", "", moments)
    with pytest.raises(BadRequest, match="--model host"):
        parse_query("model", "7d", "", moments, model="host", option="--")
    assert parse_query("model,day, model", "7d", "", moments).by == ("model", "day")


# Runs.


def ticket(ident: str, kind: str = "agents", host: str = "vm", run: str = "") -> Ticket:
    spec = Spec(models=(OPUS,), kind=kind, host=host, project="web")
    return Ticket(ident, spec, "p", 0, 0, 0, 0, 0, run=run)


def released(ident: str, usage: Usage | None, kind: str = "agents", run: str = "") -> ev.Released:
    return ev.Released(ident, "ok", OPUS, 0, 0, kind=kind, project="web", usage=usage, run=run)


def test_what_a_call_used_belongs_to_its_run_and_nothing_counts_twice() -> None:
    events: list[ev.Event] = [
        ev.Granted("run-1", OPUS, 0, ticket=ticket("run-1")),
        ev.Queued(ticket("call-1", "requests", run="run-1"), None),  # type: ignore[arg-type]
        ev.Settled("run-1", Usage(output=1)),
        released("call-1", Usage(calls=1, output=10), "requests", "run-1"),
        released("call-2", Usage(calls=1, output=20), "requests"),  # of a program with a key of its own
        ev.Settled("run-2", Usage(output=1_000)),
        ev.Settled("run-3", Usage(output=5)),
        ev.Reclaimed("run-2", "lost", OPUS, 0, project="web", usage=Usage(output=2_000, source=ESTIMATE)),
        released("run-1", Usage(output=100)),
        released("run-4", None),
    ]
    leases = {"run-3": Lease(ticket("run-3", host="far"), OPUS, 0, 0)}
    history = [(seq, seq * 10, event) for seq, event in enumerate(events, 1)]
    found = sorted((run, at, each.host, each.usage.output) for at, each, run in used_by_runs(history, leases))
    assert found == [
        ("", 50, "", 20),
        ("run-1", 30, "vm", 1),
        ("run-1", 40, "vm", 10),
        ("run-1", 90, "vm", 100),
        ("run-2", 60, "", 1_000),
        ("run-2", 80, "", 2_000),
        ("run-3", 70, "far", 5),
    ]


# Text.


def test_numbers_and_money_are_short() -> None:
    numbers = {0: "0", 999: "999", 1_000: "1k", 3_249: "3.2k", 41_200: "41k", 999_999: "999k", 3_200_000: "3.2M"}
    assert {number: number_text(number) for number in numbers} == numbers
    assert number_text(7 * 10**9) == "7G"
    money = {0: "$0", 1: "$0.000001", 4_213: "$0.0042", 9_999: "$0.01", 310_000: "$0.31", 41_204_999: "$41.20"}
    assert {amount: dollars_text(amount) for amount in money} == money
    assert (dollars_text(999_994_999), dollars_text(999_995_000), dollars_text(12_345_600_000)) == (
        "$999.99",
        "$1,000",
        "$12,346",
    )
    assert cost_text(UsageTotal()) == "$0"
