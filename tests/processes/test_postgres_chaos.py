"""Three hosts on one PostgreSQL, and all that can be killed is: the agents' own record says that no cap broke.

Two kinds of agents at once: `fleetgate run` through the nodes of their hosts, and programs that go to the store
themselves and hold a slot for milliseconds. FLEETGATE_SOAK makes it longer.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Rule
from tests.postgres_server import NoServer, Server
from tests.postgres_stores import admin, migrate
from tests.processes.fleet import Fleet, Run, kill_if_there, rss_mb
from tests.processes.test_postgres_hosts import MODEL, cap, connections, host, nodes

pytestmark = [pytest.mark.processes, pytest.mark.postgres]

SOAK = int(os.environ.get("FLEETGATE_SOAK", "0"))
HOSTS = "abc"
SLOTS = 5
BEAT_S = 4.0  # lost after 18 s: longer than any host is without a node, also on a busy machine
CALLERS = 4
CALLS = 2  # at once
_MARGIN_MS = 5  # between the clocks of the server and of those who write down

# A program that takes a slot and gives it back, again and again, and writes down when.
CALLER = """
import os, sys
from time import monotonic, monotonic_ns, sleep
from fleetgate.core import commands as cmd
from fleetgate.core.entities import Lease, Spec
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.gate.request_ids import new_id
from fleetgate.log import open_log
from fleetgate.log.protocol import StoreError

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
looked = 0.0
while True:
    if monotonic() > looked + 1:  # as all who stay do: to the nodes of other hosts we are another one, that beats
        looked = monotonic()
        insist(gate.run_checks)
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


@pytest.fixture
def server() -> Iterator[Server]:
    """One of its own, to be stopped and started."""
    try:
        server = Server(fsync=True)
    except NoServer as no:
        pytest.skip(str(no))
    yield server
    server.remove()


@pytest.fixture
def fleet(server: Server) -> Iterator[Fleet]:
    with Fleet(store=server.url(server.new_database(migrate))) as fleet:
        cap(fleet, SLOTS)
        fleet.close_gate()
        yield fleet


class Callers:
    """Programs on the store, and what they wrote down."""

    def __init__(self, fleet: Fleet, record: Path) -> None:
        self._fleet, self._record = fleet, record
        self.alive: list[subprocess.Popen[bytes]] = []
        self.killed: dict[int, int] = {}  # pid to when, at the latest, it still ran
        for _ in range(CALLERS):
            self.start()

    def start(self) -> None:
        argv = [sys.executable, "-c", CALLER, self._fleet.store, str(self._record)]
        self.alive.append(subprocess.Popen(argv, env=self._fleet.env({"FLEETGATE_TEST_BEAT_S": str(BEAT_S)})))

    def kill(self, caller: subprocess.Popen[bytes]) -> None:
        self.killed[caller.pid] = time.monotonic_ns()  # it may have run on: that would only hide its own slot
        caller.kill()
        caller.wait()
        self.alive.remove(caller)

    def kill_all(self) -> None:
        for caller in list(self.alive):
            self.kill(caller)

    def until_more(self, count: int) -> None:
        """Wait until that many more have entered: no caller starves, whatever was killed."""
        before, until = self._entered(), time.monotonic() + 90
        while self._entered() < before + count:
            assert time.monotonic() < until, "no caller enters any more"
            time.sleep(0.02)

    def _entered(self) -> int:
        return self._record.read_text().count("+") if self._record.exists() else 0

    def most_at_once(self, written_off: Mapping[str, int]) -> int:
        """The most slots in use at any moment, by their own notes; those that were written off, until then."""
        begun: dict[str, tuple[int, int]] = {}
        moments: list[tuple[int, int]] = []
        for line in self._record.read_text().splitlines():
            sign, ident, at, pid = line.split()
            if sign == "+":
                begun[ident] = int(at), int(pid)
            else:
                since, _ = begun.pop(ident)
                moments += _used(since, int(at), written_off.get(ident))
        for ident, (since, owner) in begun.items():
            moments += _used(since, max(self.killed[owner], since), written_off.get(ident))
        most = inside = 0
        for _, change in sorted(moments):
            inside += change
            most = max(most, inside)
        return most


def _used(since_ns: int, until_ns: int, written_off_ms: int | None) -> list[tuple[int, int]]:
    if written_off_ms is not None:
        until_ns = max(since_ns, min(until_ns, written_off_ms * 1_000_000))
    return [(since_ns, 1), (until_ns, -1)]


class WrittenOff:
    """Slots that were granted again while their holder still had them, because its host was silent for too long.

    That is by design, and on a machine that is busy enough it happens to a host that is well.
    From then on they do not count; whatever is too much without them is a fault.
    """

    def __init__(self, fleet: Fleet) -> None:
        offset_ms = fleet.log_offset_ms() + _MARGIN_MS
        silent = [(at, event) for at, event in fleet.events_of(ev.Reclaimed) if event.silent]
        self.told = [f"{event.id} of {event.silent}" for _, event in silent]
        self.leases = {event.id: at - offset_ms for at, event in silent}  # to when, by the boot clock
        self._pids = {
            int(event.child.split("|")[3]): self.leases[event.id]
            for _, event in fleet.events_of(ev.Claimed)
            if event.child and event.id in self.leases
        }

    def most_agents_at_once(self, fleet: Fleet) -> int:
        """By their own record."""
        if not self._pids:
            return fleet.most_at_once()
        changes = []
        for life in fleet.lives():
            ends = [end for end in (life.ended, self._pids.get(life.pid)) if end is not None]
            changes += [(life.started, 1), *((max(min(ends), life.started), -1) for _ in ends[:1])]
        now = most = 0
        for _, change in sorted(changes):
            now += change
            most = max(most, now)
        return most


class Chaos:
    """Agents come on all hosts, and things die."""

    def __init__(self, fleet: Fleet, server: Server, callers: Callers, agents: int, seed: int) -> None:
        self.fleet, self.server, self.callers = fleet, server, callers
        self.random = random.Random(seed)
        self.left = dict.fromkeys(HOSTS, agents)
        self.runs: dict[str, list[Run]] = {name: [] for name in HOSTS}
        self.killed: set[int] = set()

    def play(self) -> None:
        self._use_the_store_once()
        total = sum(self.left.values())
        restarts = [total * 2 // 3, total // 3]
        while sum(self.left.values()):
            self._bring()
            if restarts and sum(self.left.values()) <= restarts[0]:
                restarts.pop(0)
                self._kill_caller()
                self._kill_connections()
                self.server.stop(self.random.choice((signal.SIGQUIT, signal.SIGINT)))
                time.sleep(0.5)
                self.server.start()
                self.callers.until_more(20)
            kills = (self._kill_run, self._kill_caller, self._kill_node, self._kill_connections, self._nothing)
            self.random.choice(kills)()
            if self.random.random() < 0.05:
                self._kill_host()
            time.sleep(self.random.uniform(0.1, 0.4))

    def _use_the_store_once(self) -> None:
        """A host that has never reached the store does not wait for its server to come back."""
        first = [self.fleet.run(*MODEL, "--", "true", env=host(self.fleet, name, BEAT_S)) for name in HOSTS]
        assert [run.wait(60) for run in first] == [0] * len(HOSTS)

    def _bring(self) -> None:
        for name in HOSTS:
            alive = sum(run.code is None for run in self.runs[name])
            if self.left[name] and alive < 8:
                self.left[name] -= 1
                sleeper = self.fleet.sleeper(f"{name}{self.left[name]}", self.random.uniform(0.2, 1.5))
                env = {**host(self.fleet, name, BEAT_S), "FLEETGATE_TEST_AWAY_S": "60"}  # on a busy machine all is slow
                self.runs[name].append(self.fleet.run(*MODEL, "--", *sleeper, env=env))

    def _kill_run(self) -> None:
        alive = [run for runs in self.runs.values() for run in runs if run.code is None]
        if alive:
            run = self.random.choice(alive)
            self.killed.add(run.pid)
            run.signal(signal.SIGKILL)

    def _kill_caller(self) -> None:
        self.callers.kill(self.random.choice(self.callers.alive))
        self.callers.start()

    def _kill_node(self) -> None:
        for pid in nodes(self.fleet, self.random.choice(HOSTS)):
            kill_if_there(pid)

    def _kill_connections(self) -> None:
        with admin(self.fleet.store) as conn:
            conn.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name LIKE 'fleetgate%' AND pid != pg_backend_pid()"
            )

    def _kill_host(self) -> None:
        name = self.random.choice(HOSTS)
        for run in self.runs[name]:
            if run.code is None:
                self.killed.add(run.pid)
                run.signal(signal.SIGKILL)
        for pid in nodes(self.fleet, name):
            kill_if_there(pid)
        for life in self.fleet.lives():
            if life.name.startswith(name) and life.ended is None:
                self.fleet.kill_sleeper(life.pid)

    def _nothing(self) -> None:
        pass


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(max(1, SOAK // 5)))
def test_a1_l2_three_hosts_under_kill_9_of_everything_never_exceed_the_cap(
    fleet: Fleet, server: Server, seed: int
) -> None:
    fleet.gate.one(cmd.SetRule(Rule("requests", "umans", cap=CALLS, cooldown_ms=0, on_429="step")), durable=True)
    fleet.close_gate()
    callers = Callers(fleet, fleet.folder / "calls")
    chaos = Chaos(fleet, server, callers, 40 if SOAK else 12, seed)
    try:
        chaos.play()
        callers.until_more(20)
    finally:
        callers.kill_all()
    runs = [run for runs in chaos.runs.values() for run in runs]
    for run in runs:
        assert run.wait(120) == 0 or run.pid in chaos.killed, run
        assert "Traceback" not in run.err
    written_off = WrittenOff(fleet)
    assert written_off.most_agents_at_once(fleet) <= SLOTS, written_off.told
    assert callers.most_at_once(written_off.leases) <= CALLS, written_off.told
    fleet.until(lambda: _is_empty(fleet), 60, what="an empty gate")
    fleet.check_log()
    print(f"{len(runs)} runs, {len(chaos.killed)} killed, {len(fleet.events_of(ev.Reclaimed))} leases taken back")
    print(f"written off, their hosts being silent: {written_off.told}; so at once {fleet.most_at_once()} of {SLOTS}")


def _is_empty(fleet: Fleet) -> bool:
    """Any process that looks reclaims the slots of dead programs of this host: they have no node."""
    fleet.gate.run_checks()
    return fleet.is_empty()


@pytest.mark.skipif(not SOAK, reason="five hundred processes: make soak")
def test_l2_five_hundred_that_wait_on_three_nodes(fleet: Fleet) -> None:
    cap(fleet, 1)
    first = fleet.run(*MODEL, "--", *fleet.sleeper("first", 3600), env=host(fleet, "a", 10))
    fleet.until(lambda: fleet.has_started("first"), what="the first")
    runs = []
    for number in range(500):
        env = host(fleet, HOSTS[number % 3], 10)
        runs.append(fleet.run("-q", *MODEL, "--", *fleet.sleeper(f"w{number}", 0.02), env=env))
        fleet.until(lambda: fleet.in_queue() >= len(runs) - 8, 120, what="room for one more")
    fleet.until(lambda: fleet.in_queue() == 500, 120, what="all in the queue")
    fleet.close_gate()
    memory = sorted(rss_mb(run.pid) for run in runs)
    print(f"memory of a run that waits: median {memory[250]:.1f} MB, most {memory[-1]:.1f} MB")
    print(f"memory of the nodes: {[round(rss_mb(pid), 1) for name in HOSTS for pid in nodes(fleet, name)]} MB")
    print(f"connections to the server: {connections(fleet)}")
    assert memory[-1] < 25
    assert connections(fleet) <= 3 * len(HOSTS)
    fleet.slots = 1
    began = time.monotonic()
    first.signal(signal.SIGTERM)
    assert [run.wait(600) for run in runs] == [0] * 500
    took_s = time.monotonic() - began
    lives = sorted(fleet.lives(), key=lambda life: life.started)
    gaps = sorted(after.started - (before.ended or before.started) for before, after in pairwise(lives[1:]))
    print(f"all through one slot in {took_s:.1f} s")
    told = f"median {gaps[len(gaps) // 2]} ms, 95 of 100 {gaps[len(gaps) * 95 // 100]} ms, worst {gaps[-1]} ms"
    print(f"from one agent's end to the next one's start: {told}")
    granted = {event.id: at for at, event in fleet.events_of(ev.Granted) if not event.claimed}
    claims = sorted(at - granted[event.id] for at, event in fleet.events_of(ev.Claimed) if not event.child)
    print(f"from a grant to its claim: median {claims[len(claims) // 2]} ms, worst {claims[-1]} ms")
    assert not fleet.notes("over")
