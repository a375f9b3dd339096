"""A storm of kill -9 over every way into the gate at once: `run`, `acquire`, the library, HTTP leases and jobs.

All of them compete for the same few slots. Each holder takes one of as many file locks as there are slots, and the
kernel drops such a lock at the instant its process dies: a holder that finds no lock free is the proof that the cap was
exceeded. `FLEETGATE_SOAK` makes the storm ten minutes long, `FLEETGATE_TEST_SEED` repeats one.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Rule
from fleetgate.jobs import job_store, state_machine
from tests.postgres_server import NoServer, Server
from tests.postgres_stores import migrate
from tests.processes.fleet import FLEETGATE, Fleet, Run, is_alive, kill_if_there
from tests.processes.job_fleet import Jobs

pytestmark = pytest.mark.processes

SOAK = int(os.environ.get("FLEETGATE_SOAK", "0"))
STORM_S = float(os.environ.get("FLEETGATE_STORM_S", "600" if SOAK else "6"))
SEED = int(os.environ.get("FLEETGATE_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 1_000_000)
SLOTS = 4
MODEL = "umans/coder"
KINDS = ("run", "acquire", "library", "http", "job")

# What the library program and the HTTP client share: a lock and a note for as long as they hold a slot.
HOLD = """
import fcntl, os, random, sys, time
record, slots, name = sys.argv[1:4]
out = os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

def note(what):
    ms = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    os.write(out, f"{what} {name} {os.getpid()} {ms}\\n".encode())

def hold():
    lock = -1
    for number in range(int(slots)):
        lock = os.open(f"{record}.slot{number}", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            os.close(lock)
            lock = -1
    else:
        note("over")
    note("start")
    time.sleep(random.uniform(0.01, 0.3))
    note("end")
    if lock >= 0:
        os.close(lock)
"""

LIBRARY = f"""{HOLD}
import fleetgate.sync
from fleetgate import FleetgateError

while True:
    try:
        with fleetgate.sync.open_gate() as gate:
            while True:
                with gate.lease("{MODEL}", kind="agents"):
                    hold()
    except FleetgateError:
        time.sleep(0.1)  # the store is away
"""

CLIENT = f"""{HOLD}
import http.client, json
home = os.environ["FLEETGATE_HOME"]

def ask(path, body):
    while True:
        try:
            with open(home + "/serve.json") as file:
                port = json.load(file)["port"]
            with open(home + "/token") as file:
                token = file.read().strip()
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            headers = {{"Authorization": "Bearer " + token, "Content-Type": "application/json"}}
            connection.request("POST", path, json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        except (OSError, ValueError, http.client.HTTPException):
            time.sleep(0.1)  # the service was killed: the same request again, by the same id

while True:
    ident = os.urandom(8).hex()
    body = {{"models": ["{MODEL}"], "kind": "agents", "wait_s": 5, "id": ident, "renew_within_s": 10}}
    status, answer = ask("/v1/leases", body)
    while status == 202:
        status, answer = ask("/v1/leases", body)
    if status == 201:
        hold()
        ask("/v1/leases/" + ident + "/release", {{}})
"""


@pytest.fixture
def postgres() -> Iterator[str]:
    try:
        server = Server(fsync=True)
    except NoServer as no:
        pytest.skip(str(no))
    yield server.url(server.new_database(migrate))
    server.remove()


class Storm:
    """The processes of all five kinds, and the kills among them."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        print(f"FLEETGATE_TEST_SEED={seed}")
        self.fleet, self.jobs = fleet, Jobs(fleet)
        self.random = random.Random(seed)
        fleet.slots = SLOTS
        self.alive: dict[str, list[Run]] = {}
        self.submitted: list[str] = []
        self.stopped: dict[int, float] = {}  # when each stopped process goes on
        self.kills: Counter[str] = Counter()

    def blow(self) -> None:
        """For as long as it should, and until every kind has had a slot."""
        end = time.monotonic() + STORM_S
        struck = time.monotonic()
        while (now := time.monotonic()) < end or (now < end + 120 and not all(map(self.served().get, KINDS))):
            self._keep_up()
            self._continue_stopped()
            if time.monotonic() > struck + self.random.uniform(0.05, 0.6):
                struck = time.monotonic()
                self._strike()
            time.sleep(0.02)

    def calm_down(self) -> None:
        """No more kills: what waits is served, what was submitted ends, and every slot comes back."""
        self._continue_stopped(all_of_them=True)
        for run in (*self.alive.get("library", ()), *self.alive.get("http", ())):
            kill_if_there(run.pid)
        self._keep("serve", 1, lambda: self._start("serve", "--port", "0"))
        self._keep("worker", 2, lambda: self._start("worker", "-n", "2"))
        for run in (*self.alive.get("run", ()), *self.alive.get("acquire", ())):
            run.wait(120)
        self.fleet.until(self._all_jobs_ended, 120, "every job ended")
        self.fleet.until(self.fleet.is_empty, 120, "every slot free and the queue empty")

    def stop(self) -> None:
        for name in ("worker", "serve"):
            for run in self.alive.get(name, ()):
                run.signal(signal.SIGTERM)
                assert run.wait() == 0, run

    def served(self) -> Counter[str]:
        """How many holders of each kind began."""
        return Counter(name.partition("-")[0] for name, _, _ in self.fleet.notes("start"))

    def _keep_up(self) -> None:
        self._keep("serve", 1, lambda: self._start("serve", "--port", "0"))
        self._keep("worker", 2, lambda: self._start("worker", "-n", "2"))
        self._keep("library", 2, lambda: self._program(LIBRARY, "library"))
        self._keep("http", 2, lambda: self._program(CLIENT, "http"))
        self._keep("run", 4, lambda: self.fleet.run("-q", "-m", MODEL, "--", *self._sleeper("run")))
        self._keep("acquire", 2, self._acquire)
        if self._open_jobs() < 4:
            self.submitted += self.jobs.many([self._sleeper("job")], models=(MODEL,), retries=20)

    def _keep(self, kind: str, count: int, start: Callable[[], Run]) -> None:
        runs = self.alive[kind] = [run for run in self.alive.get(kind, ()) if run.code is None]
        while len(runs) < count:
            runs.append(start())

    def _start(self, *arguments: str) -> Run:
        return self.fleet.start([*FLEETGATE, *arguments])

    def _program(self, text: str, name: str) -> Run:
        return self.fleet.start([sys.executable, "-c", text, str(self.fleet.record), str(SLOTS), name])

    def _acquire(self) -> Run:
        """A script that holds a slot for as long as it lives, and releases nothing itself."""
        script = f'"$0" acquire -q -m {MODEL} --pid $$ >&2 || exit 0; exec "$@"'
        return self.fleet.start(["sh", "-c", script, *FLEETGATE, *self._sleeper("acquire")])

    def _sleeper(self, kind: str) -> list[str]:
        return self.fleet.sleeper(f"{kind}-{self.random.randrange(1 << 30)}", self.random.uniform(0.05, 0.5))

    def _strike(self) -> None:
        """kill -9 of any process at all, or a stop of up to a second."""
        pids = [pid for pid in self.fleet.processes() if pid not in self.stopped]
        if not pids:
            return
        pid = self.random.choice(pids)
        if self.random.random() < 0.3:
            kill_if_there(pid, signal.SIGSTOP)
            self.stopped[pid] = time.monotonic() + self.random.uniform(0.1, 1.0)
            self.kills["stops"] += 1
        else:
            kill_if_there(pid)
            self.kills["kills"] += 1

    def _continue_stopped(self, *, all_of_them: bool = False) -> None:
        for pid, until in list(self.stopped.items()):
            if all_of_them or time.monotonic() > until:
                del self.stopped[pid]
                if is_alive(pid):
                    kill_if_there(pid, signal.SIGCONT)

    def _open_jobs(self) -> int:
        rows = job_store.every(self.fleet.gate.log)
        return sum(rows[ident].state not in state_machine.FINAL for ident in self.submitted if ident in rows)

    def _all_jobs_ended(self) -> bool:
        return self._open_jobs() == 0


def check(storm: Storm) -> None:
    fleet = storm.fleet
    assert not fleet.notes("over"), f"the cap was exceeded: {fleet.notes('over')}\n{fleet.dump()}"
    served = storm.served()
    print(f"{dict(storm.kills)}; holders: {dict(served)}")
    assert all(served[kind] for kind in KINDS), f"one kind got no slot at all: {served}"
    ends = Counter(event.id for _, event in fleet.events_of(ev.JobEnded))
    assert ends == Counter(storm.submitted), "every job ends once"
    fleet.check_log()


@pytest.mark.timeout(STORM_S + 400)
def test_a_storm_of_kills_over_every_way_in_exceeds_no_cap_and_leaks_no_slot(fleet: Fleet) -> None:
    fleet.configure(f"[agents]\numans = {SLOTS}\nhost = 1000\n")
    storm = Storm(fleet, SEED)
    storm.blow()
    storm.calm_down()
    check(storm)
    storm.stop()


@pytest.mark.skipif(not SOAK, reason="PostgreSQL under kills has tests of its own; this long one is for `make soak`")
@pytest.mark.timeout(STORM_S + 400)
def test_the_same_storm_on_postgresql(postgres: str) -> None:
    with Fleet(store=postgres) as fleet:
        fleet.gate.decide(
            [cmd.SetRule(Rule("agents", "umans", cap=SLOTS)), cmd.SetRule(Rule("agents", "host", cap=1000))]
        )
        fleet.close_gate()
        storm = Storm(fleet, SEED)
        storm.blow()
        storm.calm_down()
        check(storm)
        storm.stop()
