"""Classes at random (rules W1 to W6): several plan windows, pace, reserve, drain, slots for people, preemption,
budgets, rates, reservations, backoffs and weights together, against an exact model; and no request waits for ever.
"""

from __future__ import annotations

import random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from fleetgate.core import commands as cmd
from fleetgate.core.entities import CLASSES, BudgetRule, PlanRule, Rule, Spec
from fleetgate.core.plans.reading import DAY_MS, FULL, HOUR_MS, PlanReading
from fleetgate.core.state.state import State
from fleetgate.core.usage import RESPONSE, Usage
from fleetgate.core.views.plan_views import plan_views
from tests.property.harness import MINUTE, OPUS, SONNET, Bench, through_json
from tests.property.plan_model import ClassBook

OTHERS = "openai/gpt-5"
MODELS = (SONNET, OPUS, OTHERS)
WINDOWS = {"5h": (5 * HOUR_MS, ""), "7d": (7 * DAY_MS, ""), "7d_opus": (7 * DAY_MS, "claude-opus-*")}
UNIVERSE = [
    (Spec((model,), kind, host="h1", project=project, work_class=work_class), model)
    for model in MODELS
    for kind in ("agents", "requests")
    for project in "ab"
    for work_class in CLASSES
]

# Up to which chance a step is: a request, a release, a reading, a slot taken back, a backoff; the rest is time.
_CALM = (0.32, 0.44, 0.76, 0.78, 0.80)
_CROWDED = (0.50, 0.65, 0.68, 0.70, 0.71)


class Play:
    """A random play on a bench, with the model beside it."""

    def __init__(self, seed: int) -> None:
        dice = self.dice = random.Random(seed)
        self.crowded = dice.random() < 0.5  # many wait for slots and budgets, and the plan is hardly used
        self.bench = Bench(me="me", has_budgets=True)
        plan = PlanRule(
            "anthropic",
            reserve=dice.choice((0, 100, 2_000, 5_000)),
            pace=dice.random() < (0.2 if self.crowded else 0.8),
            drain_ms=dice.choice((0, 10 * MINUTE, 5 * HOUR_MS)),
            band_ms=dice.choice((HOUR_MS, 100 * MINUTE)),
        )
        after_ms = dice.choice((0, 5_000, 5_000, 20_000) if self.crowded else (0, 20_000))
        self.book = ClassBook(UNIVERSE, plan, after_ms)
        for event, at in self.bench.log:
            self.book.read(event, at, self.bench.state)
        self.number = 0
        self.used = dict.fromkeys(WINDOWS, 0)
        self.jobs: dict[str, tuple[Spec, int]] = {}  # and since when
        lendable = dice.random() < 0.5
        rules = (
            Rule("agents", "host", cap=4, reserve=dice.choice((0, 1, 2)), lendable=lendable),
            Rule("agents", "anthropic", cap=3),
            Rule(
                "requests", "anthropic", cap=2, reserve_share=dice.choice((0, 5_000)), on_429="pause", lendable=lendable
            ),
        )
        self.do(cmd.LoadFile("f", "9", 9, rules, plans=(plan,), preempt_after_ms=after_ms, weights=(("a", 3),)))
        warns = dice.choice(("hold", "hold", "stop", "warn"))
        tokens = dice.choice((100, 500)) if self.crowded else 500
        self.do(cmd.SetBudget(BudgetRule("project:b", "tokens", tokens, "day", when_empty=warns)))
        rates = ((2, "1m", MINUTE), (4, "1h", HOUR_MS), (60, "1m", MINUTE))
        calls, per, per_ms = dice.choice(rates) if self.crowded else rates[2]
        self.do(cmd.SetBudget(BudgetRule("anthropic", "calls", calls, per, per_ms)))
        for _ in range(dice.choice((0, 8)) if self.crowded else 0):
            self._ask_job()

    def do(self, command: cmd.Command) -> None:
        for event in self.bench.do(command):
            self.book.read(event, self.bench.now, self.bench.state)
        self.book.reserved = dict(self.bench.state.reserved)  # what is withheld on purpose ends with what it was for
        self.book.check(self.bench.now)
        self.book.check_enough_gives_way()
        self._check_windows()
        self._return_jobs()

    def _check_windows(self) -> None:
        """When each class continues, as `status` shows it."""
        now = self.bench.now
        for view in plan_views(self.bench.state, now):
            window = self.book.windows[view.window]
            found = [window.opens_at(work_class, now) or None for work_class in ("normal", "batch")]
            assert [view.normal_opens_at, view.batch_opens_at] == found, f"{view} at {now}"

    def _return_jobs(self) -> None:
        """Jobs that gave way return to the queue with their age, as their workers have them do."""
        while self.book.gave_way:
            ident = self.book.gave_way.pop()
            self._ask_for_job(ident, *self.jobs[ident])

    def wait(self, ms: int) -> None:
        end = self.bench.now + ms
        while (due := self.bench.engine.next_deadline()) is not None and due <= end:
            self.bench.now = due
            self.do(cmd.Tick())
        self.bench.now = end
        self.do(cmd.Tick())

    def step(self) -> None:
        dice, state = self.dice, self.bench.state
        choice, leases = dice.random(), list(state.leases)
        asks, releases, sees, reclaims, backs_off = _CROWDED if self.crowded else _CALM
        if choice < asks:
            self._ask()
        elif choice < releases and leases:
            self._release(dice.choice(leases))
        elif choice < sees:
            self._see(dice.choice(list(WINDOWS)))
        elif choice < reclaims and leases:
            self.do(cmd.Reclaim(dice.choice(leases), "me"))
        elif choice < backs_off:
            self.do(cmd.BackOff(dice.choice((OPUS, "anthropic", OTHERS)), "overloaded", dice.choice((1_000, 90_000))))
        elif self.crowded:
            self.wait(dice.choice((1, 1_000, 7_000, 21_000, 31_000, 600_000)))
        elif dice.random() < 0.3 and (
            ahead := [each for each in self.book.windows.values() if each.resets_at > self.bench.now]
        ):
            before_ms = dice.choice((0, MINUTE, 25 * MINUTE))  # shortly before a reset
            self.wait(max(dice.choice(ahead).resets_at - before_ms - self.bench.now, 1))
        else:
            self.wait(dice.choice((1, 1_000, 31_000, 600_000, 600_000, HOUR_MS, 4 * HOUR_MS)))

    def _release(self, ident: str) -> None:
        outcome = "rate_limited" if self.dice.random() < (0.05 if self.crowded else 0.25) else "ok"
        self.do(cmd.Release(ident, outcome, usage=Usage(1, self.dice.randint(0, 80), source=RESPONSE)))

    def _see(self, name: str) -> None:
        now, (length_ms, family) = self.bench.now, WINDOWS[name]
        known = self.book.windows.get(name)
        is_new = known is None or now >= known.resets_at
        resets_at = now + length_ms if known is None or is_new else known.resets_at
        more = self.dice.choice((0, 30, 500) if self.crowded else (0, 30, 500, 1_500, 3_000, 6_000, 9_750))
        self.used[name] = min((0 if is_new else self.used[name]) + more, FULL)
        reading = PlanReading(name, self.used[name], resets_at - now, length_ms, family)
        self.do(cmd.ObservePlan("anthropic", (reading,)))

    def _ask(self) -> None:
        dice, state = self.dice, self.bench.state
        if dice.random() < (0.4 if self.crowded else 0.25):
            self._ask_job()
            return
        self.number += 1
        ident, work_class, project = f"r{self.number}", dice.choice(CLASSES), dice.choice("ab")
        model = dice.choice(MODELS)
        kind = dice.choice(("agents", "agents", "requests") if self.crowded else ("agents", "requests"))
        if self.crowded and dice.random() < 0.3:
            work_class = "interactive"
        runs = [each.id for each in state.leases.values() if each.ticket.spec.kind == "agents"]
        run = dice.choice(runs) if runs and kind == "requests" and dice.random() < 0.4 else ""
        slots = dice.choice((1, 1, 2)) if kind == "agents" else 1
        spec = Spec((model,), kind, slots, "h1", project, work_class=work_class)
        self.do(cmd.Acquire(ident, spec, "me", run=run, estimate=Usage(1, dice.randint(0, 90))))

    def _ask_job(self) -> None:
        """A job that a worker offers to run."""
        self.number += 1
        ident, model, project = f"r{self.number}", self.dice.choice(MODELS), self.dice.choice("ab")
        spec = Spec((model,), host="h1", project=project, work_class="batch")
        self.jobs[ident] = spec, self.bench.now
        self._ask_for_job(ident, *self.jobs[ident])

    def _ask_for_job(self, ident: str, spec: Spec, since: int) -> None:
        self.do(cmd.Acquire(ident, spec, "", job=True, since=since))
        self.do(cmd.Offer(ident, "me", "h1"))
        if ident in self.bench.state.leases:
            self.do(cmd.Claim(ident, "me"))


@given(st.integers(0, 2**40))
@settings(deadline=None, max_examples=16)
def test_w2_w5_what_the_rules_allow_enters_and_nothing_else_and_replay_gives_the_same_state(seed: int) -> None:
    play = Play(seed)
    for _ in range(60):
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
    until = bench.now + 86_400_000 * (len(bench.state.tickets) + 8)
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
