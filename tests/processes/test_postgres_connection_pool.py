"""The connection pool of a node (gate/node/connection_pool.py): whatever breaks, a decision happens once or not at all.

rules A1, L2, Q2.
The log's contract is held to by tests/contract, through such a connection too.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from time import monotonic
from typing import Any
from urllib.request import Request, urlopen

import msgspec
import pytest

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Rule, Spec
from fleetgate.core.events import Returned
from fleetgate.gate.node import client as node_client
from fleetgate.gate.node import connection_pool, pooled_connection, protocol
from fleetgate.gate.replica.replica import Replica
from fleetgate.log.postgres import PostgresLog
from fleetgate.log.protocol import START, TransactionLost
from tests.pooling_node import LendingNode
from tests.postgres_server import Server
from tests.postgres_stores import admin, fresh_store
from tests.processes.fleet import FLEETGATE, Fleet, Run
from tests.processes.test_postgres_hosts import connections, host, nodes
from tests.timed import within

pytestmark = [pytest.mark.postgres, pytest.mark.processes]

SPEC = Spec(models=("umans/coder",), kind="requests")
CAP = cmd.SetRule(Rule("requests", "umans", cap=1, on_429="step", cooldown_ms=0))
STEPS = ("lock", "begin", "read", "append", "unlock")
PROCESSES = 12


@pytest.fixture
def node(postgres: Server) -> Iterator[LendingNode]:
    node = LendingNode(fresh_store(postgres))
    yield node
    node.stop()


def kill_backends(node: LendingNode) -> None:
    """Every connection that it has to the server ends here and now."""
    with admin(node.url) as operator:
        operator.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE application_name LIKE 'fleetgate %' AND datname = current_database() AND pid != pg_backend_pid()"
        )


def strike_before(step: str, blow: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have something happen once, before the next step of a decision."""
    real = getattr(PostgresLog, step)
    struck: list[str] = []

    def strike(self: PostgresLog, *args: object, **said: object) -> object:
        if not struck:
            struck.append(step)
            blow()
        return real(self, *args, **said)

    monkeypatch.setattr(PostgresLog, step, strike)
    return struck


def grants(url: str) -> int:
    log = PostgresLog(url)
    try:
        return sum(isinstance(event, ev.Granted) for _, _, event in log.history())
    finally:
        log.close()


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("what", ["the connection", "the node"])
def test_l2_what_breaks_before_any_step_of_a_decision_leaves_one_commit(
    node: LendingNode, what: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = node.open()
    replica = Replica(log, "h|b|1|1|1")
    replica.decide([CAP])
    assert log.upkept_by_node
    struck = strike_before(step, (lambda: kill_backends(node)) if what == "the connection" else node.stop, monkeypatch)
    (decided,) = replica.decide([cmd.Acquire("mine", SPEC, replica.me)])
    monkeypatch.undo()
    assert struck
    assert [type(event) for event in decided.events] == [ev.Granted]
    assert grants(node.url) == 1, "it was decided again after it had been committed"
    log.close()


def test_l2_a_commit_whose_answer_the_node_did_not_pass_on_is_looked_up_by_its_id(
    node: LendingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = node.open()
    replica = Replica(log, "h|b|1|1|1")
    replica.decide([CAP])
    real = node_client.NodeLink.ask_once
    lost: list[protocol.Call] = []

    def lose(self: node_client.NodeLink, call: protocol.Call, within_s: float = 5.0) -> protocol.Answer:
        answer = real(self, call, within_s)
        if isinstance(call, protocol.Say) and "INSERT INTO fleetgate.log" in call.text and not lost:
            lost.append(call)
            self.close()
            raise node_client.NodeGone("it died with the answer")
        return answer

    monkeypatch.setattr(node_client.NodeLink, "ask_once", lose)
    (decided,) = replica.decide([cmd.Acquire("mine", SPEC, replica.me)])
    assert lost
    assert [type(event) for event in decided.events] == [ev.Granted]
    assert grants(node.url) == 1
    log.close()


def test_q2_a_client_of_the_pool_that_is_stopped_with_the_lock_delays_others_briefly_and_cannot_commit_later(
    node: LendingNode,
) -> None:
    stopped, other = node.open(), node.open()
    stopped.lock()
    stopped.begin()
    began = monotonic()
    Replica(other, "h|b|1|2|2").decide([CAP])
    took = monotonic() - began
    with pytest.raises(TransactionLost):
        stopped.append(START, stopped.now(), [Returned(id="a")], None)
    stopped.close()
    assert all(not isinstance(event, Returned) for _, _, event in other.history())
    other.close()
    within(took, 10, "s that the lock was kept")


def test_l2_the_open_transaction_of_a_client_that_is_gone_is_rolled_back_at_once(node: LendingNode) -> None:
    """As many as there are connections: all of them come back."""
    gone = [node.open() for _ in range(connection_pool.MOST + 2)]
    for log in gone:
        log.lock()
        log.begin()
        line = log._link._node  # type: ignore[attr-defined]
        line._sock.close()
        line._sock = None
    other = node.open()
    began = monotonic()
    Replica(other, "h|b|1|2|2").decide([CAP])
    took = monotonic() - began
    for log in (*gone, other):
        log.close()
    within(took, 2, "s until what was begun was undone")


def test_q2_many_who_wait_for_the_lock_do_not_hold_up_those_who_look(node: LendingNode) -> None:
    holder = PostgresLog(node.url)
    holder.lock()
    logs = [node.open() for _ in range(connection_pool.MOST + 2)]

    def wait_for_it(log: PostgresLog) -> None:
        log.lock()
        log.unlock()

    threads = [Thread(target=wait_for_it, args=(log,)) for log in logs]
    for thread in threads:
        thread.start()
    looking = node.open()
    for _ in range(20):
        assert looking.head() is None
    assert any(thread.is_alive() for thread in threads), "the server has ended the holder: no process waited any more"
    holder.close()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    for log in (*logs, looking):
        log.close()


@pytest.mark.parametrize("says", ["nothing", "something else"])
def test_q2_a_node_that_does_not_answer_is_done_without(
    postgres: Server, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is stopped, or of another release."""
    monkeypatch.setattr(pooled_connection, "GREETING_S", 0.3)
    with TemporaryDirectory(prefix="fg-", dir="/tmp") as folder, socket.socket(socket.AF_UNIX) as node:
        node.bind(f"{folder}/node")
        node.listen()
        if says == "something else":
            answer = protocol.frame(protocol.Answer(wrong=protocol.Wrong("Version", "it speaks version 7, not 1")))

            def reply() -> None:
                with node.accept()[0] as client:
                    client.recv(4)
                    client.sendall(answer)

            Thread(target=reply, daemon=True).start()
        log = pooled_connection.open_pooled(fresh_store(postgres), f"{folder}/node")
        assert not log.upkept_by_node
        Replica(log, "h|b|1|1|1").decide([CAP])
        log.close()


# The commands.


@pytest.fixture
def fleet(postgres: Server) -> Iterator[Fleet]:
    with Fleet(store=fresh_store(postgres)) as fleet:
        fleet.gate.decide([CAP, cmd.SetRule(Rule("agents", "host", cap=50))])
        yield fleet


def without_driver(fleet: Fleet) -> dict[str, str]:
    """The environment of a process that cannot make a connection to PostgreSQL itself."""
    folder = fleet.folder / "nodriver"
    folder.mkdir(exist_ok=True)
    (folder / "psycopg.py").write_text('raise ImportError("no connection of its own")\n')
    return {"PYTHONPATH": str(folder), **host(fleet, "a")}


def said(fleet: Fleet, *arguments: str, code: int = 0) -> str:
    run = fleet.start([*FLEETGATE, *arguments], env=without_driver(fleet))
    assert run.wait(30) == code, run
    return run.out


def goes_through_node(log: PostgresLog) -> bool:
    return log.upkept_by_node


def asking_through_a_node(fleet: Fleet) -> tuple[Run, PostgresLog, Replica]:
    """A node, and a process that uses a connection of its pool."""
    node = fleet.start([*FLEETGATE, "node"], env=host(fleet, "a"))
    fleet.until(lambda: "listens at " in node.err, what="a node")
    log = pooled_connection.open_pooled(fleet.store, node.err.split("listens at ")[1].split()[0])
    replica = Replica(log, "h|b|1|1|1")
    replica.catch_up()
    assert goes_through_node(log), "it is not through the node that it asks"
    return node, log, replica


@pytest.mark.parametrize("step", ["lock", "append"])
def test_q2_a_node_that_is_stopped_in_the_middle_of_a_question_is_soon_done_without(
    fleet: Fleet, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it was asked to do it may still do when it goes on, and then that changes nothing."""
    monkeypatch.setattr(node_client, "PROBE_S", 0.5)
    node, log, replica = asking_through_a_node(fleet)
    struck = strike_before(step, lambda: node.signal(signal.SIGSTOP), monkeypatch)
    began = monotonic()
    (decided,) = replica.decide([cmd.Acquire("mine", SPEC, replica.me)])
    assert monotonic() - began < 20, "it has waited for a node that is stopped"
    assert struck
    assert [type(event) for event in decided.events] == [ev.Granted]
    assert not goes_through_node(log)
    node.signal(signal.SIGCONT)
    fleet.until(lambda: node_client.NodeLink(log._link._path)._lives(), what="the node, going on")  # type: ignore[attr-defined]
    log.close()
    assert grants(fleet.store) == 1
    fleet.check_log()


def test_q2_who_asks_a_node_that_waits_for_the_store_waits_with_it(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_client, "PROBE_S", 0.2)
    _, log, replica = asking_through_a_node(fleet)
    with admin(fleet.store) as operator, operator.transaction():
        operator.execute("SELECT 1 FROM fleetgate.namespaces FOR UPDATE")
        thread = Thread(target=lambda: replica.decide([cmd.Acquire("mine", SPEC, replica.me)]))
        thread.start()
        thread.join(1.5)
        assert thread.is_alive()
    thread.join(30)
    assert log.upkept_by_node, "it was taken for one that is stopped"
    log.close()
    assert grants(fleet.store) == 1


def test_c3_listings_and_changes_go_through_the_node_and_need_no_connection(fleet: Fleet) -> None:
    refused = fleet.start([*FLEETGATE, "status"], env=without_driver(fleet))
    assert refused.wait(30) == 69, "without a node it must have needed the driver"
    node = fleet.start([*FLEETGATE, "node"], env=host(fleet, "a"))
    fleet.until(lambda: "listens" in node.err, what="a node")
    holder = fleet.run("-m", "p/m", "--", "sleep", "60", env=host(fleet, "a"))
    fleet.until(lambda: fleet.holds(holder), what="a lease")
    said(fleet, "cap", "set", "p/m", "1", "--kind", "agents")
    waiter = fleet.waiting("-m", "p/m", "--", "true", env=host(fleet, "a"))
    assert len(msgspec.json.decode(said(fleet, "ps", "--json"))["leases"]) == 1
    (ticket,) = msgspec.json.decode(said(fleet, "queue", "--json"))["tickets"]
    assert "p/m" in said(fleet, "status")
    assert "limit" in said(fleet, "explain", "umans")
    assert said(fleet, "report", "umans", "--rate-limited", "--retry-after", "5").startswith("umans")
    said(fleet, "resume", "umans")
    said(fleet, "bump", ticket["id"])
    said(fleet, "cancel", ticket["id"])
    assert waiter.wait(30) == 75
    said(fleet, "drain", "b")
    job = said(fleet, "submit", "--", "true").strip()
    assert job in said(fleet, "jobs")
    said(fleet, "cancel", job)
    (lease,) = fleet.state.leases
    said(fleet, "release", lease, "--force")
    assert "granted" in said(fleet, "history")
    assert "b" in fleet.state.draining
    assert len(fleet.events_of(ev.Paused)) == 1
    holder.signal(signal.SIGTERM)
    node.signal(signal.SIGTERM)
    assert node.wait(30) == 0


def test_j2_a_worker_with_many_processes_shares_one_nodes_connections_even_after_it_was_killed(
    fleet: Fleet,
) -> None:
    own = connections(fleet)
    worker = fleet.start([*FLEETGATE, "worker", "-n", str(PROCESSES)], env=host(fleet, "a"))
    marks = [fleet.folder / f"job{number}" for number in range(8)]
    for mark in marks[:4]:
        _submitted(fleet, str(mark))
    fleet.until(lambda: all(mark.exists() for mark in marks[:4]), within_s=60, what="four jobs")
    assert connections(fleet) - own <= connection_pool.MOST + 3
    (node,) = nodes(fleet, "a")
    os.kill(node, signal.SIGKILL)
    for mark in marks[4:]:
        _submitted(fleet, str(mark))
    fleet.until(lambda: all(mark.exists() for mark in marks), within_s=60, what="four more jobs")
    fleet.until(lambda: nodes(fleet, "a") not in ([], [node]), within_s=60, what="another node")
    fleet.until(lambda: connections(fleet) - own <= connection_pool.MOST + 3, within_s=60, what="few connections again")
    worker.signal(signal.SIGTERM)
    assert worker.wait(60) == 0, worker
    fleet.check_log()


def _submitted(fleet: Fleet, mark: str) -> None:
    run = fleet.start([*FLEETGATE, "submit", "--", "touch", mark], env=host(fleet, "a"))
    assert run.wait(30) == 0, run


def test_h2_a_service_runs_jobs_on_postgresql_and_tells_what_they_print(fleet: Fleet) -> None:
    """The service is the node of its workers; their output is in the store's own folder."""
    env = host(fleet, "a")
    home = Path(env["FLEETGATE_HOME"])
    service = fleet.start([*FLEETGATE, "serve", "--port", "0", "--workers", "2"], env=env)
    fleet.until((home / "serve.json").exists, what="a service")
    url = msgspec.json.decode((home / "serve.json").read_bytes())["url"]
    token = (home / "token").read_text().strip()

    def ask(path: str, body: object = None) -> Any:
        data = None if body is None else msgspec.json.encode(body)
        request = Request(
            f"{url}{path}", data, {"authorization": f"Bearer {token}", "content-type": "application/json"}
        )
        with urlopen(request, timeout=30) as answer:
            return msgspec.json.decode(answer.read())

    job = ask("/v1/jobs", {"command": ["echo", "from a worker"], "cwd": str(fleet.folder)})["id"]
    fleet.until(lambda: ask(f"/v1/jobs/{job}")["state"] == "succeeded", within_s=60, what="the job's end")
    assert "from a worker" in msgspec.json.encode(ask(f"/v1/jobs/{job}/output")).decode()
    assert not nodes(fleet, "a"), "the workers started a node beside the service"
    service.signal(signal.SIGTERM)
    assert service.wait(60) == 0, service
