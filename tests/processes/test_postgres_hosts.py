"""Several hosts on one PostgreSQL: each has a node that its first command starts, and one connection for all who wait.

A host is a name (FLEETGATE_HOST) with a state folder of its own. Times are scaled down by FLEETGATE_TEST_BEAT_S.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import msgspec
import pytest

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Rule
from fleetgate.gate.replica.replica import Replica
from fleetgate.log import open_log
from tests.postgres_server import Server
from tests.postgres_stores import admin, backup, fresh_store
from tests.processes.fleet import FLEETGATE, Fleet, Run, kill_if_there, rss_mb
from tests.timed import within

pytestmark = [pytest.mark.processes, pytest.mark.postgres]

BEAT_S = 1.0  # lost after 4.5 s: a busy machine may keep a node from beating for two
MODEL = ("-m", "p/m")


@pytest.fixture
def fleet(postgres: Server) -> Iterator[Fleet]:
    with Fleet(store=fresh_store(postgres)) as fleet:
        cap(fleet, 2)
        yield fleet


def cap(fleet: Fleet, slots: int) -> None:
    fleet.slots = slots
    fleet.gate.decide([cmd.SetRule(Rule("agents", "*/m", cap=slots)), cmd.SetRule(Rule("agents", "host", cap=1000))])


def host(fleet: Fleet, name: str, beat_s: float = BEAT_S) -> dict[str, str]:
    home = fleet.folder / f"home-{name}"
    home.mkdir(exist_ok=True)
    return {"FLEETGATE_HOST": name, "FLEETGATE_HOME": str(home), "FLEETGATE_TEST_BEAT_S": str(beat_s)}


def agent(fleet: Fleet, name: str, where: str, seconds: float | Path, beat_s: float = BEAT_S) -> Run:
    return fleet.run(*MODEL, "--", *fleet.sleeper(name, seconds), env=host(fleet, where, beat_s))


def nodes(fleet: Fleet, where: str) -> list[int]:
    """The nodes of a host that live."""
    found = []
    for pid in fleet.processes():
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"node" in line and f"FLEETGATE_HOST={where}".encode() in environ:
            found.append(pid)
    return found


def connections(fleet: Fleet) -> int:
    with admin(fleet.store) as conn:
        row = conn.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'fleetgate%' AND pid != pg_backend_pid()"
        ).fetchone()
    return int(row[0]) if row else 0


def adopted(fleet: Fleet) -> list[str]:
    return [event.adopted for _, event in fleet.events_of(ev.Granted) if event.adopted]


def test_a1_three_hosts_share_a_cap_through_nodes_that_start_by_themselves(fleet: Fleet) -> None:
    runs = [agent(fleet, f"{where}{number}", where, 0.2) for number in range(3) for where in "abc"]
    assert [run.wait(60) for run in runs] == [0] * 9
    assert fleet.most_at_once() <= 2
    fleet.until(lambda: [len(nodes(fleet, where)) for where in "abc"] == [1, 1, 1], what="one node on each")
    fleet.check_log()


def test_l2_those_who_wait_have_no_connection_and_little_memory(fleet: Fleet) -> None:
    cap(fleet, 1)
    first = agent(fleet, "first", "a", 600)
    fleet.until(lambda: fleet.has_started("first"), what="the first")
    waiting = [agent(fleet, f"w{number}", where, 0.1) for number in range(3) for where in "ab"]
    fleet.until(lambda: fleet.in_queue() == 6, what="six in the queue")
    fleet.close_gate()
    fleet.until(lambda: connections(fleet) <= 2 * 3, what="of each node: decisions, listening, reading")
    assert max(rss_mb(run.pid) for run in waiting) < 25
    began = time.monotonic()
    first.signal(signal.SIGTERM)
    assert [run.wait(30) for run in waiting] == [0] * 6
    within(time.monotonic() - began, 15, "s: each is woken, none waits for a poll")


def test_l2_what_a_killed_host_held_is_taken_back_and_its_places_go(fleet: Fleet) -> None:
    cap(fleet, 1)
    first = agent(fleet, "first", "a", 600)
    fleet.until(lambda: fleet.has_started("first"), what="the first")
    gone = agent(fleet, "gone", "a", 600)
    fleet.until(lambda: fleet.in_queue() == 1, what="one more of the same host")
    second = agent(fleet, "second", "b", 0.1)
    fleet.until(lambda: fleet.in_queue() == 2, what="one of another host")
    for pid in [first.pid, gone.pid, *nodes(fleet, "a")]:
        kill_if_there(pid)
    fleet.kill_sleeper(fleet.lives()[0].pid)
    assert second.wait(30) == 0
    assert [event.cause for _, event in fleet.events_of(ev.Reclaimed)] == ["lost"]
    assert not fleet.has_started("gone")


def test_l2_a_killed_node_is_started_again_and_no_waiter_is_lost(fleet: Fleet) -> None:
    cap(fleet, 1)
    go = fleet.folder / "go"
    first = agent(fleet, "first", "a", go, beat_s=2)  # lost after 9 s: a node needs some, on a busy machine
    fleet.until(lambda: fleet.has_started("first"), what="the first")
    second = agent(fleet, "second", "b", 0.1, beat_s=2)
    fleet.until(lambda: fleet.in_queue() == 1, what="one of another host")
    for where in "ab":
        for pid in nodes(fleet, where):
            kill_if_there(pid)
    fleet.until(lambda: nodes(fleet, "a"), what="a node again, started by the run")
    go.touch()
    assert first.wait(30) == second.wait(30) == 0
    assert not fleet.events_of(ev.Reclaimed)
    assert fleet.most_at_once() == 1


def test_l2_a_host_cut_off_from_the_database_keeps_its_agents_and_finds_them_counted_again(fleet: Fleet) -> None:
    """Its node and its runs are stopped, which to the others is the same as a network that is gone."""
    cap(fleet, 1)
    first = agent(fleet, "first", "a", 60)
    fleet.until(lambda: fleet.has_started("first"), what="the first")
    second = agent(fleet, "second", "b", 0.5)
    fleet.until(lambda: fleet.in_queue() == 1, what="one of another host")
    cut_off = [first.pid, *nodes(fleet, "a")]
    for pid in cut_off:
        os.kill(pid, signal.SIGSTOP)
    assert second.wait(30) == 0
    assert [event.cause for _, event in fleet.events_of(ev.Reclaimed)] == ["lost"]
    for pid in cut_off:
        os.kill(pid, signal.SIGCONT)
    fleet.until(lambda: adopted(fleet) == ["cut_off"], what="its agent counted again")
    first.signal(signal.SIGTERM)
    first.wait()
    fleet.until(fleet.is_empty, what="an empty gate")


def test_q2_a_database_restored_under_running_agents_grants_no_slot_twice(fleet: Fleet) -> None:
    assert fleet.done(*MODEL, "--", "true", env=host(fleet, "a")).code == 0
    fleet.close_gate()
    restore = backup(fleet.store)
    go = fleet.folder / "go"
    running = [agent(fleet, f"old{where}", where, go) for where in "ab"]
    fleet.until(lambda: len(fleet.notes("start")) == 2, what="two agents")
    fleet.close_gate()
    restore()
    late = [agent(fleet, f"new{where}", where, 0.2) for where in "abc"]
    fleet.until(lambda: adopted(fleet) == ["log_lost"] * 2, what="both counted")
    go.touch()
    assert [run.wait(60) for run in (*running, *late)] == [0] * 5
    assert fleet.most_at_once() == 2
    assert adopted(fleet) == ["log_lost"] * 2


def test_q2_drain_lets_no_new_agent_start_on_a_host(fleet: Fleet) -> None:
    assert fleet.start([*FLEETGATE, "drain", "a"]).wait() == 0
    held_back = agent(fleet, "a", "a", 0.1)
    assert agent(fleet, "b", "b", 0.1).wait(30) == 0
    fleet.until(lambda: "drained" in held_back.err, what="a reason")
    status = fleet.start([*FLEETGATE, "status"])
    assert status.wait() == 0
    assert "a is drained" in status.out
    assert fleet.start([*FLEETGATE, "drain", "a", "--end"]).wait() == 0
    assert held_back.wait(30) == 0


@pytest.mark.parametrize(
    "store", ["postgresql://x@127.0.0.1:1/x", "postgresql://x@nosuch.invalid/x", "postgresql://nosuch@{server}"]
)
def test_r3_without_a_database_a_run_soon_exits_69_with_a_sentence(fleet: Fleet, postgres: Server, store: str) -> None:
    """A port that no process listens on, an unknown host, an unknown user: none of it is worth waiting for."""
    server = postgres.url("postgres", tcp=True).partition("@")[2]
    nowhere = {"FLEETGATE_STORE": store.format(server=server), **host(fleet, "a")}
    began = time.monotonic()
    run = fleet.done("--", "true", env=nowhere)
    took_s = time.monotonic() - began
    assert run.code == 69, run
    assert run.err.count("cannot be reached") == 1, run.err
    within(took_s, 6, "s: a node and then the run itself have each tried for long")


def test_a_password_in_the_url_is_in_no_command_line_and_no_log(fleet: Fleet) -> None:
    where = host(fleet, "a")
    run = fleet.done("--", "true", env={**where, "FLEETGATE_STORE": fleet.store + "&password=s3cret"})
    assert run.code == 0, run
    for pid in nodes(fleet, "a"):
        assert b"s3cret" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    for path in Path(where["FLEETGATE_HOME"]).rglob("*"):
        assert not path.is_file() or b"s3cret" not in path.read_bytes(), path


def test_h2_any_service_answers_for_any_pool_and_tells_of_what_others_decided(fleet: Fleet) -> None:
    services, addresses = [], []
    for where in "ab":
        env = host(fleet, where)
        services.append(fleet.start([*FLEETGATE, "serve", "--port", "0"], env=env))
        address = Path(env["FLEETGATE_HOME"]) / "serve.json"
        fleet.until(address.exists, what="a service")
        addresses.append(msgspec.json.decode(address.read_bytes())["url"])
    with urlopen(Request(f"{addresses[1]}/v1/events"), timeout=30) as stream:
        body = b'{"limit": 7}'
        set_limit = Request(f"{addresses[0]}/concurrency/limits/umans", body, method="PUT")
        set_limit.add_header("Content-Type", "application/json")
        with urlopen(set_limit, timeout=20) as answer:
            assert answer.status == 200
        with urlopen(f"{addresses[1]}/concurrency/status", timeout=20) as answer:
            found = {each["providerId"]: each["limit"] for each in msgspec.json.decode(answer.read())["providers"]}
        assert found["umans"] == 7
        assert agent(fleet, "x", "a", 0.1).wait(30) == 0
        told = b""
        while b'"released"' not in told and b"event: released" not in told:
            told += stream.readline()
        assert b"rule_set" in told
    for service in services:
        service.signal(signal.SIGTERM)
        assert service.wait(30) == 0


def test_c2_a_machines_own_file_caps_its_host_through_the_node(fleet: Fleet) -> None:
    fleet.configure("[agents]\nhost = 1\n")
    first = fleet.run("--", *fleet.sleeper("first", 60), env=host(fleet, "a"))
    fleet.until(lambda: fleet.has_started("first"), what="the first")
    refused = fleet.done("--no-wait", "--", "true", env=host(fleet, "a"))
    assert refused.code == 75
    assert "host:a" in refused.err
    assert fleet.done("--no-wait", "--", "true", env=host(fleet, "b")).code == 0
    first.signal(signal.SIGTERM)


def test_caps_of_a_machines_own_file_that_are_not_in_force_are_said_with_what_applies_them(fleet: Fleet) -> None:
    fleet.configure('[agents]\nhost = 5\n"*/m" = 2\n"p/*" = 1\n"umans" = 3\n')
    where = host(fleet, "a")
    told = "not in force: the caps on p/*, umans in "
    apply = f"fleetgate config apply {fleet.config}"
    run = fleet.done("--", "true", env=where)
    assert run.code == 0
    assert run.err.count(told) == 1
    assert apply in run.err

    def call(*command: str) -> Run:
        said = fleet.start([*FLEETGATE, *command], where)
        said.wait()
        return said

    for command in (("status",), ("doctor",), ("config", "show"), ("config", "check")):
        said = call(*command)
        assert apply in f"{said.out}{said.err}", command
    assert call("config", "apply", str(fleet.config)).code == 0
    assert "not in force" not in fleet.done("--", "true", env=where).err
    assert "not in force" not in call("status").err


def test_q2_another_server_behind_the_same_address_is_noticed_until_something_is_decided(fleet: Fleet) -> None:
    """As after a failover: the server's identity, as the database has it, is not the server's."""
    fleet.gate.decide([cmd.SetRule(Rule("agents", "*/x", cap=1))])
    log = open_log(fleet.store)
    assert not log.seems_replaced()
    with admin(fleet.store) as conn:
        changed = conn.execute("UPDATE fleetgate.side SET value = 'another' WHERE tbl = 'store'")
        assert changed.rowcount >= 1
    assert log.seems_replaced()
    replica = Replica(log, "another")
    replica.decide([])
    assert replica.state.recovers_until > 0
    other = open_log(fleet.store)
    assert not other.seems_replaced()
    other.close()
    log.close()
