"""Rates, windows and the calendar: exact against fractions, zone files and a simple count."""

from __future__ import annotations

import datetime as dt
from datetime import datetime
from fractions import Fraction
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetgate.core.budgets.calendar import DAY_MS, UNITS, UTC, Zone, next_boundary
from fleetgate.core.budgets.rate import Rate
from fleetgate.core.budgets.window import Window
from fleetgate.core.limits import NEVER
from fleetgate.core.usage import Usage

T0 = 1_800_000_000_000


# Rates.


class Exact:
    """The same in fractions."""

    def __init__(self, amount: int, per_ms: int, burst: int) -> None:
        self.speed, self.burst, self.level = Fraction(amount, per_ms), burst, Fraction(burst)

    def wait(self, ms: int) -> None:
        self.level = min(self.level + self.speed * ms, Fraction(self.burst))

    def take(self, amount: int) -> None:
        self.level = min(self.level - amount, Fraction(self.burst))


amounts = st.integers(1, 10**7)


@given(amounts, st.sampled_from([1_000, 60_000, 3_600_000]), amounts, st.data())
def test_a_rate_is_exact_over_any_steps(amount: int, per_ms: int, burst: int, data: st.DataObject) -> None:
    rate, exact, now = Rate(amount, per_ms, burst, T0), Exact(amount, per_ms, burst), T0
    for _ in range(data.draw(st.integers(1, 12))):
        ms, wanted = data.draw(st.integers(0, 100_000)), data.draw(st.integers(0, 2 * burst))
        now += ms
        exact.wait(ms)
        at = rate.fits_at(wanted, now)
        need = min(wanted, burst)
        assert exact.level + exact.speed * (at - now) >= need
        assert at == now or exact.level + exact.speed * (at - 1 - now) < need, "not a millisecond too late"
        rate.take(wanted, now)
        exact.take(wanted)
        assert rate.free(now) == exact.level // 1


def test_more_than_the_whole_bucket_fits_when_it_is_full_and_the_debt_is_paid_first() -> None:
    rate = Rate(60, 60_000, 10, T0)
    rate.take(1, T0)
    assert rate.fits_at(100, T0) == T0 + 1_000
    rate.take(100, T0 + 1_000)
    assert rate.free(T0 + 1_000) == -90
    assert rate.fits_at(1, T0 + 1_000) == T0 + 92_000
    assert rate.fits_at(1, T0 + 92_000) == T0 + 92_000


def test_what_a_refused_call_reserved_is_given_back_and_the_bucket_does_not_overflow() -> None:
    rate = Rate(60, 60_000, 10, T0)
    rate.take(4, T0)
    rate.take(-4, T0 + 10)
    assert rate.free(T0 + 10) == 10


def test_a_rate_of_nothing_never_refills() -> None:
    rate = Rate(0, 60_000, 5, T0)
    rate.take(5, T0)
    assert rate.fits_at(1, T0) == NEVER
    assert rate.fits_at(0, T0) == T0


def test_the_providers_word_replaces_the_level() -> None:
    rate = Rate(60, 60_000, 60, T0)
    rate.set_free(5, T0)
    assert rate.free(T0 + 2_000) == 7
    rate.set_free(1_000, T0 + 3_000)
    assert rate.free(T0 + 3_000) == 60, "never more than the burst"


def test_new_numbers_keep_what_was_taken() -> None:
    rate = Rate(60, 60_000, 60, T0)
    rate.take(50, T0)
    rate.change(600, 60_000, 100, T0)
    assert rate.free(T0) == 50
    rate.change(600, 1_000, 20, T0)
    assert rate.free(T0) == -30


def test_a_clock_that_goes_back_refills_nothing() -> None:
    rate = Rate(60, 60_000, 60, T0)
    rate.take(60, T0)
    rate.take(0, T0 - 5_000)
    assert rate.free(T0 - 5_000) == 0
    assert rate.free(T0 + 1_000) == 1


def test_a_rate_comes_back_from_what_it_exports() -> None:
    rate, other = Rate(7, 60_000, 9, T0), Rate(7, 60_000, 9, T0 + 77)
    rate.take(8, T0)
    other.restore(*rate.export(T0 + 123))
    for later in (123, 5_000, 90_000):
        assert other.free(T0 + later) == rate.free(T0 + later)
        assert other.fits_at(9, T0 + later) == rate.fits_at(9, T0 + later)


# The calendar.

ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "America/Havana", "Australia/Lord_Howe",
         "Africa/Cairo", "Pacific/Apia", "Asia/Beirut", "America/Sao_Paulo"]  # fmt: skip


def offset_of(info: ZoneInfo, moment: int) -> int:
    offset = datetime.fromtimestamp(moment / 1000, info).utcoffset()
    assert offset is not None
    return int(offset.total_seconds() * 1000)


def zone_of(name: str, first: int, last: int) -> Zone:
    """The transitions of a zone file: days on which the offset changes, and the minute in them."""
    info = ZoneInfo(name)
    at, end = (int(datetime(year, 1, 1, tzinfo=dt.UTC).timestamp() * 1000) for year in (first, last))
    moments, offsets = [at], [offset_of(info, at)]
    for day in range(at + DAY_MS, end, DAY_MS):
        offset = offset_of(info, day)
        if offset != offsets[-1]:
            low, high = day - DAY_MS, day
            while high - low > 60_000:
                middle = (low + high) // 120_000 * 60_000
                low, high = (low, middle) if offset_of(info, middle) == offset else (middle, high)
            moments.append(high)
            offsets.append(offset)
    return Zone(tuple(moments), tuple(offsets))


@pytest.fixture(scope="module")
def zones() -> dict[str, Zone]:
    return {name: zone_of(name, 2010, 2013) for name in ZONES}


def unit_of(unit: str, moment: int, name: str) -> tuple[int, ...]:
    """Which day, week or month it is there, by the standard library."""
    local = datetime.fromtimestamp(moment / 1000, ZoneInfo(name))
    if unit == "week":
        return tuple(local.isocalendar())[:2]
    return (local.year, local.month) if unit == "month" else (local.year, local.month, local.day)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("name", ZONES)
def test_a_window_ends_when_clocks_in_its_zone_show_the_next_unit(unit: str, name: str, zones: dict[str, Zone]) -> None:
    start = int(datetime(2010, 2, 1, tzinfo=dt.UTC).timestamp() * 1000)
    for hours in range(0, 24 * 750, 41):
        now = start + hours * 3_600_000 + 1_234
        at = next_boundary(unit, now, zones[name])
        assert at > now
        here = unit_of(unit, now, name)
        assert unit_of(unit, at - 1, name) == here, "it did not end before"
        assert unit_of(unit, at, name) != here


@given(st.integers(-(10**14), 10**14))
def test_days_weeks_and_months_of_utc_agree_with_simple_counting(now: int) -> None:
    assert next_boundary("day", now, UTC) == (now // DAY_MS + 1) * DAY_MS
    week = next_boundary("week", now, UTC)
    assert 0 < week - now <= 7 * DAY_MS
    assert (week // DAY_MS) % 7 == 4, "a Monday"
    assert 0 < next_boundary("month", now, UTC) - now <= 31 * DAY_MS


# Windows.


def test_a_window_of_a_duration_starts_with_its_first_use() -> None:
    window = Window(10, "", 5_000, UTC)
    assert window.fits_at(10, T0) == T0
    window.take(5, T0)
    window.take(2, T0 + 4_000)
    assert window.free(T0 + 4_999) == 3
    assert window.fits_at(3, T0 + 1) == T0 + 1
    assert window.fits_at(4, T0 + 1) == T0 + 5_000
    assert window.free(T0 + 5_000) == 10
    window.take(1, T0 + 9_000)
    assert window.ends_at == T0 + 14_000


def test_a_window_of_the_calendar_ends_with_its_day() -> None:
    window = Window(10, "day", 0, Zone((0,), (3_600_000,)))
    window.take(10, T0)
    midnight = (T0 // DAY_MS + 1) * DAY_MS - 3_600_000
    assert window.fits_at(1, T0) == midnight
    assert window.fits_at(1, midnight) == midnight


def test_more_than_the_whole_amount_runs_in_an_unused_window() -> None:
    window = Window(10, "", 5_000, UTC)
    assert window.fits_at(11, T0) == T0
    window.take(11, T0)
    assert window.free(T0) == -1
    assert window.fits_at(11, T0) == T0 + 5_000


def test_what_is_given_back_belongs_to_the_window_in_which_it_was_taken() -> None:
    window = Window(10, "", 5_000, UTC)
    first = window.take(8, T0)
    window.give_back(6, first)
    assert window.free(T0) == 8
    window.give_back(-3, first)
    assert window.free(T0) == 5, "more was used than reserved"
    window.give_back(100, first)
    assert window.free(T0) == 10, "never more than there is"
    second = window.take(8, T0 + 5_000)
    window.give_back(8, first)
    assert (window.free(T0 + 5_000), second) == (2, T0 + 10_000)


def test_the_tokens_of_a_usage_are_all_kinds_together() -> None:
    assert Usage(input=1, cache_read=20, cache_write=300, output=4_000).tokens == 4_321
