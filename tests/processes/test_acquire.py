"""`fleetgate acquire` between processes: shells take slots, die, and are followed by others (rules L2, L4, A9, C3)."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from fleetgate.core import events as ev
from fleetgate.gate.liveness import process_identity
from tests.processes.fleet import FLEETGATE, Fleet, Run

pytestmark = pytest.mark.processes

OPUS = "anthropic/claude-opus-4-6"
ONE = "[agents]\nhost = 1\n"


def acquire(fleet: Fleet, *arguments: str, env: Mapping[str, str] | None = None) -> Run:
    return fleet.start([*FLEETGATE, "acquire", *arguments], env)


def command(fleet: Fleet, *arguments: str) -> Run:
    """Any fleetgate command, to its end."""
    run = fleet.start([*FLEETGATE, *arguments])
    run.wait()
    return run


def shell(fleet: Fleet, script: str, program: str = "sh") -> Run:
    """A shell with a script that acquires; what it prints tells what it got."""
    return fleet.start([program, "-c", script], {"PATH": f"{Path(FLEETGATE[0]).parent}:{os.environ['PATH']}"})


def sleeper(fleet: Fleet) -> Run:
    """A process to tie a lease to."""
    return fleet.start(["sleep", "600"])


def kill(run: Run) -> None:
    """kill -9, and the system knows that it is gone."""
    run.signal(signal.SIGKILL)
    run.wait()


def id_of(fleet: Fleet, run: Run) -> str:
    """The id that a run has printed, once it has."""
    fleet.until(lambda: run.out.endswith("\n"), what=f"an id from {run}")
    return run.out.strip()


# The life of a lease.


@pytest.mark.parametrize("program", ["sh", "bash"])
def test_l4_the_lease_of_a_shell_ends_when_the_shell_dies_and_a_waiter_in_another_shell_enters(
    fleet: Fleet, program: str
):
    fleet.configure(ONE)
    first = shell(fleet, "id=$(fleetgate acquire) && echo $id; sleep 600; echo over", program)
    ident = id_of(fleet, first)
    assert process_identity.pid_of(fleet.state.leases[ident].lives_with) == first.pid
    second = shell(fleet, "id=$(fleetgate acquire -q --pid $$) && echo $id; sleep 600; echo over", program)
    fleet.until(lambda: fleet.in_queue() == 1)
    kill(first)  # its sleep lives on: the lease is the shell's
    heir = id_of(fleet, second)
    assert process_identity.pid_of(fleet.state.leases[heir].lives_with) == second.pid
    assert [(event.id, event.cause) for _, event in fleet.events_of(ev.Reclaimed)] == [(ident, "lost")]
    kill(second)
    fleet.gate.run_checks()
    assert fleet.is_empty()


def test_l4_a_lease_outlives_the_fleetgate_that_asked_for_it(fleet: Fleet):
    fleet.configure(ONE)
    owner = sleeper(fleet)
    asked = acquire(fleet, "--pid", str(owner.pid))
    assert asked.wait() == 0
    fleet.gate.run_checks()
    assert list(fleet.state.leases) == [asked.out.strip()]
    assert acquire(fleet, "--no-wait").wait() == 75


def test_l4_release_by_another_process_lets_the_waiter_in(fleet: Fleet):
    fleet.configure(ONE)
    ident = id_of(fleet, acquire(fleet, "--pid", str(sleeper(fleet).pid)))
    waits = acquire(fleet, "--pid", str(sleeper(fleet).pid))
    fleet.until(lambda: fleet.waits(waits))
    done = command(fleet, "release", ident)
    assert done.out.endswith("; 1 waiting started\n"), done
    assert waits.wait() == 0
    assert list(fleet.state.leases) == [waits.out.strip()]
    assert fleet.state.leases[waits.out.strip()].claimed
    assert command(fleet, "release", ident).out == f"{ident} was already released\n"


def test_l2_a_stopped_owner_keeps_its_lease(fleet: Fleet):
    fleet.configure(ONE)
    owner = sleeper(fleet)
    id_of(fleet, acquire(fleet, "--pid", str(owner.pid)))
    owner.signal(signal.SIGSTOP)
    assert acquire(fleet, "--no-wait").wait() == 75
    owner.signal(signal.SIGCONT)


def test_l3_a_lease_taken_back_by_force_goes_to_the_next_and_its_owner_runs_on(fleet: Fleet):
    fleet.configure(ONE)
    owner = sleeper(fleet)
    ident = id_of(fleet, acquire(fleet, "--pid", str(owner.pid)))
    waits = acquire(fleet, "--pid", str(sleeper(fleet).pid))
    fleet.until(lambda: fleet.waits(waits))
    taken = command(fleet, "release", ident, "--force")
    assert f"freed the slot of {ident}, sleep 600 (process {owner.pid} on " in taken.out
    assert waits.wait() == 0
    assert owner.code is None


# In the queue.


def test_l2_kill_9_of_a_waiting_acquire_loses_no_place_of_others(fleet: Fleet):
    fleet.configure(ONE)
    owner = sleeper(fleet)
    id_of(fleet, acquire(fleet, "--pid", str(owner.pid)))
    first, second = (acquire(fleet, "--pid", str(sleeper(fleet).pid)) for _ in range(2))
    fleet.until(lambda: fleet.waits(first) and fleet.waits(second))
    kill(first)
    kill(owner)
    assert second.wait() == 0, second
    assert list(fleet.state.leases) == [second.out.strip()]
    assert not fleet.state.tickets


def test_l2_when_the_owner_to_be_dies_in_the_queue_its_acquire_gives_up(fleet: Fleet):
    fleet.configure(ONE)
    fleet.occupy()
    owner = sleeper(fleet)
    waits = acquire(fleet, "--json", "--pid", str(owner.pid))
    fleet.until(lambda: fleet.waits(waits))
    kill(owner)
    assert waits.wait() == 75, waits
    assert json.loads(waits.out)["reason"]["code"] == "lost"
    assert not fleet.state.tickets


def test_l2_kill_9_at_any_moment_leaks_no_slot(fleet: Fleet):
    """A slot is held only by a lease whose owner lives: when the owners are gone, so are all leases."""
    fleet.configure(ONE)
    owners = []
    for twentieth in range(20):
        owner = sleeper(fleet)
        owners.append(owner)
        asked = acquire(fleet, "--pid", str(owner.pid), "--no-wait")
        time.sleep(0.01 * twentieth)
        kill(asked)
        if twentieth % 5 == 4:
            while owners:
                kill(owners.pop())
    last = acquire(fleet, "--pid", str(os.getpid()))
    assert last.wait() == 0, last
    assert list(fleet.state.leases) == [last.out.strip()]
    fleet.check_log()


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP"])
def test_r2_a_signal_in_the_queue_leaves_the_queue_with_128_plus_its_number(fleet: Fleet, name: str):
    number = getattr(signal, f"SIG{name}")
    fleet.configure(ONE)
    fleet.occupy()
    waits = acquire(fleet)
    fleet.until(lambda: fleet.waits(waits))
    waits.signal(number)
    assert waits.wait() == 128 + number
    assert waits.out == ""
    assert not fleet.state.tickets


def test_a9_a_cancelled_waiter_learns_of_it_and_a_bumped_one_enters_first(fleet: Fleet):
    fleet.configure(ONE)
    held = fleet.occupy()
    runs = []
    for _ in range(3):
        runs.append(acquire(fleet, "--pid", str(sleeper(fleet).pid)))
        fleet.until(lambda: fleet.waits(runs[-1]))
    first, second, third = (
        next(
            ident for ident, ticket in fleet.state.tickets.items() if process_identity.pid_of(ticket.holder) == run.pid
        )
        for run in runs
    )
    assert command(fleet, "cancel", first).out.startswith(f"cancelled {first}: sleep 600 (process ")
    assert runs[0].wait() == 75
    assert re.search(r"^fleetgate: cancelled by \S+@\S+$", runs[0].err, re.MULTILINE), runs[0].err
    assert command(fleet, "bump", third).out.startswith(f"{third} is now at position 1 of ")
    fleet.free(held)
    assert runs[2].wait() == 0
    assert runs[2].out == f"{third}\n"
    assert fleet.waits(runs[1])
    assert list(fleet.state.tickets) == [second]


def test_a12_a_cap_raised_in_another_process_wakes_who_waits(fleet: Fleet):
    fleet.configure(ONE)
    fleet.occupy()
    waits = [acquire(fleet, "--pid", str(sleeper(fleet).pid)) for _ in range(2)]
    fleet.until(lambda: fleet.in_queue() == 2)
    assert command(fleet, "cap", "set", "host", "3").out.endswith("; 2 waiting started\n")
    assert [run.wait() for run in waits] == [0, 0]


def test_p1_a_paused_pool_lets_who_waits_in_when_it_is_resumed(fleet: Fleet):
    assert command(fleet, "pause", "host").code == 0
    waits = acquire(fleet, "--pid", str(sleeper(fleet).pid))
    fleet.until(lambda: fleet.waits(waits))
    assert "is paused" in fleet.until(lambda: waits.err)
    assert "1 waiting started" in command(fleet, "resume", "host").out
    assert waits.wait() == 0


# Caps of the environment.


def test_c3_with_the_opus_variable_the_fifth_and_sixth_enter_over_a_file_that_says_four(fleet: Fleet):
    fleet.configure('[agents]\nhost = 50\n"anthropic/claude-opus-*" = 4\n')
    six = {"AIDEVOPS_OPUS_CONCURRENCY_CAP": "6"}
    owners = [sleeper(fleet) for _ in range(7)]

    def ask(owner: Run, env: Mapping[str, str] | None = None) -> Run:
        asked = acquire(fleet, "-m", OPUS, "--no-wait", "--json", "--pid", str(owner.pid), env=env)
        asked.wait()
        return asked

    assert [ask(owner).code for owner in owners[:4]] == [0, 0, 0, 0]
    refused = ask(owners[4])
    assert refused.code == 75
    assert json.loads(refused.out)["reason"]["code"] == "opus_concurrency_cap"
    assert [ask(owner, six).code for owner in owners[4:6]] == [0, 0]
    refused = ask(owners[6], six)
    assert refused.code == 75
    assert json.loads(refused.out)["reason"]["code"] == "opus_concurrency_cap"
    kill(owners[0])
    assert ask(owners[6], six).code == 0
