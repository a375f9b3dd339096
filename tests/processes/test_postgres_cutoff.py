"""A host whose network to the database is cut: its agents go on, or are ended before others get their slots.

Times are scaled down by FLEETGATE_TEST_BEAT_S: ended after three beats, lost after 4.5.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from fleetgate.core import events as ev
from tests.postgres_server import Server
from tests.postgres_stores import fresh_store
from tests.processes.fleet import Fleet
from tests.processes.test_postgres_hosts import MODEL, adopted, cap, host
from tests.relay import Relay

pytestmark = [pytest.mark.processes, pytest.mark.postgres]


@pytest.fixture
def fleet(postgres: Server) -> Iterator[Fleet]:
    with Fleet(store=fresh_store(postgres, tcp=True)) as fleet:
        cap(fleet, 1)
        yield fleet


@pytest.fixture
def relay(fleet: Fleet) -> Iterator[Relay]:
    relay = Relay("127.0.0.1", server_port(fleet))
    yield relay
    relay.close()


def server_port(fleet: Fleet) -> int:
    return int(fleet.store.partition("127.0.0.1:")[2].partition("/")[0])


def over(relay: Relay, fleet: Fleet, beat_s: float) -> dict[str, str]:
    """The environment of a host that reaches the server by the relay alone."""
    store = fleet.store.replace(f"127.0.0.1:{server_port(fleet)}", f"127.0.0.1:{relay.port}")
    return {**host(fleet, "far", beat_s), "FLEETGATE_STORE": store}


def test_l2_with_on_cutoff_end_an_agent_of_a_host_that_is_cut_off_is_ended(fleet: Fleet, relay: Relay) -> None:
    fleet.configure('run.on_cutoff = "end"\n')
    far = fleet.run(*MODEL, "--", *fleet.sleeper("far", 120), env=over(relay, fleet, 0.5))
    fleet.until(lambda: fleet.has_started("far"), what="an agent")
    relay.cut()
    assert far.wait(60) == 75, far
    assert 'run.on_cutoff = "end"' in far.err


@pytest.mark.skipif(not os.environ.get("FLEETGATE_SOAK"), reason="takes 20 s: make soak")
def test_a1_with_on_cutoff_end_no_slot_is_granted_while_an_agent_of_a_cut_off_host_runs(
    fleet: Fleet, relay: Relay
) -> None:
    fleet.configure('run.on_cutoff = "end"\n')
    far = fleet.run(*MODEL, "--", *fleet.sleeper("far", 120), env=over(relay, fleet, 3.0))
    fleet.until(lambda: fleet.has_started("far"), what="an agent")
    near = fleet.run(*MODEL, "--", *fleet.sleeper("near", 0.5), env=host(fleet, "near", 3.0))
    fleet.until(lambda: fleet.waits(near), what="one of another host")
    relay.cut()
    assert near.wait(60) == 0, near
    assert far.wait(60) == 75, far
    assert not fleet.notes("over"), "both ran at once"
    relay.mend()
    fleet.until(fleet.is_empty, within_s=60, what="an empty gate")
    assert not adopted(fleet)


def test_l2_by_default_an_agent_of_a_host_that_is_cut_off_goes_on_and_is_counted_again(
    fleet: Fleet, relay: Relay
) -> None:
    far = fleet.run(*MODEL, "--", *fleet.sleeper("far", 120), env=over(relay, fleet, 0.5))
    fleet.until(lambda: fleet.has_started("far"), what="an agent")
    near = fleet.run(*MODEL, "--", *fleet.sleeper("near", 0.1), env=host(fleet, "near"))
    fleet.until(lambda: fleet.waits(near), what="one of another host")
    fleet.slots = 2
    relay.cut()
    assert near.wait(60) == 0, near
    assert [event.cause for _, event in fleet.events_of(ev.Reclaimed)] == ["lost"]
    assert far.code is None
    relay.mend()
    fleet.until(lambda: adopted(fleet) == ["cut_off"], within_s=60, what="its agent counted again")
    far.signal(signal.SIGTERM)
    far.wait(60)
