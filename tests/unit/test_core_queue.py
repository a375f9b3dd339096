"""The line as a mechanism: fair turns, reservations, parked queues, deadlines. What it brings about over time is in
tests/simulation/test_engine_fairness.py and test_engine_reservation.py.
"""

from __future__ import annotations

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.engine import Engine
from fleetgate.core.entities import Rule, Spec
from fleetgate.core.errors import InternalError
from fleetgate.core.queue.reservations import RESERVE_AFTER_MS
from fleetgate.core.state.state import State
from tests.property.harness import CODER, HOUR, MINUTE, OPUS, SECOND, SONNET, START, Bench

# Between projects.


def test_a4_two_projects_take_turns():
    bench = Bench(agents={"host": 1})
    bench.agent("x", SONNET, project="x")
    for n in range(3):
        bench.agent(f"a{n}", SONNET, project="a")
    for n in range(3):
        bench.agent(f"b{n}", SONNET, project="b")
    entered = []
    while bench.running():
        bench.wait(10 * SECOND)
        bench.release(bench.running()[0])
        for ident in bench.running():
            bench.do(cmd.Claim(ident))
            entered.append(ident)
    assert entered == ["a0", "b0", "a1", "b1", "a2", "b2"]


def test_a4_queues_of_one_project_stay_parked_and_enter_by_age():
    """A queue whose head was let in stays where it is parked; its next one is behind the older of another queue."""
    bench = Bench(agents={"anthropic": 1})
    bench.agent("first", SONNET, host="")
    for number in range(3):
        bench.agent(f"sonnet{number}", SONNET, host="", since=START + 10 * number)
        bench.agent(f"opus{number}", OPUS, host="", since=START + 10 * number + 5)
        bench.wait(1 * SECOND)
    entered = []
    while bench.running():
        bench.release(bench.running()[0])
        entered += bench.running()
    assert entered == ["sonnet0", "opus0", "sonnet1", "opus1", "sonnet2", "opus2"]


def test_a4_the_next_of_a_queue_waits_for_what_keeps_it_out_first():
    """Let in by the wider pool, the next one is kept out by the narrower: it enters when that has room, not before."""
    bench = Bench(agents={"anthropic": 2, OPUS: 1})
    bench.agent("sonnet0", SONNET, host="")
    bench.agent("sonnet1", SONNET, host="")
    bench.agent("opus0", OPUS, host="")
    bench.agent("opus1", OPUS, host="")
    bench.release("sonnet0")
    assert bench.running() == ["opus0", "sonnet1"]
    bench.release("sonnet1")
    assert bench.running() == ["opus0"]
    bench.release("opus0")
    assert bench.running() == ["opus1"]


def test_a4_projects_that_share_no_pool_go_by_age():
    """Whoever is older is told first; both enter."""
    bench = Bench(agents={"umans": 1, "anthropic": 1})
    bench.agent("x", CODER, project="x", host="")
    bench.agent("y", SONNET, project="x", host="")
    bench.agent("younger", CODER, project="a", host="")
    bench.agent("older", SONNET, project="b", host="", since=START - MINUTE)
    bench.release("x")
    bench.wait(10 * SECOND)
    bench.do(cmd.Ask("younger"))
    bench.file(Rule("agents", "umans", cap=5), Rule("agents", "anthropic", cap=5))
    granted = [event.id for event in bench.of(ev.Granted) if isinstance(event, ev.Granted)]
    assert granted[-1] == "older"
    bench.cap("agents", "umans", 6)
    assert bench.state.tickets == {}


def test_a4_projects_that_share_no_pool_and_can_enter_together_do_so_by_age():
    bench = Bench(agents={"umans": 1, "anthropic": 1})
    bench.agent("x", CODER, project="x", host="")
    bench.agent("y", SONNET, project="x", host="")
    bench.agent("younger", CODER, project="a", host="")
    bench.agent("older", SONNET, project="b", host="", since=START - MINUTE)
    events = bench.file()
    assert [event.id for event in events if isinstance(event, ev.Granted)] == ["older", "younger"]


def test_a4_even_a_hold_of_no_time_counts_so_that_nobody_is_served_for_ever():
    bench = Bench(agents={"host": 1})
    for n in range(5):
        bench.agent(f"a{n}", SONNET)
        bench.release(f"a{n}")
    share = bench.state.pools["agents host:h1"].shares.of("default")
    assert share.start + share.debit == 5


def test_a4_of_two_that_return_from_idle_the_older_goes_first():
    """However long ago either was served: neither has credit."""
    bench = Bench(agents={"host": 1})
    for project in ("long-ago", "busy", "busy", "busy"):
        bench.agent("x", SONNET, project=project)
        bench.wait(MINUTE)
        bench.release("x")
    bench.agent("x", SONNET, project="busy")
    bench.agent("new", SONNET, project="new")
    bench.wait(1)
    bench.agent("long-ago", SONNET, project="long-ago")
    bench.release("x")
    assert (bench.fate("new"), bench.fate("long-ago")) == ("offered", "waits")


@pytest.mark.parametrize("first", ["greedy", "modest"])
def test_a4_projects_are_compared_in_the_pool_that_both_need(first):
    bench = Bench(agents={"host": 1, "umans": 9, "anthropic": 9})
    for n in range(3):
        bench.agent(f"g{n}", "openai/gpt-5", project="greedy")
        bench.wait(MINUTE)
        bench.release(f"g{n}")
    bench.agent("x", "openai/gpt-5", project="greedy")
    models = {"greedy": CODER, "modest": SONNET}
    for project in (first, *(models.keys() - {first})):
        bench.agent(project, models[project], project=project)
    bench.cap("agents", "host", 2)
    assert (bench.fate("modest"), bench.fate("greedy")) == ("offered", "waits")


def test_a4_a_project_moves_up_when_its_first_queue_is_served():
    """Queues of one project, parked on one pool: the next of them is found, also after its project has fallen
    behind.
    """
    bench = Bench(agents={"host": 1})
    bench.agent("x", SONNET, project="x")
    models = [SONNET, OPUS, CODER, "openai/gpt-5"]
    for n, model in enumerate(models):
        bench.agent(f"a{n}", model, project="a")
        bench.agent(f"b{n}", model, project="b")
    bench.do(cmd.Cancel("b0"))
    entered = []
    while bench.running():
        bench.wait(10 * SECOND)
        bench.release(bench.running()[0])
        for ident in bench.running():
            bench.do(cmd.Claim(ident))
            entered.append(ident)
    assert entered == ["a0", "b1", "a1", "b2", "a2", "b3", "a3"]


# Reservations.


def test_slots_are_kept_for_one_that_others_overtake_and_the_reason_says_so():
    bench = Bench(agents={"host": 2})
    bench.agent("x", SONNET)
    bench.agent("y", SONNET)
    bench.agent("two", SONNET, slots=2)
    bench.wait(SECOND)
    bench.agent("z", SONNET)
    bench.release("x")
    bench.do(cmd.Claim("z"))
    bench.wait(RESERVE_AFTER_MS)
    assert bench.state.reserved == {"two": ("agents host:h1",)}
    bench.release("y")
    assert bench.agent("late", SONNET) == "waits"
    assert bench.reason("late").code == "behind"
    assert "kept for a request that waited longer" in bench.reason("late").text
    bench.release("z")
    assert bench.fate("two") == "offered"
    assert bench.state.reserved == {}


def overtaken_twice(bench: Bench) -> None:
    """`both` needs opus and the host; a younger one has passed it in each, and both are full."""
    bench.agent("o1", OPUS, host="h2")
    bench.agent("s1", SONNET)
    bench.agent("both", OPUS)
    bench.wait(SECOND)
    bench.agent("o2", OPUS, host="h2")
    bench.agent("s2", SONNET)
    bench.release("o1")
    bench.release("s1")
    bench.do(cmd.Claim("o2"))
    bench.do(cmd.Claim("s2"))


def test_one_pool_is_kept_and_the_other_when_that_is_free():
    bench = Bench(agents={"host": 1, "anthropic/claude-opus-*": 1})
    overtaken_twice(bench)
    bench.wait(RESERVE_AFTER_MS)
    assert bench.state.reserved == {"both": ("agents anthropic/claude-opus-*",)}
    bench.agent("s3", SONNET)
    bench.release("s2")
    assert bench.fate("s3") == "offered", "the host is not kept yet"
    bench.do(cmd.Claim("s3"))
    bench.agent("o3", OPUS, host="h2")
    bench.release("o2")
    assert bench.fate("o3") == "waits"
    assert bench.state.reserved["both"] == ("agents anthropic/claude-opus-*", "agents host:h1")
    bench.release("s3")
    assert bench.fate("both") == "offered"
    assert bench.fate("o3") == "waits"


def test_what_is_kept_in_vain_is_let_go_at_growing_intervals():
    bench = Bench(agents={"host": 1, "anthropic/claude-opus-*": 1})
    overtaken_twice(bench)
    bench.wait(RESERVE_AFTER_MS)
    bench.agent("o3", OPUS, host="h2")
    bench.release("o2")
    assert bench.fate("o3") == "waits", "opus is kept for both"
    bench.wait(RESERVE_AFTER_MS)
    assert bench.fate("o3") == "offered", "the host stays full: let it go"
    assert bench.state.reserved == {"both": ("agents host:h1",)}
    bench.do(cmd.Claim("o3"))
    bench.release("s2")
    assert bench.state.reserved["both"] == ("agents anthropic/claude-opus-*", "agents host:h1")
    bench.wait(RESERVE_AFTER_MS)
    assert len(bench.state.reserved["both"]) == 2, "three looks are no power of two"
    bench.wait(RESERVE_AFTER_MS)
    assert bench.state.reserved == {"both": ("agents anthropic/claude-opus-*",)}


def test_a_pool_that_is_kept_for_another_is_not_kept_twice():
    bench = Bench(agents={"host": 1, "anthropic/claude-opus-*": 1, "umans": 2})
    overtaken_twice(bench)
    bench.wait(RESERVE_AFTER_MS)
    assert bench.state.reserved == {"both": ("agents anthropic/claude-opus-*",)}
    bench.agent("too", OPUS, since=START - HOUR)
    bench.wait(5 * RESERVE_AFTER_MS)
    assert list(bench.state.reserved) == ["both"]


def test_the_next_pool_is_kept_later_when_it_is_kept_for_another_now():
    """`both` has opus; the host, which it needs next, is kept for one that needs two slots there."""
    bench = Bench(agents={"host": 2, "anthropic/claude-opus-*": 1})
    bench.agent("o1", OPUS, host="h2")
    bench.agent("s1", SONNET)
    bench.agent("s2", SONNET)
    bench.agent("both", OPUS)
    bench.agent("two", SONNET, slots=2)
    bench.wait(SECOND)
    bench.agent("o2", OPUS, host="h2")
    bench.agent("s3", SONNET)
    bench.release("o1")
    bench.release("s1")
    bench.do(cmd.Claim("o2"))
    bench.do(cmd.Claim("s3"))
    bench.wait(RESERVE_AFTER_MS)
    assert bench.state.reserved == {
        "both": ("agents anthropic/claude-opus-*",),
        "two": ("agents host:h1",),
    }
    bench.release("o2")
    assert bench.state.reserved["both"] == ("agents anthropic/claude-opus-*",)
    bench.release("s2")
    bench.release("s3")
    assert (bench.fate("two"), bench.fate("both")) == ("offered", "waits")
    bench.do(cmd.Claim("two"))
    bench.wait(2 * RESERVE_AFTER_MS)
    bench.release("two")
    assert bench.fate("both") == "offered"


def test_a_slot_that_is_kept_in_the_middle_of_settling_is_not_lent():
    """At one moment `next` is found to fit, then what it would take is kept for `wide`, which got its opus slots."""
    bench = Bench(agents={"host": 4, "anthropic/claude-opus-*": 2})
    bench.agent("o1", OPUS, host="h2")
    bench.agent("o2", OPUS)
    for n in range(3):
        bench.agent(f"s{n}", SONNET)
    bench.agent("wide", OPUS, slots=2)
    bench.wait(SECOND)
    bench.agent("o3", OPUS, host="h2")
    bench.agent("s3", SONNET)
    bench.release("o1")
    bench.release("s0")
    bench.do(cmd.Claim("o3"))
    bench.do(cmd.Claim("s3"))
    bench.agent("first", SONNET, holder="doomed")
    bench.agent("next", SONNET)
    bench.wait(RESERVE_AFTER_MS)
    assert bench.state.reserved == {"wide": ("agents anthropic/claude-opus-*",)}
    bench.release("o3")
    bench.do(cmd.Claim("o2", child="doomed"))
    bench.do(cmd.Lost(("doomed",)))
    assert bench.state.reserved == {"wide": ("agents anthropic/claude-opus-*", "agents host:h1")}
    assert bench.fate("next") == "waits"
    bench.release("s1")
    assert (bench.fate("wide"), bench.fate("next")) == ("offered", "waits")


def test_a_reservation_survives_rules_and_backoffs_of_its_own_model():
    bench = Bench(agents={"host": 1, "anthropic/claude-opus-*": 1})
    overtaken_twice(bench)
    bench.wait(RESERVE_AFTER_MS)
    kept = {"both": ("agents anthropic/claude-opus-*",)}
    assert bench.state.reserved == kept
    bench.cap("agents", "anthropic", 9)
    assert bench.state.reserved == kept
    bench.do(cmd.BackOff("anthropic/claude-opus-9", "overloaded"))
    assert bench.state.reserved == kept
    bench.do(cmd.BackOff("anthropic", "overloaded"))
    assert bench.state.reserved == {}


def test_a_reservation_survives_a_restart_and_other_rules_and_ends_with_what_makes_it_useless():
    bench = Bench(agents={"host": 1, "anthropic/claude-opus-*": 1})
    overtaken_twice(bench)
    bench.agent("gone", SONNET, host="h3")
    bench.agent("away", SONNET, host="h3")
    bench.release("gone")
    bench.wait(RESERVE_AFTER_MS)
    assert bench.fate("away") == "away"
    kept = {"both": ("agents anthropic/claude-opus-*",)}
    assert bench.state.reserved == kept
    bench.restart()
    bench.cap("requests", "umans", 3)
    assert bench.state.reserved == kept
    bench.do(cmd.Pause("agents", "host:h1", for_ms=SECOND))
    assert bench.state.reserved == {}


# One order within a project.


def cyclic(bench: Bench, *models: str) -> None:
    """In umans `f` is behind `g`, in anthropic `g` behind `f`; `g` may use either, in the order of `models`."""
    for n in range(3):
        bench.agent(f"f{n}", CODER, project="f", supervisor=True)
        bench.agent(f"g{n}", SONNET, project="g", supervisor=True)
    bench.agent("x", "openai/gpt-5", project="x", holder="doomed")
    bench.agent("f old", CODER, project="f")
    bench.wait(SECOND)
    bench.agent("g", *models, project="g", any_candidate=True)
    bench.wait(SECOND)
    bench.agent("f zero", SONNET, project="f", holder="doomed")
    bench.agent("f young", SONNET, project="f")


def test_a4_the_oldest_of_a_project_goes_first_though_its_shares_differ_from_pool_to_pool():
    """`f young` goes before `g` in anthropic, `g` before `f old` in umans: still not the young one before the old."""
    bench = Bench(agents={"host": 1, "umans": 9, "anthropic": 9})
    cyclic(bench, CODER, SONNET)
    bench.do(cmd.Cancel("f zero"))
    bench.cap("agents", "host", 2)
    assert (bench.fate("f old"), bench.fate("g"), bench.fate("f young")) == ("offered", "waits", "waits")


def test_a4_that_holds_also_for_one_that_is_parked_where_another_project_is_first():
    bench = Bench(agents={"host": 1, "umans": 9, "anthropic": 9})
    bench.agent("y", "openai/gpt-5", project="f")
    bench.release("y")
    cyclic(bench, SONNET, CODER)
    bench.do(cmd.Lost(("doomed",)))
    assert (bench.fate("f old"), bench.fate("g"), bench.fate("f young")) == ("offered", "waits", "waits")


# Deadlines.


def test_the_first_to_act_is_the_one_whom_the_next_deadline_is_about():
    bench = Bench(requests={"umans": 1})
    assert bench.engine.first_to_act() is None
    bench.call("a", CODER)
    bench.call("b", CODER)
    bench.call("c", CODER, since=START - MINUTE, expires_ms=10)
    first = bench.engine.first_to_act()
    assert first is not None
    assert first.id == "c", "it is about to expire"
    bench.wait(10)
    bench.release("a")
    first = bench.engine.first_to_act()
    assert first is not None
    assert first.id == "b", "a slot cools down for it"
    bench.wait(350)
    bench.call("d", CODER)
    first = bench.engine.first_to_act()
    assert first is not None
    assert first.id == "d", "a grant is about to go back, and d is the head"
    bench.do(cmd.Cancel("d"))
    assert bench.engine.first_to_act() is None, "no waiting process could see to it"


def test_a_pool_whose_line_has_gone_has_nobody_to_act():
    bench = Bench(requests={"umans": 1})
    bench.call("a", CODER)
    bench.call("b", CODER)
    bench.release("a")
    bench.do(cmd.Cancel("b"))
    assert bench.engine.first_to_act() is None


def test_an_empty_queue_is_never_chosen_compared_or_parked():
    """What cannot be stops the writer."""
    with pytest.raises(InternalError, match="<Queue  for default: 0 waiting> has no head"):
        State().queue(Spec()).first()
    with pytest.raises(InternalError, match="has no head"):
        _ = State().queue(Spec()).place


def test_a_process_that_only_follows_leaves_reservations_to_those_who_decide():
    """Its own look is due too; what was decided by then is not decided once more."""
    bench = Bench(agents={"host": 2})
    bench.agent("x", SONNET)
    bench.agent("y", SONNET)
    bench.agent("two", SONNET, slots=2)
    bench.wait(SECOND)
    bench.agent("z", SONNET)
    follower = Engine(State.restore(bench.state.export()))
    follower.handle(cmd.Tick(), bench.now)
    bench.now += RESERVE_AFTER_MS
    events = bench.do(cmd.Release("x"))
    follower.replay(events, bench.now)
    assert follower.handle(cmd.Tick(), bench.now) == []
    assert follower.state.export(bench.now) == bench.state.export(bench.now)
    due = follower.next_deadline()
    assert due is not None
    assert due > bench.now


def test_the_next_look_is_that_of_the_head_who_waits_now():
    """One timer serves all heads of a queue that stays parked: it moves on with them, and is none when nobody waits."""
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET)
    bench.agent("b", SONNET)
    bench.wait(10 * SECOND)
    bench.agent("c", SONNET)
    assert bench.engine.next_deadline() == START + RESERVE_AFTER_MS
    bench.wait(5 * SECOND)
    bench.release("a")
    bench.do(cmd.Claim("b"))
    assert bench.engine.next_deadline() == START + 10 * SECOND + RESERVE_AFTER_MS
    bench.release("b")
    bench.do(cmd.Claim("c"))
    bench.release("c")
    assert bench.engine.next_deadline() is None


def test_b1_a_backoff_of_another_changes_nothing_for_those_in_the_queue():
    bench = Bench(agents={"host": 1})
    bench.do(cmd.BackOff("umans", "overloaded", 10 * MINUTE))
    for ident in ("a", "b", "c"):
        bench.agent(ident, SONNET)
    bench.release("a")
    assert bench.running() == ["b"]
    bench.release("b")
    assert bench.running() == ["c"]


def test_a4_of_those_who_need_different_numbers_of_slots_the_oldest_enters():
    """A pool has room for both: its lots are looked at one after the other, and one that nobody stands in is none."""
    bench = Bench(agents={"host": 4})
    for ident in ("a", "b", "c", "d"):
        bench.agent(ident, SONNET)
    bench.agent("three", SONNET, slots=3)
    bench.agent("one", SONNET)
    bench.agent("two", SONNET, slots=2)
    bench.do(cmd.Cancel("three"))
    bench.do(cmd.Pause("agents", "host:h1"))
    for ident in ("a", "b", "c", "d"):
        bench.release(ident)
    bench.do(cmd.Resume("agents", "host:h1"))
    assert [event.id for event, _ in bench.log if isinstance(event, ev.Granted)][4:] == ["one", "two"]
