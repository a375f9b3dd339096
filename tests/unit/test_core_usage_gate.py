"""The usage gate (rules G1-G5) in the engine."""

from __future__ import annotations

import msgspec
import pytest

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.engine import Engine
from fleetgate.core.entities import Rule, Spec
from fleetgate.core.errors import BadRequest
from fleetgate.core.invariants import check_invariants, check_settled
from fleetgate.core.state.snapshot_format import Snapshot
from fleetgate.core.state.state import State
from fleetgate.core.views.pool_and_lease_views import UpstreamView, pool_views, ticket_views

MODEL = "umans/coder"


class Gate:
    """An engine with a clock and one gated pool; every step is checked, and replayed into a second state."""

    def __init__(self, cap: int = 4, *more: Rule, cooldown_ms: int = 0) -> None:
        self.engine = Engine(me="me")
        self.twin = State()
        self.now = 1_000_000
        self.count = 0
        rule = Rule("requests", "umans", cap, cooldown_ms=cooldown_ms, on_429="step", usage_gate=True)
        self(cmd.LoadFile("f", "d", 1, (rule, *more)))

    def __call__(self, command: cmd.Command) -> list[ev.Event]:
        events = self.engine.handle(cmd.Tick(), self.now) + self.engine.handle(command, self.now)
        check_invariants(self.engine.state)
        check_settled(self.engine.state, self.now)
        for event in events:
            self.twin.apply(event, self.now)
        exported = self.engine.state.export(self.now)
        assert self.twin.export(self.now) == exported
        again = msgspec.json.decode(msgspec.json.encode(exported), type=Snapshot)
        assert State.restore(again).export(self.now) == exported
        return events

    def pass_ms(self, ms: int) -> list[ev.Event]:
        self.now += ms
        return self(cmd.Tick())

    def ask(self, *, model: str = MODEL, asks: tuple[str, ...] = ("umans",), host: str = "", **more: object) -> str:
        self.count += 1
        ident = f"r{self.count}"
        spec = Spec((model,), "requests", host=host)
        self(cmd.Acquire(ident, spec, f"process-{ident}", asks=asks, **more))  # type: ignore[arg-type]
        return ident

    def fill(self, number: int) -> list[str]:
        idents = [self.ask() for _ in range(number)]
        assert all(ident in self.engine.state.leases for ident in idents)
        return idents

    def release(self, ident: str) -> list[ev.Event]:
        return self(cmd.Release(ident))

    @property
    def wanted(self) -> list[str]:
        return [pool.id for pool in self.engine.questions(self.now)]

    def question(self, by: str = "asker") -> bool:
        """Whether this process may ask now."""
        return any(isinstance(event, ev.UsageAsked) for event in self(cmd.AskUsage("requests", "umans", by)))

    def answer(self, count: int | None, by: str = "asker", error: str = "") -> list[str]:
        """Who enters by an answer."""
        events = self(cmd.AnswerUsage("requests", "umans", by, count, error))
        return [event.id for event in events if isinstance(event, ev.Granted)]

    def entered(self, count: int | None) -> list[str]:
        assert self.question()
        return self.answer(count)

    def waits(self, ident: str) -> bool:
        return ident in self.engine.state.tickets

    def reason(self, ident: str) -> tuple[str, str]:
        view = next(view for view in ticket_views(self.engine.state, self.now) if view.ticket.id == ident)
        assert view.estimate_ms is None, "nobody knows when the provider has room"
        return view.reason.code, view.reason.text


def test_g1_four_of_four_upstream_keep_the_waiter_after_a_release_and_after_a_second() -> None:
    gate = Gate()
    held = gate.fill(4)
    waiter = gate.ask()
    assert gate.entered(4) == []
    gate.release(held[0])
    assert gate.waits(waiter)
    assert gate.entered(4) == []
    assert gate.reason(waiter) == ("usage_gate", "umans itself counts 4 in flight, and the limit is 4")
    assert gate.wanted == []
    gate.pass_ms(1_000)
    assert gate.entered(4) == []
    gate.pass_ms(1_000)
    assert gate.entered(3) == [waiter]


def test_g2_three_of_four_let_exactly_one_of_two_waiters_in() -> None:
    gate = Gate()
    held = gate.fill(4)
    first, second = gate.ask(), gate.ask()
    for ident in held[:2]:
        gate.release(ident)
    assert gate.entered(2) == [first]
    assert gate.waits(second)
    assert gate.reason(second)[1] == "umans itself counts 2 in flight of 4; each answer lets one in"
    gate.pass_ms(1_000)
    assert gate.entered(3) == [second]


def test_g2_a_raised_limit_lets_one_in_for_each_answer() -> None:
    gate = Gate(1)
    gate.fill(1)
    waiting = [gate.ask() for _ in range(3)]
    gate(cmd.SetRule(Rule("requests", "umans", 9)))
    for ident in waiting:
        gate.pass_ms(1_000)
        assert gate.entered(0) == [ident]


def test_g3_a_release_asks_at_once_and_again_when_the_slot_has_cooled() -> None:
    gate = Gate(1, cooldown_ms=350)
    (held,) = gate.fill(1)
    waiter = gate.ask()
    assert gate.wanted == ["umans"]
    assert gate.entered(1) == []
    assert gate.wanted == []
    gate.pass_ms(100)
    gate.release(held)
    assert gate.wanted == ["umans"]
    assert gate.entered(0) == []  # the slot is cooling
    gate.pass_ms(349)
    assert gate.wanted == []
    gate.pass_ms(1)
    assert gate.entered(0) == [waiter]


def test_g3_never_two_questions_at_once_and_a_trigger_meanwhile_asks_once_more_after() -> None:
    gate = Gate(2)
    one, two = gate.fill(2)
    first, second = gate.ask(), gate.ask()
    assert gate.question("a")
    assert not gate.question("b")
    gate.pass_ms(2_000)
    assert not gate.question("b")
    gate.release(one)
    gate.release(two)
    assert not gate.question("b")
    assert gate.answer(1, "b") == []  # it did not ask
    assert gate.answer(1, "a") == [first]
    assert gate.wanted == ["umans"]
    assert gate.question("b")
    assert gate.wanted == []
    assert gate.answer(1, "b") == [second]


def test_g3_nobody_waiting_means_no_questions() -> None:
    gate = Gate(2)
    one, _ = gate.fill(2)
    assert gate.wanted == []
    assert gate.engine.state.gates[0].usage_gate.next_moment(gate.now) == 0
    gate.release(one)
    gate.pass_ms(60_000)
    assert gate.wanted == []
    gate.fill(1)
    waiter = gate.ask()
    assert gate.wanted == ["umans"]
    gate(cmd.Cancel(waiter))
    assert gate.wanted == []
    assert not gate.question()
    gate.release("r1")
    assert gate.wanted == []


def test_g3_only_the_tickets_of_processes_with_the_key_make_questions() -> None:
    gate = Gate(1)
    (held,) = gate.fill(1)
    without = gate.ask(asks=())
    assert gate.wanted == []
    gate.release(held)
    assert not gate.waits(without)
    with_key = gate.ask()
    another = gate.ask(asks=())
    assert gate.wanted == ["umans"]
    first = gate.engine.first_to_act()
    assert first is not None
    assert first.id == with_key
    gate.release(without)
    assert gate.waits(with_key)
    assert gate.waits(another)
    gate(cmd.Cancel(with_key))  # nobody who is left can ask
    assert not gate.waits(another)


def test_g3_a_question_is_given_up_after_6_s_and_when_its_asker_is_gone() -> None:
    gate = Gate(1)
    (held,) = gate.fill(1)
    waiter = gate.ask()
    assert gate.question("dead")
    gate.release(held)
    gate(cmd.Lost(("another",)))
    assert gate.wanted == []
    gate(cmd.Lost(("dead",)))
    assert [ticket.id for ticket in gate.engine.askers(gate.now)] == [waiter]
    assert gate.waits(waiter)
    assert gate.wanted == ["umans"]
    assert gate.question("slow")
    gate.pass_ms(5_999)
    assert gate.waits(waiter)
    gate.pass_ms(1)
    assert not gate.waits(waiter)
    (view,) = pool_views(gate.engine.state, gate.now)
    assert view.upstream == UpstreamView(None, gate.now, "no answer within 6 s", "")
    assert gate.answer(0, "slow") == []


def test_g1_a_question_does_not_overtake_the_call_that_the_last_answer_let_in() -> None:
    """Else the provider counts without it, and one too many enters."""
    gate = Gate(2)
    held = gate.fill(2)
    first, second = gate.ask(), gate.ask()
    gate.release(held[0])
    assert gate.question()
    gate.release(held[1])  # asks for one more question, after this
    gate.pass_ms(100)
    assert gate.answer(1) == [first]
    assert gate.wanted == []
    gate.pass_ms(149)
    assert gate.wanted == []
    gate.pass_ms(1)
    assert gate.entered(2) == []
    assert gate.waits(second)


def test_g3_a_question_given_up_is_followed_by_another_though_a_slot_was_released_meanwhile() -> None:
    gate = Gate(1)
    (held,) = gate.fill(1)
    first, second = gate.ask(), gate.ask()
    assert gate.question("slow")
    gate.release(held)
    gate.pass_ms(6_000)
    assert not gate.waits(first)
    assert gate.waits(second)
    assert gate.wanted == ["umans"]
    assert gate.engine.handle(cmd.Tick(), gate.now) == []  # it is not given up before anybody could ask it
    assert gate.engine.next_deadline() == gate.now + 6_000
    gate.release(first)
    gate.pass_ms(5_999)
    assert gate.waits(second)
    gate.pass_ms(1)
    assert not gate.waits(second)


def test_g4_a_question_that_nobody_asks_holds_the_queue_for_6_s_at_most() -> None:
    gate = Gate(1)
    (held,) = gate.fill(1)
    gate.ask()
    second = gate.ask()
    gate.release(held)
    granted = [event.id for event in gate.pass_ms(6_000) if isinstance(event, ev.Granted)]
    assert granted == ["r2"]
    assert gate.waits(second)
    gate.release("r2")
    gate.pass_ms(5_999)
    assert gate.waits(second)
    gate.pass_ms(1)
    assert not gate.waits(second)


@pytest.mark.parametrize("free", [1, 3])
def test_g4_unknown_decides_without_the_gate(free: int) -> None:
    gate = Gate()
    held = gate.fill(4)
    waiting = [gate.ask() for _ in range(3)]
    for ident in held[:free]:
        gate.release(ident)
    assert gate.question()
    assert gate.answer(None, error="status 404") == waiting[:free]
    (view,) = pool_views(gate.engine.state, gate.now)
    assert view.upstream is not None
    assert view.upstream.error == "status 404"


def test_g5_an_empty_line_is_not_gated_and_a_newcomer_waits_behind_those_who_are() -> None:
    gate = Gate(2)
    one, two = gate.fill(2)
    waiter = gate.ask()
    gate.release(one)
    gate.release(two)
    newcomer = gate.ask(host="h")  # needs the same slots, stands in another queue
    assert gate.waits(waiter)
    assert gate.waits(newcomer)
    assert gate.reason(newcomer)[0] == "usage_gate"
    assert gate.reason(waiter) == ("usage_gate", "umans is being asked how many are in flight there")
    assert gate.entered(0) == [waiter]
    gate.pass_ms(1_000)
    assert gate.entered(0) == [newcomer]


def test_a3_who_waits_for_something_else_does_not_hold_a_newcomer_at_the_gate() -> None:
    gate = Gate(2, Rule("requests", "host", 1))
    gate.ask(host="h")
    behind = gate.ask(host="h")
    assert gate.waits(behind)
    other = gate.ask(host="another")
    assert not gate.waits(other)


def test_g1_more_slots_than_upstream_has_left_do_not_enter() -> None:
    gate = Gate(4)
    held = gate.fill(4)
    spec = Spec((MODEL,), "requests", slots=2)
    gate(cmd.Acquire("two", spec, "p", asks=("umans",)))
    for ident in held[:2]:
        gate.release(ident)
    assert gate.entered(3) == []
    gate.pass_ms(1_000)
    assert gate.entered(2) == ["two"]


def test_g1_the_reduced_limit_counts() -> None:
    gate = Gate(4)
    held = gate.fill(4)
    waiter = gate.ask()
    gate(cmd.Release(held[0], "rate_limited", retry_after_ms=0))
    gate.release(held[1])
    assert gate.entered(3) == []
    gate.pass_ms(1_000)
    assert gate.entered(2) == [waiter]


def test_g1_a_returned_grant_asks_again() -> None:
    gate = Gate(1)
    (held,) = gate.fill(1)
    waiter, other = gate.ask(), gate.ask()
    gate.release(held)
    assert gate.entered(0) == [waiter]
    gate.pass_ms(10_000)  # it was not claimed
    assert gate.engine.state.tickets[waiter].away
    gate.pass_ms(0)
    assert gate.waits(other)
    assert gate.wanted == ["umans"]
    assert gate.entered(0) == [other]


def test_g1_the_gate_can_be_taken_away_and_its_memory_goes_with_the_cap() -> None:
    gate = Gate(1)
    (held,) = gate.fill(1)
    waiter = gate.ask()
    gate.release(held)
    gate(cmd.SetRule(Rule("requests", "umans", usage_gate=False)))
    assert not gate.waits(waiter)
    assert gate.engine.state.gates == []
    gate(cmd.SetRule(Rule("requests", "umans", usage_gate=True)))
    later = gate.ask()
    assert gate.waits(later)
    assert gate.wanted == ["umans"]
    gate(cmd.RemoveCap("requests", "umans"))
    assert not gate.waits(later)


def test_g1_a_backoff_that_takes_the_queue_away_takes_the_questions_with_it() -> None:
    gate = Gate(1)
    gate.fill(1)
    gate.ask()
    gate(cmd.BackOff("umans", "auth", 60_000))
    assert gate.wanted == []
    gate(cmd.EndBackoff("umans"))
    assert gate.wanted == ["umans"]


def test_g1_an_own_limit_or_no_wait_is_told_the_gates_reason() -> None:
    gate = Gate(1)
    (held,) = gate.fill(1)
    gate.ask()
    gate.release(held)
    events = gate(cmd.Acquire("now", Spec((MODEL,), "requests"), "p", wait=False))
    (refused,) = [event for event in events if isinstance(event, ev.Deferred)]
    assert (refused.reason.code, refused.reason.limit, refused.reason.pool) == ("usage_gate", 1, "umans")


def test_q1_impossible_answers_and_gates_are_refused() -> None:
    gate = Gate(1)
    gate.fill(1)
    gate.ask()
    assert gate.question()
    with pytest.raises(BadRequest, match="valid is 0 or more"):
        gate.engine.handle(cmd.AnswerUsage("requests", "umans", "asker", -1), gate.now)
    with pytest.raises(BadRequest, match="only a provider, account or model has one"):
        gate.engine.handle(cmd.SetRule(Rule("requests", "host", 1, usage_gate=True)), gate.now)
    assert gate.answer(0) == []


def test_g3_a_question_under_way_outlives_those_who_wait_and_is_not_asked_twice() -> None:
    gate = Gate(1)
    gate.fill(1)
    gone = gate.ask()
    assert gate.question("a")
    gate(cmd.Cancel(gone))
    gate.pass_ms(1_500)
    gate.ask()
    assert not gate.question("b")
    gate.pass_ms(500)
    assert gate.answer(1, "a") == []
    assert gate.question("b")


def test_g1_a_gate_that_is_switched_on_while_somebody_waits_asks_first() -> None:
    gate = Gate(1)
    gate(cmd.SetRule(Rule("requests", "umans", usage_gate=False)))
    held = gate.fill(1)
    gate.ask()
    waiter = gate.ask()
    gate.release(held[0])  # the first in the queue enters
    gate.pass_ms(9_000)
    gate(cmd.SetRule(Rule("requests", "umans", usage_gate=True)))
    assert gate.wanted == ["umans"]
    assert gate.pass_ms(0) == []
    gate.release("r2")
    assert gate.waits(waiter)
    assert gate.entered(0) == [waiter]
