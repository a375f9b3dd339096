"""Prefect's global concurrency limits on the same PostgreSQL, for benchmarks/postgres.py.

A Prefect server with its database there, and a client that takes and gives back a slot of a limit that is never full.
Prefect is in a Python of its own, as it wants other versions of what Fleetgate uses: FLEETGATE_BENCH_PREFECT names it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from time import monotonic, sleep
from urllib.request import urlopen

import psycopg

from tests.postgres_server import USER, Server

START_S = 120.0

CLIENT = """
import asyncio, sys
from time import perf_counter
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.concurrency.asyncio import concurrency

tasks, seconds, kept = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3] == "kept"

async def pair_by_the_book(client, name):
    async with concurrency(name, occupy=1, strict=True):
        pass

async def pair_by_a_kept_client(client, name):
    answer = await client.increment_concurrency_slots_with_lease([name], 1, "concurrency", 300)
    await client.release_concurrency_slots_with_lease(answer.json()["lease_id"])

async def main():
    name, pair = f"x{tasks}{kept}", pair_by_a_kept_client if kept else pair_by_the_book
    async with get_client() as client:
        await client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=name, limit=1000))
        for _ in range(3):
            await pair(client, name)
        end = perf_counter() + seconds

        async def work():
            pairs = 0
            while perf_counter() < end:
                await pair(client, name)
                pairs += 1
            return pairs

        began = perf_counter()
        pairs = sum(await asyncio.gather(*(work() for _ in range(tasks))))
        print(pairs / (perf_counter() - began))

asyncio.run(main())
"""


class NotHere(Exception):
    """Why it is not measured."""


class Prefect:
    """A running Prefect server."""

    def __init__(self, python: str, environ: dict[str, str]) -> None:
        self._python = python
        self._environ = environ

    def version(self) -> str:
        return self._ask("import prefect; print(prefect.__version__)")

    def pairs_a_second(self, tasks: int, seconds: float, *, kept: bool) -> float:
        """Slots taken and given back by so many tasks of one process.

        By the book, `concurrency(…)`, each makes a new HTTP client. With `kept` all use one client,
        by its own methods: that is what the server can do.
        """
        return float(self._ask(CLIENT, str(tasks), str(seconds), "kept" if kept else "by the book"))

    def _ask(self, script: str, *arguments: str) -> str:
        argv = [self._python, "-c", script, *arguments]
        done = subprocess.run(argv, env=self._environ, capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise NotHere(f"Prefect's client failed: {done.stderr.strip().splitlines()[-1:]}")
        return done.stdout.split()[-1]


@contextlib.contextmanager
def prefect(server: Server) -> Iterator[Prefect]:
    """A Prefect server on a database of its own there."""
    python = os.environ.get("FLEETGATE_BENCH_PREFECT", "")
    if not python:
        raise NotHere("FLEETGATE_BENCH_PREFECT names no Python that has it")
    with psycopg.connect(server.url("postgres"), autocommit=True) as conn:
        conn.execute("CREATE DATABASE prefect")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with tempfile.TemporaryDirectory(prefix="fg-prefect-") as home:
        environ = {
            **os.environ,
            "PREFECT_HOME": home,
            "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
            "PREFECT_API_DATABASE_CONNECTION_URL": f"postgresql+asyncpg://{USER}@127.0.0.1:{server.port}/prefect",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_LOGGING_LEVEL": "ERROR",
            "DO_NOT_TRACK": "1",
        }
        argv = [python, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
        with open(f"{home}/server.log", "wb") as log:
            process = subprocess.Popen(argv, env=environ, stdout=log, stderr=log, start_new_session=True)
        try:
            _until_it_answers(process, port, f"{home}/server.log")
            yield Prefect(python, environ)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _until_it_answers(process: subprocess.Popen[bytes], port: int, log: str) -> None:
    until = monotonic() + START_S
    while True:
        try:
            urlopen(f"http://127.0.0.1:{port}/api/health", timeout=5).read()
            return
        except OSError as error:
            if process.poll() is not None or monotonic() > until:
                with open(log, errors="replace") as said:
                    last = " ".join(said.read().split())[-300:]
                raise NotHere(f"Prefect's server does not start ({error}): {last}") from error
        sleep(0.2)
