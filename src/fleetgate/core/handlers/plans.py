"""Commands about plan windows: what providers and agents say of them (rules W1, W3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import PlanRule
from fleetgate.core.errors import BadRequest
from fleetgate.core.model_names import account_of, parse_model, shown
from fleetgate.core.plans.reading import DAY_MS, FULL, LONGEST_MS, PlanReading, is_valid
from fleetgate.core.plans.runway import DRY, SAFE, runway
from fleetgate.core.plans.window import SAME_MS, PlanWindow
from fleetgate.core.state.state import State

_WORTH_SEEING: Final = 100  # one percent


class PlanHandler:
    """The plan windows of one state."""

    def __init__(self, state: State, record: Callable[[ev.Event], None]) -> None:
        self._state = state
        self._record = record

    def observe(self, command: cmd.ObservePlan, now: int) -> None:
        account = account_of(parse_model(f"{command.account}/any"))
        if account != command.account:
            raise BadRequest(f"account {shown(command.account)}: valid is a provider, or provider@account")
        for reading in command.readings:
            if is_valid(reading):
                self._observe(account, reading, now)

    def _observe(self, account: str, reading: PlanReading, now: int) -> None:
        found = news(self._state, account, reading, now)
        if found is not None:
            self._record(found)

    def report_runways(self, now: int) -> None:
        """Record which windows run dry before their reset, and which no longer do."""
        state = self._state
        touched, state.touched_plans = state.touched_plans, {}
        for window in touched.values():
            found = runway(window, now)
            if found.level == (SAFE if window.warned else DRY):
                used, resets_at, dry_at = window.used(now), window.resets_at, found.dry_at or 0
                self._record(ev.PlanRunway(window.account, window.window, found.level, used, resets_at, dry_at))


def news(state: State, account: str, reading: PlanReading, now: int) -> ev.PlanObserved | None:
    """What a reading says that is worth recording; None: nothing."""
    seen_at = now - reading.age_ms
    window = state.plans.named(account, reading.window)
    known = window if window is not None and now < window.resets_at else None
    if reading.resets_in_ms:
        resets_at = seen_at + _bounded(reading)
    elif known is not None:
        resets_at = known.resets_at
    else:
        return None
    if resets_at <= now or (window is None and not state.plans.has_room(account)):
        return None  # what was seen is over
    if known is not None:
        if not _is_news(known, reading, resets_at, seen_at, now):
            return None
        if abs(resets_at - known.resets_at) <= SAME_MS:
            resets_at = known.resets_at
    return ev.PlanObserved(account, reading.window, reading.used, resets_at, reading.length_ms, seen_at, reading.family)


def _bounded(reading: PlanReading) -> int:
    """How long until the reset; no longer than the window lasts, which only a clock that is slow can make of it."""
    is_month = reading.length_ms >= 28 * DAY_MS  # months differ
    return reading.resets_in_ms if is_month else min(reading.resets_in_ms, reading.length_ms)


def _is_news(window: PlanWindow, reading: PlanReading, resets_at: int, seen_at: int, now: int) -> bool:
    """Whether a reading of a window that is known changes a decision, or what people see."""
    used, same = reading.used, window.is_same(resets_at, now)
    if reading.is_floor and (used <= window.used_then if same else resets_at < window.resets_at):
        return False
    if seen_at < window.seen_at or used == window.used_then == 0:
        return False  # the newest wins; and the reset of a window of which nothing is used moves on and on
    if not same or abs(used - window.used_then) >= _WORTH_SEEING:
        return True
    return used != window.used_then and window.differs(used, now)


def check_plan(rule: PlanRule) -> None:
    """Raise BadRequest or BadName for a rule that cannot be."""
    parse_model(f"{rule.account}/any")
    if not 0 <= rule.reserve <= FULL:
        raise BadRequest(f"reserve {rule.reserve} for {rule.account}: valid is 0 to {FULL}")
    if not 0 <= rule.drain_ms <= LONGEST_MS or not 0 <= rule.band_ms <= LONGEST_MS:
        raise BadRequest(f"drain or band for {rule.account}: valid is 0 to {LONGEST_MS} ms")
