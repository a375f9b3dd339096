"""Rule P5: replay equals state, and a snapshot is the state."""

from __future__ import annotations

import pytest
from msgspec import Struct
from msgspec.structs import replace

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.engine import Engine
from fleetgate.core.entities import Rule, Spec
from fleetgate.core.errors import InternalError
from fleetgate.core.invariants import check_invariants
from fleetgate.core.limits.adaptive_state import Belief, Call
from fleetgate.core.state.snapshot_format import BeliefRecord, CallRecord, PoolRecord, Snapshot
from fleetgate.core.state.state import State
from tests.property.harness import CODER, HOUR, MINUTE, OPUS, SECOND, SONNET, START, Bench, through_json


def busy() -> Bench:
    """A gate in which something of everything is going on."""
    bench = Bench(agents={"host": 2, "anthropic/claude-opus-*": 1}, requests={"umans": 2}, seniority_ms=MINUTE)
    bench.cap("requests", "anthropic", 3)
    bench.do(cmd.RemoveCap("agents", "umans"))
    bench.do(cmd.Observe("h2", ((SONNET, 1), ("", 1)), room=3))
    for n in range(3):
        bench.agent(f"a{n}", OPUS, project="x", key=f"key {n}")
        bench.call(f"c{n}", CODER, project="y", caps=(("umans", 9),))
        bench.call(f"d{n}", CODER)
    bench.wait(SECOND)
    bench.release("c0")
    bench.do(cmd.Report("d0", retry_after_ms=MINUTE))
    bench.agent("big", SONNET, slots=2)
    bench.agent("s0", SONNET)
    bench.agent("s1", SONNET)
    bench.do(cmd.Bump("s1"))
    bench.release("a0")
    bench.do(cmd.Pause("requests", "anthropic"))
    bench.do(cmd.Bypass("p", (OPUS,), "opencode"))
    return bench


def test_replaying_the_log_gives_the_state():
    bench = busy()
    assert bench.replayed().export(bench.now) == bench.state.export(bench.now)
    check_invariants(bench.replayed())


def test_p5_a_snapshot_restores_the_state_also_through_json():
    bench = busy()
    snapshot = bench.state.export(bench.now)
    restored = State.restore(snapshot)
    assert restored.export(bench.now) == snapshot
    assert State.restore(through_json(snapshot)).export(bench.now) == snapshot
    check_invariants(restored)


@pytest.mark.parametrize(("kept", "record"), [(Belief(), BeliefRecord), (Call(1, 1, 1, bold=False), CallRecord)])
def test_p5_all_that_was_learned_is_in_its_record(kept: object, record: type[Struct]):
    assert {name for name in dir(kept) if not name.startswith("_")} == set(record.__struct_fields__)


def test_p5_a_restored_gate_goes_on_as_if_nothing_had_happened():
    one, other = busy(), busy()
    other.restart()
    for bench in (one, other):
        bench.wait(10 * SECOND)
        bench.do(cmd.Resume("requests", "anthropic"))
        bench.wait(2 * MINUTE)
        for ident in bench.running():
            bench.release(ident)
            bench.wait(SECOND)
    assert [event for event, _ in one.log] == [event for event, _ in other.log]
    assert one.state.export(one.now) == other.state.export(other.now)


def behind(bench: Bench, model: str) -> None:
    """Project `a` has had a slot; since then `b` had many, and is ahead of it."""
    for n in range(3):
        bench.agent(f"b{n}", model, project="b")
        bench.wait(MINUTE)
        bench.release(f"b{n}")


def test_p5_an_account_that_is_settled_later_is_the_same_after_a_restart():
    """Nobody of `a` waits, so a snapshot does not speak of it; then its lease ends, later than expected."""
    bench = Bench(agents={"host": 2})
    bench.agent("a", SONNET, project="a")
    behind(bench, SONNET)
    bench.restart()
    bench.release("a")
    bench.agent("a again", SONNET, project="a")


def test_p5_one_who_comes_to_wait_for_a_pool_by_new_rules_is_the_same_after_a_restart():
    bench = Bench(agents={"host": 2})
    bench.agent("a", OPUS, project="a")
    behind(bench, OPUS)
    bench.file(Rule("agents", "host", cap=1), Rule("agents", "anthropic", cap=9))
    bench.agent("waits", OPUS, project="a")
    bench.restart()
    bench.file(Rule("agents", "host", cap=1))
    assert bench.state.pools["agents */claude-opus-*:anthropic"].shares.of("a").waiting == 1


def test_a_snapshot_does_not_change_when_the_state_goes_on():
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET)
    bench.agent("b", SONNET)
    bench.release("a")
    snapshot = bench.state.export()
    written = through_json(snapshot)
    restored = State.restore(snapshot)
    bench.do(cmd.Claim("b", child="c"))
    assert snapshot == written
    assert not restored.leases["b"].claimed
    restored.apply(ev.Claimed("b"), bench.now)
    assert snapshot == written


def test_a_snapshot_is_as_of_a_moment():
    bench = Bench(requests={"umans": 1})
    bench.call("a", CODER)
    bench.release("a")
    bench.do(cmd.Pause("requests", "umans", for_ms=MINUTE))
    (record,) = bench.state.export().pools
    assert (record.cooling, record.paused_until) == ([(START + 350, 1)], START + MINUTE)
    (record,) = bench.state.export(START + MINUTE).pools
    assert (record.cooling, record.paused_until, record.pause_cause) == ([], 0, "")


def test_pools_that_no_release_knows_any_more_are_passed_over():
    snapshot = Snapshot(seq=5, at=START, pools=[PoolRecord("agents", "gone", reduced=3)])
    assert State.restore(snapshot).pools == {}


def test_j2_a_ticket_may_stand_in_the_queue_that_asks_for_nothing_yet():
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET)
    bench.agent("b", SONNET)
    (queued,) = bench.of(ev.Queued)
    assert isinstance(queued, ev.Queued)
    state = State()
    state.apply(ev.Queued(replace(queued.ticket, away=True), queued.reason), START)
    assert (len(state.tickets), state.changed_queues) == (1, {})
    state.apply(ev.Asked("b"), START)
    assert len(state.changed_queues) == 1
    check_invariants(state)


def test_time_does_not_go_backwards():
    bench = Bench()
    bench.agent("a", SONNET)
    with pytest.raises(InternalError, match="backwards"):
        bench.engine.handle(cmd.Tick(), bench.now - 1)


def test_tick_comes_before_other_commands_after_a_restart():
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET)
    bench.agent("b", SONNET)
    engine = Engine(State.restore(bench.state.export()))
    with pytest.raises(InternalError, match="Tick"):
        engine.handle(cmd.Release("a"), bench.now)
    assert engine.handle(cmd.Tick(), bench.now) == []
    assert engine.handle(cmd.Release("a"), bench.now) != []


def test_a_process_that_takes_over_in_the_middle_sees_to_every_deadline():
    """Timers follow from what was replayed: a cooldown, a grant, an expiry, an overtaken ticket."""
    bench = Bench(requests={"umans": 1})
    for name in ("a", "b", "c"):
        bench.call(name, CODER, expires_ms=15 * SECOND)
    bench.release("a")
    bench.engine, bench.other = bench.other, bench.engine
    bench.wait(350)
    assert bench.fate("b") == "offered"
    bench.engine, bench.other = bench.other, bench.engine
    bench.wait(10 * SECOND)
    assert bench.fate("b") == "away"
    bench.engine, bench.other = bench.other, bench.engine
    bench.wait(10 * SECOND)
    assert (bench.fate("b"), bench.fate("c")) == ("expired", "expired")
    assert [event.after_ms for event in bench.of(ev.Expired) if isinstance(event, ev.Expired)] == [15_000, 20_350]


def test_b2_a_gate_that_slept_ends_all_backoffs_that_are_over_before_it_lets_anybody_in():
    """Nobody is let in to try out what is over anyway, and the others need not wait for a verdict."""
    bench = Bench()
    bench.do(cmd.BackOff("umans", "overloaded", MINUTE))
    bench.do(cmd.BackOff(CODER, "overloaded", MINUTE))
    for name in ("a", "b"):
        bench.call(name, CODER)
    bench.now += HOUR
    bench.do(cmd.Tick())
    assert (bench.fate("a"), bench.fate("b")) == ("offered", "offered")
    assert [event.probes for event in bench.of(ev.Granted) if isinstance(event, ev.Granted)] == [(), ()]


def test_b2_a_probe_is_waited_for_after_the_rules_have_changed():
    bench = Bench()
    bench.do(cmd.BackOff("umans", "overloaded", 24 * HOUR))
    bench.wait(6 * HOUR)
    assert bench.call("probe", CODER) == "granted"
    assert bench.call("other", CODER) == "waits"
    bench.cap("requests", "anthropic", 5)
    bench.wait(MINUTE)
    assert bench.fate("other") == "offered"
    assert bench.state.backoffs == {}


def test_many_queues_that_nobody_stands_in_are_forgotten(monkeypatch):
    monkeypatch.setattr("fleetgate.core.state.state._MAX_QUEUES", 4)
    bench = Bench(agents={"host": 1})
    for n in range(12):
        bench.agent(f"a{n}", SONNET, project=f"p{n}", wait=n % 3 == 0)
    assert len(bench.state.queues) <= 6
    for _ in range(4):
        bench.release(bench.running()[0])
    assert bench.state.tickets == {}


def test_a_long_line_forgets_the_places_of_those_who_left():
    bench = Bench(agents={"host": 1})
    bench.agent("first", SONNET)
    for n in range(100):
        bench.engine.handle(cmd.Acquire(f"a{n}", bench.spec(SONNET), "p"), bench.now)
    for n in range(90):
        bench.engine.handle(cmd.Cancel(f"a{99 - n}"), bench.now)
    (queue,) = bench.state.queues.values()
    assert queue.waiting == 10
    assert len(queue._heap) < 70
    bench.engine.handle(cmd.Release("first"), bench.now)
    assert "a0" in bench.state.leases


def test_timers_of_leases_that_are_gone_are_forgotten():
    engine = Engine()
    engine.handle(cmd.SetRule(Rule("requests", "umans", cap=5, on_429="step", cooldown_ms=0)), START)
    spec = Spec(models=(CODER,), kind="requests")
    for n in range(5_000):
        engine.handle(cmd.Acquire(f"c{n}", spec, "p"), START)
        engine.handle(cmd.Release(f"c{n}"), START)
    assert len(engine.deadlines.heap) + len(engine.deadlines._far) < 4_200
    assert engine.next_deadline() is None


def test_repr_is_an_operators_sentence():
    bench = Bench(requests={"umans": 2})
    bench.call("a", CODER)
    bench.call("b", CODER)
    bench.release("a")
    bench.do(cmd.Pause("requests", "umans", for_ms=SECOND))
    bench.call("c", CODER)
    assert repr(bench.engine).startswith("<Engine <State at ")
    assert repr(bench.state.pools["requests umans"]) == (
        f"<Pool requests umans: 1 of 2, 1 cooling, paused until {START + SECOND}>"
    )
    assert repr(next(iter(bench.state.queues.values()))) == "<Queue umans/coder for default: 1 waiting>"
    bench.call("d", SONNET, caps=(("anthropic", 1),))
    assert repr(bench.state.pools["requests anthropic"]) == "<Pool requests anthropic: 1 of unlimited>"
