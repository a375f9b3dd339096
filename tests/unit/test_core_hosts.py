"""Adopting those who run already, a log that recovers, and hosts that are drained (rules A1, L2, Q2)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.engine import Engine
from fleetgate.core.entities import Lease, Rule, Spec
from fleetgate.core.errors import BadRequest, NotFound
from fleetgate.core.queue.reservations import RESERVE_AFTER_MS
from fleetgate.core.state.state import State
from fleetgate.core.views.pool_and_lease_views import ticket_view
from tests.property.harness import CODER, MINUTE, SECOND, SONNET, START, Bench, through_json


def lease_of(bench: Bench, ident: str = "a", **named: object) -> Lease:
    """A lease as its holder remembers it, of a gate that no longer does."""
    bench.agent(ident, SONNET, **named)
    lease = replace(bench.state.leases[ident])
    bench.release(ident)
    return lease


def adopt(lease: Lease, child: str = "h|b|n|7|1", **named: object) -> cmd.Adopt:
    return cmd.Adopt(lease.ticket, lease.model, child, **named)  # type: ignore[arg-type]


def grants(bench: Bench) -> list[ev.Granted]:
    return [event for event, _ in bench.log if isinstance(event, ev.Granted)]


# Adopting.


def test_l2_who_runs_is_adopted_also_above_the_limit_and_history_says_so():
    bench = Bench(agents={"host": 1})
    lease = lease_of(bench)
    bench.agent("b", SONNET)
    bench.do(adopt(lease, why="failed_open"))
    assert [event.adopted for event in grants(bench)] == ["", "", "failed_open"]
    adopted = bench.state.leases["a"]
    assert (adopted.claimed, adopted.child, adopted.ticket.command) == (True, "h|b|n|7|1", lease.ticket.command)
    assert bench.agent("c", SONNET) == "waits"
    bench.release("b")
    assert "c" in bench.state.tickets, "there is no room until it fits again"
    bench.release("a")
    assert "c" in bench.state.leases


def test_l2_adopting_twice_changes_nothing():
    bench = Bench(agents={"host": 2})
    lease = lease_of(bench)
    assert len(bench.do(adopt(lease))) == 2
    assert bench.do(adopt(lease)) == []
    assert bench.do(adopt(lease, child="")) == []


def test_l2_one_whose_ticket_is_still_in_the_queue_is_adopted_from_there():
    bench = Bench(agents={"host": 1})
    bench.agent("b", SONNET)
    bench.agent("a", SONNET)
    ticket = bench.state.tickets["a"]
    bench.do(cmd.Adopt(ticket, SONNET, "h|b|n|7|1"))
    assert grants(bench)[-1].ticket is None
    assert set(bench.state.leases) == {"a", "b"}
    assert not bench.state.tickets


def test_l2_one_that_was_passed_over_is_adopted_too():
    bench = Bench(agents={"host": 1})
    bench.agent("b", SONNET)
    bench.agent("a", SONNET)
    ticket = bench.state.tickets["a"]
    bench.release("b")
    bench.wait(MINUTE)
    assert bench.state.tickets["a"].away
    bench.do(cmd.Adopt(ticket, SONNET))
    assert list(bench.state.leases) == ["a"]


def test_l5_the_longest_hold_counts_from_when_it_began():
    bench = Bench(rules=(Rule("agents", "host", cap=1, max_hold_ms=10 * MINUTE),))
    lease = lease_of(bench)
    bench.do(adopt(lease, held_ms=4 * MINUTE))
    assert bench.state.leases["a"].ends_at == bench.now + 6 * MINUTE
    bench.release("a")
    bench.do(adopt(lease, held_ms=40 * MINUTE))
    assert bench.state.leases["a"].ends_at == bench.now + 1


def test_q1_what_cannot_be_adopted_changes_nothing():
    bench = Bench(agents={"host": 1})
    lease = lease_of(bench)
    before = bench.state.seq
    with pytest.raises(BadRequest, match="model"):
        bench.do(cmd.Adopt(lease.ticket, "openai/gpt-5"))
    bench.do(cmd.Acquire("j", lease.ticket.spec, "", job=True))
    before += 1
    with pytest.raises(BadRequest, match="is a job"):
        bench.do(cmd.Adopt(replace(lease.ticket, id="j"), SONNET))
    assert bench.state.seq == before


def test_h2_a_clients_lease_is_adopted_with_its_renewals():
    bench = Bench(requests={"umans": 1})
    bench.call("a", CODER, renew_ms=60_000, holder="service")
    lease = replace(bench.state.leases["a"])
    bench.release("a")
    bench.wait(MINUTE)
    bench.do(cmd.Adopt(lease.ticket, lease.model))
    adopted = bench.state.leases["a"]
    assert (adopted.ticket.renew_ms, adopted.ticket.renew_by) == (60_000, bench.now + 5 * MINUTE)
    assert adopted.lives_with == ""
    bench.wait(6 * MINUTE)
    assert not bench.state.leases, "a client that is never heard of again keeps its slot"


# Jobs.


def running_job(bench: Bench, ident: str = "j", **said: object) -> Lease:
    """A job's lease, as its hand knows it."""
    spec = Spec(models=(SONNET,), host="" if said.get("any_host") else "h1")
    bench.do(cmd.Acquire(ident, spec, "", job=True, **said))  # type: ignore[arg-type]
    bench.do(cmd.Offer(ident, "hand", "h1", "/wake"))
    bench.do(cmd.Claim(ident, "h1|b|n|7|1", "hand"))
    return replace(bench.state.leases[ident])


def of_job(lease: Lease) -> cmd.Adopt:
    return cmd.Adopt(lease.ticket, lease.model, lease.child)


@pytest.mark.parametrize("any_host", [False, True])
def test_j2_a_job_that_the_log_has_forgotten_is_adopted_as_a_job(any_host: bool):
    bench = Bench(agents={"host": 1})
    lease = running_job(bench, any_host=any_host)
    other = Bench(agents={"host": 1})
    other.do(of_job(lease))
    adopted = other.state.leases["j"]
    assert (adopted.ticket.job, adopted.ticket.any_host, adopted.ticket.holder) == (True, any_host, "hand")
    assert (adopted.child, adopted.ticket.expires_at) == ("h1|b|n|7|1", lease.ticket.expires_at)
    assert other.agent("new", SONNET, host="h1") == "waits"
    other.do(cmd.Lost(("h1|b|n|7|1",)))
    (lost,) = other.of(ev.Reclaimed)
    assert lost.job  # type: ignore[union-attr]


@pytest.mark.parametrize("any_host", [False, True])
@pytest.mark.parametrize("offered", ["", "hand", "other hand"])
@pytest.mark.parametrize("confirm", [False, True])
def test_j2_a_job_that_waits_in_a_restored_line_is_adopted_from_there_and_runs_once(
    offered: str, any_host: bool, confirm: bool
):
    bench = Bench(agents={"host": 1})
    lease = running_job(bench, any_host=any_host)
    other = Bench(agents={"host": 1})
    other.do(cmd.Recover(10 * SECOND))
    spec = Spec(models=(SONNET,), host="" if any_host else "h1")
    other.do(cmd.Acquire("j", spec, "", job=True, any_host=any_host, confirm=confirm))
    if offered:
        other.do(cmd.Offer("j", offered, "h1"))
    other.do(of_job(lease))
    assert set(other.state.leases) == {"j"}
    assert (other.state.leases["j"].ticket.holder, other.state.leases["j"].ticket.confirm) == ("hand", False)
    assert other.do(of_job(lease)) == []
    other.wait(MINUTE)
    assert not other.state.waiting_jobs.heads(other.now)
    other.do(cmd.Release("j", holder="hand"))
    assert not other.state.leases
    assert not other.state.tickets


def test_j2_a_job_that_another_hand_runs_by_now_is_not_adopted():
    bench = Bench(agents={"host": 1})
    lease = running_job(bench)
    with pytest.raises(BadRequest, match="another"):
        bench.do(cmd.Adopt(replace(lease.ticket, holder="old hand"), SONNET, "h1|b|n|9|1"))
    assert bench.state.leases["j"].child == "h1|b|n|7|1"


# A log that recovers.


def test_a1_nobody_enters_while_the_log_recovers_and_all_who_fit_do_then():
    bench = Bench(agents={"host": 2})
    lease = lease_of(bench)
    bench.do(cmd.Recover(10 * SECOND, "restored"))
    assert bench.of(ev.Recovering) == [ev.Recovering(START + 10 * SECOND, "restored")]
    assert bench.agent("b", SONNET) == bench.agent("c", SONNET) == "waits"
    assert bench.agent("d", SONNET, wait=False) == "deferred"
    (refused,) = [event.reason for event, _ in bench.log if isinstance(event, ev.Deferred)]
    assert (refused.code, refused.until) == ("recovering", START + 10 * SECOND)
    bench.wait(SECOND)
    bench.do(adopt(lease))
    bench.do(cmd.SetRule(Rule("agents", "project", cap=9)))  # which makes the line anew
    assert set(bench.state.leases) == {"a"}
    bench.wait(9 * SECOND)
    assert set(bench.state.leases) == {"a", "b"}
    assert set(bench.state.tickets) == {"c"}


def test_a1_a_second_recovery_makes_the_first_no_shorter():
    bench = Bench(agents={"host": 1})
    bench.do(cmd.Recover(10 * SECOND))
    assert bench.do(cmd.Recover(SECOND)) == []
    bench.do(cmd.Recover(10**9))
    assert bench.state.recovers_until == START + MINUTE


def test_a1_a_line_that_was_just_read_lets_nobody_in_before_it_recovers():
    """Whoever waits in a restored log must not be let in by the tick that comes before every command."""
    bench = Bench(agents={"host": 1})
    bench.agent("a", SONNET)
    bench.agent("b", SONNET)
    snapshot = bench.state.export()
    snapshot.leases = []
    engine = Engine(State.restore(snapshot))
    engine.handle(cmd.Recover(SECOND), bench.now)
    assert engine.handle(cmd.Tick(), bench.now) == []
    assert engine.next_deadline() == bench.now + SECOND
    events = engine.handle(cmd.Tick(), bench.now + SECOND)
    assert [type(event) for event in events] == [ev.Granted]


def test_p5_a_recovery_and_a_drain_survive_a_restart():
    bench = Bench(agents={"host": 1})
    bench.do(cmd.Recover(10 * SECOND))
    bench.do(cmd.Drain("h2"))
    restored = State.restore(through_json(bench.state.export()))
    assert (restored.recovers_until, restored.draining) == (START + 10 * SECOND, {"h2": START})
    bench.wait(MINUTE)
    bench.do(cmd.Drain("h2", end=True))
    assert State.restore(through_json(bench.state.export(bench.now))).draining == {}


# Hosts that are drained.


def agent_on(bench: Bench, ident: str, host: str, *, kind: str = "agents") -> None:
    bench.do(cmd.Acquire(ident, Spec((SONNET,), kind, host=host), f"{host}|b|n|{ident}|1"))


def test_a6_nobody_new_starts_on_a_drained_host_and_others_are_not_held_up():
    bench = Bench(agents={"*/claude-sonnet-*": 1})
    agent_on(bench, "a", "h1")
    bench.do(cmd.Drain("h1", "alice"))
    assert bench.of(ev.Draining) == [ev.Draining("h1", "alice")]
    assert bench.do(cmd.Drain("h1")) == []
    agent_on(bench, "b", "h1")
    agent_on(bench, "c", "h2")
    view = ticket_view(bench.state, "b", bench.now)
    assert view is not None
    assert view.reason.code == "draining"
    assert "fleetgate drain h1 --end" in view.reason.text
    bench.release("a")
    assert set(bench.state.leases) == {"c"}
    bench.release("c")
    assert not bench.state.leases
    bench.do(cmd.Drain("h1", end=True))
    assert set(bench.state.leases) == {"b"}


def test_a6_calls_of_agents_on_a_drained_host_go_on():
    bench = Bench(requests={"anthropic": 1})
    bench.do(cmd.Drain("h1"))
    agent_on(bench, "a", "h1", kind="requests")
    assert set(bench.state.leases) == {"a"}


def test_a3_no_slot_is_kept_for_one_on_a_drained_host():
    bench = Bench(agents={"*/claude-sonnet-*": 2})
    bench.agent("x", SONNET)
    bench.agent("y", SONNET)
    bench.agent("two", SONNET, slots=2, host="h2")
    bench.wait(SECOND)
    bench.agent("z", SONNET)
    bench.release("x")
    bench.do(cmd.Claim("z"))
    bench.wait(RESERVE_AFTER_MS)
    assert list(bench.state.reserved) == ["two"]
    bench.do(cmd.Drain("h2"))
    assert not bench.state.reserved
    bench.wait(5 * MINUTE)
    assert not bench.state.reserved
    bench.release("y")
    assert bench.agent("late", SONNET) == "granted"


def test_a1_nothing_is_kept_for_anybody_while_the_log_recovers():
    bench = Bench(agents={"host": 2})
    bench.agent("x", SONNET)
    bench.agent("y", SONNET)
    bench.agent("two", SONNET, slots=2)
    bench.wait(SECOND)
    bench.agent("z", SONNET)
    bench.release("x")
    bench.do(cmd.Claim("z"))
    bench.wait(RESERVE_AFTER_MS - 2 * SECOND)
    bench.do(cmd.Recover(10 * SECOND))
    bench.wait(5 * SECOND)
    assert not bench.state.reserved
    bench.wait(RESERVE_AFTER_MS)
    assert list(bench.state.reserved) == ["two"]


def test_j2_a_job_that_a_drained_host_offered_to_run_goes_back():
    bench = Bench(agents={"host": 1})
    agent_on(bench, "a", "h1")
    agent_on(bench, "x", "h2")
    for ident, host in (("j", "h1"), ("k", "h2")):
        bench.do(cmd.Acquire(ident, Spec((SONNET,)), "", job=True, any_host=True))
        bench.do(cmd.Offer(ident, f"{host}|b|n|9|1", host))
    bench.do(cmd.Drain("h1"))
    assert bench.of(ev.Withdrawn) == [ev.Withdrawn("j")]
    assert bench.state.tickets["j"].away
    assert not bench.state.tickets["k"].away


def test_q1_a_host_that_is_not_drained_cannot_be_opened():
    bench = Bench()
    with pytest.raises(NotFound, match="drained: none"):
        bench.do(cmd.Drain("h1", end=True))
    with pytest.raises(BadRequest, match="fleetgate ps"):
        bench.do(cmd.Drain(""))


def test_q2_a_log_that_recovers_opens_also_after_a_restart():
    bench = Bench(agents={"host": 1})
    bench.do(cmd.Recover(10 * SECOND, "test"))
    assert bench.agent("a", SONNET) == "waits"
    engine = Engine(State.restore(bench.state.export()))
    assert engine.next_deadline() == bench.state.recovers_until
