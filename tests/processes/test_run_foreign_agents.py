"""Agents started outside Fleetgate (rule A13): counted where they are, never touched, gone when they are gone."""

from __future__ import annotations

import json
import signal
import time

import pytest

from fleetgate.core import events as ev
from tests.processes.fleet import FLEETGATE, Fleet, Run, is_alive
from tests.processes.job_fleet import Jobs
from tests.timed import within

pytestmark = pytest.mark.processes

OPUS, SONNET = "anthropic/claude-opus-4-6", "anthropic/claude-sonnet-4-6"


class Agents:
    """A fleet with an agent named opencode, and a census that knows it by its path: others here are not ours."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.path = fleet.script(
            "opencode", "#!/bin/sh\necho $$ >> started\nwhile [ ! -e stop ]; do sleep 0.05; done\n"
        )
        fleet.configure(
            f'[[census]]\nmatch = "{fleet.folder}/opencode.*-m (?P<model>\\\\S+)"\n'
            '[agents]\nhost = 50\n"anthropic/claude-opus-*" = 4\n"anthropic/claude-sonnet-*" = 24\n'
        )

    def command(self, model: str) -> list[str]:
        return [self.path, "run", "-m", model, "fix the tests"]

    def foreign(self, model: str, count: int) -> list[Run]:
        enough = len(self.started()) + count
        runs = [self.fleet.start(self.command(model)) for _ in range(count)]
        self.fleet.until(lambda: len(self.started()) == enough)
        return runs

    def started(self) -> list[int]:
        path = self.fleet.folder / "started"
        return [int(word) for word in path.read_text().split()] if path.exists() else []

    def counted(self) -> dict[str, int]:
        return dict(self.fleet.state.foreign.get(self.fleet.gate.host, ()))


@pytest.fixture
def agents(fleet: Fleet) -> Agents:
    return Agents(fleet)


def test_a13_six_foreign_opus_agents_keep_opus_out_and_not_sonnet(fleet: Fleet, agents: Agents):
    foreign = agents.foreign(OPUS, 6)
    refused = fleet.done("--no-wait", "--json", "-m", OPUS, "--", "touch", "ran")
    assert refused.code == 75, refused
    reason = json.loads(refused.out)["reason"]
    assert reason["code"] == "opus_concurrency_cap"
    assert reason["pool"] == "anthropic/claude-opus-*"
    assert "6 in use (6 by agents started outside Fleetgate), the limit is 4" in reason["text"]
    assert "6 by agents started outside Fleetgate" in reason["text"]
    assert not (fleet.folder / "ran").exists()
    assert fleet.done("--no-wait", "-m", SONNET, "--", "true").code == 0
    assert agents.counted() == {OPUS: 6}
    # Room for one more opus needs three free: six are two over the cap.
    waiting = fleet.waiting("-m", OPUS, "--", *fleet.sleeper("opus", 0))
    for run in foreign[:2]:
        run.signal(signal.SIGKILL)
        run.wait()
    fleet.until(lambda: agents.counted() == {OPUS: 4}, what="the census follows")
    assert waiting.code is None
    assert not fleet.has_started("opus")
    began = time.monotonic()
    foreign[2].signal(signal.SIGKILL)
    foreign[2].wait()
    fleet.until(lambda: fleet.has_started("opus"))
    took_s = time.monotonic() - began
    assert waiting.wait() == 0
    assert all(is_alive(run.pid) for run in foreign[3:]), "a foreign agent was touched"
    within(took_s, 2.5, "s until the waiting run started, which is to be within two")


def test_a13_foreign_agents_count_on_the_host_too(fleet: Fleet, agents: Agents):
    fleet.configure(fleet.config.read_text().replace("host = 50", "host = 3"))
    agents.foreign(SONNET, 3)
    refused = fleet.done("--no-wait", "--json", "--", "true")
    assert refused.code == 75
    assert json.loads(refused.out)["reason"]["pool"] == f"host:{fleet.gate.host}"
    assert fleet.done("--no-wait", "--supervisor", "--", "true").code == 0, "a supervisor takes no host slot"


def test_a13_agents_under_a_lease_and_their_children_are_not_foreign(fleet: Fleet, agents: Agents):
    """Four under leases fill the cap, and are counted once: as slots that are held."""
    inner = fleet.script("nested", f"#!/bin/sh\n{agents.path} run -m {OPUS} inner & wait\n")
    runs = [fleet.run("--", *agents.command(OPUS)) for _ in range(3)]
    runs.append(fleet.run("-m", OPUS, "--", inner))
    fleet.until(lambda: len(agents.started()) == 4)
    for _ in range(2):
        refused = fleet.done("--no-wait", "--json", "-m", OPUS, "--", "true")
        text = json.loads(refused.out)["reason"]["text"]
        assert "4 of 4 slots" in text
        assert "outside Fleetgate" not in text
        fleet.until(lambda: not cache_is_fresh(fleet))  # and once more, with a new look at the machine
    assert agents.counted() == {}
    (fleet.folder / "stop").touch()
    for run in runs:
        assert run.wait() == 0, run
    assert fleet.done("--no-wait", "-m", OPUS, "--", "true").code == 0


def cache_is_fresh(fleet: Fleet) -> bool:
    return time.time() - (fleet.home / "census.cache").stat().st_mtime < 1.1


def test_a13_runs_that_wait_in_the_queue_with_the_same_command_line_are_not_foreign(fleet: Fleet, agents: Agents):
    """Five run or wait; one that came from a shell, and one under `timeout`: all are Fleetgate's."""
    runs = [fleet.run("--", *agents.command(OPUS)) for _ in range(4)]
    fleet.until(lambda: len(agents.started()) == 4)
    runs += [fleet.waiting("--", *agents.command(OPUS)) for _ in range(3)]
    line = " ".join(runs[-1].argv[:-1])
    runs.append(fleet.start(["sh", "-c", f"{line} prompt; true"]))
    runs.append(fleet.start(["timeout", "60", *runs[0].argv]))
    fleet.until(lambda: fleet.in_queue() == 5)
    refused = fleet.done("--no-wait", "--json", "-m", OPUS, "--", "true")
    assert refused.code == 75
    assert agents.counted() == {}
    assert "4 of 4" in json.loads(refused.out)["reason"]["text"]
    (fleet.folder / "stop").touch()
    for run in runs:
        assert run.wait(30) == 0, run
    assert len(agents.started()) == 9
    assert fleet.is_empty()
    assert not [event for _, event in fleet.events_of(ev.Observed) if event.foreign]


def test_a13_an_agent_whose_wrapper_was_killed_is_not_foreign_but_still_leased(fleet: Fleet, agents: Agents):
    run = fleet.run("--", *agents.command(OPUS))
    (pid,) = fleet.until(agents.started)
    run.signal(signal.SIGKILL)
    run.wait()
    others = agents.foreign(OPUS, 3)
    fleet.until(lambda: not cache_is_fresh(fleet))  # a look lasts about a second
    refused = fleet.done("--no-wait", "--json", "-m", OPUS, "--", "true")
    assert "4 of 4 slots" in json.loads(refused.out)["reason"]["text"]
    assert agents.counted() == {OPUS: 3}
    assert is_alive(pid)
    assert all(is_alive(run.pid) for run in others)


def dispatched(fleet: Fleet, *options: str) -> str:
    candidate = fleet.folder / "candidate"
    candidate.write_text(json.dumps({"command": ["true"], "model": OPUS}) + "\n")
    run = fleet.start([*FLEETGATE, "dispatch", "--candidates", str(candidate), *options])
    assert run.wait() == 0, run
    return run.out


def test_a13_dispatch_counts_foreign_agents_on_a_new_store_and_no_longer_when_they_have_ended(
    fleet: Fleet, agents: Agents
):
    foreign = agents.foreign(OPUS, 6)
    assert "6 in use (6 by agents started outside Fleetgate), the limit is 4" in dispatched(fleet, "--canary")
    assert "6 in use (6 by agents started outside Fleetgate), the limit is 4" in dispatched(fleet)
    for run in foreign:
        run.signal(signal.SIGKILL)
        run.wait()
    assert dispatched(fleet, "--canary").startswith("would start")
    assert dispatched(fleet).startswith("started")


def test_a13_a_starting_worker_counts_foreign_agents_before_it_runs_its_first_job(fleet: Fleet, agents: Agents):
    jobs = Jobs(fleet)
    foreign = agents.foreign(OPUS, 6)
    idents = [jobs.submit("-m", OPUS, "--", "true") for _ in range(2)]
    jobs.worker(3)
    fleet.until(lambda: agents.counted() == {OPUS: 6}, what="the worker has looked")
    assert fleet.events_of(ev.Granted) == []
    for run in foreign:
        run.signal(signal.SIGKILL)
        run.wait()
    assert [jobs.ended(ident).state for ident in idents] == ["succeeded", "succeeded"]


def test_a13_capacity_counts_foreign_agents_that_no_process_has_recorded(fleet: Fleet, agents: Agents):
    foreign = agents.foreign(OPUS, 6)
    told = fleet.start([*FLEETGATE, "capacity", "-m", OPUS])
    assert told.wait() == 75, told
    for run in foreign:
        run.signal(signal.SIGKILL)
        run.wait()
    told = fleet.start([*FLEETGATE, "capacity", "-m", OPUS])
    assert told.wait() == 0, told
