"""A5: parts of the line, which are taken from its front without looking at what stands behind."""

from __future__ import annotations

import pytest

from headgate.core import commands as cmd
from headgate.core.places import Line
from headgate.core.views import capacity, ticket_view, ticket_views
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
def test_a5_a_part_of_the_line_is_that_part_of_the_whole(offset: int, limit: int):
    bench = crowd()
    whole = ticket_views(bench.state, bench.now)
    assert len(whole) == 24
    assert Line(bench.state, bench.now).page(offset, limit) == whole[offset : offset + limit]


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


def test_a5_those_who_are_backed_off_are_all_first_as_nobody_is_ahead_of_them():
    bench = Bench(agents={"host": 1})
    bench.do(cmd.BackOff(OPUS, "rate_limited", 60 * SECOND))
    for name in ("a", "b"):
        bench.agent(name, OPUS)
    views = ticket_views(bench.state, bench.now)
    assert [(view.ticket.id, view.position, view.reason.code) for view in views] == [
        ("a", 1, "backoff"),
        ("b", 1, "backoff"),
    ]
    assert ticket_view(bench.state, "b", bench.now) == views[1]


def test_a5_a_line_that_was_noted_down_is_walked_while_the_state_goes_on():
    bench = crowd()
    line = Line(bench.state, bench.now)
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


def test_a11_the_line_that_counts_is_of_those_who_would_enter_first():
    bench = crowd()
    spec = bench.spec(SONNET, project="a")
    ahead = [view for view in ticket_views(bench.state, bench.now) if view.ticket.spec.models == (SONNET,)]
    assert capacity(bench.state, spec, bench.now).queued == len(ahead)


def test_a5_some_of_the_line_are_walked_with_the_places_that_they_have_in_the_whole():
    bench = crowd()
    chosen = ("t03", "t07", "t11")
    whole = [view for view in ticket_views(bench.state, bench.now) if view.ticket.id in chosen]
    assert list(Line(bench.state, bench.now).walk(lambda ticket: ticket.id in chosen)) == whole
    assert len(whole) == 3
