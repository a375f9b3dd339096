"""H2: tickets and leases of clients that only a service speaks for are judged by renewals, never by its process."""

from __future__ import annotations

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.engine import Engine
from fleetgate.core.entities import Spec
from fleetgate.core.errors import BadRequest, NotFound
from fleetgate.core.state.state import State
from tests.property.harness import CODER, MINUTE, SECOND, Bench

KEEP_MS = 5 * MINUTE
SERVER, OTHER = "h1|b0|4026|900|1", "h1|b0|4026|901|2"


def ask(bench: Bench, ident: str, *, wait: bool = True) -> None:
    spec = Spec(models=(CODER,), kind="requests")
    bench.do(cmd.Acquire(ident, spec, SERVER, wait, wake="/run/s", client="10.0.0.7", renew_ms=30 * SECOND))


def one_slot() -> Bench:
    return Bench(requests={"umans": 1})


def test_h2_a_lease_that_is_not_renewed_is_reclaimed_and_says_so():
    bench = one_slot()
    ask(bench, "a")
    bench.wait(KEEP_MS - 1)
    assert bench.of(ev.Reclaimed) == []
    bench.wait(1)
    assert bench.of(ev.Reclaimed) == [ev.Reclaimed("a", "unrenewed", CODER, KEEP_MS, kind="requests")]


def test_h2_a_ticket_whose_client_is_not_heard_of_leaves_the_queue():
    bench = one_slot()
    ask(bench, "a")
    ask(bench, "b")
    bench.wait(4 * MINUTE)
    bench.do(cmd.Renew("a"))
    bench.wait(MINUTE)
    assert bench.of(ev.Dropped) == [ev.Dropped("b", "unrenewed")]
    assert "a" in bench.state.leases


def test_h2_renewals_are_written_down_only_when_half_of_the_time_is_over():
    bench = one_slot()
    ask(bench, "a")
    for _ in range(59):  # every 10 s for almost ten minutes
        bench.wait(10 * SECOND)
        bench.do(cmd.Renew("a", SERVER, "/run/s"))
    renewed = bench.of(ev.Renewed)
    assert 3 <= len(renewed) <= 4
    assert all(isinstance(event, ev.Renewed) and not event.holder for event in renewed)
    assert "a" in bench.state.leases


def test_h2_another_process_may_speak_for_a_client_from_now_on():
    bench = one_slot()
    ask(bench, "a")
    ask(bench, "b")
    for ident in ("a", "b"):
        bench.do(cmd.Renew(ident, OTHER, "/run/o"))
    until = bench.now + KEEP_MS
    assert bench.of(ev.Renewed) == [ev.Renewed(ident, until, OTHER, "/run/o") for ident in ("a", "b")]
    assert (bench.state.leases["a"].ticket.holder, bench.state.tickets["b"].wake) == (OTHER, "/run/o")
    bench.release("a")
    bench.wait(SECOND)
    assert bench.state.leases["b"].ticket.holder == OTHER


def test_h2_the_end_of_the_service_loses_nobody_that_it_spoke_for():
    bench = one_slot()
    ask(bench, "a")
    ask(bench, "b")
    assert bench.state.leases["a"].lives_with == ""
    bench.do(cmd.Lost((SERVER,)))
    assert "a" in bench.state.leases
    assert "b" in bench.state.tickets
    bench.release("a")
    bench.wait(SECOND)  # b has a grant now, and its service is gone: nobody claims it
    assert not bench.state.leases["b"].claimed
    bench.do(cmd.Lost((SERVER,)))
    assert "b" in bench.state.leases


def test_h2_what_lives_with_its_process_has_nothing_to_renew():
    bench = one_slot()
    bench.do(cmd.Acquire("p", Spec(models=(CODER,), kind="requests"), SERVER))
    with pytest.raises(BadRequest, match="as long as its process"):
        bench.do(cmd.Renew("p"))
    with pytest.raises(NotFound, match="no lease or ticket"):
        bench.do(cmd.Renew("gone"))


def test_q1_a_time_that_cannot_be_is_refused():
    bench = one_slot()
    for renew_ms in (-1, 86_400_001):
        with pytest.raises(BadRequest, match=f"renewed every {renew_ms} ms"):
            bench.do(cmd.Acquire("x", Spec(models=(CODER,), kind="requests"), SERVER, renew_ms=renew_ms))
    ask(bench, "a")
    with pytest.raises(BadRequest, match="cause 'whim'"):
        bench.do(cmd.Reclaim("a", "me", "whim"))
    bench.do(cmd.Reclaim("a", "the service", "unrenewed"))
    assert bench.of(ev.Reclaimed) == [ev.Reclaimed("a", "unrenewed", CODER, 0, "the service", "requests")]


def test_h2_who_renews_rarely_is_kept_for_three_times_as_long():
    bench = one_slot()
    bench.do(cmd.Acquire("a", Spec(models=(CODER,), kind="requests"), SERVER, renew_ms=10 * MINUTE))
    bench.wait(30 * MINUTE - 1)
    assert "a" in bench.state.leases
    bench.wait(1)
    assert "a" not in bench.state.leases


def test_h2_deadlines_of_clients_survive_a_snapshot():
    bench = one_slot()
    ask(bench, "a")
    ask(bench, "b")
    engine = Engine(State.restore(bench.state.export()))
    events = engine.handle(cmd.Tick(), bench.now + KEEP_MS)
    assert {type(event) for event in events} == {ev.Reclaimed, ev.Dropped}
    assert not engine.state.leases
    assert not engine.state.tickets
