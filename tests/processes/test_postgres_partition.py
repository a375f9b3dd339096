"""Hosts whose wire to the database is cut: packets are lost, and no process learns of it (rules L2, Q2).

Each host is a network namespace, and the database is at a bridge between them. In the suite times are scaled down by
FLEETGATE_TEST_BEAT_S, so that a host is called lost after seconds; with FLEETGATE_SOAK (`make soak`) they are the real
ones: 45 s, and a cut of 60 s.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from fleetgate.core import events as ev
from fleetgate.log.host_beats import TABLE
from tests.postgres_server import NoServer, Server
from tests.postgres_stores import migrate
from tests.processes.fleet import FLEETGATE, Fleet, Run
from tests.processes.network import HUB, Network, NoNetwork
from tests.processes.test_postgres_hosts import MODEL, adopted, cap, host

pytestmark = [pytest.mark.processes, pytest.mark.postgres, pytest.mark.timeout(400)]

SOAK = bool(os.environ.get("FLEETGATE_SOAK"))
REAL_BEAT_S = 10.0
PATIENCE_S = 120


class World(NamedTuple):
    network: Network
    fleet: Fleet
    url: str  # by TCP, from the hosts

    def run(self, name: str, where: str, seconds: float | Path, beat_s: float) -> Run:
        env = {**host(self.fleet, where, beat_s), "FLEETGATE_STORE": self.url}
        with self.network.hosts[where].inside():
            return self.fleet.run(*MODEL, "--", *self.fleet.sleeper(name, seconds), env=env)

    def until_started(self, *names: str) -> None:
        self.fleet.until(lambda: all(map(self.fleet.has_started, names)), PATIENCE_S, what=f"{names} to start")

    def last_beat(self, where: str) -> int:
        """When a host was last heard of, by the server's clock."""
        beats = dict(self.fleet.gate.log.side_items(TABLE))
        (found,) = [int(at) for site, at in beats.items() if site.startswith(f"{where}|")]
        return found

    def history(self) -> str:
        told = self.fleet.start([*FLEETGATE, "history"])
        assert told.wait(PATIENCE_S) == 0, told
        return told.out

    def end(self, run: Run) -> None:
        run.signal(signal.SIGTERM)
        run.wait(PATIENCE_S)
        self.fleet.until(self.fleet.is_empty, PATIENCE_S, what="an empty gate")
        self.fleet.check_log()


@pytest.fixture
def world() -> Iterator[World]:
    try:
        network = Network("ab")
    except NoNetwork as no:
        pytest.skip(str(no))
    try:
        with network.hub.inside():
            server = Server(listen=HUB)
    except NoServer as no:
        network.close()
        pytest.skip(str(no))
    database = server.new_database(migrate)
    with Fleet(store=server.url(database)) as fleet:
        yield World(network, fleet, server.url(database, tcp=True))
    server.remove()
    network.close()


@pytest.mark.parametrize(
    ("beat_s", "cut_s"),
    [
        pytest.param(2.0, 2.5, id="lost after 9 s, cut for 2.5 s"),
        pytest.param(
            REAL_BEAT_S,
            30,
            id="lost after 45 s, cut for 30 s",
            marks=pytest.mark.skipif(not SOAK, reason="a cut of 30 s: make soak"),
        ),
    ],
)
def test_l2_a_host_cut_off_for_less_than_the_lost_holder_time_finds_its_leases_again(
    world: World, beat_s: float, cut_s: float
) -> None:
    network, fleet = world.network, world.fleet
    cap(fleet, 1)
    end = fleet.folder / "end"
    first = world.run("first", "a", end, beat_s)
    world.until_started("first")
    second = world.run("second", "b", 0.1, beat_s)
    fleet.until(lambda: fleet.in_queue() == 1, what="one of another host")
    network.cut("a")
    time.sleep(cut_s)
    assert not fleet.has_started("second")
    network.mend("a")
    end.touch()
    assert first.wait(PATIENCE_S) == second.wait(PATIENCE_S) == 0
    assert fleet.most_at_once() == 1
    assert not fleet.events_of(ev.Reclaimed), "it was called lost"
    assert not adopted(fleet)
    assert [event.outcome for _, event in fleet.events_of(ev.Released)] == ["ok", "ok"]
    fleet.until(fleet.is_empty, PATIENCE_S, what="an empty gate")
    fleet.check_log()


@pytest.mark.parametrize(
    ("beat_s", "cut_s"),
    [
        pytest.param(1.0, 0, id="lost after 4.5 s"),
        pytest.param(
            REAL_BEAT_S,
            60,
            id="lost after 45 s, cut for 60 s",
            marks=pytest.mark.skipif(not SOAK, reason="a cut of 60 s: make soak"),
        ),
    ],
)
def test_l2_a_host_cut_off_for_longer_keeps_its_agents_and_is_counted_again_when_it_returns(
    world: World, beat_s: float, cut_s: float
) -> None:
    """Its slots are granted to others after the lost-holder time not before; a run that waited there queues again."""
    network, fleet = world.network, world.fleet
    cap(fleet, 2)
    fleet.slots = 100  # for a while there are more than the cap allows
    first = world.run("first", "a", 3_600, beat_s)
    end = fleet.folder / "end"
    ends = world.run("ends", "a", end, beat_s)
    world.until_started("first", "ends")
    second = world.run("second", "b", 0.1, beat_s)
    fleet.until(lambda: fleet.in_queue() == 1, what="one of another host")
    waiter = world.run("waiter", "a", 0.1, beat_s)
    fleet.until(lambda: "position" in waiter.err, what="one more of the first host, who knows that it waits")
    network.cut("a")
    cut_at = time.monotonic()
    end.touch()
    beat_at = world.last_beat("a")
    assert second.wait(PATIENCE_S) == 0
    fleet.until(lambda: fleet.notes("end"), what="an agent that ends meanwhile")
    if cut_s:
        assert ends.wait(PATIENCE_S) == 0, "its agent ended while there was no store, and that is no failure of it"
    taken = fleet.events_of(ev.Reclaimed)
    assert {event.cause for _, event in taken} == {"lost"}
    assert min(at for at, _ in taken) - beat_at >= beat_s * 4_500
    (began,) = [life.started for life in fleet.lives() if life.name == "second"]
    assert began + fleet.log_offset_ms() - beat_at >= beat_s * 4_500 - 5, "a slot was granted to another too early"
    assert [life.ended for life in fleet.lives() if life.name == "first"] == [None], "an agent did not go on"
    time.sleep(max(cut_s - (time.monotonic() - cut_at), 0))
    if cut_s:
        assert "cannot be reached" in waiter.err, "those who wait say why"
    network.mend("a")
    assert ends.wait(PATIENCE_S) == 0
    fleet.until(lambda: adopted(fleet) == ["cut_off"], PATIENCE_S, what="its agent counted again")
    assert waiter.wait(PATIENCE_S) == 0, "a run that waited there queues again, and gets its turn"
    told = world.history()
    assert "its host a was silent for too long (it may still be running there)" in told
    assert "left the queue: its host was silent for too long" in told
    assert "its host was cut off for too long, and its lease had been taken back" in told
    world.end(first)
    if SOAK:
        print(told)
