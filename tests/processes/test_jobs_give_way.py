"""Batch jobs that give way to interactive work (rule W5): real processes, real kill -9."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import Any

import pytest

from fleetgate.config.file import load
from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.gate.replica.replica import Decided
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.jobs.retry_policy import AttemptEnd
from fleetgate.jobs.worker.attempt import Attempt
from fleetgate.log import open_log
from tests.processes.fleet import FLEETGATE, Fleet, Run, children_of, is_alive, kill_if_there
from tests.processes.job_fleet import Jobs

pytestmark = pytest.mark.processes

CONFIG = '[agents]\nhost = 1\n[preempt]\nafter = "1s"\n'


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    with Fleet(CONFIG) as fleet:
        fleet.slots = 1  # a sleeper notes it when another one is alive
        yield Jobs(fleet)


def person(jobs: Jobs) -> Run:
    return jobs.fleet.waiting("--class", "interactive", "--", *jobs.fleet.sleeper("person", 0.3))


def was_told(jobs: Jobs, job: str) -> bool:
    lease = jobs.fleet.state.leases.get(job)
    return lease is None or bool(lease.gives_way_to)


def check_ran_again(jobs: Jobs, job: str) -> None:
    """The job ran once more, after the person, never at the same time, and lost no retry."""
    fleet = jobs.fleet
    fleet.until(lambda: len(fleet.notes("start")) == 3, 60, "its second start")
    view = jobs.until(job, "running")
    assert (view.job.attempt, view.job.failures, view.job.losses, view.job.gives_way) == (2, 0, 0, False)
    assert [name for name, _, _ in fleet.notes("start")] == ["job", "person", "job"]
    assert fleet.notes("over") == []
    assert len(fleet.events_of(ev.Preempted)) == 1


def test_w5_a_job_gives_way_and_runs_again_without_losing_a_retry(jobs: Jobs):
    job = jobs.quickly(*jobs.fleet.sleeper("job", 60), on_lost="fail")
    jobs.worker(1)
    jobs.fleet.until(lambda: jobs.fleet.has_started("job"))
    run = person(jobs)
    assert run.wait(60) == 0, run
    check_ran_again(jobs, job)


STUBBORN = """#!/bin/sh
trap 'touch told' TERM
touch began
until [ -e go ]; do sleep 0.1; done
exit 1
"""


@pytest.mark.parametrize("why", ["a person waits", "its worker is stopped"])
def test_w5_j2_a_job_that_is_cancelled_while_it_is_stopped_does_not_run_again(jobs: Jobs, why: str):
    """What a person asked for goes before what was to become of it."""
    fleet = jobs.fleet
    job = jobs.quickly(fleet.script("agent", STUBBORN))
    worker = jobs.worker(1)
    fleet.until((fleet.folder / "began").exists)
    if why == "a person waits":
        run = person(jobs)
        fleet.until(lambda: jobs.view(job).job.gives_way, 60, "the job's row")
    else:
        run = jobs.worker(1)  # another one, that would run it
        for _ in "12":
            worker.signal(signal.SIGTERM)
            fleet.until(lambda: "stopping" in worker.err)
    fleet.until((fleet.folder / "told").exists, 60, "the signal at the agent")
    assert "is being stopped" in jobs.cli("cancel", job).out
    (fleet.folder / "go").touch()
    assert jobs.ended(job).state == "cancelled"
    if why == "a person waits":
        assert run.wait(60) == 0, run


def test_j2_a_job_that_is_cancelled_between_its_end_and_its_next_state_does_not_run_again(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
):
    ident = jobs.quickly("false", retries=3)
    gate = jobs.fleet.gate
    gate.decide([cmd.Offer(ident, gate.me, gate.host)])
    attempt = Attempt(gate, gate.state.leases[ident], jobs.view(ident).job, print)
    attempt._begin("")
    decide, stops = gate.decide, [cmd.Stop(ident, "a person")]

    def late(commands: list[cmd.Command], **options: Any) -> list[Decided]:
        if stops:  # as by another process
            other = DirectGate(open_log(jobs.fleet.store), load(str(jobs.fleet.config)), str(jobs.fleet.home))
            other.decide([stops.pop()])
            other.close()
        return decide(commands, **options)

    monkeypatch.setattr(gate, "decide", late)
    attempt.settle(cmd.Release(ident, "local_error"), AttemptEnd("local_error", exit_code=1), [])
    view = jobs.view(ident)
    assert (view.state, view.job.why) == ("cancelled", "cancelled by a person while it was running")
    assert jobs.fleet.is_empty()


@pytest.mark.parametrize("when", ["told", "noted"])
def test_w5_killed_while_its_job_gives_way_a_worker_loses_nothing(jobs: Jobs, when: str):
    """`on_lost` would fail a job whose worker died; one that gives way returns to the queue all the same."""
    fleet = jobs.fleet
    job = jobs.quickly(*fleet.sleeper("job", 60), on_lost="fail")
    worker = jobs.worker(1)
    jobs.until(job, "running")
    fleet.until(lambda: fleet.has_started("job"))
    holder, child = jobs.process_of(job), jobs.child_of(job)
    if when == "told":  # it never learns of it
        os.kill(holder, signal.SIGSTOP)
    run = person(jobs)
    fleet.until(lambda: was_told(jobs, job), 60)
    if when == "noted":
        fleet.until(lambda: jobs.view(job).job.gives_way or job not in fleet.state.leases, 60)
    for pid in (worker.pid, *children_of(worker.pid), holder, child):
        kill_if_there(pid)
    jobs.worker(1)
    assert run.wait(60) == 0, run
    check_ran_again(jobs, job)


@pytest.mark.parametrize("seed", range(int(os.environ.get("FLEETGATE_SOAK", "2"))))
def test_w5_killed_at_any_moment_around_a_preemption_the_job_runs_again_and_never_two_at_once(jobs: Jobs, seed: int):
    """`make soak` does this many times. Killed before it is told, a job is lost, and returns to the queue as well."""
    fleet, dice = jobs.fleet, Random(seed)
    job = jobs.quickly(*fleet.sleeper("job", 120))
    worker = jobs.worker(1)
    jobs.until(job, "running")
    fleet.until(lambda: fleet.has_started("job"))
    holder, child = jobs.process_of(job), jobs.child_of(job)
    run = person(jobs)
    sleep(dice.uniform(0, 2.5))  # the job is told after a second
    for pid in dice.sample([worker.pid, *children_of(worker.pid), holder, child], k=3):
        kill_if_there(pid)
    for pid in (worker.pid, *children_of(worker.pid), holder, child):
        kill_if_there(pid)
    jobs.worker(1)
    assert run.wait(90) == 0, run
    names: list[str] = []

    def runs_again() -> bool:
        names[:] = [name for name, _, _ in fleet.notes("start")]
        return "person" in names and names[-1] == "job"

    fleet.until(runs_again, 60, "the job's start after the person's")
    assert jobs.until(job, "running").job.failures == 0
    assert (names[0], names.count("person")) == ("job", 1)
    assert fleet.notes("over") == []


STAGES = ("asked", "told", "noted", "over")


@pytest.mark.parametrize("seed", range(int(os.environ.get("FLEETGATE_SOAK", "2"))))
def test_w5_a_service_killed_at_any_moment_of_a_preemption_loses_no_job_and_runs_none_twice_at_once(
    jobs: Jobs, seed: int
):
    """The workers are those of `fleetgate serve`. With the service die its worker, the job's process and the agent, or
    some of them; what lives on finishes, while the next service begins. `make soak` does this many times.
    """
    fleet, dice = jobs.fleet, Random(seed)
    job = jobs.quickly(*fleet.sleeper("job", 120))
    service = serve(jobs)
    jobs.until(job, "running")
    fleet.until(lambda: fleet.has_started("job"))
    holder, child = jobs.process_of(job), jobs.child_of(job)
    worker = parent_of(holder)
    assert parent_of(worker) == service.pid
    run = person(jobs)
    stage = dice.choice(STAGES)
    others = dice.sample([worker, holder, child], k=dice.randint(0, 3))
    print(f"seed {seed}: at {stage!r}, the service and {len(others)} others")
    fleet.until(lambda: has_come(jobs, job, stage), 60, stage)
    sleep(dice.uniform(0, 1.2 if stage == "asked" else 0.1))  # at any moment from there to the next stage
    for pid in dice.sample([service.pid, *others], k=len(others) + 1):
        kill_if_there(pid)
    service.wait()
    serve(jobs)
    assert run.wait(90) == 0, run
    fleet.until(lambda: [name for name, _, _ in fleet.notes("start")][-1] == "job", 60, "the job's start")
    view = jobs.until(job, "running")
    assert view.job.failures == 0
    names = [name for name, _, _ in fleet.notes("start")]
    assert (names[0], names.count("person"), names[-1]) == ("job", 1, "job")
    assert names[names.index("person") :] == ["person", "job"], "it runs once more, not twice"
    assert fleet.notes("over") == [], "never two at a time"
    if others == [] and stage != "asked":
        assert names == ["job", "person", "job"]
        assert view.job.losses == 0


@pytest.mark.parametrize("seed", range(int(os.environ.get("FLEETGATE_SOAK", "2"))))
def test_w5_j2_whatever_is_killed_while_jobs_give_way_to_people_each_job_ends_and_none_runs_twice_at_once(
    seed: int,
):
    """The service, its workers, the processes of jobs, and people; `make soak` does this many times."""
    dice = Random(seed)
    with Fleet(CONFIG.replace("host = 1", "host = 3")) as fleet:
        fleet.slots = 3
        jobs, go = Jobs(fleet), fleet.folder / "go"
        names = [f"job{number}" for number in range(5)]
        idents = jobs.many([fleet.sleeper(name, go) for name in names])
        service = serve(jobs, 3)
        fleet.until(lambda: len(fleet.notes("start")) == 3, 60, "three jobs")
        people: list[Run] = []
        for number in range(3):
            slots = str(dice.choice((1, 2)))
            person = ("--class", "interactive", "--slots", slots, "--", *fleet.sleeper(f"person{number}", 0.3))
            people.append(fleet.run(*person))
            moment = monotonic() + dice.uniform(0.5, 3)
            while monotonic() < moment:
                check_one_at_a_time(fleet)
            workers = children_of(service.pid)
            holders = [pid for worker in workers for pid in children_of(worker)]
            victims = [service.pid, *workers, *holders, people[-1].pid]
            for pid in dice.sample(victims, k=min(dice.randint(1, 3), len(victims))):
                kill_if_there(pid)
            if service.code is not None or not children_of(service.pid):
                kill_if_there(service.pid)
                service.wait()
                service = serve(jobs, 3)
        for run in people:
            assert run.wait(90) in (0, -signal.SIGKILL), run
        go.touch()
        for ident in idents:
            while jobs.state(ident) != "succeeded":
                check_one_at_a_time(fleet)
            assert jobs.view(ident).job.failures == 0
        assert fleet.notes("over") == [], "never more than three at once"
        assert {name for name, _, _ in fleet.notes("end")} >= {*names}
        fleet.until(fleet.is_empty, 60, "an empty gate")


def check_one_at_a_time(fleet: Fleet) -> None:
    """No job runs in two processes at once."""
    alive = [name for name, pid, _ in fleet.notes("start") if name.startswith("job") and is_alive(pid)]
    assert len(alive) == len({*alive}), alive
    sleep(0.02)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])


def serve(jobs: Jobs, workers: int = 1) -> Run:
    return jobs.fleet.start([*FLEETGATE, "serve", "--port", "0", "--workers", str(workers)])


def has_come(jobs: Jobs, job: str, stage: str) -> bool:
    """Whether the preemption has come so far: the job is told, its row says so, its slot is free."""
    if stage == "asked":
        return True
    is_over = job not in jobs.fleet.state.leases
    return is_over or (stage == "told" and was_told(jobs, job)) or (stage == "noted" and jobs.view(job).job.gives_way)
