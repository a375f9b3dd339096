"""`serve --processes 2`: any process answers any request, and none is missed when it is killed."""

from __future__ import annotations

import http.client
import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import psutil
import pytest

from fleetgate.testing.provider import FakeProvider
from tests.api.served import PATIENCE_S
from tests.proxy.proxied import CHAT, Proxied

NUMBER = 2


class Several(Proxied):
    """A service with several processes, and connections to each of them."""

    def start(self, *options: str) -> Several:
        super().start("--processes", str(NUMBER), *options)
        self.wait_until(lambda: len(self.children()) == NUMBER, "all processes run")
        return self

    def children(self) -> list[psutil.Process]:
        assert self.process is not None
        try:
            return [each for each in psutil.Process(self.process.pid).children() if each.is_running()]
        except psutil.NoSuchProcess:
            return []

    def connect_to(self, pid: int) -> http.client.HTTPConnection:
        """A connection that this process accepted."""
        until = monotonic() + PATIENCE_S
        while monotonic() < until:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
            connection.request("GET", "/healthz")
            connection.getresponse().read()
            own = connection.sock.getsockname()
            if any(each.raddr == own for each in psutil.Process(pid).net_connections("tcp")):
                return connection
            connection.close()
        raise AssertionError(f"no connection came to process {pid}")

    def ask(self, pid: int, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        connection = self.connect_to(pid)
        sent = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json", **headers}
        connection.request(method, path, None if body is None else json.dumps(body), sent)
        response = connection.getresponse()
        answer = response.status, json.loads(response.read() or b"null")
        connection.close()
        return answer


@pytest.fixture(scope="module")
def provider() -> Iterator[FakeProvider]:
    with FakeProvider() as provider:
        yield provider


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory, provider: FakeProvider) -> Iterator[Several]:
    """One service for all tests: the last two end it."""
    folder = tmp_path_factory.mktemp("several")
    with Several(folder, provider, requests="fake = { cap = 1, cooldown = 0 }") as served:
        yield served


def test_all_processes_have_the_same_token(several: Several) -> None:
    assert [several.ask(each.pid, "GET", "/v1/session")[1]["may_change"] for each in several.children()] == [True, True]


def test_a_client_can_continue_at_any_process_what_it_began_at_another(several: Several) -> None:
    one, other = [each.pid for each in several.children()]
    several.cap("umans", 1, cooldown_ms=0)
    status, lease = several.ask(one, "POST", "/v1/leases", {"models": ["umans/x"]})
    assert status == 201
    status, waiting = several.ask(other, "POST", "/v1/leases", {"models": ["umans/x"], "wait_s": 0.1})
    assert status == 202, waiting
    assert several.ask(other, "POST", f"/v1/leases/{lease['lease']}/renew")[0] == 200
    assert several.ask(other, "POST", f"/v1/leases/{lease['lease']}/release")[1]["released"]
    again = {"models": ["umans/x"], "wait_s": 30, "id": waiting["id"]}
    status, granted = several.ask(one, "POST", "/v1/leases", again)
    assert (status, granted["lease"]) == (201, waiting["id"])
    assert several.ask(other, "POST", f"/v1/leases/{granted['lease']}/release")[1]["released"]
    assert not several.leases()
    # A sign-in code of one process is good at another, once.
    for maker, user in ((one, other), (other, one)):
        link = several.ask(maker, "POST", "/v1/login-links")[1]["url"]
        body = {"code": link.partition("#code=")[2]}
        assert several.ask(user, "POST", "/v1/session", body)[0] == 200
        assert several.ask(maker, "POST", "/v1/session", body)[0] == 403
    # What one process commits is in the other's stream.
    stream = several.connect_to(one)
    stream.request("GET", "/v1/events")
    events = stream.getresponse()
    several.ask(other, "PUT", "/v1/caps", {"selector": "umans", "cap": 5})
    while b"event: rule_set" not in events.readline():
        pass
    stream.close()


def test_a_process_that_is_killed_frees_its_slots_and_is_started_again(several: Several) -> None:
    killed, other = [each.pid for each in several.children()]
    status, lease = several.ask(killed, "POST", "/v1/leases", {"models": ["umans/x"], "renew_within_s": 600})
    assert status == 201
    several.provider.latency_s = 600.0
    call = several.connect_to(killed)  # it holds the one slot of the provider
    call.request("POST", "/fake/v1/chat/completions", json.dumps(CHAT), {"x-api-key": "key-of-a-client"})
    several.wait_until(lambda: len(several.leases()) == 2, "the call has its slot")
    several.provider.latency_s = 0.0
    os.kill(killed, signal.SIGKILL)
    several.wait_until(
        lambda: len(several.children()) == NUMBER and killed not in [each.pid for each in several.children()],
        "another process runs",
    )
    assert several.ask(other, "POST", f"/v1/leases/{lease['lease']}/renew")[0] == 200, "the lease is its client's"
    assert several.ask(other, "POST", f"/v1/leases/{lease['lease']}/release")[1]["released"]
    for each in several.children():
        several.wait_until(lambda pid=each.pid: several.ask(pid, "GET", "/v1/status")[0] == 200, "it answers")
    assert several.chat().status == 200, "the slot of the killed process is free"
    several.check_nothing_is_held()
    call.close()


def test_a_port_is_not_shared_with_another_service(several: Several, tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    second = Several(tmp_path / "second", several.provider)
    process = second.spawn("serve", "--processes", "2", "--port", str(several.port))
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 69
    assert "is taken by another process" in errors


def test_a_signal_ends_all_processes_after_their_requests(several: Several) -> None:
    several.cap("last", 1, cooldown_ms=0)
    several.lease("last/x")
    pids = [each.pid for each in several.children()]
    with ThreadPoolExecutor(NUMBER) as pool:
        polls = [
            pool.submit(several.ask, pid, "POST", "/v1/leases", {"models": ["last/x"], "wait_s": 50}) for pid in pids
        ]
        several.wait_until(lambda: len(several.tickets()) == NUMBER, "all wait")
        assert several.stop() == 0
        assert [each.result()[0] for each in polls] == [202, 202]
    assert not any(map(psutil.pid_exists, pids))
    assert not (several.home / "serve.json").exists()
    several.start()


def test_all_processes_end_when_the_first_is_killed(several: Several) -> None:
    pids = [each.pid for each in several.children()]
    several.kill()
    until = monotonic() + PATIENCE_S
    while any(map(psutil.pid_exists, pids)):
        assert monotonic() < until, "they still run"
        sleep(0.05)
