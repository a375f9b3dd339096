"""Rates and budgets against a simple model with exact fractions, by random requests, ends and times (rules V1 to V5).

The model reads the events alone. After every step: what is free of each budget is what the model says; what is used,
reserved and free adds up; a request entered only if it fitted; what was spent exceeds a budget only by what calls used
beyond their estimates; a second process that read the same events agrees, and a snapshot restores the state.
"""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import BudgetRule, Spec
from fleetgate.core.state.state import State
from fleetgate.core.usage import RESPONSE, UNITS, Size, Usage
from tests.property.budget_model import Model
from tests.property.harness import MINUTE, OPUS, SECOND, SONNET, Bench, through_json

MODELS = (OPUS, SONNET, "anthropic@work/claude-opus-4-6", "umans/coder")
SELECTORS = (
    *("anthropic", "anthropic/claude-opus-*", "*", "project", "project:a", OPUS, "anthropic@work", "host"),
    *("key", "key:ci"),
)
PERIODS = (("1s", SECOND), ("1m", MINUTE), ("10m", 10 * MINUTE), ("5h", 300 * MINUTE), ("day", 0))
PRICES = (3_000_000, 300_000, 3_750_000, 15_000_000)


def _rules(dice: random.Random) -> list[BudgetRule]:
    rules = {}
    for _ in range(dice.randint(1, 4)):
        unit, (per, per_ms) = dice.choice(UNITS), dice.choice(PERIODS)
        amount = dice.choice((1, 3, 20)) if unit == "calls" else dice.choice((800, 5_000, 100_000))
        burst = dice.choice((0, amount // 2, amount * 2)) if 0 < per_ms <= 3_600_000 else 0
        rule = BudgetRule(
            dice.choice(SELECTORS), unit, amount, per, per_ms, burst, "hold", dice.choice(("expected", "max"))
        )
        rules[rule.selector, unit, per] = rule
    return list(rules.values())


def _usage(dice: random.Random) -> Usage:
    cost = dice.choice((None, 0, dice.randint(1, 40_000)))
    return Usage(
        1, dice.randint(0, 900), dice.randint(0, 900), dice.randint(0, 90), dice.randint(0, 2_000), cost, RESPONSE
    )


class Play:
    """A random play on a bench, with the model beside it."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.bench = Bench(agents={"host": 4}, requests={"*": 5}, me="me")
        self.model = Model()
        self.number = 0
        for rule in _rules(self.dice):
            self.do(cmd.SetBudget(rule))

    def do(self, command: cmd.Command) -> None:
        self._read(self.bench.do(command))

    def wait(self, ms: int) -> None:
        end = self.bench.now + ms
        while (due := self.bench.engine.next_deadline()) is not None and due <= end:
            self.bench.now = due
            self.do(cmd.Tick())
        self.bench.now = end
        self.do(cmd.Tick())

    def _read(self, events: list[ev.Event]) -> None:
        for event in events:
            self.model.read(event, self.bench.now, self.bench.state)
        self.model.check(self.bench)

    def step(self) -> None:
        dice, state = self.dice, self.bench.state
        leases = list(state.leases)
        choice = dice.random()
        if choice < 0.45:
            self.number += 1
            project, model, ident = dice.choice("abc"), dice.choice(MODELS), f"r{self.number}"
            access_key = dice.choice(("", "ci", "bob"))
            if dice.random() < 0.2:
                spec = Spec(models=(model,), host="h1", project=project, access_key=access_key)
                estimate = dice.choice((None, _usage(dice)))
                self.do(cmd.Acquire(ident, spec, "me", estimate=estimate, wait=dice.random() < 0.8))
                return
            runs = [lease for lease in leases if state.leases[lease].ticket.spec.kind == "agents"]
            run = dice.choice(runs) if runs and dice.random() < 0.6 else ""
            spec = Spec(models=(model,), kind="requests", project=project, access_key=access_key)
            size = Size(dice.randint(0, 3_000), dice.choice((0, 50, 2_000)), *PRICES)
            self.do(cmd.Acquire(ident, spec, "me", size=size, run=run))
        elif choice < 0.75 and leases:
            ident = dice.choice(leases)
            usage = dice.choice((None, Usage(source=RESPONSE), _usage(dice), _usage(dice)))
            outcome = dice.choice(("ok", "ok", "local_error", "rate_limited"))
            self.do(cmd.Release(ident, outcome, usage=usage))
        elif choice < 0.8 and leases:
            self.do(cmd.Settle(dice.choice(leases), _usage(dice)))
        elif choice < 0.84 and leases:
            self.do(cmd.Reclaim(dice.choice(leases), "me"))
        else:
            self.wait(dice.choice((1, 37, 1_000, 9_999, 61_000, 700_000, 20_000_000)))


@given(st.integers(0, 2**40))
@settings(deadline=None)
def test_v1_v2_v3_what_is_free_reserved_and_used_is_what_a_simple_model_says(seed: int) -> None:
    play = Play(seed)
    for _ in range(60):
        play.step()
    exported = play.bench.state.export(play.bench.now)
    assert State.restore(through_json(exported)).export(play.bench.now) == exported


@given(st.integers(0, 2**40))
@settings(deadline=None)
def test_v4_v5_every_request_that_waits_for_budgets_alone_enters_in_the_time_that_they_need(seed: int) -> None:
    play = Play(seed)
    for _ in range(40):
        play.step()
    bench = play.bench
    for ident in list(bench.state.leases):
        play.do(cmd.Release(ident, usage=Usage(source=RESPONSE)))
    longest = 86_400_000 * (len(bench.state.tickets) + 2)
    until = bench.now + longest
    while bench.state.tickets:
        assert bench.now < until, "some requests wait for ever"
        due = bench.engine.next_deadline()
        assert due is not None, f"nothing is due, and {len(bench.state.tickets)} wait"
        bench.now = max(due, bench.now)
        play.do(cmd.Tick())
        for ident in list(bench.state.leases):
            play.do(cmd.Release(ident, usage=Usage(source=RESPONSE)))


@given(st.integers(0, 2**40))
@settings(deadline=None)
def test_v5_the_head_of_a_rate_enters_at_the_very_moment_that_it_was_promised(seed: int) -> None:
    dice = random.Random(seed)
    bench = Bench(me="me")
    amount = dice.choice((7, 60, 1_000, 99_991))
    per = dice.choice((1_000, 60_000, 3_600_000))
    bench.do(cmd.SetBudget(BudgetRule("umans", "tokens", amount, "1m", per, dice.choice((0, amount // 3, 2 * amount)))))
    spec = Spec(models=("umans/coder",), kind="requests")
    for number in range(12):
        ident, tokens = f"r{number}", dice.randint(0, 2 * amount)
        events = bench.do(cmd.Acquire(ident, spec, "me", estimate=Usage(1, tokens)))
        if isinstance(events[-1], ev.Queued):
            until = events[-1].reason.until
            assert until is not None
            bench.wait(until - 1 - bench.now)
            assert bench.fate(ident) == "waits"
            bench.wait(1)
        assert bench.fate(ident) == "granted"
        if dice.random() < 0.5:
            bench.do(cmd.Release(ident, usage=Usage(1, dice.randint(0, amount), source=RESPONSE)))
        bench.wait(dice.choice((0, 1, per // 3)))
