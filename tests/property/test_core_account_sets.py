"""Account sets at random (rules Z1 to Z5): against a simple model, in any order of commands, and without a request
that waits for ever or is lost."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.accounts.ramp import QUIET_MS, STEP_MS
from fleetgate.core.entities import AccountSet, BudgetRule, PlanRule, Rule, Spec, Ticket
from fleetgate.core.plans.reading import HOUR_MS, PlanReading
from fleetgate.core.state.state import State
from fleetgate.core.usage import RESPONSE, Usage
from tests.property.harness import MINUTE, SONNET, Bench, through_json

CAPS = {"work": 2, "spare": 2, "third": 2, "api": 3}
NAME = SONNET.partition("/")[2]
TALKS = ("", "", "a", "b", "c", "d", "e")


class Model:
    """What the rules say about the calls of a set, counted step by step. Slots cool down at once."""

    def __init__(self) -> None:
        self.rule = AccountSet("anthropic", ("work",))
        self.caps = dict(CAPS)
        self.used = dict.fromkeys(CAPS, 0)
        self.tickets: dict[str, Ticket] = {}
        self.leases: dict[str, tuple[str, Ticket]] = {}
        self.homes: dict[str, tuple[str, int]] = {}
        self.moves: dict[str, list[int]] = {account: [] for account in CAPS}
        self.backoffs: set[str] = set()
        self.paused: dict[str, int] = {}
        self.windows: dict[str, tuple[int, int]] = {}  # used, reset
        self.kept: dict[str, tuple[str, ...]] = {}  # by ticket: the pools whose next slots are kept for it

    def is_closed(self, account: str, slots: int, now: int) -> bool:
        """Whether an account has no room for a call, for a reason that the model knows."""
        used, resets_at = self.windows.get(account, (0, 0))
        return (
            self.used[account] + slots > self.caps[account]
            or self.is_backed_off(account)
            or now < self.paused.get(account, 0)
            or (used >= 10_000 and now < resets_at)
            or any(f"requests anthropic@{account}" in pools for pools in self.kept.values())
        )

    def is_backed_off(self, account: str) -> bool:
        return any(key.partition("/")[0] == f"anthropic@{account}" for key in self.backoffs)

    def granted(self, event: ev.Granted, now: int) -> None:
        ticket = event.ticket if event.ticket is not None else self.tickets.pop(event.id)
        account = event.model.partition("/")[0].removeprefix("anthropic@")
        self.leases[event.id] = (account, ticket)
        if ticket.spec.home not in ("", f"anthropic@{account}"):
            self._moved(account, now)
        if ticket.spec.kind != "requests":
            return
        slots = ticket.spec.slots
        if ticket.spec.models == (SONNET,):
            self._check_choice(event, ticket, account, now)
        self.kept.pop(event.id, None)
        assert now >= self.paused.get(account, 0), f"{account} is paused"
        assert not self.is_backed_off(account) or event.probes, f"{account} is backed off"
        self.used[account] += slots
        assert self.used[account] <= self.caps[account], f"{account} has more than it may"

    def _check_choice(self, event: ev.Granted, ticket: Ticket, account: str, now: int) -> None:
        rule, slots, talk = self.rule, ticket.spec.slots, ticket.conversation
        assert account in (*rule.use, *rule.then)
        home = ticket.spec.home.removeprefix("anthropic@")
        if home and account != home and home in (*rule.use, *rule.then):
            over = now - ticket.queued_at >= rule.patience_ms
            returns = home in rule.then and account in rule.use
            assert over or returns or self.is_closed(home, slots, now), f"{talk} left {home} for {account}"
        if account in rule.then and not home and not event.probes:
            assert all(self.is_closed(each, slots, now) for each in rule.use), f"spilled, and {rule.use} has room"
            assert event.why.startswith("spilled to ")
        if talk and rule.sticky == "conversation":
            self.homes[talk] = (account, now)

    def _moved(self, account: str, now: int) -> None:
        """However many want to move at once, in one step of time no more do than in all steps before it, and one."""
        moves = self.moves[account]
        if moves and now - moves[-1] >= QUIET_MS:
            moves.clear()
        moves.append(now)
        assert len(moves) <= 1 << ((now - moves[0]) // STEP_MS), "too many moved at once"

    def ended(self, ident: str) -> None:
        account, ticket = self.leases.pop(ident)
        if ticket.spec.kind == "requests":
            self.used[account] -= ticket.spec.slots

    def read(self, event: ev.Event, now: int) -> None:
        if isinstance(event, ev.Granted):
            self.granted(event, now)
        elif isinstance(event, ev.Queued):
            self.tickets[event.ticket.id] = event.ticket
        elif isinstance(event, ev.Reserved):
            self.kept[event.id] = event.pools
        elif isinstance(event, ev.Released | ev.Reclaimed):
            self.ended(event.id)
        elif isinstance(event, ev.Cancelled | ev.Expired | ev.Dropped):
            del self.tickets[event.id]
            self.kept.pop(event.id, None)
        elif isinstance(event, ev.BackedOff):
            self.backoffs.add(event.key)
        elif isinstance(event, ev.BackoffEnded):
            self.backoffs.discard(event.key)
        elif isinstance(event, ev.Paused):
            self.paused[event.pool.removeprefix("anthropic@")] = event.until
        elif isinstance(event, ev.Resumed):
            self.paused.pop(event.pool.removeprefix("anthropic@"), None)
        elif isinstance(event, ev.PlanObserved):
            self.windows[event.account.removeprefix("anthropic@")] = (event.used, event.resets_at)
        elif isinstance(event, ev.FileLoaded) and event.account_sets:
            (self.rule,) = event.account_sets


class Play:
    """A random play on a bench, with the model beside it. The bench replays each step into a second process."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.bench = Bench(me="me")
        self.model = Model()
        self.number = self.files = 0
        self.asked: set[str] = set()
        self.over: set[str] = set()
        self.load()

    def load(self) -> None:
        """Another file comes into force, with other sets."""
        self.files += 1
        dice = self.dice
        accounts = dice.sample(sorted(CAPS), dice.randint(1, 4))
        split = dice.randint(1, len(accounts))
        choose, sticky = dice.choice(("most-left", "first")), dice.choice(("conversation", "conversation", "none"))
        patience_ms = dice.choice((0, 1_000, 10_000))
        rule = AccountSet("anthropic", tuple(accounts[:split]), tuple(accounts[split:]), choose, sticky, patience_ms)
        caps = [
            Rule("requests", f"anthropic@{name}", cap=slots, cooldown_ms=0, on_429="pause")
            for name, slots in CAPS.items()
        ]
        caps.append(Rule("agents", "anthropic", cap=1))
        budgets = (BudgetRule("anthropic", "calls", 90, "1m", 60_000),)
        plans = (PlanRule("anthropic", reserve=0, pace=False),)
        name, at = f"n{self.files}", 10 + self.files
        self.do(cmd.LoadFile("f", name, at, tuple(caps), budgets=budgets, plans=plans, account_sets=(rule,)))

    def do(self, command: cmd.Command) -> None:
        for event in self.bench.do(command):
            if isinstance(event, ev.Deferred):
                self.over.add(event.id)
            if isinstance(event, ev.Released | ev.Reclaimed | ev.Cancelled | ev.Expired | ev.Dropped):
                self.over.add(event.id)
            self.model.read(event, self.bench.now)
        self._nothing_is_lost()

    def _nothing_is_lost(self) -> None:
        state = self.bench.state
        assert state.tickets.keys() | state.leases.keys() == self.asked - self.over
        assert not state.tickets.keys() & state.leases.keys()
        assert {ident: lease.model for ident, lease in state.leases.items()} == {
            ident: f"anthropic@{account}/{NAME}" for ident, (account, _) in self.model.leases.items()
        }

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
        account = f"anthropic@{dice.choice(sorted(CAPS))}"
        if choice < 0.45:
            self._ask()
        elif choice < 0.65 and leases:
            self._release(dice.choice(leases))
        elif choice < 0.7:
            self.do(cmd.BackOff(account, dice.choice(("quota", "rate_limited")), dice.choice((None, 2_000, 90_000))))
        elif choice < 0.73 and state.backoffs:
            self.do(cmd.EndBackoff(dice.choice(sorted(state.backoffs))))
        elif choice < 0.76:
            self.do(cmd.Pause("requests", account, dice.choice((1_000, MINUTE))))
        elif choice < 0.8:
            used = dice.choice((1_000, 9_000, 10_000))
            self.do(cmd.ObservePlan(account, (PlanReading("5h", used, dice.choice((5_000, HOUR_MS)), 5 * HOUR_MS),)))
        elif choice < 0.82:
            self.load()
        elif choice < 0.84 and state.tickets:
            self.do(cmd.Cancel(dice.choice(sorted(state.tickets))))
        else:
            self.wait(dice.choice((1, 100, 250, 1_000, 10_000, 31_000, 600_000)))

    def _release(self, ident: str) -> None:
        dice = self.dice
        outcome = dice.choice(("ok", "ok", "ok", "ok", "quota", "rate_limited"))
        scope = "account" if outcome == "quota" else "model"
        wait_ms = dice.choice((None, 500, 30_000)) if outcome != "ok" else None
        self.do(cmd.Release(ident, outcome, wait_ms, scope=scope, usage=Usage(1, source=RESPONSE)))

    def _ask(self) -> None:
        dice, state = self.dice, self.bench.state
        self.number += 1
        ident, talk, project = f"r{self.number}", dice.choice(TALKS), dice.choice("ab")
        model = SONNET if dice.random() < 0.85 else f"anthropic@{dice.choice(sorted(CAPS))}/{NAME}"
        kind = dice.choice(("requests", "requests", "requests", "agents"))
        runs = [each.id for each in state.leases.values() if each.ticket.spec.kind == "agents"]
        run = dice.choice(runs) if runs and kind == "requests" and dice.random() < 0.3 else ""
        slots = dice.choice((1, 1, 1, 2)) if kind == "requests" else 1
        spec = Spec((model,), kind, slots, "h1", project)
        session = dice.choice(("", "s")) if kind == "agents" else ""
        self.asked.add(ident)
        asking = cmd.Acquire(ident, spec, "me", dice.random() < 0.9, estimate=Usage(1), expires_ms=10**9)
        asking.conversation, asking.run, asking.session = talk, run, session
        self.do(asking)


@given(st.integers(0, 2**40))
@settings(deadline=None, max_examples=30)
def test_z1_to_z5_whatever_happens_the_rules_are_kept_and_replay_gives_the_same_state(seed: int) -> None:
    play = Play(seed)
    for _ in range(60):
        play.step()
    exported = play.bench.state.export(play.bench.now)
    assert State.restore(through_json(exported)).export(play.bench.now) == exported
    state = State()
    for event, at in play.bench.log:
        state.apply(event, at)
    assert state.export(play.bench.now) == exported


@given(st.integers(0, 2**40))
@settings(deadline=None, max_examples=10)
def test_z1_to_z5_no_request_waits_for_ever(seed: int) -> None:
    play = Play(seed)
    for _ in range(50):
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
