"""An agent whose call waits in the gate is not silent: its time stands still meanwhile."""

from __future__ import annotations

from typing import Any, cast

import pytest

from fleetgate.config.settings import Settings
from fleetgate.core import commands as cmd
from fleetgate.core.entities import Lease, Spec, Ticket
from fleetgate.core.errors import FleetgateError
from fleetgate.gate.providers.credentials import HeldCredential
from fleetgate.gate.slots.slot_gate import SlotGate
from fleetgate.runner import agent_run
from fleetgate.runner.agent_run import AgentRun
from fleetgate.runner.early_stop import EarlyStop

OPENCODE = ["opencode", "run", "--format", "json", "hi"]
LEASE = Lease(Ticket("t1", Spec(("x/y",)), "me", 0, 1, 0, 0, 0), "x/y", 0, 1)


class Gate:
    """As much of a gate as a watched agent needs."""

    settings = Settings()
    has_calls: bool | Exception = False

    def __init__(self) -> None:
        self.decided: list[cmd.Command] = []
        self.asked = 0

    def is_probe(self, ident: str) -> bool:
        return False

    def tick(self, lease: Lease) -> None:
        pass

    def silent_ms(self) -> int:
        return 0

    def stop_request(self, lease: Lease, *, told: bool = False) -> None:
        return None

    def has_open_calls(self, ident: str) -> bool:
        self.asked += 1
        if isinstance(self.has_calls, Exception):
            raise self.has_calls
        return self.has_calls

    def try_decide(self, commands: list[cmd.Command]) -> bool:
        self.decided += commands
        return True


class Watched:
    """A watched opencode whose clock is ours."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, proxied: bool = True, silence_s: float = 1200) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(agent_run, "monotonic", lambda: self.now_s)
        self.gate = Gate()
        self.said: list[str] = []
        self.watch = AgentRun(
            cast(SlotGate, self.gate),
            LEASE,
            OPENCODE,
            classify="",
            silence_s=silence_s,
            patience_s=120,
            read=True,
            say=self.said.append,
            credential=HeldCredential(),
            began_wall_ms=0,
            pid=0,
            environ={},
            folder="/",
            proxied=proxied,
        )
        assert self.watch.ending is not None
        self.ending: EarlyStop = self.watch.ending
        self.ending.begin(self.now_s * 1000)

    def lives(self, for_s: float) -> str:
        """Let time pass as `supervise` does; why the agent is to be ended, if it is."""
        until = self.now_s + for_s
        while self.now_s < until:
            self.now_s += 1.5
            self.watch.tick()
            if why := self.ending.verdict(self.now_s * 1000):
                return why
        return ""


def test_time_in_the_gates_own_queue_is_not_the_agents_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Watched(monkeypatch)
    agent.gate.has_calls = True
    assert agent.lives(1800) == "", "half an hour in the queue"
    short = Watched(monkeypatch, silence_s=6)
    short.gate.has_calls = True
    assert short.lives(60) == ""
    short.gate.has_calls = False
    assert short.lives(10) == "silent"
    agent.now_s, agent.gate.has_calls = 2801.0, False
    monkeypatch.setattr(agent_run, "monotonic", lambda: agent.now_s)
    assert agent.lives(160) == ""
    assert agent.lives(30) == "no_record", "its own three minutes have passed"


def test_an_agent_that_is_not_proxied_or_whose_gate_cannot_tell_is_judged_by_its_own_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    direct = Watched(monkeypatch, proxied=False)
    direct.gate.has_calls = True
    assert direct.lives(200) == "no_record"
    assert not direct.gate.asked
    unknown = Watched(monkeypatch)
    unknown.gate.has_calls = FleetgateError("the store is away")
    assert unknown.lives(200) == "no_record"


def test_the_gate_is_asked_about_calls_only_while_the_agent_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Watched(monkeypatch)
    for _ in range(20):
        agent.ending.wrote(agent.now_s * 1000)
        agent.lives(1.5)
    assert agent.gate.asked == 0


def test_refusals_in_a_row_are_told_to_the_gate_at_once_and_then_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Watched(monkeypatch)
    retry: Any = b'{"type":"session.status","status":{"type":"retry","message":"Too Many Requests"}}\n'
    for second in range(20):
        agent.now_s = 1000.0 + second
        agent.watch.feed(1, retry)
    told = [each for each in agent.gate.decided if isinstance(each, cmd.Release)]
    assert len(told) == 4, "one every five seconds"
    assert {(each.id, each.outcome, each.keeps) for each in told} == {("t1", "rate_limited", True)}
    assert len(agent.said) == 1, "a person is told once"
