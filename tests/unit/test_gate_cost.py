"""What the gate does around a decision costs the same, too, however many wait for something else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core.entities import Rule, Spec
from fleetgate.gate.request_ids import new_id
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.log.memory import MemoryLog
from tests.unit.test_core_cost import FEW, MANY, counted

OTHER = Spec(("other/m",), host="h")


def crowded(number: int, *, jobs: bool) -> DirectGate:
    gate = DirectGate(MemoryLog())
    gate.decide([cmd.SetRule(Rule("agents", selector, cap=cap)) for selector, cap in (("busy", 1), ("other", 5))])
    busy = Spec(("busy/m",), project="p")
    gate.decide([cmd.Acquire(new_id(), busy, gate.me)])
    gate.decide([cmd.Acquire(new_id(), busy, "" if jobs else gate.me, job=jobs) for _ in range(number)])
    return gate


def lease(gate: DirectGate) -> None:
    gate.decide([cmd.Acquire("new", OTHER, gate.me)])
    gate.decide([cmd.Release("new")])


def refuse(gate: DirectGate) -> None:
    gate.decide([cmd.Acquire("never", Spec(("busy/m",), host="h"), gate.me, wait=False)])


def back_off(gate: DirectGate) -> None:
    gate.decide([cmd.BackOff("third/m", "rate_limited", 60_000)])
    gate.decide([cmd.EndBackoff("third/m")])


def look_for_the_dead(gate: DirectGate) -> None:
    assert gate.beats.lost(gate.state) is None


@pytest.mark.parametrize("work", [lease, refuse, back_off, look_for_the_dead])
@pytest.mark.parametrize("jobs", [True, False], ids=["jobs", "tickets"])
def test_the_gate_does_as_much_for_a_decision_however_many_wait(work: Callable[[DirectGate], None], jobs: bool):
    costs = []
    for number in (FEW, MANY):
        gate = crowded(number, jobs=jobs)
        assert len(gate.state.tickets) == number
        work(gate)
        costs.append(counted(lambda gate=gate: work(gate)))  # type: ignore[misc]
        gate.close()
    few, many = costs
    assert many <= few + 20
