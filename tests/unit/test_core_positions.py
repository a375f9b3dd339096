"""A5: parts of the queue, which are taken from its front without looking at what stands behind."""

from __future__ import annotations

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core.queue.positions import QueueView, row_of
from fleetgate.core.views.pool_and_lease_views import capacity, ticket_view, ticket_views
from tests.property.harness import OPUS, SECOND, SONNET, Bench


def crowd() -> Bench:
    """Several projects at several pools; some are bumped, some need a pool that is full elsewhere."""
    bench = Bench(agents={"host": 1, "anthropic/claude-opus-*": 1, "project": 2})
    bench.agent("x", OPUS, supervisor=True)
    bench.agent("y", SONNET)
    for number in range(24):
        model = OPUS if number % 3 == 0 else SONNET
        bench.agent(f"t{number:02}", model, project="abc"[number % 3 if number < 12 else number % 2])
    for name in ("t07", "t20"):
        bench.do(cmd.Bump(name))
    return bench


@pytest.mark.parametrize(("offset", "limit"), [(0, 0), (0, 1), (0, 5), (3, 4), (20, 10), (24, 5), (99, 5)])
def test_a5_a_part_of_the_queue_is_that_part_of_the_whole(offset: int, limit: int):
    bench = crowd()
    whole = ticket_views(bench.state, bench.now)
    assert len(whole) == 24
    assert QueueView(bench.state, bench.now).page(offset, limit) == whole[offset : offset + limit]


def test_a5_one_ticket_has_the_place_that_the_listing_gives_it():
    bench = crowd()
    for view in ticket_views(bench.state, bench.now):
        assert ticket_view(bench.state, view.ticket.id, bench.now) == view


def test_a5_who_stands_in_several_rows_has_one_position():
    bench = Bench(agents={"host": 1, "anthropic/claude-opus-*": 1})
    bench.agent("x", OPUS)
    bench.agent("alone", OPUS, supervisor=True)  # would enter before the next, and is held back by less
    bench.agent("both", OPUS)
    listed = [(view.ticket.id, view.position) for view in ticket_views(bench.state, bench.now)]
    assert listed == [("alone", 1), ("both", 2)]


def test_a5_those_who_are_backed_off_have_a_position_among_those_who_wait_for_the_same_model():
    bench = Bench(agents={"host": 1})
    bench.do(cmd.BackOff(OPUS, "rate_limited", 60 * SECOND))
    for name, project in (("a", "x"), ("b", "y"), ("c", "x")):
        bench.agent(name, OPUS, project=project)
    views = ticket_views(bench.state, bench.now)
    assert [(view.ticket.id, view.position, view.of, view.pool, view.reason.code) for view in views] == [
        ("a", 1, 3, OPUS, "backoff"),
        ("b", 2, 3, OPUS, "backoff"),
        ("c", 3, 3, OPUS, "backoff"),
    ]
    assert ticket_view(bench.state, "b", bench.now) == views[1]


def test_a5_no_position_for_a_pool_is_had_twice():
    bench = crowd()
    bench.do(cmd.BackOff(SONNET, "overloaded", 60 * SECOND))
    bench.agent("late", OPUS, project="d")
    views = ticket_views(bench.state, bench.now)
    places = [(view.pool, view.reason.pools, view.position) for view in views]
    assert all(places.count(place) == 1 for place in places)
    assert all(0 < view.position <= view.of for view in views)
    assert {view.pool for view in views} <= {SONNET, "host:h1", "anthropic/claude-opus-*"}


def test_a5_the_queue_is_listed_by_when_each_is_expected_to_start():
    bench = Bench(agents={"slow": 1, "fast": 1, "shut": 1, "host": 50})
    for provider, hold_s in (("slow", 100), ("fast", 1)):
        bench.agent("first", f"{provider}/m")
        bench.wait(hold_s * SECOND)
        bench.release("first")
    for provider in ("shut", "slow", "fast"):
        bench.agent(f"{provider} holds", f"{provider}/m")
        for number in range(3):
            bench.agent(f"{provider} {number}", f"{provider}/m")
    bench.do(cmd.Pause("agents", "shut"))
    views = ticket_views(bench.state, bench.now)
    assert [view.ticket.id for view in views] == [
        *("fast 0", "fast 1", "fast 2"),
        *("slow 0", "slow 1", "slow 2"),
        *("shut 0", "shut 1", "shut 2"),
    ]
    assert [(view.position, view.of, view.pool) for view in views[3:6]] == [(n, 3, "slow") for n in (1, 2, 3)]


def test_a5_those_who_stand_aside_are_listed_last_each_at_a_place_of_its_own():
    bench = Bench(agents={"host": 1})
    bench.agent("holds", SONNET)
    for name in ("a", "b"):
        bench.agent(name, SONNET)
        bench.release(bench.running()[0])
        bench.wait(11 * SECOND)  # nobody claims
    bench.agent("c", SONNET)
    bench.agent("d", SONNET)
    views = ticket_views(bench.state, bench.now)
    told = {view.ticket.id: (view.position, view.of) for view in views}
    assert len({position for position, of in told.values() if not of}) == len([of for _, of in told.values() if not of])
    for view in views:
        assert ticket_view(bench.state, view.ticket.id, bench.now) == view


def test_a5_a_line_that_was_noted_down_is_walked_while_the_state_goes_on():
    bench = crowd()
    line = QueueView(bench.state, bench.now)
    before = {view.ticket.id for view in line.page()}
    bench.do(cmd.Cancel("t02"))
    bench.agent("new", OPUS)
    bench.do(cmd.RemoveCap("agents", "host"))
    assert {view.ticket.id for view in line.page()} == before & bench.state.tickets.keys() < before


def test_a5_a_ticket_that_came_back_to_its_place_is_listed_once():
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET)
    bench.agent("b", SONNET)
    bench.do(cmd.Bump("b", 5))
    bench.do(cmd.Bump("b", 0))
    assert [view.ticket.id for view in ticket_views(bench.state, bench.now)] == ["b"]


def test_a11_the_queue_that_counts_is_of_those_who_would_enter_first():
    bench = crowd()
    spec = bench.spec(SONNET, project="a")
    ahead = [view for view in ticket_views(bench.state, bench.now) if view.ticket.spec.models == (SONNET,)]
    assert capacity(bench.state, spec, bench.now).queued == len(ahead)


def test_a5_some_of_the_queue_are_walked_with_the_places_that_they_have_in_the_whole():
    bench = crowd()
    chosen = ("t03", "t07", "t11")
    whole = [view for view in ticket_views(bench.state, bench.now) if view.ticket.id in chosen]
    assert list(QueueView(bench.state, bench.now).walk(lambda ticket: ticket.id in chosen)) == whole
    assert len(whole) == 3


def test_a5_those_of_one_row_have_the_places_that_the_listing_gives_them():
    bench = crowd()
    spec = bench.state.tickets["t01"].spec
    line, row = QueueView(bench.state, bench.now, spec), row_of(bench.state, spec, bench.now)
    places = line.places(row)
    assert "t01" in places
    assert list(places.values()) == [view for view in ticket_views(bench.state, bench.now) if view.ticket.id in places]
    assert line.size_of(row) >= len(places)
    assert line.places(row._replace(pool="agents nobody")) == {}


def test_a5_a_job_whose_pause_is_over_has_a_position():
    bench = Bench(agents={"host": 1})
    later = bench.now + 10 * SECOND
    bench.do(cmd.Acquire("job", bench.spec(SONNET, host=""), "", job=True, any_host=True, not_before=later))
    assert [(view.of, view.reason.code) for view in ticket_views(bench.state, bench.now)] == [(0, "retry_pause")]
    bench.wait(20 * SECOND)
    assert [(view.position, view.of) for view in ticket_views(bench.state, bench.now)] == [(1, 1)]
