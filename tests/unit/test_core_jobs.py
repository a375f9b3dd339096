"""Jobs in the engine: away until a worker offers, held until approved, never lost with their worker (rules J2, J5)."""

from __future__ import annotations

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Rule
from fleetgate.core.errors import BadRequest, NotFound
from fleetgate.core.views.pool_and_lease_views import capacity, pool_views, ticket_view, ticket_views
from tests.property.harness import HOUR, MINUTE, OPUS, SECOND, SONNET, Bench

HAND = "hand-1"
OTHER = "hand-2"


def submit(bench: Bench, ident: str, *models: str, host: str = "h1", **said: object) -> list[ev.Event]:
    spec = bench.spec(*models, host=host)
    return bench.do(cmd.Acquire(ident, spec, "", job=True, any_host=not host, **said))  # type: ignore[arg-type]


def offer(bench: Bench, ident: str, holder: str = HAND, host: str = "h1") -> str:
    bench.do(cmd.Offer(ident, holder, host))
    return bench.fate(ident)


def code(bench: Bench, ident: str) -> str:
    view = ticket_view(bench.state, ident, bench.now)
    assert view is not None
    return view.reason.code


def position(bench: Bench, ident: str) -> int:
    view = ticket_view(bench.state, ident, bench.now)
    assert view is not None
    return view.position


def heads(bench: Bench) -> list[str]:
    return [ticket.id for ticket in bench.state.waiting_jobs.heads(bench.now)]


def test_j2_a_job_asks_for_nothing_until_a_worker_offers_to_run_it():
    bench = Bench({"host": 1})
    submit(bench, "job")
    assert bench.fate("job") == "away"
    assert code(bench, "job") == "no_worker"
    assert bench.agent("run") == "granted"
    assert bench.state.queues[bench.spec()].waiting == 0


def test_j2_an_offer_brings_holder_and_host_and_is_let_in():
    bench = Bench({"host": 1})
    submit(bench, "job", OPUS, host="")
    assert offer(bench, "job", host="h2") == "offered"
    lease = bench.lease("job")
    assert (lease.ticket.holder, lease.ticket.spec.host, lease.model) == (HAND, "h2", OPUS)
    bench.do(cmd.Claim("job", "agent", HAND))
    assert lease.child == "agent"


def test_j2_a_job_that_waits_keeps_its_place_before_a_younger_request():
    bench = Bench({"host": 1})
    bench.agent("busy")
    submit(bench, "job")
    bench.wait(SECOND)
    assert bench.agent("run") == "waits"
    assert offer(bench, "job") == "waits"
    assert position(bench, "job") == 1
    bench.release("busy")
    assert (bench.fate("job"), bench.fate("run")) == ("offered", "waits")


def test_j2_of_two_offers_the_later_changes_nothing():
    bench = Bench({"host": 1})
    bench.agent("busy")
    submit(bench, "job")
    offer(bench, "job")
    assert bench.do(cmd.Offer("job", OTHER, "h1")) == []
    assert bench.state.tickets["job"].holder == HAND


def test_j2_an_offer_from_another_host_is_refused_unless_any_will_do():
    bench = Bench()
    submit(bench, "job")
    with pytest.raises(BadRequest, match="runs on h1 only"):
        bench.do(cmd.Offer("job", HAND, "h2"))
    with pytest.raises(NotFound, match="no job 'none' waits"):
        bench.do(cmd.Offer("none", HAND, "h2"))
    bench.agent("busy")
    bench.agent("run", host="h1")
    with pytest.raises(NotFound):
        bench.do(cmd.Offer("run", HAND, "h1"))


def test_j2_an_offer_that_is_withdrawn_leaves_the_job_where_it_was():
    bench = Bench({"host": 1})
    bench.agent("busy")
    submit(bench, "job", host="")
    before = bench.state.tickets["job"]
    offer(bench, "job")
    bench.do(cmd.Withdraw("job", OTHER))
    assert bench.fate("job") == "waits"
    bench.do(cmd.Withdraw("job", HAND))
    assert bench.state.tickets["job"] == before
    assert bench.do(cmd.Withdraw("job", HAND)) == []
    assert heads(bench) == ["job"]


def test_j2_a_grant_that_the_worker_has_no_process_for_goes_back_to_the_jobs_place():
    bench = Bench({"host": 1})
    submit(bench, "job")
    offer(bench, "job")
    bench.do(cmd.Withdraw("job", OTHER))
    assert bench.fate("job") == "offered"
    bench.do(cmd.Withdraw("job", HAND))
    assert (bench.fate("job"), bench.state.tickets["job"].holder) == ("away", "")


def test_j2_what_runs_is_not_withdrawn():
    bench = Bench({"host": 1})
    submit(bench, "job")
    offer(bench, "job")
    bench.do(cmd.Claim("job", "agent", HAND))
    assert bench.do(cmd.Withdraw("job", HAND)) == []
    assert bench.do(cmd.Withdraw("none", HAND)) == []


def test_j2_a_worker_that_dies_before_its_job_ran_leaves_the_job_where_it_was():
    bench = Bench({"host": 1})
    submit(bench, "granted")
    submit(bench, "waiting")
    offer(bench, "granted")
    bench.do(cmd.Claim("granted"))
    offer(bench, "waiting")
    bench.do(cmd.Lost((HAND,)))
    assert (bench.fate("granted"), bench.fate("waiting")) == ("away", "away")
    assert heads(bench) == ["granted"]


def test_j2_a_worker_that_dies_with_its_job_loses_the_lease_and_history_says_whose():
    bench = Bench({"host": 1})
    submit(bench, "job")
    offer(bench, "job")
    bench.do(cmd.Claim("job", "agent", HAND))
    events = bench.do(cmd.Lost((HAND, "agent")))
    assert [event for event in events if isinstance(event, ev.Reclaimed) and event.job and event.cause == "lost"]


def test_j2_a_job_whose_grant_is_not_claimed_is_unassigned_and_a_late_claim_is_refused():
    bench = Bench({"host": 1})
    submit(bench, "job")
    offer(bench, "job")
    bench.wait(11 * SECOND)
    assert (bench.fate("job"), heads(bench)) == ("away", ["job"])
    with pytest.raises(NotFound):
        bench.do(cmd.Claim("job", "agent", HAND))
    assert bench.do(cmd.Ask("job")) == []
    offer(bench, "job", OTHER)
    with pytest.raises(NotFound, match="another process has it now"):
        bench.do(cmd.Claim("job", "agent", HAND))


def test_j2_a_release_by_a_worker_whose_lease_was_taken_back_does_not_end_the_next_attempt():
    bench = Bench({"host": 1})
    submit(bench, "job")
    offer(bench, "job")
    bench.do(cmd.Claim("job", "agent", HAND))
    bench.do(cmd.Reclaim("job", "a person"))
    submit(bench, "job")
    offer(bench, "job", OTHER)
    assert bench.do(cmd.Release("job", holder=HAND)) == []
    released = bench.do(cmd.Release("job", holder=OTHER))
    assert [event.job for event in released if isinstance(event, ev.Released)] == [True]


def test_a5_a_job_that_was_moved_has_one_place_and_those_that_left_have_none():
    bench = Bench({"host": 1})
    bench.agent("busy")
    for ident in ("a", "b", "c"):
        submit(bench, ident)
        bench.wait(1)
    bench.do(cmd.Bump("c"))
    bench.do(cmd.Cancel("b"))
    assert [view.ticket.id for view in ticket_views(bench.state, bench.now)] == ["c", "a"]
    assert (position(bench, "c"), position(bench, "a")) == (1, 2)


def test_j2_positions_count_jobs_in_the_order_of_the_queue_whoever_will_run_them():
    bench = Bench({"host": 3})
    for number in range(6):
        submit(bench, f"j{number}")
        bench.wait(1)
    for number in range(3):
        offer(bench, f"j{number}")
    assert [position(bench, f"j{number}") for number in (3, 4, 5)] == [1, 2, 3]
    assert code(bench, "j3") == "concurrency_cap"
    assert [view.ticket.id for view in ticket_views(bench.state, bench.now)] == ["j3", "j4", "j5"]


def test_a6_a_job_with_room_and_a_busy_worker_waits_for_a_hand():
    bench = Bench({"host": 5})
    submit(bench, "first")
    submit(bench, "second")
    offer(bench, "first")
    assert code(bench, "second") == "workers_busy"


def test_a6_jobs_that_need_no_pool_have_positions_too():
    bench = Bench({"host": 1})
    submit(bench, "old", host="")
    bench.wait(1)
    submit(bench, "new", host="")
    assert (position(bench, "old"), position(bench, "new")) == (1, 2)


def test_a11_a_job_that_no_worker_offers_to_run_is_counted_and_bars_nobody():
    bench = Bench({"host": 4})
    submit(bench, "job")
    found = capacity(bench.state, bench.spec(), bench.now)
    assert (found.level, found.free, found.queued, found.wait_ms) == ("yellow", 4, 1, (0, 0))
    assert found.reason is not None
    assert found.reason.text == "1 job waits for a worker"
    assert bench.agent("run") == "granted"


def test_o1_jobs_without_a_worker_count_as_waiting_for_each_pool_that_they_need():
    bench = Bench({"host": 1, OPUS: 1})
    bench.agent("busy")
    submit(bench, "plain")
    submit(bench, "with a model", OPUS)
    bench.agent("run", OPUS)
    assert {view.pool: view.queued for view in pool_views(bench.state, bench.now)} == {"host:h1": 3, OPUS: 2}
    offer(bench, "plain")
    assert {view.pool: view.queued for view in pool_views(bench.state, bench.now)} == {"host:h1": 3, OPUS: 2}
    bench.do(cmd.Cancel("with a model"))
    assert {view.pool: view.queued for view in pool_views(bench.state, bench.now)} == {"host:h1": 2, OPUS: 1}


def test_j5_a_job_to_be_confirmed_is_held_when_its_turn_comes_and_takes_no_slot():
    bench = Bench({"host": 1})
    bench.agent("busy")
    submit(bench, "job", confirm=True)
    assert offer(bench, "job") == "waits"
    events = bench.release("busy")
    assert [event.id for event in events if isinstance(event, ev.Held)] == ["job"]
    assert (bench.fate("job"), code(bench, "job"), heads(bench)) == ("away", "held", [])
    assert bench.do(cmd.Offer("job", HAND, "h1")) == []
    assert bench.agent("run") == "granted"
    bench.release("run")
    bench.do(cmd.Approve("job", "me"))
    assert heads(bench) == ["job"]
    assert offer(bench, "job") == "offered"


def test_j5_a_job_may_be_approved_before_its_turn_and_only_if_it_is_to_be():
    bench = Bench({"host": 1})
    bench.agent("busy")
    submit(bench, "early", confirm=True)
    submit(bench, "plain")
    offer(bench, "early")
    bench.do(cmd.Approve("early"))
    bench.release("busy")
    assert bench.fate("early") == "offered"
    with pytest.raises(BadRequest, match="needs no approval"):
        bench.do(cmd.Approve("plain"))


def test_j3_a_job_that_failed_is_not_offered_before_its_pause_is_over():
    bench = Bench({"host": 1})
    submit(bench, "job", not_before=bench.now + MINUTE)
    assert (heads(bench), code(bench, "job")) == ([], "retry_pause")
    assert bench.state.waiting_jobs.next_due() == bench.now + MINUTE
    assert bench.do(cmd.Offer("job", HAND, "h1")) == []
    submit(bench, "gone", not_before=bench.now + MINUTE)
    bench.do(cmd.Cancel("gone"))
    bench.wait(MINUTE)
    assert (heads(bench), bench.state.waiting_jobs.next_due()) == (["job"], None)
    assert offer(bench, "job") == "offered"


def test_a8_a_job_in_the_queue_for_a_day_expires_and_history_says_that_it_is_a_job():
    bench = Bench()
    submit(bench, "job")
    expired = [event for event in bench.wait(24 * HOUR) if isinstance(event, ev.Expired)]
    assert [(event.id, event.job) for event in expired] == [("job", True)]
    assert heads(bench) == []


def test_a9_a_job_can_be_moved_to_the_front_and_cancelled():
    bench = Bench({"host": 1})
    submit(bench, "old")
    bench.wait(1)
    submit(bench, "new")
    bench.do(cmd.Bump("new"))
    assert heads(bench) == ["new"]
    cancelled = bench.do(cmd.Cancel("new", "me"))
    assert [event.job for event in cancelled if isinstance(event, ev.Cancelled)] == [True]
    assert heads(bench) == ["old"]


def test_a10_a_second_job_with_the_same_key_is_told_which_one_has_it():
    bench = Bench()
    submit(bench, "one", key="nightly")
    events = submit(bench, "two", key="nightly")
    assert isinstance(events[0], ev.Deferred)
    assert "in the queue as one (a job)" in events[0].reason.text


def test_r9_a_session_that_runs_on_the_workers_host_keeps_the_job_waiting():
    bench = Bench()
    submit(bench, "job", host="", session="issue-1")
    assert bench.agent("run", host="h2", session="issue-1") == "granted"
    assert bench.do(cmd.Offer("job", HAND, "h2")) == []
    bench.release("run")
    assert offer(bench, "job", host="h2") == "offered"


def test_j2_what_a_worker_looks_at_depends_on_the_kinds_of_jobs_and_survives_new_rules():
    bench = Bench({"host": 1})
    for number in range(300):
        submit(bench, f"o{number:03}", OPUS)
    submit(bench, "s", SONNET)
    assert heads(bench) == ["o000", "s"]
    for number in range(300):
        bench.do(cmd.Cancel(f"o{number:03}"))
    submit(bench, "last", OPUS)
    bench.do(cmd.SetRule(Rule("agents", "host", cap=2)))
    assert heads(bench) == ["s", "last"]


def test_j4_the_end_of_a_job_is_an_event_with_one_of_the_final_states():
    bench = Bench()
    events = bench.do(cmd.EndJob("job", "failed", 3, "exit 1", "nightly", 1))
    assert events == [ev.JobEnded("job", "failed", 3, "exit 1", "nightly", 1)]
    with pytest.raises(BadRequest, match="valid are succeeded"):
        bench.do(cmd.EndJob("job", "running"))


def test_j6_a_job_that_will_not_wait_is_lent_to_its_holder_or_deferred():
    bench = Bench({"host": 1})
    spec = bench.spec()
    bench.do(cmd.Acquire("a", spec, HAND, wait=False, job=True))
    bench.do(cmd.Acquire("b", spec, HAND, wait=False, job=True))
    assert (bench.fate("a"), bench.fate("b")) == ("granted", "deferred")
