"""The store goes away: agents go on, those in the queue wait and say so, `--fail-open` is counted later (rules Q2,
R3).
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Rule
from tests.postgres_server import NoServer, Server
from tests.postgres_stores import migrate
from tests.processes.fleet import FLEETGATE, Fleet, Run, kill_if_there, state_of

pytestmark = pytest.mark.processes


def adopted(fleet: Fleet) -> list[str]:
    return [event.adopted for _, event in fleet.events_of(ev.Granted) if event.adopted]


def damage(fleet: Fleet) -> None:
    """A store that cannot be used."""
    fleet.home.mkdir(exist_ok=True)
    (fleet.home / "fleetgate.db").write_bytes(b"this is no database" * 100)


def test_r3_without_a_store_a_run_exits_69_with_a_sentence(fleet: Fleet) -> None:
    damage(fleet)
    run = fleet.done("--", *fleet.sleeper("a", 0.1))
    assert run.code == 69
    assert "fleetgate.db" in run.err
    assert not fleet.lives()


def test_q2_fail_open_goes_ahead_and_is_counted_when_the_store_is_back(fleet: Fleet) -> None:
    fleet.configure("[agents]\nhost = 1\n")
    damage(fleet)
    run = fleet.run("--fail-open", "--status-file", "status.json", "--", *fleet.sleeper("a", 8, code=3))
    fleet.until(lambda: fleet.has_started("a"), what="the agent, without a slot")
    assert "running without a slot (--fail-open)" in run.err
    (fleet.home / "fleetgate.db").unlink()
    fleet.until(lambda: "is counted from now on" in run.err, what="a word that it is counted")
    assert adopted(fleet) == ["failed_open"]
    refused = fleet.done("--no-wait", "--", "true")
    assert refused.code == 75
    assert run.wait() == 3
    (ended,) = [event for _, event in fleet.events_of(ev.Released)]
    assert ended.exit_code == 3
    assert '"exit_code":3' in (fleet.folder / "status.json").read_text()
    assert fleet.is_empty()


def test_q2_fail_open_returns_as_its_agent_does_though_the_store_never_came_back(fleet: Fleet) -> None:
    damage(fleet)
    run = fleet.done("--fail-open", "--", *fleet.sleeper("a", 0.1, code=7))
    assert run.code == 7
    assert "this run is in no history" in run.err
    assert "Traceback" not in run.err


def test_q2_fail_open_with_a_store_asks_as_everybody_does(fleet: Fleet) -> None:
    fleet.configure("[agents]\nhost = 1\n")
    fleet.occupy()
    assert fleet.done("--fail-open", "--no-wait", "--", "true").code == 75


# PostgreSQL.


@pytest.fixture
def server() -> Iterator[Server]:
    """One of its own, to be stopped and started."""
    try:
        server = Server()
    except NoServer as no:
        pytest.skip(str(no))
    yield server
    server.remove()


@pytest.fixture
def far(server: Server) -> Iterator[Fleet]:
    with Fleet(store=server.url(server.new_database(migrate))) as fleet:
        fleet.gate.decide([cmd.SetRule(Rule("agents", "host", cap=1))], durable=True)
        fleet.slots = 1
        yield fleet


def run_on(fleet: Fleet, name: str, seconds: float | Path, *options: str, away_s: float = 60) -> Run:
    env = {"FLEETGATE_TEST_BEAT_S": "1", "FLEETGATE_TEST_AWAY_S": str(away_s)}
    return fleet.run(*options, "--", *fleet.sleeper(name, seconds), env=env)


@pytest.fixture
def reached(far: Fleet, server: Server) -> Fleet:
    """A host that has used the store, and whose node has ended, as the server has."""
    assert run_on(far, "before", 0.1).wait(60) == 0
    for pid in processes_of("node", far):
        kill_if_there(pid)
    far.until(lambda: not processes_of("node", far), what="the end of the node")
    far.close_gate()
    server.stop(signal.SIGINT)
    return far


def processes_of(word: str, fleet: Fleet) -> list[int]:
    """Those of this fleet with such a word in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            line = (path / "cmdline").read_bytes().split(b"\0")
            environ = (path / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if word.encode() in line and f"FLEETGATE_STORE={fleet.store}".encode() in environ:
            found.append(int(path.name))
    return found


@pytest.mark.postgres
def test_q2_a_run_that_comes_while_the_server_restarts_says_so_and_waits_for_it(reached: Fleet, server: Server) -> None:
    run = run_on(reached, "late", 0.1)
    reached.until(lambda: "(trying for " in run.err, what="a word that the store is away")
    server.start()
    assert run.wait(60) == 0, run
    assert reached.has_started("late")
    assert run.err.count("cannot be reached") == 1, run.err


@pytest.mark.postgres
def test_r3_a_run_waits_for_an_unreachable_server_as_long_as_it_says_or_as_the_user_allows(
    reached: Fleet,
) -> None:
    waits = run_on(reached, "waits", 0.1, away_s=2)
    leaves = run_on(reached, "leaves", 0.1)
    hurries = run_on(reached, "hurries", 0.1, "--no-wait")
    goes = run_on(reached, "goes", 0.1, "--fail-open")
    assert hurries.wait(60) == waits.wait(60) == 69
    assert "(trying for 2s)\n" in waits.err, waits.err
    assert waits.err.splitlines()[-1].endswith("is it running, and can this machine reach it?"), waits.err
    assert goes.wait(60) == 0
    assert "(trying for " not in hurries.err + goes.err
    reached.until(lambda: "(trying for 60s)" in leaves.err, what="a word that the store is away")
    leaves.signal(signal.SIGTERM)
    assert leaves.wait(60) in (128 + signal.SIGTERM, -signal.SIGTERM), leaves
    assert [life.name for life in reached.lives()] == ["before", "goes"]


# `fleetgate run` that stops when it has a slot and a child that waits, and has not yet said whose slot it is.
BEFORE_ITS_CLAIM = """
import os, signal, sys
from fleetgate.cli.commands import run
from fleetgate.cli.main import main
prepare = run.Child.prepare
once = [signal.SIGSTOP]

def stopping(*args, **named):
    child = prepare(*args, **named)
    while once:
        os.kill(os.getpid(), once.pop())
    return child

run.Child.prepare = stopping
main(sys.argv[1:])
"""


@pytest.mark.postgres
def test_q2_a_run_with_a_slot_whose_agent_has_not_started_waits_for_a_restarting_server(
    far: Fleet, server: Server
) -> None:
    argv = [sys.executable, "-c", BEFORE_ITS_CLAIM, "run", "--", *far.sleeper("one", 0.1)]
    run = far.start(argv, {"FLEETGATE_TEST_BEAT_S": "1", "FLEETGATE_TEST_AWAY_S": "60"})
    far.until(lambda: state_of(run.pid) == "T", what="a run with a child that waits")
    far.close_gate()
    server.stop(signal.SIGINT)
    run.signal(signal.SIGCONT)
    far.until(lambda: "(trying for " in run.err or run.code is not None, what="a word that the store is away")
    server.start()
    assert run.wait(60) == 0, run
    assert [life.name for life in far.lives()] == ["one"]
    far.until(far.is_empty, what="an empty gate")


@pytest.mark.postgres
def test_q2_agents_and_queue_outlast_a_restart_of_the_server(far: Fleet, server: Server) -> None:
    go = far.folder / "go"
    first = run_on(far, "first", go)
    far.until(lambda: far.has_started("first"), what="the first")
    second = run_on(far, "second", 0.2)
    far.until(lambda: "position 1" in second.err, what="the second in the queue, who knows that it waits")
    far.close_gate()
    server.stop(signal.SIGINT)
    late = run_on(far, "late", 0.1)
    far.until(lambda: "still trying" in second.err, what="a word from the one who waits")
    far.until(lambda: "(trying for " in late.err, what="a word from the one who has just come")
    assert first.code is None
    server.start()
    far.until(lambda: far.in_queue() == 2, what="both in the queue: the store is in reach again")
    go.touch()
    assert first.wait(60) == second.wait(60) == late.wait(60) == 0
    assert late.err.count("cannot be reached") == 1, late.err
    assert far.most_at_once() == 1
    assert not far.events_of(ev.Reclaimed)
    assert not adopted(far)
    far.until(far.is_empty, what="an empty gate")


@pytest.mark.postgres
def test_q2_fail_open_while_the_server_is_away(far: Fleet, server: Server) -> None:
    far.close_gate()
    server.stop(signal.SIGINT)
    run = run_on(far, "open", 600, "--fail-open")
    far.until(lambda: far.has_started("open"), what="the agent, without a slot")
    server.start()
    far.until(lambda: "is counted from now on" in run.err, what="a word that it is counted")
    assert adopted(far) == ["failed_open"]
    run.signal(signal.SIGTERM)
    run.wait()
    far.until(far.is_empty, what="an empty gate")


@pytest.mark.postgres
def test_q2_a_node_without_a_server_and_without_clients_ends(far: Fleet, server: Server) -> None:
    node = far.start([*FLEETGATE, "node", "--idle", "2"])
    far.until(lambda: "listens" in node.err, what="a node")
    far.close_gate()
    server.stop(signal.SIGINT)
    assert node.wait(60) == 0, node
