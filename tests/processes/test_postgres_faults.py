"""Connections that break, clients that stop and servers that crash under the PostgreSQL log (rules A1, L2, Q2)."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from time import monotonic, sleep
from typing import Any

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Rule, Spec
from fleetgate.core.events import Returned
from fleetgate.gate.liveness import process_identity
from fleetgate.gate.replica.replica import Replica
from fleetgate.log.postgres import PostgresLog, connection, sql
from fleetgate.log.postgres import log as postgres_log
from fleetgate.log.postgres.listener import reaches
from fleetgate.log.postgres.url import parse
from fleetgate.log.protocol import START, LogReplaced, StoreError, TransactionLost
from tests.postgres_server import Server
from tests.postgres_stores import admin, fresh_store
from tests.timed import within

pytestmark = [pytest.mark.postgres, pytest.mark.processes]

SPEC = Spec(models=("umans/coder",), kind="requests")
CAP = cmd.SetRule(Rule("requests", "umans", cap=1, on_429="step", cooldown_ms=0))


@pytest.fixture
def url(postgres: Server) -> str:
    return fresh_store(postgres)


@pytest.fixture
def opened(url: str) -> Iterator[Callable[[], PostgresLog]]:
    logs: list[PostgresLog] = []

    def open_one() -> PostgresLog:
        logs.append(PostgresLog(url))
        return logs[-1]

    yield open_one
    for log in logs:
        log.close()


def kill_connections(url: str, log: PostgresLog) -> None:
    """As an operator, a pooler or a failing network does: the connection of a log ends here and now."""
    conn = log._link._conn
    assert conn is not None
    pid = conn.pgconn.backend_pid
    with admin(url) as operator:
        operator.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))


def ids(log: PostgresLog) -> list[str]:
    return [event.id for one in log.read(START) for event in one.events if isinstance(event, Returned)]


# Lost connections.

STEPS = ("lock", "begin", "read", "now", "append", "unlock")


@pytest.mark.parametrize("step", STEPS)
def test_L2_a_connection_that_is_killed_before_any_step_of_a_decision_leaves_one_commit(
    url: str, opened: Callable[[], PostgresLog], step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened()
    replica = Replica(log, "h|b|1|1|1")
    replica.decide([CAP])
    real = getattr(PostgresLog, step)
    struck: list[str] = []

    def strike(self: PostgresLog, *args: object, **said: object) -> object:
        if not struck:
            struck.append(step)
            kill_connections(url, self)
        return real(self, *args, **said)

    monkeypatch.setattr(PostgresLog, step, strike)
    (decided,) = replica.decide([cmd.Acquire("mine", SPEC, replica.me)])
    monkeypatch.undo()
    assert struck
    assert [type(event) for event in decided.events] == [ev.Granted]
    fresh = Replica(opened(), "h|b|1|2|2")
    assert fresh.catch_up().leases.keys() == {"mine"}
    granted = [event for _, _, event in log.history() if isinstance(event, ev.Granted)]
    assert len(granted) == 1, "it was decided again after it had been committed"


def test_L2_what_was_lost_between_begin_and_append_never_happened(url: str, opened: Callable[[], PostgresLog]) -> None:
    log = opened()
    log.lock()
    log.begin()
    kill_connections(url, log)
    with pytest.raises(TransactionLost):
        log.append(START, log.now(), [Returned(id="a")], None)
    log.unlock()
    assert opened().read(START) == []
    log.lock()
    log.begin()
    assert log.append(START, log.now(), [Returned(id="b")], None).commit == 1
    log.unlock()


def test_Q2_an_append_never_runs_on_another_connection_than_its_lock(
    url: str, opened: Callable[[], PostgresLog]
) -> None:
    log = opened()
    log.lock()
    log.begin()
    log._link.drop()
    log._link.connect()  # a new one, which has no lock
    with pytest.raises(TransactionLost):
        log.append(START, log.now(), [Returned(id="a")], None)
    log.unlock()
    assert log.read(START) == []


def test_Q2_reads_go_on_over_a_lost_connection(url: str, opened: Callable[[], PostgresLog]) -> None:
    log = opened()
    kill_connections(url, log)
    assert log.head() is None
    kill_connections(url, log)
    assert log.side_items("jobs") == []
    kill_connections(url, log)
    assert list(log.history()) == []


def test_Q2_a_decision_whose_connection_is_killed_each_time_ends_with_a_sentence_and_has_not_happened(
    url: str, opened: Callable[[], PostgresLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened()
    replica = Replica(log, "h|b|1|1|1")
    replica.decide([CAP])
    now = PostgresLog.now

    def strike(self: PostgresLog) -> int:
        kill_connections(url, self)
        return now(self)

    monkeypatch.setattr(PostgresLog, "now", strike)
    with pytest.raises(TransactionLost, match="nothing of it happened"):
        replica.decide([cmd.Acquire("mine", SPEC, replica.me)])
    monkeypatch.undo()
    assert not replica.catch_up().leases, "what was decided and not committed is still believed"
    assert replica.decide([cmd.Acquire("mine", SPEC, replica.me)])[0].events


def test_A1_what_was_decided_on_a_lost_connection_is_not_believed_when_another_has_got_the_slot(
    url: str, opened: Callable[[], PostgresLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken connection is not a restored backup: no leases are counted again."""
    log, me = opened(), process_identity.this_process()
    replica, other = Replica(log, me), Replica(opened(), "h|b|1|1|1")
    replica.decide([CAP])
    append = PostgresLog.append
    struck: list[bool] = []

    def strike(self: PostgresLog, *args: Any) -> object:
        if self is log and not struck:
            struck.append(True)
            kill_connections(url, self)
            other.decide([cmd.Acquire("other", SPEC, other.me)])
        return append(self, *args)

    monkeypatch.setattr(PostgresLog, "append", strike)
    replica.decide([cmd.Acquire("mine", SPEC, me)])
    assert struck
    assert replica.catch_up().leases.keys() == {"other"}
    assert replica.state.tickets.keys() == {"mine"}
    told = [type(event).__name__ for _, _, event in log.history()]
    assert told == ["RuleSet", "Granted", "Queued"]


# Commits whose answer does not come.


class Proxy:
    """Between a log and its server; `cut` closes a connection when the client has sent a certain word."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self.cut_at = b""
        self.deliver = True  # whether what was sent last reaches the server
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._port)) as server:
            while True:
                ready, _, _ = select.select([client, server], [], [])
                for sender in ready:
                    data = sender.recv(65_536)
                    if not data:
                        return
                    if sender is client and self.cut_at and self.cut_at in data:
                        self.cut_at = b""
                        self.cuts += 1
                        if self.deliver:
                            server.sendall(data)
                            _wait_for_answer(server)
                        return
                    (server if sender is client else client).sendall(data)

    def close(self) -> None:
        """No new connection comes through; existing ones stay."""
        try:
            self._listening.shutdown(socket.SHUT_RDWR)  # ends the `accept` of the thread, too
        except OSError:
            pass
        self._listening.close()


def _wait_for_answer(server: socket.socket) -> None:
    select.select([server], [], [], 10)


@pytest.fixture
def proxy(postgres: Server) -> Iterator[Proxy]:
    proxy = Proxy(postgres.port)
    yield proxy
    proxy.close()


@pytest.mark.parametrize("deliver", [True, False])
def test_L2_a_commit_whose_answer_was_lost_is_looked_up_by_its_id(
    postgres: Server, proxy: Proxy, deliver: bool
) -> None:
    url = fresh_store(postgres, tcp=True)
    log = PostgresLog(url.replace(f":{postgres.port}/", f":{proxy.port}/"))
    replica = Replica(log, "h|b|1|1|1")
    replica.decide([CAP])
    reloads = replica.reloads
    proxy.deliver = deliver
    proxy.cut_at = b"; COMMIT"
    (decided,) = replica.decide([cmd.Acquire("mine", SPEC, replica.me)])
    assert proxy.cuts == 1
    assert [type(event) for event in decided.events] == [ev.Granted]
    assert (replica.reloads == reloads) is deliver, "what had happened was decided again"
    granted = [event for _, _, event in log.history() if isinstance(event, ev.Granted)]
    assert len(granted) == 1
    log.close()


def test_Q2_when_the_server_goes_before_its_answer_the_message_says_that_the_result_is_unknown(
    postgres: Server, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PATIENCE_S", 0.1)
    url = fresh_store(postgres, tcp=True)
    log = PostgresLog(url.replace(f":{postgres.port}/", f":{proxy.port}/"))
    log.lock()
    log.begin()
    proxy.cut_at = b"; COMMIT"
    proxy.close()
    with pytest.raises(StoreError, match="whether the last decision was committed is not known"):
        log.append(START, log.now(), [Returned(id="a")], None)
    log.unlock()
    log.close()
    other = PostgresLog(url)
    assert ids(other) == ["a"]
    other.close()


# Those who keep the lock.

HOLDER = """
import sys
from fleetgate.log.postgres import PostgresLog
from fleetgate.log.protocol import START, StoreError
log = PostgresLog(sys.argv[1])
log.lock()
log.begin()
print("locked", flush=True)
sys.stdin.readline()
try:
    log.append(START, log.now(), [], None)
except StoreError as error:
    print(type(error).__name__, flush=True)
else:
    print("committed", flush=True)
"""


def test_Q2_a_client_that_is_stopped_with_the_lock_delays_others_briefly_and_cannot_commit_later(
    url: str, opened: Callable[[], PostgresLog]
) -> None:
    log = opened()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        os.kill(holder.pid, signal.SIGSTOP)
        assert not log.try_lock()
        began = monotonic()
        log.lock()
        took = monotonic() - began
        log.begin()
        position = log.append(START, log.now(), [Returned(id="a")], None)
        log.unlock()
        os.kill(holder.pid, signal.SIGCONT)
        holder.stdin.write("\n")
        holder.stdin.flush()
        assert holder.stdout.readline() == "TransactionLost\n"
    assert [one.position for one in log.read(START)] == [position]
    within(took, 10, "s that the lock was kept")


def test_Q2_who_keeps_the_lock_can_be_named_and_a_wait_without_end_ends_with_a_sentence(
    url: str, opened: Callable[[], PostgresLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_log, "LOCK_PATIENCE_S", 0.0)
    monkeypatch.setattr(sql, "BEGIN", sql.BEGIN.replace("'10000'", "'50'"))
    holder, other = opened(), opened()
    holder.lock()
    assert other.lock_owner() == os.getpid()
    with pytest.raises(StoreError, match="could not be had"):
        other.lock()
    holder.unlock()
    other.lock()
    other.unlock()


# The server.


def test_Q2_A1_decisions_continue_through_two_crashes_of_the_server_and_no_answer_is_lost() -> None:
    server = Server(fsync=True)
    try:
        url = fresh_store(server)
        told: list[str] = []
        failures: list[BaseException] = []
        stop = threading.Event()
        threads = [threading.Thread(target=_decide, args=(url, name, told, failures, stop)) for name in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(2):
            before = len(told)
            _until(lambda before=before: len(told) >= before + 30 or bool(failures))  # type: ignore[misc]
            server.stop(signal.SIGQUIT)
            server.start()
        before = len(told)
        _until(lambda: len(told) >= before + 30 or bool(failures))
        stop.set()
        for thread in threads:
            thread.join()
        assert not failures
        log = PostgresLog(url)
        granted = [event.id for _, _, event in log.history() if isinstance(event, ev.Granted)]
        numbers = [one.number for one in log.read(START)]
        log.close()
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(granted) == len(set(granted))
        assert set(told) <= set(granted), "a slot was granted, and then the server forgot it"
    finally:
        server.remove()


def _decide(url: str, name: int, told: list[str], failures: list[BaseException], stop: threading.Event) -> None:
    """Acquire and release, a few hundred times a second; what the store could not do is tried again."""
    try:
        log = PostgresLog(url)
        replica = Replica(log, f"h|b|1|{name}|1")
        number = 0
        while not stop.is_set():
            number += 1
            ident = f"{name}.{number}"
            try:
                (asked,) = replica.decide([cmd.Acquire(ident, SPEC, replica.me, wait=False)])
                if any(isinstance(event, ev.Granted) for event in asked.events):
                    told.append(ident)
                replica.decide([cmd.Release(ident)])
                sleep(0.005)  # while the server restarts, the other threads would use up the processor
            except StoreError:
                sleep(0.05)
        log.close()
    except BaseException as error:
        failures.append(error)


def _until(done: Callable[[], bool], patience_s: float = 60.0) -> None:
    until = monotonic() + patience_s
    while not done():
        assert monotonic() < until, "it did not happen"
        sleep(0.01)


@pytest.mark.parametrize(
    ("said", "least_s", "most_s"),
    [
        ('password authentication failed for user "x"', 0.0, 0.0),
        ("connection failed: Connection refused", 0.5, 1.0),
        ("failed to resolve host 'x'", 0.5, 1.0),
        ("connection timeout expired", 3.0, 5.0),
        ("FATAL: the database system is starting up", 3.0, 5.0),
    ],
)
def test_R3_a_plain_no_is_believed_soon_and_silence_is_not(
    said: str, least_s: float, most_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    def refuse(address: object) -> None:
        raise connection.ConnectionLost(said)

    monkeypatch.setattr(connection, "connect", refuse)
    monkeypatch.setattr(connection, "sleep", slept.append)
    monkeypatch.setattr(connection, "monotonic", lambda: sum(slept))
    with pytest.raises(StoreError, match="cannot be reached"):
        PostgresLog("postgresql://x@db.example.com/x")
    assert least_s <= sum(slept) <= most_s, slept


def test_Q2_a_server_that_is_gone_is_reported_soon_and_found_again_automatically(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "PATIENCE_S", 0.3)
    server = Server()
    try:
        log = PostgresLog(fresh_store(server))
        server.stop()
        with pytest.raises(StoreError, match=r"cannot be reached .*is it running"):
            log.head()
        began = monotonic()
        for _ in range(20):
            with pytest.raises(StoreError):
                log.lock()
        within(monotonic() - began, 5, "s: each call waited again for a server that is known to be gone")
        server.start()
        _until(lambda: _answers(log))
        log.close()
    finally:
        server.remove()


def _answers(log: PostgresLog) -> bool:
    try:
        log.head()
    except StoreError:
        return False
    return True


def test_Q2_a_failover_that_lost_commits_is_noticed(url: str, opened: Callable[[], PostgresLog]) -> None:
    log = opened()
    log.lock()
    log.begin()
    position = log.append(START, log.now(), [Returned(id="a")], None)
    log.unlock()
    with admin(url) as operator:
        operator.execute("DELETE FROM fleetgate.log WHERE id = %s", (position.id,))
    with pytest.raises(LogReplaced):
        log.read(position)
    log.lock()
    log.begin()
    with pytest.raises(LogReplaced):
        log.append(position, log.now(), [], None)
    log.unlock()


# Waking.


def test_a_message_on_one_connection_reaches_another_and_again_after_a_reconnect(
    url: str, opened: Callable[[], PostgresLog]
) -> None:
    log = opened()
    listener = opened().listen()
    try:
        assert _hear(listener.fileno())
        assert listener.drain() == ["*"]
        log.notify("g12345678")
        assert _hear(listener.fileno())
        assert listener.drain() == ["g12345678"]
        with admin(url) as operator:
            operator.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
        assert _hear(listener.fileno())
        assert listener.drain() == ["*"], "something may have been missed"
        log.notify("g1")
        assert _hear(listener.fileno())
        assert listener.drain() == ["g1"]
    finally:
        listener.close()


def _hear(fd: int) -> bool:
    return bool(select.select([fd], [], [], 30)[0])


def test_whether_listening_works_is_found_out(url: str, opened: Callable[[], PostgresLog]) -> None:
    assert reaches(parse(url), opened()._ns)


def test_telling_a_server_that_is_gone_is_no_error(
    url: str, opened: Callable[[], PostgresLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened()
    log._link._down = monotonic() + 60, StoreError("gone")
    log._link.drop()
    log.notify("g1")
