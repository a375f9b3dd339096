"""H5: how many connections, long polls and streams there may be. One service, with lower numbers than usual."""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.api.served import Answer, Served

LOWERED = """
import fleetgate.front.limits as bounds, fleetgate.api.service as service
bounds.MOST_CONNECTIONS, service.MOST_WAITING, service.MOST_STREAMS = 8, 2, 3
from fleetgate.cli.main import main
main()
"""


class Lowered(Served):
    def spawn(self, *argv: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", LOWERED, *argv]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=self.environ, text=True, stdout=pipe, stderr=pipe)

    def number(self, metric: str) -> int:
        lines = self.get("/metrics").body.decode().splitlines()
        return int(float(next(line for line in lines if line.startswith(f"{metric} ")).split()[1]))


@pytest.fixture(scope="module")
def lowered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lowered]:
    with Lowered(tmp_path_factory.mktemp("lowered")) as served:
        yield served


def test_h5_one_long_poll_too_many_is_refused_until_another_has_ended(lowered: Lowered):
    lowered.cap("umans", 1, cooldown_ms=0)
    held = lowered.lease().json["lease"]

    def waits(wait_s: float = 30) -> Answer:
        return lowered.lease(wait_s=wait_s)

    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(waits) for _ in range(2)]
        lowered.wait_until(lambda: lowered.number("fleetgate_waiting_requests") == 2, "two wait")
        refused = waits()
        assert (refused.status, refused.json["reason"]) == (429, "too_many_waiting")
        assert int(refused.headers["retry-after"]) > 0
        assert len(lowered.get("/v1/tickets").json["tickets"]) == 2, "who was refused has no place in the queue"
        assert waits(0).status == 200, "who does not wait is answered"
        lowered.ok("POST", f"/v1/leases/{held}/release")
        for _ in waiting:
            lowered.wait_until(lambda: lowered.get("/v1/leases").json["leases"], "the next has entered")
            (lease,) = lowered.get("/v1/leases").json["leases"]
            lowered.ok("POST", f"/v1/leases/{lease['id']}/release")
        assert [each.result().status for each in waiting] == [201, 201]
    assert waits(0.1).status == 201


def test_h5_one_stream_too_many_is_refused_until_another_has_ended(lowered: Lowered):
    with ExitStack() as open_ones:
        for _ in range(3):
            connection = http.client.HTTPConnection("127.0.0.1", lowered.port, timeout=20)
            open_ones.callback(connection.close)
            connection.request("GET", "/v1/events")
            assert connection.getresponse().status == 200
        lowered.wait_until(lambda: lowered.number("fleetgate_streams") == 3, "three listen")
        refused = lowered.get("/v1/events")
        assert (refused.status, refused.json["reason"]) == (429, "too_many_waiting")
        assert "retry-after" in refused.headers
    lowered.wait_until(lambda: lowered.number("fleetgate_streams") == 0, "all have left")
    with socket.create_connection(("127.0.0.1", lowered.port), timeout=20) as raw:
        raw.sendall(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 200")


def test_h5_one_connection_too_many_is_refused_until_others_are_closed(lowered: Lowered):
    with ExitStack() as open_ones:
        for _ in range(8):
            raw = socket.create_connection(("127.0.0.1", lowered.port), timeout=20)
            open_ones.enter_context(raw)
            raw.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert raw.recv(100).startswith(b"HTTP/1.1 200")
            head = f"Host: localhost\r\nAuthorization: Bearer {lowered.token}\r\nContent-Length: 10\r\n\r\n"
            raw.sendall(f"POST /v1/leases HTTP/1.1\r\n{head}".encode())  # and its body does not come
        lowered.wait_until(lambda: lowered.get("/v1/status").status == 503, "all are in use")
        refused = lowered.get("/v1/status")
        assert (refused.status, refused.json["reason"]) == (503, "too_many_connections")
        assert (refused.headers["connection"], refused.headers["retry-after"]) == ("close", "1")
        assert lowered.get("/healthz").status == 200, "health is answered all the same"
    lowered.wait_until(lambda: lowered.get("/v1/status").status == 200, "there is room again")


def test_h5_a_connection_that_is_idle_gives_way_to_a_new_one(lowered: Lowered):
    with ExitStack() as open_ones:
        idle = []
        for _ in range(12):
            raw = socket.create_connection(("127.0.0.1", lowered.port), timeout=20)
            idle.append(open_ones.enter_context(raw))
            raw.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert raw.recv(10_000).startswith(b"HTTP/1.1 200")
        assert lowered.get("/v1/status").status == 200
        assert idle[0].recv(1) == b"", "closed"
        idle[-1].sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert idle[-1].recv(100).startswith(b"HTTP/1.1 200"), "the oldest went first"
