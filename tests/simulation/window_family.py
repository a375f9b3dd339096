"""Random days of fleets on subscriptions, in virtual time (rule W2): what of a plan is used, and who is refused.

Each seed is a scenario. `python -m tests.simulation.window_family 500 600` prints how often each goal is met, by class;
with `one` behind it, for fleets of one person at work and twelve agents in a window of five hours.

The provider counts what all calls use, in all its windows, and refuses calls while one of them is used up. The gate
knows only what the provider reports: after each call, after every N calls, or late.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from heapq import heappop, heappush
from typing import NamedTuple

from fleetgate.core import commands as cmd
from fleetgate.core.engine import Engine
from fleetgate.core.entities import PlanRule, Rule, Spec
from fleetgate.core.plans.reading import FULL, HOUR_MS, PlanReading

ME = "h|b|n|1|1"
T0, MINUTE_MS, DAY_MS = 1_800_000_000_000, 60_000, 24 * HOUR_MS
MODEL = "anthropic/claude-sonnet-4-6"
LENGTHS = {"1h": HOUR_MS, "5h": 5 * HOUR_MS, "1d": DAY_MS, "7d": 7 * DAY_MS}


class Person(NamedTuple):
    """Works in sessions, with calls that follow each other, and is away in between."""

    session_ms: int
    away_ms: int
    pause_ms: int  # between two calls
    cost: float  # of a call, in hundredths of a percent


class Scenario(NamedTuple):
    """A plan and those who use it. Costs are parts of the first window, in hundredths of a percent."""

    seed: int
    windows: dict[str, float]  # by name: how many times as much as the first it holds
    people: list[Person]
    agents: int
    call_ms: int  # of a batch agent, on average
    cost: float  # of such a call, on average; single ones differ ten-fold
    others: float  # what is used outside the gate, in hundredths of a percent of each window
    report_every: int  # calls
    report_late_ms: int
    early_reset: float  # the part of the window after which the provider resets it; 0: it does not
    tags: tuple[str, ...]

    @property
    def length_ms(self) -> int:
        return LENGTHS[next(iter(self.windows))]


def scenario(seed: int) -> Scenario:
    """The scenario of a seed."""
    dice = random.Random(seed)
    name = dice.choice(("1h", "5h", "5h", "5h", "1d", "7d"))
    length = LENGTHS[name]
    calls = dice.choice((150, 600, 2_000))  # that fill the window: a small plan, or a large one
    speed = dice.choice((0.6, 1.2, 2.0, 4.0, 9.0, 20.0))  # of all agents together: how many windows they could use
    agents = dice.choice((1, 3, 12, 12, 40))
    cost = FULL / calls
    call_ms = max(int(agents * cost / FULL / speed * length), 2_000)
    share = dice.choice((0.05, 0.15, 0.3, 0.5))  # of the window: what people use on average
    number = dice.choice((1, 1, 2, 3, 5))
    people = []
    for _ in range(number):
        busy = dice.uniform(0.15, 0.9)  # of the time
        session = int(length * dice.uniform(0.03, 0.25))
        pause = int(length / dice.choice((150, 300, 600)))
        each = share * FULL / number / (busy * length / pause)
        people.append(Person(session, int(session * (1 - busy) / busy), pause, each))
    others = dice.choice((0.0, 0.0, 0.1, 0.3)) * FULL
    every = dice.choice((1, 1, 1, 5, 25))
    late = int(length * dice.choice((0, 0, 0, 0.01, 0.03)))
    early = dice.uniform(0.3, 0.9) if dice.random() < 0.12 else 0.0
    windows = {name: 1.0}
    if name == "5h" and dice.random() < 0.35:
        windows["7d"] = dice.choice((1.5, 4.0, 12.0))
    reach = speed + share + others / FULL
    tags = (
        name,
        "small plan" if calls == 150 else "large plan",
        "slow agents" if speed < 1.5 else "fast agents" if speed > 5 else "agents",
        "people use much" if share >= 0.3 else "people use little",
        "others outside" if others else "",
        "late reports" if late or every > 5 else "",
        "two windows" if len(windows) > 1 else "",
        "early reset" if early else "",
        "not enough work" if reach < 1.05 else "",
    )
    return Scenario(
        *(seed, windows, people, agents, call_ms, cost, others, every, late, early), tuple(tag for tag in tags if tag)
    )


def one_person(seed: int) -> Scenario:
    """One person who works all the time, and twelve agents that always have work, in a window of five hours."""
    dice = random.Random(seed)
    length = LENGTHS["5h"]
    calls = dice.choice((600, 2_000))  # that fill the window
    speed = dice.choice((1.2, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0, 15.0))
    cost = FULL / calls
    pause = length // dice.choice((150, 300, 600))
    person = Person(length // 20, 1, pause, dice.uniform(0.03, 0.4) * FULL * pause / length)
    call_ms = max(int(12 * cost / FULL / speed * length), 2_000)
    tags = ("slow agents" if speed < 2 else "fast agents" if speed > 5 else "agents",)
    return Scenario(seed, {"5h": 1.0}, [person], 12, call_ms, cost, 0.0, 1, 0, 0.0, tags)


class WindowResult(NamedTuple):
    """One window at its reset."""

    used: float
    switches: int  # how often batch work was switched on or off
    refused: int  # calls of people that the provider refused
    waited: int  # calls of people that the gate held back
    calls: int
    waiting_batch: float  # the part of the time in which batch work waited
    own: float  # what people and others used


class ProviderWindow:
    """One window as the provider counts it."""

    def __init__(self, name: str, size: float, now: int) -> None:
        self.name, self.size = name, size
        self.length_ms = LENGTHS[name]
        self.resets_at = now + self.length_ms
        self.used = 0.0

    @property
    def full(self) -> bool:
        return self.used >= FULL


class FleetOnPlan:
    """Plays one scenario."""

    def __init__(self, scene: Scenario, plan: PlanRule | None) -> None:
        self.scene = scene
        self.dice = random.Random(scene.seed + 1_000_000)
        self.engine = Engine(me=ME)
        self.now = T0
        self.windows = [ProviderWindow(name, size, T0) for name, size in scene.windows.items()]
        self.agenda: list[tuple[int, int, Callable[[], None]]] = []
        self.number = 0
        self.unreported = 0
        self.waiting: set[str] = set()
        self.running: set[str] = set()
        self.calls = self.refused = self.waited = self.switches = 0
        self.own = 0.0
        self.is_open: bool | None = None
        self.closed_ms, self.looked_at = 0, T0
        rules = (Rule("agents", "host", cap=999),)
        self.do(cmd.LoadFile("f", "1", 1, rules, plans=() if plan is None else (plan,)))
        for person in scene.people:
            begins = int(self.dice.uniform(0, person.session_ms + person.away_ms))
            self.at(T0 + begins, lambda person=person: self.session(person))  # type: ignore[misc]
        for _ in range(scene.agents):
            self.at(T0 + int(self.dice.uniform(0, scene.call_ms)), self.ask_batch)
        if scene.others:
            self.at(T0, self.outside)
        if scene.early_reset:
            self.at(T0 + int(scene.length_ms * (1 + scene.early_reset)), self.reset_early)

    # Time.

    def at(self, moment: int, act: Callable[[], None]) -> None:
        self.number += 1
        heappush(self.agenda, (moment, self.number, act))

    def play(self, until: int) -> None:
        while True:
            due = self.engine.next_deadline()
            first = self.agenda[0][0] if self.agenda else until
            reset = min(each.resets_at for each in self.windows)
            self.now = max(min(first, until, reset, first if due is None else due), self.now)
            if self.now >= until:
                self.now = until
                return
            if self.now >= reset:
                for window in self.windows:
                    if self.now >= window.resets_at:
                        window.used, window.resets_at = 0.0, window.resets_at + window.length_ms
            if self.agenda and self.agenda[0][0] <= self.now:
                heappop(self.agenda)[2]()
            self.tick()

    def tick(self) -> None:
        self.engine.handle(cmd.Tick(), self.now)
        leases = self.engine.state.leases
        for ident in [ident for ident in self.waiting if ident in leases]:
            self.waiting.discard(ident)
            self.begin_batch(ident)
        self.look()

    def look(self) -> None:
        """Count how often batch work is switched, and for how long it is off."""
        known = self.engine.state.plans.by_account.get("anthropic", [])
        if not known:
            return
        is_open = all(each.opens_at("batch", self.now) <= self.now for each in known)
        self.switches += self.is_open is not None and is_open != self.is_open
        self.closed_ms += self.now - self.looked_at if self.is_open is False else 0
        self.is_open, self.looked_at = is_open, self.now

    def do(self, command: cmd.Command) -> None:
        self.engine.handle(cmd.Tick(), self.now)
        self.engine.handle(command, self.now)

    # The provider.

    @property
    def full(self) -> bool:
        return any(each.full for each in self.windows)

    def use(self, cost: float) -> None:
        for window in self.windows:
            window.used = min(window.used + cost / window.size, FULL)

    def report(self) -> None:
        """A response came: now and then it says how full the windows are, or is heard of late."""
        self.unreported += 1
        if self.unreported < self.scene.report_every:
            return
        self.unreported = 0
        late, seen = self.scene.report_late_ms, self.now
        readings = [
            PlanReading(each.name, int(each.used), each.resets_at - seen, each.length_ms) for each in self.windows
        ]
        if late:
            self.at(self.now + late, lambda: self.hear([_aged(each, self.now - seen) for each in readings]))
        else:
            self.hear(readings)

    def hear(self, readings: list[PlanReading]) -> None:
        self.do(cmd.ObservePlan("anthropic", tuple(readings)))

    def reset_early(self) -> None:
        window = self.windows[0]
        window.used, window.resets_at = 0.0, self.now + window.length_ms

    def outside(self) -> None:
        """Others use the plan without the gate, in bursts."""
        step = self.scene.length_ms // 100
        if self.dice.random() < 0.3:
            cost = self.scene.others / 30 * self.dice.uniform(0.5, 1.5)
            self.own += 0 if self.full else cost
            self.use(cost)
        self.at(self.now + step, self.outside)

    # Batch agents.

    def ask_batch(self) -> None:
        self.number += 1
        ident = f"b{self.number}"
        self.waiting.add(ident)
        self.do(cmd.Acquire(ident, Spec((MODEL,), "requests", work_class="batch"), ME, expires_ms=30 * DAY_MS))

    def begin_batch(self, ident: str) -> None:
        self.running.add(ident)
        takes = int(self.scene.call_ms * self.dice.uniform(0.5, 1.5))
        self.at(self.now + takes, lambda: self.end_batch(ident))

    def end_batch(self, ident: str) -> None:
        self.running.discard(ident)
        self.do(cmd.Release(ident))
        pause = 1
        if self.full:
            pause = max(self.scene.length_ms // 200, 1)  # it was refused, and tries again later
        else:
            self.use(self.scene.cost * 10 ** self.dice.uniform(-0.5, 0.5) / 1.24)
        self.report()
        self.at(self.now + pause, self.ask_batch)

    # People.

    def session(self, person: Person) -> None:
        ends = self.now + int(person.session_ms * self.dice.uniform(0.5, 1.5))
        self.person_call(person, ends)

    def person_call(self, person: Person, ends: int) -> None:
        if self.now >= ends:
            away = int(person.away_ms * self.dice.uniform(0.5, 1.5))
            self.at(self.now + away + 1, lambda: self.session(person))
            return
        self.number += 1
        ident = f"p{self.number}"
        self.calls += 1
        self.do(cmd.Acquire(ident, Spec((MODEL,), "requests", work_class="interactive"), ME))
        if ident in self.engine.state.tickets:
            self.waited += 1
            self.do(cmd.Cancel(ident))
        else:
            self.refused += self.full
            self.do(cmd.Release(ident))
            if not self.full:
                cost = person.cost * 10 ** self.dice.uniform(-0.5, 0.5) / 1.24
                self.own += cost
                self.use(cost)
            self.report()
        self.at(
            self.now + max(int(person.pause_ms * self.dice.uniform(0.5, 1.5)), 1),
            lambda: self.person_call(person, ends),
        )

    # One window.

    def window(self) -> WindowResult:
        """Until the reset of the first window, or until it is reset early."""
        self.calls = self.refused = self.waited = self.switches = self.closed_ms = 0
        self.own = 0.0
        began, first = self.now, self.windows[0]
        end = first.resets_at
        used = 0.0
        while self.now < end - 1 and first.resets_at == end:
            used = first.used
            self.play(min(self.now + max(first.length_ms // 500, 1), end - 1))
        used = first.used if first.resets_at == end else used
        result = WindowResult(
            used / FULL,
            self.switches,
            self.refused,
            self.waited,
            self.calls,
            self.closed_ms / max(self.now - began, 1),
            self.own / FULL,
        )
        if first.resets_at == end:
            self.play(end + 1)  # the next one has begun
        return result


def _aged(reading: PlanReading, age_ms: int) -> PlanReading:
    return PlanReading(reading.window, reading.used, reading.resets_in_ms, reading.length_ms, age_ms=age_ms)


class Verdict(NamedTuple):
    """Whether one window met the goals."""

    used: bool
    person: bool
    switches: bool


def reachable(scene: Scenario) -> bool:
    """Whether the first window can be used up by its reset: there is enough work, and that reset is known."""
    return not {"not enough work", "early reset"} & {*scene.tags} and len(scene.windows) == 1


def judge(scene: Scenario, found: WindowResult) -> Verdict:
    most = 6 * max(scene.length_ms / LENGTHS["5h"], 1)  # of longer windows, in each five hours
    return Verdict(found.used >= 0.97 and reachable(scene), found.refused + found.waited == 0, found.switches <= most)


def rows(
    seeds: range, plan: PlanRule | None, made_of: Callable[[int], Scenario] = scenario
) -> list[tuple[Scenario, WindowResult]]:
    """The second window of every scenario: in the first one nothing is known yet. (An early reset is in it.)"""
    found = []
    for seed in seeds:
        scene = made_of(seed)
        fleet = FleetOnPlan(scene, plan)
        fleet.window()
        found.append((scene, fleet.window()))
    return found


def report(seeds: range, made_of: Callable[[int], Scenario] = scenario) -> None:
    """How often each goal is met, with and without pacing, by class."""
    both = [rows(seeds, plan, made_of) for plan in (PlanRule("anthropic"), None)]
    tags = ["all", *sorted({tag for scene, _ in both[0] for tag in scene.tags})]
    print("| class | windows | used ≥ 97 % | no person refused | at most 6 switches | mean used | calls refused |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for tag in tags:
        cells = []
        for found in both:
            some = [(scene, one) for scene, one in found if tag == "all" or tag in scene.tags]
            verdicts = [judge(*each) for each in some]
            counts = [sum(getattr(each, name) for each in verdicts) for name in Verdict._fields]
            mean = sum(one.used for _, one in some) / len(some)
            refused = sum(one.refused for _, one in some) / max(sum(one.calls for _, one in some), 1)
            cells.append((len(some), *counts, mean, refused, sum(reachable(scene) for scene, _ in some)))
        paced, bare = cells
        print(
            f"| {tag} | {paced[0]} | {paced[1]} ({bare[1]}) of {paced[6]} | {paced[2]} ({bare[2]}) | {paced[3]} "
            f"| {paced[4]:.1%} ({bare[4]:.1%}) | {paced[5]:.1%} ({bare[5]:.1%}) |"
        )


if __name__ == "__main__":
    report(range(int(sys.argv[1]), int(sys.argv[2])), one_person if "one" in sys.argv else scenario)
