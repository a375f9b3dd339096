"""Durations and sizes as people write them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetgate.config.errors import BadValue
from fleetgate.config.units import (
    LARGEST_BYTES,
    LONGEST_MS,
    format_duration,
    format_size,
    found,
    parse_duration_ms,
    parse_size,
)

# Whatever TOML, JSON or a command line can give, and some that none of them can.
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("350ms", 350),
        ("10m", 600_000),
        ("24h", 86_400_000),
        ("1h30m", 5_400_000),
        ("1h 30m", 5_400_000),
        (" 2 d ", 172_800_000),
        ("1w", 604_800_000),
        ("1.5s", 1500),
        ("1.1s", 1100),
        ("0.1ms", 1),
        ("90", 90_000),
        ("0", 0),
        (0, 0),
        (90, 90_000),
        (1.1, 1100),
        (0.35, 350),
        ("1d1h1m1s1ms", 90_061_001),
        ("36500d", LONGEST_MS),
    ],
)
def test_a_duration_is_read_as_it_is_written(text: object, expected_ms: int) -> None:
    assert parse_duration_ms(text) == expected_ms


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " ",
            "x",
            "10x",
            "10 minutes",
            "-1s",
            "-1",
            "1h30",
            "30m1h",
            "1m1m",
            "1..5s",
            "1.s",
            ".5s",
            "1,5s",
            "1e3",
        ),
        *("s", "ms", "36501d", "9" * 50, "9" * 5000, "٣s", "1\n", "1\0s", "10;rm -rf /", "10M", "0x10", "1_000"),
        *(True, False, None, -1, -0.5, math.nan, math.inf, 1e300, 10**400, [], {}, [1], b"1s"),
    ],
)
def test_q1_what_is_no_duration_is_refused_with_what_is_valid(text: object) -> None:
    with pytest.raises(BadValue, match=r'not a duration: .*; a duration is a number of seconds, or text like "350ms"'):
        parse_duration_ms(text)


@given(ANYTHING)
def test_q1_a_duration_is_a_number_of_milliseconds_or_bad_value(value: object) -> None:
    try:
        duration_ms = parse_duration_ms(value)
    except BadValue:
        return
    assert type(duration_ms) is int
    assert 0 <= duration_ms <= LONGEST_MS


@given(st.text(alphabet="0123456789.wdhms ", max_size=12))
def test_q1_a_near_duration_is_read_or_bad_value(text: str) -> None:
    try:
        assert 0 <= parse_duration_ms(text) <= LONGEST_MS
    except BadValue:
        pass


@given(st.integers(0, LONGEST_MS))
def test_a_formatted_duration_reads_back_the_same(duration_ms: int) -> None:
    assert parse_duration_ms(format_duration(duration_ms)) == duration_ms


@given(st.integers(1, LONGEST_MS), st.integers(1, 3))
def test_a_shortened_duration_has_at_most_that_many_parts_and_is_not_longer(duration_ms: int, parts: int) -> None:
    text = format_duration(duration_ms, parts)
    assert 1 <= len(text.split()) <= parts
    assert parse_duration_ms(text) <= duration_ms


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [
        (0, "0s"),
        (1, "1ms"),
        (350, "350ms"),
        (1500, "1.5s"),
        (5_400_000, "1h 30m"),
        (86_400_000, "1d"),
        (61_050, "1m 1.05s"),
    ],
)
def test_durations_are_shown_as_people_say_them(duration_ms: int, text: str) -> None:
    assert format_duration(duration_ms) == text


def test_a_shortened_duration_keeps_the_largest_units() -> None:
    assert format_duration(90_061_001, 2) == "1d 1h"
    assert format_duration(61_500, 2) == "1m 1s"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("6GiB", 6 * 1024**3),
        ("512MiB", 512 * 1024**2),
        ("1.5G", 3 * 1024**3 // 2),
        ("1 GiB", 1024**3),
        ("2gb", 2 * 1000**3),
        ("100KB", 100_000),
        ("1k", 1024),
        ("1T", 1024**4),
        ("700B", 700),
        ("700", 700),
        (700, 700),
        (0, 0),
    ],
)
def test_a_size_is_read_as_it_is_written(text: object, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "x", "6X", "6GiBs", "1G1M", "-1G", "2PiB", "2000T", "9" * 60 + "T", True, None, -1, math.nan, 10**400, []],
)
def test_q1_what_is_no_size_is_refused_with_what_is_valid(text: object) -> None:
    with pytest.raises(BadValue, match=r"not a size: .*; a size is a number of bytes"):
        parse_size(text)


@given(ANYTHING)
def test_q1_a_size_is_a_number_of_bytes_or_bad_value(value: object) -> None:
    try:
        size = parse_size(value)
    except BadValue:
        return
    assert type(size) is int
    assert 0 <= size <= LARGEST_BYTES


@given(st.integers(0, LARGEST_BYTES))
def test_a_formatted_size_reads_back_within_a_twentieth(size: int) -> None:
    assert abs(parse_size(format_size(size)) - size) <= size / 20


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0B"), (700, "700B"), (6 * 1024**3, "6GiB"), (1024**3 * 3 // 2, "1.5GiB"), (1024, "1KiB")]
)
def test_sizes_are_shown_as_people_say_them(size: int, text: str) -> None:
    assert format_size(size) == text


@given(ANYTHING)
def test_what_was_found_is_shown_in_short(value: object) -> None:
    assert len(found(value)) < 700  # 80 characters, each escaped at worst
    assert found(value).isprintable()
