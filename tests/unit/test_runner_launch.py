"""What an agent is started with, the same for `fleetgate run` and for jobs."""

from __future__ import annotations

import pytest

from fleetgate.config.environment import Environment
from fleetgate.config.settings import Settings
from fleetgate.core.entities import Lease, Spec, Ticket
from fleetgate.runner.launch import environment_for, in_sandbox

LEASE = Lease(Ticket("t1", Spec(), "me", 0, 1, 0, 0, 0), "anthropic/claude-opus-4-6", 0, 1)
WRAPPED = Settings(wrap=("bwrap", "--setenv", "M", "{name}"))


def test_the_sandbox_of_the_config_comes_before_the_command_and_knows_the_model() -> None:
    argv = in_sandbox(["claude", "-p"], LEASE, WRAPPED, Environment())
    assert argv == ["bwrap", "--setenv", "M", "claude-opus-4-6", "claude", "-p"]
    assert in_sandbox(["claude"], LEASE, Settings(), Environment()) == ["claude"]


@pytest.mark.parametrize("value", ["1", "true"])
def test_whatever_says_yes_skips_the_sandbox(value: str) -> None:
    environment = Environment.read({"FLEETGATE_SANDBOX_DISABLED": value})
    assert in_sandbox(["claude"], LEASE, WRAPPED, environment) == ["claude"]


def test_what_the_agent_should_know_of_its_lease_wins_over_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERE", "1")
    env = environment_for(LEASE, {"MORE": "2", "FLEETGATE_LEASE": "another"})
    assert (env["HERE"], env["MORE"]) == ("1", "2")
    assert (env["FLEETGATE_LEASE"], env["FLEETGATE_MODEL"]) == ("t1", "anthropic/claude-opus-4-6")
