"""`fleetgate stop`: the agent's whole group ends, then its slot is free, whatever is killed meanwhile (rule L6)."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Rule
from fleetgate.gate.liveness import process_identity
from tests.postgres_server import Server
from tests.postgres_stores import fresh_store
from tests.processes.fleet import FLEETGATE, Fleet, Run, is_alive, kill_if_there
from tests.processes.job_fleet import Jobs

pytestmark = pytest.mark.processes

KILL_S = 2.0  # from TERM to KILL, here
SHORT = {"FLEETGATE_TEST_KILL_S": str(KILL_S)}

# Its first process obeys TERM. The second is deaf: it stays until KILL, and says so by its pid in a file.
DEAF = """#!/bin/sh
sh -c 'trap "" TERM; echo $$ >"$0"; exec sleep 300' "$1" &
while [ ! -s "$1" ]; do sleep 0.05; done
echo $$ >"$1.up"
exec sleep 300
"""


@pytest.fixture
def one(fleet: Fleet) -> Fleet:
    fleet.configure("[agents]\nhost = 1\n")
    return fleet


def begun(fleet: Fleet, *options: str, name: str = "agent") -> Run:
    """A run whose agent sleeps."""
    run = fleet.run(*options, "--", *fleet.sleeper(name, 300))
    fleet.until(lambda: fleet.has_started(name))
    return run


def stop(fleet: Fleet, *words: str) -> Run:
    return fleet.start([*FLEETGATE, "stop", *words], SHORT)


def lease_of(fleet: Fleet, run: Run) -> str:
    return next(
        lease.id
        for lease in fleet.state.leases.values()
        if process_identity.pid_of(lease.ticket.holder) == run.pid and lease.child
    )


def deaf_agents(fleet: Fleet, *names: str) -> list[Run]:
    program = fleet.script("deaf", DEAF)
    runs = [fleet.run("--name", name, "--", program, name, env=SHORT) for name in names]
    fleet.until(lambda: all((fleet.folder / f"{name}.up").exists() for name in names))
    return runs


def test_l6_a_run_is_stopped_by_its_name_exits_143_and_the_history_says_who(one: Fleet) -> None:
    run = begun(one, "--name", "review")
    stopped = stop(one, "review")
    assert stopped.wait() == 0, stopped
    assert "stopped " in stopped.out
    assert "review: " in stopped.out
    assert one.is_empty()
    assert run.wait() == 143
    assert "stopped by " in run.err
    ((_, asked),) = one.events_of(ev.StopRequested)
    assert f"pid {os.getpid()}" in asked.by
    ((_, ended),) = one.events_of(ev.Released)
    assert (ended.outcome, ended.signal, ended.name) == ("local_error", signal.SIGTERM, "review")
    assert asked.by in ended.evidence
    assert one.done("--no-wait", "--", "true").code == 0


def test_l6_the_whole_group_ends_and_its_slot_is_free_then_with_and_without_a_runner(fleet: Fleet) -> None:
    """Of three deaf agents, one has its runner, the second lost it, and that of the third is frozen."""
    fleet.configure("[agents]\nhost = 3\n")
    runs = deaf_agents(fleet, "kept", "lost", "frozen")
    runs[1].signal(signal.SIGKILL)
    runs[2].signal(signal.SIGSTOP)
    deaf = [int((fleet.folder / name).read_text()) for name in ("kept", "lost", "frozen")]
    began = time.monotonic()
    stopped = stop(fleet, "--all")
    ident = lease_of(fleet, runs[0])
    fleet.until(lambda: fleet.state.leases[ident].lives_with == fleet.state.leases[ident].ticket.holder)
    assert is_alive(deaf[0])
    assert stopped.wait() == 0, stopped
    assert time.monotonic() - began > KILL_S - 0.5, "they had some time"
    assert not any(map(is_alive, deaf))
    assert fleet.is_empty()
    runs[2].signal(signal.SIGCONT)
    assert runs[0].wait() == 143
    assert runs[2].wait() == 143
    assert {event.by for _, event in fleet.events_of(ev.Reclaimed)} == {fleet.events_of(ev.StopRequested)[0][1].by}


def test_l6_a_stop_that_is_killed_half_way_is_still_in_force(one: Fleet) -> None:
    (run,) = deaf_agents(one, "one")
    stopped = stop(one, "one")
    ident = lease_of(one, run)
    one.until(lambda: one.state.leases[ident].stop_by)
    stopped.signal(signal.SIGKILL)
    assert one.json("ps")["leases"][0]["stop_by"]
    assert run.wait() == 143, "its runner obeys without `stop`"
    assert one.is_empty()


def test_l6_l2_a_runner_that_is_killed_after_the_request_leaves_the_rest_to_stop(one: Fleet) -> None:
    run = begun(one)
    ident = lease_of(one, run)
    agent = process_identity.pid_of(one.state.leases[ident].child)
    assert agent is not None
    run.signal(signal.SIGSTOP)  # it cannot obey before it is killed
    one.gate.one(cmd.Stop(ident, "a stop that was killed, too"))
    run.signal(signal.SIGKILL)
    assert is_alive(agent), "no process is there to obey"
    assert one.done("--no-wait", "--", "true").code == 75, "and its slot is taken"
    assert stop(one, ident[:6]).wait() == 0
    assert not is_alive(agent)
    assert one.is_empty()


@pytest.mark.parametrize("round_", range(int(os.environ.get("FLEETGATE_SOAK", "1"))))
def test_l6_l2_whatever_is_killed_at_whatever_moment_one_more_stop_ends_everything(fleet: Fleet, round_: int) -> None:
    fleet.configure("[agents]\nhost = 9\n")
    chance = random.Random(round_)
    names = [f"agent{number}" for number in range(5)]
    runs = [fleet.run("--name", name, "--", *fleet.sleeper(name, 300), env=SHORT) for name in names]
    fleet.until(lambda: all(map(fleet.has_started, names)))
    fleet.until(lambda: all(lease.child for lease in fleet.state.leases.values()))
    stops = [stop(fleet, name) for name in chance.sample(names, 4)]
    for victim in chance.sample([*runs, *stops], 5):
        time.sleep(chance.uniform(0, 0.15))
        if victim.code is None:
            victim.signal(signal.SIGKILL)
    last = stop(fleet, "--all")
    assert last.wait() == 0, last
    assert not any(is_alive(pid) for _, pid, _ in fleet.notes("start"))
    assert fleet.is_empty()
    fleet.check_log()


def test_l6_a_waiting_process_ends_an_agent_without_a_runner(one: Fleet) -> None:
    run = begun(one)
    ident = lease_of(one, run)
    run.signal(signal.SIGKILL)
    waiting = one.waiting("--", "true")
    one.gate.one(cmd.Stop(ident, "from another host"))
    assert waiting.wait() == 0


def test_l6_a_process_that_the_log_names_wrongly_is_not_signalled(one: Fleet) -> None:
    """A member of a shared folder may write any process into the log."""
    victim = one.start(one.sleeper("victim", 300))
    one.until(lambda: one.has_started("victim"))
    ident = one.occupy()
    process = process_identity.identify(victim.pid)
    assert process is not None
    one.gate.decide([cmd.Claim(ident, process), cmd.Stop(ident, "mallory")])
    lease = one.state.leases[ident]
    gone = lease.ticket.holder.rpartition("|")[0] + "|1"
    one.gate.orphan_stops.step([replace(lease, ticket=replace(lease.ticket, holder=gone))])
    time.sleep(0.2)  # in which a signal would have come
    assert victim.code is None
    assert not one.gate.orphan_stops.busy


def test_l6_a_running_job_is_cancelled_and_one_that_waits_is_not_running(one: Fleet) -> None:
    jobs = Jobs(one)
    ident = jobs.submit("--name", "nightly", "--", *one.sleeper("job", 300))
    waits = jobs.submit("--", "true")
    jobs.worker(1)
    one.until(lambda: one.has_started("job"))
    refused = stop(one, waits)
    assert refused.wait() == 64
    assert f"fleetgate cancel {waits}" in refused.err
    assert stop(one, "nightly").wait() == 0
    assert jobs.ended(ident).state == "cancelled"
    assert "cancelled by" in jobs.view(ident).job.why
    assert jobs.ended(waits).state == "succeeded"


def test_l6_a_script_with_a_lease_is_stopped_by_its_id_alone_and_all_leaves_it_out(fleet: Fleet) -> None:
    script = fleet.start(fleet.sleeper("script", 300))
    got = fleet.start([*FLEETGATE, "acquire", "--pid", str(script.pid)])
    assert got.wait() == 0
    everything = stop(fleet, "--all")
    assert everything.wait() == 0
    assert "not stopped: " in everything.err
    assert script.code is None
    (listed,) = fleet.json("ps")["leases"]
    assert (listed["can_stop"], "belongs to a script" in listed["cannot_stop"]) == (False, True)
    assert stop(fleet, got.out.strip()).wait() == 0
    assert script.wait() == -signal.SIGTERM
    assert fleet.is_empty()


def test_l6_what_no_agent_holds_cannot_be_stopped_and_says_why(fleet: Fleet) -> None:
    ident = fleet.occupy(kind="requests", model="umans/coder")
    refused = stop(fleet, ident)
    assert refused.wait() == 64
    assert "is held by a program itself" in refused.err
    unknown = stop(fleet, "nightly")
    assert unknown.wait() == 64
    assert "fleetgate ps" in unknown.err
    assert stop(fleet).wait() == 64


def test_l6_an_agent_on_a_terminal_ends_with_its_descendants_and_its_shell_stays(one: Fleet) -> None:
    """There it shares its process group with the script that started it."""
    script = (
        f"{FLEETGATE[0]} run --name tty -- sh -c 'echo $$ >shell; sleep 300 & echo $! >child; wait'; echo over >over"
    )
    run = one.start(["script", "-qec", f"sh -c {_quoted(script)}", "/dev/null"])
    one.until(lambda: (one.folder / "child").exists() and (one.folder / "child").read_text().strip())
    pids = [int((one.folder / name).read_text()) for name in ("shell", "child")]
    assert stop(one, "tty").wait() == 0
    assert not any(map(is_alive, pids))
    one.until(lambda: (one.folder / "over").exists())
    run.wait()


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


@pytest.fixture
def shared(postgres: Server) -> Iterator[Fleet]:
    with Fleet(store=fresh_store(postgres)) as fleet:
        fleet.gate.decide([cmd.SetRule(Rule("agents", "host", cap=9))])
        yield fleet


@pytest.mark.postgres
def test_l6_an_agent_on_another_host_is_stopped_through_the_log_even_without_its_runner(shared: Fleet) -> None:
    there = {"FLEETGATE_HOST": "far", "FLEETGATE_HOME": str(shared.folder / "far")}
    (shared.folder / "far").mkdir()
    runs = []
    for name in ("kept", "lost"):
        runs.append(shared.run("--name", name, "--", *shared.sleeper(name, 300), env=there))
    shared.until(lambda: shared.has_started("kept") and shared.has_started("lost"))
    agents = [pid for _, pid, _ in shared.notes("start")]
    shared.until(lambda: all(lease.child for lease in shared.state.leases.values()))
    runs[1].signal(signal.SIGKILL)
    assert "nothing is running that could be stopped" in _out(stop(shared, "--all")), "not on this host"
    stopped = stop(shared, "--all", "--host", "far")
    assert stopped.wait() == 0, stopped
    assert not any(map(is_alive, agents))
    assert shared.is_empty()
    assert runs[0].wait() == 143
    for pid in shared.processes():
        kill_if_there(pid)


def _out(run: Run) -> str:
    assert run.wait() == 0, run
    return run.out
