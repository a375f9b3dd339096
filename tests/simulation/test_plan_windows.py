"""A day of a fleet on a subscription, in virtual time (rules W2, W4): one person and twelve batch agents."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core.engine import Engine
from fleetgate.core.entities import PlanRule, Rule, Spec
from fleetgate.core.plans.reading import FULL, HOUR_MS, PlanReading

ME = "h|b|n|1|1"
T0, MINUTE_MS, STEP_MS = 1_800_000_000_000, 60_000, 10_000
LENGTH_MS = 5 * HOUR_MS
MODEL = "anthropic/claude-sonnet-4-6"


class WindowResult(NamedTuple):
    """One window at its reset."""

    used: float
    switches: int  # how often batch work was switched on or off
    refused: int  # calls of the person that the provider refused, because nothing was left
    waited: int  # calls of the person that the gate held back
    calls: int


class Fleet:
    """Twelve agents that always have work, and a person who makes a call every minute or two.

    The agents use `burn` hundredths of a percent in a minute, all together, in calls of half a minute.
    """

    def __init__(self, plan: PlanRule | None, burn: int, seed: int) -> None:
        self.random = random.Random(seed)
        self.engine = Engine(me=ME)
        self.now = T0
        self.start = T0
        self.used = 0.0
        self.burn = burn
        self.number = 0
        self.ends: dict[str, int] = {}  # by call of an agent
        self.waiting: set[str] = set()
        self.person_at = T0
        rules = (Rule("agents", "host", cap=99),)
        self.do(cmd.LoadFile("f", "1", 1, rules, plans=() if plan is None else (plan,)))

    def do(self, command: cmd.Command) -> None:
        self.engine.handle(cmd.Tick(), self.now)
        self.engine.handle(command, self.now)

    def ask(self, work_class: str) -> str:
        self.number += 1
        ident = f"{work_class}{self.number}"
        self.do(cmd.Acquire(ident, Spec((MODEL,), "requests", work_class=work_class), ME))
        return ident

    def use(self, amount: float) -> None:
        """The provider counts, and says how much is used."""
        self.used = min(self.used + amount, FULL)
        left_ms = self.start + LENGTH_MS - self.now
        self.do(cmd.ObservePlan("anthropic", (PlanReading("5h", int(self.used), left_ms, LENGTH_MS),)))

    def agents(self) -> None:
        for ident in [ident for ident, end in self.ends.items() if self.now >= end]:
            del self.ends[ident]
            self.do(cmd.Release(ident))
            if self.used < FULL:
                self.use(self.burn / 12 / 2 * self.random.uniform(0.5, 1.5))
        while len(self.ends) + len(self.waiting) < 12:
            self.waiting.add(self.ask("batch"))
        self.engine.handle(cmd.Tick(), self.now)
        for ident in [ident for ident in self.waiting if ident in self.engine.state.leases]:
            self.waiting.discard(ident)
            self.ends[ident] = self.now + int(self.random.uniform(20, 40) * 1000)

    def person(self) -> tuple[int, int, int]:
        """Calls, refused, waited."""
        if self.now < self.person_at:
            return 0, 0, 0
        self.person_at = self.now + int(self.random.uniform(60, 120) * 1000)
        ident = self.ask("interactive")
        if ident in self.engine.state.tickets:
            self.do(cmd.Cancel(ident))
            return 1, 0, 1
        refused = self.used >= FULL
        self.do(cmd.Release(ident))
        if not refused:
            self.use(10)
        return 1, int(refused), 0

    def window(self) -> WindowResult:
        """One window, from its beginning to its reset."""
        self.used, switches, totals = 0.0, 0, [0, 0, 0]
        was_open: bool | None = None
        while self.now < self.start + LENGTH_MS:
            self.agents()
            totals = [total + more for total, more in zip(totals, self.person(), strict=True)]
            known = self.engine.state.plans.named("anthropic", "5h")
            if known is not None and self.now < known.resets_at:  # from the first that is known of this window
                is_open = known.opens_at("batch", self.now) <= self.now
                switches += was_open is not None and is_open != was_open
                was_open = is_open
            self.now += STEP_MS
        self.start += LENGTH_MS
        calls, refused, waited = totals
        return WindowResult(self.used / FULL, switches, refused, waited, calls)


@pytest.mark.parametrize("burn", [60, 130, 300], ids=["twice the pace", "four times the pace", "nine times the pace"])
def test_w2_the_window_is_used_up_at_its_reset_and_the_person_never_waits(burn: int):
    fleet = Fleet(PlanRule("anthropic"), burn, seed=burn)
    for _ in range(3):
        found = fleet.window()
        assert found.used >= 0.97, found
        assert (found.refused, found.waited) == (0, 0), found
        assert found.switches <= 6, found
        assert found.calls > 150


def test_w2_without_pacing_the_person_is_refused_for_most_of_the_window():
    found = Fleet(None, 130, seed=1).window()
    assert found.used == 1.0
    assert found.refused > found.calls / 2, found


def report() -> None:
    """Print the comparison of docs/plan-windows.md."""
    for plan in (None, PlanRule("anthropic")):
        for burn in (60, 130, 300):
            print("paced" if plan else "not paced", burn, Fleet(plan, burn, seed=7).window())


if __name__ == "__main__":
    report()
