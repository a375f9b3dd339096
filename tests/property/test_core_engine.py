"""The engine against the model of tests/property/model.py, by commands of all kinds in any order (hypothesis).

After every step: never over the limit, nothing lost, order kept, no seat idle without a stated cause (all by the
model's own count), replay equals state, a snapshot restores it, and a second process that takes in the same events has
nothing to add. An illegal command raises and changes nothing. Deadlines are honest.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headgate.core import commands as cmd
from headgate.core import events as ev
from headgate.core.engine import RESERVE_AFTER_MS, Engine
from headgate.core.errors import HeadgateError, InternalError
from headgate.core.invariants import check_invariants, check_settled
from headgate.core.records import Rule, Spec
from headgate.core.state import State
from tests.property.harness import START, through_json
from tests.property.model import Book

MODELS = (
    "anthropic/claude-opus-4-6",
    "anthropic@work/claude-opus-4-6",
    "anthropic/claude-sonnet-4-6",
    "umans/coder",
    "umans@work/coder",
    "openrouter/meta/coder",
)
SELECTORS = (
    "host",
    "project",
    "umans",
    "umans@work",
    "umans@default",
    "umans@*",
    "umans/coder",
    "anthropic",
    "anthropic/claude-opus-*",
    "*/claude-opus-*",
    "*@default/claude-opus-*",
    "*/*coder",
    "*",
    "*@work",
    "anthropic@w*/claude-*",
)
HOSTS = ("h1", "h2")
PROJECTS = ("a", "b", "c")
KINDS = ("agents", "requests")
POOLS = (*SELECTORS, "host:h1", "host:h2", "project:a", "umans@work/coder", "*/claude-opus-*:anthropic", "*:umans@work")

UNIVERSE = [
    (Spec(models=(model,) if model else (), kind=kind, host=host, project=project), model)
    for kind in KINDS
    for host in HOSTS
    for project in PROJECTS
    for model in ("", *MODELS)
]

kinds = st.sampled_from(KINDS)
picks = st.integers(0, 1_000)
steps_ms = st.sampled_from([1, 100, 350, 1_000, 5_000, 10_000, 30_000, 60_000, 600_000, 1_800_000, 90_000_000])
own_caps = st.lists(st.tuples(st.sampled_from(SELECTORS), st.integers(1, 6)), max_size=2, unique_by=lambda own: own[0])
seldom = st.sampled_from([False, False, False, True])
specs = st.builds(
    Spec,
    models=st.lists(st.sampled_from(MODELS), max_size=2, unique=True).map(tuple),
    kind=kinds,
    seats=st.sampled_from([1, 1, 1, 2, 3]),
    host=st.sampled_from(["h1", "h1", "h2", ""]),
    project=st.sampled_from(PROJECTS),
    any=st.booleans(),
    supervisor=seldom,
    caps=st.one_of(st.just(()), own_caps.map(tuple)),
    family_caps=st.sampled_from([(), (), (), (("opus", 1),), (("opus", 6),)]),
)
rules = st.builds(
    Rule,
    kind=kinds,
    selector=st.sampled_from(SELECTORS),
    cap=st.one_of(st.none(), st.integers(1, 5)),
    cooldown_ms=st.sampled_from([None, None, 0, 350, 5_000]),
    on_429=st.sampled_from([None, "step", "pause"]),
    max_hold_ms=st.sampled_from([None, None, None, 0, 20_000]),
)
auto_rules = st.sampled_from([Rule("agents", "host", auto=True)])
files = st.lists(st.one_of(rules, auto_rules), max_size=4, unique_by=lambda rule: (rule.kind, rule.selector))


class Gate(RuleBasedStateMachine):
    """Two processes on one log, and the model that watches them."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.engine = Engine(me="me")
        self.other = Engine(me="other")
        self.book = Book(UNIVERSE)
        self.log: list[tuple[ev.Event, int]] = []
        self.asked = 0
        self.files = 0

    # One transaction.

    def do(self, command: cmd.Command) -> list[ev.Event]:
        self.tick()
        before = self.engine.state.export(self.now)
        due = self.engine.next_deadline()
        try:
            events = self.engine.handle(command, self.now)
        except HeadgateError as error:
            assert not isinstance(error, InternalError), error
            assert self.engine.state.export(self.now) == before, "an illegal command changed something"
            assert self.engine.next_deadline() == due
            assert str(error)
            return []
        self.tell(events)
        return events

    def tick(self) -> list[ev.Event]:
        due, their_due = self.engine.next_deadline(), self.other.next_deadline()
        events = self.engine.handle(cmd.Tick(), self.now)
        if events:
            assert due is not None
            assert due <= self.now, f"due at {due}, and at {self.now} {events}"
            assert their_due is not None
            assert their_due <= self.now, f"the other process would sleep through {events}"
        self.tell(events)
        return events

    def tell(self, events: list[ev.Event]) -> None:
        for event in events:
            self.book.take(event, self.now)
        self.book.reserved = dict(self.engine.state.reserved)
        self.log += [(event, self.now) for event in events]
        self.other.replay(events, self.now)
        added = self.other.handle(cmd.Tick(), self.now)
        assert added == [], f"a second process would add {added}"

    def some(self, idents: Any, pick: int) -> str:
        known = sorted(idents, key=lambda ident: int(ident[1:]))
        assume(known)
        return known[pick % len(known)]

    # Rules.

    @initialize(rules=files, seniority_ms=st.sampled_from([None, None, 60_000]))
    def start(self, rules: list[Rule], seniority_ms: int | None) -> None:
        self.load_file(rules, seniority_ms, force=False)

    @rule(
        spec=specs,
        number=st.sampled_from([1, 1, 2, 4]),
        wait=st.sampled_from([True, True, True, False]),
        age_ms=st.sampled_from([None, None, 0, 1_000, 120_000, -5_000]),
        priority=st.sampled_from([0, 0, 0, 1, -1, 100, -100]),
        expires_ms=st.sampled_from([0, 0, 1, 10_000, 100_000]),
        key=st.sampled_from(["", "", "", "k1", "k2"]),
        bound=st.sampled_from(["", "", "", "script"]),
        mine=st.booleans(),
    )
    def acquire(
        self,
        spec: Spec,
        number: int,
        wait: bool,
        age_ms: int | None,
        priority: int,
        expires_ms: int,
        key: str,
        bound: str,
        mine: bool,
    ) -> None:
        for _ in range(number):
            self.asked += 1
            since = None if age_ms is None else self.now - age_ms
            holder = "me" if mine else f"p{self.asked % 4}"
            self.do(
                cmd.Acquire(
                    f"r{self.asked}",
                    spec,
                    holder,
                    wait=wait,
                    since=since,
                    priority=priority,
                    expires_ms=expires_ms,
                    key=key,
                    bound=bound,
                )
            )

    @rule(pick=picks, spec=specs)
    def acquire_once_more(self, pick: int, spec: Spec) -> None:
        """The same command again while its request lives changes nothing; of one that ended it is a new one."""
        ident = self.some({*self.book.tickets, *self.book.leases, *self.book.ended}, pick)
        known = ident in self.book.tickets or ident in self.book.leases
        events = self.do(cmd.Acquire(ident, spec, "p1"))
        assert not (known and events)

    @precondition(lambda self: self.book.leases)
    @rule(
        pick=picks,
        outcome=st.sampled_from(["ok", "ok", "ok", "rate_limited", "server_error"]),
        retry_after_ms=st.sampled_from([None, 0, 1_000, 100_000, -5]),
        number=st.sampled_from([1, 1, 3]),
    )
    def release(self, pick: int, outcome: str, retry_after_ms: int | None, number: int) -> None:
        for _ in range(min(number, len(self.book.leases))):
            ident = self.some(self.book.leases, pick)
            self.do(cmd.Release(ident, outcome, retry_after_ms))
            assert self.do(cmd.Release(ident)) == [], "L1"

    @precondition(lambda self: self.book.leases)
    @rule(pick=picks, child=st.sampled_from(["", "c1", "c2"]))
    def claim(self, pick: int, child: str) -> None:
        self.do(cmd.Claim(self.some(self.book.leases, pick), child))

    @rule()
    def claim_all(self) -> None:
        for ident in [ident for ident, held in self.book.leases.items() if not held.claimed]:
            self.do(cmd.Claim(ident))

    @precondition(lambda self: self.book.tickets)
    @rule(pick=picks, how=st.sampled_from([cmd.Ask, cmd.Claim]))
    def speak(self, pick: int, how: type[cmd.Ask] | type[cmd.Claim]) -> None:
        self.do(how(self.some(self.book.tickets, pick)))

    @precondition(lambda self: self.book.tickets or self.book.leases)
    @rule(pick=picks)
    def cancel(self, pick: int) -> None:
        self.do(cmd.Cancel(self.some({*self.book.tickets, *self.book.leases}, pick), "a test"))

    @precondition(lambda self: self.book.tickets)
    @rule(pick=picks, priority=st.sampled_from([None, None, 0, 5, -5]))
    def bump(self, pick: int, priority: int | None) -> None:
        self.do(cmd.Bump(self.some(self.book.tickets, pick), priority))

    @rule(process=st.sampled_from(["p0", "p1", "p2", "p3", "script", "c1", "c2", "nobody"]))
    def lose(self, process: str) -> None:
        self.do(cmd.Lost((process,)))
        for ticket in self.book.tickets.values():
            assert process not in (ticket.holder, ticket.bound)
        for held in self.book.leases.values():
            assert process != (held.child or held.ticket.bound or held.ticket.holder)

    @precondition(lambda self: self.book.leases)
    @rule(pick=picks)
    def reclaim(self, pick: int) -> None:
        self.do(cmd.Reclaim(self.some(self.book.leases, pick), "a test"))

    @rule(
        host=st.sampled_from(HOSTS),
        foreign=st.lists(st.tuples(st.sampled_from(["", *MODELS]), st.integers(1, 4)), max_size=2).map(tuple),
        room=st.one_of(st.none(), st.integers(-2, 6)),
    )
    def observe(self, host: str, foreign: tuple[tuple[str, int], ...], room: int | None) -> None:
        self.do(cmd.Observe(host, foreign, room))
        assert self.do(cmd.Observe(host, foreign, room)) == [], "what is known is not told again"

    @rule(rule=st.one_of(rules, auto_rules))
    def set_rule(self, rule: Rule) -> None:
        self.do(cmd.SetRule(rule))

    @rule(kind=kinds, selector=st.sampled_from(SELECTORS))
    def remove_cap(self, kind: str, selector: str) -> None:
        self.do(cmd.RemoveCap(kind, selector))

    @precondition(lambda self: self.book.runtime)
    @rule(pick=picks)
    def reset_cap(self, pick: int) -> None:
        keys = sorted(self.book.runtime)
        self.do(cmd.ResetCap(*keys[pick % len(keys)]))

    @rule(rules=files, seniority_ms=st.sampled_from([None, 60_000]), force=st.booleans())
    def load_file(self, rules: list[Rule], seniority_ms: int | None, force: bool) -> None:
        self.files += 1
        load = cmd.LoadFile(
            "config.toml", f"d{self.files}", 0 if force else self.files, tuple(rules), seniority_ms, force
        )
        self.do(load)
        assert self.do(load) == [], "C2: once per content"

    @rule(kind=kinds, pool=st.sampled_from(POOLS), for_ms=st.sampled_from([None, 1, 5_000, 100_000]))
    def pause(self, kind: str, pool: str, for_ms: int | None) -> None:
        self.do(cmd.Pause(kind, pool, for_ms))

    @precondition(lambda self: self.book.paused)
    @rule(pick=picks)
    def resume(self, pick: int) -> None:
        keys = sorted(self.book.paused)
        self.do(cmd.Resume(*keys[pick % len(keys)]))

    @precondition(lambda self: self.book.leases)
    @rule(pick=picks, retry_after_ms=st.sampled_from([None, 1_000, 100_000]))
    def report_lease(self, pick: int, retry_after_ms: int | None) -> None:
        self.do(cmd.Report(self.some(self.book.leases, pick), retry_after_ms=retry_after_ms))

    @rule(kind=kinds, meant=st.sampled_from([*POOLS, *MODELS]), retry_after_ms=st.sampled_from([None, 1_000]))
    def report_target(self, kind: str, meant: str, retry_after_ms: int | None) -> None:
        self.do(cmd.Report(kind=kind, target=meant, retry_after_ms=retry_after_ms))

    @rule(ms=steps_ms)
    def pass_time(self, ms: int) -> None:
        """A gate that slept: whatever was due meanwhile is done now."""
        self.now += ms
        self.tick()

    @rule(number=st.integers(1, 6), early=st.floats(0, 1, exclude_max=True))
    def wake_at_deadlines(self, number: int, early: float) -> None:
        """A gate that wakes when something is due, and sometimes before."""
        began, idle = self.now, 0
        for _ in range(number):
            due = self.engine.next_deadline()
            if due is None:
                return
            early_at = self.now + int((due - self.now) * early)
            if early_at < due:
                self.now = early_at
                assert self.tick() == [], "something happened before it was due"
            self.now = due
            idle = 0 if self.tick() else idle + 1
            later = self.engine.next_deadline()
            assert later is None or later > due, "a busy loop"
        things = len(self.book.tickets) + len(self.book.leases) + sum(map(len, self.book.cooling.values()))
        most = 10 + 2 * things + 3 * len(self.engine.state.pools)
        assert idle <= most * (1 + (self.now - began) // RESERVE_AFTER_MS), "woken again and again for nothing"

    @rule(
        command=st.one_of(
            st.builds(
                cmd.Acquire, st.just("x"), st.builds(Spec, models=st.sampled_from([("nope",), ("a/*",)])), st.just("p")
            ),
            st.builds(cmd.Acquire, st.just("x"), st.builds(Spec, kind=st.just("cats")), st.just("p")),
            st.builds(cmd.Acquire, st.just("x"), st.builds(Spec, seats=st.sampled_from([0, -1, 99_999])), st.just("p")),
            st.builds(
                cmd.Acquire,
                st.just("x"),
                specs,
                st.just("p"),
                priority=st.sampled_from([101, -101]),
            ),
            st.builds(cmd.Acquire, st.just("x"), specs, st.just("p"), expires_ms=st.just(-1)),
            st.builds(
                cmd.Acquire,
                st.just("x"),
                st.builds(
                    Spec, caps=st.sampled_from([(("umans", 0),), (("new", 2), ("a b", 1)), (("new", 1), ("x", -1))])
                ),
                st.just("p"),
            ),
            st.builds(cmd.Acquire, st.just("x"), st.builds(Spec, family_caps=st.just((("opus", 0),))), st.just("p")),
            st.builds(cmd.Claim, st.just("x")),
            st.builds(cmd.Reclaim, st.just("x"), st.just("y")),
            st.builds(cmd.Cancel, st.just("x")),
            st.builds(cmd.Bump, st.just("x")),
            st.builds(cmd.Report, st.just("x")),
            st.builds(
                cmd.Report,
                kind=st.sampled_from(["cats", *KINDS]),
                target=st.sampled_from(["", "host", "host:h1", "no/*"]),
            ),
            st.builds(cmd.Pause, kinds, st.sampled_from(["", "umans@", "umans@a b", "nobody", "*:"])),
            st.builds(cmd.Pause, st.just("agents"), st.just("host:h1"), st.sampled_from([0, -1])),
            st.builds(cmd.Resume, kinds, st.just("nobody")),
            st.builds(cmd.ResetCap, kinds, st.just("nobody")),
            st.builds(cmd.RemoveCap, st.sampled_from(["cats"]), st.just("host")),
            st.builds(cmd.RemoveCap, kinds, st.sampled_from(["", "a b", "a@/b"])),
            st.builds(cmd.SetRule, st.builds(Rule, kinds, st.sampled_from(["", "a b"]), cap=st.just(1))),
            st.builds(cmd.SetRule, st.builds(Rule, kinds, st.just("host"), cap=st.sampled_from([0, -1, 1_000_001]))),
            st.builds(cmd.SetRule, st.builds(Rule, kinds, st.just("umans"), auto=st.just(True))),
            st.builds(cmd.SetRule, st.builds(Rule, kinds, st.just("umans"), on_429=st.just("cry"))),
            st.builds(cmd.SetRule, st.builds(Rule, kinds, st.just("umans"), cooldown_ms=st.just(-1))),
            st.builds(cmd.SetRule, st.builds(Rule, kinds, st.just("umans"), max_hold_ms=st.just(-1))),
            st.builds(cmd.Observe, st.just("h1"), st.sampled_from([(("nope", 1),), (("a/b", 0),), (("a/b", -2),)])),
        )
    )
    def try_what_cannot_be(self, command: cmd.Command) -> None:
        self.tick()
        before, due = self.engine.state.export(self.now), self.engine.next_deadline()
        with pytest.raises(HeadgateError) as caught:
            self.engine.handle(command, self.now)
        assert not isinstance(caught.value, InternalError)
        assert self.engine.state.export(self.now) == before
        assert self.engine.next_deadline() == due

    @rule(models=st.lists(st.sampled_from(MODELS), max_size=2).map(tuple))
    def bypass(self, models: tuple[str, ...]) -> None:
        before = self.engine.state.export(self.now)
        events = self.do(cmd.Bypass("p1", models))
        assert events == [ev.Bypassed("p1", models)]
        after = self.engine.state.export(self.now)
        assert (before.tickets, before.leases, before.pools) == (after.tickets, after.leases, after.pools)

    @rule(spec=specs)
    def ask_whether_it_fits(self, spec: Spec) -> None:
        """A question changes nothing, and its answer is what would happen."""
        self.tick()
        before = self.engine.state.export(self.now)
        fits = self.engine.fits(spec, self.now)
        assert self.engine.state.export(self.now) == before
        free = any(not self.book.blocked(spec, model) for model in self.book.candidates(spec))
        in_line = any(ticket.spec == spec and not ticket.away for ticket in self.book.tickets.values())
        assert fits == (free and not in_line)

    @rule()
    def let_the_other_decide(self) -> None:
        self.engine, self.other = self.other, self.engine

    @rule()
    def start_again(self) -> None:
        """Another process takes over, from a snapshot that was written down."""
        self.tick()
        self.other = Engine(State.restore(through_json(self.engine.state.export())), me="other")
        assert self.other.handle(cmd.Tick(), self.now) == []

    # What must be true.

    @invariant()
    def all_is_well(self) -> None:
        self.tick()
        self.book.check(self.now)
        for engine in (self.engine, self.other):
            check_invariants(engine.state)
            check_settled(engine.state, self.now)
            due = engine.next_deadline()
            assert due is None or due > self.now, "overdue"
        assert self.engine.next_deadline() == self.other.next_deadline()
        self.nothing_is_lost()
        snapshot = self.engine.state.export(self.now)
        assert self.other.state.export(self.now) == snapshot
        assert State.restore(through_json(snapshot)).export(self.now) == snapshot

    def nothing_is_lost(self) -> None:
        state = self.engine.state
        assert state.tickets == self.book.tickets
        assert {ident: (lease.ticket, lease.model, lease.claimed) for ident, lease in state.leases.items()} == {
            ident: (held.ticket, held.model, held.claimed) for ident, held in self.book.leases.items()
        }

    def teardown(self) -> None:
        state = State()
        for event, at in self.log:
            state.apply(event, at)
        assert state.export(self.now) == self.engine.state.export(self.now)
        check_invariants(state)


Gate.TestCase.settings = settings(max_examples=100, stateful_step_count=60)
TestEngineCore = Gate.TestCase
