"""Those who wait, and those who run, when their gate is moved by `fleetgate store copy` (docs/postgres.md,
"Moving").
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing
from urllib.request import urlopen

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core import events as ev
from fleetgate.core.entities import Rule
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.log import open_log
from fleetgate.log.postgres.url import parse
from fleetgate.log.sqlite.moved_store import close_for_good
from tests.postgres_server import Server
from tests.postgres_stores import fresh_store
from tests.processes.fleet import FLEETGATE, Fleet

pytestmark = [pytest.mark.postgres, pytest.mark.processes]


@pytest.fixture
def fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    """On SQLite, unless a test says otherwise."""
    store = fresh_store(request.getfixturevalue("postgres")) if getattr(request, "param", "") == "postgresql" else ""
    with Fleet(store=store) as fleet:
        fleet.slots = 1
        fleet.gate.decide([cmd.SetRule(Rule("agents", "*/m", cap=1))])
        yield fleet


@pytest.mark.parametrize(
    ("fleet", "through"),
    [("sqlite", "the store"), ("sqlite", "a node"), ("postgresql", "a node by itself")],
    indirect=["fleet"],
)
def test_l2_waiting_and_running_agents_follow_their_gate_to_its_new_store(
    fleet: Fleet, postgres: Server, through: str
) -> None:
    new = fresh_store(postgres)
    if through == "a node":
        node = fleet.start([*FLEETGATE, "node"])
        fleet.until(lambda: "listens" in node.err, what="a node")
    door = fleet.folder / "door"
    script = f'while [ ! -e {door} ]; do sleep 0.05; done; echo "$FLEETGATE_STORE"'
    runs = fleet.run("-m", "p/m", "--", "sh", "-c", script)
    fleet.until(lambda: fleet.holds(runs), what="a lease")
    waits = fleet.waiting("-m", "p/m", "--", "sh", "-c", 'echo "$FLEETGATE_STORE"')
    fleet.close_gate()
    copied = fleet.start([*FLEETGATE, "store", "copy", fleet.store, new])
    assert copied.wait(60) == 0, copied
    fleet.until(lambda: "continuing there" in waits.err, within_s=60, what="one that went on there")
    door.touch()
    assert runs.wait(60) == 0, runs
    assert waits.wait(60) == 0, waits
    assert f"namespace={parse(new).namespace}" in waits.out, "its agent is to find the gate where it is"
    log = open_log(new)
    try:
        told = [event for _, _, event in log.history()]
    finally:
        log.close()
    released = [event.id for event in told if isinstance(event, ev.Released)]
    queued = [event.ticket.id for event in told if isinstance(event, ev.Queued)]
    assert len(queued) == 1, "it kept its place, and did not queue again"
    assert len(released) == 2
    assert queued[0] == released[1]
    assert not [event for event in told if isinstance(event, ev.Reclaimed)]


@pytest.mark.parametrize("fleet", ["sqlite", "postgresql"], indirect=True)
def test_l2_the_service_goes_where_its_gate_was_moved_to_and_its_port_stays(fleet: Fleet, postgres: Server) -> None:
    new = fresh_store(postgres)
    service = fleet.start([*FLEETGATE, "serve", "--port", "0"])
    fleet.until(lambda: "serves at " in service.err, what="a service")
    url = service.err.split("serves at ")[1].split()[0]
    fleet.close_gate()
    copied = fleet.start([*FLEETGATE, "store", "copy", fleet.store, new])
    assert copied.wait(60) == 0, copied
    fleet.until(lambda: service.err.count("serves at ") == 2, within_s=60, what="a service of the new gate")
    gate = DirectGate(open_log(new))
    with closing(gate):
        gate.decide([cmd.SetRule(Rule("requests", "elsewhere", cap=7))], durable=True)
    with urlopen(f"{url}/v1/caps", timeout=60) as answer:
        assert b"elsewhere" in answer.read(), "it answers, and not for the gate where that is now"
    assert "continuing there" in service.err
    service.signal(signal.SIGTERM)
    assert service.wait(60) == 0, service


def test_q2_a_run_that_cannot_reach_the_new_store_says_what_to_do(fleet: Fleet) -> None:
    service = fleet.start([*FLEETGATE, "serve", "--port", "0"])
    fleet.until(lambda: "serves at " in service.err, what="a service")
    fleet.occupy("p/m")
    waits = fleet.waiting("-m", "p/m", "--", "true")
    worker = fleet.start([*FLEETGATE, "worker", "-n", "1"])
    fleet.until(lambda: "running up to" in worker.err, what="a worker")
    nowhere = parse("postgresql://me:secret@127.0.0.1:1/x?sslmode=prefer&namespace=blue").usable
    close_for_good(str(fleet.home), nowhere)
    assert waits.wait(60) == 69, waits
    assert "set FLEETGATE_STORE to it" in waits.err
    assert "start this again" in waits.err
    assert "postgresql://me@127.0.0.1:1/x?sslmode=prefer&namespace=blue" in waits.err
    assert "secret" not in waits.err
    assert worker.wait(60) == 69, worker
    assert worker.err.count("was moved to") == 1, worker.err
    assert "start the worker again" in worker.err
    assert service.wait(60) == 69, service
    assert "start this again" in service.err
    new = fleet.done("-m", "p/m", "--", "true")
    assert new.code == 69
    assert "was moved to" in new.err
