"""C7 and A13: a host's memory, and agents that were started outside Fleetgate."""

from __future__ import annotations

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Rule
from fleetgate.core.errors import BadName, BadRequest
from tests.property.harness import CODER, OPUS, SONNET, Bench

AUTO = Rule("agents", "host", auto=True)


# C7.


def test_c7_an_automatic_host_has_what_is_lent_plus_the_room_in_memory():
    bench = Bench(rules=(AUTO,))
    bench.do(cmd.Observe("h1", room=2))
    assert [bench.agent(f"a{n}", SONNET) for n in range(3)] == ["granted", "granted", "waits"]
    bench.do(cmd.Observe("h1", room=1))
    assert bench.limit("host:h1") == 3
    assert bench.fate("a2") == "offered"
    bench.do(cmd.Observe("h1", room=-5))
    assert bench.limit("host:h1") == 1


def test_c7_it_is_never_less_than_one_nor_more_than_max():
    bench = Bench(rules=(AUTO,))
    assert bench.agent("a", SONNET) == "granted", "one before anything was seen"
    bench.do(cmd.Observe("h1", room=-99))
    assert bench.limit("host:h1") == 1
    bench.do(cmd.Observe("h1", room=99))
    assert bench.limit("host:h1") == 8
    bench.do(cmd.Observe("h1", room=99, most=20))
    assert bench.limit("host:h1") == 20


def test_c7_supervisors_and_calls_and_other_hosts_take_no_slot_of_it():
    bench = Bench(rules=(AUTO,))
    for n in range(4):
        bench.agent(f"s{n}", SONNET, supervisor=True)
        bench.call(f"c{n}", SONNET)
    bench.agent("there", SONNET, host="h2")
    bench.do(cmd.Observe("h1", room=0))
    bench.agent("a", SONNET)
    assert bench.limit("host:h1") == 1


def test_c7_each_host_has_its_own():
    bench = Bench(rules=(AUTO,))
    bench.do(cmd.Observe("h1", room=5))
    bench.do(cmd.Observe("h2", room=2))
    bench.agent("a", SONNET, host="h1")
    bench.agent("b", SONNET, host="h2")
    assert (bench.limit("host:h1"), bench.limit("host:h2")) == (5, 2)


def test_c7_a_host_that_becomes_automatic_knows_what_was_seen_before():
    bench = Bench(agents={"host": 3})
    bench.agent("a", SONNET)
    bench.do(cmd.Observe("h1", room=4))
    bench.do(cmd.SetRule(AUTO))
    assert bench.limit("host:h1") == 5
    bench.restart()
    assert bench.limit("host:h1") == 5
    bench.cap("agents", "host", 2)
    assert bench.limit("host:h1") == 2


def test_c7_what_is_known_is_not_told_again():
    bench = Bench(rules=(AUTO,))
    assert bench.do(cmd.Observe("h1", room=4)) == [ev.Observed("h1", (), 4)]
    assert bench.do(cmd.Observe("h1", room=4)) == []
    assert bench.do(cmd.Observe("h1")) == []
    assert bench.do(cmd.Observe("h2")) == []


# A13.


def test_a13_foreign_agents_count_in_every_pool_they_match():
    bench = Bench(agents={"host": 50, "anthropic/claude-opus-*": 4})
    bench.do(cmd.Observe("h1", ((OPUS, 6), ("", 2))))
    assert bench.agent("a", OPUS, wait=False) == "deferred"
    assert (bench.reason("a").code, bench.reason("a").in_flight) == ("opus_concurrency_cap", 6)
    assert bench.agent("b", SONNET) == "granted"
    assert bench.state.pools["agents host:h1"].foreign == 8


def test_a13_when_enough_of_them_end_a_waiting_run_starts_by_itself():
    bench = Bench(agents={"host": 50, "anthropic/claude-opus-*": 4})
    bench.do(cmd.Observe("h1", ((OPUS, 6),)))
    assert bench.agent("a", OPUS) == "waits"
    bench.do(cmd.Observe("h1", ((OPUS, 4),)))
    assert bench.fate("a") == "waits"
    bench.do(cmd.Observe("h1", ((OPUS, 3),)))
    assert bench.fate("a") == "offered"
    bench.do(cmd.Observe("h1"))
    assert bench.state.foreign == {}


def test_a13_they_count_on_their_host_and_with_their_account():
    bench = Bench(agents={"host": 1, "umans": 1})
    bench.do(cmd.Observe("h1", (("umans@work/coder", 1),)))
    assert bench.agent("a", SONNET, host="h1") == "waits"
    assert bench.agent("b", CODER, host="h2") == "granted"
    assert bench.agent("c", "umans@work/coder", host="h3") == "waits"


def test_a13_they_take_no_requests_slots_and_belong_to_no_project():
    bench = Bench(agents={"project": 1, "host": 9}, requests={"umans": 1})
    bench.do(cmd.Observe("h1", ((CODER, 5),)))
    assert bench.agent("a", CODER, project="default") == "granted"
    assert bench.agent("b", CODER, project="") == "granted"
    assert bench.call("c", CODER) == "granted"


def test_a13_they_count_in_pools_that_rules_make_later():
    bench = Bench(agents={"host": 50})
    bench.do(cmd.Observe("h1", ((CODER, 5),)))
    bench.cap("agents", "umans", 5)
    assert bench.agent("a", CODER) == "waits"
    bench.restart()
    assert bench.state.pools["agents umans"].foreign == 5


def test_a13_a_name_that_is_no_model_or_a_number_that_is_none_changes_nothing():
    bench = Bench()
    with pytest.raises(BadName):
        bench.do(cmd.Observe("h1", (("nonsense", 1),)))
    with pytest.raises(BadRequest):
        bench.do(cmd.Observe("h1", ((CODER, -1),)))
    assert bench.state.foreign == {}


def test_a13_foreign_agents_leave_the_pool_of_a_built_in_cap_that_is_replaced():
    bench = Bench()
    bench.agent("a", OPUS)
    bench.do(cmd.Observe("h1", ((OPUS, 2),)))
    assert bench.state.pools["agents */claude-opus-*:anthropic"].foreign == 2
    bench.cap("agents", "anthropic", 9)
    assert bench.state.pools["agents */claude-opus-*:anthropic"].foreign == 0
    assert bench.state.pools["agents anthropic"].foreign == 2
