"""A5, A11, O1-O4 and P3: the state as people and programs see it."""

from __future__ import annotations

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core.entities import Rule, Spec
from fleetgate.core.state.state import State
from fleetgate.core.views.pool_and_lease_views import (
    Capacity,
    PoolView,
    capacity,
    lease_views,
    pool_views,
    ticket_view,
    ticket_views,
)
from tests.property.harness import CODER, HOUR, MINUTE, OPUS, SECOND, SONNET, START, Bench


def positions(bench: Bench) -> dict[str, int]:
    return {view.ticket.id: view.position for view in ticket_views(bench.state, bench.now)}


def pool(bench: Bench, name: str, host: str = "") -> PoolView:
    (view,) = [view for view in pool_views(bench.state, bench.now, host) if view.pool == name]
    return view


def room(bench: Bench, model: str, **said: object) -> Capacity:
    return capacity(bench.state, bench.spec(model, **said), bench.now)


# A5: position, estimate, reason.


def test_a5_a_position_is_one_more_than_how_many_would_enter_before():
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET)
    for name in ("b", "c", "d"):
        bench.agent(name, SONNET)
    assert positions(bench) == {"b": 1, "c": 2, "d": 3}
    bench.do(cmd.Bump("d"))
    assert positions(bench) == {"d": 1, "b": 2, "c": 3}
    bench.do(cmd.Cancel("b"))
    assert positions(bench) == {"d": 1, "c": 2}


def test_a5_those_whom_something_else_holds_back_are_not_ahead():
    bench = Bench(agents={"host": 1, "anthropic/claude-opus-*": 1})
    bench.agent("x", OPUS, supervisor=True)
    bench.agent("y", SONNET)
    bench.agent("opus", OPUS)
    bench.agent("sonnet", SONNET)
    assert positions(bench)["sonnet"] == 1, "opus is older, and full elsewhere"
    assert positions(bench)["opus"] == 1


def test_a5_between_projects_positions_are_by_turns():
    bench = Bench(agents={"host": 1})
    bench.agent("x", SONNET, project="x")
    for n in range(3):
        bench.agent(f"a{n}", SONNET, project="a")
    for n in range(3):
        bench.agent(f"b{n}", SONNET, project="b")
    assert positions(bench) == {"a0": 1, "b0": 2, "a1": 3, "b1": 4, "a2": 5, "b2": 6}
    bench.do(cmd.Bump("b2"))
    bench.do(cmd.Bump("b1"))
    assert list(positions(bench))[:2] == ["b1", "b2"]


def test_a5_the_queue_really_moves_in_the_order_of_the_positions():
    bench = Bench(agents={"host": 1})
    bench.agent("x-0", SONNET, project="x")
    for n in range(4):
        for project in ("a", "b", "c"):
            bench.agent(f"{project}-{n}", SONNET, project=project)
    told = sorted(positions(bench), key=lambda ident: positions(bench)[ident])
    entered = []
    while bench.running():
        bench.wait(10 * SECOND)  # what is expected before anything is known
        bench.release(bench.running()[0])
        for ident in bench.running():
            bench.do(cmd.Claim(ident))
            entered.append(ident)
    assert entered == told


def test_a5_an_estimate_is_absent_where_there_is_no_data():
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET)
    bench.agent("b", SONNET)
    view = ticket_view(bench.state, "b", bench.now)
    assert view is not None
    assert view.estimate_ms is None
    assert view.reason.code == "concurrency_cap"


def test_a5_an_estimate_is_a_range_from_what_holds_were_seen():
    bench = Bench(rules=(Rule("agents", "host", cap=1, cooldown_ms=SECOND),))
    for n, hold_ms in enumerate((MINUTE, 3 * MINUTE)):
        bench.agent(f"x{n}", SONNET)
        bench.wait(hold_ms)
        bench.release(f"x{n}")
        bench.wait(SECOND)
    bench.agent("a", SONNET)
    bench.agent("b", SONNET)
    bench.agent("c", SONNET)
    second = ticket_view(bench.state, "c", bench.now)
    assert second is not None
    assert second.estimate_ms is not None
    low, high = second.estimate_ms
    assert low < 2 * (2 * MINUTE + SECOND) < high
    bench.do(cmd.Pause("agents", "host:h1", for_ms=HOUR))
    paused = ticket_view(bench.state, "c", bench.now)
    assert paused is not None
    assert paused.estimate_ms == (low + HOUR, high + HOUR)
    bench.do(cmd.Pause("agents", "host:h1"))
    forever = ticket_view(bench.state, "c", bench.now)
    assert forever is not None
    assert forever.estimate_ms is None


def test_a5_one_that_was_passed_over_is_last_and_says_so():
    bench = Bench(agents={"host": 1})
    for name in ("a", "b", "c", "d"):
        bench.agent(name, SONNET)
    bench.release("a")
    bench.wait(10 * SECOND)
    view = ticket_view(bench.state, "b", bench.now)
    assert view is not None
    assert (view.reason.code, view.position) == ("passed_over", 2)
    assert [view.ticket.id for view in ticket_views(bench.state, bench.now)] == ["d", "b"]


def test_a5_what_is_not_in_the_queue_has_no_place():
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET)
    assert ticket_view(bench.state, "a", bench.now) is None
    assert ticket_view(bench.state, "nobody", bench.now) is None
    assert ticket_views(bench.state, bench.now) == []


def test_a5_one_whose_models_are_all_backed_off_is_in_the_queue_too():
    bench = Bench()
    bench.do(cmd.BackOff("umans", "overloaded"))
    bench.call("a", CODER)
    (view,) = ticket_views(bench.state, bench.now)
    assert view.reason.code == "backoff"
    assert view.estimate_ms is None


# A11: capacity.


def test_a11_green_is_two_or_more_free_and_no_line():
    bench = Bench(agents={"host": 3})
    assert room(bench, SONNET) == Capacity("green", 3, 0, (0, 0), None, SONNET)
    bench.agent("a", SONNET)
    assert (room(bench, SONNET).level, room(bench, SONNET).free) == ("green", 2)


def test_a11_an_idle_cap_of_one_is_green():
    bench = Bench(agents={"host": 9, "umans": 1})
    assert room(bench, CODER).level == "green"
    bench.agent("a", CODER)
    assert room(bench, CODER).level == "red"


def test_a11_one_free_is_yellow():
    bench = Bench(agents={"host": 2})
    bench.agent("a", SONNET)
    found = room(bench, SONNET)
    assert (found.level, found.free, found.reason) == ("yellow", 1, None)


@pytest.mark.parametrize(("hold_ms", "level"), [(20 * SECOND, "yellow"), (MINUTE + SECOND, "red")])
def test_a11_an_expected_wait_up_to_a_minute_is_yellow_and_a_longer_one_red(hold_ms, level):
    bench = Bench(agents={"host": 1})
    for n in range(10):
        bench.agent(f"x{n}", SONNET)
        bench.wait(hold_ms)
        bench.release(f"x{n}")
    bench.agent("a", SONNET)
    found = room(bench, SONNET)
    assert (found.level, found.free, found.queued) == (level, 0, 0)
    assert found.reason is not None
    assert found.reason.code == "concurrency_cap"


def test_a11_an_unknown_wait_is_red():
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET)
    bench.agent("b", SONNET)
    found = room(bench, SONNET)
    assert (found.level, found.queued, found.wait_ms) == ("red", 1, None)


def test_a11_what_nothing_caps_is_green_without_a_number():
    bench = Bench()
    assert room(bench, CODER, kind="requests") == Capacity("green", None, 0, (0, 0), None, CODER)
    assert room(bench, CODER, kind="requests", host="") == Capacity("green", None, 0, (0, 0), None, CODER)


def test_a11_a_paused_pool_is_red():
    bench = Bench(agents={"host": 3})
    bench.do(cmd.Pause("agents", "host:h1"))
    assert (room(bench, SONNET).level, room(bench, SONNET).free) == ("red", 0)


def test_a11_a_line_that_waits_for_something_else_does_not_count():
    bench = Bench(agents={"host": 5, "anthropic/claude-opus-*": 1})
    bench.agent("a", OPUS)
    bench.agent("b", OPUS)
    found = room(bench, SONNET)
    assert (found.level, found.queued) == ("green", 0)


def test_a11_a_pool_that_is_only_counted_does_not_limit():
    bench = Bench()
    bench.call("a", CODER, caps=(("umans", 1),))
    assert room(bench, CODER, kind="requests").free is None


# O1, O3, P3.


def test_o1_a_cap_is_listed_before_any_traffic():
    bench = Bench(agents={"host": 3}, requests={"umans": 4, "umans@work": 2, "*/coder": 5})
    listed = [(view.kind, view.pool) for view in pool_views(bench.state, bench.now, "h1")]
    assert listed == [("agents", "host:h1"), ("requests", "umans"), ("requests", "umans@work")]
    assert [view.pool for view in pool_views(bench.state, bench.now) if view.kind == "agents"] == ["host:h1"]


def test_o1_a_ticket_is_queued_only_where_it_waits():
    bench = Bench(requests={"umans": 1, "anthropic": 1})
    bench.call("a", CODER)
    bench.call("b", CODER, SONNET)
    assert (pool(bench, "umans").queued, pool(bench, "anthropic").queued) == (1, 0)


def test_o1_what_is_not_capped_is_not_listed():
    bench = Bench()
    bench.do(cmd.SetRule(Rule("requests", "umans", cooldown_ms=5)))
    bench.call("a", CODER, caps=(("umans@default", 5),))
    assert bench.used("umans", "requests") == 1
    assert pool_views(bench.state, bench.now) == []


def test_o1_what_is_built_in_is_listed_when_it_holds_somebody():
    bench = Bench(agents={"host": 9})
    assert "*/claude-opus-*:anthropic" not in [view.pool for view in pool_views(bench.state, bench.now)]
    bench.agent("a", OPUS)
    view = pool(bench, "*/claude-opus-*:anthropic")
    assert (view.source, view.name, view.in_flight, view.cap, view.account) == ("built-in", "opus", 1, 4, "anthropic")
    bench.release("a")
    bench.do(cmd.Pause("agents", "*/claude-opus-*:anthropic"))
    assert pool(bench, "*/claude-opus-*:anthropic").paused_until is not None
    bench.do(cmd.Resume("agents", "*/claude-opus-*:anthropic"))
    bench.do(cmd.Observe("h1", ((OPUS, 4),)))
    bench.agent("b", OPUS)
    assert pool(bench, "*/claude-opus-*:anthropic").queued == 1


def test_o1_a_pool_shows_what_is_going_on_in_it():
    bench = Bench(requests={"umans": 4})
    for name in ("a", "b", "c", "d"):
        bench.call(name, CODER)
    bench.release("a")
    bench.do(cmd.Report("b", retry_after_ms=MINUTE))
    bench.call("e", CODER)
    view = pool(bench, "umans")
    assert (view.cap, view.limit, view.in_flight, view.cooling, view.foreign, view.queued) == (4, 3, 3, 1, 0, 1)
    assert (view.paused_until, view.pause_cause) == (START + MINUTE, "rate_limited")
    assert (view.cooldown_ms, view.on_429, view.selector, view.account, view.host) == (
        350,
        "step",
        "umans",
        "umans",
        "",
    )
    bench.wait(MINUTE)
    assert (pool(bench, "umans").paused_until, pool(bench, "umans").pause_cause) == (None, "")


def test_p3_a_reduction_is_told_with_the_way_back():
    bench = Bench(requests={"umans": 4})
    assert (pool(bench, "umans").notice, pool(bench, "umans").restore) == (None, None)
    bench.do(cmd.Report(kind="requests", target="umans"))
    view = pool(bench, "umans")
    assert (view.auto_reduced, view.auto_reduced_from) == (True, 4)
    assert view.restore == "fleetgate cap set 'umans' 4 --kind requests"
    assert view.notice == f"auto-reduced to 3 after a rate limit (cap 4): restore with `{view.restore}`"
    bench.cap("requests", "umans", 4)
    view = pool(bench, "umans")
    assert (view.auto_reduced, view.auto_reduced_from, view.notice) == (False, None, None)


def test_c7_an_automatic_cap_is_shown_as_it_is_now():
    bench = Bench(rules=(Rule("agents", "host", auto=True),))
    bench.do(cmd.Observe("h1", room=4))
    view = pool(bench, "host:h1", host="h1")
    assert (view.auto, view.cap, view.limit) == (True, 4, 4)


def test_o3_a_lease_shows_its_pools_and_age():
    bench = Bench(agents={"host": 9})
    bench.agent("a", OPUS)
    bench.wait(SECOND)
    bench.agent("b", SONNET)
    bench.wait(SECOND)
    one, other = lease_views(bench.state, bench.now)
    assert (one.lease.id, one.pools, one.age_ms) == ("a", ["*/claude-opus-*:anthropic", "host:h1"], 2_000)
    assert (other.lease.id, other.pools, other.age_ms) == ("b", ["host:h1"], 1_000)


def test_c3_a_state_made_anew_counts_those_who_run_for_a_selector_that_somebody_asks_about():
    bench = Bench(agents={"host": 9})
    bench.agent("a", SONNET)
    other = State.restore(bench.state.export())
    other.rules.seen["agents", "anthropic"] = None
    other.cap_events.rebuild()
    assert capacity(other, bench.spec(OPUS, caps=(("anthropic", 2),)), bench.now).free == 1
    assert "agents anthropic" not in bench.state.pools


def test_looking_changes_nothing():
    bench = Bench(agents={"host": 1}, requests={"umans": 2})
    bench.agent("a", SONNET)
    bench.agent("b", SONNET)
    before = bench.state.export()
    ticket_views(bench.state, bench.now)
    pool_views(bench.state, bench.now, "h7")
    lease_views(bench.state, bench.now)
    capacity(bench.state, Spec(models=(OPUS,), host="h9", caps=(("brand-new", 1),)), bench.now)
    assert bench.state.export() == before
    bench.do(cmd.Tick())


def test_a11_what_is_backed_off_is_not_green():
    bench = Bench(agents={"host": 5})
    bench.do(cmd.BackOff(OPUS, "usage_window", HOUR))
    found = room(bench, OPUS)
    assert (found.level, found.free, found.wait_ms) == ("red", 0, (HOUR, HOUR))
    assert found.reason is not None
    assert found.reason.code == "backoff"
    bench.do(cmd.BackOff(SONNET, "rate_limited", 30 * SECOND))
    assert room(bench, SONNET).level == "yellow"


def test_a11_it_is_told_of_the_candidate_that_a_request_would_take():
    bench = Bench(agents={"host": 5, OPUS: 1, SONNET: 3})
    spec = Spec((OPUS, SONNET), host="h1")
    bench.do(cmd.BackOff(OPUS, "overloaded", HOUR))
    assert capacity(bench.state, spec, bench.now).free == 3
    bench.do(cmd.EndBackoff(OPUS))
    bench.do(cmd.Pause("agents", OPUS, HOUR))
    found = capacity(bench.state, spec, bench.now)
    assert (found.level, found.free) == ("green", 3)
    bench.do(cmd.Pause("agents", SONNET, HOUR))
    assert capacity(bench.state, spec, bench.now).level == "red"


def test_a11_a_drained_host_is_red():
    bench = Bench(agents={"host": 5})
    bench.do(cmd.Drain("h1"))
    found = capacity(bench.state, Spec((OPUS,), host="h1"), bench.now)
    assert found.level == "red"
    assert found.reason is not None
    assert found.reason.code == "draining"


def test_a11_jobs_that_no_worker_offers_to_run_are_counted():
    bench = Bench(agents={"host": 5, OPUS: 1})
    for name in ("a", "b", "c"):
        bench.do(cmd.Acquire(name, Spec((SONNET,), host="h1"), "", job=True))
    bench.do(cmd.Acquire("d", Spec((OPUS,), host="elsewhere"), "", job=True))
    found = capacity(bench.state, Spec((SONNET,), host="h1"), bench.now)
    assert (found.level, found.queued) == ("yellow", 3)
    assert found.reason is not None
    assert "3 jobs wait for a worker" in found.reason.text
    assert capacity(bench.state, Spec((), host="h2"), bench.now).level == "green"
