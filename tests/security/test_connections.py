"""What one connection may cost the service: memory, time, and the places of others. One service, with short times."""

from __future__ import annotations

import asyncio
import resource
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import cast

import pytest

from fleetgate.front import limits
from fleetgate.proxy.http_client.connection import Connection, UpstreamRequest
from fleetgate.proxy.http_client.failures import NotHttp
from tests.api.served import PATIENCE_S, Served
from tests.proxy.origin import Reply, read

HURRIED = """
import fleetgate.front.limits as bounds
bounds.HEAD_S, bounds.BODY_S, bounds.UNREAD_S, bounds.CHECK_S = 1.5, 1.5, 3.0, 0.2
from fleetgate.cli.main import main
main()
"""
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
FILES = 1024  # that the service may have open
MOST_BYTES = 8 << 20


class Hurried(Served):
    def spawn(self, *argv: str) -> subprocess.Popen[str]:
        limits = ["sh", "-c", f'ulimit -S -n 200 && ulimit -H -n {FILES} && exec "$@"', "sh"]
        pipe = subprocess.PIPE
        command = [*limits, sys.executable, "-c", HURRIED, *argv]
        return subprocess.Popen(command, env=self.environ, text=True, stdout=pipe, stderr=pipe)

    def memory(self) -> int:
        assert self.process is not None
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) * 1024

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)

    def ask_all(self, data: bytes) -> bytes:
        """Send something, and read until the service closes."""
        with self.connect() as raw:
            send(raw, data)
            return read_all(raw)


def send(raw: socket.socket, data: bytes) -> int:
    """As much as is taken, without reading; how much that was."""
    raw.settimeout(0.5)
    sent, view = 0, memoryview(data)
    try:
        while sent < len(data):
            sent += raw.send(view[sent : sent + (1 << 20)])
    except (TimeoutError, ConnectionError):
        pass
    raw.settimeout(PATIENCE_S)
    return sent


def read_all(raw: socket.socket) -> bytes:
    data = b""
    try:
        while part := raw.recv(1 << 16):
            data += part
    except ConnectionError:
        pass
    return data


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hurried]:
    with Hurried(tmp_path_factory.mktemp("hurried")) as served:
        with served.connect() as raw:  # what a service needs once, to answer thousands, counts for no test
            send(raw, HEALTH * 200_000)
        yield served


needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell")


@needs_proc
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_requests_that_are_pipelined_and_whose_answers_are_not_read_cost_little(service: Hurried, method: str) -> None:
    before = service.memory()
    request = HEALTH
    if method == "POST":
        head = f"Host: localhost\r\nAuthorization: Bearer {service.token}\r\nContent-Length: 30\r\n\r\n"
        request = f'POST /v1/leases HTTP/1.1\r\n{head}{{"models":["x/y"],"wait_s":30  }}'.encode()
    with service.connect() as raw:
        sent = send(raw, request * (60_000_000 // len(request)))
        assert service.memory() - before < MOST_BYTES
        assert sent < 30_000_000, "it does not read what it cannot answer"
        assert service.get("/healthz").status == 200


def test_a_client_that_pipelines_and_reads_gets_every_answer(service: Hurried) -> None:
    number = 1500
    requests = HEALTH * number
    with service.connect() as raw:
        answers, at = b"", 0
        while answers.count(b"HTTP/1.1 200") < number:
            at += raw.send(requests[at : at + 8192]) if at < len(requests) else 0
            answers += raw.recv(1 << 16)


@needs_proc
@pytest.mark.parametrize(
    "endless",
    [b"0\r\n" + b"X-Trailer: a\r\n" * 500_000, b"1;" + b"x" * 8_000_000, b"0\r\nX-Trailer: " + b"y" * 8_000_000],
    ids=["trailers", "a chunk's extension", "one trailer"],
)
@pytest.mark.parametrize("path", ["/healthz", "/v1/leases"])
def test_trailers_and_chunk_extensions_that_do_not_end_cost_little(service: Hurried, endless: bytes, path: str) -> None:
    before = service.memory()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {service.token}\r\n"
    service.ask_all(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + endless)
    assert service.memory() - before < MOST_BYTES


@pytest.mark.parametrize(
    "part", [b"", b"GET", b"GET /healthz HTTP/1.1\r\nHost: ", HEALTH[:-2]], ids=["nothing", "line", "header", "no end"]
)
def test_a_head_that_does_not_come_ends_the_connection(service: Hurried, part: bytes) -> None:
    answer = service.ask_all(part)
    assert answer.startswith(b"HTTP/1.1 408 ") if part else not answer


def test_a_head_that_trickles_ends_the_connection(service: Hurried) -> None:
    began = monotonic()
    with service.connect() as raw:
        raw.settimeout(0.2)
        raw.send(b"GET /")
        while monotonic() < began + PATIENCE_S:
            try:
                raw.send(b"x")
                if raw.recv(100).startswith(b"HTTP/1.1 4"):
                    return
            except TimeoutError:
                continue
            except ConnectionError:
                return
    raise AssertionError("it still waits")


def test_a_body_that_trickles_ends_the_connection(service: Hurried) -> None:
    head = f"Host: localhost\r\nAuthorization: Bearer {service.token}\r\nContent-Length: 30000\r\n\r\n"
    answer = service.ask_all(f"POST /v1/leases HTTP/1.1\r\n{head} ".encode())
    assert answer.startswith(b"HTTP/1.1 408 ")


def test_a_client_that_reads_no_answer_is_left(service: Hurried) -> None:
    with service.connect() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        hung_up = select.poll()
        hung_up.register(raw, 0)
        until = monotonic() + PATIENCE_S
        while not hung_up.poll(100):
            send(raw, b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 10_000)
            assert monotonic() < until, "it still waits for a reader"


def test_a_thousand_idle_connections_keep_nobody_out(service: Hurried) -> None:
    """Also where the service cannot have that many files open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    try:
        with ExitStack() as idle:
            for _ in range(1200):
                idle.enter_context(service.connect())
            began = monotonic()
            for _ in range(20):
                assert service.get("/healthz").status == 200
                assert service.get("/v1/status").status == 200
            assert monotonic() - began < PATIENCE_S
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@needs_proc
def test_the_service_may_open_as_many_files_as_the_system_lets_it(service: Hurried) -> None:
    assert service.process is not None
    lines = Path(f"/proc/{service.process.pid}/limits").read_text().splitlines()
    (limit,) = (line.split() for line in lines if line.startswith("Max open files"))
    assert limit[3:5] == [str(FILES)] * 2


def test_there_is_room_for_fewer_clients_where_few_files_may_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    assert limits.most_connections() == 480
    monkeypatch.setattr(resource, "getrlimit", lambda _: (65_536, 65_536))
    assert limits.most_connections() == limits.MOST_CONNECTIONS


# Providers.


@pytest.mark.parametrize(
    "endless",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n" * 100_000,
        b"HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n" * 50_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"X-Trailer: a\r\n" * 100_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"x" * 1_000_000,
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 1_000_000,
    ],
    ids=["100", "103", "trailers", "a chunk's extension", "one header"],
)
def test_a_provider_whose_answer_has_no_end_that_is_not_body_is_left(endless: bytes) -> None:
    with pytest.raises(NotHttp):
        asyncio.run(ask_provider(endless))


async def ask_provider(endless: bytes) -> None:
    """Read an answer like this to its end."""

    async def say_much(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        try:
            writer.write(endless)
            await writer.drain()
            await reader.read()
        except ConnectionError:
            pass
        writer.close()

    server = await asyncio.start_server(say_much, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    loop = asyncio.get_running_loop()
    connection = Connection(loop, lambda _: None, lambda _: None)
    await loop.create_connection(lambda: cast(asyncio.Protocol, connection), host, port)
    try:
        reply = Reply(connection, UpstreamRequest(b"GET", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
        await read(await reply.head())
    finally:
        server.close()
        await server.wait_closed()
