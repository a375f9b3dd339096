"""Several hosts on one store: each judges its own processes, and the others by their beats.

The hosts of these tests are processes with another FLEETGATE_HOST, which see nothing of each other, as the processes of
two containers that share a folder. Times are a tenth of what they are in earnest, or less.
"""

from __future__ import annotations

import signal

import pytest

from fleetgate.core import events as ev
from fleetgate.gate.liveness import process_identity
from tests.processes.fleet import FLEETGATE, Fleet, Run

pytestmark = pytest.mark.processes

BEAT_S = 1.0  # lost after 4.5 s: a busy machine may keep a node from beating for two


def host(name: str, beat_s: float = BEAT_S) -> dict[str, str]:
    return {"FLEETGATE_HOST": name, "FLEETGATE_TEST_BEAT_S": str(beat_s)}


def start_node(fleet: Fleet, name: str) -> Run:
    run = fleet.start([*FLEETGATE, "node"], env=host(name))
    fleet.until(lambda: "listens" in run.err or run.code is not None, what="a node that listens")
    return run


def hosts_of(fleet: Fleet) -> list[str]:
    return sorted(lease.ticket.spec.host for lease in fleet.state.leases.values())


def test_n3_each_host_has_its_own_pool(fleet: Fleet) -> None:
    fleet.configure("[agents]\nhost = 1\n")
    a = fleet.run("--", *fleet.sleeper("a", 60), env=host("a"))
    b = fleet.run("--", *fleet.sleeper("b", 60), env=host("b"))
    fleet.until(lambda: hosts_of(fleet) == ["a", "b"], what="one on each host")
    refused = fleet.done("--no-wait", "--", "true", env=host("a"))
    assert refused.code == 75
    assert "host:a" in refused.err
    assert a.code is b.code is None


def test_l2_a_host_that_beats_is_not_lost_however_long_it_takes(fleet: Fleet) -> None:
    fleet.configure('[agents]\nhost = 100\n"*/m" = 1\n')
    start_node(fleet, "a")
    start_node(fleet, "b")
    first = fleet.run("-m", "p/m", "--", *fleet.sleeper("first", 7), env=host("a"))
    fleet.until(lambda: fleet.has_started("first"), what="the first")
    second = fleet.run("-m", "p/m", "--", *fleet.sleeper("second", 0.1), env=host("b"))
    assert first.wait() == second.wait() == 0
    assert not fleet.events_of(ev.Reclaimed)
    assert fleet.most_at_once() == 1


def test_l2_the_same_without_any_node(fleet: Fleet) -> None:
    """The beat that a run sends every ten seconds and a waiting run every second is enough."""
    fleet.configure('[agents]\nhost = 100\n"*/m" = 1\n')
    first = fleet.run("-m", "p/m", "--", *fleet.sleeper("first", 9), env=host("a", 1.5))
    fleet.until(lambda: fleet.has_started("first"), what="the first")
    second = fleet.run("-m", "p/m", "--", *fleet.sleeper("second", 0.1), env=host("b", 1.5))
    assert first.wait() == second.wait() == 0
    assert not fleet.events_of(ev.Reclaimed)


@pytest.mark.parametrize(("noded", "beat_s"), [(True, BEAT_S), (False, 1.5)], ids=["through nodes", "directly"])
def test_l2_what_a_host_held_is_taken_back_when_it_is_silent_for_long(fleet: Fleet, noded: bool, beat_s: float) -> None:
    """A whole host is killed, or a container: no process is left there to report it."""
    fleet.configure('[agents]\nhost = 100\n"*/m" = 1\n')
    nodes = [start_node(fleet, name) for name in "ab"] if noded else []
    first = fleet.run("-m", "p/m", "--", *fleet.sleeper("first", 600), env=host("a", beat_s))
    fleet.until(lambda: fleet.has_started("first"), what="the first")
    second = fleet.run("-m", "p/m", "--", *fleet.sleeper("second", 0.1), env=host("b", beat_s))
    fleet.until(lambda: fleet.in_queue() == 1, what="the second in the queue")
    for run in [first, *nodes[:1]]:
        run.signal(signal.SIGKILL)
    fleet.kill_sleeper(fleet.lives()[0].pid)
    assert second.wait(30) == 0
    (taken,) = [event for _, event in fleet.events_of(ev.Reclaimed)]
    assert taken.cause == "lost"
    dead = fleet.killed_at[fleet.lives()[0].pid]
    assert fleet.lives()[1].started - dead > 1000 * beat_s  # not at once: others cannot see that it is dead


def test_l2_a_place_in_the_queue_goes_with_its_host(fleet: Fleet) -> None:
    fleet.configure('[agents]\nhost = 100\n"*/m" = 1\n')
    holder = fleet.run("-m", "p/m", "--", *fleet.sleeper("first", 600), env=host("b", 1.5))
    fleet.until(lambda: fleet.has_started("first"), what="the first")
    gone = fleet.waiting("-m", "p/m", "--", "true", env=host("a", 1.5))
    after = fleet.waiting("-m", "p/m", "--", "true", env=host("b", 1.5))
    gone.signal(signal.SIGKILL)
    fleet.until(lambda: fleet.in_queue() == 1, what="the ticket of the silent host gone")
    assert process_identity.pid_of(next(iter(fleet.state.tickets.values())).holder) == after.pid
    assert not fleet.events_of(ev.Reclaimed)
    holder.signal(signal.SIGTERM)
    assert after.wait() == 0
