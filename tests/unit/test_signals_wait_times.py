"""Waits in words and in headers: every shape that is known, clocks and calendars with their zones, and any text."""

from __future__ import annotations

import os
import sys
import time
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetgate.signals import clock_times
from fleetgate.signals.wait_times import (
    MAX_WAIT_MS,
    find_wait,
    wait_from_duration,
    wait_from_epoch,
    wait_from_http_date,
    wait_from_reset,
    wait_from_rfc3339,
    wait_from_seconds,
    wait_until,
)

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000


def ms(*parts: int, zone: str = "UTC", fold: int = 0) -> int:
    year, month, day, *clock = parts
    hour, minute, second = (*clock, 0, 0, 0)[:3]
    moment = datetime(year, month, day, hour, minute, second, tzinfo=ZoneInfo(zone), fold=fold)
    return round(moment.timestamp() * 1000)


NOW = ms(2026, 4, 22, 12)  # a Wednesday


# --- sentences -------------------------------------------------------------------------------------------------

SENTENCES = [
    ("You've hit your session limit · resets 4:20pm (Asia/Tbilisi)", 20 * MINUTE),
    ("You've hit your weekly limit · resets 3am (Europe/London)", 14 * HOUR),
    ("You've hit your limit · resets Apr 23 at 4pm (America/Recife)", 31 * HOUR),
    ("You're out of extra usage · resets 11:30am (Asia/Colombo)", 18 * HOUR),
    ("Claude usage limit reached. Your limit will reset at 10am (America/Lima).", 3 * HOUR),
    ("Claude AI usage limit reached|1776864000", 80 * MINUTE),
    ("Claude AI usage limit reached|1776864000000", 80 * MINUTE),
    ("5-hour limit reached - resets 3pm", 3 * HOUR),
    ("Session limit reached ∙ resets 8pm", 8 * HOUR),
    ("Weekly limit reached ∙ resets Apr 30, 1pm", 8 * DAY + HOUR),
    ("API Error (429 {…}) · Retrying in 2892 seconds… (attempt 1/10)", 2892 * SECOND),
    ("Zen usage limit reached. It will reset in 2 days 3 hours.", 2 * DAY + 3 * HOUR),
    ("You've hit your usage limit. Visit x to purchase more credits or try again at 1:21 PM.", 81 * MINUTE),
    ("You've hit your usage limit. Try again at 1:21\u202fPM.", 81 * MINUTE),
    ("or try again at Apr 28th, 2026 10:03 PM.", 6 * DAY + 10 * HOUR + 3 * MINUTE),
    ("You've hit your usage limit for X. Switch to another model now, or try again at 1:21 PM.", 81 * MINUTE),
    ("Rate limit reached. Please try again in 11.054s. Visit https://x", 11_054),
    ("Please try again in 850ms.", 850),
    ("Please try again in 6m0s.", 6 * MINUTE),
    ("Please try again in 7m12.432s.", 432_432),
    ("Please retry in 12.3s", 12_300),
    ("Please retry in 45.837906927s.", 45_838),
    ("Retrying in 0.2 seconds...", 200),
    ("Please retry after 59 seconds.", 59 * SECOND),
    ("Please wait 30 seconds before sending another request", 30 * SECOND),
    ("Try again in about 1 hour and 30 minutes.", 90 * MINUTE),
    ("Your quota will reset after 11h22m3s.", 11 * HOUR + 22 * MINUTE + 3 * SECOND),
    ('{"retryDelay":"45.837906927s"}', 45_838),
    ('"{\\"retryDelay\\": \\"26s\\"}"', 26 * SECOND),
    ("{'retry_after': 12}", 12 * SECOND),
    ('"retry_after_ms":1500', 1_500),
    ("retry-after: 30", 30 * SECOND),
    ('{"resets_in_seconds":3600}', HOUR),
    ('{"resetsAt":1776864000}', 80 * MINUTE),
    ("Limit resets at 2026-04-22T13:00:00Z", HOUR),
    ("resets at 1776864000", 80 * MINUTE),
    ("You will regain access on 2026-05-01 at 00:00 UTC.", 8 * DAY + 12 * HOUR),
    ("resets Thu 9am", 21 * HOUR),
    ("resets Wednesday 11am", 7 * DAY - HOUR),
    ("resets tomorrow at 9am", 21 * HOUR),
    ("resets 16:20", 4 * HOUR + 20 * MINUTE),
    ("resets 3pm (UTC+2)", HOUR),
    ("resets 3pm (GMT-03:30)", 6 * HOUR + 30 * MINUTE),
    ("resets 3 p.m. (UTC)", 3 * HOUR),
    ("resets Apr 24 (UTC)", 36 * HOUR),
    # The provider's moment goes before the agent's own pause; of two of a sort, the last.
    ("resets 4:20pm (Asia/Tbilisi) · Retrying in 1 seconds", 20 * MINUTE),
    ("Retrying in 1 seconds\nRetrying in 2 seconds\nRetrying in 4 seconds", 4 * SECOND),
]
NO_WAIT = [
    "",
    "Too Many Requests",
    "Please try again later.",
    "HTTP 429 at line 429",
    "issue 1762952400",
    "retry 3",
    "Retry 5 of 10",
    "in 5 minutes the build is done",
    "resets 13pm",
    "resets 0am",
    "resets 25:00",
    "resets 4:75pm",
    "resets Feb 30 at 4pm",
    "resets 2026-13-45 at 10:00",
    "available at 127.0.0.1:8080",
    "try again in a while",
    "try again in 3 months",
    "try again in 400 days",
    "|12345",
    "|176285240012345",
    "resets Oct 6, 1pm",  # half a year off: nonsense
    "try again at Apr 28th, 2024 10:03 PM.",
]


@pytest.mark.parametrize(("text", "wait_ms"), SENTENCES)
def test_s3_the_wait_of_every_known_sentence_is_read(text, wait_ms):
    assert find_wait(text, NOW, UTC) == wait_ms


@pytest.mark.parametrize("text", NO_WAIT)
def test_s3_a_text_without_a_wait_has_none(text):
    assert find_wait(text, NOW, UTC) is None


# --- clocks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "hour", "minute"),
    [
        ("12am", 0, 0),
        ("12:30am", 0, 30),
        ("1am", 1, 0),
        ("11:59 AM", 11, 59),
        ("12pm", 12, 0),
        ("12:01 p.m.", 12, 1),
        ("1pm", 13, 0),
        ("11:59pm", 23, 59),
        ("00:00", 0, 0),
        ("23:59", 23, 59),
    ],
)
def test_s3_noon_and_midnight_are_where_they_belong(text, hour, minute):
    at = ms(2026, 4, 22, hour, minute)
    expected = at if at >= NOW else at + DAY
    assert find_wait(f"resets {text}", NOW, UTC) == expected - NOW


def test_s3_a_time_of_day_that_has_passed_means_tomorrow():
    assert find_wait("resets 11:59am", NOW, UTC) == DAY - MINUTE
    assert find_wait("resets 12am", ms(2026, 4, 22, 23, 50), UTC) == 10 * MINUTE


def test_s3_a_minute_that_has_begun_is_waited_out_and_does_not_mean_tomorrow():
    assert find_wait("try again at 12:00 PM.", NOW, UTC) == 0
    assert find_wait("try again at 12:00 PM.", NOW + 20 * SECOND, UTC) == 40 * SECOND
    assert find_wait("try again at 12:00 PM.", NOW + MINUTE, UTC) == DAY - MINUTE


def test_s3_a_date_without_a_year_is_in_the_nearest_year():
    assert find_wait("resets Jan 2 at 4pm", ms(2026, 12, 30, 16), UTC) == 3 * DAY
    assert find_wait("resets Dec 31 at 11:58pm", ms(2027, 1, 1), UTC) == 0
    assert find_wait("resets Apr 20 at 4pm", NOW, UTC) is None  # two days ago: no news
    assert find_wait("resets Feb 29 at 4pm", ms(2028, 2, 28, 16), UTC) == DAY
    assert find_wait("resets Feb 29 at 4pm", ms(2027, 2, 28, 16), UTC) is None


def test_s3_a_zone_nobody_knows_leaves_the_local_one():
    tbilisi = ZoneInfo("Asia/Tbilisi")
    for zone in ("Mars/Olympus", "America", "../etc/passwd", "UTC+99", "x" * 40):
        assert find_wait(f"resets 4:20pm ({zone})", NOW, tbilisi) == 20 * MINUTE


def test_s3_without_time_zone_data_the_local_zone_is_used(monkeypatch):
    monkeypatch.setitem(sys.modules, "zoneinfo", None)
    assert find_wait("resets 4:20pm (Asia/Tbilisi)", NOW, UTC) == 4 * HOUR + 20 * MINUTE
    assert clock_times.next_midnight_ms("America/Los_Angeles", -8, NOW) == ms(2026, 4, 23, 8)


@pytest.fixture
def local_zone(monkeypatch):
    def set_to(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    before = os.environ.get("TZ")
    yield set_to
    monkeypatch.undo()
    assert os.environ.get("TZ") == before
    time.tzset()


def test_s3_a_time_without_a_zone_is_local(local_zone):
    local_zone("Asia/Tbilisi")
    assert find_wait("resets 4:20pm", NOW) == 20 * MINUTE
    local_zone("America/New_York")
    assert find_wait("try again at Apr 28th, 2026 10:03 PM.", NOW) == 6 * DAY + 14 * HOUR + 3 * MINUTE
    # The night of the change: 2:30 is skipped, 1:30 comes twice.
    assert find_wait("resets 2:30am", ms(2026, 3, 8, 6)) == HOUR + 30 * MINUTE
    assert find_wait("resets 1:30am", ms(2026, 11, 1, 5)) == HOUR + 30 * MINUTE


# --- summer time -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("zone", "now", "text", "expected"),
    [
        # Europe/London 2026: forward on 29 March at 01:00, back on 25 October at 02:00.
        ("Europe/London", ms(2026, 3, 28, 22), "3am", ms(2026, 3, 29, 2)),
        ("Europe/London", ms(2026, 3, 28, 22), "1:30am", ms(2026, 3, 29, 1, 30)),  # skipped: reads as 2:30
        ("Europe/London", ms(2026, 10, 24, 22), "1:30am", ms(2026, 10, 25, 1, 30)),  # twice: the later
        ("Europe/London", ms(2026, 10, 25, 0, 40), "1:30am", ms(2026, 10, 25, 1, 30)),  # between the two
        ("Europe/London", ms(2026, 10, 25, 1, 40), "1:30am", ms(2026, 10, 26, 1, 30)),
        # America/New_York 2026: forward on 8 March at 02:00, back on 1 November at 02:00.
        ("America/New_York", ms(2026, 3, 8, 5), "2:30am", ms(2026, 3, 8, 7, 30)),
        ("America/New_York", ms(2026, 3, 8, 5), "9am", ms(2026, 3, 8, 13)),
        ("America/New_York", ms(2026, 11, 1, 4), "9am", ms(2026, 11, 1, 14)),
        ("America/New_York", ms(2026, 11, 1, 4), "1:30am", ms(2026, 11, 1, 6, 30)),
        # Lord Howe moves its clocks by half an hour: forward on 4 October 2026, back on 5 April 2026, both at 02:00.
        ("Australia/Lord_Howe", ms(2026, 10, 3, 14), "2:15am", ms(2026, 10, 3, 15, 45)),
        ("Australia/Lord_Howe", ms(2026, 4, 4, 13), "1:45am", ms(2026, 4, 4, 15, 15)),
        ("Australia/Lord_Howe", ms(2026, 4, 4, 13), "9am", ms(2026, 4, 4, 22, 30)),
        # No summer time.
        ("Asia/Tbilisi", ms(2026, 3, 28, 22), "4:20am", ms(2026, 3, 29, 0, 20)),
        ("America/Recife", ms(2026, 10, 31, 22), "Nov 1 at 1:30am", ms(2026, 11, 1, 4, 30)),
    ],
)
def test_s3_a_clock_that_is_changed_in_between_is_read_right(zone, now, text, expected):
    assert find_wait(f"resets {text} ({zone})", now, UTC) == expected - now
    assert find_wait(f"resets {text}", now, ZoneInfo(zone)) == expected - now


ZONES = st.sampled_from(
    [
        "UTC",
        "Europe/London",
        "America/New_York",
        "Asia/Tbilisi",
        "America/Recife",
        "Australia/Lord_Howe",
        "Asia/Kolkata",
    ]
)
NOWS = st.integers(ms(2025, 1, 1), ms(2032, 1, 1))


def ambiguity_ms(moment: datetime) -> int:
    """How far the two readings of what the clock shows are apart."""
    apart = moment.replace(fold=1).timestamp() - moment.replace(fold=0).timestamp()
    return abs(round(apart * 1000))


def assert_near(found: int | None, delta_ms: int, moment: datetime) -> None:
    assert found is not None
    assert abs(found - delta_ms) <= MINUTE + ambiguity_ms(moment)


@settings(max_examples=200)
@given(NOWS, ZONES, st.integers(0, DAY - 2 * HOUR))
def test_s3_a_time_of_day_that_was_written_is_read_back(now, zone, delta_ms):
    moment = datetime.fromtimestamp((now + delta_ms) / 1000, ZoneInfo(zone))
    clock = moment.strftime("%I:%M%p").lstrip("0").lower()
    assert_near(find_wait(f"resets {clock} ({zone})", now), delta_ms, moment)
    assert_near(find_wait(f"resets {moment:%H:%M} ({zone})", now), delta_ms, moment)
    assert_near(find_wait(f"try again at {moment:%I:%M %p}.", now, ZoneInfo(zone)), delta_ms, moment)


@settings(max_examples=200)
@given(NOWS, ZONES, st.integers(0, 34 * DAY))
def test_s3_a_date_that_was_written_is_read_back(now, zone, delta_ms):
    moment = datetime.fromtimestamp((now + delta_ms) / 1000, ZoneInfo(zone))
    clock = moment.strftime("%I:%M %p")
    assert_near(find_wait(f"resets {moment:%b} {moment.day} at {clock} ({zone})", now), delta_ms, moment)
    text = f"try again at {moment:%b} {moment.day}th, {moment.year} {clock}."
    assert_near(find_wait(text, now, ZoneInfo(zone)), delta_ms, moment)


@settings(max_examples=200)
@given(NOWS, st.integers(0, MAX_WAIT_MS - SECOND), st.integers(-14, 14))
def test_s3_a_moment_in_any_notation_is_read_back(now, delta_ms, hours):
    moment = datetime.fromtimestamp((now + delta_ms) / 1000, UTC)
    for offset in (UTC, timezone(timedelta(hours=hours))):
        found = wait_from_rfc3339(moment.astimezone(offset).isoformat(), now)
        assert found is not None
        assert abs(found - delta_ms) <= 1
    for text in (moment.strftime("%a, %d %b %Y %H:%M:%S GMT"), str((now + delta_ms) // 1000)):
        found = wait_from_reset(text, now)
        assert found is not None
        assert delta_ms - SECOND <= found <= delta_ms
    assert wait_from_epoch(now + delta_ms, now) == delta_ms


# --- single values ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wait_ms"),
    [
        ("12ms", 12),
        ("1s", 1000),
        ("6m0s", 360000),
        ("1h2m", 3720000),
        ("45.837906927s", 45838),
        ("0s", 0),
        ("2 days 3 hours", 2 * DAY + 3 * HOUR),
        ("1 hour, 2 minutes and 3 seconds", 3723000),
        ("35d", MAX_WAIT_MS),
        ("0.1s", 100),
        ("2w", 14 * DAY),
        ("500 milliseconds", 500),
        ("1H", HOUR),
        ("", None),
        ("s", None),
        ("5", None),
        ("5x", None),
        ("-5s", None),
        ("36d", None),
        ("1s junk", None),
        ("1.s", None),
    ],
)
def test_s3_durations_are_exact(text, wait_ms):
    assert wait_from_duration(text) == wait_ms


@pytest.mark.parametrize(
    ("text", "wait_ms"),
    [
        ("1776859260", 60000),
        ("1776859260.5", 60500),
        ("1776859260000", 60000),
        (1776859260, 60000),
        (" 1776859200 ", 0),
        ("1776859199", 0),
        ("1776850000", None),
        ("17768592600", None),
        ("0", None),
        ("-1776859260", None),
        ("1e9", None),
        (float("nan"), None),
        (float("inf"), None),
        ("1" * 30, None),
    ],
)
def test_s3_an_epoch_is_in_seconds_or_milliseconds_by_its_size(text, wait_ms):
    assert wait_from_epoch(text, NOW) == wait_ms


@pytest.mark.parametrize(
    ("text", "wait_ms"),
    [
        ("2026-04-22T12:00:21Z", 21000),
        ("2026-04-22t12:00:21z", 21000),
        ("2026-04-22T14:00:21+02:00", 21000),
        ("2026-04-22T12:00:21.123456789Z", 21123),
        ("2026-04-22 12:00:21", 21000),
        ("2026-04-22T12:00:21", 21000),
        ("2026-04-22T12:00:99Z", None),
        ("2026-02-30T12:00:00Z", None),
        ("2026-04-22", None),
        ("2026", None),
        ("0001-01-01T00:00:00+14:00", None),
        ("9999-12-31T23:59:59-14:00", None),
    ],
)
def test_s3_rfc_3339_is_read_and_without_an_offset_is_utc(text, wait_ms):
    assert wait_from_rfc3339(text, NOW) == wait_ms


def test_s3_a_moment_just_gone_is_now_and_one_long_gone_is_nothing():
    assert wait_until(NOW - 1, NOW) == 0
    assert wait_until(NOW - 5 * MINUTE, NOW) == 0
    assert wait_until(NOW - 5 * MINUTE - 1, NOW) is None
    assert wait_until(NOW + MAX_WAIT_MS, NOW) == MAX_WAIT_MS
    assert wait_until(NOW + MAX_WAIT_MS + 1, NOW) is None


# --- any text --------------------------------------------------------------------------------------------------

PIECES = st.sampled_from(
    [
        "resets",
        "try again",
        "retry",
        "in",
        "at",
        "on",
        "wait",
        "|",
        "1762952400",
        "4:20pm",
        "3am",
        "(Asia/Tbilisi)",
        "Apr",
        "28th,",
        "2026",
        "10:03 PM",
        "2 days",
        "3 hours",
        "11.054s",
        "tomorrow",
        "Thu",
        "2026-05-01",
        "00:00 UTC",
        "0",
        "99",
        "(UTC+3)",
        "retryDelay",
        ":",
        '"45s"',
        "after",
        "1e400",
        "-1",
        "٣",
        "\u202f",
        "\n",
        "(",
        ")",
        ".",
        ",",
    ]
)
TEXTS = st.one_of(
    st.text(max_size=80), st.lists(PIECES, max_size=10).map(" ".join), st.lists(PIECES, max_size=8).map("".join)
)
ANY_NOW = st.one_of(NOWS, st.integers(-(10**18), 10**18))


@settings(max_examples=300, deadline=None)
@given(TEXTS, ANY_NOW, st.one_of(st.none(), ZONES.map(ZoneInfo)))
def test_s3_no_text_raises_or_gives_a_wait_in_the_past(text, now, zone):
    for found in (
        find_wait(text, now, zone),
        wait_from_reset(text, now),
        wait_from_epoch(text, now),
        wait_from_rfc3339(text, now),
        wait_from_http_date(text, now),
        wait_from_duration(text),
        wait_from_seconds(text),
    ):
        assert found is None or 0 <= found <= MAX_WAIT_MS


@pytest.mark.parametrize(
    "piece", ["resets ", "resets Apr ", "again ", "1s, ", "|1762952400", "wait  ", "resets 4:20pm (", "1"]
)
def test_s3_a_long_text_is_read_in_time_that_grows_no_faster_than_it(piece):
    began = time.process_time()
    find_wait(piece * (200_000 // len(piece)), NOW, UTC)
    wait_from_reset(piece * (200_000 // len(piece)), NOW)
    assert time.process_time() - began < 2
