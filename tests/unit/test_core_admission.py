"""A1-A4, A6-A10 and A12: who enters, in which order, and why not."""

from __future__ import annotations

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Rule, Spec
from fleetgate.core.errors import BadRequest
from fleetgate.core.state.state import State
from fleetgate.core.views.wait_reasons import reason_for
from tests.property.harness import CODER, HOUR, MINUTE, OPUS, SECOND, SONNET, START, Bench

# A1-A3: the limit, all or none, and nobody held back for nothing.


def test_a1_no_more_slots_are_lent_than_the_limit():
    bench = Bench(agents={"host": 3})
    fates = [bench.agent(f"a{n}", SONNET) for n in range(5)]
    assert fates == ["granted", "granted", "granted", "waits", "waits"]
    bench.release("a1")
    assert [bench.fate(f"a{n}") for n in range(5)] == ["granted", "released", "granted", "offered", "waits"]


def test_a1_a_limit_lowered_below_what_is_lent_lets_nobody_in_until_it_fits():
    bench = Bench(agents={"host": 3})
    for n in range(3):
        bench.agent(f"a{n}", SONNET)
    bench.agent("next", SONNET)
    bench.cap("agents", "host", 1)
    assert bench.running() == ["a0", "a1", "a2"], "nobody is thrown out"
    bench.release("a0")
    bench.release("a1")
    assert bench.fate("next") == "waits"
    bench.release("a2")
    assert bench.fate("next") == "offered"


def test_a2_all_pools_are_decided_together():
    bench = Bench(agents={"host": 1, "anthropic/claude-opus-*": 1})
    bench.agent("a", SONNET)
    assert bench.agent("b", OPUS) == "waits", "opus is free and the host is not"
    assert bench.used("anthropic/claude-opus-*") == 0, "nothing is held while waiting"
    bench.release("a")
    assert bench.fate("b") == "offered"
    assert bench.used("anthropic/claude-opus-*") == bench.used("host:h1") == 1


def test_a2_slots_are_given_together():
    bench = Bench(agents={"host": 3})
    assert bench.agent("two", SONNET, slots=2) == "granted"
    assert bench.agent("also two", SONNET, slots=2) == "waits"
    assert bench.used("host:h1") == 2


def test_a3_full_opus_pool_does_not_hold_back_sonnet():
    bench = Bench(agents={"host": 50, "anthropic/claude-opus-*": 1})
    bench.agent("a", OPUS)
    assert bench.agent("b", OPUS) == "waits"
    assert bench.agent("c", SONNET) == "granted"


def test_a3_other_kinds_hosts_and_projects_are_not_held_back():
    bench = Bench(agents={"host": 1, "project": 1}, requests={"anthropic": 1})
    bench.agent("a", SONNET, project="x")
    assert bench.agent("b", SONNET, project="x") == "waits"
    assert bench.agent("c", SONNET, project="y", host="h2") == "granted"
    assert bench.call("d", SONNET) == "granted"


def test_r8_a_supervisor_takes_no_host_slot():
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET)
    assert bench.agent("boss", SONNET, supervisor=True) == "granted"
    assert bench.used("host:h1") == 1


def test_c4_what_nothing_caps_is_admitted_at_once_and_is_still_listed():
    bench = Bench()
    assert [bench.call(f"c{n}", CODER) for n in range(20)] == ["granted"] * 20
    assert len(bench.running()) == 20


# A4: order.


def test_a4_the_oldest_prompt_goes_first_whoever_came_first():
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET)
    bench.agent("came first", SONNET, since=START - SECOND)
    bench.agent("is older", SONNET, since=START - MINUTE)
    bench.release("a")
    assert bench.fate("is older") == "offered"


def test_a4_ties_go_by_arrival():
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET)
    for name in ("z", "y", "x"):
        bench.agent(name, SONNET, since=START)
    bench.release("a")
    assert bench.fate("z") == "offered"


@pytest.mark.parametrize(("older_by_ms", "first"), [(11_999, "urgent"), (12_001, "old")])
def test_a4_a_point_of_priority_is_worth_twelve_seconds_of_waiting(older_by_ms, first):
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET)
    bench.agent("old", SONNET, since=START - older_by_ms)
    bench.agent("urgent", SONNET, priority=1)
    bench.release("a")
    assert bench.fate(first) == "offered"


def test_a4_a_since_in_the_future_counts_as_now():
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET)
    bench.agent("b", SONNET, since=START + HOUR)
    assert bench.state.tickets["b"].since == START


def test_a4_seniority_caps_how_much_older_than_its_queueing_a_since_counts():
    bench = Bench(agents={"host": 1}, seniority_ms=10 * MINUTE)
    bench.wait(HOUR)
    bench.agent("a", SONNET)
    bench.agent("queued first", SONNET, since=bench.now - 11 * MINUTE)
    bench.wait(SECOND)
    bench.agent("claims to be old", SONNET, since=0)
    bench.release("a")
    assert bench.fate("queued first") == "offered"


def test_a4_a_newcomer_waits_behind_an_equal_though_both_could_have_a_slot_now():
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET)
    bench.agent("first", SONNET)
    bench.do(cmd.Pause("agents", "host:h1", for_ms=MINUTE))
    bench.release("a")
    assert bench.agent("newcomer", SONNET) == "waits"
    bench.wait(MINUTE)
    assert (bench.fate("first"), bench.fate("newcomer")) == ("offered", "waits")


def test_a4_one_who_does_not_want_to_wait_does_not_jump_the_queue_either():
    bench = Bench(agents={"host": 2})
    bench.agent("a", SONNET)
    bench.agent("two", SONNET, slots=2)
    assert bench.agent("also two", SONNET, slots=2, wait=False) == "deferred"


def test_a4_heads_of_different_queues_of_one_project_go_by_age():
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET)
    bench.agent("younger", SONNET)
    bench.agent("older", OPUS, since=START - MINUTE)
    bench.release("a")
    assert bench.fate("older") == "offered"


def test_a4_the_order_of_a_project_is_kept_though_its_shares_differ_from_pool_to_pool():
    """One project is ahead of another in one pool and behind it in the other: still its oldest goes first."""
    pools = {"host": 50, "anthropic": 1, "umans": 1, "*": 9, "*@shared": 1}
    bench = Bench(agents=pools)
    # f has used much of anthropic, g much of umans.
    for n in range(5):
        bench.agent(f"f{n}", SONNET, project="f", supervisor=True)
        bench.agent(f"g{n}", CODER, project="g", supervisor=True)
        bench.wait(MINUTE)
        bench.release(f"f{n}")
        bench.release(f"g{n}")
    bench.agent("x", "anthropic@shared/m", "umans@shared/m", project="x")
    bench.do(cmd.Pause("agents", "*@shared"))
    bench.agent("f old", "anthropic@shared/m", project="f")
    bench.agent("g", "anthropic@shared/m", "umans@shared/m", project="g", any_candidate=True)
    bench.agent("f young", "umans@shared/m", project="f")
    bench.release("x")
    bench.do(cmd.Resume("agents", "*@shared"))
    assert bench.fate("f young") == "waits"
    assert "offered" in (bench.fate("f old"), bench.fate("g"))


# B5: candidates.


def test_a7_a_grant_to_one_who_decides_is_claimed_at_once_wherever_it_listens_by_now():
    """A process opens its mailbox after its engine: until then it has no address."""
    bench = Bench(requests={"umans": 1}, me="me")
    bench.engine.woken_at("mailbox")
    spec = Spec((CODER,), "requests")
    for ident, wake in (("first", "mailbox"), ("second", "mailbox"), ("third", "elsewhere")):
        bench.do(cmd.Acquire(ident, spec, "me", True, bench.now, wake=wake))
    bench.do(cmd.Release("first"))
    bench.wait(MINUTE)  # it cools down
    assert bench.state.leases["second"].claimed
    bench.do(cmd.Release("second"))
    bench.wait(5 * SECOND)
    assert not bench.state.leases["third"].claimed


def test_b5_without_any_only_the_first_candidate_is_used():
    bench = Bench(agents={"host": 50, "anthropic": 1})
    bench.agent("a", SONNET)
    assert bench.agent("b", SONNET, CODER) == "waits"


def test_b5_with_any_the_next_candidate_is_used_when_pools_are_full():
    bench = Bench(agents={"host": 50, "anthropic": 1, "umans": 1})
    bench.agent("a", SONNET)
    assert bench.agent("b", SONNET, CODER, any_candidate=True) == "granted"
    assert bench.lease("b").model == CODER
    assert bench.agent("c", SONNET, CODER, any_candidate=True) == "waits"
    bench.release("b")
    assert bench.lease("c").model == CODER


def test_b5_with_any_the_preferred_candidate_is_used_when_it_is_free():
    bench = Bench(agents={"host": 50, "anthropic": 1, "umans": 1})
    assert bench.agent("a", SONNET, CODER, any_candidate=True) == "granted"
    assert bench.lease("a").model == SONNET


def test_b5_with_any_both_candidates_may_wait_for_the_same_pool():
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET)
    assert bench.agent("b", SONNET, CODER, any_candidate=True) == "waits"
    bench.release("a")
    assert bench.lease("b").model == SONNET


def test_n1_the_default_account_may_be_written():
    bench = Bench(agents={"umans": 1, "host": 9})
    assert bench.agent("a", "umans@default/coder") == "granted"
    assert bench.lease("a").model == CODER
    assert bench.agent("b", CODER) == "waits"


# A6: reasons.


def test_a6_the_narrowest_pool_is_named_and_all_are_listed():
    bench = Bench(agents={"host": 1, "anthropic/claude-opus-*": 1})
    bench.agent("a", OPUS)
    bench.agent("b", OPUS)
    reason = bench.reason("b")
    assert (reason.code, reason.pool) == ("opus_concurrency_cap", "anthropic/claude-opus-*")
    assert reason.pools == ["anthropic/claude-opus-*", "host:h1"]
    assert (reason.in_flight, reason.limit, reason.model) == (1, 1, OPUS)


def test_a6_a_cap_without_a_name_has_the_plain_code_and_one_with_a_name_its_own():
    bench = Bench(
        rules=(Rule("agents", "host", cap=1), Rule("requests", "umans", cap=1, on_429="step", name="umans_calls"))
    )
    bench.agent("a", SONNET)
    bench.agent("b", SONNET)
    assert bench.reason("b").code == "concurrency_cap"
    bench.call("c", CODER)
    bench.call("d", CODER)
    assert bench.reason("d").code == "umans_calls_concurrency_cap"


def test_a6_cooling_is_told_apart_from_full():
    bench = Bench(requests={"umans": 1})
    bench.call("a", CODER)
    bench.release("a")
    bench.call("b", CODER)
    assert (bench.reason("b").code, bench.reason("b").until) == ("cooling", START + 350)


def test_a6_a_pause_says_until_when_and_after_what():
    bench = Bench(requests={"umans": 2})
    bench.do(cmd.Pause("requests", "umans", for_ms=MINUTE))
    bench.call("a", CODER)
    assert (bench.reason("a").code, bench.reason("a").until) == ("paused", START + MINUTE)
    assert "rate limit" not in bench.reason("a").text
    bench.do(cmd.Report(kind="requests", target="umans", retry_after_ms=2 * MINUTE))
    bench.call("b", CODER, wait=False)
    assert "after a rate limit" in bench.reason("b").text


def test_a6_behind_says_how_many_are_ahead():
    bench = Bench(agents={"host": 1, "umans": 1})
    bench.agent("a", CODER)
    bench.agent("b", CODER)
    assert bench.reason("b").pools == ["umans", "host:h1"]
    bench.do(cmd.RemoveCap("agents", "umans"))
    bench.cap("agents", "host", 2)
    assert bench.fate("b") == "offered"


def test_a6_foreign_agents_are_named():
    bench = Bench(agents={"host": 1})
    bench.do(cmd.Observe("h1", ((OPUS, 1),)))
    bench.agent("a", SONNET)
    assert "1 by agents started outside Fleetgate" in bench.reason("a").text


def test_a6_a_limit_below_what_is_in_use_is_not_told_as_a_part_of_it():
    bench = Bench(agents={"host": 2})
    bench.agent("a", SONNET)
    bench.agent("b", SONNET)
    bench.cap("agents", "host", 1)
    bench.agent("c", SONNET)
    assert bench.reason("c").text == "host:h1: 2 in use, the limit is 1"


def test_a6_others_are_ahead_where_nothing_blocks():
    """Asked by somebody who looks before the line has moved."""
    bench = Bench(agents={"host": 1})
    queue = bench.state.queue(bench.spec(SONNET))
    assert reason_for(bench.state, queue, bench.now).text == "others are ahead in the queue"
    bench.agent("a", SONNET)
    bench.agent("b", SONNET)
    bench.state.apply(ev.Released("a", "ok", SONNET, 0, 0), bench.now)
    reason = reason_for(bench.state, bench.state.queue(bench.spec(SONNET)), bench.now)
    assert (reason.code, reason.text, reason.model) == ("behind", "1 ahead in the queue", SONNET)


def test_a6_one_that_could_only_probe_is_told_what_keeps_it_from_that():
    """Both its models are backed off; the second may be tried again, and its pool is full."""
    bench = Bench(requests={"umans": 1})
    bench.call("x", CODER)
    bench.do(cmd.Claim("x", child="c"))
    bench.do(cmd.BackOff("umans", "overloaded", 24 * HOUR))
    bench.wait(6 * HOUR)
    bench.do(cmd.BackOff("anthropic", "overloaded", HOUR))
    assert bench.call("a", SONNET, CODER) == "waits"
    assert (bench.reason("a").code, bench.reason("a").model) == ("concurrency_cap", CODER)


# A7-A10.


def test_a7_a_deferral_is_an_event_with_count_limit_and_model_and_leaves_nothing_behind():
    bench = Bench(agents={"host": 50, "anthropic/claude-opus-*": 1})
    bench.agent("a", OPUS)
    assert bench.agent("b", OPUS, wait=False, command="opencode run") == "deferred"
    (event,) = bench.of(ev.Deferred)
    assert isinstance(event, ev.Deferred)
    assert (event.reason.in_flight, event.reason.limit, event.reason.model) == (1, 1, OPUS)
    assert event.command == "opencode run"
    assert bench.state.tickets == {}


def test_a7_a_ticket_enters_by_itself_as_soon_as_its_reason_ends():
    bench = Bench(requests={"umans": 1})
    bench.call("a", CODER)
    bench.call("b", CODER)
    bench.release("a")
    assert bench.engine.next_deadline() == START + 350
    events = bench.wait(350)
    assert [type(event) for event in events] == [ev.Granted]


def test_a8_a_ticket_expires_after_a_day():
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET)
    bench.agent("b", SONNET)
    bench.wait(24 * HOUR - 1)
    assert bench.fate("b") == "waits"
    bench.wait(1)
    assert bench.fate("b") == "expired"
    assert bench.of(ev.Expired) == [ev.Expired("b", 24 * HOUR, "p-b")]


def test_a8_a_ticket_expires_when_it_was_told_to():
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET)
    bench.agent("b", SONNET, expires_ms=MINUTE)
    bench.wait(MINUTE)
    assert bench.fate("b") == "expired"


def test_a8_a_slot_that_frees_up_at_the_last_moment_is_lent():
    bench = Bench(requests={"umans": 1})
    bench.call("a", CODER)
    bench.call("b", CODER, expires_ms=350)
    bench.release("a")
    bench.wait(350)
    assert bench.fate("b") == "offered"


def test_a8_an_id_that_comes_back_expires_by_its_new_time():
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET)
    bench.agent("sooner", SONNET, expires_ms=SECOND)
    bench.agent("b", SONNET, expires_ms=10 * SECOND)
    bench.do(cmd.Cancel("b"))
    bench.agent("b", SONNET, expires_ms=HOUR)
    bench.wait(30 * MINUTE)
    assert bench.fate("b") == "waits"


def test_a4_an_id_that_comes_back_has_lost_its_place():
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET)
    for name in ("first", "b", "c"):
        bench.agent(name, SONNET, since=START)
    bench.do(cmd.Cancel("b"))
    bench.agent("b", SONNET, since=START)
    for name in ("a", "first"):
        bench.release(name)
    assert (bench.fate("b"), bench.fate("c")) == ("waits", "offered")


def test_a9_a_ticket_can_be_cancelled_and_the_next_moves_up():
    bench = Bench(agents={"host": 1})
    for name in ("a", "b", "c"):
        bench.agent(name, SONNET)
    bench.do(cmd.Cancel("b", by="me"))
    bench.release("a")
    assert (bench.fate("b"), bench.fate("c")) == ("cancelled", "offered")


def test_a9_cancelling_a_grant_that_was_not_claimed_gives_it_back():
    bench = Bench(agents={"host": 1})
    for name in ("a", "b", "c"):
        bench.agent(name, SONNET)
    bench.release("a")
    bench.do(cmd.Cancel("b"))
    assert (bench.fate("b"), bench.fate("c")) == ("cancelled", "offered")


def test_a9_bump_moves_to_the_front_and_a_later_bump_before_that():
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET)
    for name in ("b", "c", "d"):
        bench.agent(name, SONNET)
    bench.do(cmd.Bump("c"))
    bench.do(cmd.Bump("d"))
    bench.release("a")
    assert bench.fate("d") == "offered"
    bench.release("d")
    assert bench.fate("c") == "offered"


def test_a9_bump_beats_fair_shares():
    bench = Bench(agents={"host": 1})
    for n in range(5):
        bench.agent(f"g{n}", SONNET, project="greedy")
        bench.wait(HOUR)
        bench.release(f"g{n}")
    bench.agent("a", SONNET, project="greedy")
    bench.agent("modest", SONNET, project="modest")
    bench.agent("bumped", SONNET, project="greedy")
    bench.do(cmd.Bump("bumped"))
    bench.release("a")
    assert bench.fate("bumped") == "offered"


def test_a9_bump_with_a_priority_moves_accordingly_and_back_again():
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET)
    bench.agent("b", SONNET)
    bench.wait(SECOND)
    bench.agent("c", SONNET)
    bench.do(cmd.Bump("c", priority=1))
    assert bench.state.tickets["c"].priority == 1
    bench.do(cmd.Bump("b"))
    bench.do(cmd.Bump("b", priority=0))
    bench.release("a")
    assert (bench.fate("b"), bench.fate("c")) == ("waits", "offered")


def test_a9_a_bump_of_one_that_is_passed_over_holds_when_it_speaks():
    bench = Bench(agents={"host": 1})
    for name in ("a", "b", "c", "d"):
        bench.agent(name, SONNET)
    bench.release("a")
    bench.wait(10 * SECOND)
    assert (bench.fate("b"), bench.fate("c")) == ("away", "offered")
    bench.do(cmd.Claim("c"))
    bench.do(cmd.Bump("b"))
    bench.do(cmd.Ask("b"))
    bench.release("c")
    assert bench.fate("b") == "offered"


def test_a10_a_key_is_taken_while_its_request_is_queued_or_running():
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET, key="nightly", holder="h1|boot|ns|42|7")
    assert bench.agent("b", SONNET, key="nightly") == "deferred"
    assert bench.reason("b").code == "key_taken"
    assert "42 on h1" in bench.reason("b").text
    assert "running as a" in bench.reason("b").text
    bench.agent("c", SONNET, key="weekly")
    assert bench.agent("d", SONNET, key="weekly", wait=False) == "deferred"
    assert "in the queue as c" in bench.reason("d").text


@pytest.mark.parametrize("way", ["release", "cancel", "lost", "expire", "return and cancel", "reclaim"])
def test_a10_a_key_is_free_again_when_its_request_has_ended(way):
    bench = Bench(agents={"host": 1})
    if way in ("release", "reclaim"):
        bench.agent("a", SONNET, key="k")
        bench.do(cmd.Release("a") if way == "release" else cmd.Reclaim("a", "me"))
    else:
        bench.agent("first", SONNET)
        bench.agent("a", SONNET, key="k", expires_ms=MINUTE)
        if way == "return and cancel":
            bench.release("first")
            bench.wait(10 * SECOND)
            assert bench.fate("a") == "away"
            assert bench.agent("early", SONNET, key="k") == "deferred", "it keeps its place, and its key"
        if way in ("cancel", "return and cancel"):
            bench.do(cmd.Cancel("a"))
        if way == "lost":
            bench.do(cmd.Lost(("p-a",)))
        if way == "expire":
            bench.wait(MINUTE)
    assert bench.state.keys == {}
    assert bench.agent("b", SONNET, key="k") in ("granted", "waits")


def test_r9_a_session_is_taken_on_its_host_while_its_run_is_queued_or_running():
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET, session="issue-7", holder="h1|boot|ns|42|7")
    assert bench.agent("b", SONNET, session="issue-7") == "deferred"
    assert bench.reason("b").code == "session_taken"
    assert "'issue-7' is running as a (process 42 on h1)" in bench.reason("b").text
    bench.agent("c", SONNET, session="issue-8")
    assert bench.agent("d", SONNET, session="issue-8", wait=False) == "deferred"
    assert "in the queue as c" in bench.reason("d").text
    assert bench.agent("e", SONNET, host="h2", session="issue-7") == "granted", "another host has sessions of its own"
    assert bench.agent("f", SONNET, key="issue-7") == "waits", "a session is no key"


@pytest.mark.parametrize("way", ["release", "reclaim", "cancel", "lost"])
def test_r9_a_session_is_free_again_when_its_run_has_ended(way):
    bench = Bench(agents={"host": 1})
    if way in ("cancel", "lost"):
        bench.agent("first", SONNET)
    bench.agent("a", SONNET, session="s")
    ends: dict[str, cmd.Command] = {
        "release": cmd.Release("a"),
        "reclaim": cmd.Reclaim("a", "me"),
        "cancel": cmd.Cancel("a"),
        "lost": cmd.Lost(("p-a",)),
    }
    bench.do(ends[way])
    assert bench.state.sessions == {}
    assert bench.agent("b", SONNET, session="s") in ("granted", "waits")


def test_r9_a_session_survives_a_snapshot():
    bench = Bench(agents={"host": 1})
    bench.agent("runs", SONNET, session="one")
    bench.agent("waits", SONNET, session="two")
    restored = State.restore(bench.state.export())
    assert restored.sessions == bench.state.sessions == {("h1", "one"): "runs", ("h1", "two"): "waits"}


def test_a10_a_key_goes_with_its_request_through_line_lease_and_back():
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET)
    bench.agent("b", SONNET, key="k")
    bench.release("a")
    assert bench.agent("c", SONNET, key="k") == "deferred"
    bench.wait(10 * SECOND)
    assert bench.agent("d", SONNET, key="k") == "deferred"
    bench.do(cmd.Ask("b"))
    assert bench.fate("b") == "offered"
    bench.restart()
    assert bench.agent("e", SONNET, key="k") == "deferred"


def test_the_same_command_once_more_changes_nothing():
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET)
    bench.agent("b", SONNET)
    assert bench.ask("a", bench.spec(CODER)) == []
    assert bench.ask("b", bench.spec(CODER)) == []


# A12.


@pytest.mark.parametrize(
    "command",
    [
        cmd.SetRule(Rule("agents", "host", cap=2)),
        cmd.RemoveCap("agents", "host"),
        cmd.LoadFile("config.toml", "new", 99, (Rule("agents", "host", cap=2),)),
    ],
)
def test_a12_raising_or_removing_a_cap_admits_whoever_now_fits_at_once(command):
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET)
    bench.agent("b", SONNET)
    bench.do(command)
    assert bench.fate("b") == "offered"


def test_a12_resuming_admits_at_once():
    bench = Bench(agents={"host": 1})
    bench.do(cmd.Pause("agents", "host:h1"))
    assert bench.agent("a", SONNET) == "waits"
    assert bench.wait(HOUR) == []
    bench.do(cmd.Resume("agents", "host:h1"))
    assert bench.fate("a") == "offered"


def test_a12_with_its_cap_removed_the_pause_and_the_reduction_of_a_pool_are_forgotten():
    bench = Bench(requests={"umans": 2})
    bench.call("a", CODER)
    bench.do(cmd.Report("a"))
    assert bench.call("b", CODER) == "waits"
    bench.do(cmd.RemoveCap("requests", "umans"))
    assert bench.fate("b") == "offered"
    bench.cap("requests", "umans", 2)
    pool = bench.state.pools["requests umans"]
    assert (pool.limit, pool.limiter.reduced, pool.paused_until, pool.used) == (2, 0, 0, 2)


def test_a12_that_holds_also_where_somebodys_environment_still_counts_the_pool():
    bench = Bench(requests={"umans": 2})
    bench.call("a", CODER, caps=(("umans", 5),))
    bench.do(cmd.Report("a"))
    bench.do(cmd.RemoveCap("requests", "umans"))
    pool = bench.state.pools["requests umans"]
    assert (pool.limiter.reduced, pool.paused_until, pool.used) == (0, 0, 1)


# What can never be is refused.


def test_q1_more_slots_than_a_cap_has_are_refused_with_the_reason():
    bench = Bench(agents={"host": 2})
    with pytest.raises(BadRequest, match="needs 3 slots of host:h1, whose cap is 2"):
        bench.agent("a", SONNET, slots=3)


def test_q1_a_request_that_some_candidate_can_have_is_not_refused():
    bench = Bench(agents={"host": 50, "anthropic": 2})
    assert bench.agent("a", SONNET, CODER, slots=3, any_candidate=True) == "granted"


def test_q1_a_newcomer_is_refused_when_the_cap_was_lowered_meanwhile():
    bench = Bench(agents={"host": 3})
    assert bench.agent("a", SONNET, slots=3) == "granted"
    bench.cap("agents", "host", 2)
    with pytest.raises(BadRequest):
        bench.agent("b", SONNET, slots=3)


def test_q1_a_look_does_not_make_an_invalid_request_valid():
    bench = Bench()
    spec = bench.spec(SONNET, kind="cats")
    bench.engine.fits(spec, bench.now)
    with pytest.raises(BadRequest, match="kind 'cats'"):
        bench.ask("a", spec)
