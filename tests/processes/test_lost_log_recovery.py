"""A store that lost its last commits under agents that run: they are counted again before a new agent enters."""

from __future__ import annotations

import shutil
import signal

import pytest

from fleetgate.core import events as ev
from fleetgate.jobs import job_store
from tests.processes.fleet import FLEETGATE, Fleet, Run
from tests.processes.job_fleet import Jobs
from tests.processes.test_hosts import BEAT_S, host
from tests.processes.test_hosts import start_node as start_node_of

pytestmark = pytest.mark.processes

DATABASE = ("fleetgate.db", "fleetgate.db-wal", "fleetgate.db-shm")


def back_up(fleet: Fleet) -> None:
    shutil.copytree(fleet.home, fleet.folder / "backup")


def restore(fleet: Fleet) -> None:
    """As an operator would, without stopping any process."""
    for name in DATABASE:
        (fleet.home / name).unlink(missing_ok=True)
    for name in DATABASE[:2]:
        if (fleet.folder / "backup" / name).exists():
            shutil.copy(fleet.folder / "backup" / name, fleet.home / name)


def start_node(fleet: Fleet) -> Run:
    run = fleet.start([*FLEETGATE, "node"])
    fleet.until(lambda: "listens" in run.err or run.code is not None, what="a node that listens")
    return run


def adopted(fleet: Fleet) -> list[str]:
    return [event.adopted for _, event in fleet.events_of(ev.Granted) if event.adopted]


@pytest.mark.parametrize("noded", [False, True], ids=["directly", "through a node"])
@pytest.mark.parametrize("waiter", [False, True], ids=["empty queue", "one waits"])
def test_q2_a_backup_restored_under_running_agents_grants_no_slot_twice(
    fleet: Fleet, noded: bool, waiter: bool
) -> None:
    fleet.configure("[agents]\nhost = 2\n")
    fleet.slots = 2
    assert fleet.done("--", "true").code == 0
    back_up(fleet)
    if noded:
        start_node(fleet)
    go = fleet.folder / "go"
    running = [fleet.run("--", *fleet.sleeper(f"old{number}", go)) for number in range(2)]
    fleet.until(lambda: len(fleet.notes("start")) == 2, what="two agents")
    waiting = [fleet.run("--", *fleet.sleeper("waiting", 0.3))] if waiter else []
    fleet.until(lambda: fleet.in_queue() == len(waiting), what="the one who waits")
    fleet.close_gate()
    restore(fleet)
    late = [fleet.run("--", *fleet.sleeper(f"new{number}", 0.3)) for number in range(3)]
    fleet.until(lambda: adopted(fleet) == ["log_lost"] * 2, what="both counted")
    go.touch()
    assert [run.wait(60) for run in (*running, *waiting, *late)] == [0] * (5 + waiter)
    assert fleet.most_at_once() == 2
    assert adopted(fleet) == ["log_lost"] * 2
    assert fleet.events_of(ev.Recovering)
    fleet.check_log()


def test_l3_what_a_person_took_back_is_not_claimed_again(fleet: Fleet) -> None:
    fleet.configure("[agents]\nhost = 1\n")
    run = fleet.run("--", *fleet.sleeper("a", 4))
    fleet.until(lambda: fleet.has_started("a"), what="the agent")
    (ident,) = fleet.state.leases
    assert fleet.start([*FLEETGATE, "release", ident, "--force"]).wait() == 0
    assert run.wait() == 0  # it looked several times meanwhile
    assert not adopted(fleet)


def test_q2_a_store_that_is_only_reopened_delays_no_run(fleet: Fleet) -> None:
    fleet.configure("[agents]\nhost = 1\n")
    for _ in range(3):
        assert fleet.done("--", "true").code == 0
    assert not fleet.events_of(ev.Recovering)


def test_q2_an_empty_store_in_place_of_the_old_one_waits_for_those_who_run(fleet: Fleet) -> None:
    fleet.configure("[agents]\nhost = 1\n")
    fleet.slots = 1
    old = fleet.run("--", *fleet.sleeper("old", 4))
    fleet.until(lambda: fleet.has_started("old"), what="the agent")
    fleet.close_gate()
    for name in DATABASE:
        (fleet.home / name).unlink(missing_ok=True)
    new = fleet.run("--", *fleet.sleeper("new", 0.1))
    assert old.wait() == new.wait(30) == 0
    assert fleet.most_at_once() == 1


def test_j2_running_jobs_that_a_restored_store_lost_continue_and_count_before_any_new_one_enters(fleet: Fleet) -> None:
    """One is in the restored queue again, as if it had not run; the store does not know the other."""
    fleet.configure("[agents]\nhost = 2\n")
    fleet.slots = 2
    jobs = Jobs(fleet)
    go = fleet.folder / "go"
    queued = jobs.quickly(*fleet.sleeper("queued", go))
    fleet.close_gate()
    back_up(fleet)
    jobs.worker(2)
    unknown = jobs.quickly(*fleet.sleeper("unknown", go))
    fleet.until(lambda: len(fleet.notes("start")) == 2, what="two jobs")
    fleet.close_gate()
    restore(fleet)
    late = fleet.run("--", *fleet.sleeper("late", 0.1))
    fleet.until(lambda: adopted(fleet) == ["log_lost"] * 2, what="both counted")
    fleet.until(lambda: job_store.find(fleet.gate.log, unknown) is not None, what="its row, written again by its hand")
    fleet.until(lambda: [jobs.state(ident) for ident in (queued, unknown)] == ["running"] * 2, what="rows that say so")
    go.touch()
    for ident in (queued, unknown):
        view = jobs.ended(ident)
        assert (view.state, view.job.attempt) == ("succeeded", 1)
    assert late.wait() == 0
    assert sorted(life.name for life in fleet.lives()) == ["late", "queued", "unknown"]
    assert fleet.most_at_once() == 2
    fleet.until(fleet.is_empty, what="an empty gate")
    fleet.check_log()


@pytest.mark.parametrize("noded", [False, True], ids=["directly", "through nodes"])
def test_l2_a_host_that_was_cut_off_finds_its_agents_counted_again(fleet: Fleet, noded: bool) -> None:
    """Its agents continue, their slots are granted to others after a while, and history shows both."""
    fleet.configure('[agents]\nhost = 100\n"*/m" = 1\n')
    beat_s = BEAT_S if noded else 1.5
    env_a, env_b = host("a", beat_s), host("b", beat_s)
    cut_off = [start_node_of(fleet, "a")] if noded else []
    if noded:
        start_node_of(fleet, "b")
    first = fleet.run("-m", "p/m", "--", *fleet.sleeper("first", 30), env=env_a)
    fleet.until(lambda: fleet.has_started("first"), what="the first")
    cut_off.append(first)
    second = fleet.run("-m", "p/m", "--", *fleet.sleeper("second", 1), env=env_b)
    fleet.until(lambda: fleet.in_queue() == 1, what="the second in the queue")
    for run in cut_off:
        run.signal(signal.SIGSTOP)
    assert second.wait(30) == 0
    assert [event.cause for _, event in fleet.events_of(ev.Reclaimed)] == ["lost"]
    for run in cut_off:
        run.signal(signal.SIGCONT)
    fleet.until(lambda: adopted(fleet) == ["cut_off"], what="its agent counted again")
    third = fleet.run("-m", "p/m", "--no-wait", "--", "true", env=env_b)
    assert third.wait() == 75
    first.signal(signal.SIGTERM)
    first.wait()
    fleet.until(fleet.is_empty, what="an empty gate")
