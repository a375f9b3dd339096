"""kill -9 of anything at any point (rules L2, A1): no cap is exceeded, no slot leaks, no other process notices.

`FLEETGATE_TEST_SEED` repeats a run, `FLEETGATE_SOAK` (a number of rounds) makes it a long one.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import sys
import time
from collections.abc import Callable

import pytest

from fleetgate.core import events as ev
from fleetgate.gate.liveness import process_identity
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.gate.slots.waiter import Waiter
from fleetgate.log.clock import boot_ms
from fleetgate.log.sqlite.log import SqliteLog
from fleetgate.runner.agent_run import AgentRun
from fleetgate.runner.child import Child
from fleetgate.runner.supervisor import supervise
from tests.processes.fleet import Fleet, Run, is_alive
from tests.timed import within

pytestmark = pytest.mark.processes

SOAK = int(os.environ.get("FLEETGATE_SOAK", "0"))
SEED = int(os.environ.get("FLEETGATE_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 1_000_000)
SLOTS = 3


def seeds(few: int) -> list[int]:
    return [SEED + number for number in range(SOAK or few)]


# --- forty runs, three slots, and random kills


class Chaos:
    """Forty runs of sleepers, and the deaths among them."""

    def __init__(self, fleet: Fleet, seed: int, runs: int = 40) -> None:
        print(f"FLEETGATE_TEST_SEED={seed}")
        self.fleet = fleet
        self.random = random.Random(seed)
        fleet.configure(f"[agents]\nhost = {SLOTS}\n")
        fleet.slots = SLOTS
        self.runs = {}
        for number in range(runs):
            sleeper = fleet.sleeper(f"s{number}", self.random.uniform(0.4, 1.0))
            self.runs[f"s{number}"] = fleet.run("--quiet", "--", *sleeper)
        self.killed_in_the_queue: set[str] = set()
        self.killed_running: dict[str, int] = {}  # wrapper killed; its agent's pid
        self.killed_agents: set[str] = set()
        self.stopped: Run | None = None
        self.was_passed_over = self.was_alone = False

    def name_of(self, pid: int | None) -> str:
        return next((name for name, run in self.runs.items() if run.pid == pid), "")

    def in_queue(self) -> list[str]:
        tickets = self.fleet.state.tickets.values()
        found = [self.name_of(process_identity.pid_of(ticket.holder)) for ticket in tickets if not ticket.away]
        gone = self.killed_in_the_queue
        return [name for name in found if name and name not in gone and self.runs[name] is not self.stopped]

    def running(self) -> dict[str, int]:
        """Name and agent's pid of the runs whose wrapper and agent are both alive."""
        found = {}
        for lease in self.fleet.state.leases.values():
            name, agent = (
                self.name_of(process_identity.pid_of(lease.ticket.holder)),
                process_identity.pid_of(lease.child),
            )
            if name and agent and name not in {*self.killed_running, *self.killed_agents}:
                found[name] = agent
        return {name: pid for name, pid in found.items() if any(life.pid == pid for life in self.fleet.lives())}

    def stop_one(self) -> None:
        """Stop one that will soon be at the front, in the queue."""
        name = self.fleet.until(lambda: self.in_queue()[3:4], what="a line of four")[0]
        self.stopped = self.runs[name]
        self.stopped.signal(signal.SIGSTOP)

    def look_at_the_stopped(self) -> None:
        """Continue it when its grant has been passed on, or when no run is left to pass it on to."""
        if self.stopped is None:
            return
        tickets = self.fleet.state.tickets.values()
        self.was_passed_over = any(t.away and process_identity.pid_of(t.holder) == self.stopped.pid for t in tickets)
        self.was_alone = all(run.code is not None for run in self.runs.values() if run is not self.stopped)
        if self.was_passed_over or self.was_alone:
            self.stopped.signal(signal.SIGCONT)
            self.stopped = None

    def strike(self) -> None:
        """One random death. The last few are left alone, so that a process is there to find the dead."""
        waiting, running = self.in_queue(), self.running()
        if len(waiting) < 6:
            return
        what = self.random.choice(["in the queue", "wrapper", "agent", "both", "nothing"])
        if what == "in the queue":
            name = self.random.choice(waiting)
            self.killed_in_the_queue.add(name)
            self.runs[name].signal(signal.SIGKILL)
        elif what != "nothing" and running:
            name = self.random.choice(sorted(running))
            if what in ("wrapper", "both"):
                self.killed_running[name] = running[name]
                self.runs[name].signal(signal.SIGKILL)
            if what in ("agent", "both"):
                self.killed_agents.add(name)
                self.fleet.kill_sleeper(running[name])

    def watch_orphans(self) -> None:
        """An agent whose wrapper was killed keeps its slot for as long as it lives."""
        leases = {process_identity.pid_of(lease.child) for lease in self.fleet.state.leases.values()}
        for name, pid in self.killed_running.items():
            if pid not in leases:
                assert not is_alive(pid), f"{name} ({pid}) runs on without a slot\n{self.fleet.dump()}"

    def go(self) -> None:
        deadline = time.monotonic() + 100
        self.stop_one()
        deaths = 0
        while any(run.code is None for run in self.runs.values()):
            assert time.monotonic() < deadline, f"the line stands\n{self.fleet.dump()}"
            if deaths < 14 and self.random.random() < 0.4:
                self.strike()
                deaths += 1
            self.watch_orphans()
            self.look_at_the_stopped()
            time.sleep(0.03)


def check_survivors(chaos: Chaos) -> None:
    ended = {life.name for life in chaos.fleet.lives() if life.ended is not None}
    for name, run in chaos.runs.items():
        if name in chaos.killed_in_the_queue or name in chaos.killed_running:
            assert run.code == -signal.SIGKILL, run
        elif name in chaos.killed_agents:
            # It may have ended by itself in the instant before.
            assert run.code in (137, 0), run
        else:
            assert run.code == 0, run
            assert name in ended, run
    for name in chaos.killed_running.keys() - chaos.killed_agents:
        assert name in ended, f"the agent of {name} did not survive its wrapper"


def check_orphans(chaos: Chaos) -> None:
    """The slot of an agent without a wrapper is granted again soon after its end, without help."""
    fleet = chaos.fleet
    offset = fleet.log_offset_ms()
    lives = {life.pid: life for life in fleet.lives()}
    children = {
        event.id: process_identity.pid_of(event.child) for _, event in fleet.events_of(ev.Claimed) if event.child
    }
    reclaimed = {children.get(event.id): at for at, event in fleet.events_of(ev.Reclaimed)}
    for name, pid in chaos.killed_running.items():
        ended = lives[pid].ended
        assert ended is not None, name
        assert pid in reclaimed, f"the slot of {name} was not taken back\n{fleet.dump()}"
        late_ms = reclaimed[pid] - offset - ended
        assert late_ms >= -5, f"the slot of {name} was taken back {-late_ms} ms before its end"
        within(late_ms, 2500, f"ms from the end of {name} until its slot was taken back")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", seeds(1), ids=lambda seed: "seed")
def test_l2_forty_runs_on_three_slots_survive_kills_and_a_stopped_wrapper(fleet: Fleet, seed: int):
    chaos = Chaos(fleet, seed)
    chaos.go()
    assert fleet.most_at_once() <= SLOTS, fleet.dump()
    assert not fleet.notes("over"), fleet.notes("over")
    fleet.until(lambda: not any(is_alive(pid) for pid in chaos.killed_running.values()))
    check_survivors(chaos)
    assert chaos.was_passed_over or chaos.was_alone, "the stopped wrapper's grant was not passed on"
    ended = time.monotonic()
    fleet.until(fleet.is_empty, what="no lease and no ticket left")
    empty_s = time.monotonic() - ended
    check_orphans(chaos)
    fleet.check_log()
    assert len(chaos.killed_in_the_queue) + len(chaos.killed_running) + len(chaos.killed_agents) >= 3, "a tame seed"
    within(empty_s, 3, "s until no lease and no ticket was left")


def test_l2_a_grant_to_one_that_was_killed_in_the_queue_goes_to_the_next_at_once(fleet: Fleet):
    """Not only when another process looks: no process listens at the mailbox that is woken."""
    fleet.configure("[agents]\nhost = 1\n")
    late_ms = []
    for number in range(3):
        slot = fleet.occupy()
        killed = fleet.waiting("--", "true")
        following = fleet.waiting("--", *fleet.sleeper(f"s{number}", 0))
        killed.signal(signal.SIGKILL)
        killed.wait()
        freed = boot_ms()
        fleet.free(slot)
        assert following.wait() == 0, following
        late_ms.append(fleet.lives()[-1].started - freed)
    within(min(late_ms), 700, f"the next had to wait {late_ms} ms")


# --- kill -9 of one wrapper at every stage of its run

# `fleetgate run` that kills itself -9 when it is about to call (or has just returned from) the n-th function of
# Fleetgate that it comes to, or one of a given name.
SUICIDE = """
import os, signal, sys

where, budget = sys.argv[1], int(sys.argv[2])
name, _, when = where.partition(":")
left = budget

def profile(frame, event, arg):
    global left
    code = frame.f_code
    if "/fleetgate/" not in code.co_filename or event not in ("call", "return"):
        return
    if name and (code.co_qualname != name or event != when):
        return
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)

os.register_at_fork(after_in_child=lambda: sys.setprofile(None))  # before Fleetgate's own
from fleetgate.cli.run import acquire_slot, run_options  # noqa: not of interest
from fleetgate.cli.commands import run  # noqa
from fleetgate.cli.main import main
sys.setprofile(profile)
main(sys.argv[3:])
"""

STAGES: dict[str, tuple[Callable[..., object], str]] = {
    "before it has a ticket": (DirectGate.acquire, "call"),
    "in its first transaction": (SqliteLog.append, "call"),
    "just after a commit": (SqliteLog.append, "return"),
    "with the lock, after a commit": (SqliteLog.unlock, "call"),
    "in the queue": (Waiter.wait, "call"),
    "about to claim its grant": (Waiter._settled, "call"),
    "with its lease, before it forks": (Child.prepare, "call"),
    "with a child that waits": (Child.prepare, "return"),
    "with its child's pid committed": (Child.start, "call"),
    "with a child that runs": (Child.start, "return"),
    "when its child has ended": (supervise, "return"),
    "about to release": (AgentRun._release, "call"),
    "when it has released": (DirectGate.maintain, "call"),
}


class Victim:
    """One run that kills itself somewhere, at a gate with one slot; and all that must hold afterwards."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        fleet.configure("[agents]\nhost = 1\n")
        fleet.slots = 1
        self.number = 0

    def die(self, where: str, budget: int, *, from_queue: bool) -> bool:
        """Whether it died, and was not done before."""
        fleet = self.fleet
        self.number += 1
        name = f"v{self.number}"
        slot = fleet.occupy() if from_queue else ""
        argv = [sys.executable, "-c", SUICIDE, where, str(budget), "run", "--quiet", "--"]
        run = fleet.start([*argv, *fleet.sleeper(name, 0.1)])
        if slot:
            fleet.until(lambda: fleet.waits(run) or run.code is not None)
            fleet.free(slot)
        code = run.wait()
        assert code in (-signal.SIGKILL, 0), run
        self.check(name, code, f"{where} {budget} {'from the queue' if from_queue else ''}")
        return code != 0

    def check(self, name: str, code: int, where: str) -> None:
        fleet = self.fleet
        began = time.monotonic()
        after = fleet.done("--quiet", "--wait", "60s", "--", *fleet.sleeper(f"{name}+", 0))
        took_s = time.monotonic() - began
        assert after.code == 0, f"killed {where}: the next cannot run\n{fleet.dump()}"
        assert not fleet.notes("over"), f"killed {where}: two at once\n{fleet.dump()}"
        assert fleet.is_empty(), f"killed {where}: something leaked\n{fleet.dump()}"
        lives = {life.name: life for life in fleet.lives()}
        if name in lives:  # it ran, with or without a wrapper, to its end, and only then the next
            ended = lives[name].ended
            assert ended is not None
            assert ended <= lives[f"{name}+"].started
        elif code == 0:
            raise AssertionError(f"{where}: exit 0 and nothing was run")
        fleet.check_log()
        with sqlite3.connect(f"file:{fleet.home}/fleetgate.db?mode=ro", uri=True) as database:
            assert database.execute("PRAGMA quick_check").fetchall() == [("ok",)]
        database.close()
        within(took_s, 3, f"killed {where}: the next had to wait\n{fleet.dump()}")


@pytest.mark.parametrize("stage", STAGES)
def test_l2_a_wrapper_killed_at_any_stage_leaks_nothing(fleet: Fleet, stage: str):
    victim = Victim(fleet)
    function, when = STAGES[stage]
    where = f"{function.__qualname__}:{when}"
    only_from_queue = function in (Waiter.wait, Waiter._settled)
    assert only_from_queue or victim.die(where, 0, from_queue=False)
    assert victim.die(where, 0, from_queue=True)
    if function in (SqliteLog.append, SqliteLog.unlock):  # the claim's transactions, and that of the release
        for budget in range(1, 4):
            victim.die(where, budget, from_queue=True)


@pytest.mark.timeout(600 if SOAK else 120)
def test_l2_a_wrapper_killed_before_any_function_leaks_nothing(fleet: Fleet):
    """Not only at the stages listed above."""
    print(f"FLEETGATE_TEST_SEED={SEED}")
    victim = Victim(fleet)
    chosen = random.Random(SEED)
    most = {True: 2500, False: 1700}  # more than there are
    died = 0
    for _ in range(200 * SOAK or 16):
        from_queue = chosen.random() < 0.6
        budget = chosen.randrange(most[from_queue])
        if victim.die("", budget, from_queue=from_queue):
            died += 1
        else:
            most[from_queue] = budget
    assert died > 5


# `fleetgate run` whose child is killed while it still waits for leave, before its pid could be read.
CHILD_DIES = """
import os, signal, sys
from fleetgate.cli.commands import run
from fleetgate.cli.main import main
from fleetgate.runner.child import Child

prepare = Child.prepare

def prepare_and_kill(*args, **options):
    child = prepare(*args, **options)
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    return child

Child.prepare = prepare_and_kill
main(sys.argv[1:])
"""


def test_l2_an_agent_killed_before_it_could_start_is_an_agent_that_was_killed(fleet: Fleet):
    """With one slot: its wrapper must not wait in the queue behind its own lease."""
    fleet.configure("[agents]\nhost = 1\n")
    run = fleet.start([sys.executable, "-c", CHILD_DIES, "run", "--", *fleet.sleeper("one", 0)])
    assert run.wait() == 137, run
    assert fleet.is_empty()
    assert not fleet.lives()
