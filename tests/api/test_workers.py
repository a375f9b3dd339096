"""H6, J2: `fleetgate serve --workers N` runs jobs beside the service: restarted, stopped with it, not in its way."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.served import Served
from tests.api.test_jobs import submit, until
from tests.processes.fleet import children_of, is_alive

pytestmark = pytest.mark.processes


@pytest.fixture
def working(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path)
    try:
        yield served.start("--workers", "2")
    finally:
        served.kill()


def worker_of(served: Served) -> int:
    """The pid of the worker, once it has its processes."""
    assert served.process is not None
    service = served.process.pid

    def found() -> int:
        threads = [int(each.name) for each in Path(f"/proc/{service}/task").iterdir()]  # one of them has started it
        started = [pid for thread in threads for pid in children_of(service, thread)]
        return next((pid for pid in started if len(children_of(pid)) == 2), 0)

    return int(served.wait_until(found, "a worker with two processes"))


def sleeper(served: Served, flag: Path) -> str:
    ident = submit(served, "sh", "-c", f"until test -e {flag}; do sleep 0.05; done")
    until(served, ident, "running")
    return ident


def test_h6_jobs_are_run_and_a_worker_that_is_killed_is_replaced(working: Served):
    until(working, submit(working, "true"), "succeeded")
    first = worker_of(working)
    os.kill(first, signal.SIGKILL)
    working.wait_until(lambda: worker_of(working) != first, "another worker")
    until(working, submit(working, "true"), "succeeded")
    assert working.get("/readyz").status == 200


def test_h6_when_told_to_stop_what_runs_is_finished_first(working: Served, tmp_path: Path):
    ident = sleeper(working, tmp_path / "go")
    worker = worker_of(working)
    process = working.process
    assert process is not None
    process.send_signal(signal.SIGTERM)
    working.wait_until(lambda: working.get("/healthz").status == 0, "it answers no more")
    assert process.poll() is None
    (tmp_path / "go").touch()
    assert process.wait(60) == 0
    assert not is_alive(worker)
    assert "succeeded" in working.cli("jobs").stdout, ident


def test_h6_a_second_signal_requeues_what_is_running(working: Served, tmp_path: Path):
    ident = sleeper(working, tmp_path / "never")
    worker = worker_of(working)
    process = working.process
    assert process is not None
    process.send_signal(signal.SIGTERM)
    working.wait_until(lambda: working.get("/healthz").status == 0, "it answers no more")
    working.wait_until(lambda: not (working.home / "serve.json").exists(), "it has closed")
    err = process.stderr
    assert err is not None
    while "again requeues them" not in err.readline():  # the worker has heard the first
        pass
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert not is_alive(worker)
    assert f"{ident}  queued" in working.cli("jobs").stdout


def test_l2_if_the_service_is_killed_its_worker_finishes_and_leaves(working: Served, tmp_path: Path):
    ident = sleeper(working, tmp_path / "go")
    worker = worker_of(working)
    working.kill()
    later = working.cli("submit", "--", "true").stdout.strip()
    (tmp_path / "go").touch()
    working.wait_until(lambda: not is_alive(worker), "the worker leaves")
    listed = working.cli("jobs").stdout
    assert f"{ident}  succeeded" in listed
    assert f"{later}  queued" in listed, "nothing new is begun"
