"""H2: limit, belief and refusals of a pool over time, as the dashboard draws them."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fleetgate.api.limits import routes as limits
from fleetgate.api.metrics.time_series import PoolSample
from fleetgate.core import events as ev
from fleetgate.core.entities import Rule
from fleetgate.log.memory import MemoryLog
from fleetgate.log.protocol import START
from fleetgate.present.limits.history import DAY_MS, LimitMark, LimitMarks
from fleetgate.present.log_time import LogTimes
from fleetgate.present.wall_time import utc
from fleetgate.testing import FakeClock
from tests.api.served import Served


def refused(level: int, limit: int, why: str = "exact") -> ev.Refused:
    return ev.Refused("requests", "umans", "x", why, level, limit, 16)


def accepted(level: int) -> ev.Accepted:
    return ev.Accepted("x", "requests", "umans", level)


class Past:
    """A log with events of our choice."""

    def __init__(self) -> None:
        self.clock = FakeClock(10 * DAY_MS)
        self.log = MemoryLog(self.clock)
        self.position = START
        self.seq = 0
        self.marks = LimitMarks()
        self.read_rows = 0

    def add(self, *events: ev.Event, after_ms: int = 1_000) -> None:
        self.clock.advance(after_ms)
        self.log.lock()
        self.log.begin()
        self.log.read(self.position)
        self.position = self.log.append(self.position, self.clock(), events, None)
        self.log.unlock()
        self.seq += len(events)

    def counting(self, rows: Iterator[Any]) -> Iterator[Any]:
        for row in rows:
            self.read_rows += 1
            yield row

    def read(self) -> list[LimitMark]:
        self.marks.read(self.log, self.seq, self.clock(), self.counting)
        return self.marks.of("requests umans", 0)


def test_marks_are_what_was_refused_and_accepted_and_the_log_is_read_once() -> None:
    past = Past()
    past.add(accepted(3), refused(4, 3))
    past.add(ev.Reduced("requests", "groq", 2, 5), ev.RuleSet(Rule("requests", "umans", cap=3)))
    assert [(mark.what, mark.level, mark.limit) for mark in past.read()] == [("accepted", 3, None), ("refused", 4, 3)]
    assert [mark.limit for mark in past.marks.of("requests groq", 0)] == [2]
    before = past.read_rows
    past.read()
    assert past.read_rows == before
    past.add(refused(3, 2, "drop"))
    assert past.read()[-1].why == "drop"
    assert past.read_rows == before + 1
    assert past.marks.of("requests umans", past.clock()) == past.read()[-1:]


def test_only_the_last_day_is_read_and_a_replaced_log_is_read_again() -> None:
    past = Past()
    past.add(refused(9, 8))
    past.add(refused(4, 3), after_ms=2 * DAY_MS)
    assert [mark.level for mark in past.read()] == [4]
    marks = past.marks
    other = Past()
    other.clock.advance(2 * DAY_MS)
    other.add(refused(2, 1))
    marks.read(other.log, other.seq, other.clock(), lambda rows: rows)
    assert [mark.level for mark in marks.of("requests umans", 0)] == [2]


@pytest.fixture
def moments() -> LogTimes:
    return cast(LogTimes, SimpleNamespace(utc=utc))


def points_of(
    samples: list[tuple[str, PoolSample]], marks: list[LimitMark], moments: LogTimes
) -> list[tuple[int | None, ...]]:
    latest = limits.LimitPoint(utc(10_000), 9, 9, None)
    found = limits._points(samples, marks, latest, moments)
    assert found[-1] is latest
    assert [point.at for point in found] == sorted(point.at or "" for point in found)
    return [(point.limit, point.proven, point.refused) for point in found[:-1]]


def test_points_are_where_something_changed_and_the_log_says_when(moments: LogTimes) -> None:
    marks = [
        LimitMark(1_000, "accepted", 3),
        LimitMark(2_000, "refused", 5, 4, "exact"),
        LimitMark(3_000, "accepted", 5),
    ]
    marks += [LimitMark(9_000, "refused", 7, 6)]
    samples = [
        (utc(at) or "", PoolSample(1, limit, 0, 0, 5, 7))
        for at, limit in ((5_000, 6), (6_000, 6), (7_000, 7), (8_000, 7))
    ]
    assert points_of(samples, marks, moments) == [
        (None, 3, None),
        (4, 3, 5),
        (4, 5, None),
        (6, 5, 7),
        (7, 5, 7),
        (6, 5, 7),
    ]
    assert points_of([], [], moments) == []


def test_a_refusal_between_two_samples_is_drawn_when_it_happened(moments: LogTimes) -> None:
    samples = [(utc(at) or "", PoolSample(1, limit, 0, 0, limit, None)) for at, limit in ((1_000, 8), (6_000, 4))]
    assert points_of(samples, [LimitMark(2_000, "refused", 8, 4, "drop")], moments) == [
        (8, 8, None),
        (4, None, 8),
        (4, 4, None),
    ]


@pytest.mark.parametrize("why", ["lag", "alone"])
def test_a_refusal_that_is_not_about_how_many_bounds_nothing(moments: LogTimes, why: str) -> None:
    samples = [(utc(1_000) or "", PoolSample(1, 8, 0, 0, 8, None))]
    assert points_of(samples, [LimitMark(2_000, "refused", 3, 8, why)], moments) == [(8, 8, None)]


def test_many_points_and_refusals_are_thinned_and_none_is_lost_from_the_count(moments: LogTimes) -> None:
    marks = [LimitMark(at, "refused", at % 7 + 1, 3) for at in range(1, 5_001)]
    points = limits._points([], marks, limits.LimitPoint(utc(9_000), 3, None, None), moments)
    thin = limits._thinned(points)
    assert len(thin) <= limits.MOST_POINTS
    assert (thin[0], thin[-1]) == (points[0], points[-1])
    found = limits._refusals(marks, moments)
    assert len(found) <= limits.MOST_REFUSALS
    assert sum(each.times for each in found) == 5_000


def test_H2_the_service_answers_with_limit_belief_and_refusals(served: Served) -> None:
    served.cap("umans", 8, kind="requests", on_429="adapt")
    for number in range(2):
        body = {"models": ["umans/coder"], "kind": "requests", "client": "c", "id": f"history-{number}"}
        served.wait_until(lambda: served.request("POST", "/v1/leases", body).status == 201, "a lease")  # noqa: B023
    served.ok("POST", "/v1/report", {"lease": "history-1"})
    answer = served.ok("GET", "/v1/limits/history?pool=umans&kind=requests&hours=1")
    assert (answer["pool"], answer["kind"]) == ("umans", "requests")
    (refusal,) = answer["refusals"]
    assert refusal["times"] == 1
    assert refusal["level"] >= 1
    assert answer["since"] < refusal["at"] <= answer["until"]

    def is_sampled() -> bool:
        points = served.ok("GET", "/v1/limits/history?pool=umans&hours=0.5")["points"]
        return bool(points) and points[-1]["limit"] is not None and points[-1]["proven"] is not None

    served.wait_until(is_sampled, "a sample")


@pytest.mark.parametrize(
    ("query", "status"), [("pool=nosuch", 404), ("", 400), ("pool=umans&hours=25", 400), ("pool=umans&hours=0", 400)]
)
def test_H2_nonsense_is_refused(served: Served, query: str, status: int) -> None:
    served.cap("umans", 8, kind="requests", on_429="adapt")
    assert served.request("GET", f"/v1/limits/history?{query}").status == status
