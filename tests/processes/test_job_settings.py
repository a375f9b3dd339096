"""What a job gets from its surroundings: variables of `submit`, and the config as it is now (rules J1, C10)."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tests.processes.fleet import FLEETGATE, Fleet
from tests.processes.job_fleet import Jobs

pytestmark = pytest.mark.processes

SECRET = "s3cret-of-the-submitter-4711"


@pytest.fixture
def jobs(fleet: Fleet) -> Jobs:
    return Jobs(fleet)


def files_with(folder: Path, text: str) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


def test_j1_an_inherited_variable_reaches_the_job_and_its_value_is_in_one_private_file(fleet: Fleet, jobs: Jobs):
    env = {"MY_KEY": SECRET, "OTHER": "o", "NOT_NAMED": "n"}
    argv = [*FLEETGATE, "submit", "--inherit-env", "MY_KEY,OTHER", "--env", "OTHER=given", "--retries", "0", "--"]
    script = 'echo "$MY_KEY|$OTHER|$NOT_NAMED|$FLEETGATE_ATTEMPT"; exit 3'
    submitted = fleet.start([*argv, "sh", "-c", script], env)
    assert submitted.wait() == 0, submitted
    ident = submitted.out.strip()
    (kept,) = files_with(fleet.home, SECRET)
    assert kept.name == f"{ident}.job"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    jobs.worker(1)
    assert jobs.ended(ident).state == "failed"
    assert jobs.cli("logs", ident).out == f"{SECRET}|given||1\n"
    for command in (["show", ident, "--json"], ["jobs", "--json"], ["history", "--json"], ["ps", "--json"]):
        assert SECRET not in jobs.cli(*command).out
    assert "env         MY_KEY, OTHER\n" in jobs.cli("show", ident).out
    jobs.cli("retry", ident)
    jobs.ended(ident)
    assert jobs.cli("logs", ident).out == f"{SECRET}|given||1\n{SECRET}|given||2\n"
    jobs.cli("clean", "--all")
    assert files_with(fleet.home, SECRET) == []


def test_q1_a_variable_that_is_not_set_or_has_to_leave_this_host_is_refused(fleet: Fleet, jobs: Jobs):
    refused = jobs.cli("submit", "--inherit-env", "NO_SUCH_VARIABLE", "--", "true", code=64)
    assert "NO_SUCH_VARIABLE: not set" in refused.err
    refused = jobs.cli("submit", "--inherit-env", "PATH", "--any-host", "--", "true", code=64)
    assert "use --env" in refused.err
    assert fleet.is_empty()


def test_c10_a_running_worker_follows_the_config_and_keeps_the_last_valid_one(fleet: Fleet, jobs: Jobs):
    wrapper = fleet.script("wrapper", '#!/bin/sh\necho "wrapped $1"; shift; exec "$@"\n')
    fleet.configure("[agents]\nhost = 1\n")
    worker = jobs.worker(2)
    assert jobs.ended(jobs.submit("--", "echo", "first")).state == "succeeded"
    fleet.configure(f'[agents]\nhost = 7\n[run]\nwrap = ["{wrapper}", "again"]\n')
    fleet.until(lambda: "has changed: jobs that start from now on go by it" in worker.err)
    assert fleet.state.rules.caps["agents", "host"].cap == 7, "its caps are in force at once"
    ident = jobs.submit("--", "echo", "second")
    assert jobs.ended(ident).state == "succeeded"
    assert jobs.cli("logs", ident).out == "wrapped again\nsecond\n"
    fleet.config.write_text("[agents\n")
    fleet.until(lambda: "(going on as before)" in worker.err)
    third = jobs.quickly("echo", "third")
    fleet.until(lambda: jobs.state(third) == "succeeded")
    assert jobs.cli("logs", third).out == "wrapped again\nthird\n"
    assert worker.err.count("(going on as before)") == 1, "said once, by one process"
    assert worker.code is None
