"""Plan windows, reserves, reservations, budgets and preemption at random (rules W2, W5): against a simple model, and
without a request that waits for ever."""

from __future__ import annotations

import random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import CLASSES, BudgetRule, PlanRule, Rule, Spec
from fleetgate.core.plans.reading import FULL, HOUR_MS, PlanReading
from fleetgate.core.state.state import State
from fleetgate.core.usage import RESPONSE, Usage
from tests.property.harness import MINUTE, OPUS, SONNET, Bench, through_json

LENGTH_MS = 5 * HOUR_MS
PLAN = PlanRule("anthropic", reserve=2_000, pace=True, drain_ms=30 * MINUTE, band_ms=HOUR_MS)
OTHERS = "openai/gpt-5"


class Window:
    """A window as far as the rules say it without what is learned: what is left to people, whatever the pace is."""

    def __init__(self) -> None:
        self.used = 0
        self.resets_at = 0

    def seen(self, used: int, resets_at: int) -> None:
        self.used, self.resets_at = used, resets_at

    def allows(self, work_class: str, now: int) -> bool:
        if now >= self.resets_at or work_class == "interactive":
            return True
        left_ms, left = self.resets_at - now, FULL - self.used
        has_enough = left > 200 and left >= PLAN.reserve * left_ms // LENGTH_MS
        if work_class == "batch":
            return has_enough
        return left > 200 and (left > PLAN.reserve or left_ms <= PLAN.drain_ms or has_enough)


class Play:
    """A random play on a bench, with the model beside it."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.bench = Bench(me="me")
        self.window = Window()
        self.number = 0
        self.specs: dict[str, tuple[Spec, str]] = {}
        rules = (
            Rule("agents", "host", cap=4, reserve=self.dice.choice((0, 1, 2)), lendable=self.dice.random() < 0.5),
            Rule("agents", "anthropic", cap=3),
            Rule("requests", "anthropic", cap=2, reserve_share=self.dice.choice((0, 5_000)), on_429="pause"),
        )
        after_ms = self.dice.choice((0, 20_000))
        weights = (("a", 3),)
        self.do(cmd.LoadFile("f", "9", 9, rules, plans=(PLAN,), preempt_after_ms=after_ms, weights=weights))
        self.do(cmd.SetBudget(BudgetRule("project:b", "tokens", 500, "day")))
        self.do(cmd.SetBudget(BudgetRule("anthropic", "calls", 60, "1m", 60_000)))

    def do(self, command: cmd.Command) -> None:
        for event in self.bench.do(command):
            self._read(event)

    def wait(self, ms: int) -> None:
        end = self.bench.now + ms
        while (due := self.bench.engine.next_deadline()) is not None and due <= end:
            self.bench.now = due
            self.do(cmd.Tick())
        self.bench.now = end
        self.do(cmd.Tick())

    def _read(self, event: ev.Event) -> None:
        now = self.bench.now
        if isinstance(event, ev.PlanObserved):
            self.window.seen(event.used, event.resets_at)
        elif isinstance(event, ev.Granted) and event.model.startswith("anthropic"):
            spec, run = self.specs[event.id]
            assert run or self.window.allows(spec.work_class, now), f"{spec.work_class} entered at {self.window.used}"
        elif isinstance(event, ev.Preempted):
            lease = self.bench.state.leases.get(event.id)
            assert lease is None or (lease.ticket.job and lease.ticket.spec.work_class == "batch")

    def step(self) -> None:
        dice, state = self.dice, self.bench.state
        choice, leases = dice.random(), list(state.leases)
        if choice < 0.45:
            self._ask()
        elif choice < 0.65 and leases:
            self.do(cmd.Release(dice.choice(leases), usage=Usage(1, dice.randint(0, 80), source=RESPONSE)))
        elif choice < 0.8:
            now = self.bench.now
            resets_at = self.window.resets_at if now < self.window.resets_at else now + LENGTH_MS
            used = min(self.window.used if now < self.window.resets_at else 0, FULL)
            used = min(used + dice.choice((0, 30, 500, 3_000)), FULL)
            self.do(cmd.ObservePlan("anthropic", (PlanReading("5h", used, resets_at - now, LENGTH_MS),)))
        elif choice < 0.84 and leases:
            self.do(cmd.Reclaim(dice.choice(leases), "me"))
        else:
            self.wait(dice.choice((1, 1_000, 31_000, 600_000, HOUR_MS, 3 * HOUR_MS)))

    def _ask(self) -> None:
        dice, state = self.dice, self.bench.state
        self.number += 1
        ident, work_class, project = f"r{self.number}", dice.choice(CLASSES), dice.choice("ab")
        model = dice.choice((SONNET, OPUS, OTHERS))
        if dice.random() < 0.25:  # a job that a worker offers to run
            spec = Spec((model,), host="h1", project=project, work_class="batch")
            self.specs[ident] = (spec, "")
            self.do(cmd.Acquire(ident, spec, "", job=True))
            self.do(cmd.Offer(ident, "me", "h1"))
            return
        kind = dice.choice(("agents", "requests"))
        runs = [each.id for each in state.leases.values() if each.ticket.spec.kind == "agents"]
        run = dice.choice(runs) if runs and kind == "requests" and dice.random() < 0.4 else ""
        slots = dice.choice((1, 1, 2)) if kind == "agents" else 1
        spec = Spec((model,), kind, slots, "h1", project, work_class=work_class)
        self.specs[ident] = (spec, run)
        self.do(cmd.Acquire(ident, spec, "me", run=run, estimate=Usage(1, dice.randint(0, 90))))


@given(st.integers(0, 2**40))
@settings(deadline=None, max_examples=8)
def test_w2_w5_only_what_the_rules_allow_enters_and_replay_gives_the_same_state(seed: int) -> None:
    play = Play(seed)
    for _ in range(50):
        play.step()
    exported = play.bench.state.export(play.bench.now)
    assert State.restore(through_json(exported)).export(play.bench.now) == exported


@given(st.integers(0, 2**40))
@example(147822)  # two requests had slots kept for them, and the second process kept more
@settings(deadline=None, max_examples=8)
def test_w2_w5_no_request_waits_for_ever(seed: int) -> None:
    """Nothing more is used: then every request enters, by time and by what is released."""
    play = Play(seed)
    for _ in range(40):
        play.step()
    bench = play.bench
    until = bench.now + 86_400_000 * (len(bench.state.tickets) + 2)
    while bench.state.tickets:
        for ident in list(bench.state.leases):
            play.do(cmd.Release(ident, usage=Usage(source=RESPONSE)))
        if not bench.state.tickets or bench.state.leases:
            continue
        assert bench.now < until, f"some wait for ever: {list(bench.state.tickets.values())}"
        due = bench.engine.next_deadline()
        assert due is not None, f"nothing is due, and {len(bench.state.tickets)} wait"
        bench.now = max(due, bench.now)
        play.do(cmd.Tick())
