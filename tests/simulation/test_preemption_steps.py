"""A job gives way to a person, and a process dies at each step of it in turn (rules W5, J2): the job runs once more.

The transactions are those of the real thing: a tick says that the job gives way, its worker notes that in its row,
stops the agent, and releases the slot and queues the job in one step. If one of them dies, the others finish its work.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Rule, Spec
from fleetgate.gate.replica import replica
from fleetgate.gate.replica.side_rows import JOB_ENDS
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.jobs import job_record, job_store, retry_policy, state_machine
from fleetgate.jobs.job_record import Job, JobSpec
from fleetgate.jobs.unattended_ends import see_to_ends
from fleetgate.log.protocol import SideWrite, StoreError
from tests.simulation.faults import ERROR, KILL, Killed
from tests.simulation.stores import Store
from tests.simulation.test_crash_steps import STORES, Cast, agree, make_store, whole_log
from tests.simulation.world import Process

AFTER_MS = 1_000
JOB, PERSON = "job", "person"
FILE = cmd.LoadFile("/etc/fleetgate.toml", "d", 1, (Rule("agents", "host", cap=1),), preempt_after_ms=AFTER_MS)


class StandIn:
    """As much of a gate as the ends of jobs need."""

    def __init__(self, process: Process) -> None:
        self.log = process.log
        self.decide = process.replica.decide
        self.now = process.log.now


class Preemption:
    """A job runs on the only slot, and a person waits for it. Its steps are one transaction each."""

    def __init__(self, store: Store, cast: Cast) -> None:
        self.store = store
        self.worker, self.person, self.other = (cast.enter(name) for name in ("worker", "person", "other"))
        self.dead: list[str] = []
        self.job = Job(JobSpec(("agent",), "/", "h", on_lost="fail", work_class="batch"), "running", 1, 1, attempt=1)
        self.start(self.worker, [FILE, job_record.acquire_command(JOB, self.job)])
        self.person.replica.decide([cmd.Acquire(PERSON, Spec(host="h", work_class="interactive"), "person")])
        store.clock.advance(AFTER_MS + 1)

    def start(self, process: Process, before: list[cmd.Command]) -> None:
        """A worker offers to run the job, and starts its agent."""
        process.replica.decide([*before, cmd.Offer(JOB, process.name, "h")])
        row = job_record.write(JOB, self.job)
        process.replica.decide([cmd.Claim(JOB, f"{process.name} child")], side=lambda _: [row])

    # The three transactions.

    def told(self) -> None:
        self.other.replica.decide([cmd.Tick()])

    def noted(self) -> None:
        row = job_record.write(JOB, msgspec.structs.replace(self.job, gives_way=True))
        self.worker.replica.decide([cmd.Claim(JOB, "worker child")], durable=True, side=lambda _: [row])

    def released(self) -> None:
        job = msgspec.structs.replace(self.job)
        again = state_machine.follow(JOB, job, retry_policy.gave_way(), self.store.clock())
        rows = [SideWrite(JOB_ENDS, JOB, None), job_record.write(JOB, job)]
        self.worker.replica.decide([cmd.Release(JOB), *again], durable=True, side=lambda _: rows)

    # What others do then.

    def bury(self, process: Process) -> None:
        process.log.bury()
        self.dead += [process.name, f"{process.name} child"]

    def see_to(self) -> None:
        """A process that lives finds out who is dead, and handles what was left of jobs."""
        by = self.person if self.other.name in self.dead else self.other
        by.replica.decide([cmd.Lost(tuple(self.dead)), cmd.Tick()])
        see_to_ends(cast(DirectGate, StandIn(by)))

    def check(self) -> None:
        """The person has the slot, then the job runs once more: its row and the log agree, and no retry is spent."""
        by = self.person if self.other.name in self.dead else self.other
        self.see_to()
        state = agree(self.store, by)
        assert state.leases.keys() == {PERSON}, "the person has the slot"
        assert state.tickets.keys() == {JOB}, "the job waits, once"
        row = job_store.find(by.log, JOB)
        assert row is not None
        assert (row.state, row.failures, row.losses) == ("queued", 0, 0)
        by.replica.decide([cmd.Release(PERSON)])
        self.start(by, [])
        state = agree(self.store, by)
        assert state.leases.keys() == {JOB}
        assert not state.leases[JOB].gives_way_to, "nothing asks it to give way again"
        events = [event for commit in whole_log(self.store) for event in commit.events]
        assert [event.id for event in events if isinstance(event, ev.Granted)] == [JOB, PERSON, JOB]


STEPS: dict[str, Callable[[Preemption], None]] = {
    "told": Preemption.told,
    "noted": Preemption.noted,
    "released": Preemption.released,
}


@pytest.fixture(autouse=True)
def _the_same_steps_on_a_slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "monotonic", lambda: 0.0)


def _play(store: Store, victim: str, index: int, fault: str) -> list[str]:
    """Everything up to the step of the victim, at which it ends; the steps that it took."""
    actors = Cast(store)
    try:
        scene = Preemption(store, actors)
        for name, step in STEPS.items():
            process = scene.other if name == "told" else scene.worker
            if name != victim:
                step(scene)
                continue
            process.log.arm(index, fault)
            try:
                step(scene)
            except Killed:
                process.log.arm()
                scene.bury(process)
            except (StoreError, KeyboardInterrupt):  # it is alive, and tries once more
                process.log.arm()
                step(scene) if name != "released" or JOB in process.replica.catch_up().leases else None
            steps = list(process.log.steps)
            process.log.arm()
            if scene.worker.name in scene.dead:
                break
            if name == "told" and process.name in scene.dead:
                scene.see_to()
        scene.check()
        return steps
    finally:
        actors.exit()


@pytest.mark.parametrize("fault", [KILL, ERROR])
@pytest.mark.parametrize("victim", list(STEPS))
@pytest.mark.parametrize("kind", STORES)
def test_w5_at_whichever_step_of_a_preemption_a_process_ends_the_job_runs_once_more(
    kind: str, victim: str, fault: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    def store(name: str) -> Any:
        folder = tmp_path / name
        folder.mkdir()
        return make_store(kind, folder, request)

    learned = _play(store("learn"), victim, 10_000, fault)
    for index, step in enumerate(learned):
        try:
            _play(store(str(index)), victim, index, fault)
        except BaseException as error:
            error.add_note(f"{fault} at step {index}, {step!r}, of {victim!r}: {learned}")
            raise
