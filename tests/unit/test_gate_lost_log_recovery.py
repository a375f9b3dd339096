"""A log that lost its last commits: who runs is counted, and what was given back stays given back."""

from __future__ import annotations

import os

from fleetgate.core import commands as cmd
from fleetgate.core.entities import Spec
from fleetgate.gate.liveness import process_identity
from fleetgate.gate.replica.replica import Replica
from fleetgate.log.memory import MemoryLog
from fleetgate.testing import FakeClock
from tests.memory_backup import RestorableStore

ME = process_identity.this_process()
OTHER = process_identity.identify(os.getppid()) or ""
SPEC = Spec(("umans/coder",), "requests")


def pair() -> tuple[RestorableStore, Replica, Replica]:
    store = RestorableStore(FakeClock(1_700_000_000_000))
    mine, theirs = (Replica(MemoryLog(store=store), name) for name in (ME, OTHER))
    mine.decide([])
    return store, mine, theirs


def acquire(replica: Replica, ident: str) -> None:
    replica.decide([cmd.Acquire(ident, SPEC, replica.me)])
    assert replica.state.leases[ident].claimed


def test_l2_what_a_program_gave_back_is_given_back_again_when_the_log_has_forgotten_it():
    store, mine, theirs = pair()
    acquire(mine, "one")
    acquire(mine, "two")
    backup = store.backup()
    mine.decide([cmd.Release("one")])
    store.restore(backup)
    theirs.catch_up()
    assert set(theirs.state.leases) == {"one", "two"}
    mine.decide([])
    assert set(theirs.catch_up().leases) == {"two"}, "it lives on, and nobody else can tell"


def test_l2_an_agent_that_runs_is_claimed_by_whoever_sees_it():
    store, mine, theirs = pair()
    theirs.decide([])
    backup = store.backup()
    acquire(mine, "one")
    mine.decide([cmd.Claim("one", ME)])
    theirs.catch_up()
    store.restore(backup)
    theirs.decide([])
    assert set(theirs.state.leases) == {"one"}


def test_l2_what_was_given_back_since_the_loss_is_not_claimed_by_one_who_hears_of_it_late():
    """The first to notice counts the agent, which then ends its work; its process lives on."""
    store, mine, theirs = pair()
    late = Replica(MemoryLog(store=store), "h|b|n|1|1")
    backup = store.backup()
    acquire(mine, "one")
    acquire(mine, "two")
    late.catch_up()
    theirs.catch_up()
    store.restore(backup)
    theirs.decide([])
    assert set(theirs.state.leases) == {"one", "two"}
    theirs.decide([cmd.Release("one")])
    late.decide([])
    assert set(late.state.leases) == {"two"}
