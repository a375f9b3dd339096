"""Rates and budgets against a simple model with exact fractions, by random requests, ends and times (rules V1 to V5).

The model reads the events alone. After every step: what is free of each budget is what the model says; what is used,
reserved and free adds up; a request entered only if it fitted; what was spent exceeds a budget only by what calls used
beyond their estimates; a second process that read the same events agrees, and a snapshot restores the state.
"""

from __future__ import annotations

import random
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import BudgetRule, Spec, Ticket
from fleetgate.core.state.state import State
from fleetgate.core.usage import RESPONSE, UNITS, Size, Usage
from fleetgate.core.views.budget_views import budget_views
from tests.property.harness import MINUTE, OPUS, SECOND, SONNET, Bench, through_json

MODELS = (OPUS, SONNET, "anthropic@work/claude-opus-4-6", "umans/coder")
SELECTORS = (
    *("anthropic", "anthropic/claude-opus-*", "*", "project", "project:a", OPUS, "anthropic@work", "host"),
    *("key", "key:ci"),
)
PERIODS = (("1s", SECOND), ("1m", MINUTE), ("10m", 10 * MINUTE), ("5h", 300 * MINUTE), ("day", 0))
PRICES = (3_000_000, 300_000, 3_750_000, 15_000_000)


class Account:
    """The model of one budget."""

    def __init__(self, rule: BudgetRule, now: int) -> None:
        self.rule = rule
        self.rate = 0 < rule.per_ms <= 3_600_000
        self.full = Fraction(rule.burst or rule.amount)
        self.level, self.at = self.full, now
        self.window = 0
        self.held: dict[str, tuple[int, int, int]] = {}  # by lease: amount, window, drawn from the run
        self.excess = 0  # what calls used beyond their estimates

    def _advance(self, now: int) -> None:
        if self.rate:
            self.level = min(self.full, self.level + Fraction(now - self.at) * self.rule.amount / self.rule.per_ms)
        elif now >= self.window:
            self.level = self.full
        self.at = now

    def _open(self, now: int) -> None:
        if not self.rate and now >= self.window:
            day = 86_400_000
            self.window = now + self.rule.per_ms if self.rule.per_ms else (now // day + 1) * day

    def free(self, now: int) -> int:
        self._advance(now)
        return self.level.numerator // self.level.denominator

    def _current(self, held: tuple[int, int, int] | None, now: int) -> bool:
        return held is not None and (self.rate or now < held[1] == self.window)

    def covered(self, run: str, now: int) -> int:
        held = self.held.get(run)
        return held[0] if held is not None and not self.rate and self._current(held, now) else 0

    def wanted(self, ticket: Ticket) -> int:
        usage = ticket.most if self.rule.estimate == "max" and ticket.most is not None else ticket.estimate
        return 0 if usage is None else usage.amount(self.rule.unit)

    def fits(self, ticket: Ticket, now: int) -> bool:
        self._advance(now)
        wanted, covered = self.wanted(ticket), self.covered(ticket.run, now)
        if self.rule.when_empty == "warn" or (covered and covered >= wanted):
            return True
        return self.level >= min(Fraction(max(wanted - covered, 1)), self.full) or self.level >= self.full

    def granted(self, ticket: Ticket, now: int) -> None:
        self._advance(now)
        wanted, drawn = self.wanted(ticket), 0
        if covered := self.covered(ticket.run, now):
            drawn = min(wanted, covered)
            amount, window, of_run = self.held[ticket.run]
            self.held[ticket.run] = (amount - drawn, window, of_run)
        self._open(now)
        self.level -= wanted - drawn
        self.held[ticket.id] = (wanted, self.window, drawn)

    def ended(self, ticket: Ticket, used: int | None, now: int) -> None:
        """`used` None: what is held counts as used."""
        self._advance(now)
        held = self.held.pop(ticket.id, None)
        amount, _, drawn = held or (0, 0, 0)
        if used is None:
            return
        self.excess += max(used - amount, 0)
        if not self._current(held, now) and not self.rate:
            self._open(now)
            self.level -= used
            return
        rest = amount - used
        self.level = min(self.level + rest, self.full)
        run = self.held.get(ticket.run)
        if drawn and rest > 0 and run is not None and self._current(run, now):
            back = min(drawn, rest)
            self.held[ticket.run] = (run[0] + back, run[1], run[2])
            self.level -= back

    def spent(self, ident: str, used: int, now: int) -> None:
        self._advance(now)
        held = self.held.get(ident)
        covered = min(held[0], used) if held is not None and self._current(held, now) else 0
        if held is not None and covered:
            self.held[ident] = (held[0] - covered, held[1], held[2])
        self.excess += used - covered
        if not self.rate:
            self._open(now)
        self.level -= used - covered

    def reserved(self, now: int) -> int:
        return sum(held[0] for held in self.held.values() if self._current(held, now))


class Model:
    """All budgets, by the events."""

    def __init__(self) -> None:
        self.accounts: dict[str, Account] = {}
        self.tickets: dict[str, Ticket] = {}
        self.leases: dict[str, tuple[Ticket, list[Account], bool]] = {}  # and whether something was settled

    def read(self, event: ev.Event, now: int, state: State) -> None:
        if isinstance(event, ev.Queued):
            self.tickets[event.ticket.id] = event.ticket
        elif isinstance(event, ev.Granted):
            ticket = event.ticket or self.tickets.pop(event.id)
            found = []
            for budget in state.lease_candidates[event.id].budgets if event.id in state.lease_candidates else ():
                if budget.id not in self.accounts:
                    self.accounts[budget.id] = Account(budget.rule, now)
                found.append(self.accounts[budget.id])
                if budget.id.startswith("key:"):  # E1: a budget of a key is for that key's requests
                    assert budget.id.partition(" ")[0] == f"key:{ticket.spec.access_key}"
            for account in found:
                assert account.fits(ticket, now), f"{ticket.id} entered without {account.rule}"
                account.granted(ticket, now)
            self.leases[event.id] = (ticket, found, False)
        elif isinstance(event, ev.Settled):
            ticket, found, _ = self.leases[event.id]
            self.leases[event.id] = (ticket, found, True)
            for account in found:
                account.spent(event.id, event.usage.amount(account.rule.unit), now)
        elif isinstance(event, ev.Released | ev.Reclaimed):
            ticket, found, settled = self.leases.pop(event.id)
            usage = event.usage
            unknown = usage.source == "estimate" if usage is not None else not settled
            for account in found:
                used = None if unknown else 0 if usage is None else usage.amount(account.rule.unit)
                account.ended(ticket, used, now)
            if ticket.run in self.leases and usage is not None and (usage.calls or usage.tokens or usage.cost):
                owner, of_owner, _ = self.leases[ticket.run]
                self.leases[ticket.run] = (owner, of_owner, True)

    def check(self, bench: Bench) -> None:
        now = bench.now
        for view in budget_views(bench.state, now):
            account = self.accounts.get(view.name)
            if account is None:
                assert view.free == view.amount if not view.rate else view.free == view.burst
                continue
            assert view.free == account.free(now), view
            assert view.reserved == account.reserved(now), view
            full = view.burst if view.rate else view.amount
            assert view.used == max(full - view.free - view.reserved, 0)
            if view.when_empty != "warn" and account.free(now) < 0:
                largest = max([account.wanted(ticket) for ticket, *_ in self.leases.values()], default=0)
                assert -account.free(now) <= account.excess + max(largest - int(account.full), 0) + 1_000_000


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
