"""Many waiters: each slot is handed over once and soon, and no other waiter is woken."""

from __future__ import annotations

import os
import re
import sys
import time

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Spec
from fleetgate.gate.liveness import process_identity
from fleetgate.gate.request_ids import new_id
from tests.processes.fleet import PYTHON, Fleet, Run, cpu_s, rss_mb
from tests.timed import within

pytestmark = pytest.mark.processes

CROWD = int(os.environ.get("FLEETGATE_TEST_CROWD", "40"))
SLOTS = 2

# Waits in the queue for a model call's slot, as a script of Fleetgate's own would, and says when it got it.
CALLER = """
import sys
from fleetgate.cli.run.acquire_slot import acquire_slot, read_request
from fleetgate.cli.open_gate import load_config, open_gate
from fleetgate.cli.run.run_options import RunOptions
from fleetgate.config.environment import Environment
from fleetgate.core import commands as cmd
from fleetgate.core.entities import Lease
from fleetgate.log.clock import boot_ms

loaded = load_config()
gate = open_gate(loaded)
request = read_request(RunOptions(["caller"], model="umans/coder", quiet=True), Environment.read(), loaded, "requests")
asked = acquire_slot(gate, request)
assert isinstance(asked.lease, Lease), asked.lease
print(boot_ms(), flush=True)
if sys.argv[1] == "hold":
    sys.stdin.read()
gate.decide([cmd.Release(asked.lease.id)])
"""


# --- cooldown, between processes


def caller(fleet: Fleet, what: str = "") -> Run:
    return fleet.start([sys.executable, "-c", CALLER, what])


@pytest.mark.parametrize("cooldown_ms", [700, 2600])
def test_k1_a_waiter_enters_when_the_cooldown_ends_and_the_releasing_process_is_gone(fleet: Fleet, cooldown_ms: int):
    """The head of the queue keeps the time itself, whether the end was near when it began, or far."""
    fleet.configure(f'[requests]\numans = {{ cap = 1, cooldown = "{cooldown_ms}ms" }}\n')
    slot = fleet.occupy("umans/coder", kind="requests")
    waiters = [caller(fleet) for _ in range(2)]
    fleet.until(lambda: fleet.in_queue() == 2)
    fleet.free(slot)
    fleet.close_gate()
    first = fleet.until(lambda: [run for run in waiters if run.out])[0]
    fleet.until(lambda: first.code is not None)
    released = [at for at, _ in fleet.events_of(ev.Released)]
    granted = [(at, event) for at, event in fleet.events_of(ev.Granted)]
    ends = released[0] + cooldown_ms
    late_ms = granted[1][0] - ends
    assert late_ms >= 0, f"granted {-late_ms} ms before the end of the cooldown\n{fleet.dump()}"
    entered = int(first.out) + fleet.log_offset_ms()
    assert entered >= ends, f"it knew {ends - entered} ms before the end of the cooldown"
    for run in waiters:
        assert run.wait() == 0, run
    granted = fleet.events_of(ev.Granted)
    released = [at for at, _ in fleet.events_of(ev.Released)]
    gaps = [at - before for (at, _), before in zip(granted[1:], released, strict=False)]
    assert min(gaps) >= cooldown_ms, gaps
    within(late_ms, 700, "ms from the end of the cooldown to the grant")
    within(entered - ends, 250, "ms from the end of the cooldown until it knew")
    within(max(gaps), cooldown_ms + 300, f"ms from a release to the next grant: {gaps}")


def test_k1_one_that_has_just_become_the_head_of_the_queue_keeps_the_time_too(fleet: Fleet):
    """It was far behind when it last looked for its position."""
    fleet.configure('[requests]\numans = { cap = 1, cooldown = "2600ms" }\n')
    slot = fleet.occupy("umans/coder", kind="requests")
    spec = Spec(models=("umans/coder",), kind="requests")
    ahead = [new_id() for _ in range(20)]
    fleet.gate.decide([cmd.Acquire(ident, spec, fleet.gate.me) for ident in ahead])
    last = caller(fleet)
    fleet.until(lambda: fleet.in_queue() == 21)
    fleet.until(lambda: list(fleet.home.glob("looked.*")))
    fleet.gate.decide([*(cmd.Cancel(ident) for ident in ahead), cmd.Release(slot)])
    assert last.wait() == 0
    (released, _), (granted, _) = fleet.events_of(ev.Released)[0], fleet.events_of(ev.Granted)[1]
    assert granted - released >= 2600
    within(granted - released, 2750, "ms from the release to the grant")


# --- a crowd


def hand_overs(fleet: Fleet) -> list[int]:
    """How long each slot that was waited for stood free, in ms."""
    freed: list[int] = []
    gaps = []
    waiting = 0
    for at, event in fleet.events():
        if isinstance(event, ev.Queued):
            waiting += 1
        elif isinstance(event, ev.Released | ev.Reclaimed):
            freed.append(at)
        elif isinstance(event, ev.Granted) and event.ticket is None:
            waiting -= 1
            gaps.append(at - freed.pop(0))
        elif isinstance(event, ev.Granted) and freed:
            freed.pop(0)
    return gaps


@pytest.mark.timeout(120)
def test_many_waiters_are_served_one_by_one_without_a_stampede(fleet: Fleet):
    fleet.configure(f"[agents]\nhost = {SLOTS}\n")
    fleet.slots = SLOTS
    slots = [fleet.occupy() for _ in range(SLOTS)]
    # Ten at a time, so that their starts do not count as waiting.
    runs: list[Run] = []
    for number in range(CROWD):
        runs.append(fleet.run("--quiet", "--", *fleet.sleeper(f"s{number}", 0.1)))
        if number % 10 == 9:
            fleet.until(lambda: fleet.in_queue() == len(runs), 60)
    rest = [cpu_s(run.pid) for run in runs]
    began = time.monotonic()
    fleet.until(lambda: time.monotonic() - began > 3)  # the thing measured
    idle_s = sum(cpu_s(run.pid) for run in runs) - sum(rest)
    used = {run.pid: cpu_s(run.pid) for run in runs}
    fleet.free(*slots)
    last: dict[int, float] = {}
    deadline = time.monotonic() + 100
    while any(run.code is None for run in runs):
        assert time.monotonic() < deadline, fleet.dump()
        for run in runs:
            try:
                last[run.pid] = cpu_s(run.pid)
            except (OSError, IndexError):
                continue
        time.sleep(0.1)
    assert [run.code for run in runs] == [0] * len(runs)
    assert not fleet.notes("over")
    assert fleet.most_at_once() <= SLOTS
    gaps = hand_overs(fleet)
    assert len(gaps) == len(runs)
    # And from the commit of the grant to the agent's own first line.
    offset = fleet.log_offset_ms()
    started = {life.pid: life.started + offset for life in fleet.lives()}
    granted = {event.id: at for at, event in fleet.events_of(ev.Granted)}
    claims = [event for _, event in fleet.events_of(ev.Claimed) if event.child]
    slow = [started[process_identity.pid_of(event.child) or 0] - granted[event.id] for event in claims]
    each_s = sum(last[pid] - used[pid] for pid in last if pid in used) / len(runs)
    print(
        f"handed over in {sorted(gaps)[len(gaps) // 2]} ms, started in {sorted(slow)[len(slow) // 2]} ms; {each_s=:.3f}"
    )
    within(idle_s, 0.05 * 3 * 2 * len(runs) / 10 + 0.5, f"s of processor time of {len(runs)} that only waited for 3 s")
    within(sorted(gaps)[len(gaps) // 2], 1000, f"ms that a slot stood free: {gaps}")
    within(sorted(slow)[len(slow) // 2], 1000, f"ms from the grant to the agent: {slow}")
    within(each_s, 0.3, "s of processor time that a waiter used until its turn")


def test_a_waiting_run_is_small_and_idle_with_a_thousand_in_the_queue(fleet: Fleet):
    fleet.configure("[agents]\nhost = 1\n")
    fleet.occupy()
    sleeper = fleet.start([*PYTHON, "-c", "import time; time.sleep(300)"])
    holder = process_identity.identify(sleeper.pid)
    assert holder is not None
    spec = Spec(host=fleet.gate.host)
    fleet.gate.decide([cmd.Acquire(new_id(), spec, holder, command=f"agent {number}") for number in range(1000)])
    assert fleet.in_queue() == 1000
    run = fleet.waiting("--", "true")
    fleet.until(lambda: re.search(r"position 1001\b", run.err))
    before = cpu_s(run.pid)
    began = time.monotonic()
    fleet.until(lambda: time.monotonic() - began > 2)  # the thing measured
    assert rss_mb(run.pid) < 40, f"{rss_mb(run.pid):.1f} MB"
    used_s = cpu_s(run.pid) - before
    assert run.code is None
    # All of them die with their process, and the one that is left goes in.
    sleeper.process.kill()
    sleeper.wait()
    fleet.free(*fleet.state.leases)
    assert run.wait() == 0, run
    fleet.until(fleet.is_empty)
    within(used_s, 0.4, "s of processor time in two: it does not rest")
