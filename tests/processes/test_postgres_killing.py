"""Processes on a PostgreSQL gate, killed at random, with their connections, under a server that crashes (SPEC A1, L2).

What is judged is not what the gate says but what the agents themselves wrote down. HEADGATE_SOAK=20 makes it longer.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, monotonic_ns, sleep

import pytest

from headgate.core import commands as cmd
from headgate.core.records import Rule
from headgate.gate.direct import DirectGate
from headgate.log import open_log
from tests.postgres_server import Server
from tests.postgres_stores import admin, fresh_store

SOAK = int(os.environ.get("HEADGATE_SOAK", "1"))

pytestmark = [pytest.mark.postgres, pytest.mark.processes, pytest.mark.timeout(120 + 60 * SOAK)]

CAP = 3
AGENTS = 6
ROUNDS = 4 * SOAK

AGENT = """
import os, sys
from time import monotonic_ns, sleep
from headgate.core import commands as cmd
from headgate.core.records import Lease, Spec
from headgate.gate.direct import DirectGate
from headgate.gate.ids import new_id
from headgate.log import open_log
from headgate.log.protocol import StoreError

url, record = sys.argv[1:]
file = os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

def note(sign, ident):
    os.write(file, f"{sign} {ident} {monotonic_ns()} {os.getpid()}\\n".encode())

def insist(work):
    while True:
        try:
            return work()
        except StoreError:
            sleep(0.05)

gate = insist(lambda: DirectGate(open_log(url)))
spec = Spec(models=("umans/coder",), kind="requests")
while True:
    ident = new_id()
    got = insist(lambda: gate.acquire(cmd.Acquire(ident, spec, gate.me, wait=False)))
    if isinstance(got, Lease):
        note("+", ident)
        sleep(0.005)
        note("-", ident)
        insist(lambda: gate.decide([cmd.Release(ident)]))
    else:
        # A server that crashed may have forgotten what we gave back, and others may claim it for us: we are alive.
        strangers = [each.id for each in gate.state.leases.values() if each.lives_with == gate.me]
        if strangers:
            insist(lambda: gate.decide([cmd.Release(each) for each in strangers]))
        sleep(0.002)
"""


class Fleet:
    def __init__(self, url: str, record: Path) -> None:
        self._url, self._record = url, record
        self.agents: list[subprocess.Popen[bytes]] = []
        self.killed: dict[int, int] = {}  # pid to when, at the latest, it still ran

    def start(self) -> None:
        self.agents.append(subprocess.Popen([sys.executable, "-c", AGENT, self._url, str(self._record)]))

    def kill(self, agent: subprocess.Popen[bytes]) -> None:
        self.killed[agent.pid] = monotonic_ns()  # it may have run on for a moment: that would only hide its own seat
        agent.kill()
        agent.wait()
        self.agents.remove(agent)

    def entered(self) -> int:
        return self._record.read_text().count("+") if self._record.exists() else 0


def most_at_once(record: Path, killed: dict[int, int]) -> int:
    """The most seats in use at any moment, by the agents' own notes."""
    begun: dict[str, tuple[int, int]] = {}
    moments: list[tuple[int, int]] = []
    for line in record.read_text().splitlines():
        sign, ident, at, pid = line.split()
        if sign == "+":
            begun[ident] = int(at), int(pid)
        else:
            since, _ = begun.pop(ident)
            moments += [(since, 1), (int(at), -1)]
    for since, owner in begun.values():
        moments += [(since, 1), (max(killed[owner], since), -1)]
    most = inside = 0
    for _, change in sorted(moments):
        inside += change
        most = max(most, inside)
    return most


def test_A1_L2_agents_killed_with_their_connections_and_the_server_never_exceed_the_cap(tmp_path: Path) -> None:
    server = Server(fsync=True)
    chance = random.Random(17)
    record = tmp_path / "record"
    try:
        url = fresh_store(server)
        gate = DirectGate(open_log(url))
        gate.one(cmd.SetRule(Rule("requests", "umans", cap=CAP, cooldown_ms=0, on_429="step")), durable=True)
        gate.close()
        fleet = Fleet(url, record)
        try:
            for _ in range(AGENTS):
                fleet.start()
            for number in range(ROUNDS):
                _until_more(fleet, 40)
                fleet.kill(chance.choice(fleet.agents))
                fleet.start()
                with admin(url) as operator:
                    operator.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
                        "AND application_name LIKE 'headgate %' AND random() < 0.5"
                    )
                if number % 2:
                    _until_more(fleet, 20)
                    server.stop(signal.SIGQUIT)
                    server.start()
            _until_more(fleet, 40)
        finally:
            for agent in list(fleet.agents):
                fleet.kill(agent)
        assert most_at_once(record, fleet.killed) <= CAP
        _nothing_stays_taken(url)
    finally:
        server.remove()


def _until_more(fleet: Fleet, count: int) -> None:
    """Wait until so many more have entered: nobody starves, whatever was done to them."""
    before, until = fleet.entered(), monotonic() + 90
    while fleet.entered() < before + count:
        assert monotonic() < until, "nobody enters any more"
        sleep(0.02)


def _nothing_stays_taken(url: str) -> None:
    gate = DirectGate(open_log(url))
    gate.look_around()
    assert not gate.state.leases, "a seat of a dead process stays taken"
    gate.close()
