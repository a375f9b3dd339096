"""Sessions beside the log (rule R9), and what is written with a decision."""

from __future__ import annotations

from time import time_ns

import msgspec
import pytest

from fleetgate.core import commands as cmd
from fleetgate.core.entities import Spec
from fleetgate.gate import agent_sessions
from fleetgate.gate.agent_sessions import Place, Remembered
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.log.memory import MemoryLog
from fleetgate.log.protocol import SideWrite, StoreError

OPUS = "anthropic/claude-opus-4-6"


@pytest.fixture
def gate() -> DirectGate:
    return DirectGate(MemoryLog())


def test_r9_a_session_is_found_where_it_was_remembered_and_nowhere_else(gate: DirectGate) -> None:
    where = agent_sessions.place("h1", "claude", OPUS, "a, b")
    assert where == Place("h1", "claude", "anthropic", "default", "a, b")
    gate.decide([], side=[agent_sessions.remember(where, "ses_1")])
    assert agent_sessions.find(gate.log, where) == "ses_1"
    others = [
        where._replace(host="h2"),
        where._replace(agent="codex"),
        where._replace(provider="openai"),
        where._replace(account="work"),
        where._replace(key="a"),
        agent_sessions.place("h1", "claude", "", "a, b"),
    ]
    assert [agent_sessions.find(gate.log, other) for other in others] == [""] * 6
    gate.decide([], side=[agent_sessions.forget(where)])
    assert agent_sessions.find(gate.log, where) == ""


@pytest.mark.parametrize("value", [b"", b"no", b"{}", b'{"session":"-x","at":1}', b'{"session":"a\\nb","at":1}'])
def test_r9_a_row_that_is_no_session_is_none(gate: DirectGate, value: bytes) -> None:
    where = agent_sessions.place("h1", "claude", OPUS, "k")
    good = agent_sessions.place("h1", "claude", OPUS, "good")
    rows = [SideWrite(agent_sessions.TABLE, where.row, value), SideWrite(agent_sessions.TABLE, "[1]", value)]
    gate.decide([], side=[*rows, agent_sessions.remember(good, "ses_1")])
    assert agent_sessions.find(gate.log, where) == ""
    assert [place for place, _ in agent_sessions.every(gate.log)] == [good]


def test_r9_sessions_that_nobody_has_used_for_long_are_forgotten(gate: DirectGate) -> None:
    old, new = (agent_sessions.place("h1", "claude", OPUS, key) for key in ("old", "new"))
    then = time_ns() // 1_000_000 - agent_sessions.KEEP_MS - 1000
    aged = SideWrite(agent_sessions.TABLE, old.row, msgspec.json.encode(Remembered("ses_1", then)))
    gate.decide([], side=[aged, agent_sessions.remember(new, "ses_2")])
    assert [place.key for place, _ in agent_sessions.every(gate.log)] == ["new", "old"], "the last used first"
    gate.decide([], side=agent_sessions.outdated(gate.log))
    assert [place.key for place, _ in agent_sessions.every(gate.log)] == ["new"]


def test_what_is_written_beside_the_log_is_written_with_the_decision_or_not_at_all(
    gate: DirectGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = agent_sessions.place("h1", "claude", OPUS, "k")
    gate.decide([cmd.Acquire("a", Spec(models=(OPUS,), host="h1"), gate.me)])

    def fails(*_: object) -> None:
        raise StoreError("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(gate.log, "append", fails)
        with pytest.raises(StoreError):
            gate.decide([cmd.Release("a")], side=[agent_sessions.remember(where, "ses_1")])
    assert agent_sessions.find(gate.log, where) == ""
    assert "a" in gate.state.leases
    gate.decide([cmd.Release("a")], side=[agent_sessions.remember(where, "ses_1")])
    assert agent_sessions.find(gate.log, where) == "ses_1"
    assert "a" not in gate.state.leases
