"""L1, L2, L5, and grants: what becomes of granted slots."""

from __future__ import annotations

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Rule, Spec
from fleetgate.core.errors import BadRequest, NotFound
from tests.property.harness import CODER, MINUTE, SECOND, SONNET, START, Bench

# L1, L3.


def test_l1_releasing_twice_or_after_a_reclaim_is_harmless():
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET)
    bench.release("a")
    assert bench.release("a") == []
    bench.agent("b", SONNET)
    bench.do(cmd.Reclaim("b", "me"))
    assert bench.release("b") == []
    assert bench.release("never was") == []


def test_l3_a_lease_taken_back_by_force_says_by_whom():
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET, project="x")
    bench.wait(SECOND)
    bench.do(cmd.Reclaim("a", "alice"))
    assert bench.of(ev.Reclaimed) == [ev.Reclaimed("a", "forced", SONNET, SECOND, "alice", "agents", "x")]
    with pytest.raises(NotFound, match="fleetgate ps"):
        bench.do(cmd.Reclaim("a", "alice"))


def test_o7_a_released_lease_leaves_the_facts_of_its_run():
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET)
    bench.wait(SECOND)
    bench.agent("b", SONNET, role="coder", session="s1", project="x")
    bench.wait(SECOND)
    bench.release("a")
    bench.do(cmd.Claim("b", child="c"))
    bench.wait(MINUTE)
    bench.do(cmd.Release("b", "local_error", exit_code=3, activity=True, evidence="no_activity"))
    (_, event) = bench.of(ev.Released)
    assert event == ev.Released(
        id="b",
        outcome="local_error",
        model=SONNET,
        waited_ms=SECOND,
        held_ms=MINUTE,
        kind="agents",
        project="x",
        exit_code=3,
        activity=True,
        role="coder",
        session="s1",
        evidence="no_activity",
    )


# L5: the longest hold.


def test_l5_a_request_that_overstays_is_taken_back_once():
    bench = Bench(requests={"umans": 1})
    bench.call("a", CODER)
    bench.wait(30 * MINUTE - 1)
    assert bench.fate("a") == "granted"
    bench.wait(10 * MINUTE)
    assert bench.fate("a") == "reclaimed"
    assert bench.of(ev.Reclaimed) == [ev.Reclaimed("a", "overstayed", CODER, 30 * MINUTE, kind="requests")]


def test_l5_agents_have_no_longest_hold_by_default():
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET)
    assert bench.engine.next_deadline() is None


def test_l5_the_shortest_of_its_pools_counts():
    rules = (Rule("agents", "host", cap=9, max_hold_ms=2 * MINUTE), Rule("agents", "umans", cap=9, max_hold_ms=MINUTE))
    bench = Bench(rules=(*rules, Rule("agents", "project", cap=9, max_hold_ms=0)))
    bench.agent("a", CODER)
    assert bench.lease("a").ends_at == START + MINUTE


def test_l5_a_lease_with_a_child_is_left_to_its_runner():
    bench = Bench(rules=(Rule("agents", "host", cap=1, max_hold_ms=MINUTE),))
    bench.agent("a", SONNET)
    bench.do(cmd.Claim("a", child="c"))
    assert bench.wait(5 * MINUTE) == []
    assert bench.fate("a") == "granted"


def test_l5_survives_a_restart():
    bench = Bench(requests={"umans": 1})
    bench.call("a", CODER)
    bench.restart()
    bench.wait(30 * MINUTE)
    assert bench.fate("a") == "reclaimed"


# Grants that are not claimed.


def test_a_grant_that_is_not_claimed_goes_back_to_its_place_and_is_passed_over():
    bench = Bench(agents={"host": 1})
    for name in ("a", "stopped", "next"):
        bench.agent(name, SONNET)
    bench.release("a")
    bench.wait(10 * SECOND - 1)
    assert (bench.fate("stopped"), bench.fate("next")) == ("offered", "waits")
    bench.wait(1)
    assert (bench.fate("stopped"), bench.fate("next")) == ("away", "offered")


@pytest.mark.parametrize("word", [cmd.Ask("stopped"), cmd.Claim("stopped")])
def test_one_that_was_passed_over_has_its_old_place_when_it_speaks(word):
    bench = Bench(agents={"host": 1})
    for name in ("a", "stopped", "next", "last"):
        bench.agent(name, SONNET)
    bench.release("a")
    bench.wait(10 * SECOND)
    bench.do(cmd.Claim("next"))
    assert bench.do(word) == [ev.Asked("stopped")]
    assert bench.do(word) == []
    bench.release("next")
    assert (bench.fate("stopped"), bench.fate("last")) == ("offered", "waits")


def test_one_that_was_passed_over_asks_for_nothing_though_slots_are_free():
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET)
    bench.agent("stopped", SONNET)
    bench.release("a")
    bench.wait(10 * SECOND)
    assert bench.fate("stopped") == "away"
    assert bench.agent("newcomer", SONNET) == "granted"
    bench.release("newcomer")
    bench.do(cmd.Ask("stopped"))
    assert bench.fate("stopped") == "offered"


def test_one_that_was_passed_over_can_expire_be_cancelled_and_be_lost():
    bench = Bench(agents={"host": 3})
    for name in ("x", "y", "z"):
        bench.agent(name, SONNET)
    for name in ("a", "b", "c"):
        bench.agent(name, SONNET, expires_ms=MINUTE)
    for name in ("x", "y", "z"):
        bench.release(name)
    bench.wait(10 * SECOND)
    assert [bench.fate(name) for name in "abc"] == ["away"] * 3
    bench.do(cmd.Cancel("a"))
    bench.do(cmd.Lost(("p-b",)))
    bench.wait(MINUTE)
    assert [bench.fate(name) for name in "abc"] == ["cancelled", "dropped", "expired"]


def test_a_grant_that_comes_back_after_its_time_expires_at_once():
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET)
    bench.agent("b", SONNET, expires_ms=15 * SECOND)
    bench.wait(14 * SECOND)
    bench.release("a")
    bench.wait(10 * SECOND)
    assert bench.fate("b") == "expired"


def test_a_claim_in_time_keeps_the_grant_and_ties_it_to_the_child():
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET)
    bench.agent("b", SONNET)
    bench.release("a")
    bench.do(cmd.Claim("b"))
    assert bench.do(cmd.Claim("b")) == []
    bench.do(cmd.Claim("b", child="c"))
    assert bench.do(cmd.Claim("b", child="c")) == []
    bench.wait(MINUTE)
    assert bench.fate("b") == "granted"
    assert bench.lease("b").lives_with == "c"


def test_a_claim_of_one_that_still_waits_says_nothing():
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET)
    bench.agent("b", SONNET)
    assert bench.do(cmd.Claim("b")) == []
    assert bench.do(cmd.Ask("b")) == []
    assert bench.do(cmd.Ask("nobody")) == []


def test_grants_to_whoever_decides_are_claimed_at_once():
    bench = Bench(agents={"host": 1}, me="me")
    bench.agent("a", SONNET)
    bench.agent("b", SONNET, holder="me")
    bench.release("a")
    assert bench.fate("b") == "granted"


def test_but_not_when_they_are_woken_elsewhere():
    bench = Bench(agents={"host": 1}, me="me")
    bench.agent("a", SONNET)
    bench.agent("b", SONNET, holder="me", wake="/run/other.sock")
    bench.release("a")
    assert bench.fate("b") == "offered"


def test_a_grant_is_due_after_a_restart_too():
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET)
    bench.agent("b", SONNET)
    bench.release("a")
    bench.restart()
    bench.wait(10 * SECOND)
    assert bench.fate("b") == "away"


# L2: processes that are gone.


def test_l2_what_a_lost_process_held_is_free_and_what_it_waited_for_is_dropped():
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET, holder="dead")
    bench.agent("b", SONNET, holder="dead")
    bench.agent("c", SONNET, holder="alive")
    bench.do(cmd.Lost(("dead", "also dead")))
    assert [bench.fate(name) for name in "abc"] == ["reclaimed", "dropped", "offered"]
    assert bench.do(cmd.Lost(("dead",))) == []


def test_l2_a_lease_lives_as_long_as_the_child_it_was_lent_to():
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET, holder="wrapper")
    bench.do(cmd.Claim("a", child="child"))
    assert bench.do(cmd.Lost(("wrapper",))) == []
    bench.do(cmd.Lost(("child",)))
    assert bench.fate("a") == "reclaimed"


def test_l4_a_lease_bound_to_a_script_lives_as_long_as_the_script():
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET, holder="fleetgate acquire", bound="script")
    bench.agent("b", SONNET, holder="fleetgate acquire 2", bound="script")
    assert bench.do(cmd.Lost(("fleetgate acquire",))) == []
    bench.do(cmd.Lost(("script",)))
    assert [bench.fate(name) for name in "ab"] == ["reclaimed", "dropped"]


def test_l2_a_grant_that_nobody_is_left_to_claim_is_free_at_once():
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET)
    bench.agent("b", SONNET, holder="fleetgate acquire", bound="script")
    bench.agent("c", SONNET)
    bench.release("a")
    bench.do(cmd.Lost(("fleetgate acquire",)))
    assert [bench.fate(name) for name in "bc"] == ["reclaimed", "offered"]


# L6.


def test_l6_the_first_request_to_stop_an_agent_is_recorded_and_names_its_author():
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET)
    bench.do(cmd.Stop("a", "alice"))
    bench.do(cmd.Stop("a", "bob"))
    assert bench.of(ev.StopRequested) == [ev.StopRequested("a", "alice")]
    assert bench.state.leases["a"].stop_by == "alice"
    assert "a" in bench.state.leases, "its slot is free when its processes are gone"
    with pytest.raises(NotFound, match="fleetgate ps"):
        bench.do(cmd.Stop("never was", "alice"))


def test_l6_no_gate_can_stop_an_http_client():
    bench = Bench(requests={"umans": 1})
    bench.do(cmd.Acquire("a", Spec(models=(CODER,), kind="requests"), "p", renew_ms=30_000))
    with pytest.raises(BadRequest, match="HTTP client"):
        bench.do(cmd.Stop("a", "alice"))


def test_l6_the_loss_of_a_process_that_was_to_be_stopped_names_who_stopped_it():
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET)
    bench.do(cmd.Claim("a", child="c"))
    bench.do(cmd.Stop("a", "alice"))
    bench.do(cmd.Lost(("c",)))
    assert bench.of(ev.Reclaimed) == [ev.Reclaimed("a", "lost", SONNET, 0, "alice", "agents", "default")]
