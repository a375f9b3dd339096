"""The provider's count: from arrival until the end plus the lag, refused at the limit, against a simple model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleetgate.testing.count import CallCount

steps = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.just(0)),
        st.tuples(st.just("leave"), st.integers(0, 500)),
        st.tuples(st.just("wait"), st.integers(1, 400)),
        st.tuples(st.just("others"), st.integers(0, 3)),
    ),
    max_size=60,
)


@given(limit=st.integers(0, 5), steps=steps)
def test_the_count_is_the_live_the_lagging_and_the_others(limit: int, steps: list[tuple[str, int]]):
    count = CallCount(limit)
    now = live = others = 0
    ended: list[int] = []
    for step, number in steps:
        expected = live + sum(until > now for until in ended) + others
        assert count.counted(now) == expected
        if step == "arrive":
            assert count.arrive(now) == (expected < limit)
            live += expected < limit
        elif step == "leave" and live:
            count.leave(now, number)
            live -= 1
            ended.append(now + number)
        elif step == "wait":
            now += number
        elif step == "others":
            count.others = others = number
        assert count.live == live
    assert count.most_at_once <= limit
    assert count.most_counted <= limit


def test_an_ended_call_counts_until_exactly_its_lag_is_over():
    count = CallCount(limit=1)
    assert count.arrive(1000)
    count.leave(1000, lag_ms=400)
    assert count.live == 0
    assert not count.arrive(1399)
    assert count.arrive(1400)
    assert (count.calls, count.refused) == (3, 1)


def test_a_lowered_limit_lets_the_live_go_on_and_no_limit_refuses_nobody():
    count = CallCount(limit=3)
    assert all(count.arrive(0) for _ in range(3))
    count.limit = 1
    assert not count.arrive(0)
    assert count.live == 3
    count.limit = None
    assert all(count.arrive(0) for _ in range(100))
