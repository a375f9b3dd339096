"""Slots that are kept for interactive work, and jobs that give way to it (rule W5)."""

from __future__ import annotations

import msgspec
import pytest

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.engine import Engine
from fleetgate.core.entities import BudgetRule, Rule, Spec
from fleetgate.core.errors import BadRequest
from fleetgate.core.invariants import check_invariants, check_settled
from fleetgate.core.pools.effective_caps import UNLIMITED
from fleetgate.core.state.snapshot_format import Snapshot
from fleetgate.core.state.state import State
from fleetgate.core.usage import Usage
from fleetgate.core.views.pool_and_lease_views import ticket_view

T0 = 1_800_000_000_000
ME, OTHER = "h1|b0|4026|100|5000", "h1|b0|4026|200|5000"
AFTER_MS = 30_000


class Bench:
    """An engine with one pool of agents, `host`."""

    def __init__(self, cap: int, *, preempt: bool = False, **rule: object) -> None:
        self.engine = Engine(me=ME)
        self.now = T0
        rules = (Rule("agents", "host", cap=cap, **rule),)  # type: ignore[arg-type]
        self.do(cmd.LoadFile("f", "1", 1, rules, preempt_after_ms=AFTER_MS if preempt else 0))

    @property
    def state(self) -> State:
        return self.engine.state

    def do(self, command: cmd.Command) -> list[ev.Event]:
        events = self.engine.handle(cmd.Tick(), self.now) + self.engine.handle(command, self.now)
        check_invariants(self.state)
        check_settled(self.state, self.now)
        return events

    def ask(self, ident: str, work_class: str, slots: int = 1, **other: object) -> bool:
        spec = Spec((), host="h1", slots=slots, work_class=work_class)
        self.do(cmd.Acquire(ident, spec, ME, **other))  # type: ignore[arg-type]
        return ident in self.state.leases

    def job(self, ident: str, work_class: str = "batch") -> bool:
        """A job that a worker offers to run, and that runs as soon as it has a slot."""
        spec = Spec((), host="h1", work_class=work_class)
        self.do(cmd.Acquire(ident, spec, "", job=True))
        self.do(cmd.Offer(ident, OTHER, "h1"))
        if ident not in self.state.leases:
            return False
        self.do(cmd.Claim(ident, OTHER))
        return True

    def wait(self, ms: int) -> list[ev.Event]:
        """Time passes; returns what it brings about."""
        events: list[ev.Event] = []
        end = self.now + ms
        while (due := self.engine.next_deadline()) is not None and due <= end:
            self.now = max(self.now, due)
            events += self.engine.handle(cmd.Tick(), self.now)
            check_invariants(self.state)
            check_settled(self.state, self.now)
        self.now = end
        return events

    def preempted(self) -> dict[str, str]:
        return {ident: lease.gives_way_to for ident, lease in self.state.leases.items() if lease.gives_way_to}


def test_w5_reserved_slots_are_for_interactive_requests():
    bench = Bench(3, reserve=1)
    assert [bench.ask(f"n{number}", each) for number, each in enumerate(("normal", "batch", "normal"))] == [
        True,
        True,
        False,
    ]
    view = ticket_view(bench.state, "n2", bench.now)
    assert view is not None
    assert view.reason.text == "2 of 3 slots of host:h1 are taken, and 1 are kept for interactive work"
    assert bench.ask("person", "interactive")
    bench.do(cmd.Release("person"))
    assert "n2" in bench.state.tickets
    bench.do(cmd.Release("n0"))
    assert "n2" in bench.state.leases


def test_w5_a_reserve_may_be_a_part_of_the_limit_and_leaves_one_slot():
    bench = Bench(4, reserve_share=5_000)
    assert [bench.ask(f"n{number}", "batch") for number in range(3)] == [True, True, False]
    bench = Bench(1, reserve=5)
    assert bench.ask("only", "batch")


def test_w5_a_request_that_the_reserve_never_lets_in_is_refused():
    bench = Bench(3, reserve=1)
    with pytest.raises(BadRequest, match="needs 3 slots of host:h1"):
        bench.ask("big", "batch", slots=3)
    assert bench.ask("people", "interactive", slots=3)


def test_w5_lendable_slots_are_used_until_a_person_waits():
    bench = Bench(2, reserve=1, lendable=True)
    assert bench.ask("one", "batch")
    assert bench.ask("two", "batch")
    assert not bench.ask("person", "interactive")
    assert not bench.ask("three", "batch", since=T0 - 10_000)  # older, and still behind
    bench.do(cmd.Release("one"))
    assert "person" in bench.state.leases
    bench.do(cmd.Release("two"))
    assert "three" in bench.state.leases
    assert not bench.ask("again", "interactive")
    assert not bench.ask("four", "batch")
    bench.do(cmd.Release("person"))
    bench.do(cmd.Release("three"))
    assert "four" in bench.state.leases or "again" in bench.state.leases


def test_w5_when_the_last_person_leaves_the_queue_others_may_use_what_was_kept():
    bench = Bench(2, reserve=1, lendable=True)
    bench.ask("big", "normal")
    assert bench.ask("batch-job", "batch")
    assert not bench.ask("person", "interactive", slots=2)
    bench.do(cmd.Release("batch-job"))
    assert not bench.ask("next", "batch")
    bench.do(cmd.Cancel("person"))
    assert "next" in bench.state.leases


def test_w5_when_the_model_of_the_last_waiting_person_is_backed_off_others_may_use_what_was_kept():
    bench = Bench(2, reserve=1, lendable=True)
    bench.do(cmd.SetRule(Rule("agents", "anthropic", cap=1)))
    claude = Spec(("anthropic/claude-sonnet-4-6",), host="h1", work_class="interactive")
    bench.do(cmd.Acquire("running", claude, ME))
    bench.do(cmd.Acquire("person", claude, ME))
    assert not bench.ask("next", "batch")
    bench.do(cmd.BackOff("anthropic", "overloaded", 60_000))
    assert "next" in bench.state.leases
    assert "person" in bench.state.tickets


@pytest.mark.parametrize("wrong", [Rule("agents", "host", reserve=-1), Rule("agents", "host", reserve_share=10_001)])
def test_w5_a_reserve_that_cannot_be_is_refused(wrong: Rule):
    with pytest.raises(BadRequest, match="reserve"):
        Bench(1).do(cmd.SetRule(wrong))


def test_w5_nothing_gives_way_unless_the_config_says_so():
    bench = Bench(1)
    assert bench.job("job")
    bench.ask("person", "interactive")
    assert not any(isinstance(event, ev.Preempted) for event in bench.wait(10 * AFTER_MS))


def test_w5_a_job_gives_way_to_a_person_after_a_while_and_the_person_gets_its_slot():
    bench = Bench(1, preempt=True)
    assert bench.job("job")
    assert not bench.ask("person", "interactive")
    assert not bench.wait(AFTER_MS - 1)
    events = bench.wait(1)
    assert [event for event in events if isinstance(event, ev.Preempted)] == [ev.Preempted("job", "person")]
    assert bench.state.reserved == {"person": ("agents host:h1",)}
    assert not any(isinstance(event, ev.Preempted) for event in bench.wait(5 * AFTER_MS))  # once
    # The worker queues it again, with its age, in the step that frees its slot.
    again = cmd.Acquire("job", Spec((), host="h1", work_class="batch"), "", job=True, since=T0)
    for command in (cmd.Release("job"), again, cmd.Offer("job", OTHER, "h1")):
        bench.engine.handle(command, bench.now)
    check_invariants(bench.state)
    assert list(bench.state.leases) == ["person"]
    assert "job" in bench.state.tickets
    bench.do(cmd.Release("person"))
    assert list(bench.state.leases) == ["job"]


def test_w5_runs_normal_jobs_and_requests_that_are_not_interactive_are_left_alone():
    bench = Bench(3, preempt=True)
    bench.ask("run", "batch")
    bench.job("normal job", "normal")
    bench.ask("script", "normal")
    bench.ask("person", "interactive")
    bench.wait(3 * AFTER_MS)
    assert not bench.preempted()
    other = Bench(1, preempt=True)
    other.job("job")
    other.ask("script", "normal")
    other.wait(3 * AFTER_MS)
    assert not other.preempted()


def test_w5_no_job_is_stopped_that_would_not_let_the_person_in():
    bench = Bench(3, preempt=True)
    bench.job("job")
    bench.ask("run1", "normal")
    bench.ask("run2", "normal")
    bench.ask("person", "interactive", slots=3)
    bench.wait(3 * AFTER_MS)
    assert not bench.preempted()
    bench.do(cmd.Pause("agents", "host:h1"))
    bench.ask("other", "interactive")
    bench.wait(3 * AFTER_MS)
    assert not bench.preempted()


def test_w5_no_job_is_stopped_for_a_person_who_waits_for_a_budget_as_well():
    bench = Bench(2, preempt=True)
    bench.do(cmd.SetBudget(BudgetRule("project:default", "tokens", 100, "day")))
    assert bench.ask("earlier", "normal", estimate=Usage(1, 70))
    assert bench.job("job")
    assert not bench.ask("person", "interactive", estimate=Usage(1, 40))
    bench.wait(3 * AFTER_MS)
    assert bench.preempted() == {}
    bench.do(cmd.SetBudget(BudgetRule("project:default", "tokens", 200, "day")))
    bench.wait(AFTER_MS)
    assert bench.preempted() == {"job": "person"}


def test_w5_the_youngest_jobs_give_way_and_no_more_than_are_needed():
    bench = Bench(3, preempt=True)
    for number in range(3):
        bench.job(f"job{number}")
        bench.now += 1_000
    bench.ask("person", "interactive", slots=2)
    bench.wait(AFTER_MS)
    assert bench.preempted() == {"job1": "person", "job2": "person"}


def test_w5_a_job_that_gives_way_counts_once_when_more_slots_are_lacking_than_before():
    bench = Bench(3, preempt=True)
    for ident in ("one", "two", "three"):
        assert bench.job(ident)
    bench.ask("person", "interactive")
    bench.wait(AFTER_MS)
    assert bench.preempted() == {"three": "person"}
    bench.do(cmd.SetRule(Rule("agents", "host", cap=2)))
    bench.wait(AFTER_MS)
    assert bench.preempted() == {"two": "person", "three": "person"}


def test_w5_only_the_first_of_a_queue_lets_jobs_give_way():
    bench = Bench(2, preempt=True)
    bench.job("job1")
    bench.job("job2")
    bench.ask("first", "interactive")
    bench.ask("second", "interactive")
    bench.wait(AFTER_MS)
    assert bench.preempted() == {"job2": "first"}
    bench.do(cmd.Release("job2"))
    assert "first" in bench.state.leases
    bench.wait(AFTER_MS)
    assert bench.preempted() == {"job1": "second"}


def test_w5_a_lost_job_that_was_to_give_way_says_so():
    bench = Bench(1, preempt=True)
    bench.job("job")
    bench.ask("person", "interactive")
    bench.wait(AFTER_MS)
    (lost,) = [event for event in bench.do(cmd.Lost((OTHER,))) if isinstance(event, ev.Reclaimed)]
    assert lost.gave_way
    assert "person" in bench.state.leases


def test_w5_slots_that_are_kept_for_another_request_are_not_freed_twice():
    bench = Bench(2, preempt=True)
    bench.job("job1")
    bench.job("job2")
    bench.ask("one", "interactive")
    bench.do(cmd.Acquire("two", Spec((), host="h1", project="other", work_class="interactive"), ME))
    bench.wait(AFTER_MS)
    assert len(bench.preempted()) == 1


def test_w5_a_drained_host_lets_nothing_give_way():
    bench = Bench(1, preempt=True)
    bench.job("job")
    bench.ask("person", "interactive")
    bench.do(cmd.Drain("h1"))
    bench.wait(2 * AFTER_MS)
    assert not bench.preempted()


def test_w5_a_new_config_and_a_snapshot_keep_the_deadlines():
    bench = Bench(1)
    bench.job("job")
    bench.ask("person", "interactive")
    bench.do(cmd.LoadFile("f", "2", 2, (Rule("agents", "host", cap=1),), preempt_after_ms=AFTER_MS))
    text = msgspec.json.encode(bench.state.export(bench.now))
    other = Engine(State.restore(msgspec.json.decode(text, type=Snapshot)), me=ME)
    assert other.handle(cmd.Tick(), bench.now + AFTER_MS) == [
        ev.Preempted("job", "person"),
        ev.Reserved("person", ("agents host:h1",)),
    ]
    assert msgspec.json.encode(other.state.export(bench.now + AFTER_MS)) == msgspec.json.encode(
        State.restore(other.state.export(bench.now + AFTER_MS)).export(bench.now + AFTER_MS)
    )
    bench.do(cmd.LoadFile("f", "3", 3, (Rule("agents", "host", cap=1),)))
    assert not bench.wait(3 * AFTER_MS)


def test_w5_a_process_that_learns_of_a_preemption_does_not_decide_it_again():
    bench, other = Bench(1), Engine(me=OTHER)
    for command in (
        cmd.LoadFile("f", "2", 2, (Rule("agents", "host", cap=1),), preempt_after_ms=AFTER_MS),
        cmd.Acquire("job", Spec((), host="h1", work_class="batch"), "", job=True),
        cmd.Offer("job", OTHER, "h1"),
        cmd.Claim("job", OTHER),
        cmd.Acquire("person", Spec((), host="h1", work_class="interactive"), ME),
    ):
        other.replay(bench.do(command), bench.now)
    other.handle(cmd.Tick(), bench.now)
    other.replay(bench.wait(AFTER_MS), bench.now)
    assert other.handle(cmd.Tick(), bench.now) == []
    assert other.state.leases["job"].gives_way_to == "person"
    assert other.next_deadline() == bench.engine.next_deadline()


def test_w5_a_request_that_no_slot_would_let_in_lets_nothing_give_way():
    bench = Bench(2, preempt=True)
    bench.job("job")
    bench.do(cmd.SetRule(Rule("agents", "umans", cap=1)))
    bench.do(cmd.BackOff("umans/coder", "overloaded", 3_600_000))
    bench.do(cmd.Acquire("person", Spec(("umans/coder",), host="h1", work_class="interactive"), ME))
    bench.wait(2 * AFTER_MS)
    assert not bench.preempted()


def test_w5_jobs_of_other_pools_are_left_alone():
    bench = Bench(1, preempt=True)
    bench.job("job")
    bench.do(cmd.Acquire("far", Spec((), host="h2", work_class="batch"), "", job=True))
    bench.do(cmd.Offer("far", OTHER, "h2"))
    bench.ask("person", "interactive")
    bench.wait(AFTER_MS)
    assert bench.preempted() == {"job": "person"}


def test_w5_a_pool_without_a_cap_keeps_nothing():
    bench = Bench(1, reserve=1)
    bench.do(cmd.RemoveCap("agents", "host"))
    assert all(bench.ask(f"n{number}", "batch") for number in range(5))
    assert bench.state.rules.caps["agents", "host"].held_back(UNLIMITED) == 0


def test_w5_only_the_pools_that_lack_slots_matter():
    bench = Bench(1, preempt=True)
    bench.do(cmd.SetRule(Rule("agents", "umans", cap=5)))
    coder = Spec(("umans/coder",), host="h1", work_class="batch")
    bench.do(cmd.Acquire("job", coder, "", job=True))
    bench.do(cmd.Offer("job", OTHER, "h1"))
    bench.do(cmd.Claim("job", OTHER))
    bench.do(cmd.Acquire("person", msgspec.structs.replace(coder, work_class="interactive"), ME))
    bench.wait(AFTER_MS)
    assert bench.preempted() == {"job": "person"}
    assert bench.state.reserved == {"person": ("agents host:h1",)}
