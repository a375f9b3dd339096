"""The slot of an agent that still runs is given back by that agent alone, or by force."""

from __future__ import annotations

import os

import pytest

from fleetgate.core import events as ev
from tests.processes.fleet import FLEETGATE, Fleet, Run
from tests.processes.job_fleet import Jobs

pytestmark = pytest.mark.processes


@pytest.fixture
def agent(fleet: Fleet) -> str:
    """The lease of an agent that runs until the file `go` is there."""
    fleet.configure("[agents]\nhost = 1\n")
    fleet.start([*FLEETGATE, "run", "--", *fleet.sleeper("one", fleet.folder / "go")])
    fleet.until(lambda: fleet.has_started("one"))
    return next(iter(fleet.state.leases))


def release(fleet: Fleet, *words: str) -> Run:
    run = fleet.start([*FLEETGATE, "release", *words])
    run.wait()
    return run


def test_a_release_from_elsewhere_is_refused_and_says_what_to_do(fleet: Fleet, agent: str):
    run = release(fleet, agent)
    assert run.code == 64
    assert "is still running" in run.err
    assert "--force" in run.err
    assert agent in fleet.state.leases
    assert fleet.done("--no-wait", "--", "true").code == 75


def test_force_takes_the_slot_says_what_it_breaks_and_history_says_who(fleet: Fleet, agent: str):
    run = release(fleet, agent, "--force")
    assert run.code == 0
    assert "is still running and no longer counts" in run.err
    assert "one more than the cap allows may run now" in run.err
    (taken,) = [event for _, event in fleet.events_of(ev.Reclaimed)]
    assert (taken.id, taken.cause) == (agent, "forced")
    assert f"pid {os.getpid()}" in taken.by


def test_an_agent_gives_its_own_slot_back(fleet: Fleet):
    fleet.configure("[agents]\nhost = 1\n")
    script = f'{FLEETGATE[0]} release "$FLEETGATE_LEASE" && {FLEETGATE[0]} run --no-wait -- true'
    run = fleet.done("--", "sh", "-c", script)
    assert run.code == 0, run
    (given, *_) = [event for _, event in fleet.events_of(ev.Released)]
    assert "released by" in given.evidence
    assert "while it was running" in given.evidence


def test_the_slot_of_a_running_job_is_not_given_back_for_it(fleet: Fleet):
    jobs = Jobs(fleet)
    ident = jobs.submit("--", *fleet.sleeper("job", fleet.folder / "go"))
    jobs.worker(1)
    fleet.until(lambda: fleet.has_started("job"))
    run = release(fleet, ident)
    assert run.code == 64
    assert f"fleetgate stop {ident}" in run.err
    (fleet.folder / "go").touch()
    assert jobs.ended(ident).state == "succeeded"


def test_a_lease_of_acquire_is_given_back_by_its_script_and_by_who_called_it(fleet: Fleet):
    script = f'id=$({FLEETGATE[0]} acquire --pid $$) && {FLEETGATE[0]} release "$id"'
    assert fleet.start(["sh", "-c", script]).wait() == 0
    child = fleet.start(fleet.sleeper("script", fleet.folder / "go"))
    got = fleet.start([*FLEETGATE, "acquire", "--pid", str(child.pid)])
    assert got.wait() == 0
    assert release(fleet, got.out.strip()).code == 0
    got = fleet.start([*FLEETGATE, "acquire", "--pid", str(child.pid)])
    assert got.wait() == 0
    other = fleet.start(["sh", "-c", f"{FLEETGATE[0]} release {got.out.strip()}; exit $?"])
    assert other.wait() == 64
