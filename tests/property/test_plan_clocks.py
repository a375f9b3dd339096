"""Plan windows and clocks (rules W1 to W3, Q2): resets in every form that a provider or an agent uses, on hosts whose
wall clocks differ and jump, in any time zone, on days on which its clocks change, and over the sleep of a laptop.

Providers name moments. The log counts time by a clock that no one can set, so once a reading is in the log, only time
empties the window. A wall clock matters at two moments: when a reset is read, and when it is shown.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from email.utils import formatdate
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetgate.cli.statusline import line as statusline
from fleetgate.core import commands as cmd
from fleetgate.core.engine import Engine
from fleetgate.core.entities import BATCH, CLASSES, NORMAL, PlanRule, Rule, Spec
from fleetgate.core.invariants import check_invariants, check_settled
from fleetgate.core.model_names import parse_model
from fleetgate.core.plans.reading import HOUR_MS, PlanReading
from fleetgate.core.plans.window import PlanWindow
from fleetgate.core.views.plan_views import dry_window, plan_views
from fleetgate.core.views.pool_and_lease_views import ticket_view
from fleetgate.present.budgets.plan_windows import held_text, plan_text, plans_json
from fleetgate.present.json.state import reason_json
from fleetgate.present.log_time import LogTimes
from fleetgate.signals.agents.plan_windows import (
    window_in_event,
    windows_in_headers,
    windows_in_statusline,
    windows_in_token_count,
)
from fleetgate.signals.agents.usage.records import wall_ms

SECOND_MS, MINUTE_MS, DAY_MS = 1000, 60_000, 24 * HOUR_MS
LENGTH_MS = 5 * HOUR_MS
MODEL = "anthropic/claude-sonnet-4-6"
PLAN = PlanRule("anthropic", reserve=2_000, pace=True, drain_ms=30 * MINUTE_MS, band_ms=HOUR_MS)
UNIFIED = "anthropic-ratelimit-unified-5h"


def utc_ms(*moment: int) -> int:
    return int(datetime(*moment, tzinfo=UTC).timestamp() * 1000)  # type: ignore[misc,arg-type]


# Zones that change their clocks by an hour, by half an hour, at midnight, or never.
ZONES = st.sampled_from(
    ["UTC", "Europe/London", "America/New_York", "America/Santiago", "Australia/Lord_Howe", "Asia/Kolkata"]
)
# Moments on days on which some of them do, and on any other day.
CHANGES = [
    *((2026, 3, 8, 4), (2026, 11, 1, 3)),  # New York
    *((2026, 3, 28, 21), (2026, 10, 24, 21)),  # London
    *((2026, 9, 6, 1), (2026, 4, 5, 0)),  # Santiago, at midnight
    *((2026, 10, 3, 12), (2026, 4, 4, 12)),  # Lord Howe
]
NIGHTS = st.builds(lambda night, ms: utc_ms(*night) + ms, st.sampled_from(CHANGES), st.integers(0, 8 * HOUR_MS))
MOMENTS = NIGHTS | st.integers(utc_ms(2026, 1, 1), utc_ms(2030, 1, 1))
OFFSETS = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@contextmanager
def local_zone(name: str) -> Iterator[None]:
    """The zone of this process, as of a user there."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = name
    time.tzset()
    try:
        yield
    finally:
        if before is None:
            del os.environ["TZ"]
        else:
            os.environ["TZ"] = before
        time.tzset()


def local(at_ms: int, zone: str) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, ZoneInfo(zone))


def rfc3339(at_ms: int, offset: timezone) -> str:
    return datetime.fromtimestamp(at_ms / 1000, offset).isoformat(timespec="milliseconds")


# Every form in which a window is reported: the reset at `at`, read by a host whose wall clock shows `now`. `offset` is
# that of the writer's zone, and `late_ms` is how long ago it was written.

FORMS = [
    *("header in seconds", "header in ms", "header with an offset", "header as HTTP date", "header of Codex"),
    *("relative header of Codex", "event in seconds", "event in ms", "event with an offset", "status line"),
    *("status line with an offset", "record", "record with an offset", "relative record"),
]
SAYS_AGE = FORMS[-3:]


def read(form: str, used: int, at: int, now: int, offset: timezone, late_ms: int = 0) -> PlanReading | None:
    """What one of them says. `used` is in percent."""
    part, kind = used / 100, form.split()[0]
    moment = rfc3339(at, offset)
    if form.endswith("header of Codex"):
        named = {"x-codex-primary-used-percent": str(used), "x-codex-primary-window-minutes": "300"}
        is_relative = form.startswith("relative")
        left = {"x-codex-primary-reset-after-seconds": str((at - now) / 1000)}
        found = windows_in_headers(
            named | (left if is_relative else {"x-codex-primary-reset-at": str(at // 1000)}), now, ""
        )
    elif kind == "header":
        value = {"seconds": str(at / 1000), "ms": str(at), "offset": moment, "date": formatdate(at / 1000, usegmt=True)}
        found = windows_in_headers(
            {f"{UNIFIED}-utilization": str(part), f"{UNIFIED}-reset": value[form.split()[-1]]}, now, ""
        )
    elif kind == "event":
        resets = {"seconds": at / 1000, "ms": at, "offset": moment}[form.split()[-1]]
        event = window_in_event({"rateLimitType": "five_hour", "utilization": part, "resetsAt": resets}, now, "")
        found = () if event is None else (event,)
    elif kind == "status":
        resets = moment if form.endswith("offset") else at / 1000
        said = {"five_hour": {"used_percentage": used, "resets_at": resets}}
        found = windows_in_statusline({"rate_limits": said}, now)
    else:
        written = wall_ms(rfc3339(now - late_ms, offset if form.endswith("offset") else UTC))
        assert written is not None
        says = {"resets_in_seconds": (at - written) / 1000} if form.startswith("relative") else {"resets_at": at / 1000}
        found = windows_in_token_count({"primary": {"used_percent": used, "window_minutes": 300, **says}}, written, now)
    return found[0] if found else None


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(FORMS), MOMENTS, st.integers(301 * SECOND_MS, LENGTH_MS), OFFSETS, ZONES, st.integers(0, HOUR_MS)
)
def test_w1_a_reset_is_the_same_moment_in_every_form_and_in_every_zone(
    form: str, now: int, left_ms: int, offset: timezone, zone: str, late_ms: int
):
    with local_zone(zone):
        found = read(form, 63, now + left_ms, now, offset, late_ms)
    assert found is not None
    assert (found.window, found.used, found.length_ms) == ("5h", 6_300, LENGTH_MS)
    assert abs(found.resets_in_ms - found.age_ms - left_ms) <= SECOND_MS
    assert found.age_ms == (late_ms if form in SAYS_AGE else 0)


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(FORMS), MOMENTS, st.integers(SECOND_MS, 30 * DAY_MS), OFFSETS, ZONES)
def test_w1_a_reset_that_has_passed_leaves_nothing_of_the_reading(
    form: str, now: int, ago_ms: int, offset: timezone, zone: str
):
    with local_zone(zone):
        found = read(form, 63, now - ago_ms, now, offset)
    if found is None:
        return
    # Only a negative number of seconds is not understood: then the reset is not named.
    assert form.startswith("relative")
    assert found.resets_in_ms == 0
    host = Host(Log(now))
    host.log.observe(found)
    assert host.log.window is None


@settings(max_examples=60, deadline=None)
@given(MOMENTS, st.integers(0, 3 * HOUR_MS), ZONES)
def test_w1_a_record_with_a_local_time_has_its_age(now: int, late_ms: int, zone: str):
    """A time that the local clock shows twice may be the earlier one: then it is up to an hour older."""
    with local_zone(zone):
        shown = local(now - late_ms, zone).replace(tzinfo=None)
        written = wall_ms(shown.isoformat(timespec="milliseconds"))
        assert written is not None
        twice = local(written, zone)
        apart_ms = abs(twice.replace(fold=1).timestamp() - twice.replace(fold=0).timestamp()) * 1000
    assert 0 <= (now - written) - late_ms <= apart_ms + 1


@settings(max_examples=60, deadline=None)
@given(MOMENTS, st.integers(-2 * DAY_MS, 2 * DAY_MS), st.integers(SECOND_MS, LENGTH_MS), OFFSETS)
def test_q2_a_record_from_before_the_clock_was_set_names_the_reset_by_the_clock_of_now(
    now: int, jump_ms: int, left_ms: int, offset: timezone
):
    """The reset is a moment, so it is compared with the clock that is right now, not with that of the record."""
    written = wall_ms(rfc3339(now - jump_ms, offset))
    assert written is not None
    limits = {"primary": {"used_percent": 5, "window_minutes": 300, "resets_at": (now + left_ms) / 1000}}
    (found,) = windows_in_token_count(limits, written, now)
    assert found.resets_in_ms - found.age_ms == left_ms
    assert found.age_ms == max(jump_ms, 0)


# The engine: readings of hosts whose wall clocks differ.


class Log:
    """An engine, and the log's time, which no one can set."""

    def __init__(self, now: int, *plans: PlanRule) -> None:
        self.now = now
        self.engine = Engine(me="h|b|n|1|1")
        self.number = 0
        rules = (Rule("agents", "host", cap=99),)
        self.do(cmd.LoadFile("f", "1", 1, rules, plans=plans or (PLAN,)))

    def do(self, command: cmd.Command) -> None:
        self.engine.handle(cmd.Tick(), self.now)
        self.engine.handle(command, self.now)
        check_invariants(self.engine.state)
        check_settled(self.engine.state, self.now)

    def observe(self, *readings: PlanReading) -> None:
        self.do(cmd.ObservePlan("anthropic", readings))

    def pass_by(self, ms: int, *, asleep: bool = False) -> None:
        """Time passes; while the machine is asleep, without a look at the deadlines on the way."""
        end = self.now + ms
        while not asleep and (due := self.engine.next_deadline()) is not None and due <= end:
            self.now = max(due, self.now)
            self.do(cmd.Tick())
        self.now = end
        self.do(cmd.Tick())

    @property
    def window(self) -> PlanWindow | None:
        return self.engine.state.plans.named("anthropic", "5h")

    def asks(self, work_class: str) -> str:
        self.number += 1
        ident = f"{work_class}{self.number}"
        self.do(cmd.Acquire(ident, Spec((MODEL,), host="h1", work_class=work_class), "h|b|n|1|1"))
        return ident

    def open(self) -> tuple[bool, ...]:
        """Whether work of each class enters now."""
        found = []
        for work_class in CLASSES:
            ident = self.asks(work_class)
            found.append(ident in self.engine.state.leases)
            self.do(cmd.Release(ident) if found[-1] else cmd.Cancel(ident))
        return tuple(found)


class Host:
    """A host on that log. `wall_ms` is what its wall clock shows beyond the right time, which is the log's."""

    def __init__(self, log: Log, wall_ms: int = 0) -> None:
        self.log = log
        self.wall_ms = wall_ms

    def now(self) -> int:
        return self.log.now

    def wall_offset_ms(self) -> int:
        return self.wall_ms

    def hears(self, form: str, used: int, resets_at: int, offset: timezone = UTC) -> None:
        """A response reaches this host. Relative times are the provider's, so its own clock does not matter."""
        now = self.log.now + self.wall_ms
        at = resets_at + self.wall_ms if form.startswith("relative") else resets_at
        found = read(form, used, at, now, offset)
        self.log.observe(*([] if found is None else [found]))


SKEW_MS = 7 * MINUTE_MS  # clocks that a person has set
SKEWS = st.integers(-SKEW_MS, SKEW_MS)
JUMPS = st.sampled_from((0, HOUR_MS, -HOUR_MS, 3 * DAY_MS, -3 * DAY_MS)) | st.integers(-20 * DAY_MS, 20 * DAY_MS)


@settings(max_examples=60, deadline=None)
@given(
    MOMENTS, SKEWS, SKEWS, st.lists(st.tuples(st.booleans(), st.sampled_from(FORMS), st.integers(1, 9)), max_size=12)
)
def test_w1_two_hosts_with_different_clocks_see_one_window_that_is_empty_after_its_reset(
    start: int, one_ms: int, other_ms: int, heard: list[tuple[bool, str, int]]
):
    log = Log(start)
    hosts, resets_at, used = (Host(log, one_ms), Host(log, other_ms)), start + LENGTH_MS, 0
    for number, (first, form, more) in enumerate(heard, 1):
        log.pass_by(15 * MINUTE_MS)
        used += more
        hosts[first].hears(form, used, resets_at)
        assert log.window is not None
        assert log.window.used(log.now) == used * 100, "the newest reading wins, by whatever clock it was read"
        assert abs(log.window.resets_at - resets_at) <= SKEW_MS + SECOND_MS
        assert len(log.window.samples) == min(number, 5), "all of the last hour, and one more: it is one window"
    log.pass_by(resets_at + SKEW_MS + SECOND_MS - log.now)
    assert log.window is None or log.window.used(log.now) == 0
    assert log.open() == (True, True, log.window is None or log.window.opens_at(BATCH, log.now) == 0)


@settings(max_examples=60, deadline=None)
@given(
    MOMENTS,
    st.lists(
        st.tuples(st.sampled_from(FORMS), JUMPS, st.integers(0, 90 * MINUTE_MS), st.integers(0, 30), st.booleans()),
        min_size=1,
        max_size=8,
    ),
    ZONES,
)
def test_q2_a_wall_clock_that_jumps_never_breaks_a_window_and_is_forgotten_after_the_next_reading(
    start: int, steps: list[tuple[str, int, int, int, bool]], zone: str
):
    """Whatever a wrong clock makes of a reset, what is used is what was read last, and waits have an end."""
    log = Log(start)
    host = Host(log)
    with local_zone(zone):
        begins, used = start, 0
        for form, jump_ms, passes_ms, more, asleep in steps:
            log.pass_by(passes_ms, asleep=asleep)
            if log.now >= begins + LENGTH_MS:
                begins, used = log.now, 0
            used, host.wall_ms = min(used + more, 100), jump_ms
            before = log.window
            was = None if before is None else (before.used_then, before.resets_at)
            host.hears(form, used, begins + LENGTH_MS)
            check_window(log)
            now = log.window
            if now is not None and (now.used_then, now.resets_at) != was:
                assert now.used_then == used * 100
            check_views(host)
        log.pass_by(MINUTE_MS)
        host.wall_ms = 0
        if log.now < begins + LENGTH_MS:  # the clock is right again
            used = min(used + 2, 110)
            host.hears("header in ms", used, begins + LENGTH_MS)
            assert log.window is not None
            assert log.window.used(log.now) == used * 100
            assert abs(log.window.resets_at - (begins + LENGTH_MS)) <= 300 * SECOND_MS
        assert log.window is None or log.window.resets_at - log.now <= LENGTH_MS
        log.pass_by(LENGTH_MS, asleep=True)
        assert log.window is None or log.window.used(log.now) == 0


def check_window(log: Log) -> None:
    window, now = log.window, log.now
    if window is None:
        return
    assert window.resets_at <= now + LENGTH_MS, "a window never lasts for longer than its length"
    for work_class in (NORMAL, BATCH):
        opens_at = window.opens_at(work_class, now)
        assert opens_at <= max(window.resets_at, now) + window.band_ms
        assert window.opens_at("interactive", now) == 0
    if now >= window.resets_at:
        assert window.used(now) == 0


def check_views(host: Host) -> None:
    """What is printed about a window is in order, whatever the clocks are."""
    log, moments = host.log, LogTimes(host)
    for shape in plans_json(log.engine.state, moments):
        seen = datetime.fromisoformat(shape.seen_at or "")
        assert seen.timestamp() * 1000 <= log.now + host.wall_ms + SECOND_MS, "seen in the future"
        assert shape.resets_at is None or datetime.fromisoformat(shape.resets_at) >= seen - timedelta(seconds=1)
    ident = log.asks(BATCH)
    view = ticket_view(log.engine.state, ident, log.now)
    if view is not None:
        percent = re.search(r"after (-?[0-9]+) % of its time", view.reason.text)
        assert percent is None or 0 <= int(percent[1]) <= 100, view.reason.text
        log.do(cmd.Cancel(ident))
    else:
        log.do(cmd.Release(ident))


@settings(max_examples=50, deadline=None)
@given(
    MOMENTS,
    MOMENTS,
    st.lists(st.tuples(st.integers(0, HOUR_MS), st.integers(0, 12), JUMPS, st.booleans()), max_size=10),
    ZONES,
)
def test_w2_pace_and_drain_follow_the_logs_time_on_every_day_of_the_year(
    start: int, other_start: int, steps: list[tuple[int, int, int, bool]], zone: str
):
    """The same window twice: on any day, by clocks that jump, with sleep, in a zone that may change its clocks;
    and on another day, by the right clock.
    """
    wild, calm = Log(start), Log(other_start)
    host, plain, used, elapsed = Host(wild), Host(calm), 0, 0
    for passes_ms, more, jump_ms, asleep in [*steps, (LENGTH_MS, 0, 0, True)]:
        with local_zone(zone):
            wild.pass_by(passes_ms, asleep=asleep)
        calm.pass_by(passes_ms)
        elapsed += passes_ms
        if elapsed < LENGTH_MS:
            used += more
            host.wall_ms = jump_ms
            with local_zone(zone):
                host.hears("relative header of Codex", used, start + LENGTH_MS)
            plain.hears("relative header of Codex", used, other_start + LENGTH_MS)
        for log in (wild, calm):
            check_window(log)
        if wild.window is not None and calm.window is not None:
            found = [
                [log.window.opens_at(each, log.now) - log.now for each in CLASSES] for log in (wild, calm) if log.window
            ]
            assert [max(each, -1) for each in found[0]] == [max(each, -1) for each in found[1]]
        assert wild.open() == calm.open()


# What people see.


@settings(max_examples=80, deadline=None)
@given(MOMENTS, st.integers(MINUTE_MS, LENGTH_MS), st.integers(1, 99), JUMPS, ZONES)
def test_w3_every_place_shows_the_providers_moment_by_the_readers_clock(
    wall: int, left_ms: int, used: int, apart_ms: int, zone: str
):
    """`apart_ms`: the log's clock was set when the machine started, and the wall clock since then, many times."""
    log = Log(wall - apart_ms)
    host, resets_wall = Host(log, apart_ms), wall + left_ms
    now_ms = wall
    found = read("header in ms", used, resets_wall, now_ms, UTC)
    assert found is not None
    log.observe(found)
    with local_zone(zone):
        moments = LogTimes(host)
        (shape,) = plans_json(log.engine.state, moments)  # status --json, GET /v1/plans and the dashboard
        (view,) = plan_views(log.engine.state, log.now)
        assert shape.resets_at is not None
        assert abs(datetime.fromisoformat(shape.resets_at).timestamp() * 1000 - resets_wall) <= SECOND_MS
        assert shape.used_percent == used
        shown = {f"{local(resets_wall + ms, zone):%H:%M}" for ms in (-SECOND_MS, 0, SECOND_MS)}
        assert any(f"resets {clock}" in plan_text(view, moments) for clock in shown), (plan_text(view, moments), shown)
        if view.batch_opens_at is not None:
            held = held_text(view, moments)
            opens_wall = (view.normal_opens_at or view.batch_opens_at) + moments.offset_ms
            assert held.endswith(f"until {local(opens_wall, zone):%H:%M}")
            assert view.resets_at is None or log.now < view.batch_opens_at <= view.resets_at
        reason = dry_window(log.engine.state, parse_model(MODEL), log.now)  # what capacity says
        if reason is not None:
            said = msgspec.to_builtins(reason_json(reason, moments))
            assert said["resets_at"] == shape.resets_at
            assert said["used_percent"] == used


@pytest.mark.parametrize("zone", ["America/New_York", "Europe/London", "Australia/Lord_Howe", "America/Santiago"])
@settings(max_examples=40, deadline=None)
@given(now=NIGHTS, left_ms=st.integers(MINUTE_MS, LENGTH_MS), form=st.sampled_from(("s", "ms", "iso")), offset=OFFSETS)
def test_w3_the_status_line_shows_the_reset_by_the_local_clock(
    zone: str, now: int, left_ms: int, form: str, offset: timezone
):
    at = (now + left_ms) // 1000 * 1000
    value = {"s": at // 1000, "ms": at, "iso": rfc3339(at, offset)}[form]
    with wall_clock(now), local_zone(zone):
        assert shown_line({}, 33, value) == f"5h 33% until {local(at, zone):%H:%M}"


@settings(max_examples=80, deadline=None)
@given(
    now=MOMENTS,
    known_ms=st.integers(-2 * HOUR_MS, LENGTH_MS),
    said_ms=st.integers(-2 * HOUR_MS, LENGTH_MS),
    known=st.integers(1, 100),
    said=st.integers(1, 100),
)
def test_w1_the_status_line_never_shows_what_was_used_before_a_reset(
    now: int, known_ms: int, said_ms: int, known: int, said: int
):
    """What is known may be of a window that is over, and so may what the agent draws again. The later window counts."""
    with wall_clock(now), local_zone("UTC"):
        file = {"slots": "1 running", "plans": {"anthropic": {"5h": [known, (now + known_ms) / 1000, 0.0]}}}
        line = shown_line(file, said, (now + said_ms) / 1000)
    parts = line.split(" | ")[1:]
    alive = [each for each in (known_ms, said_ms) if each > 0]
    if not alive:
        assert parts == []
        return
    used = re.fullmatch(r"5h ([0-9]+)% until [0-9:]{5}", parts[0])
    assert used is not None, line
    if abs(known_ms - said_ms) <= 300 * SECOND_MS - 1 and len(alive) == 2:
        assert int(used[1]) == max(known, said)
    elif abs(known_ms - said_ms) > 300 * SECOND_MS + 1:
        assert int(used[1]) == (known if known_ms > said_ms else said)


@contextmanager
def wall_clock(now_ms: int) -> Iterator[None]:
    """The status line's wall clock."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statusline, "time", lambda: now_ms / 1000)
        yield


def shown_line(known: dict[str, Any], used: int, resets_at: object) -> str:
    said = {"rate_limits": {"five_hour": {"used_percentage": used, "resets_at": resets_at}}}
    return statusline.line_of(known, msgspec.json.encode(said), "anthropic")
