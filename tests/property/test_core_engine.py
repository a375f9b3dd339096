"""The engine against the model of tests/property/model.py, by commands of all kinds in any order (hypothesis).

After every step: never over the limit, nothing lost, order kept, no slot idle without a stated cause (all by the
model's own count), replay equals state, a snapshot restores it, and a second process that takes in the same events has
nothing to add. An illegal command raises and changes nothing. Deadlines are honest.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.engine import Engine
from fleetgate.core.entities import Rule, Spec, Ticket
from fleetgate.core.errors import FleetgateError, InternalError
from fleetgate.core.invariants import check_invariants, check_settled
from fleetgate.core.queue.reservations import RESERVE_AFTER_MS
from fleetgate.core.state.state import State
from tests.property.harness import START, through_json
from tests.property.model import Book

pytestmark = pytest.mark.timeout(3_600)  # the profile says how long; see conftest.py

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
    "key",
    "key:ci",
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
ACCESS_KEYS = ("", "", "ci", "bob")
KINDS = ("agents", "requests")
POOLS = (
    *SELECTORS,
    "host:h1",
    "host:h2",
    "project:a",
    "key:bob",
    "umans@work/coder",
    "*/claude-opus-*:anthropic",
    "*:umans@work",
)

UNIVERSE = [
    (Spec(models=(model,) if model else (), kind=kind, host=host, project=project, access_key=access_key), model)
    for kind in KINDS
    for access_key in ("ci", "bob")
    for host in HOSTS
    for project in PROJECTS
    for model in ("", *MODELS)
]

kinds = st.sampled_from(KINDS)
picks = st.integers(0, 1_000)
steps_ms = st.one_of(
    st.sampled_from([1, 100, 350, 1_000, 5_000, 10_000, 30_000, 60_000, 150_000]),
    st.sampled_from([1, 350, 5_000, 10_000, 600_000, 1_800_000, 90_000_000]),
)
own_caps = st.lists(st.tuples(st.sampled_from(SELECTORS), st.integers(1, 6)), max_size=2, unique_by=lambda own: own[0])
seldom = st.sampled_from([False, False, False, True])
specs = st.builds(
    Spec,
    models=st.lists(st.sampled_from(MODELS), max_size=2, unique=True).map(tuple),
    kind=kinds,
    slots=st.sampled_from([1, 1, 1, 2, 3]),
    host=st.sampled_from(["h1", "h1", "h2", ""]),
    project=st.sampled_from(PROJECTS),
    any_candidate=st.booleans(),
    supervisor=seldom,
    caps=st.one_of(st.just(()), own_caps.map(tuple)),
    family_caps=st.sampled_from([(), (), (), (("opus", 1),), (("opus", 6),)]),
    access_key=st.sampled_from(ACCESS_KEYS),
)
rules = st.builds(
    Rule,
    kind=kinds,
    selector=st.sampled_from(SELECTORS),
    cap=st.one_of(st.none(), st.integers(1, 5)),
    cooldown_ms=st.sampled_from([None, None, 0, 350, 5_000]),
    on_429=st.sampled_from(["step", "pause", "adapt"]),  # more of adapt: tests/property/test_core_adapt.py
    max_hold_ms=st.sampled_from([None, None, None, 0, 20_000]),
)
gates = st.builds(
    Rule,
    kind=kinds,
    selector=st.sampled_from(["umans", "umans@work", "umans/coder"]),
    cap=st.integers(1, 4),
    cooldown_ms=st.sampled_from([None, 0, 350]),
    on_429=st.just("step"),
    usage_gate=st.sampled_from([True, True, True, False]),
)
auto_rules = st.sampled_from([Rule("agents", "host", auto=True)])
files = st.lists(
    st.one_of(rules, rules, gates, auto_rules), max_size=4, unique_by=lambda rule: (rule.kind, rule.selector)
)


plain_specs = st.builds(
    Spec,
    models=st.sampled_from(MODELS).map(lambda model: (model,)),
    kind=st.sampled_from(["agents", "agents", "requests"]),
    host=st.just("h1"),
    project=st.sampled_from(PROJECTS),
    slots=st.sampled_from([1, 1, 1, 2]),
    access_key=st.sampled_from(ACCESS_KEYS),
)
one_rule = st.one_of(rules, rules, gates, auto_rules)
waits = st.sampled_from([None, 1_000, 100_000])
sayings = st.fixed_dictionaries(
    {},
    optional={
        "wait": st.sampled_from([True, True, False]),
        "age_ms": st.sampled_from([0, 1_000, 120_000, -5_000]),
        "priority": st.sampled_from([0, 1, -1, 100, -100]),
        "expires_ms": st.sampled_from([1, 10_000, 100_000]),
        "key": st.sampled_from(["k1", "k2"]),
        "bound": st.just("script"),
        "asks": st.sampled_from([(), ("umans",), ("umans", "umans@work")]),
        "renew_ms": st.sampled_from([0, 1, 60_000, 60_000, 200_000]),
    },
)


def _asking(**said: Any) -> st.SearchStrategy[cmd.Acquire]:
    return st.builds(cmd.Acquire, st.just("x"), st.builds(Spec, **said), st.just("p"))


illegal = st.one_of(
    _asking(models=st.sampled_from([("nope",), ("a/*",), ("a@/b",)])),
    _asking(kind=st.just("cats")),
    _asking(slots=st.sampled_from([0, -1, 99_999])),
    _asking(caps=st.sampled_from([(("umans", 0),), (("new", 2), ("a b", 1)), (("new", 1), ("x", -1))])),
    _asking(family_caps=st.just((("opus", 0),))),
    st.builds(cmd.Acquire, st.just("x"), specs, st.just("p"), priority=st.sampled_from([101, -101])),
    st.builds(cmd.Acquire, st.just("x"), specs, st.just("p"), expires_ms=st.just(-1)),
    st.builds(cmd.Acquire, st.just("x"), specs, st.just("p"), renew_ms=st.sampled_from([-1, 10**12])),
    st.sampled_from([cmd.Renew("x"), cmd.Renew("x", "p0", "w")]),
    st.sampled_from([cmd.Claim("x"), cmd.Reclaim("x", "y"), cmd.Cancel("x"), cmd.Bump("x"), cmd.Report("x")]),
    st.builds(cmd.Report, kind=kinds, target=st.sampled_from(["", "host", "host:h1", "no/*"])),
    st.builds(cmd.Report, kind=st.just("cats"), target=st.sampled_from(MODELS)),
    st.builds(cmd.Pause, kinds, st.sampled_from(["", "umans@", "umans@a b", "nobody", "*:"])),
    st.builds(cmd.Pause, st.just("agents"), st.just("host:h1"), st.sampled_from([0, -1])),
    st.builds(cmd.Resume, kinds, st.just("nobody")),
    st.builds(cmd.ResetCap, kinds, st.just("nobody")),
    st.builds(cmd.RemoveCap, st.just("cats"), st.just("host")),
    st.builds(cmd.RemoveCap, kinds, st.sampled_from(["", "a b", "a@/b"])),
    st.builds(cmd.SetRule, st.builds(Rule, kinds, st.sampled_from(["", "a b"]), cap=st.just(1))),
    st.builds(cmd.SetRule, st.builds(Rule, kinds, st.just("host"), cap=st.sampled_from([0, -1, 1_000_001]))),
    st.builds(cmd.SetRule, st.builds(Rule, kinds, st.just("umans"), auto=st.just(True))),
    st.builds(cmd.SetRule, st.builds(Rule, kinds, st.just("umans"), on_429=st.just("cry"))),
    st.builds(cmd.SetRule, st.builds(Rule, kinds, st.just("umans"), cooldown_ms=st.just(-1))),
    st.builds(cmd.SetRule, st.builds(Rule, kinds, st.just("umans"), max_hold_ms=st.just(-1))),
    st.builds(cmd.Observe, st.just("h1"), st.sampled_from([(("nope", 1),), (("a/b", 0),), (("a/b", -2),)])),
)


def _offerable(ticket: Ticket, now: int) -> bool:
    return ticket.job and ticket.away and not ticket.held and ticket.not_before <= now


class Gate(RuleBasedStateMachine):
    """Two processes on one log, and the model that watches them."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.engine = Engine(me="me")
        self.other = Engine(me="other")
        self.book = Book(UNIVERSE)
        self.log: list[tuple[ev.Event, int]] = []
        self.palette: list[Spec] = []
        self.asked = 0
        self.files = 0

    # One transaction.

    def do(self, command: cmd.Command) -> list[ev.Event]:
        self.tick()
        before = self.engine.state.export(self.now)
        due = self.engine.next_deadline()
        try:
            events = self.decide(command)
        except InternalError:
            raise
        except FleetgateError:
            assert self.engine.state.export(self.now) == before, "an illegal command changed something"
            assert self.engine.next_deadline() == due
            return []
        self.tell(events)
        return events

    def tick(self) -> list[ev.Event]:
        due, their_due = self.engine.next_deadline(), self.other.next_deadline()
        events = self.decide(cmd.Tick())
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
        self.pass_on(events)
        added = self.other.handle(cmd.Tick(), self.now)
        assert added == [], f"a second process would add {added}"

    # What another way to keep the log does in its own (tests/property/test_postgres_engine.py).

    def decide(self, command: cmd.Command) -> list[ev.Event]:
        """Have a command decided by the process whose turn it is."""
        return self.engine.handle(command, self.now)

    def pass_on(self, events: list[ev.Event]) -> None:
        """The other process takes in what was decided."""
        self.other.replay(events, self.now)

    def start_the_other_anew(self) -> None:
        """Another process takes its place, which starts from a snapshot that was written down."""
        self.other = Engine(State.restore(through_json(self.engine.state.export())), me="other")

    def take_turns(self) -> None:
        self.engine, self.other = self.other, self.engine

    def some(self, idents: Iterable[str], pick: int) -> str:
        known = sorted(idents, key=lambda ident: int(ident[1:]))
        assume(known)
        return known[pick % len(known)]

    # Rules. Asking and giving back come most often: what is hard to get right happens when there is a line.

    @initialize(
        rules=files,
        seniority_ms=st.sampled_from([None, None, 60_000]),
        palette=st.lists(st.one_of(plain_specs, specs), min_size=2, max_size=5),
    )
    def start(self, rules: list[Rule], seniority_ms: int | None, palette: list[Spec]) -> None:
        self.palette = palette
        self.load_file(rules, seniority_ms, force=False)

    @rule(pick=picks, number=st.integers(1, 4), said=sayings, mine=st.booleans())
    def crowd(self, pick: int, number: int, said: dict[str, Any], mine: bool) -> None:
        """Several that want the same."""
        for _ in range(number):
            self.acquire(self.palette[pick % len(self.palette)], said, mine)

    @rule(number=st.integers(1, 4), mine=st.booleans())
    def everybody(self, number: int, mine: bool) -> None:
        """One of each."""
        for _ in range(number):
            for spec in self.palette:
                self.acquire(spec, {"asks": ("umans",)}, mine)

    @rule(spec=specs, said=sayings, mine=st.booleans())
    def somebody_else(self, spec: Spec, said: dict[str, Any], mine: bool) -> None:
        self.acquire(spec, said, mine)

    def acquire(self, spec: Spec, said: dict[str, Any], mine: bool) -> None:
        self.asked += 1
        age_ms = said.get("age_ms")
        rest = {name: value for name, value in said.items() if name != "age_ms"}
        since = None if age_ms is None else self.now - age_ms
        holder = "me" if mine else f"p{self.asked % 4}"
        self.do(cmd.Acquire(f"r{self.asked}", spec, holder, since=since, **rest))

    @rule(
        pick=picks,
        number=st.integers(1, 4),
        any_host=st.booleans(),
        confirm=seldom,
        pause_ms=st.sampled_from([0, 0, 0, 5_000]),
    )
    def submit(self, pick: int, number: int, any_host: bool, confirm: bool, pause_ms: int) -> None:
        """Jobs are left in the line."""
        spec = self.palette[pick % len(self.palette)]
        spec = replace(spec, kind="agents", host="" if any_host else "h1")
        not_before = self.now + pause_ms if pause_ms else 0
        for _ in range(number):
            self.asked += 1
            self.do(
                cmd.Acquire(
                    f"r{self.asked}", spec, "", job=True, any_host=any_host, confirm=confirm, not_before=not_before
                )
            )

    @rule(by=st.sampled_from(["p0", "p1", "me"]), host=st.sampled_from(HOSTS), number=st.integers(1, 3))
    def offer(self, by: str, host: str, number: int) -> None:
        """A worker offers to run the first jobs that there are."""
        for ticket in self.engine.state.waiting_jobs.heads(self.now)[:number]:
            expected = min(
                (
                    each
                    for each in self.book.tickets.values()
                    if each.spec == ticket.spec and _offerable(each, self.now)
                ),
                key=lambda each: (each.order, each.arrival),
            )
            assert ticket.id == expected.id, "the first of its kind"
            self.do(cmd.Offer(ticket.id, by, host))

    @precondition(lambda self: any(ticket.job for ticket in self.book.tickets.values()))
    @rule(pick=picks, command=st.sampled_from([cmd.Withdraw("?", "p0"), cmd.Withdraw("?", "me"), cmd.Approve("?")]))
    def speak_of_a_job(self, pick: int, command: cmd.Withdraw | cmd.Approve) -> None:
        jobs = [ident for ident, ticket in self.book.tickets.items() if ticket.job]
        jobs += [ident for ident, held in self.book.leases.items() if held.ticket.job]
        self.do(replace(command, id=self.some(jobs, pick)))

    @rule(
        picks=st.lists(picks, min_size=1, max_size=4),
        outcome=st.sampled_from(["ok", "ok", "ok", "rate_limited", "server_error", "overloaded", "auth", "quota"]),
        retry_after_ms=st.sampled_from([None, 0, 1_000, 100_000, -5]),
    )
    def release(self, picks: list[int], outcome: str, retry_after_ms: int | None) -> None:
        for pick in picks:
            if self.book.leases:
                ident = self.some(self.book.leases, pick)
                self.do(cmd.Release(ident, outcome, retry_after_ms))
                assert self.do(cmd.Release(ident)) == [], "L1"

    @rule(
        picks=st.lists(picks, min_size=3, max_size=15), ms=st.sampled_from([1_000, 5_000, 10_000]), late=st.booleans()
    )
    def churn(self, picks: list[int], ms: int, late: bool) -> None:
        """Work goes on: somebody comes, somebody ends, time passes, grants are claimed."""
        for pick in picks:
            self.acquire(self.palette[pick % len(self.palette)], {}, mine=False)
            if self.book.leases:
                self.do(cmd.Release(self.some(self.book.leases, pick)))
            if not late:
                self.claim_all()
            self.now += ms
            self.tick()
            self.all_is_well()

    @rule()
    def claim_all(self) -> None:
        for ident in [ident for ident, held in self.book.leases.items() if not held.claimed]:
            self.do(cmd.Claim(ident))

    @precondition(lambda self: self.book.leases)
    @rule(pick=picks, child=st.sampled_from(["", "c1", "c2"]), by_force=seldom)
    def claim_or_reclaim(self, pick: int, child: str, by_force: bool) -> None:
        ident = self.some(self.book.leases, pick)
        self.do(cmd.Reclaim(ident, "a test") if by_force else cmd.Claim(ident, child))

    @precondition(lambda self: self.book.tickets)
    @rule(
        pick=picks,
        command=st.sampled_from(
            [
                cmd.Ask("?"),
                cmd.Claim("?"),
                cmd.Cancel("?", "a test"),
                cmd.Bump("?"),
                cmd.Bump("?"),
                cmd.Bump("?", 0),
                cmd.Bump("?", 5),
                cmd.Bump("?", -5),
            ]
        ),
    )
    def speak(self, pick: int, command: cmd.Ask | cmd.Claim | cmd.Cancel | cmd.Bump) -> None:
        """The holder of a ticket says something, or somebody else says something of it."""
        self.do(replace(command, id=self.some(self.book.tickets, pick)))

    @precondition(lambda self: any(not held.claimed for held in self.book.leases.values()))
    @rule(pick=picks)
    def cancel_a_grant(self, pick: int) -> None:
        offered = [ident for ident, held in self.book.leases.items() if not held.claimed]
        self.do(cmd.Cancel(self.some(offered, pick)))

    @rule(process=st.sampled_from(["p0", "p1", "p2", "p3", "script", "c1", "c2", "nobody"]))
    def lose(self, process: str) -> None:
        self.tick()
        clients = self.clients()
        self.do(cmd.Lost((process,)))
        assert self.clients() == clients, "H2: who speaks for a client may be lost, and the client not"
        for ticket in self.book.tickets.values():
            assert ticket.renew_ms or process not in (ticket.holder, ticket.bound)
        for held in self.book.leases.values():
            if not held.ticket.renew_ms:
                assert process != (held.child or held.ticket.bound or held.ticket.holder)
                assert held.claimed or process != held.ticket.holder

    def clients(self) -> set[str]:
        tickets = [*self.book.tickets.values(), *(held.ticket for held in self.book.leases.values())]
        return {ticket.id for ticket in tickets if ticket.renew_ms}

    @precondition(lambda self: self.clients())
    @rule(picks=st.lists(picks, min_size=1, max_size=5), by=st.sampled_from(["", "p0", "p1", "me"]), late=st.booleans())
    def renew(self, picks: list[int], by: str, late: bool) -> None:
        """Clients are heard of, by the process that speaks for them or by another, some in the last moment."""
        for pick in picks:
            if late and (ends := [at for at in self.renewals() if at > self.now]):
                self.now = max(min(ends) - 1, self.now)
                self.tick()
            if not self.clients():
                return
            ident = self.some(self.clients(), pick)
            self.do(cmd.Renew(ident, by, f"/{by}" if by else ""))
            held = self.book.leases.get(ident)
            ticket = held.ticket if held is not None else self.book.tickets[ident]
            assert 2 * (ticket.renew_by - self.now) >= max(300_000, 3 * ticket.renew_ms)
            assert not by or (ticket.holder, ticket.wake) == (by, f"/{by}")

    @rule(
        number=st.integers(2, 5),
        renew_ms=st.sampled_from([1, 60_000, 200_000]),
        by=st.sampled_from(["p0", "me"]),
        silent=st.booleans(),
    )
    def clients_change_hands(self, number: int, renew_ms: int, by: str, silent: bool) -> None:
        """Clients in the queue and with a slot: all who spoke for them are lost, and another takes over in time."""
        self.do(cmd.SetRule(Rule("requests", "umans", 2, cooldown_ms=0, on_429="step")))
        for _ in range(number):
            self.acquire(Spec(("umans/coder",), "requests", host="h1"), {"renew_ms": renew_ms}, mine=False)
        for process in ("p0", "p1", "p2", "p3"):
            self.lose(process)
        self.renew(list(range(number)), by, late=True)
        self.all_is_well()
        if silent:
            self.now += max(300_000, 3 * renew_ms)
            self.all_is_well()

    def renewals(self) -> list[int]:
        tickets = [*self.book.tickets.values(), *(held.ticket for held in self.book.leases.values())]
        return [ticket.renew_by for ticket in tickets if ticket.renew_ms]

    @rule(
        host=st.sampled_from(HOSTS),
        foreign=st.lists(st.tuples(st.sampled_from(["", *MODELS]), st.integers(1, 4)), max_size=2).map(tuple),
        room=st.one_of(st.none(), st.integers(-2, 6)),
    )
    def observe(self, host: str, foreign: tuple[tuple[str, int], ...], room: int | None) -> None:
        self.do(cmd.Observe(host, foreign, room))
        assert self.do(cmd.Observe(host, foreign)) == [], "what is known is not told again"

    @rule(
        command=st.one_of(
            st.builds(cmd.SetRule, one_rule),
            st.builds(cmd.SetRule, one_rule),
            st.builds(cmd.RemoveCap, kinds, st.sampled_from(SELECTORS)),
        )
    )
    def set_or_remove(self, command: cmd.SetRule | cmd.RemoveCap) -> None:
        self.do(command)

    @precondition(lambda self: self.book.runtime)
    @rule(pick=picks)
    def reset_cap(self, pick: int) -> None:
        keys = sorted(self.book.runtime)
        self.do(cmd.ResetCap(*keys[pick % len(keys)]))

    @rule(rules=files, seniority_ms=st.sampled_from([None, 60_000]), force=st.booleans())
    def load_file(self, rules: list[Rule], seniority_ms: int | None, force: bool) -> None:
        self.files += 1
        modified = 0 if force else self.files
        load = cmd.LoadFile("config.toml", f"d{self.files}", modified, tuple(rules), seniority_ms, force)
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

    @rule(
        pick=picks,
        report=st.one_of(
            st.builds(cmd.Report, st.just("?"), retry_after_ms=waits),
            st.builds(cmd.Report, kind=kinds, target=st.sampled_from([*POOLS, *MODELS]), retry_after_ms=waits),
        ),
    )
    def report(self, pick: int, report: cmd.Report) -> None:
        if report.id and self.book.leases:
            report = replace(report, id=self.some(self.book.leases, pick))
        self.do(report)

    @rule(
        by=st.sampled_from(["p0", "p1", "nobody"]),
        count=st.one_of(st.none(), st.integers(0, 5)),
        answers=st.booleans(),
        ms=st.sampled_from([0, 0, 20, 5_000]),
    )
    def ask_the_provider(self, by: str, count: int | None, answers: bool, ms: int) -> None:
        """Somebody who has the key asks wherever that is wanted, and often answers in time."""
        pools = [(pool.kind, pool.id) for pool in self.engine.questions(self.now)]
        for key in pools:
            self.do(cmd.AskUsage(*key, by))
            self.do(cmd.AskUsage(*key, "another"))
        self.now += ms
        for kind, pool in [*pools, ("requests", "umans"), ("agents", "umans")]:
            if answers:
                self.do(cmd.AnswerUsage(kind, pool, by, count))
                self.do(cmd.AnswerUsage(kind, pool, "another", 0))

    @rule(
        kind=kinds,
        cap=st.integers(1, 3),
        hosts=st.lists(st.sampled_from(["", "h1", "h2"]), min_size=2, max_size=6),
        freed=st.integers(1, 3),
        count=st.one_of(st.none(), st.integers(0, 3)),
    )
    def line_at_the_usage_gate(self, kind: str, cap: int, hosts: list[str], freed: int, count: int | None) -> None:
        """A full pool with a gate and a line; slots are given back, newcomers come, the provider answers."""
        self.do(cmd.SetRule(Rule(kind, "umans", cap, cooldown_ms=0, on_429="step", usage_gate=True)))
        specs = [Spec(("umans/coder",), kind, host=host, supervisor=True) for host in hosts]
        for spec in specs:
            self.acquire(spec, {"asks": ("umans",)}, mine=False)
        held = [ident for ident, lease in self.book.leases.items() if lease.model == "umans/coder"]
        for ident in held[:freed]:
            self.do(cmd.Release(ident))
        self.acquire(specs[0], {}, mine=False)
        self.acquire(specs[-1], {"wait": False}, mine=False)
        self.ask_the_provider("p0", count, answers=True, ms=0)
        self.all_is_well()

    @rule(
        cap=st.integers(2, 5),
        number=st.integers(3, 8),
        fates=st.lists(
            st.tuples(
                st.sampled_from([0, 100, 400, 1_000, 2_500]),
                picks,
                st.sampled_from(["ok", "ok", "ok", "rate_limited", "reported", "accepted"]),
            ),
            min_size=3,
            max_size=12,
        ),
        short=st.booleans(),
    )
    def crowd_at_a_limit_that_is_learned(
        self, cap: int, number: int, fates: list[tuple[int, int, str]], short: bool
    ) -> None:
        """Calls to one provider: some are accepted, some end, some are refused, some of them more than once."""
        self.do(cmd.SetRule(Rule("requests", "umans", cap, on_429="adapt", usage_gate=False)))
        fates = [(100, 0, "ok")] * (3 * short) + fates
        for _ in range(number + 3 * short):
            self.acquire(Spec(("umans/coder",), "requests"), {}, mine=False)
        for ms, pick, fate in fates:
            self.now += ms
            self.tick()
            calls = [ident for ident, held in self.book.leases.items() if held.model == "umans/coder"]
            if calls:
                ident = self.some(calls, pick)
                if fate in ("reported", "accepted"):
                    self.do(cmd.Report(ident) if fate == "reported" else cmd.Active(ident))
                else:
                    self.do(cmd.Release(ident, fate, 300 if fate == "rate_limited" else None))
        self.all_is_well()

    @rule(
        key=st.sampled_from([*MODELS[:3], "anthropic", "anthropic/claude-opus-*", "umans@work"]),
        reason=st.sampled_from(["rate_limited", "usage_window", "quota", "auth"]),
        for_ms=st.sampled_from([None, 1, 5_000, 100_000, 40_000_000]),
    )
    def back_off(self, key: str, reason: str, for_ms: int | None) -> None:
        events = self.do(cmd.BackOff(key, reason, for_ms))  # and it may let somebody in with another candidate
        assert [type(event) for event in events].count(ev.BackedOff) == 1

    @precondition(lambda self: self.book.backoffs)
    @rule(pick=picks)
    def end_backoff(self, pick: int) -> None:
        keys = sorted(self.book.backoffs)
        self.do(cmd.EndBackoff(keys[pick % len(keys)]))

    @precondition(lambda self: self.book.leases)
    @rule(pick=picks)
    def show_activity(self, pick: int) -> None:
        self.do(cmd.Active(self.some(self.book.leases, pick)))

    @rule(ms=steps_ms)
    def pass_time(self, ms: int) -> None:
        """A gate that slept: whatever was due meanwhile is done now."""
        self.now += ms
        self.tick()

    @rule(number=st.integers(1, 8), early=st.floats(0, 1, exclude_max=True))
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

    @rule(command=illegal)
    def try_what_cannot_be(self, command: cmd.Command) -> None:
        self.tick()
        before, due = self.engine.state.export(self.now), self.engine.next_deadline()
        with pytest.raises(FleetgateError) as caught:
            self.engine.handle(command, self.now)
        assert not isinstance(caught.value, InternalError)
        assert self.engine.state.export(self.now) == before
        assert self.engine.next_deadline() == due

    @rule(spec=specs, pick=picks)
    def look(self, spec: Spec, pick: int) -> None:
        """What changes nothing: a question whose answer is what would happen; a bypass; the same request again."""
        self.tick()
        before = self.engine.state.export(self.now)
        self.fits(spec)
        for ident in [*self.book.tickets, *self.book.leases][:1]:
            assert self.do(cmd.Acquire(ident, spec, "p1")) == [], "the same command once more"
        assert self.engine.state.export(self.now) == before
        assert self.do(cmd.Bypass("p1", spec.models)) == [ev.Bypassed("p1", spec.models)]
        after = self.engine.state.export(self.now)
        assert (before.tickets, before.leases, before.pools) == (after.tickets, after.leases, after.pools)

    def fits(self, spec: Spec) -> None:
        free, surely = (
            any(not self.book.blocked(spec, model, perhaps=perhaps) for model in self.book.candidates(spec))
            for perhaps in (False, True)
        )
        in_queue = any(ticket.spec == spec and not ticket.away for ticket in self.book.tickets.values())
        counted = all((spec.kind, text) in self.book.seen for text, _ in spec.caps)
        fits = self.engine.fits(spec, self.now)
        assert fits <= (free and not in_queue and counted)
        assert fits >= (surely and not in_queue and counted)

    @precondition(lambda self: self.book.ended)
    @rule(pick=picks, palette=picks)
    def come_back(self, pick: int, palette: int) -> None:
        """An id that has ended may be used again."""
        ended = self.book.ended.keys() - self.book.leases.keys() - self.book.tickets.keys()
        self.do(cmd.Acquire(self.some(ended, pick), self.palette[palette % len(self.palette)], "p2", expires_ms=50_000))

    @rule(again=st.booleans())
    def let_the_other_decide(self, again: bool) -> None:
        """Another process takes over; sometimes one that starts from a snapshot that was written down."""
        self.tick()
        if again:
            self.start_the_other_anew()
            assert self.other.handle(cmd.Tick(), self.now) == []
        self.take_turns()

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
        self.nothing_is_lost()
        self.learned_limits_are_within_bounds()
        snapshot = self.engine.state.export(self.now)
        assert self.other.state.export(self.now) == snapshot
        assert State.restore(through_json(snapshot)).export(self.now) == snapshot

    def nothing_is_lost(self) -> None:
        state = self.engine.state
        assert state.tickets == self.book.tickets
        assert {ident: (lease.ticket, lease.model, lease.claimed) for ident, lease in state.leases.items()} == {
            ident: (held.ticket, held.model, held.claimed) for ident, held in self.book.leases.items()
        }

    def learned_limits_are_within_bounds(self) -> None:
        """rule P4: at least one, at most the cap by the model's own count."""
        caps = self.book._governors() if any(pool.limiter.adaptive for pool in self.engine.state.pools.values()) else {}
        for pool in self.engine.state.pools.values():
            if pool.limiter.adaptive is not None:
                _, cap, _ = caps[pool.kind, pool.id]
                assert cap is not None
                assert 1 <= pool.limit <= cap

    def teardown(self) -> None:
        state = State()
        for event, at in self.log:
            state.apply(event, at)
        assert state.export(self.now) == self.engine.state.export(self.now)
        check_invariants(state)


Gate.TestCase.settings = settings()
TestEngineCore = pytest.mark.timeout(900)(Gate.TestCase)  # minutes, where coverage is traced on a busy machine
