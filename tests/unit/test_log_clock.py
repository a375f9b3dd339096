"""The log's time: the boot clock, anchored once per boot."""

from __future__ import annotations

import sys
import time

import pytest

from fleetgate.log import clock


def test_the_anchored_clock_reads_like_wall_time_and_counts_like_the_boot_clock() -> None:
    now = clock.anchored(clock.choose_offset(0, clock.wall_ms(), clock.boot_ms()))
    first = now()
    assert abs(first - time.time() * 1000) < 1000
    assert isinstance(first, int)
    assert 0 <= now() - first < 10_000


def test_Q2_setting_the_wall_clock_does_not_move_an_anchored_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = clock.anchored(clock.choose_offset(0, clock.wall_ms(), clock.boot_ms()))
    first = now()
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert clock.wall_ms() == 0
    assert 0 <= now() - first < 10_000


@pytest.mark.parametrize(
    ("last_at", "wall", "boot", "offset"),
    [
        (0, 1_700_000_000_000, 5_000, 1_699_999_995_000),  # a new store
        (1_600_000_000_000, 1_700_000_000_000, 5_000, 1_699_999_995_000),  # the machine was off for a while
        (1_700_000_000_000, 1_500_000_000_000, 5_000, 1_699_999_995_000),  # it came up with its clock set back
        (1_000, 0, 5_000, -4_000),  # no battery behind the clock
    ],
)
def test_Q2_a_new_boot_starts_at_wall_time_but_not_before_the_last_commit(
    last_at: int, wall: int, boot: int, offset: int
) -> None:
    assert clock.choose_offset(last_at, wall, boot) == offset
    assert boot + offset >= last_at


@pytest.mark.skipif(sys.platform != "linux", reason="the boot id of Linux")
def test_the_boot_id_names_this_boot() -> None:
    assert len(clock.boot_id()) == 36
    assert clock.boot_id() == clock.boot_id()


def test_a_system_without_boot_ids_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*args: object, **options: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr("builtins.open", missing)
    monkeypatch.setattr(sys, "platform", "freebsd")
    assert clock.boot_id() == ""


@pytest.mark.skipif(sys.platform != "linux", reason="the boot clock of Linux")
def test_Q2_sleep_counts() -> None:
    boot = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    assert abs(clock.boot_ms() - boot) < 1000
