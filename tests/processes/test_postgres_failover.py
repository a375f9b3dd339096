"""A real primary is killed and its real standby, which lagged, takes its place under running agents (rules A1, L2, Q2).

Asynchronous streaming replication: what was committed last is lost. Clients know both servers by one URL.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from fleetgate.core import events as ev
from fleetgate.jobs import job_store
from fleetgate.log.postgres import PostgresLog
from tests.postgres_server import USER, NoServer, Server
from tests.postgres_stores import migrate
from tests.processes.fleet import FLEETGATE, Fleet, Run
from tests.processes.job_fleet import Jobs
from tests.processes.test_postgres_hosts import MODEL, adopted, cap, host

pytestmark = [pytest.mark.processes, pytest.mark.postgres]

SOAK = int(os.environ.get("FLEETGATE_SOAK", "0"))
BEAT_S = 4.0  # no agent enters for 4 s after a loss, and a host is lost after 18 s
SLOTS = 3
HOSTS = "abc"


class Pair(NamedTuple):
    primary: Server
    standby: Server
    fleet: Fleet

    def run(self, name: str, where: str, seconds: float | Path) -> Run:
        return self.fleet.run(*MODEL, "--", *self.fleet.sleeper(name, seconds), env=host(self.fleet, where, BEAT_S))

    def fail_over(self) -> None:
        self.fleet.close_gate()
        self.primary.stop(signal.SIGKILL)
        self.standby.promote()


@pytest.fixture
def pair() -> Iterator[Pair]:
    servers: list[Server] = []
    try:
        primary = Server()
        servers.append(primary)
        database = primary.new_database(migrate)
        standby = Server(standby_of=primary)
        servers.append(standby)
        url = f"postgresql://{USER}@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/{database}"
        with Fleet(store=url) as fleet:
            cap(fleet, SLOTS)
            yield Pair(primary, standby, fleet)
    except NoServer as no:
        pytest.skip(str(no))
    finally:
        for server in servers:
            server.remove()


def assert_the_primary_is_found(pair: Pair) -> None:
    """Also when it is the last that is named, and when the servers are named in options."""
    one, other = pair.primary, pair.standby
    database = pair.fleet.store.rpartition("/")[2]
    urls = [
        f"postgresql://{USER}@127.0.0.1:{other.port},127.0.0.1:{one.port}/{database}?namespace=default",
        f"postgresql://{USER}@/{database}?host={other.folder},{one.folder}&port={other.port},{one.port}",
    ]
    for url in urls:
        log = PostgresLog(url)
        assert log.head() is not None
        log.close()


def test_a1_q2_a_failover_that_loses_the_last_commits_grants_no_slot_twice_and_no_run_starves(pair: Pair) -> None:
    fleet = pair.fleet
    assert_the_primary_is_found(pair)
    end = fleet.folder / "end"
    kept = pair.run("kept", "a", end)
    ended = pair.run("ended", "b", 3_600)
    fleet.until(lambda: len(fleet.notes("start")) == 2, what="two agents that the standby knows of")
    pair.standby.follow(pair.primary)
    pair.standby.cut_replication()
    fleet.kill_sleeper(next(life.pid for life in fleet.lives() if life.name == "ended"))
    assert ended.wait() == 137  # of which the standby will not know
    forgotten = pair.run("forgotten", "b", end)
    jobs = Jobs(fleet)
    job = jobs.quickly(*fleet.sleeper("job", end), models=("p/m",), any_host=True)
    worker = fleet.start([*FLEETGATE, "worker", "-n", "1"], env=host(fleet, "c", BEAT_S))
    fleet.until(lambda: len(fleet.notes("start")) == 4, what="an agent and a job that it does not know of")
    waiting = [pair.run(f"waiting-{where}", where, 0.1) for where in "ac"]
    fleet.until(lambda: fleet.in_queue() == 2, what="two in the queue")
    pair.fail_over()
    late = [pair.run(f"late-{where}", where, 0.1) for where in HOSTS]
    fleet.until(lambda: adopted(fleet) == ["log_lost"] * 2, 60, what="both counted again")
    fleet.until(lambda: fleet.in_queue() == 5, 60, what="all who wait in the queue, those that were forgotten again")
    fleet.until(lambda: fleet.gate.now() > fleet.state.recovers_until + 500, what="the end of the recovery")
    assert len(fleet.notes("start")) == 4, "a new agent entered before there was room"
    end.touch()
    for run in (kept, forgotten, *waiting, *late):
        assert run.wait(60) == 0, run
    fleet.until(
        lambda: job_store.find(fleet.gate.log, job) is not None, what="the job's row, written again by its hand"
    )
    view = jobs.ended(job)
    assert (view.state, view.job.attempt) == ("succeeded", 1), "it was run again, or ended for nothing"
    worker.signal(signal.SIGTERM)
    assert worker.wait(30) == 0
    assert fleet.most_at_once() <= SLOTS, "a slot was granted twice"
    assert adopted(fleet) == ["log_lost"] * 2, "an agent was counted twice"
    assert fleet.events_of(ev.Recovering)
    assert not [event for _, event in fleet.events_of(ev.Reclaimed) if event.silent]
    told = fleet.start([*FLEETGATE, "history"])
    assert told.wait() == 0
    assert "no agents are admitted for a few seconds" in told.out
    assert "the store had lost its lease" in told.out
    fleet.until(fleet.is_empty, what="an empty gate")
    fleet.check_log()


@pytest.mark.skipif(not SOAK, reason="agents come and go for a minute: make soak")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(max(1, SOAK // 4)))
def test_a1_q2_a_failover_in_the_middle_of_much_coming_and_going(pair: Pair, seed: int) -> None:
    fleet, chance = pair.fleet, random.Random(seed)
    runs: list[Run] = []

    def work(seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for where in HOSTS:
                if sum(run.code is None for run in runs) < 15:
                    runs.append(pair.run(f"{where}{len(runs)}", where, chance.uniform(0.05, 4)))
            time.sleep(chance.uniform(0, 0.2))

    work(chance.uniform(3, 8))
    pair.standby.cut_replication()
    work(chance.uniform(0.1, 4))
    pair.fail_over()
    work(15)
    # 69: it asked in the very moment in which there was no server.
    assert {run.wait(120) for run in runs} <= {0, 69}
    assert sum(run.code == 69 for run in runs) <= 15
    assert fleet.most_at_once() <= SLOTS
    fleet.until(fleet.is_empty, 60, what="an empty gate")
    fleet.check_log()
    print(f"{len(runs)} runs, {adopted(fleet)} adopted")
