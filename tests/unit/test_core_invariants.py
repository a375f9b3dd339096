"""The invariants themselves: each kind of wrong count is noticed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core.entities import Spec
from fleetgate.core.errors import InternalError
from fleetgate.core.invariants import check_invariants, check_settled
from fleetgate.core.pools.pool import Reservation
from fleetgate.core.state.state import State
from tests.property.harness import CODER, SONNET, Bench


def gate() -> Bench:
    bench = Bench(agents={"host": 1}, requests={"umans": 2})
    bench.agent("runs", SONNET, key="k")
    bench.agent("waits", SONNET)
    bench.call("c", CODER)
    bench.call("d", CODER)
    bench.release("d")
    return bench


def _both(state: State) -> None:
    state.tickets["runs"] = state.leases["runs"].ticket


def _lost_slots(state: State) -> None:
    del state.lease_candidates["runs"]


def _wrong_key(state: State) -> None:
    state.keys["k"] = "waits"


def _unknown_key(state: State) -> None:
    state.keys["k"] = "nobody"


def _wrong_session(state: State) -> None:
    state.sessions["h1", "s"] = "waits"


def _unknown_session(state: State) -> None:
    state.sessions["h1", "s"] = "nobody"


def _miscount(state: State) -> None:
    state.pools["agents host:h1"].used += 1


def _strange_pool(state: State) -> None:
    pool = state.pools.pop("agents host:h1")
    state.pools["agents host:h2"] = pool


def _cooling(state: State) -> None:
    state.pools["requests umans"].cooldown.slots += 1


def _limit(state: State) -> None:
    state.pools["requests umans"].limiter.limit = 0


def _reduced(state: State) -> None:
    state.pools["requests umans"].limiter.reduced = -1


def _no_queue(state: State) -> None:
    del state.queues[state.tickets["waits"].spec]


def _queue_miscount(state: State) -> None:
    state.queues[state.tickets["waits"].spec].waiting += 1


def _share(state: State) -> None:
    state.pools["agents host:h1"].shares.of("default").waiting += 1


def _reserved(state: State) -> None:
    state.pools["agents host:h1"].reservation = Reservation(state.queues[state.tickets["waits"].spec], 0)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (_both, "both waiting and running"),
        (_lost_slots, "a lease without slots"),
        (_wrong_key, "which does not have it"),
        (_unknown_key, "which does not have it"),
        (_wrong_session, "which does not have it"),
        (_unknown_session, "which does not have it"),
        (_miscount, "counted 2, granted 1"),
        (_strange_pool, "which is not there"),
        (_cooling, "cooling"),
        (_limit, "limit 0"),
        (_reduced, "reduced to -1"),
        (_no_queue, "is in no queue"),
        (_queue_miscount, "tickets ask"),
        (_share, "counted, 1 wait"),
        (_reserved, "reserved for no ticket"),
    ],
)
def test_a_wrong_count_is_noticed(spoil: Callable[[State], None], says: str):
    bench = gate()
    check_invariants(bench.state)
    spoil(bench.state)
    with pytest.raises(InternalError, match=says):
        check_invariants(bench.state)


def test_one_who_could_enter_and_waits_is_noticed():
    bench = gate()
    check_settled(bench.state, bench.now)
    bench.state.pools["agents host:h1"].used = 0
    with pytest.raises(InternalError, match="waits could enter with anthropic/claude-sonnet-4-6 and waits"):
        check_settled(bench.state, bench.now)


def test_one_without_a_model_who_could_enter_is_noticed_too():
    bench = Bench(agents={"host": 1})
    bench.agent("a")
    bench.agent("b")
    bench.state.pools["agents host:h1"].used = 0
    with pytest.raises(InternalError, match="b could enter with no model"):
        check_settled(bench.state, bench.now)


def test_a_line_that_was_not_looked_at_is_noticed():
    bench = gate()
    bench.state.recheck_pool(bench.state.pools["agents host:h1"])
    with pytest.raises(InternalError, match="the queue was not looked at"):
        check_settled(bench.state, bench.now)


def test_an_empty_queue_is_settled():
    bench = gate()
    bench.do(cmd.Cancel("waits"))
    bench.engine.fits(Spec(models=(CODER,), kind="requests"), bench.now)
    check_settled(bench.state, bench.now)
