"""The usage gate (rules G1-G5) with real processes that wait in the queue, and a provider that is asked over HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleetgate.core import events as ev
from fleetgate.gate.liveness import process_identity
from fleetgate.testing import FakeProvider, Fault
from tests.processes.fleet import Fleet, Run, kill_if_there

pytestmark = pytest.mark.processes

MODEL = "umans/coder"
KEY = "sk-usage-gate-secret-0123456789"


@pytest.fixture
def provider() -> Iterator[FakeProvider]:
    with FakeProvider(keys=[KEY]) as provider:
        yield provider


def gated(fleet: Fleet, provider: FakeProvider, cap: int) -> None:
    fleet.configure(
        f"""
        [agents]
        host = 100
        umans = {{ cap = {cap}, usage_gate = true }}

        [providers.umans]
        base_url = "{provider.url}/v1"
        key_env = "UMANS_TEST_KEY"
        usage_path = "/usage"
        usage_field = "usage.concurrent_sessions"
        """
    )


def ask(fleet: Fleet, name: str, key: str = KEY) -> Run:
    return fleet.run("-m", MODEL, "--", *fleet.sleeper(name, 60), env={"UMANS_TEST_KEY": key})


def waiting(fleet: Fleet, name: str, key: str = KEY) -> Run:
    run = ask(fleet, name, key)
    fleet.until(lambda: fleet.waits(run))
    return run


def answers(fleet: Fleet) -> list[ev.UsageAnswered]:
    return [event for _, event in fleet.events_of(ev.UsageAnswered)]


def test_g1_g3_g5_waiting_runs_enter_by_the_providers_own_count_alone(fleet: Fleet, provider: FakeProvider) -> None:
    gated(fleet, provider, cap=2)
    slots = [fleet.occupy(MODEL), fleet.occupy(MODEL)]
    assert provider.stats.usage_asked == 0, "the queue is empty: no questions"
    provider.count.others = 2
    first, second = waiting(fleet, "first"), waiting(fleet, "second")
    fleet.free(*slots)
    fleet.until(lambda: len(answers(fleet)) >= 3)  # after the release, and after a second
    assert fleet.waits(first)
    assert fleet.waits(second)
    (line,) = {view["reason"]["code"] for view in fleet.json("queue")["tickets"]}
    assert line == "usage_gate"
    (pool,) = [pool for pool in fleet.json("status")["pools"] if pool["pool"] == "umans"]
    assert pool["upstream"]["in_flight"] == 2
    provider.count.others = 1
    fleet.until(lambda: fleet.has_started("first"))
    fleet.until(lambda: fleet.has_started("second"))
    granted = [at for at, event in fleet.events_of(ev.Granted) if not event.ticket]
    answered = [at for at, event in fleet.events_of(ev.UsageAnswered) if event.count == 1]
    assert granted[0] != granted[1], "one for each answer"
    assert set(granted) <= set(answered)
    assert provider.stats.usage_most_at_once == 1, "two processes never ask at the same time"
    assert KEY.encode() not in b"".join(path.read_bytes() for path in fleet.home.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault(on="usage", status=404, times=100), "status 404"),
        (Fault(on="usage", delay_s=30, times=100), "no answer within 5 s"),
        (Fault(on="usage", drop="before", times=100), "the question failed: RemoteDisconnected"),
        (
            Fault(on="usage", body={"usage": {"concurrent_sessions": "three"}}, times=100),
            "no number at usage.concurrent_sessions",
        ),
    ],
)
def test_g4_unknown_decides_without_the_gate_and_says_why(
    fleet: Fleet, provider: FakeProvider, fault: Fault, error: str
) -> None:
    gated(fleet, provider, cap=1)
    slot = fleet.occupy(MODEL)
    provider.script(fault)
    waiting(fleet, "agent")
    fleet.free(slot)
    fleet.until(lambda: fleet.has_started("agent"))
    assert answers(fleet)[-1].error == error
    (pool,) = [pool for pool in fleet.json("status")["pools"] if pool["pool"] == "umans"]
    assert pool["upstream"]["error"] == error


def test_g3_when_the_process_that_asks_is_killed_another_asks(fleet: Fleet, provider: FakeProvider) -> None:
    gated(fleet, provider, cap=1)
    slot = fleet.occupy(MODEL)
    provider.script(Fault(on="usage", delay_s=30))
    runs = [waiting(fleet, "one"), waiting(fleet, "two")]
    fleet.free(slot)
    fleet.until(lambda: provider.stats.usage_asked == 1)
    asker = fleet.state.gates[0].usage_gate.asked_by
    (other,) = [run for run in runs if run.pid != process_identity.pid_of(asker)]
    (killed,) = [run for run in runs if run is not other]
    kill_if_there(killed.pid)
    fleet.until(lambda: fleet.holds(other))
    assert [event.error for event in answers(fleet)] == ["withdrawn", ""]


def test_g3_only_processes_that_have_the_key_ask(fleet: Fleet, provider: FakeProvider) -> None:
    gated(fleet, provider, cap=1)
    slot = fleet.occupy(MODEL)
    provider.count.others = 1
    without = waiting(fleet, "without", key="")
    with_key = waiting(fleet, "with")
    fleet.free(slot)
    fleet.until(lambda: len(answers(fleet)) >= 2)
    assert fleet.waits(without)
    by = {process_identity.pid_of(event.by) for _, event in fleet.events_of(ev.UsageAsked)}
    assert by == {with_key.pid}
    kill_if_there(with_key.pid)
    fleet.until(lambda: fleet.holds(without))
