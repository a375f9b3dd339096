"""How long a request bears with a store that is away (rule Q2)."""

from __future__ import annotations

import pytest

from fleetgate.cli import store_outage
from fleetgate.cli.store_outage import Outage
from fleetgate.log.protocol import StoreAway, StoreError

GONE = StoreAway("the store cannot be reached (connection refused)")
STARTING = StoreAway("the store cannot be reached (the database system is starting up)")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which only waiting moves."""
    now = [1000.0]

    def select(fds: list[int], _out: list[int], _err: list[int], timeout: float) -> None:
        now[0] += timeout

    monkeypatch.setattr(store_outage, "monotonic", lambda: now[0])
    monkeypatch.setattr("fleetgate.cli.store_outage.select.select", select)
    monkeypatch.setattr(store_outage, "_RESTART_S", 10.0)
    monkeypatch.setattr(store_outage, "_STARTING_S", 60.0)
    return now


def borne_s(one: Outage, clock: list[float], error: StoreError) -> float:
    began = clock[0]
    while one.retries_after(error, known=True):
        pass
    return clock[0] - began


def test_q2_a_server_that_is_gone_is_given_the_time_of_a_restart(clock: list[float]):
    assert borne_s(Outage(), clock, GONE) == pytest.approx(10)


def test_q2_a_server_that_says_that_it_starts_is_given_a_minute(
    clock: list[float], capfd: pytest.CaptureFixture[str]
) -> None:
    assert borne_s(Outage(), clock, STARTING) == pytest.approx(60)
    assert capfd.readouterr().err.count("(trying for up to 60s)") == 1


def test_q2_a_server_that_began_to_start_and_is_gone_again_has_no_more_than_a_restart_left(clock: list[float]):
    one = Outage()
    while clock[0] < 1025:
        assert one.retries_after(STARTING, known=True)
    assert borne_s(one, clock, GONE) == pytest.approx(10, abs=0.5)


def test_r3_nobody_bears_longer_than_they_would_wait(clock: list[float]):
    assert borne_s(Outage(4), clock, STARTING) == pytest.approx(4)
    assert borne_s(Outage(0), clock, STARTING) == 0


def test_q2_one_that_was_never_reached_is_borne_with_only_if_it_says_that_it_starts(clock: list[float]):
    assert not Outage().retries_after(GONE, known=False)
    assert Outage().retries_after(STARTING, known=False)
    assert not Outage().retries_after(StoreError("no such database"), known=True)
