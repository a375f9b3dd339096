"""What a run reports about its agent's plan while the gate is busy (rule W1)."""

from __future__ import annotations

import json
from typing import cast

import pytest

from fleetgate.core import commands as cmd
from fleetgate.gate.slots.slot_gate import SlotGate
from fleetgate.runner.run_usage import RunUsage, report_plan
from fleetgate.signals.agents import agent_for
from fleetgate.signals.classify_process import Reader

NOW = 1_776_859_200_000
ARGV = ["claude", "-p", "x", "--output-format", "stream-json", "--verbose"]


class BusyGate:
    """Takes a command only once it is free."""

    def __init__(self) -> None:
        self.is_free = False
        self.taken: list[cmd.Command] = []

    def try_decide(self, commands: list[cmd.Command]) -> bool:
        self.taken += commands if self.is_free else []
        return self.is_free


def test_w1_a_reading_that_waited_for_the_gate_is_as_old_as_it_is_and_is_reported_once(monkeypatch: pytest.MonkeyPatch):
    clock = [1_000]
    monkeypatch.setattr("fleetgate.runner.run_usage.boot_ms", lambda: clock[0])
    agent, gate = agent_for(ARGV), BusyGate()
    records = RunUsage(
        agent, ARGV, environ={}, folder="/", began_wall_ms=NOW, pid=1, model="anthropic/claude-opus-4-6", prices=()
    )
    reader = Reader(agent, ARGV, lambda: NOW)
    info = {"status": "allowed", "rateLimitType": "five_hour", "utilization": 0.5, "resetsAt": NOW // 1000 + 7_200}
    reader.feed(1, json.dumps({"type": "rate_limit_event", "rate_limit_info": info}).encode() + b"\n")
    for waits_ms in (0, 3_600_000):  # the laptop sleeps for an hour
        clock[0] += waits_ms
        report_plan(cast(SlotGate, gate), "anthropic/claude-opus-4-6", reader, records)
    gate.is_free = True
    for _ in range(2):
        report_plan(cast(SlotGate, gate), "anthropic/claude-opus-4-6", reader, records)
    (command,) = gate.taken
    assert isinstance(command, cmd.ObservePlan)
    (reading,) = command.readings
    assert (reading.window, reading.used, reading.resets_in_ms, reading.age_ms) == ("5h", 5_000, 7_200_000, 3_600_000)
