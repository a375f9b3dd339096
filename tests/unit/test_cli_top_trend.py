"""The sparklines of `fleetgate top`."""

from __future__ import annotations

from fleetgate.cli.top.trend import BUCKET_MS, BUCKETS, Trend, spark
from fleetgate.core import events as ev
from fleetgate.core.entities import Reason, Spec, Ticket

FULL = Reason("concurrency_cap", "full")
B = BUCKET_MS


def ticket(ident: str) -> Ticket:
    return Ticket(ident, Spec(), "h|b|1|2|3", order=0, arrival=0, since=0, queued_at=0, expires_at=0)


def released(ident: str, outcome: str = "ok") -> ev.Released:
    return ev.Released(ident, outcome, "a/b", 0, 0)


def values(trend: Trend, now: int, length: int) -> dict[str, list[int]]:
    return {line.title: line.values for line in trend.lines(now, length)}


def test_the_past_is_worked_out_backwards_from_what_is_now() -> None:
    past: list[tuple[int, ev.Event]] = [
        (10 * B, ev.Granted("a", "a/b", 0, ticket=ticket("a"))),
        (11 * B, ev.Queued(ticket("b"), FULL)),
        (11 * B + 1, ev.Queued(ticket("c"), FULL)),
        (13 * B, released("a")),
        (13 * B, ev.Granted("b", "a/b", 0, claimed=False)),
        (14 * B, ev.Cancelled("c")),
        (15 * B, ev.Returned("b")),
    ]
    trend = Trend()
    trend.begin([(seq, at, event) for seq, (at, event) in enumerate(past, 1)], 16 * B, running=1, waiting=1)
    found = values(trend, 16 * B, 7)  # one more ran all the time: it was there before
    assert found["in flight"] == [2, 2, 2, 2, 2, 2, 1]
    assert found["waiting"] == [0, 2, 2, 2, 1, 1, 1]


def test_a_bucket_has_the_most_of_its_time_and_a_gap_what_was_last() -> None:
    trend = Trend()
    trend.sample(5 * B, 2, 0)
    trend.sample(5 * B + 1, 7, 1)
    trend.sample(5 * B + 2, 3, 0)
    trend.sample(8 * B, 0, 0)
    found = values(trend, 8 * B, 4)
    assert found["in flight"] == [7, 3, 3, 3], "until the last one looked, three ran"
    assert [line.now for line in trend.lines(8 * B, 4)] == [0, 0, 0]


def test_p2_a_release_and_the_pause_it_led_to_are_one_429() -> None:
    trend = Trend()
    for event in (ev.Paused("requests", "u", 9, "rate_limited", True), released("a", "rate_limited")):
        trend.take(2 * B, event)
    assert values(trend, 2 * B, 1)["429s"] == [1]
    trend.take(2 * B, released("b", "rate_limited"))  # committed together with the first
    trend.take(2 * B + 1, ev.Paused("requests", "u", 9, "rate_limited", True))  # a script's report
    trend.take(2 * B + 1, ev.BackedOff("a/b", "model", "rate_limited", 0, 9, manual=True))
    trend.take(2 * B + 2, ev.Paused("requests", "u", 9, "manual"))
    trend.take(2 * B + 3, released("c"))
    assert values(trend, 3 * B, 2)["429s"] == [3, 0]
    trend.take(3 * B, ev.BackedOff("a/b", "model", "rate_limited", 0, 9))
    trend.take(3 * B, released("d", "rate_limited"))
    assert values(trend, 3 * B, 2)["429s"] == [3, 1]


def test_what_is_older_than_ten_minutes_is_forgotten() -> None:
    trend = Trend()
    for bucket in range(3 * BUCKETS):
        trend.sample(bucket * B, bucket, 0)
        trend.take(bucket * B, released("a", "rate_limited"))
    found = values(trend, 3 * BUCKETS * B, 10_000)
    assert len(found["in flight"]) == BUCKETS
    assert sum(found["429s"]) == BUCKETS - 1
    trend.begin([(1, 0, released("a", "rate_limited"))], 9 * BUCKETS * B, 0, 0)
    assert sum(values(trend, 9 * BUCKETS * B, BUCKETS)["429s"]) == 0


def test_a_spark_is_as_high_as_its_share_of_the_most() -> None:
    assert spark([0, 1, 4, 8]) == "▁▂▅█"
    assert spark([0, 0]) == "▁▁"
    assert spark([1, 1000]) == "▂█", "a little is not nothing"
    assert spark([]) == ""
